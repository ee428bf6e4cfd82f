"""The transactional part of a workload.

Writers put values into the partitions of a topic, and movers move them from there to another topic,
each with its offsets in the transaction; further writers overwrite the keys of a compacted topic.
Readers of committed records, and of everything, read along.

In the end the writers stop, every transaction is waited for until it is decided, the movers move
what is left, and everything is read once more from its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping

from ottla.verify.clients.connections import Connections, NotSent, Pause
from ottla.verify.clients.txn_clients import (
    Cast,
    Goal,
    Instance,
    Mover,
    Player,
    Role,
    TxnWriter,
    fetch_offsets,
)
from ottla.verify.clients.txn_producer import (
    ONE,
    TIMEOUT_MS,
    TWO,
    Ended,
    TxnProducer,
    knows_version_two,
)
from ottla.verify.clients.txn_reader import Level, TxnReader, ask_mark
from ottla.verify.clients.writer import Progress
from ottla.verify.history import Recorder
from ottla.verify.patience import Patience

STABLE_SECONDS = 60.0 + TIMEOUT_MS / 1000
MOVE_SECONDS = 120.0
READ_SECONDS = 120.0
LOOK_SECONDS = 0.25
TRANSACTIONS_TOPIC = "__transaction_state"
LEVELS: tuple[Level, ...] = ("all", "committed")

TABLE_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "500",
    "delete.retention.ms": "86400000",
}
"""Of the compacted topic: it is cleaned often, and keeps tombstones for longer than a run."""

ConnectTo = Callable[[str, str], Connections]


class TxnWorkload:
    """All transactional clients of a run."""

    def __init__(
        self,
        prefix: str,
        partitions: int,
        connect: ConnectTo,
        recorder: Recorder,
        progress: Progress,
        *,
        writers: int,
        seed: int,
    ) -> None:
        self.source, self.target = f"{prefix}-txn", f"{prefix}-moved"
        self.table = f"{prefix}-table"
        self._group = f"{prefix}-movers"
        self._partitions = partitions
        self._connect = connect
        self._recorder = recorder
        self._progress = progress
        self._writers = writers
        self._random = random.Random(seed)
        self._cast = Cast(self._ready, recorder, progress)
        self._goals = {number: Goal() for number in range(partitions)}
        self._players: list[Player] = []
        self._writing, self._moving = asyncio.Event(), asyncio.Event()
        self._watching = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self._of_writers: list[asyncio.Task[None]] = []
        self._of_movers: list[asyncio.Task[None]] = []
        self._of_readers: list[asyncio.Task[None]] = []

    @property
    def topics(self) -> dict[str, Mapping[str, str]]:
        """Those to be created, with their settings."""
        return {self.source: {}, self.target: {}, self.table: TABLE_SETTINGS}

    # ------------------------------------------------------------------ during

    async def is_possible(self) -> bool:
        """Whether the cluster has a coordinator for transactions."""
        connections = await self._ready(self.source, "verify-probe")
        producer = TxnProducer(
            "txn-probe", f"{self.source}-probe", ONE, connections, self._recorder, self._progress
        )
        try:
            await producer.init()
        except Ended:
            return False
        finally:
            connections.close()
        return True

    async def start(self) -> None:
        """All clients begin."""
        for topic in (self.source, self.table):
            self._progress.expect(topic, self._partitions)
        dialects = (TWO, ONE) if await self._knows_version_two() else (ONE,)
        for number in range(self._writers):
            # Two of three speak version 2.
            dialect = dialects[-1] if number % 3 == 2 else dialects[0]
            role = Role(f"txn-writer-{number}", f"{self.source}-{number}", self.source, dialect)
            self._play(role, self._writer(), self._writing, self._of_writers)
        for number in (0, 1):
            name = f"table-writer-{number}"
            role = Role(
                name, f"{self.table}-{number}" if number == 0 else None, self.table, dialects[0],
                keyed=True, zombies=0.0,
            )  # fmt: skip
            act = self._writer(plainly=number == 1)
            self._play(role, act, self._writing, self._of_writers)
        for number, goal in self._goals.items():
            dialect = dialects[-1] if number % 3 == 2 else dialects[0]
            role = Role(f"mover-{number}", f"{self._group}-{number}", self.target, dialect)
            self._play(role, self._mover(number, goal), self._moving, self._of_movers)
        for topic in (self.source, self.target):
            for number in range(self._partitions):
                for level in LEVELS:
                    await self._start_reader(topic, number, level)
        self._start(self._look_around(await self._ready(self.source, "verify-txn-watcher")))

    def _play(
        self,
        role: Role,
        act: Callable[[], Instance],
        stopping: asyncio.Event,
        tasks: list[asyncio.Task[None]],
    ) -> None:
        player = Player(role, act, self._cast, seed=self._random.getrandbits(32))
        self._players.append(player)
        task = asyncio.ensure_future(player.run(stopping))
        tasks.append(task)
        self.tasks.append(task)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._of_readers.append(task)
        self.tasks.append(task)

    def _writer(self, *, plainly: bool = False) -> Callable[[], Instance]:
        def act() -> Instance:
            seed = self._random.getrandbits(32)
            writer = TxnWriter(next(self._cast.numbers), self._partitions, seed=seed)
            return writer.act_plainly if plainly else writer.act

        return act

    def _mover(self, number: int, goal: Goal) -> Callable[[], Instance]:
        def act() -> Instance:
            seed = self._random.getrandbits(32)
            return Mover(number, self.source, self._group, goal, self._cast, seed=seed).act

        return act

    async def _start_reader(self, topic: str, number: int, level: Level) -> None:
        name = f"reader-{topic}-{number}-{level}"
        connections = await self._ready(topic, name)
        reader = TxnReader(name, number, level, connections, self._recorder)
        self._start(reader.run(self._watching))

    async def _look_around(self, connections: Connections) -> None:
        """Ask how far everything is stable, and what the movers have committed."""
        name, chance = "txn-watcher", self._random
        target = await self._ready(self.target, "verify-txn-watcher-2")
        numbers = list(range(self._partitions))
        while not self._watching.is_set():
            for each in (connections, target):
                for number in numbers:
                    await ask_mark(name, number, "committed", each, self._recorder)
            await fetch_offsets(
                name, self._group, numbers, connections, self._recorder,
                stable=chance.random() < 0.5,
            )  # fmt: skip
            await asyncio.sleep(LOOK_SECONDS)

    async def _knows_version_two(self) -> bool:
        connections = await self._ready(self.source, "verify-versions")
        pause = Pause()
        while True:
            try:
                return await knows_version_two(connections)
            except NotSent:
                await pause.wait()

    # ------------------------------------------------------------------ after

    async def finish(self) -> None:
        """End the writing, let everything be moved, read it; then end everything."""
        for player in self._players:
            player.calm.set()
        self._writing.set()
        await asyncio.gather(*self._of_writers)
        ends = await self._wait_stable(self.source)
        await self._wait_moved(ends)
        self._moving.set()
        await asyncio.gather(*self._of_movers)
        await self._wait_stable(self.target)
        await self._wait_stable(self.table)
        for topic in (self.source, self.target, self.table):
            for number in range(self._partitions):
                for level in LEVELS:
                    await self._read_all(topic, number, level)
        self._watching.set()
        await asyncio.gather(*self._of_readers)

    async def _wait_stable(self, topic: str) -> dict[int, int]:
        """Wait until every transaction is decided; where the partitions end, as far as known."""
        ends: dict[int, int] = {}
        connections = await self._ready(topic, f"verify-stable-{topic}")
        patience = Patience(STABLE_SECONDS)
        for number in range(self._partitions):
            while True:
                stable = await ask_mark("final", number, "committed", connections, self._recorder)
                end = await ask_mark("final", number, "all", connections, self._recorder)
                if end is not None and stable == end:
                    ends[number] = end
                    break
                if patience.over():
                    text = (
                        f"{topic}-{number} is stable up to {stable} of {end}, {STABLE_SECONDS:g} s "
                        "after the last producer has ended"
                    )
                    self._recorder.record("final", "txn-stable", "fail", text=text)
                    break
                await asyncio.sleep(LOOK_SECONDS)
        return ends

    async def _wait_moved(self, ends: Mapping[int, int]) -> None:
        patience = Patience(MOVE_SECONDS)
        for number, end in ends.items():
            goal = self._goals[number]
            while goal.moved_to < end and not patience.over():
                await asyncio.sleep(LOOK_SECONDS)
            if goal.moved_to >= end:
                self._recorder.record(
                    "final", "txn-moved", "ok", p=number, source=self.source, target=self.target
                )
            else:
                text = (
                    f"partition {number} of {self.source} was moved up to {goal.moved_to} of {end} "
                    f"within {MOVE_SECONDS:g} s"
                )
                self._recorder.record("final", "txn-moved", "fail", text=text)

    async def _read_all(self, topic: str, number: int, level: Level) -> None:
        """Read a partition from its beginning, and say in the history where it ends."""
        record, keyed = self._recorder.record, topic == self.table
        connections = await self._ready(topic, f"verify-final-{topic}-{number}")
        reader = TxnReader("final", number, level, connections, self._recorder, keyed=keyed)
        try:
            async with asyncio.timeout(READ_SECONDS):
                while True:
                    end = await ask_mark("final", number, level, connections, self._recorder)
                    if end is not None:
                        break
                    await asyncio.sleep(LOOK_SECONDS)
            await reader.read_to(end, READ_SECONDS)
        except TimeoutError:
            reader.broken = True
        if reader.broken:
            text = f"{topic}-{number} could not be read beyond {reader.position}"
            record("final", "end", "fail", p=number, text=text)
        else:
            record(
                "final", "txn-final", "ok",
                topic=topic, p=number, level=level, end=reader.position, keyed=keyed,
            )  # fmt: skip
        connections.close()

    async def _ready(self, topic: str, client_id: str) -> Connections:
        """Connections that know a topic."""
        connections = self._connect(topic, client_id)
        pause = Pause()
        while not connections.partitions:
            with contextlib.suppress(NotSent):
                connections.metadata = None
                await connections.look()
            if not connections.partitions:
                await pause.wait()
        return connections
