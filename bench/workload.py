"""A mixed workload for the checks: every codec, headers, nulls, odd timestamps, rolls, deletions.

Everything is drawn from seeded rng, so two runs write the same records.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.load.settings import Settings

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATIENCE = 120.0
_FIRST_TIMESTAMP = 1_700_000_000_000
_WORDS = ("offset", "epoch", "leader", "replica", "segment", "index", "batch", "record")


@dataclass(frozen=True, slots=True)
class Sample:
    """One record to send."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the workload."""

    name: str
    partitions: int = 1
    configs: dict[str, str] = field(default_factory=dict)


def samples(seed: int, count: int, *, step_ms: int = 50) -> Iterator[Sample]:
    """Records of mixed shape; time goes forward on the whole but not from record to record."""
    rng = random.Random(seed)
    for number in range(count):
        shape = rng.random()
        key = None if shape < 0.2 else f"key-{rng.randrange(500)}".encode()
        value: bytes | None
        if shape > 0.98 and key is not None:
            value = None
        elif shape > 0.6:
            value = rng.randbytes(rng.randrange(10, 400))
        else:
            value = " ".join(rng.choices(_WORDS, k=rng.randrange(5, 60))).encode()
        headers: list[tuple[str, bytes | None]] = [
            (f"h{index}", None if rng.random() < 0.1 else rng.randbytes(rng.randrange(12)))
            for index in range(rng.choice((0, 0, 0, 1, 3)))
        ]
        jitter = rng.randrange(-20 * step_ms, 20 * step_ms)
        yield Sample(key, value, headers, _FIRST_TIMESTAMP + number * step_ms + jitter)


def send(
    bootstrap: str, topic: str, partition: int, records: Sequence[Sample], **more: str | int
) -> None:
    """Produce all records with small batches and wait until every one is acknowledged."""
    producer = Producer(producer_settings(bootstrap, **more))
    feed(producer, topic, partition, records)
    if producer.flush(PATIENCE):
        raise BenchError(f"{topic}-{partition} took not all records")


def producer_settings(bootstrap: str, **more: str | int) -> Settings:
    return {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "batch.num.messages": 60,
        "acks": "all",
        "log_level": 3,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def feed(producer: Producer, topic: str, partition: int, records: Sequence[Sample]) -> None:
    """Hand the records to the producer; a refused one raises."""
    refused: list[str] = []

    def judged(error: object, _message: object) -> None:
        if error is not None:
            refused.append(str(error))

    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=partition,
            headers=list(record.headers),
            timestamp=record.timestamp,
            on_delivery=judged,
        )
        producer.poll(0)
        if refused:
            raise BenchError(f"{topic}-{partition} refused a record: {refused[0]}")


def create(bootstrap: str, topics: Sequence[Topic]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    wanted = [NewTopic(topic.name, topic.partitions, 1, config=topic.configs) for topic in topics]
    for done in admin.create_topics(wanted, request_timeout=PATIENCE).values():
        done.result(PATIENCE)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.delete_topics([topic], operation_timeout=PATIENCE)[topic].result(PATIENCE)


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(PATIENCE)


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        done.result(PATIENCE)


# One segment is as small as Kafka allows; with this many records every partition rolls a few times.
# The samples are from 2023: only with this are they not retention's to delete.
KEPT = {"retention.ms": "-1"}
SMALL_SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "1024", **KEPT}
_RECORDS = 12_000


def common_topics() -> list[Topic]:
    """Topics that need no transactions."""
    return [
        Topic("codecs", len(CODECS), SMALL_SEGMENTS),
        Topic("append-time", 2, {**SMALL_SEGMENTS, "message.timestamp.type": "LogAppendTime"}),
        Topic("to-zstd", 1, {**SMALL_SEGMENTS, "compression.type": "zstd"}),
        Topic("to-plain", 1, {**SMALL_SEGMENTS, "compression.type": "uncompressed"}),
        Topic(
            "index-full", 1, {"segment.index.bytes": "400", "index.interval.bytes": "100", **KEPT}
        ),
        Topic("time-rolls", 1, {"segment.ms": "600000", **KEPT}),
        Topic("idempotent", 2, SMALL_SEGMENTS),
        Topic("shortened", 1, SMALL_SEGMENTS),
        Topic("large", 1, {"segment.bytes": "4194304", **KEPT}),
        Topic("empty", 3),
    ]


def fill(bootstrap: str, seed: int, *, full_indexes: bool = True) -> None:
    """Write to every topic of `common_topics`; may be called again with another seed.

    `full_indexes=False` leaves out the topic whose tiny indexes fill up. Apache Kafka 4.2 forgets
    at a restart how far the last index entry lies back; recovery after a later kill then finds
    one entry more than the index holds, and the broker refuses to start.
    """
    rng = list(samples(seed, _RECORDS))
    for partition, codec in enumerate(CODECS):
        send(bootstrap, "codecs", partition, rng, compression_type=codec)
    for partition, codec in enumerate(("none", "lz4")):
        send(bootstrap, "append-time", partition, rng[:6000], compression_type=codec)
    send(bootstrap, "to-zstd", 0, rng[:6000], compression_type="gzip")
    send(bootstrap, "to-plain", 0, rng[:6000], compression_type="snappy")
    if full_indexes:
        send(bootstrap, "index-full", 0, rng[:3000], batch_num_messages=3)
    hourly = list(samples(seed, 400, step_ms=60_000))
    send(bootstrap, "time-rolls", 0, hourly, batch_num_messages=5)
    for producer in range(3):
        for partition in range(2):
            send(
                bootstrap,
                "idempotent",
                partition,
                list(samples(seed + producer, 2500)),
                enable_idempotence="true",
                compression_type=CODECS[producer],
            )
    send(bootstrap, "shortened", 0, rng)
    delete_records(bootstrap, "shortened", 0, 7_777)
    big = [
        Sample(b"big", random.Random(seed + index).randbytes(900_000), [], sample.timestamp)
        for index, sample in enumerate(rng[:12])
    ]
    send(bootstrap, "large", 0, big)
