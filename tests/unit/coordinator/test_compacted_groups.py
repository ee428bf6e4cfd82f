"""The groups' log after the log cleaner: a coordinator loads from it what it loaded before."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.coordinator.group import journal
from ottla.coordinator.group.commands import FetchOffsets
from ottla.coordinator.group.group import CommittedOffset, ShardState
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.loading import replay_log
from ottla.coordinator.shard import Now
from ottla.runtime.clock import SystemClock
from ottla.runtime.workers import Workers
from ottla.storage.log import Log
from ottla.testing.logs import LogBench

NOW = Now(1_700_000_000_000, 0)


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


def commits(bench: LogBench, log: Log, groups: int, times: int) -> None:
    """Each group commits two partitions that often; every tenth is deleted at the end."""
    for number in range(times):
        for group in range(groups):
            bench.put(
                log,
                *(
                    journal.offset(f"group-{group}", "t", p, CommittedOffset(number * 10 + p))
                    for p in range(2)
                ),
            )
    for group in range(0, groups, 10):
        bench.put(log, *(journal.offset_tombstone(f"group-{group}", "t", p) for p in range(2)))
    log.roll()


async def load(log: Log, workers: Workers) -> tuple[int, GroupShard]:
    """A coordinator's shard from its log, and how many records it took."""
    numbers, config = itertools.count(), BrokerConfig()
    shard = GroupShard(ShardState(config=lambda: config, new_id=lambda: str(next(numbers))))
    clock = SystemClock()
    count = await replay_log(
        SimpleNamespace(log=log), shard, slice_bytes=1 << 20, clock=clock, workers=workers
    )
    shard.loaded(NOW)
    return count, shard


def offsets(shard: GroupShard, groups: int) -> list[Any]:
    return [
        shard.handle(FetchOffsets(f"group-{group}", None), NOW).reply for group in range(groups)
    ]


async def test_what_groups_committed_survives_compaction(workers: Workers) -> None:
    config = TopicConfig(
        cleanup_policy=frozenset({"compact"}), internal_segment_bytes=50_000, delete_retention_ms=0
    )
    bench = LogBench(config)
    log = bench.open()
    commits(bench, log, groups=50, times=20)
    before, shard = await load(log, workers)
    expected = offsets(shard, 50)
    bench.clean(log)
    bench.put(log, journal.offset("late", "t", 0, CommittedOffset(1)))
    log.roll()
    bench.clean(log)  # the tombstones' time is over
    bench = bench.killed()
    after, shard = await load(bench.open(), workers)
    assert offsets(shard, 50) == expected
    assert (before, after) == (50 * 20 * 2 + 5 * 2, 45 * 2 + 1)
