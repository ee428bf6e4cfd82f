"""Topics with records that differ, so that a checksum over them means something."""

from __future__ import annotations

import random
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.load import settings
from bench.processes import BenchError

_CHUNK = 5_000
_PATIENCE = 120.0
_WORDS = ("offset", "epoch", "leader", "replica", "segment", "index", "batch", "record", "page")


def create(bootstrap: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_PATIENCE)


def fill(bootstrap: str, name: str, partitions: int, size: int, codec: str, count: int) -> None:
    """`count` records of `size` bytes with keys, as even over the partitions as can be."""
    create(bootstrap, name, partitions)
    rng = random.Random(size)
    chunk = [
        {"key": b"key-%d" % rng.randrange(100_000), "value": _value(rng, size)}
        for _ in range(_CHUNK)
    ]
    producer = Producer(settings.producer(bootstrap, compression_type=codec))
    sent = turn = 0
    while sent < count:
        part = chunk[: count - sent]
        taken = producer.produce_batch(name, part, partition=turn % partitions)
        sent += taken
        turn += 1
        producer.poll(0 if taken == len(part) else 0.002)
    if producer.flush(_PATIENCE):
        raise BenchError(f"the broker did not take all records of {name}")


def consume(bootstrap: str, name: str, count: int) -> float:
    """Records a second of a loop that does nothing else: librdkafka, partition 0."""
    consumer = Consumer(settings.consumer(bootstrap))
    consumer.list_topics(name, timeout=_PATIENCE)
    consumer.assign([TopicPartition(name, 0, 0)])
    got = 0
    started = time.perf_counter()
    while got < count:
        messages = consumer.consume(min(10_000, count - got), timeout=10.0)
        if not messages:
            raise BenchError(f"only {got} of {count} records of {name} came")
        got += len(messages)
    seconds = time.perf_counter() - started
    consumer.close()
    return count / seconds


def _value(rng: random.Random, size: int) -> bytes:
    """Half words, half digits: shrinks about as much as a line of JSON does."""
    text = ""
    while len(text) < size:
        text += f"{rng.choice(_WORDS)}={rng.randrange(10**9)} "
    return text[:size].encode()
