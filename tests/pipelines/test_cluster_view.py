"""The cluster as a query sees it, on a real broker and without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.descriptions import NewTopic
from ottla.client.direct import DirectAdmin
from ottla.client.groups import CommittedOffset, Groups
from ottla.client.producer import Producer
from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Unreachable, partitions_of
from ottla.pipelines.source.loss import Cause, judge
from ottla.pipelines.source.ranges import Range
from ottla.testing.process import BrokerProcess


@pytest.fixture
def filled(bootstrap: str, unique: Callable[..., str]) -> str:
    """A topic whose first partition has twenty records in one batch."""
    topic = unique()
    with DirectAdmin(bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 2, 1, {"retention.ms": "3600000"}))
    # Only the end of the block sends them, however long each of them takes.
    with Producer(bootstrap, config={"linger.ms": 60_000}) as producer:
        for number in range(20):
            producer.post(topic, str(number).encode(), partition=0)
    return topic


def test_what_is_not_there_is_left_out(bootstrap: str, filled: str) -> None:
    with Cluster(bootstrap) as cluster:
        found = cluster.topics([filled, "no-such-topic"])
        assert list(found) == [filled]
        assert list(cluster.matching(f"{filled}|__.*")) == [filled]
        assert cluster.matching(filled[:-1]) == {}
        first, second = partitions_of(found.values())
        strangers = [TopicPartition(filled, 9), TopicPartition("no-such-topic", 0)]
        ends = cluster.ends([first, second, *strangers])
        assert {tp: info.offset for tp, info in ends.items()} == {first: 20, second: 0}
        assert cluster.newest([first, second]).keys() == {first}


def test_deleting_inside_a_batch_leaves_its_mark(bootstrap: str, filled: str) -> None:
    tp = TopicPartition(filled, 0)
    with DirectAdmin(bootstrap) as admin:
        admin.delete_records({tp: 7})
    with Cluster(bootstrap) as cluster:
        topic_id = cluster.topics([filled])[filled].id
        seen = cluster.observe(Range(filled, topic_id, 0, 3, 20, 0))
        assert (seen.log_start, seen.log_end, seen.first_batch) == (7, 20, 0)
        assert (seen.retention_ms, seen.cleanup_policy) == (3_600_000, "delete")
        loss = judge(seen)
        assert loss is not None
        assert (loss.cause, loss.first, loss.end) == (Cause.DELETED, 3, 7)
        whole = cluster.observe(Range(filled, topic_id, 0, 7, 20, 0))
        assert whole.epoch_end == 20
        assert judge(whole) is None


def test_a_log_emptied_while_it_was_young_was_emptied_by_hand(bootstrap: str, filled: str) -> None:
    tp = TopicPartition(filled, 0)
    with Cluster(bootstrap) as cluster:
        topic_id = cluster.topics([filled])[filled].id
        newest = cluster.newest([tp])[tp]
        with DirectAdmin(bootstrap) as admin:
            admin.delete_records({tp: -1})
        part = Range(filled, topic_id, 0, 3, 20, 0)
        causes = [judge(cluster.observe(part, newest=known)) for known in (newest, None)]
        assert [loss and loss.cause for loss in causes] == [Cause.DELETED, Cause.AGED_OUT]


def test_a_topic_that_is_gone_is_seen_as_gone(bootstrap: str) -> None:
    with Cluster(bootstrap) as cluster:
        seen = cluster.observe(Range("no-such-topic", bytes([1] * 16), 0, 3, 20, 0))
        assert seen.found_topic_id is None


def test_a_broken_connection_is_made_anew_and_a_broker_that_is_down_is_unreachable(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    with DirectAdmin(broker.bootstrap) as admin:
        admin.create_topic(NewTopic("orders", 1, 1))
    orders = TopicPartition("orders", 0)
    with Cluster(broker.bootstrap) as cluster:
        cluster.ends([orders])
        broker.kill()
        broker.start()
        assert cluster.ends([orders])[orders].offset == 0
        broker.kill()
        with pytest.raises(Unreachable, match="refused"):
            cluster.ends([orders])
        with pytest.raises(Unreachable, match="refused"):
            cluster.commit("g", {orders: CommittedOffset(0)})


def test_a_commit_is_seen_with_its_epoch(bootstrap: str, filled: str, unique: Any) -> None:
    group, tp = unique("group"), TopicPartition(filled, 0)
    with Cluster(bootstrap) as cluster:
        cluster.commit(group, {tp: CommittedOffset(12, 0)})
    with Groups(bootstrap) as groups:
        [row] = groups.lag(group)
        assert (row.committed, row.lag, row.leader_epoch) == (12, 8, 0)
