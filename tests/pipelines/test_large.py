"""Five million records through reading, SQL and writing: what goes in comes out."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

import ottla

COUNT = 5_000_000
CHUNK = 5_000
PARTITIONS = 4


def fill(bootstrap: str, topic: str) -> tuple[int, int]:
    """Send numbered values; returns the sum of their checksums and of their keys'."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    values = keys = 0
    turns = itertools.cycle(range(PARTITIONS))
    for first in range(0, COUNT, CHUNK):
        rows: list[Any] = []
        for number in range(first, first + CHUNK):
            key, value = b"%d" % (number % 1000), b"value of record %d" % number
            values += zlib.crc32(value)
            keys += zlib.crc32(key)
            rows.append({"key": key, "value": value})
        partition = next(turns)
        while rows:
            taken = producer.produce_batch(topic, rows, partition=partition)
            rows = rows[taken:]
            producer.poll(0 if not rows else 0.01)
    assert producer.flush(120) == 0
    return values, keys


def drain(bootstrap: str, topic: str) -> tuple[int, int, int]:
    """Read everything with another client; returns how many, and the sums of checksums."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    count = values = keys = 0
    while count < COUNT:
        messages = consumer.consume(10_000, 30)
        assert messages, f"only {count} records came"
        for message in messages:
            values += zlib.crc32(message.value())
            keys += zlib.crc32(message.key())
        count += len(messages)
    surplus = consumer.consume(1, 0.5)
    consumer.close()
    return count + len(surplus), values, keys


def test_five_million_records_keep_their_checksums(spark, bootstrap, unique):
    source, target = unique(), unique()
    with ottla.Admin(bootstrap) as admin:
        admin.create_topic(source, partitions=PARTITIONS)
        admin.create_topic(target, partitions=PARTITIONS)
    values, keys = fill(bootstrap, source)
    records = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .load()
    )
    records.createOrReplaceTempView("five_million")
    (
        spark.sql("SELECT key, concat(value) AS value FROM five_million WHERE length(value) > 0")
        .write.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .mode("append")
        .save()
    )
    assert drain(bootstrap, target) == (COUNT, values, keys)
