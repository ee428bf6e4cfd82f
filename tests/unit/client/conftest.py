"""librdkafka's two clients, replaced by ones that a test tells what to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import confluent_kafka as rd
import pytest

Callback = Callable[[rd.KafkaError | None, rd.Message], None]


class FakeProducer:
    """Accepts records; `poll` and `flush` report those that the test has decided."""

    def __init__(self, config: dict[str, Any], logger: object = None) -> None:
        self.config = config
        self.room = 1_000
        self.accepted: list[tuple[Any, ...]] = []
        self.undecided: deque[tuple[str, int, Callback]] = deque()
        self.decided: deque[tuple[rd.KafkaError | None, rd.Message, Callback]] = deque()
        self.deliver_on_flush = True
        self.partitions: dict[str, int] = {}

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: Callback,
        *,
        timestamp: int,
        headers: Any,
    ) -> None:
        if len(self) >= self.room:
            raise BufferError("Local: Queue full")
        self.accepted.append((topic, value, key, partition, timestamp, headers))
        self.undecided.append((topic, max(partition, 0), callback))

    def decide(self, error: int | None = None) -> None:
        """The fate of the oldest record is known; the next poll reports it."""
        topic, partition, callback = self.undecided.popleft()
        message = rd.Message(topic=topic, partition=partition, offset=7, timestamp=(1, 1234))
        failure = None if error is None else rd.KafkaError(error)
        self.decided.append((failure, message, callback))

    def poll(self, timeout: float = -1) -> int:
        served = 0
        while self.decided:
            error, message, callback = self.decided.popleft()
            callback(error, message)
            served += 1
        return served

    def flush(self, timeout: float = -1) -> int:
        while self.undecided and self.deliver_on_flush:
            self.decide()
        self.poll(0)
        return len(self)

    def purge(self) -> None:
        self.deliver_on_flush = False
        while self.undecided:
            self.decide(rd.KafkaError._PURGE_QUEUE)

    def list_topics(self, topic: str, timeout: float = -1) -> Any:
        class Described:
            error = None
            partitions = range(self.partitions[topic])

        class Answer:
            topics = {topic: Described}  # noqa: RUF012 - as librdkafka's object has it, for one test

        return Answer

    def __len__(self) -> int:
        return len(self.undecided) + len(self.decided)


class FakeConsumer:
    """Gives the messages that a test queues, and remembers what it was told."""

    def __init__(self, config: dict[str, Any], logger: object = None) -> None:
        self.config = config
        self.queue: deque[rd.Message] = deque()
        self.assigned: list[rd.TopicPartition] = []
        self.sought: list[tuple[str, int, int]] = []
        self.stored: list[tuple[str, int, int]] = []
        self.committed_offsets: list[tuple[str, int, int]] = []
        self.topics: dict[str, int] = {}
        self.begins: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.lookups: list[int] = []
        self.positions: dict[tuple[str, int], int] = {}
        self.closed = False

    def record(self, topic: str, partition: int, offset: int, value: bytes = b"v") -> None:
        self.queue.append(
            rd.Message(
                topic=topic, partition=partition, offset=offset, value=value, timestamp=(1, 5)
            )
        )

    def failure(
        self, error: int, topic: str | None = None, partition: int = 0, offset: int = -1001
    ) -> None:
        place: dict[str, Any] = (
            {} if topic is None else {"topic": topic, "partition": partition, "offset": offset}
        )
        self.queue.append(rd.Message(error=rd.KafkaError(error, "it failed"), **place))

    def consume(self, most: int, timeout: float) -> list[rd.Message]:
        return [self.queue.popleft() for _ in range(min(most, len(self.queue)))]

    def poll(self, timeout: float) -> rd.Message | None:
        return self.queue.popleft() if self.queue else None

    def assign(self, partitions: list[rd.TopicPartition]) -> None:
        self.assigned = partitions

    def unassign(self) -> None:
        self.assigned = []

    def incremental_assign(self, partitions: list[rd.TopicPartition]) -> None:
        self.assigned = [*self.assigned, *partitions]

    def incremental_unassign(self, partitions: list[rd.TopicPartition]) -> None:
        gone = {(tp.topic, tp.partition) for tp in partitions}
        self.assigned = [tp for tp in self.assigned if (tp.topic, tp.partition) not in gone]

    def assignment(self) -> list[rd.TopicPartition]:
        return self.assigned

    def position(self, partitions: list[rd.TopicPartition]) -> list[rd.TopicPartition]:
        """What was handed over is behind us, whether or not anybody got it."""
        return [
            rd.TopicPartition(
                tp.topic, tp.partition, self.positions.get((tp.topic, tp.partition), -1001)
            )
            for tp in partitions
        ]

    def seek(self, partition: rd.TopicPartition) -> None:
        self.sought.append((partition.topic, partition.partition, partition.offset))

    def pause(self, partitions: list[rd.TopicPartition]) -> None: ...

    def resume(self, partitions: list[rd.TopicPartition]) -> None: ...

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def unsubscribe(self) -> None:
        self.assigned = []

    def consumer_group_metadata(self) -> object:
        return b"a stranger"

    def store_offsets(self, offsets: list[rd.TopicPartition]) -> None:
        self.stored += [(tp.topic, tp.partition, tp.offset) for tp in offsets]

    def commit(
        self, offsets: list[rd.TopicPartition], asynchronous: bool
    ) -> list[rd.TopicPartition]:
        self.committed_offsets += [(tp.topic, tp.partition, tp.offset) for tp in offsets]
        return offsets

    def offsets_for_times(
        self, partitions: list[rd.TopicPartition], timeout: float
    ) -> list[rd.TopicPartition]:
        """ListOffsets as a broker answers it: -2 and -1 are the ends, else offset = timestamp."""
        answers = []
        for tp in partitions:
            self.lookups.append(tp.offset)
            begin = self.begins.get((tp.topic, tp.partition), 0)
            end = self.ends.get((tp.topic, tp.partition), 0)
            offset = {-2: begin, -1: end}.get(tp.offset, tp.offset if tp.offset < end else -1)
            answers.append(rd.TopicPartition(tp.topic, tp.partition, offset))
        return answers

    def list_topics(self, topic: str, timeout: float) -> Any:
        class Described:
            error = None if topic in self.topics else rd.KafkaError(3)
            partitions = dict.fromkeys(range(self.topics.get(topic, 0)), SimpleNamespace(leader=1))

        class Answer:
            topics = {topic: Described}  # noqa: RUF012 - as librdkafka's object has it, for one test

        return Answer

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def nobody_at_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that hear nothing look who is at the address, in a thread."""
    monkeypatch.setattr("ottla.client.contact.look_at", lambda server, timeout: "nothing listens")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The fakes that were made in place of librdkafka's clients, in order."""
    clients: list[Any] = []

    def producer(config: dict[str, Any], logger: object = None) -> FakeProducer:
        fake = FakeProducer(config)
        clients.append(fake)
        return fake

    def consumer(config: dict[str, Any], logger: object = None) -> FakeConsumer:
        fake = FakeConsumer(config)
        clients.append(fake)
        return fake

    monkeypatch.setattr(rd, "Producer", producer)
    monkeypatch.setattr(rd, "Consumer", consumer)
    monkeypatch.setattr("ottla.client.outbox._SETTLING", 0.0)
    return clients
