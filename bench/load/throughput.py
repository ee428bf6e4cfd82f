"""As fast as one client can: produce records into a topic, consume them from its beginning.

Keyed records are of the kind that a compacted topic takes: a key, and a value of words, so that a
codec has something to do and something to find.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from itertools import cycle, pairwise

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.load import settings

_WORDS = ("order", "paid", "shipped", "customer", "berlin", "total", "euro", "status", "item")
_CHUNK = 5_000
_CONSUME_AT_ONCE = 10_000
_PATIENCE = 120.0
_MARKS = 4


def produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    size: int,
    count: int,
    *,
    keyed: bool = False,
    codec: str = "none",
    acks: int = 1,
) -> dict[str, float]:
    """Send `count` records of `size` bytes to the partitions in turn and wait for all acks.

    The clock starts when connections and metadata are there and stops with the last
    acknowledgement. The log end offsets afterwards prove that every record has arrived.
    """
    producer = Producer(settings.producer(bootstrap, compression_type=codec, acks=acks))
    for partition in range(partitions):
        producer.produce(topic, b"warm", b"warm", partition=partition)
    if producer.flush(_PATIENCE):
        raise RuntimeError("the broker acknowledged nothing")
    before = end_offset(bootstrap, topic, partitions)
    chunk = _keyed_chunk(size) if keyed else [{"value": bytes(size)} for _ in range(_CHUNK)]
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


def each_partition(bootstrap: str, topics: dict[str, int], patience: float) -> dict[str, float]:
    """One record into each partition of all topics, once told that they are there.

    Prints `ready` before. The result is the monotonic clock at the last acknowledgement.
    """
    print("ready", flush=True)
    sys.stdin.readline()
    producer = Producer(settings.producer(bootstrap))
    for topic in topics:
        producer.list_topics(topic, timeout=patience)
    acknowledged = 0

    def judged(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            raise RuntimeError(error.str())
        acknowledged += 1

    for topic, partitions in topics.items():
        for partition in range(partitions):
            producer.produce(topic, b"one", partition=partition, on_delivery=judged)
        producer.poll(0)
    left = producer.flush(patience)
    ended = time.monotonic_ns()
    if left or acknowledged != sum(topics.values()):
        raise RuntimeError(f"{acknowledged} of {sum(topics.values())} partitions took a record")
    return {"acknowledged_ns": ended, "records": acknowledged}


def flood(bootstrap: str, topic: str, size: int) -> dict[str, float]:  # noqa: C901 - a sender and a listener over one set of counters
    """Produce to one partition as fast as it goes until told to end; how far it came meanwhile.

    Prints `ready` once records flow. Each line of standard input notes the time and the log's end,
    the fourth ends it: three windows, so that the same producer is seen before something, beside
    it and after it. The end is asked of the broker: a callback for each record would cost more than
    sending it.
    """
    producer = Producer(settings.producer(bootstrap))
    producer.produce(topic, b"warm", partition=0)
    if producer.flush(_PATIENCE):
        raise RuntimeError("the broker acknowledged nothing")
    asking = Consumer(settings.consumer(bootstrap))
    noted: list[tuple[float, int]] = []
    refused: list[str] = []
    told = threading.Event()

    def listen() -> None:
        try:
            for _line in sys.stdin:
                marks = asking.get_watermark_offsets(TopicPartition(topic, 0), timeout=_PATIENCE)
                if marks is None:
                    raise RuntimeError("the broker did not say where the log ends")
                noted.append((time.perf_counter(), marks[1]))
                if len(noted) == _MARKS:
                    break
        finally:
            told.set()

    def judged(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error.str())

    threading.Thread(target=listen, daemon=True).start()
    chunk = [{"value": bytes(size)} for _ in range(_CHUNK)]
    # One of a chunk is watched: a broker that refuses records refuses the chunk with it.
    chunk[-1]["callback"] = judged
    print("ready", flush=True)
    while not told.is_set():
        taken = producer.produce_batch(topic, chunk, partition=0)
        producer.poll(0 if taken == len(chunk) else 0.002)
    left = producer.flush(_PATIENCE)
    asking.close()
    if left or refused or len(noted) != _MARKS:
        raise RuntimeError(f"{left} records unsent, {refused[:1] or 'none'} refused")
    figures = {}
    for window, (begin, end) in zip(("before", "beside", "after"), pairwise(noted), strict=True):
        figures[f"{window}_seconds"] = end[0] - begin[0]
        figures[f"{window}_records"] = end[1] - begin[1]
    return figures


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


def _keyed_chunk(size: int) -> list[dict[str, bytes]]:
    drawn = random.Random(size)

    def text() -> bytes:
        words = ""
        while len(words) < size:
            words += f"{drawn.choice(_WORDS)}={drawn.randrange(100_000)} "
        return words[:size].encode()

    return [{"key": b"key-%08d" % number, "value": text()} for number in range(_CHUNK)]
