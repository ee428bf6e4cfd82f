"""Transactions of confluent-kafka, kafka-python, aiokafka and kafkajs, as their users run them.

Each commits, aborts, is fenced, and consumes, transforms and produces. What it wrote is read with
librdkafka, which reads committed records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import aiokafka
import kafka
import kafka.structs
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient

TIMEOUT = 60


class Client(Protocol):
    """One producer with a transactional id, begun when it is made."""

    def begin(self) -> None: ...
    def send(self, topic: str, value: str) -> None:
        """Send, and wait until the broker has it."""
        ...

    def send_offset(self, group: str, topic: str, offset: int) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Confluent:
    fenced = KafkaException

    def __init__(self, bootstrap: str, name: str, node: Any) -> None:
        settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0}
        self._producer = ConfluentProducer(settings)
        self._consumer_settings = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._producer.init_transactions(TIMEOUT)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str) -> None:
        self._producer.produce(topic, value.encode())
        self._producer.flush(TIMEOUT)

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        consumer = Consumer({**self._consumer_settings, "group.id": group})
        offsets = [TopicPartition(topic, 0, offset)]
        metadata = consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(offsets, metadata, TIMEOUT)
        consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(TIMEOUT)

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT)

    def close(self) -> None:
        pass


class KafkaPython:
    fenced = kafka.errors.KafkaError

    def __init__(self, bootstrap: str, name: str, node: Any) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str) -> None:
        self._producer.send(topic, value.encode()).get(TIMEOUT)

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        offsets = {kafka.TopicPartition(topic, 0): kafka.structs.OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=5)


class Aiokafka:
    fenced = aiokafka.errors.KafkaError

    def __init__(self, bootstrap: str, name: str, node: Any) -> None:
        self._runner = asyncio.Runner()
        self._producer = self._runner.run(self._start(bootstrap, name))

    async def _start(self, bootstrap: str, name: str) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        return producer

    def begin(self) -> None:
        self._runner.run(self._producer.begin_transaction())

    def send(self, topic: str, value: str) -> None:
        self._runner.run(self._producer.send_and_wait(topic, value.encode()))

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        offsets = {aiokafka.TopicPartition(topic, 0): offset}
        self._runner.run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._runner.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._runner.run(self._producer.abort_transaction())

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()


class KafkaJS:
    fenced = Exception  # of the Node process: see `KafkaJS.Error` of the fixture

    def __init__(self, bootstrap: str, name: str, node: Any) -> None:
        self._node = node
        self._name = f"{name}-{time.monotonic_ns()}"
        self.fenced = node.Error
        # `tag` makes it another producer than one before it with the same transactional id.
        self._settings: Any = {
            "transactionalId": name,
            "idempotent": True,
            "maxInFlightRequests": 1,
            "tag": self._name,
        }
        self.begin()
        self.abort()

    def _transact(self, method: str, *arguments: Any) -> Any:
        return self._node.call(
            call="transact", transaction=self._name, method=method, arguments=arguments
        )

    def begin(self) -> None:
        self._node.call(call="begin", transaction=self._name, producer=self._settings)

    def send(self, topic: str, value: str) -> None:
        self._transact("send", {"topic": topic, "messages": [{"value": value}]})

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        partitions = [{"partition": 0, "offset": str(offset)}]
        self._transact(
            "sendOffsets",
            {"consumerGroupId": group, "topics": [{"topic": topic, "partitions": partitions}]},
        )

    def commit(self) -> None:
        self._transact("commit")

    def abort(self) -> None:
        self._transact("abort")

    def close(self) -> None:
        pass


@pytest.fixture(params=[Confluent, KafkaPython, Aiokafka, KafkaJS], ids=lambda each: each.__name__)
def make(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Callable[[str], Client]]:
    node = None
    if request.param is KafkaJS:
        node = request.getfixturevalue("start_kafkajs")(bootstrap)
    made: list[Client] = []

    def begin(name: str) -> Client:
        made.append(request.param(bootstrap, name, node))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.fixture
def name(unique: Callable[..., str]) -> str:
    return unique("txn")


@pytest.fixture
def topic(new_topic: Any) -> str:
    return str(new_topic(1).name)


@pytest.fixture
def committed(bootstrap: str) -> Callable[[str], list[str]]:
    """The values of a topic's only partition that are committed, up to its end."""

    def read(topic: str) -> list[str]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused-by-assign",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = []
        while True:
            message = consumer.poll(TIMEOUT)
            assert message is not None
            if message.error() is not None:
                break
            values.append((message.value() or b"").decode())
        consumer.close()
        return values

    return read


@pytest.fixture
def offset(bootstrap: str) -> Callable[[str, str], int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def fetch(group: str, topic: str) -> int:
        wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
        (future,) = admin.list_consumer_group_offsets(wanted).values()
        (found,) = future.result(TIMEOUT).topic_partitions
        return int(found.offset)

    return fetch


def test_a_commit_shows_everything(make, name, topic, committed, eventually) -> None:
    client = make(name)
    for values in (("a", "b"), ("c",)):
        client.begin()
        for value in values:
            client.send(topic, value)
        client.commit()
    eventually(lambda: committed(topic) == ["a", "b", "c"])


def test_an_abort_shows_nothing(make, name, topic, committed, eventually) -> None:
    client = make(name)
    client.begin()
    client.send(topic, "lost")
    client.abort()
    client.begin()
    client.send(topic, "kept")
    client.commit()
    eventually(lambda: committed(topic) == ["kept"])


def test_a_successor_fences(make, name, topic, committed, eventually) -> None:
    zombie = make(name)
    zombie.begin()
    zombie.send(topic, "lost")
    successor = make(name)
    successor.begin()
    successor.send(topic, "kept")
    successor.commit()
    with pytest.raises(zombie.fenced):
        zombie.commit()
    eventually(lambda: committed(topic) == ["kept"])


def test_offsets_go_with_the_records(
    make, name, topic, group, offset, committed, eventually
) -> None:
    client = make(name)
    for number, commit in ((1, True), (2, False), (3, True)):
        client.begin()
        client.send(topic, str(number))
        client.send_offset(group, topic, number)
        if commit:
            client.commit()
        else:
            client.abort()
        expected = number if commit else 1
        eventually(lambda want=expected: offset(group, topic) == want)
    eventually(lambda: committed(topic) == ["1", "3"])
