"""An idempotent producer whose batch meets a moment in which it cannot be taken.

The client has sent the next ones before it can hear of that. None of them may be stored before it,
or be called out of order: librdkafka takes a new epoch for that, and sends again under it what may
be stored already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.testing import Cluster, NewTopic

TOPIC = "t"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        cluster.create(NewTopic(TOPIC))
        yield cluster


class Producer:
    """Sends numbered batches over one connection, and does not wait for answers."""

    def __init__(self, cluster: Cluster, wire: Any, batch: Any) -> None:
        self.leader = cluster.leader(TOPIC, 0)
        self.connection = wire(self.leader.bootstrap)
        self._batch = batch

    def send(self, *sequences: int, timeout_ms: int = 60_000) -> None:
        for sequence in sequences:
            records = self._batch(
                [b"%d" % sequence], producer_id=7, producer_epoch=0, base_sequence=sequence
            )
            data = [{"index": 0, "records": records}]
            topics = [{"name": TOPIC, "partition_data": data}]
            self.connection.send("produce", 9, acks=-1, timeout=timeout_ms, topic_data=topics)

    def answers(self, count: int) -> list[tuple[ErrorCode, int]]:
        found = []
        for _ in range(count):
            [topic] = self.connection.receive().responses
            [answer] = topic.partition_responses
            found.append((ErrorCode.of(answer.error_code), answer.base_offset))
        return found


@pytest.fixture
def producer(cluster: Cluster, wire: Any, batch: Any) -> Producer:
    return Producer(cluster, wire, batch)


def the_follower(cluster: Cluster) -> int:
    state = cluster.state(TOPIC, 0)
    [follower] = set(state.replicas) - {state.leader}
    return follower


def wait_until_alone(cluster: Cluster, producer: Producer) -> None:
    """Until too few replicas are in sync, as the leader knows."""
    cluster.wait_until(lambda: len(held(producer).state.isr) == 1)


def held(producer: Producer) -> Any:
    return producer.leader._services().replicas.held(TOPIC, 0)


@pytest.mark.parametrize("first", [0, 40], ids=["new", "unknown"])
def test_what_waits_in_line_behind_a_commit_is_judged_in_its_turn(
    cluster: Cluster, producer: Producer, first: int
) -> None:
    """One batch waits to be committed. The next finds too few replicas in sync: were that told when
    the wait is over, it would be outdated, and the third one out of order."""
    with cluster.paused(the_follower(cluster)):
        producer.send(first)
        cluster.wait_until(lambda: held(producer).log.log_end_offset == 1)
        wait_until_alone(cluster, producer)
        producer.send(first + 1, first + 2, first + 3)
        connections = producer.leader._running_app().connections
        cluster.wait_until(lambda: any(each.held for each in [*connections]))
    assert producer.answers(4) == [(ErrorCode.NONE, offset) for offset in range(4)]


def test_a_refusal_that_holds_takes_those_behind_it_along(
    cluster: Cluster, producer: Producer
) -> None:
    with cluster.paused(the_follower(cluster)):
        producer.send(0, timeout_ms=10_000)
        cluster.wait_until(lambda: held(producer).log.log_end_offset == 1)
        wait_until_alone(cluster, producer)
        producer.send(1, 2)
        timed_out, *refused = producer.answers(3)
    assert timed_out[0] is ErrorCode.REQUEST_TIMED_OUT
    assert [code for code, _ in refused] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    cluster.wait_in_sync(TOPIC)
    producer.send(0, 1, 2)
    assert producer.answers(3) == [(ErrorCode.NONE, offset) for offset in range(3)]
