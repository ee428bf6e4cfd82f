"""Fixtures for tests against brokers of their own: neighbours, memory, loads."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.testing.process import BrokerProcess


def create_topic(connection: Any, name: str, partitions: int = 1, **config: str) -> None:
    settings = [{"name": k.replace("_", "."), "value": v} for k, v in config.items()]
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    (made,) = connection.ask(
        "create_topics", 7, topics=[wanted | {"configs": settings}], timeout=30_000
    ).topics
    assert made.error_code == 0, made.error_message


def produce(connection: Any, topic: str, records: bytes, partition: int = 0, acks: int = 1) -> Any:
    data = [{"index": partition, "records": records}]
    answer = connection.ask(
        "produce",
        9,
        acks=acks,
        timeout=30_000,
        topic_data=[{"name": topic, "partition_data": data}],
    )
    return answer.responses[0].partition_responses[0]


def fetch(connection: Any, topic: str, offset: int = 0, partition: int = 0) -> Any:
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    answer = connection.ask(
        "fetch",
        12,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )
    return answer.responses[0].partitions[0]


@pytest.fixture
def raw() -> SimpleNamespace:
    """The three short forms above, as one object."""

    return SimpleNamespace(create_topic=create_topic, produce=produce, fetch=fetch)


class Neighbour:
    """A client that does nothing unusual, in a thread, for as long as a test misbehaves.

    It writes a record and reads it back, on one connection that stays and on a new one each
    time. Its socket time-out is the deadline: a broker that stops serving it fails the test.
    """

    def __init__(self, connect: Callable[[], Any], records: bytes, topic: str) -> None:
        self.rounds = 0
        self.failure: BaseException | None = None
        self._connect, self._records, self._topic = connect, records, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            staying = self._connect()
            while not self._stop.is_set():
                for connection in (staying, self._connect()):
                    written = produce(connection, self._topic, self._records)
                    assert written.error_code == 0
                    read = fetch(connection, self._topic, written.base_offset)
                    assert (read.error_code, len(read.records)) == (0, len(self._records))
                connection.close()
                self.rounds += 1
                self._stop.wait(0.02)
            staying.close()
        except BaseException as error:
            self.failure = error

    def served(self, *, rounds: int = 2, timeout: float = 120.0) -> None:
        """Wait until it got through its round a few times from now on."""
        goal, deadline = self.rounds + rounds, time.monotonic() + timeout
        while self.rounds < goal:
            if self.failure is not None:
                raise AssertionError("the well-behaved client failed") from self.failure
            assert time.monotonic() < deadline, "the well-behaved client is not served"
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        if self.failure is not None:
            raise AssertionError("the well-behaved client failed") from self.failure


@pytest.fixture
def neighbour(wire: Any, batch: Any) -> Iterator[Callable[[BrokerProcess], Neighbour]]:
    started: list[Neighbour] = []

    def start(broker: BrokerProcess) -> Neighbour:
        create_topic(wire(broker.bootstrap), "neighbourhood")
        one = Neighbour(lambda: wire(broker.bootstrap), batch([b"good morning"]), "neighbourhood")
        started.append(one)
        one.served()
        return one

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def memory() -> Callable[..., Any]:
    """`with memory(broker, grows_at_most=…)`: resident memory, sampled while the block runs."""

    @contextmanager
    def bounded(broker: BrokerProcess, *, grows_at_most: int) -> Iterator[None]:
        before, peak, done = broker.rss(), broker.rss(), threading.Event()

        def sample() -> None:
            nonlocal peak
            while not done.wait(0.02):
                if not broker.alive:
                    return
                peak = max(peak, broker.rss())

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield
        finally:
            done.set()
            sampler.join()
        growth = (peak - before) >> 20
        assert broker.alive, broker.log()
        assert growth <= grows_at_most >> 20, f"memory grew by {growth} MB"

    return bounded


@pytest.fixture
def quiet() -> Callable[..., Any]:
    """`with quiet(broker, lines=5)`: the block makes the broker say something, but not much."""

    @contextmanager
    def limited(broker: BrokerProcess, *, lines: int, at_least: int = 1) -> Iterator[None]:
        before = broker.log_size()
        yield
        said = broker.log_since(before).splitlines()
        assert not any("Traceback" in line for line in said), "\n".join(said)
        assert at_least <= len(said) <= lines, "\n".join(said)

    return limited


PATIENT: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 1,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    # So long it waits for a broker that stands still.
    "request.timeout.ms": 2_000,
    "socket.timeout.ms": 2_000,
    "log_level": 0,
}


class NewEpochs(logging.Handler):
    """Why librdkafka has begun new producer epochs, out of all that it tells about identities."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "Beginning partition drain" in text:  # and behind that the reason
            self.reasons.append(text)


