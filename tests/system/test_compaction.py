"""Compaction in a real broker: the last value of every key, whatever happens meanwhile."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

TOPIC, PARTITIONS, KEYS = "table", 2, 50
SETTINGS = {
    "log.cleaner.backoff.ms": 20,
    "log.initial.task.delay.ms": 0,
    "log.segment.delete.delay.ms": 0,
}
TABLE = {
    "cleanup_policy": "compact",
    "internal_segment_bytes": "10000",
    "min_cleanable_dirty_ratio": "0.01",
}


class Writer:
    """An idempotent producer that overwrites the same keys again and again and never gives up."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.latest: dict[bytes, bytes | None] = {}
        self._rng = random.Random(7)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "compression.type": "none",
                "message.timeout.ms": 200_000,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 5,
                "retry.backoff.max.ms": 50,
                "log_level": 0,
            }
        )

    def _report(self, error: KafkaError | None, _: object) -> None:
        assert error is None, error
        self.acknowledged += 1

    def write(self, count: int) -> None:
        for _ in range(count):
            number = self._rng.randrange(KEYS)
            key = b"key-%d" % number
            value = None if self._rng.random() < 0.05 else b"%d" % self.sent
            self.latest[key] = value
            self._producer.produce(
                TOPIC, value, key, partition=number % PARTITIONS, on_delivery=self._report
            )
            self.sent += 1
            self._producer.poll(0)

    def wait(self) -> None:
        assert self._producer.flush(200) == 0
        assert self.acknowledged == self.sent


def read(bootstrap: str) -> list[tuple[int, int, bytes, bytes | None]]:
    """Partition, offset, key and value of everything in the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused-by-assign",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    found, ended, deadline = [], set(), time.monotonic() + 120
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "the topic cannot be read to its end"
        for message in consumer.consume(10_000, 0.5):
            if message.error() is None:
                found.append(
                    (message.partition(), message.offset(), message.key(), message.value())
                )
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    consumer.close()
    return found


def table(records: list[tuple[int, int, bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    return {key: value for _, _, key, value in records}


def check(writer: Writer, bootstrap: str) -> int:
    """The topic tells the last value of each key; returns how many records it takes for that."""
    records = read(bootstrap)
    for partition in range(PARTITIONS):
        offsets = [offset for number, offset, _, _ in records if number == partition]
        assert offsets == sorted(set(offsets))
    assert table(records) == writer.latest
    return len(records)


def quiet(log: str) -> None:
    for trouble in ("Traceback", "cannot be compacted", "is gone", "offline"):
        assert trouble not in log


def verify(folder: Path) -> None:
    """Every file of the topic, batches and indexes, as `ottla log dump` judges them."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "log", "dump", "--verify", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_old_values_go_and_the_last_ones_stay(start_broker, wire, raw, eventually) -> None:
    broker = start_broker(settings=SETTINGS)
    raw.create_topic(wire(broker.bootstrap), TOPIC, PARTITIONS, **TABLE)
    writer = Writer(broker.bootstrap)
    writer.write(10_000)
    writer.wait()
    # Only the active segments keep old values.
    eventually(lambda: check(writer, broker.bootstrap) < 2_500)
    broker.terminate()
    quiet(broker.log())
    verify(broker.data_dir)
    checkpoint = (broker.data_dir / "cleaner-offset-checkpoint").read_text().splitlines()
    assert [line.split()[0] for line in checkpoint[2:]] == [TOPIC] * PARTITIONS
    broker.start()
    check(writer, broker.bootstrap)


def ottla(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ottla", *arguments], check=True, capture_output=True)


def test_changes_of_settings_act_at_once(start_broker, wire, raw, eventually) -> None:
    hour = {"log.cleaner.backoff.ms": 3_600_000}
    broker = start_broker(settings=SETTINGS | hour)
    settings = TABLE | {"min_cleanable_dirty_ratio": "1.0"}
    raw.create_topic(wire(broker.bootstrap), TOPIC, PARTITIONS, **settings)
    writer = Writer(broker.bootstrap)
    writer.write(5_000)
    writer.wait()
    assert "compacted " not in broker.log()
    there = ("--bootstrap", broker.bootstrap)
    ottla("topic", "alter", TOPIC, "--config", "min.cleanable.dirty.ratio=0.01", *there)
    eventually(lambda: check(writer, broker.bootstrap) < 2_500)
    # Now the cleaner itself: slower than the log grows, and turned up again.
    runs = broker.log().count("compacted ")
    limit = "log.cleaner.io.max.bytes.per.second"
    both = ("--set", "log.cleaner.backoff.ms=20", "--set", f"{limit}=1")
    ottla("config", "alter", "broker", "1", *there, *both)
    writer.write(5_000)
    writer.wait()
    assert broker.log().count("compacted ") <= runs + PARTITIONS
    ottla("config", "alter", "broker", "1", *there, "--delete", limit)
    eventually(lambda: check(writer, broker.bootstrap) < 2_500)
    quiet(broker.log())


def test_kill_while_the_cleaner_works(start_broker, wire, raw, eventually) -> None:
    broker = start_broker(settings=SETTINGS)
    raw.create_topic(wire(broker.bootstrap), TOPIC, PARTITIONS, **TABLE)
    writer = Writer(broker.bootstrap)
    rng = random.Random(3)
    for _ in range(8):
        before = broker.log().count("compacted ")
        writer.write(3_000)
        eventually(lambda n=before: broker.log().count("compacted ") > n)
        time.sleep(rng.uniform(0, 0.05))
        broker.kill()
        broker.start()
        writer.wait()
        check(writer, broker.bootstrap)
    eventually(lambda: check(writer, broker.bootstrap) < 2_500)
    broker.terminate()
    quiet(broker.log())
    verify(broker.data_dir)
