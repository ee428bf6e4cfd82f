"""What is counted for the metrics, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.coordinator.group.commands import CommitOffsets, DeleteOffsets, PartitionCommit
from ottla.coordinator.group.group import Counts
from ottla.coordinator.group.shard import GroupShard
from ottla.testing.groups import GroupWorld
from ottla.testing.shards import ShardRunner

DAY_MS = 24 * 3600 * 1000


def counts(runner: ShardRunner[GroupShard]) -> Counts:
    return runner.shard.state.counts


def test_a_classic_rebalance_counts_when_the_assignment_is_there(
    runner: ShardRunner[GroupShard], stable: Callable[..., Any], client: Callable[..., Any]
) -> None:
    stable(2)
    assert counts(runner) == Counts(classic_rebalances=1)
    assert client("c9").join() is None
    assert counts(runner) == Counts(classic_rebalances=1)


def test_a_consumer_rebalance_counts_with_the_groups_epoch() -> None:
    world = GroupWorld()
    world.topics(t=4)
    one, two = world.consumer("one", "t"), world.consumer("two", "t")
    one.join()
    world.settle(one)
    assert counts(world.runner) == Counts(consumer_rebalances=1)
    two.join()
    world.settle(one, two)
    assert counts(world.runner) == Counts(consumer_rebalances=2)
    one.beat()
    assert counts(world.runner) == Counts(consumer_rebalances=2)
    assert world.group.epoch == 2


def test_offsets_count_one_by_one(runner: ShardRunner[GroupShard]) -> None:
    commit = CommitOffsets("g", (PartitionCommit("t", 0, 5), PartitionCommit("t", 1, 6)))
    runner.run(commit)
    runner.run(commit)
    assert counts(runner) == Counts(offsets_committed=4)
    runner.run(DeleteOffsets("g", (("t", 0), ("never", 0))))
    assert counts(runner) == Counts(offsets_committed=4, offsets_deleted=1)
    runner.advance(8 * DAY_MS)
    assert counts(runner) == Counts(offsets_committed=4, offsets_deleted=1, offsets_expired=1)
