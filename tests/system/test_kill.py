"""kill -9 in the middle of everything: nothing acknowledged is lost, nothing comes twice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from ottla.testing.process import BrokerProcess

TOPIC, PARTITIONS = "load", 3


class Load:
    """A librdkafka producer in a thread that numbers its records and notes what was acknowledged.

    Record n goes to partition n % 3. The producer never gives up, so when it has been flushed
    every number up to `sent` was acknowledged, however often the broker died under it.
    """

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failures: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 1,
                "batch.num.messages": 100,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 5,
                "retry.backoff.max.ms": 50,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
                **settings,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged.append(int(message.value()))
            else:
                self.failures.append(error)

        while not self._stop.is_set():
            # few enough in flight that most of what is sent is cut off by the next kill
            if self.sent - len(self.acknowledged) < 3_000:
                for _ in range(50):
                    self._producer.produce(
                        TOPIC,
                        str(self.sent).encode(),
                        partition=self.sent % PARTITIONS,
                        on_delivery=report,
                    )
                    self.sent += 1
            self._producer.poll(0.001)
        assert self._producer.flush(120) == 0

    def wait_acknowledged(self, more: int, timeout: float = 120.0) -> None:
        goal, deadline = len(self.acknowledged) + more, time.monotonic() + timeout
        while len(self.acknowledged) < goal:
            assert not self.failures, self.failures[0]
            assert time.monotonic() < deadline, "no record is acknowledged any more"
            time.sleep(0.002)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(150)
        assert not self._thread.is_alive()
        assert not self.failures, self.failures[0]


@pytest.fixture
def load() -> Iterator[Callable[..., Load]]:
    started: list[Load] = []

    def start(bootstrap: str, **settings: object) -> Load:
        started.append(Load(bootstrap, **settings))
        return started[-1]

    yield start
    for one in started:
        one._stop.set()


def stored(bootstrap: str) -> list[list[int]]:
    """Every record in the topic's partitions, in the order of the log."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused-by-assign",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    numbers: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    deadline = time.monotonic() + 120
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "the topic cannot be read to its end"
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                numbers[message.partition()].append(int(message.value()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    consumer.close()
    return numbers


def kill_and_restart(broker: BrokerProcess, load: Load, times: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(times):
        load.wait_acknowledged(200)
        time.sleep(rng.uniform(0, 0.1))
        broker.kill()
        broker.start()


@pytest.mark.timeout(1200)  # fifty starts, each with a deadline of its own
def test_every_acknowledged_record_is_there_in_order_and_once(start_broker, load, wire, raw):
    broker = start_broker()
    raw.create_topic(wire(broker.bootstrap), TOPIC, PARTITIONS)
    writing = load(broker.bootstrap, **{"enable.idempotence": True})
    kill_and_restart(broker, writing, times=50, seed=1)
    writing.finish()
    assert len(writing.acknowledged) == writing.sent
    for partition, numbers in enumerate(stored(broker.bootstrap)):
        assert numbers == list(range(partition, writing.sent, PARTITIONS))
    assert "Traceback" not in broker.log()


@pytest.mark.parametrize("acks", [1, -1])
def test_without_idempotence_nothing_acknowledged_is_lost(acks, start_broker, load, wire, raw):
    broker = start_broker(settings={"log.segment.bytes": 1_048_576})
    raw.create_topic(wire(broker.bootstrap), TOPIC, PARTITIONS)
    writing = load(broker.bootstrap, acks=acks, **{"max.in.flight": 1, "enable.idempotence": False})
    kill_and_restart(broker, writing, times=10, seed=2)
    # before the producer gets to send the rest again: what was acknowledged must be there already
    broker.kill()
    acknowledged = set(writing.acknowledged)
    broker.start()
    found = stored(broker.bootstrap)
    assert acknowledged <= {number for numbers in found for number in numbers}
    for numbers in found:
        first_seen = list(dict.fromkeys(numbers))
        assert first_seen == sorted(first_seen)
    writing.finish()


@pytest.mark.timeout(1200)
def test_no_producer_id_is_ever_given_twice(start_broker, wire):
    broker, given = start_broker(), []
    for _ in range(50):
        connection = wire(broker.bootstrap)
        for _ in range(3):
            answer = connection.ask("init_producer_id", 4, transaction_timeout=60_000)
            assert answer.error_code == 0
            given.append(answer.producer_id)
        broker.kill()
        broker.start()
    assert len(set(given)) == 150


def test_what_was_told_about_topics_is_remembered(start_broker, wire, raw, batch):
    broker = start_broker()
    for round_ in range(5):
        connection = wire(broker.bootstrap)
        name = f"kept-{round_}"
        raw.create_topic(connection, name, 2, retention_ms="123456")
        raw.create_topic(connection, f"gone-{round_}")
        assert raw.produce(connection, name, batch([b"x"]), partition=1).error_code == 0
        (grown,) = connection.ask(
            "create_partitions", 3, topics=[{"name": name, "count": 3}], timeout=10_000
        ).results
        (deleted,) = connection.ask(
            "delete_topics", 5, topic_names=[f"gone-{round_}"], timeout=10_000
        ).responses
        assert (grown.error_code, deleted.error_code) == (0, 0)
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        before = connection.ask("metadata", 12, **asked).topics[0]
        broker.kill()
        broker.start()
        connection = wire(broker.bootstrap)
        after = connection.ask("metadata", 12, **asked).topics[0]
        assert (after.error_code, after.topic_id) == (0, before.topic_id)
        assert len(after.partitions) == 3
        names = [t.name for t in connection.ask("metadata", 12, topics=None).topics]
        assert f"gone-{round_}" not in names
        (described,) = connection.ask(
            "describe_configs",
            4,
            resources=[
                {"resource_type": 2, "resource_name": name, "configuration_keys": ["retention.ms"]}
            ],
        ).results
        assert described.configs[0].value == "123456"
        assert raw.fetch(connection, name, partition=1).high_watermark == 1
    assert "Traceback" not in broker.log()


def test_deleted_records_and_sequences_survive_too(start_broker, wire, raw, batch):
    broker = start_broker()
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "t")
    producer = connection.ask("init_producer_id", 4, transaction_timeout=60_000).producer_id

    def write(sequence):
        records = batch([b"x"], producer_id=producer, producer_epoch=0, base_sequence=sequence)
        written = raw.produce(connection, "t", records, acks=-1)
        return written.error_code, written.base_offset

    assert [write(i) for i in range(7)] == [(0, i) for i in range(7)]
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    connection.ask("delete_records", 2, topics=asked, timeout=10_000)
    broker.kill()
    broker.start()
    connection = wire(broker.bootstrap)
    assert write(6) == (0, 6)  # a duplicate, known as one
    assert write(9)[0] == 45  # out of order
    assert write(7) == (0, 7)
    at_start = raw.fetch(connection, "t", offset=3)
    assert at_start.error_code == 0
    # Kafka writes the new start down once a minute; after a crash an older one may come back,
    # so records may reappear, but none may be missing
    assert at_start.log_start_offset <= 3
    assert at_start.high_watermark == 8


def test_a_large_log_is_served_again_after_a_kill(start_broker, wire, raw, batch):
    broker = start_broker()
    connection = wire(broker.bootstrap)
    raw.create_topic(connection, "large", 4)
    records = batch([bytes(10_000)] * 50)
    for i in range(400):
        data = [{"index": i % 4, "records": records}]
        connection.send(
            "produce",
            9,
            acks=1,
            timeout=30_000,
            topic_data=[{"name": "large", "partition_data": data}],
        )
    for _ in range(400):
        assert connection.receive().responses[0].partition_responses[0].error_code == 0
    broker.kill()
    broker.start()  # 200 MB to check, which takes a second
    answer = raw.fetch(wire(broker.bootstrap), "large", partition=3)
    assert answer.high_watermark == 5_000
