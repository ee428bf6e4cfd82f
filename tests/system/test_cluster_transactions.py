"""Transactions in a cluster: decided ones are ended whoever dies, open ones are never visible."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.cli.kafka_compat import run as run_tool
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition as Place
from ottla.replication.marker import Marker
from ottla.runtime.waiters import Deferred
from ottla.testing import Broker, Cluster, NewTopic

TRANSACTIONS = "__transaction_state"
OFFSETS = "__consumer_offsets"
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
TOPICS = [NewTopic("in", 1, 3), NewTopic("out", 3, 3)]
ID = "mover"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=SETTINGS, topics=TOPICS) as made:
        yield made


def make_producer(cluster: Cluster, name: str = ID, **settings: Any) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "linger.ms": 0,
            "log_level": 0,
            **settings,
        }
    )
    patiently(producer.init_transactions, producer)
    return producer


def patiently(call: Callable[..., None], producer: Producer | None = None) -> None:
    """Call what librdkafka says may be called again."""
    deadline = time.monotonic() + 120
    while True:
        try:
            call(30.0)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def committed(cluster: Cluster, topic: str = "out") -> list[bytes]:
    """All values that a reader of committed records gets, up to the end of every partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader-of-all",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    count = len(consumer.list_topics(topic, 120).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(count)])
    values: list[bytes] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 120
    while len(ended) < count:
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            value = message.value()
            assert value is not None
            values.append(value)
        elif message.error().name() == "_PARTITION_EOF":
            partition = message.partition()
            assert partition is not None
            ended.add(partition)
    consumer.close()
    return values


def stable(cluster: Cluster) -> bool:
    """Whether no transaction is open any more in the leaders of the topic."""
    for index in range(3):
        try:
            partition = cluster.leader("out", index)._services().replicas.by_name("out", index)
        except KafkaError:
            return False  # it does not know of its election yet
        if partition.last_stable_offset() != partition.log.log_end_offset:
            return False
    return True


def write(producer: Producer, *values: str) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce("out", value.encode(), partition=number % 3)


def coordinator(cluster: Cluster) -> Broker:
    return cluster.leader(TRANSACTIONS, 0)


def test_a_transaction_over_all_brokers(cluster: Cluster) -> None:
    producer = make_producer(cluster)
    write(producer, "a", "b", "c")
    patiently(producer.commit_transaction)
    write(producer, "lost", "lost", "lost")
    patiently(producer.abort_transaction)
    write(producer, "d", "e", "f")
    patiently(producer.commit_transaction)
    cluster.wait_until(lambda: stable(cluster))
    assert sorted(committed(cluster)) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_followers_tell_of_producers_too(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = make_producer(cluster)
    write(producer, "a", "b", "c")
    patiently(producer.commit_transaction)
    cluster.wait_until(lambda: stable(cluster))
    for number in (1, 2, 3):
        where = ["--bootstrap-server", cluster.bootstrap]
        asked = ["--broker-id", str(number)]
        one = ["describe-producers", "--topic", "out", "--partition", "0"]
        assert run_tool("kafka-transactions", [*where, *one, *asked]) == 0
        heading, told = capsys.readouterr().out.splitlines()
        assert heading.startswith("ProducerId"), told
        assert run_tool("kafka-transactions", [*where, "find-hanging", *asked]) == 0
        capsys.readouterr()


def test_the_coordinator_dies_in_an_open_transaction(cluster: Cluster) -> None:
    producer = make_producer(cluster)
    cluster.wait_in_sync(TRANSACTIONS)
    write(producer, "a", "b", "c")
    producer.flush(10)
    coordinator(cluster).crash()
    patiently(producer.commit_transaction)
    cluster.wait_until(lambda: stable(cluster))
    assert sorted(committed(cluster)) == [b"a", b"b", b"c"]


def test_a_leader_dies_in_an_open_transaction(cluster: Cluster) -> None:
    producer = make_producer(cluster)
    cluster.wait_in_sync(TRANSACTIONS)
    cluster.wait_in_sync("out")
    write(producer, "a", "b", "c")
    producer.flush(10)
    cluster.leader("out", 0).crash()
    patiently(producer.commit_transaction)
    cluster.wait_until(lambda: stable(cluster))
    assert sorted(committed(cluster)) == [b"a", b"b", b"c"]


def test_a_decided_transaction_is_ended_by_the_next_coordinator(cluster: Cluster) -> None:
    """The coordinator decides while it cannot reach the others, and dies: the decision counts."""
    producer = make_producer(cluster)
    cluster.wait_in_sync(TRANSACTIONS)
    cluster.wait_in_sync("out")
    write(producer, "a", "b", "c")
    producer.flush(10)
    first = coordinator(cluster)
    first._services().transactions.stop_sending()  # its markers reach nobody, not even itself
    patiently(producer.commit_transaction)  # answered: it is decided
    assert not stable(cluster)
    first.crash()
    cluster.wait_until(lambda: stable(cluster))
    assert sorted(committed(cluster)) == [b"a", b"b", b"c"]


def test_the_coordinator_of_the_group_dies_in_an_open_transaction(cluster: Cluster) -> None:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "movers", "log_level": 0}
    )
    place = TopicPartition("in", 0)
    producer = make_producer(cluster)
    for offset, commit in ((7, True), (8, False), (9, True)):
        write(producer, "a", "b", "c")
        there = [TopicPartition("in", 0, offset)]
        group = consumer.consumer_group_metadata()
        patiently(partial(producer.send_offsets_to_transaction, there, group))
        cluster.wait_in_sync(OFFSETS)
        victim = cluster.leader(OFFSETS, 0)
        victim.crash()
        patiently(producer.commit_transaction if commit else producer.abort_transaction)
        cluster.wait_until(lambda: stable(cluster))
        (found,) = consumer.committed([place], 120)  # librdkafka asks for stable offsets
        assert found.offset == (offset if commit else 7)
        victim.start()
        cluster.wait_in_sync("out")
        cluster.wait_in_sync(TRANSACTIONS)
    consumer.close()
    assert len(committed(cluster)) == 6


