"""The workload of a run: writers, readers, a group, a watcher, a creator of topics, transactions.

`start`, then whatever is to happen meanwhile, then `finish`: writers end what they have begun,
everything is read once more from its beginning, and every broker is asked what it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ottla.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from ottla.verify.clients.connections import Address, Connections, NoAnswer, NotSent, Pause
from ottla.verify.clients.creator import Creator
from ottla.verify.clients.librdkafka import GroupConsumer, Senders
from ottla.verify.clients.member import Member
from ottla.verify.clients.reader import Reader, ask_end
from ottla.verify.clients.watcher import Watcher
from ottla.verify.clients.writer import Load, Progress, Writer
from ottla.verify.history import Recorder
from ottla.verify.patience import Patience
from ottla.verify.txn_workload import TRANSACTIONS_TOPIC, TxnWorkload

READ_SECONDS = 120.0
END_SECONDS = 120.0
OWNED_SECONDS = 60.0
CAUGHT_UP_SECONDS = 60.0
LOOK_SECONDS = 0.1
CREATE_SECONDS = 30.0
DELETE_SECONDS = 10.0
BUSY = 100
"""Requests that are to be in flight when something breaks, where there are as many writers."""
_SHARING = 10
"""So many writers share their connections."""
_BY_NAME = 5
"""The last version of DeleteTopics that knows names only."""
_THERE = frozenset({ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE})
_GONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""What is told of a topic that is there, and of one that is deleted."""


