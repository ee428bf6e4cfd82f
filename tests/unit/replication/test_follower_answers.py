"""Fetcher: what a follower asks of its leader, and what it does with the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from ottla.config.broker import BrokerConfig
from ottla.errors import ErrorCode
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication.follower import Fetched, Fetcher, Wanted
from ottla.replication.partition import Partition
from ottla.runtime.tasks import Tasks
from ottla.storage.log import Log
from ottla.storage.truncation import Cut
from ottla.testing.logs import LogBench

NOW = 1_700_000_000_000
NOTHING = memoryview(b"")


class Disk:
    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        raise AssertionError("nobody asks for fsync")


class View:
    """A cluster in which this broker is number 1."""

    node_id = 1
    max_lag_ms = 1000.0

    def now_ms(self) -> float:
        return 0.0

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return True

    def propose_isr(self, partition: Partition, isr: tuple[int, ...], lost: object = ()) -> None:
        raise AssertionError("only leaders do that")


class Leader:
    """A leader that answers when the test says so."""

    remembers = True

    def __init__(self) -> None:
        self.asked: asyncio.Queue[list[Wanted]] = asyncio.Queue()
        self._answers: asyncio.Queue[list[Fetched]] = asyncio.Queue()

    async def fetch(
        self, wanted: Collection[Wanted], forgotten: Collection[Partition]
    ) -> list[Fetched]:
        self.asked.put_nowait(list(wanted))
        return await self._answers.get()

    def answer(self, *answers: Fetched) -> None:
        self._answers.put_nowait(list(answers))

    async def offset(self, partition: Partition, which: int) -> int:
        raise AssertionError("nobody is out of range")

    def reset(self) -> None: ...

    def close(self) -> None: ...


def batch(offset: int, epoch: int) -> memoryview:
    made = build_batch([(NOW, None, b"x", ())], base_offset=offset, leader_epoch=epoch)
    return memoryview(bytearray(made))


def state(leader: int, epoch: int) -> PartitionState:
    return PartitionState(leader, epoch, epoch, (1, 2, 3), (1, 2, 3))


def follower(records: int) -> Partition:
    """Follows broker 2 in epoch 1; its records are of epoch 0."""
    log = LogBench().open()
    for offset in range(records):
        log.append_replicated(batch(offset, 0), leader_epoch=0)
    made = Partition(TopicPartition("t", 0), TopicId(bytes(16)), log, state(2, 1), Disk(), View())
    made.follow(state(2, 1))
    return made


def fetcher(leader: Leader, truncate: Callable[[Sequence[Cut]], Awaitable[None]]) -> Fetcher:
    return Fetcher(2, leader, BrokerConfig, truncate)


async def test_another_leader_is_asked_when_the_truncation_for_the_one_before_is_over() -> None:
    mine = follower(records=3)
    go_on = asyncio.Event()
    cutting = asyncio.Event()

    async def truncate(cuts: Sequence[Cut]) -> None:
        cutting.set()
        await go_on.wait()
        for cut in cuts:
            mine.log.truncate_to(cut.offset)

    tasks = Tasks()
    first, second = Leader(), Leader()
    of_first, of_second = fetcher(first, truncate), fetcher(second, truncate)
    of_first.start(tasks)
    of_second.start(tasks)
    try:
        of_first.add(mine)
        await first.asked.get()
        diverging = Fetched(mine, ErrorCode.NONE, NOTHING, 1, 0, 0, 1)
        first.answer(diverging)
        await cutting.wait()
        # The next leader has what the one before lacked. It must not be told of records that are
        # about to go, nor give any to be appended behind them.
        of_first.remove(mine)
        mine.follow(state(3, 2))
        of_second.add(mine)
        for _ in range(5):
            await asyncio.sleep(0)
        assert second.asked.empty()
        go_on.set()
        [wanted] = await asyncio.wait_for(second.asked.get(), 60)
        assert (wanted.offset, wanted.leader_epoch) == (1, 2)
        second.answer(Fetched(mine, ErrorCode.NONE, batch(1, 0), 2, 0))
        [wanted] = await asyncio.wait_for(second.asked.get(), 60)
        assert wanted.offset == 2
    finally:
        of_first.stop()
        of_second.stop()
        await asyncio.gather(of_first.stopped(), of_second.stopped())
