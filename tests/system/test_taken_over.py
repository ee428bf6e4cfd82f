"""Transactions that Apache Kafka 4.2 left open, in a folder that Ottla takes over.

`data/apache-transactions.tar.xz` is the folder of an Apache Kafka that was killed with -9, recorded
by `python -m bench.takeover`. Clients of two versions (`new-` knows transaction version 2, `old-`
does not) had ended six transactions each, in two segments of `taken-0`, and had left four open,
first `new-` and then `old-`:

    commits   one record in taken-0
    aborts    one record in taken-0 and one in taken-1
    offsets   one record in taken-1, and offset 7 of taken-0 for the group
    gone      one record in taken-1

`make interop` does the same with a live Apache Kafka and the clients themselves.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from ottla.testing.process import BrokerProcess

RECORDED = Path(__file__).parent / "data" / "apache-transactions.tar.xz"
TOPIC = "taken"
PREFIXES = ("new-", "old-")
OPEN = ("commits", "aborts", "offsets", "gone")
NONE, UNSTABLE_OFFSET_COMMIT = 0, 88
TRANSACTIONAL = 0x10
TIMEOUT = 60.0
# All of it is long past its time, and may be old enough to be forgotten.
PATIENT = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    "offsets.retention.minutes": "2147483647",
}
ENDED = {f"{prefix}committed-{turn}" for prefix in PREFIXES for turn in (0, 2, 4)}

Start = Callable[..., BrokerProcess]


@pytest.fixture
def taken_over(tmp_path: Path, start_broker: Start) -> Start:
    """Start a broker on a copy of the recorded folder."""

    def start(**settings: str) -> BrokerProcess:
        data = tmp_path / "kafka"
        with tarfile.open(RECORDED) as archive:
            archive.extractall(data, filter="data")
        return start_broker(data_dir=data, settings={**PATIENT, **settings})

    return start


class Reader:
    """What of the topic is committed by now."""

    def __init__(self, bootstrap: str) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        self._consumers = {
            level: Consumer({**self._settings, "isolation.level": level})
            for level in ("read_committed", "read_uncommitted")
        }

    def ends(self, level: str) -> list[int]:
        found = []
        for partition in range(2):
            place = TopicPartition(TOPIC, partition)
            marks = self._consumers[level].get_watermark_offsets(place, timeout=TIMEOUT)
            assert marks is not None
            found.append(marks[1])
        return found

    def is_stable(self) -> bool:
        """No transaction is open."""
        return self.ends("read_committed") == self.ends("read_uncommitted")

    def committed(self) -> set[str]:
        values: list[str] = []
        consumer = self._consumers["read_committed"]
        for partition in range(2):
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            while (message := consumer.poll(TIMEOUT)) is not None:
                problem = message.error()
                if problem is not None:
                    assert problem.code() == KafkaError._PARTITION_EOF
                    break
                values.append((message.value() or b"").decode())
        assert len(values) == len(set(values))
        return set(values)

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()


@pytest.fixture
def read() -> Iterator[Callable[[BrokerProcess], Reader]]:
    readers: list[Reader] = []

    def make(broker: BrokerProcess) -> Reader:
        readers.append(Reader(broker.bootstrap))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


class Taken:
    """A transactional id, as its coordinator has taken it over."""

    def __init__(self, connection: Any, name: str) -> None:
        self.connection = connection
        self.name = name
        self.newer = name.startswith("new-")

    def described(self) -> Any:
        (found,) = self.connection.ask(
            "describe_transactions", 0, transactional_ids=[self.name]
        ).transaction_states
        assert found.error_code == NONE
        return found

    def state(self) -> str:
        return str(self.described().transaction_state)

    def who(self) -> dict[str, Any]:
        found = self.described()
        return {
            "transactional_id": self.name,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
        }

    def end(self, *, commit: bool) -> int:
        answer = self.connection.ask(
            "end_txn", 5 if self.newer else 3, **self.who(), committed=commit
        )
        return int(answer.error_code)


@pytest.fixture
def transaction(wire: Callable[..., Any]) -> Callable[[BrokerProcess, str], Taken]:
    return lambda broker, name: Taken(wire(broker.bootstrap), name)


def is_loaded(taken: Taken) -> bool:
    """The coordinator knows its transactions; before, it says that it is still reading."""
    (found,) = taken.connection.ask(
        "describe_transactions", 0, transactional_ids=[taken.name]
    ).transaction_states
    return bool(found.error_code == NONE)


def test_open_transactions_are_open_after_it(
    taken_over: Start, transaction: Any, read: Any, eventually: Any
) -> None:
    broker = taken_over()
    eventually(lambda: is_loaded(transaction(broker, "new-commits")))
    partitions = {"commits": {0}, "aborts": {0, 1}, "gone": {1}}
    for prefix in PREFIXES:
        assert transaction(broker, f"{prefix}ended").state() == "CompleteAbort"
        for name in OPEN:
            found = transaction(broker, f"{prefix}{name}").described()
            assert found.transaction_state == "Ongoing"
            places = {topic.topic: set(topic.partitions) for topic in found.topics}
            expected = {TOPIC: partitions.get(name, {1})}
            if name == "offsets":
                expected["__consumer_offsets"] = {0}
            assert places == expected
    reader = read(broker)
    assert not reader.is_stable()
    # Whatever came after the first transaction that is open is not to be seen yet.
    assert reader.committed() == {each for each in ENDED if each.startswith("new-")}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_they_are_committed_and_aborted_by_the_same_ids(
    prefix: str, taken_over: Start, transaction: Any, read: Any, wire: Any, batch: Any,
    eventually: Any,
) -> None:  # fmt: skip
    broker = taken_over()
    commits, aborts, offsets, gone = (transaction(broker, f"{prefix}{name}") for name in OPEN)
    eventually(lambda: is_loaded(commits))
    topic = wire(broker.bootstrap).ask("metadata", 12, topics=[{"name": TOPIC}]).topics[0]
    assert _produce_one_more(commits, topic, batch, f"{prefix}more".encode()) == NONE
    group = SimpleNamespace(connection=wire(broker.bootstrap), name=f"{prefix}group")
    eventually(lambda: _committed_offset(group) == UNSTABLE_OFFSET_COMMIT)
    assert commits.end(commit=True) == NONE
    assert aborts.end(commit=False) == NONE
    assert offsets.end(commit=True) == NONE
    assert gone.end(commit=False) == NONE
    eventually(lambda: _committed_offset(group) == 7)
    states = {each.name: "CompleteCommit" for each in (commits, offsets)}
    states |= {each.name: "CompleteAbort" for each in (aborts, gone)}
    for each in (commits, aborts, offsets, gone):
        eventually(lambda each=each: each.state() == states[each.name])
    # The others' are open yet: they end at their time.
    broker.kill()
    broker.settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = "100"
    broker.start()
    reader = read(broker)
    eventually(reader.is_stable)
    committed = {f"{prefix}{name}" for name in ("commits-before", "more", "offsets")}
    assert reader.committed() == ENDED | committed


def _produce_one_more(taken: Taken, topic: Any, batch: Any, value: bytes) -> int:
    """A second record of a transaction, as its producer would go on with it."""
    who = taken.who()
    records = batch(
        [value],
        attributes=TRANSACTIONAL,
        producer_id=who["producer_id"],
        producer_epoch=who["producer_epoch"],
        base_sequence=1,
    )
    data = [{"index": 0, "records": records}]
    (answer,) = taken.connection.ask(
        "produce",
        12 if taken.newer else 11,
        transactional_id=taken.name,
        acks=-1,
        timeout=10_000,
        topic_data=[{"name": topic.name, "partition_data": data}],
    ).responses
    return int(answer.partition_responses[0].error_code)


def _committed_offset(group: Any) -> int:
    """The offset that the group has committed, or why it cannot be told."""
    asked = {"group_id": group.name, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    (answer,) = group.connection.ask("offset_fetch", 8, groups=[asked], require_stable=True).groups
    if answer.error_code != NONE:
        return int(answer.error_code)
    (place,) = answer.topics[0].partitions
    return int(place.error_code or place.committed_offset)


def test_the_next_producer_of_an_id_aborts_what_is_open(
    taken_over: Start, read: Any, eventually: Any
) -> None:
    broker = taken_over()
    for prefix in PREFIXES:
        for name in OPEN:
            producer = Producer(
                {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{prefix}{name}"}
            )
            producer.init_transactions(TIMEOUT)
            producer.begin_transaction()
            producer.produce(TOPIC, f"{prefix}{name}-next", partition=0)
            producer.commit_transaction(TIMEOUT)
    reader = read(broker)
    eventually(reader.is_stable)
    followed = {f"{prefix}{name}-next" for prefix in PREFIXES for name in OPEN}
    assert reader.committed() == ENDED | followed


def test_what_nobody_ends_is_aborted_at_its_time(
    taken_over: Start, transaction: Any, read: Any, eventually: Any
) -> None:
    sweep = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    broker = taken_over(**sweep)
    reader = read(broker)
    eventually(reader.is_stable)
    assert reader.committed() == ENDED
    for prefix in PREFIXES:
        for name in OPEN:
            taken = transaction(broker, f"{prefix}{name}")
            eventually(lambda taken=taken: taken.state() == "CompleteAbort")