def test_a_producer_that_died_is_aborted_after_its_time(cluster: Cluster) -> None:
    zombie = make_producer(cluster, **{"transaction.timeout.ms": 1_000})
    write(zombie, "a", "b", "c")
    zombie.flush(10)
    cluster.wait_until(lambda: stable(cluster))
    assert committed(cluster) == []


def test_a_successor_fences_the_one_before(cluster: Cluster) -> None:
    zombie = make_producer(cluster)
    write(zombie, "lost")
    zombie.flush(10)
    successor = make_producer(cluster)
    write(successor, "kept")
    patiently(successor.commit_transaction)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(120)
    assert fenced.value.args[0].fatal()
    cluster.wait_until(lambda: stable(cluster))
    assert committed(cluster) == [b"kept"]


def test_consume_transform_produce_while_brokers_die(cluster: Cluster) -> None:
    """Every record of `in` is in `out` once, though the mover is replaced and brokers crash."""
    count = 300
    source = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(count):
        source.produce("in", str(number).encode())
    assert source.flush(30) == 0
    make_producer(cluster, "to-make-the-topic")
    cluster.wait_in_sync(TRANSACTIONS)

    ended = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while move(cluster, count):
                pass
        except BaseException as error:
            failures.append(error)
        finally:
            ended.set()

    mover = threading.Thread(target=work)
    mover.start()
    try:
        for victim in (1, 2, 3):
            if ended.wait(1.0):
                break
            cluster.brokers[victim].crash()
            ended.wait(1.0)
            cluster.brokers[victim].start()
            cluster.wait_in_sync("in")
            cluster.wait_in_sync("out")
            cluster.wait_in_sync(TRANSACTIONS)
        assert ended.wait(200)
    finally:
        mover.join(30)
    assert not failures
    cluster.wait_until(lambda: stable(cluster))
    moved = sorted(int(value) for value in committed(cluster))
    assert moved == list(range(count))


