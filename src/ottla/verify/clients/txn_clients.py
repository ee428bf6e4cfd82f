"""Transactional clients: they live for a moment, are killed, or go on though they were replaced.

A *role* is a transactional id. Somebody always plays it: an instance that commits and aborts until
it is killed in the middle of something, or until it cannot go on, and then the next one. Sometimes
the one before is not killed but lives on, as a zombie, and must find that it was fenced.

Writers put unique values into some partitions of a topic. Movers read a partition of this topic and
write the same values to the same partition of another one; the offsets that they have read up to
are committed with the transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from ottla.errors import ErrorCode
from ottla.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.verify.clients.connections import Connections, NoAnswer, NotSent, Pause
from ottla.verify.clients.txn_producer import TWO, Dialect, Ended, MustAbort, TxnProducer
from ottla.verify.clients.txn_reader import TxnReader
from ottla.verify.clients.writer import Progress
from ottla.verify.history import Recorder
from ottla.verify.txn_values import Values

PAUSE_SECONDS = 0.1
"""Between two transactions of an instance."""
MOST_ZOMBIES = 2
_ONE_GROUP = 7
"""The last version of OffsetFetch that asks about one group."""
_COMMITS = 0.7
"""Of the transactions; the others are aborted."""
_MOST_RECORDS = 5
_MOVED_AT_ONCE = 50

Connect = Callable[[str, str], Awaitable[Connections]]
"""From a topic and a client id to connections that know the topic."""


@dataclass(slots=True)
class Cast:
    """What the transactional clients of a run share."""

    connect: Connect
    recorder: Recorder
    progress: Progress
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Each writer has one, by which its values are known."""