class Load:
    """Produces numbered records with acks=all until it is stopped, to all partitions in turn.

    `acknowledged` has the numbers of those that the cluster must not lose, `failures` why others
    were given up."""

    MOST_UNDERWAY = 10_000

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, config: Mapping[str, object]
    ) -> None:
        from confluent_kafka import Producer

        self.acknowledged: list[int] = []
        self.failures: list[str] = []
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                **PATIENT,
                **config,
                "debug": "eos",
                "log_level": 7,
                "logger": self._logger(),
            }
        )
        self._sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _logger(self) -> logging.Logger:
        self._new_epochs = NewEpochs()
        logger = logging.Logger(f"load-{id(self)}")  # nobody else hears of it
        logger.addHandler(self._new_epochs)
        return logger

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self._producer) < self.MOST_UNDERWAY:
                self._producer.produce(
                    self._topic,
                    str(self._sent).encode(),
                    partition=self._sent % self._partitions,
                    on_delivery=self._delivered,
                )
                self._sent += 1
            self._producer.poll(0.002)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acknowledged.append(int(message.value()))

    def wait_for_more(self, count: int = 99, timeout: float = 120.0) -> None:
        """Wait until so many of those sent from now on are acknowledged, in all partitions."""
        first, seen = self._sent, len(self.acknowledged)
        each = -(-count // self._partitions)
        missing = Counter(dict.fromkeys(range(self._partitions), each))
        deadline = time.monotonic() + timeout
        while missing.total() > 0:
            assert time.monotonic() < deadline, f"no records are taken any more: {self.failures}"
            new = self.acknowledged[seen:]
            seen += len(new)
            for number in new:
                if number >= first and missing[number % self._partitions] > 0:
                    missing[number % self._partitions] -= 1
            time.sleep(0.01)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(120)

    def stop(self) -> None:
        """Send no more, and wait until it is known what became of everything."""
        self.end()
        assert self._producer.flush(200) == 0

    def check(self) -> None:
        """Stop; nothing was refused, and every acknowledged record is there, once."""
        self.stop()
        assert not self.failures
        found = self.read_all()
        assert set(self.acknowledged) <= set(found), "acknowledged records are missing"
        assert max(found.values()) == 1, "records are there twice"

    def check_kept(self) -> None:
        """As `check`, but records may be there twice where librdkafka has begun a new producer
        epoch, and has sent again what it had no answer to: brokers cannot know such records from
        new ones. It says why."""
        self.stop()
        assert not self.failures
        found = self.read_all()
        assert set(self.acknowledged) <= set(found), "acknowledged records are missing"
        if not self._new_epochs.reasons:
            assert max(found.values()) == 1, "records are there twice, under one producer epoch"

    def check_there(self) -> None:
        """Stop; nothing was refused, and every acknowledged record is there, be it twice: for a
        producer without idempotence."""
        self.stop()
        assert not self.failures
        assert set(self.acknowledged) <= set(self.read_all()), "acknowledged records are missing"

    def read_all(self) -> Counter[int]:
        """What there is, at least as much as was acknowledged."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "reader", "log_level": 0}
        )
        consumer.assign([TopicPartition(self._topic, each, 0) for each in range(self._partitions)])
        found: Counter[int] = Counter()
        deadline = time.monotonic() + 200
        try:
            while len(found) < len(self.acknowledged) and time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.2):
                    if message.error() is None:
                        found[int(message.value())] += 1
        finally:
            consumer.close()
        return found


@pytest.fixture
def start_load() -> Iterator[Callable[..., Load]]:
    """`start_load(bootstrap)`: records with acks=all until the test ends, and their fate."""
    started: list[Load] = []

    def start(
        bootstrap: str,
        topic: str = "t",
        partitions: int = 3,
        config: Mapping[str, object] | None = None,
    ) -> Load:
        one = Load(bootstrap, topic, partitions, config or {})
        started.append(one)
        return one

    yield start
    for one in started:
        one.end()