def move(cluster: Cluster, count: int) -> bool:
    """Be the mover for some transactions; False when everything has been moved."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "movers",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    place = TopicPartition("in", 0)
    try:
        producer = make_producer(cluster)
        (found,) = consumer.committed([place], 30)
        if found.error is not None:
            return True  # where to go on is not known now
        begin = max(found.offset, 0)
        consumer.assign([TopicPartition("in", 0, begin)])
        for _ in range(5):
            if begin >= count:
                return False
            messages = consumer.consume(20, 5)
            values = [each for each in messages if each.error() is None]
            if not values:
                continue
            producer.begin_transaction()
            for message in values:
                value = message.value()
                assert value is not None
                producer.produce("out", value, partition=int(value) % 3)
            begin += len(values)
            producer.send_offsets_to_transaction(
                [TopicPartition("in", 0, begin)], consumer.consumer_group_metadata(), 30
            )
            patiently(producer.commit_transaction)
        return True
    except KafkaException:
        return True  # whatever it is: the next one goes on where the last commit was
    finally:
        consumer.close()


def test_markers_that_are_not_committed_hold_up_no_other_transaction() -> None:
    """A broker leads a partition whose replicas are away, and coordinates other transactions:
    whoever sends it markers can still ask it about those."""
    settings = {**SETTINGS, "transaction.state.log.num.partitions": 3}
    with Cluster(brokers=3, config=settings, topics=TOPICS) as cluster:
        make_producer(cluster, "to-make-the-topic")
        cluster.wait_in_sync(TRANSACTIONS)
        asking, asked = cluster.leader("out", 0), cluster.leader("out", 1)
        transactions = asked._services().transactions

        def coordinated_by(broker: Broker) -> str:
            names = (f"name-{number}" for number in itertools.count())
            wanted = broker._services().node_id
            return next(each for each in names if transactions.coordinator_of(each) == wanted)

        waits = make_producer(cluster, coordinated_by(asking))
        goes_on = make_producer(cluster, coordinated_by(asked))
        waits.begin_transaction()
        waits.produce("out", b"a", partition=1)
        waits.flush(10)
        arrived = threading.Event()

        def never_committed(marker: Marker, to: Place) -> Deferred[None]:
            arrived.set()
            return Deferred()

        write, transactions.writer.write = transactions.writer.write, never_committed
        try:
            patiently(waits.commit_transaction)
            assert arrived.wait(120)
            goes_on.begin_transaction()
            goes_on.produce("out", b"b", partition=0)
            assert goes_on.flush(120) == 0
        finally:
            transactions.writer.write = write


class Wired:
    """A producer of transactions before version 2 of them, at whatever broker it is told."""

    def __init__(self, wire: Callable[..., Any]) -> None:
        self._wire = wire
        self._who: dict[str, Any] = {"transactional_id": ID}

    def begin(self, broker: Broker, *, again: bool = False) -> ErrorCode:
        """As a new producer, or `again` as the one that it is."""
        who = self._who if again else {"transactional_id": ID}
        answer = self._wire(broker.bootstrap).ask(
            "init_producer_id", 4, transaction_timeout=60_000, **who
        )
        if not answer.error_code:
            self._who["producer_id"] = answer.producer_id
            self._who["producer_epoch"] = answer.producer_epoch
        return ErrorCode.of(answer.error_code)

    def add(self, broker: Broker) -> ErrorCode:
        who = {f"v3_and_below_{name}": value for name, value in self._who.items()}
        answer = self._wire(broker.bootstrap).ask(
            "add_partitions_to_txn",
            3,
            v3_and_below_topics=[{"name": "out", "partitions": [0]}],
            **who,
        )
        ((result,),) = (each.results_by_partition for each in answer.results_by_topic_v3_and_below)
        return ErrorCode.of(result.partition_error_code)

    def add_offsets(self, broker: Broker) -> ErrorCode:
        answer = self._wire(broker.bootstrap).ask(
            "add_offsets_to_txn", 3, group_id="readers", **self._who
        )
        return ErrorCode.of(answer.error_code)

    def commit(self, broker: Broker) -> ErrorCode:
        answer = self._wire(broker.bootstrap).ask("end_txn", 3, committed=True, **self._who)
        return ErrorCode.of(answer.error_code)


def test_offsets_are_part_of_a_transaction_once_its_coordinator_knows_their_topic(
    cluster: Cluster, wire: Callable[..., Any]
) -> None:
    """No group has committed yet: the topic comes into being. A coordinator that ends a
    transaction without knowing it would write no marker there."""
    make_producer(cluster, "another")  # so that there is a coordinator
    broker = coordinator(cluster)
    producer = Wired(wire)
    assert producer.begin(broker) is ErrorCode.NONE
    assert OFFSETS not in broker._services().image.topics
    cluster.wait_until(lambda: producer.add_offsets(broker) is ErrorCode.NONE)
    assert OFFSETS in broker._services().image.topics
    assert producer.commit(broker) is ErrorCode.NONE


def test_a_coordinator_that_was_replaced_calls_no_transaction_committed(
    cluster: Cluster, wire: Callable[..., Any]
) -> None:
    """It knows of the one before, which was; and takes its end for the same once more."""
    make_producer(cluster, "another")  # so that there is a coordinator
    replaced = coordinator(cluster)
    number = next(each for each, broker in cluster.brokers.items() if broker is replaced)
    producer = Wired(wire)
    assert producer.begin(replaced) is ErrorCode.NONE
    assert producer.add(replaced) is ErrorCode.NONE
    assert producer.commit(replaced) is ErrorCode.NONE
    cluster.wait_until(lambda: producer.commit(replaced) is ErrorCode.NONE)  # it has ended
    others = [broker for broker in cluster if broker is not replaced]
    with cluster.cut_off(number):
        cluster.wait_until(lambda: any(producer.add(each) is ErrorCode.NONE for each in others))
        assert producer.commit(replaced) is ErrorCode.NOT_COORDINATOR
        cluster.wait_until(lambda: any(producer.begin(each) is ErrorCode.NONE for each in others))
        # It would take the producer for one that was fenced, from which there is no way back.
        assert producer.commit(replaced) is ErrorCode.NOT_COORDINATOR
        assert producer.begin(replaced, again=True) is ErrorCode.NOT_COORDINATOR
        assert producer.add_offsets(replaced) is ErrorCode.NOT_COORDINATOR