Instance = Callable[[TxnProducer, asyncio.Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Role:
    """A transactional id, and what its instances do."""

    name: str
    transactional_id: str | None
    topic: str
    dialect: Dialect = TWO
    keyed: bool = False
    lives: tuple[float, float] = (1.0, 5.0)  # seconds, until an instance is killed
    zombies: float = 0.4  # of the instances live on


class Player:
    """Plays a role; `await run(stopping)`."""

    def __init__(self, role: Role, act: Callable[[], Instance], cast: Cast, *, seed: int) -> None:
        self._role = role
        self._act = act
        self._cast = cast
        self._random = random.Random(seed)
        self._count = 0
        self._alive: set[asyncio.Task[None]] = set()  # the present instance, and zombies
        self.calm = asyncio.Event()
        """Once it is set nobody is killed any more."""

    async def run(self, stopping: asyncio.Event) -> None:
        """One instance after the other. Ends when the last one has ended what it had begun."""
        chance, pause = self._random, Pause()
        try:
            while not stopping.is_set():
                self._count += 1
                instance = asyncio.ensure_future(self._live(self._count, stopping))
                self._alive.add(instance)
                instance.add_done_callback(self._alive.discard)
                await self._outlive(instance)
                if instance.done():
                    instance.result()
                    await pause.wait()
                    continue
                pause.reset()
                if chance.random() > self._role.zombies or len(self._alive) > MOST_ZOMBIES:
                    await _kill(instance)
        finally:
            await _kill(*self._alive)

    async def _outlive(self, instance: asyncio.Task[None]) -> None:
        """Wait until an instance has ended, or its time has come."""
        life = asyncio.ensure_future(self._lifetime())
        try:
            await asyncio.wait((instance, life), return_when=asyncio.FIRST_COMPLETED)
        finally:
            life.cancel()

    async def _lifetime(self) -> None:
        await asyncio.sleep(self._random.uniform(*self._role.lives))
        if self.calm.is_set():
            await asyncio.Event().wait()

    async def _live(self, number: int, stopping: asyncio.Event) -> None:
        role, cast = self._role, self._cast
        name = f"{role.name}.{number}"
        connections = await cast.connect(role.topic, name)
        producer = TxnProducer(
            name, role.transactional_id, role.dialect, connections, cast.recorder, cast.progress,
            keyed=role.keyed,
        )  # fmt: skip
        try:
            await producer.init()
            await self._act()(producer, stopping)
        except Ended:
            pass
        finally:
            connections.close()


async def _kill(*instances: asyncio.Task[None]) -> None:
    for task in instances:
        task.cancel()
    await asyncio.gather(*instances, return_exceptions=True)


class TxnWriter:
    """What an instance of a writer does."""

    def __init__(self, number: int, partitions: int, *, seed: int) -> None:
        self._number = number
        self._partitions = partitions
        self._random = random.Random(seed)
        self._sent = 0

    async def act(self, producer: TxnProducer, stopping: asyncio.Event) -> None:
        """Transactions until told to stop. Raises Ended."""
        chance = self._random
        while not stopping.is_set():
            producer.begin()
            commit = chance.random() < _COMMITS
            try:
                chosen = chance.sample(range(self._partitions), chance.randint(1, self._partitions))
                for partition in chosen:
                    await self._send(producer, partition)
                if chance.random() < 0.3:
                    await self._send(producer, chance.choice(chosen))
            except MustAbort:
                commit = False
            await producer.end(commit=commit)
            await asyncio.sleep(PAUSE_SECONDS * chance.uniform(0.0, 1.0))

    async def act_plainly(self, producer: TxnProducer, stopping: asyncio.Event) -> None:
        """Records without transactions, until told to stop. Raises Ended."""
        chance = self._random
        while not stopping.is_set():
            await self._send(producer, chance.randrange(self._partitions))
            await asyncio.sleep(PAUSE_SECONDS * chance.uniform(0.0, 1.0))

    async def _send(self, producer: TxnProducer, partition: int) -> None:
        count = self._random.randint(1, _MOST_RECORDS)
        first, self._sent = self._sent, self._sent + count
        await producer.send(partition, [Values(self._number, first, count)])


@dataclass(slots=True)
class Goal:
    """Where the movers of a partition have come to, as far as they know."""

    moved_to: int = 0


class Mover:
    """What an instance of a mover does: consume, transform, produce."""

    def __init__(
        self, partition: int, source: str, group: str, goal: Goal, cast: Cast, *, seed: int
    ) -> None:
        self._partition = partition
        self._source = source
        self._group = group
        self._goal = goal
        self._cast = cast
        self._random = random.Random(seed)

    async def act(self, producer: TxnProducer, stopping: asyncio.Event) -> None:
        """Move until told to stop. Raises Ended."""
        connections = await self._cast.connect(self._source, f"{producer.name}-reads")
        try:
            while not stopping.is_set():
                reader = TxnReader(
                    producer.name, self._partition, "committed", connections, self._cast.recorder
                )
                start = await fetch_offsets(
                    producer.name, self._group, [self._partition], connections, self._cast.recorder,
                    stable=True,
                )  # fmt: skip
                if start is None:
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                reader.position = max(0, start[self._partition])
                self._goal.moved_to = max(self._goal.moved_to, reader.position)
                while not stopping.is_set() and await self._move(producer, reader):
                    pass
        finally:
            connections.close()

    async def _move(self, producer: TxnProducer, reader: TxnReader) -> bool:
        """One transaction; False when reading must begin anew from what is committed."""
        producer.begin()
        begun = reader.position
        runs = await reader.read(producer.transaction)
        if runs is None:
            await asyncio.sleep(PAUSE_SECONDS)
            return not reader.broken
        if runs and self._random.random() < 0.3:
            runs = runs + (await reader.read(producer.transaction) or [])
        if reader.position == begun:
            return True
        values = [Values(writer, first, count) for _, writer, first, count in runs]
        commit = self._random.random() < 0.85
        try:
            for batch in _batches(values):
                await producer.send(self._partition, batch)
            await producer.commit_offsets(
                self._group, self._source, [(self._partition, reader.position)]
            )
        except MustAbort:
            commit = False
        await producer.end(commit=commit)
        if commit:
            self._goal.moved_to = max(self._goal.moved_to, reader.position)
        return commit


def _batches(values: list[Values]) -> Iterator[list[Values]]:
    batch: list[Values] = []
    for each in values:
        batch.append(each)
        if sum(each.length for each in batch) >= _MOVED_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


async def fetch_offsets(
    name: str,
    group: str,
    partitions: list[int],
    connections: Connections,
    recorder: Recorder,
    *,
    stable: bool,
) -> dict[int, int] | None:
    """What a group has committed; None when that is not to be had, or, if only what is `stable` is
    wanted, while a transaction is about to change it."""
    topic = OffsetFetchRequestTopic(name=connections.topic, partition_indexes=partitions)
    request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=stable)
    begun = recorder.now()
    try:
        coordinator = await connections.coordinator(group)
        answer = await connections.ask(coordinator, request, version=_ONE_GROUP)
    except (NotSent, NoAnswer):
        connections.forget_coordinator(group)
        return None
    found = answer.topics[0].partitions if answer.topics else []
    codes = {answer.error_code, *(each.error_code for each in found)}
    if codes != {0}:
        if ErrorCode.UNSTABLE_OFFSET_COMMIT not in codes:
            connections.forget_coordinator(group)
        return None
    offsets = dict.fromkeys(partitions, -1)  # what is not told is not there
    offsets.update({each.partition_index: each.committed_offset for each in found})
    recorder.record(
        name, "txn-committed", "ok",
        group=group, stable=stable, begun=begun, offsets=list(offsets.items()),
    )  # fmt: skip
    return offsets
