"""As fast as one client can: produce records into a topic, consume them from its beginning."""

from __future__ import annotations

import random
import time
from itertools import cycle

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import settings

_CHUNK = 5_000
_KEY_BYTES = 16
_CONSUME_AT_ONCE = 10_000
_PATIENCE = 120.0


def produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    size: int,
    count: int,
    keyed: bool = False,
    codec: str = "none",
) -> dict[str, float]:
    """Send `count` records of `size` bytes to the partitions in turn and wait for all acks.

    Without a key they are zeros; with one they are keys that come again and values that compress to
    about a half.

    The clock starts when connections and metadata are there and stops with the last
    acknowledgement. The log end offsets afterwards prove that every record has arrived.
    """
    producer = Producer(settings.producer(bootstrap, compression_type=codec))
    for partition in range(partitions):
        producer.produce(topic, b"warm", key=b"warm" if keyed else None, partition=partition)
    if producer.flush(_PATIENCE):
        raise RuntimeError("the broker acknowledged nothing")
    before = end_offset(bootstrap, topic, partitions)
    chunk = _keyed(size) if keyed else [{"value": bytes(size)} for _ in range(_CHUNK)]
    turns = cycle(range(partitions))
    sent = 0
    started = time.perf_counter()
    while sent < count:
        part = chunk if count - sent >= _CHUNK else chunk[: count - sent]
        taken = producer.produce_batch(topic, part, partition=next(turns))
        sent += taken
        # When the queue is full the rest is offered again a little later.
        producer.poll(0 if taken == len(part) else 0.002)
    left = producer.flush(_PATIENCE)
    seconds = time.perf_counter() - started
    arrived = end_offset(bootstrap, topic, partitions) - before
    if left or arrived != count:
        raise RuntimeError(f"{arrived} of {count} records arrived, {left} unsent")
    return {"seconds": seconds, "records": count, "bytes": count * size}


def _keyed(size: int) -> list[dict[str, bytes]]:
    digits = random.Random(7)
    rest = size - _KEY_BYTES
    return [
        {
            "key": b"%0*d" % (_KEY_BYTES, number),
            "value": digits.randbytes(rest // 2 + 1).hex().encode()[:rest],
        }
        for number in range(_CHUNK)
    ]


def consume(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """Read the first `count` records of partition 0."""
    consumer = Consumer(settings.consumer(bootstrap))
    consumer.list_topics(topic, timeout=_PATIENCE)
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = size = 0
    last = -1
    deadline = time.monotonic() + _PATIENCE
    started = time.perf_counter()
    while got < count:
        messages = consumer.consume(min(_CONSUME_AT_ONCE, count - got), timeout=1.0)
        if messages:
            got += len(messages)
            final = messages[-1]
            problem = final.error()
            if problem is not None:
                raise RuntimeError(problem.str())
            last = final.offset() or 0
            size = len(final.value() or b"")
        elif time.monotonic() > deadline:
            raise RuntimeError(f"only {got} of {count} records came")
    seconds = time.perf_counter() - started
    consumer.close()
    if last != count - 1:
        raise RuntimeError(f"record {count} has offset {last}")
    return {"seconds": seconds, "records": count, "bytes": count * size}


def end_offset(bootstrap: str, topic: str, partitions: int) -> int:
    """The sum of the topic's log end offsets."""
    consumer = Consumer(settings.consumer(bootstrap))
    try:
        total = 0
        for partition in range(partitions):
            marks = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=_PATIENCE
            )
            if marks is None:
                raise RuntimeError("the broker did not say where the log ends")
            total += marks[1]
        return total
    finally:
        consumer.close()
