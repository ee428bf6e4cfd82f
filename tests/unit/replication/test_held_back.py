"""Who is held back by a throttle: those that catch up, and nobody whom producers wait for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.model.broker import Broker
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication.isr import Rules
from ottla.replication.partition import Partition
from ottla.replication.service import Replication
from ottla.replication.throttle import ALL
from ottla.runtime.tasks import Tasks
from ottla.testing.clock import ManualClock
from ottla.testing.logs import LogBench

MOVED = PartitionState(1, 5, 0, replicas=(1, 2, 3), isr=(1, 2), adding=(3,))
NAMED = TopicConfig(
    leader_replication_throttled_replicas=ALL, follower_replication_throttled_replicas=ALL
)
LIMIT = 1_000
BATCH = build_batch([(0, None, b"a", ())])


def replica_on(node_id: int) -> tuple[Replication, Partition]:
    """A broker that has copied far more than it may, and its replica."""
    brokers = {each: Broker(each, epoch=each, endpoints={}) for each in (1, 2, 3)}
    image = SimpleNamespace(brokers=brokers, broker_states={})
    registry = SimpleNamespace(image=image, subscribe=lambda listener: lambda: None)
    config = BrokerConfig(
        leader_replication_throttled_rate=LIMIT, follower_replication_throttled_rate=LIMIT
    )
    replication = Replication(
        node_id,
        cast("Any", registry),
        clock=ManualClock(),
        config=lambda: config,
        tasks=Tasks(),
        peers=cast("Any", None),
        truncate=cast("Any", None),
    )
    log = LogBench(NAMED).open()
    tp, topic_id = TopicPartition("t", 0), TopicId(bytes(16))
    return replication, Partition(tp, topic_id, log, MOVED, cast("Any", None), replication)


async def test_a_leader_sends_to_who_has_caught_up_though_it_is_not_in_sync_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader, partition = replica_on(1)
    monkeypatch.setattr(leader.isr_updates, "propose", lambda *_: None)  # the store is away
    leader.sending.record(100 * LIMIT)
    partition.lead(MOVED, Rules(1))
    partition.append(memoryview(bytearray(BATCH)), 0)
    partition.fetched_by(2, 2, 1, 0)
    partition.fetched_by(3, 3, 0, 0)
    assert [leader.holds_back(partition, each) for each in (2, 3)] == [False, True]
    partition.fetched_by(3, 3, 1, 0)
    partition.append(memoryview(bytearray(BATCH)), 0)
    partition.fetched_by(2, 2, 2, 0)
    assert partition.high_watermark == 1, "it waits for 3"
    assert not leader.holds_back(partition, 3)


async def test_a_follower_at_its_leaders_mark_asks_for_more_though_it_is_not_in_sync_yet() -> None:
    follower, partition = replica_on(3)
    follower._holds_back(partition, 100 * LIMIT)
    partition.follow(MOVED)
    partition.append_replicated(memoryview(BATCH), 2, 0)
    assert follower._holds_back(partition, 0)
    more = build_batch([(0, None, b"b", ())], base_offset=1)
    partition.append_replicated(memoryview(more), 2, 0)
    assert not follower._holds_back(partition, 0), "the leader's mark waits for it"
    partition.follow(replace(MOVED, partition_epoch=1))
    assert not follower._holds_back(partition, 0)
    partition.follow(replace(MOVED, leader=2, leader_epoch=6, partition_epoch=2))
    assert follower._holds_back(partition, 0), "the new leader may be far ahead"
