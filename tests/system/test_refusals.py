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
from ottla.testing import Broker, Cluster, NewTopic

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


@pytest.fixture
def small_broker() -> Iterator[Broker]:
    """One with little memory for requests."""
    limits = {"queued.max.request.bytes": 2 << 20, "socket.request.max.bytes": 2 << 20}
    with Broker(limits, topics=[TOPIC]) as broker:
        yield broker


def wait_in_line(connection: Any, batch: Any, size: int, *, partitions: int = 1) -> None:
    """Send a fetch that waits, and behind it batches that are refused for now."""
    wanted = {"partition": 0, "fetch_offset": 0, "current_leader_epoch": -1}
    topics = [{"topic": TOPIC, "partitions": [{**wanted, "partition_max_bytes": 1}]}]
    session = {"session_id": 0, "session_epoch": -1}
    connection.send(
        "fetch", 12, max_wait=100_000, min_bytes=1, max_bytes=1, topics=topics, **session
    )
    records = batch([bytes(size)], producer_id=7, producer_epoch=0, base_sequence=0)
    data = [{"index": index, "records": records} for index in range(partitions)]
    topics = [{"name": "nowhere", "partition_data": data}]
    connection.send("produce", 9, acks=-1, timeout=1000, topic_data=topics)


def test_what_waits_in_line_takes_of_the_memory_for_requests(
    small_broker: Broker, wire: Any, batch: Any, raw: Any, eventually: Any
) -> None:
    """A client may let it wait as long as it likes. Who needs the memory gets it."""
    memory, waiting = "ottla_receive_memory_bytes", wire(small_broker.bootstrap)
    wait_in_line(waiting, batch, 1_700_000)
    eventually(lambda: small_broker.metrics()[memory] >= 1_700_000)
    records = batch([bytes(900_000)])
    written = raw.produce(wire(small_broker.bootstrap), TOPIC, records, acks=-1)
    assert written.error_code == 0
    assert waiting.socket.recv(1) == b"", "not hung up on"
    eventually(lambda: small_broker.metrics()[memory] == 0)


def test_wide_requests_that_wait_in_line_keep_nobody_elses_waiting(
    small_broker: Broker, wire: Any, batch: Any, raw: Any
) -> None:
    """Few requests of so many entries are worked on at once, and these wait for their clients."""
    for _ in range(8):
        wait_in_line(wire(small_broker.bootstrap), batch, 1, partitions=1100)
    other = wire(small_broker.bootstrap)
    for _ in range(100):  # so many turns of the loop: all of them have been begun by now
        other.ask("api_versions", 3)
    names = [{"name": f"missing-{number}"} for number in range(4000)]
    assert len(
        other.ask("metadata", 8, topics=names, allow_auto_topic_creation=False).topics
    ) == len(names)


@pytest.mark.parametrize("partitions", [1, 1100])
def test_what_waits_in_line_is_answered_in_its_turn(
    small_broker: Broker, wire: Any, batch: Any, eventually: Any, partitions: int
) -> None:
    memory, waiting = "ottla_receive_memory_bytes", wire(small_broker.bootstrap)
    wait_in_line(waiting, batch, 1, partitions=partitions)
    eventually(lambda: small_broker.metrics()[memory] > 0)
    small_broker.produce(TOPIC, "a")
    assert waiting.receive().responses[0].topic == TOPIC
    [topic] = waiting.receive().responses
    assert [answer.index for answer in topic.partition_responses] == list(range(partitions))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {answer.error_code for answer in topic.partition_responses} == {unknown}
    eventually(lambda: small_broker.metrics()[memory] == 0)


def test_wide_requests_that_wait_for_replicas_keep_no_readers_waiting(
    cluster: Cluster, producer: Producer, wire: Any, batch: Any
) -> None:
    """The replica may be one of those readers: what they wait for would wait for them."""
    address = producer.leader.bootstrap
    data = [{"index": 0, "records": batch([b"a"])}] * 1100
    topics = [{"name": TOPIC, "partition_data": data}]
    with cluster.paused(the_follower(cluster)):
        for _ in range(8):
            wire(address).send("produce", 9, acks=-1, timeout=60_000, topic_data=topics)
        cluster.wait_until(lambda: held(producer).log.log_end_offset > 8 * 100)
        names = [{"name": f"missing-{number}"} for number in range(4000)]
        answer = wire(address, timeout=40).ask(
            "metadata", 8, topics=names, allow_auto_topic_creation=False
        )
    assert len(answer.topics) == len(names)


def test_wide_requests_that_wait_for_replicas_keep_no_other_writers_waiting(
    cluster: Cluster, producer: Producer, wire: Any, batch: Any
) -> None:
    address, leader = producer.leader.bootstrap, cluster.state(TOPIC, 0).leader
    cluster.create(NewTopic("alone", assignment=[[leader]]))
    data = [{"index": 0, "records": batch([b"a"])}] * 1100
    topics = [{"name": TOPIC, "partition_data": data}]
    with cluster.paused(the_follower(cluster)):
        for _ in range(10):
            wire(address).send("produce", 9, acks=-1, timeout=600_000, topic_data=topics)
        cluster.wait_until(lambda: held(producer).log.log_end_offset == 10 * 1100)
        topics = [{"name": "alone", "partition_data": data}]
        other = wire(address, timeout=40)
        other.send("produce", 9, acks=-1, timeout=1000, topic_data=topics)
        [topic] = other.receive().responses
    assert {answer.error_code for answer in topic.partition_responses} == {0}


@pytest.mark.parametrize("large", [False, True])
def test_the_pieces_of_a_wide_request_wait_for_replicas_at_once(
    wire: Any, batch: Any, large: bool
) -> None:
    """All of it is appended before anything is waited for: also where each piece has a batch that
    takes long to look at. Else the time of its client would count for each of them."""
    data = [{"index": 0, "records": batch([b"a"])}] * 1100
    with Cluster(brokers=2, topics=[TOPIC], session_seconds=60.0) as cluster:
        producer = Producer(cluster, wire, batch)
        if large:
            slow = {"index": 0, "records": batch([bytes(4 << 20)], codec="gzip")}
            data[::100] = [slow] * len(data[::100])
            controller = cluster.controller
            assert controller is not None
            controller.configure({"compression.type": "zstd"}, topic=TOPIC)
            cluster.wait_until(lambda: held(producer).log.config.compression_type == "zstd")
        topics = [{"name": TOPIC, "partition_data": data}]
        with cluster.paused(the_follower(cluster)):
            producer.connection.send("produce", 9, acks=-1, timeout=600_000, topic_data=topics)
            cluster.wait_until(lambda: held(producer).log.log_end_offset == 1100)
        [topic] = producer.connection.receive().responses
    codes = [ErrorCode.of(answer.error_code) for answer in topic.partition_responses]
    assert codes == [ErrorCode.NONE] * 1100