class NotPossible(Exception):
    """The workload cannot be run on this cluster; the message says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    topic: str
    partitions: int = 3
    replicas: int = 3
    min_insync: int = 2
    writers: int = 120
    readers: int = 1
    members: int = 3
    senders: int = 20  # through librdkafka
    consumers: int = 2  # of librdkafka, each in a group of its own
    creates: bool = True
    transactional: int = 6  # writers of transactions; without any there are no movers either
    seed: int = 0
    load: Load = field(default_factory=Load)

    def only(self, part: str) -> Plan:
        """The same with `records` only, with `transactions` only, or with `all`."""
        if part == "records":
            return replace(self, transactional=0)
        if part == "transactions":
            return replace(self, writers=0, readers=0, members=0, senders=0, consumers=0)
        return self

    @property
    def busy(self) -> int:
        """How many requests are to be in flight when something breaks."""
        clients = self.writers + self.senders + self.transactional
        return BUSY if clients > BUSY else clients // 2


class Workload:
    """All clients of a run."""

    def __init__(self, bootstrap: Mapping[int, Address], plan: Plan, recorder: Recorder) -> None:
        self.progress = Progress(plan.busy)
        self._brokers = bootstrap
        self._plan = plan
        self._recorder = recorder
        self._group = f"{plan.topic}-group"
        self._all: list[Connections] = []
        self._members: list[Member] = []
        self._ends: dict[int, int] = {}  # as they were read in the end
        self._readers: list[Reader] = []
        self._consumers: list[GroupConsumer] = []
        self._creator: Creator | None = None
        self._writing = asyncio.Event()
        self._watching = asyncio.Event()
        self._writers: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._transactions: TxnWorkload | None = None
        if plan.transactional:
            self._transactions = TxnWorkload(
                plan.topic, plan.partitions, self._connect_to, recorder, self.progress,
                writers=plan.transactional, seed=plan.seed,
            )  # fmt: skip

    # ------------------------------------------------------------------ before

    @property
    def _own_topics(self) -> list[str]:
        """Those that the run makes before it begins."""
        return [self._plan.topic, *(self._transactions.topics if self._transactions else ())]

    @property
    def topics(self) -> list[str]:
        """All topics that matter, the brokers' own for transactions too."""
        if self._transactions is None:
            return [self._plan.topic]
        return [self._plan.topic, *self._transactions.topics, TRANSACTIONS_TOPIC]

    async def refuse_old_topics(self) -> None:
        """What somebody else has written would be called wrong. Raises NotPossible."""
        asked = [MetadataRequestTopic(name=name) for name in self._own_topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        try:
            answer = await self._connect("verify-look").ask_any(request)
        except NotSent as error:
            raise NotPossible(f"no broker answers: {error}") from None
        for topic in answer.topics:
            if ErrorCode.of(topic.error_code) in _THERE:
                raise NotPossible(
                    f"topic {topic.name} is there already, perhaps of an earlier run: name another "
                    "--seed, or delete it"
                )

    async def create_topics(self) -> None:
        """Create the topics of the run. Raises NotPossible."""
        plan = self._plan
        if plan.writers or plan.senders:
            self.progress.expect(plan.topic, plan.partitions)
        await self._create_topic(plan.topic, {})
        if self._transactions is not None:
            for topic, settings in self._transactions.topics.items():
                await self._create_topic(topic, settings)

    async def _create_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        plan = self._plan
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic,
                    num_partitions=plan.partitions,
                    replication_factor=plan.replicas,
                    assignments=[],
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in (
                            ("min.insync.replicas", str(plan.min_insync)),
                            ("retention.ms", "-1"),
                            ("retention.bytes", "-1"),
                            *settings.items(),
                        )
                    ],
                )
            ],
            timeout_ms=10_000,
        )
        connections = self._connect_to(topic, "verify-create")
        deadline = time.monotonic() + CREATE_SECONDS
        pause = Pause()
        while True:
            code, text = ErrorCode.NETWORK_EXCEPTION, "no broker answers"
            try:
                await connections.look()
                answer = await connections.ask(connections.controller(), request, seconds=15.0)
                told = answer.topics[0]
                code, text = ErrorCode.of(told.error_code), told.error_message or ""
            except (NotSent, NoAnswer) as error:
                text = str(error)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                break
            passing = code.retriable or code is ErrorCode.INVALID_REPLICATION_FACTOR
            if not passing or time.monotonic() > deadline:
                raise NotPossible(f"topic {topic} cannot be created: {text or code.text}")
            await pause.wait()
        while connections.partitions < plan.partitions:
            if time.monotonic() > deadline:
                raise NotPossible(f"topic {topic} does not appear in the metadata")
            await pause.wait()
            connections.metadata = None
            await connections.look()

    async def delete_topics(self) -> list[str]:
        """Remove what the run has created; which topics are left, for all that is known."""
        left = [*self._own_topics, *(self._creator.names if self._creator is not None else [])]
        connections = self._connect("verify-delete")
        deadline = time.monotonic() + DELETE_SECONDS
        pause = Pause()
        while True:
            request = DeleteTopicsRequest(topic_names=left, timeout_ms=10_000)
            try:
                connections.metadata = None
                await connections.look()
                answer = await connections.ask(
                    connections.controller(), request, seconds=15.0, version=_BY_NAME
                )
                left = [
                    str(each.name)
                    for each in answer.responses
                    if ErrorCode.of(each.error_code) not in _GONE
                ]
            except (NotSent, NoAnswer):
                pass
            if not left or time.monotonic() > deadline:
                return left
            await pause.wait()

    # ------------------------------------------------------------------ during

    async def start(self) -> None:
        """All clients begin. Raises NotPossible."""
        if self._transactions is not None and not await self._transactions.is_possible():
            raise NotPossible(
                "no broker coordinates transactions; without them: --workload records"
            )
        plan, recorder = self._plan, self._recorder
        chance = random.Random(plan.seed)
        shared: list[Connections] = []
        for number in range(plan.writers):
            if number % _SHARING == 0:
                shared.append(await self._ready(f"verify-writers-{number // _SHARING}"))
            writer = Writer(
                number, shared[-1], recorder, self.progress, plan.load,
                idempotent=number % 4 != 3, seed=chance.getrandbits(32),
            )  # fmt: skip
            self._writers.append(self._task(writer.run(self._writing)))
        for number in range(plan.readers):
            for partition in range(plan.partitions):
                name = f"reader-{number}-{partition}"
                reader = Reader(name, partition, await self._ready(name), recorder)
                self._readers.append(reader)
                self._others.append(self._task(reader.run(self._watching)))
        for number in range(plan.members):
            member = Member(
                number,
                self._group,
                await self._ready(f"verify-member-{number}"),
                recorder,
                seed=chance.getrandbits(32),
            )
            self._members.append(member)
            self._others.append(self._task(member.run(self._watching)))
        self._start_librdkafka(chance)
        watcher = Watcher(self._brokers, await self._ready("verify-watcher"), recorder)
        self._others.append(self._task(watcher.run(self._watching)))
        if plan.creates:
            self._creator = Creator(
                f"{plan.topic}-meta", plan.replicas, self._connect("verify-creator"), recorder
            )
            self._others.append(self._task(self._creator.run(self._writing)))
        if self._transactions is not None:
            await self._transactions.start()

    def _start_librdkafka(self, chance: random.Random) -> None:
        plan, bootstrap = self._plan, list(self._brokers.values())
        numbers = range(plan.writers, plan.writers + plan.senders)
        for share in (numbers[::2], numbers[1::2]) if numbers else ():
            senders = Senders(
                bootstrap, plan.topic, plan.partitions, share, self._recorder, self.progress,
                pause=plan.load.pause, seed=chance.getrandbits(32),
            )  # fmt: skip
            self._writers.append(self._task(senders.run(self._writing)))
        for number in range(plan.consumers):
            group = f"{plan.topic}-librdkafka-{number}"
            consumer = GroupConsumer(bootstrap, plan.topic, group, self._recorder)
            self._consumers.append(consumer)
            self._others.append(self._task(consumer.run(self._watching)))

    def check(self) -> None:
        """Raise what has ended a client, if something has: a mistake of the harness."""
        for task in (*self._writers, *self._others, *self._of_transactions):
            if task.done() and not task.cancelled():
                error = task.exception()
                if error is not None:
                    raise error

    @property
    def _of_transactions(self) -> list[asyncio.Task[None]]:
        return [] if self._transactions is None else self._transactions.tasks

    # ------------------------------------------------------------------ after

    async def finish(self) -> None:
        """End the writing, read everything, look at every broker; then end everything."""
        self._writing.set()
        await asyncio.gather(*self._writers)
        if await self._all_there():
            if self._transactions is not None:
                await self._transactions.finish()
            for partition in range(self._plan.partitions):
                await self._read_all(partition)
            await self._wait_read()
            await self._wait_owned()
            if self._creator is not None:
                await self._look_at_brokers(self._creator)
        self._watching.set()
        await self._wait_ended()

    async def _all_there(self) -> bool:
        """Whether the topics of the run are there still; if not, the history says so."""
        for topic in self._own_topics:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    (await self._ready("verify-there", topic)).close()
            except TimeoutError:
                text = f"no broker tells of topic {topic} within {READ_SECONDS:g} s"
                self._recorder.record("final", "end", "fail", text=text)
                return False
        return True

    async def _look_at_brokers(self, creator: Creator) -> None:
        """Ask every broker which topics it knows."""
        for broker, address in self._brokers.items():
            pause = Pause()
            try:
                async with asyncio.timeout(READ_SECONDS):
                    while not await creator.look(broker, address):
                        await pause.wait()
            except TimeoutError:
                text = f"broker {broker} does not tell its topics within {READ_SECONDS:g} s"
                self._recorder.record("final", "healed", "fail", text=text)

    async def _wait_ended(self) -> None:
        """Wait until who has watched has ended: librdkafka may wait for a coordinator for ever."""
        done, left = await asyncio.wait(
            self._others, timeout=END_SECONDS, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        if left:
            text = f"{len(left)} clients do not come to their end within {END_SECONDS:g} s"
            self._recorder.record("final", "healed", "fail", text=text)

    async def _read_all(self, partition: int) -> None:
        """Read a partition from its beginning, and say in the history where it ends."""
        record = self._recorder.record
        connections = await self._ready(f"verify-final-{partition}")
        reader = Reader("final", partition, connections, self._recorder)
        pause = Pause()
        record("final", "end", "invoke", p=partition)
        try:
            async with asyncio.timeout(READ_SECONDS):
                while True:
                    end = await ask_end("final", partition, connections, self._recorder)
                    if end is not None:
                        break
                    await pause.wait()
            await reader.read_to(end, READ_SECONDS)
        except TimeoutError:
            text = (
                f"nothing of partition {partition} could be read for {READ_SECONDS:g} s: "
                f"the last position is {reader.position}"
            )
            record("final", "end", "fail", p=partition, text=text)
            return
        if reader.broken:
            text = f"partition {partition} cannot be read from {reader.position}"
            record("final", "end", "fail", p=partition, text=text)
        else:
            self._ends[partition] = reader.position
            record("final", "end", "ok", p=partition, end=reader.position)

    async def _wait_read(self) -> None:
        """Wait until those who have read along all the time have come to the end, too."""
        patience = Patience(CAUGHT_UP_SECONDS)
        for reader in self._readers:
            if not reader.broken:
                await self._wait_come(reader, reader.partition, patience)
        for consumer in self._consumers:
            for partition in self._ends:
                await self._wait_come(consumer, partition, patience)

    async def _wait_come(
        self, client: Reader | GroupConsumer, partition: int, patience: Patience
    ) -> None:
        end = self._ends.get(partition, 0)
        while client.come_to(partition) < end and not patience.over():
            await asyncio.sleep(LOOK_SECONDS)
        if client.come_to(partition) < end:
            text = (
                f"{client.name} has come to {client.come_to(partition)} of {end} in partition "
                f"{partition}, {CAUGHT_UP_SECONDS:g} s after everything was read once more"
            )
            self._recorder.record("final", "healed", "fail", text=text)

    async def _wait_owned(self) -> None:
        """Wait until the group's members share all partitions."""
        if not self._members:
            return
        deadline = time.monotonic() + OWNED_SECONDS
        while True:
            owned = sorted(number for member in self._members for number in member.owned)
            if owned == list(range(self._plan.partitions)):
                return
            if time.monotonic() > deadline:
                text = f"the group's members own {owned} of {self._plan.partitions} partitions"
                self._recorder.record("final", "healed", "fail", text=text)
                return
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """End all clients at once, and close what they have opened."""
        await self.end()
        for connections in self._all:
            connections.close()

    async def end(self) -> None:
        """End all clients at once: nothing is sent or recorded any more."""
        self._writing.set()
        self._watching.set()
        tasks = [*self._writers, *self._others, *self._of_transactions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ inside

    def _connect(self, client_id: str) -> Connections:
        return self._connect_to(self._plan.topic, client_id)

    def _connect_to(self, topic: str, client_id: str) -> Connections:
        connections = Connections(list(self._brokers.values()), topic, client_id)
        self._all.append(connections)
        return connections

    async def _ready(self, client_id: str, topic: str | None = None) -> Connections:
        """Connections that know the topic, or another one."""
        connections = self._connect_to(topic or self._plan.topic, client_id)
        pause = Pause()
        while not connections.partitions:
            with contextlib.suppress(NotSent):
                connections.metadata = None
                await connections.look()
            if not connections.partitions:
                await pause.wait()
        return connections

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)
