"""A coordinator's log as it is loaded: with transactions that are open, and with others waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group import journal
from ottla.coordinator.group.commands import FetchOffsets
from ottla.coordinator.group.group import CommittedOffset, ShardState
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.loading import SLICE_SECONDS, replay_log
from ottla.coordinator.shard import Record
from ottla.errors import ErrorCode
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.runtime.clock import SystemClock
from ottla.runtime.workers import Workers
from ottla.storage.log import Log
from ottla.testing.clock import ManualClock
from ottla.testing.logs import LogBench
from ottla.testing.shards import ShardRunner

OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
"""The ids of a topic that was deleted, and of the one that got its name."""


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


def commit(offset: int, topic_id: TopicId = NEW) -> Record:
    return journal.offset("g", "t", 0, CommittedOffset(offset, topic_id=topic_id))


def put_pending(bench: LogBench, log: Log, record: Record) -> None:
    """An offset that is committed when the transaction of producer 7 is."""
    bench.put(log, record, producer_id=7, producer_epoch=0, sequence=0, transactional=True)


async def loaded(log: Log, workers: Workers) -> ShardRunner[GroupShard]:
    """A coordinator's shard from its log, after what it does first."""
    config, image = BrokerConfig(), ClusterImage(topic_names={NEW: "t"})
    runner = ShardRunner(lambda: GroupShard(ShardState(lambda: config, lambda: "id", image)))
    await replay_log(
        SimpleNamespace(log=log),
        runner.shard,
        slice_bytes=1 << 20,
        clock=SystemClock(),
        workers=workers,
    )
    for command in runner.shard.loaded(runner.now):
        runner.run(command)
    return runner


def fetched(runner: ShardRunner[GroupShard]) -> Any:
    [topic] = runner.run(FetchOffsets("g", None, require_stable=True))
    [partition] = topic.partitions
    return partition


async def test_an_offset_of_an_open_transaction_that_was_deleted_does_not_come_back(
    workers: Workers,
) -> None:
    bench = LogBench()
    log = bench.open()
    put_pending(bench, log, commit(1))
    bench.put(log, journal.offset_tombstone("g", "t", 0))
    bench.put(log, commit(2))
    found = fetched(await loaded(log, workers))
    assert (found.error, found.committed.offset) == (ErrorCode.NONE, 2)


async def test_nor_does_it_take_along_what_was_committed_in_a_new_topic_of_that_name(
    workers: Workers,
) -> None:
    bench = LogBench()
    log = bench.open()
    put_pending(bench, log, commit(1, OLD))
    bench.put(log, journal.offset_tombstone("g", "t", 0))  # the topic is deleted
    bench.put(log, commit(2))
    runner = await loaded(log, workers)
    assert runner.shard.offsets.committed("g", "t", 0) == 2


class SlowShard:
    """One that takes a millisecond for whatever it is given."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def replay(self, *record: Any, **about: Any) -> None:
        self._clock.advance(1)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self._clock.advance(1)


def put_one_large_batch(bench: LogBench, log: Log) -> None:
    bench.put(log, *((b"%d" % number, b"") for number in range(1_000)))


def put_many_markers(bench: LogBench, log: Log) -> None:
    for _ in range(1_000):
        bench.end_transaction(log, 7, commit=True)


@pytest.mark.parametrize("fill", [put_one_large_batch, put_many_markers])
async def test_others_have_their_turn_every_few_milliseconds(
    fill: Callable[[LogBench, Log], None], workers: Workers
) -> None:
    bench, clock = LogBench(), ManualClock()
    log = bench.open()
    fill(bench, log)
    shard: Any = SlowShard(clock)
    loading = asyncio.create_task(
        replay_log(
            SimpleNamespace(log=log), shard, slice_bytes=1 << 20, clock=clock, workers=workers
        )
    )
    longest, before = 0.0, clock.monotonic()
    while not loading.done():
        await asyncio.sleep(0)
        longest = max(longest, clock.monotonic() - before)
        before = clock.monotonic()
    await loading
    assert longest < 2 * SLICE_SECONDS


async def test_what_a_new_topic_has_stays_though_a_transaction_has_an_offset_of_the_old_one(
    workers: Workers,
) -> None:
    bench = LogBench()
    log = bench.open()
    put_pending(bench, log, commit(1, OLD))  # was under way when the topic was deleted
    bench.put(log, commit(2))
    runner = await loaded(log, workers)
    assert runner.shard.offsets.committed("g", "t", 0) == 2


async def test_what_only_a_transaction_has_of_a_deleted_topic_is_forgotten(
    workers: Workers,
) -> None:
    bench = LogBench()
    log = bench.open()
    put_pending(bench, log, commit(1, OLD))
    runner = await loaded(log, workers)
    runner.shard.end_transaction(7, committed=True)
    assert runner.shard.offsets.committed("g", "t", 0) is None
