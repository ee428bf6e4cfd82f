"""Transactions: how many a second, how many records, and how soon somebody reads them.

All with librdkafka, which commits with one request after another: what is measured is how long a
broker takes for each, and whether the transaction before is over when the next one begins.
"""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.figures import percentile
from bench.load import settings

_PATIENCE = 120.0
_CHUNK = 1_000
_COMMITTED = {"isolation.level": "read_committed"}


def _producer(bootstrap: str, name: str, **more: str | int) -> Producer:
    """One that has its identity."""
    producer = Producer(
        settings.producer(bootstrap, transactional_id=name, acks=-1, **{"linger.ms": 0, **more})
    )
    producer.init_transactions(_PATIENCE)
    return producer


def rate(bootstrap: str, topic: str, records: int, size: int, seconds: float) -> dict[str, float]:
    """Transactions of so many records to one partition, one after the other, for a while."""
    producer = _producer(bootstrap, f"rate-{records}")
    values = [{"value": bytes(size)} for _ in range(records)]

    def transaction() -> None:
        producer.begin_transaction()
        if producer.produce_batch(topic, values, partition=0) != records:
            raise RuntimeError("the client took not all records")
        producer.commit_transaction(_PATIENCE)

    transaction()
    before = _stable_end(bootstrap, topic)
    count = 0
    started = time.perf_counter()
    while (taken := time.perf_counter() - started) < seconds:
        transaction()
        count += 1
    arrived = _stable_end(bootstrap, topic) - before
    if arrived != count * (records + 1):  # each has a marker
        raise RuntimeError(f"{count} transactions, {arrived} records and markers")
    return {"transactions": count, "seconds": taken}


def produce(bootstrap: str, topic: str, size: int, count: int, records: int) -> dict[str, float]:
    """As many records as it can, in transactions of `records`."""
    producer = _producer(bootstrap, "throughput", **{"linger.ms": 5})
    chunk = [{"value": bytes(size)} for _ in range(_CHUNK)]
    before = _stable_end(bootstrap, topic)
    transactions = count // records
    started = time.perf_counter()
    for _ in range(transactions):
        producer.begin_transaction()
        sent = 0
        while sent < records:
            taken = producer.produce_batch(topic, chunk[: records - sent], partition=0)
            sent += taken
            producer.poll(0 if taken else 0.002)
        producer.commit_transaction(_PATIENCE)
    seconds = time.perf_counter() - started
    arrived = _stable_end(bootstrap, topic) - before
    if arrived != transactions * (records + 1):
        raise RuntimeError(f"{arrived} records and markers of {transactions} transactions")
    return {"seconds": seconds, "records": transactions * records}


def latency(bootstrap: str, topic: str, pace: float, seconds: float) -> dict[str, float]:
    """Transactions of one record at a pace; from each send until the record is read as committed.

    The first second is not counted.
    """
    consumer = Consumer({**settings.consumer(bootstrap), **_COMMITTED})
    consumer.assign([TopicPartition(topic, 0, _stable_end(bootstrap, topic))])
    producer = _producer(bootstrap, "latency")
    arrivals: list[tuple[int, int]] = []
    sent = 0
    running = threading.Event()
    running.set()
    now = time.monotonic_ns

    def tail() -> None:
        give_up = None
        while running.is_set() or len(arrivals) < sent:
            message = consumer.poll(0.2)
            if message is not None:
                arrived = now()
                problem = message.error()
                if problem is not None:
                    raise RuntimeError(problem.str())
                arrivals.append((int.from_bytes(message.value() or b"", "big"), arrived))
            if not running.is_set():
                give_up = give_up or time.monotonic() + _PATIENCE
                if time.monotonic() > give_up:
                    return

    thread = threading.Thread(target=tail, daemon=True)
    thread.start()
    begun = now()
    turn = time.monotonic()
    end = turn + 1.0 + seconds
    while turn < end:
        producer.begin_transaction()
        producer.produce(topic, now().to_bytes(8, "big"), partition=0)
        producer.commit_transaction(_PATIENCE)
        sent += 1
        turn = max(turn + 1.0 / pace, time.monotonic() - 1.0 / pace)
        if (wait := turn - time.monotonic()) > 0:
            time.sleep(wait)
    running.clear()
    thread.join()
    consumer.close()
    if len(arrivals) != sent:
        raise RuntimeError(f"{sent} sent, {len(arrivals)} arrived")
    delays = sorted((then - at) / 1e6 for at, then in arrivals if at - begun > 1_000_000_000)
    return {
        "records": len(delays),
        "p50": percentile(delays, 0.50),
        "p99": percentile(delays, 0.99),
    }


def transform(
    bootstrap: str, source: str, target: str, count: int, at_once: int
) -> dict[str, float]:
    """Copy the first `count` records of a topic, with the offsets in the same transactions."""
    consumer = Consumer(
        {**settings.consumer(bootstrap), **_COMMITTED, "group.id": f"transform-{target}"}
    )
    place = TopicPartition(source, 0, 0)
    consumer.assign([place])
    producer = _producer(bootstrap, f"transform-{target}")
    refused: list[str] = []

    def judged(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error.str())

    before = _stable_end(bootstrap, target)
    copied = transactions = 0
    deadline = time.monotonic() + _PATIENCE
    first = _consumed(consumer, at_once)
    started = time.perf_counter()
    while copied < count:
        messages = first or _consumed(consumer, at_once)
        first = []
        if not messages:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {copied} of {count} records came")
            continue
        producer.begin_transaction()
        batch = [{"value": message.value(), "callback": judged} for message in messages]
        if producer.produce_batch(target, batch, partition=0) != len(messages):
            raise RuntimeError("the client took not all records")
        place.offset = (messages[-1].offset() or 0) + 1
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), _PATIENCE)
        producer.commit_transaction(_PATIENCE)
        copied += len(messages)
        transactions += 1
    seconds = time.perf_counter() - started
    (committed,) = consumer.committed([TopicPartition(source, 0)], timeout=_PATIENCE)
    consumer.close()
    arrived = _stable_end(bootstrap, target) - before
    if refused or arrived != copied + transactions or committed.offset != place.offset:
        raise RuntimeError(
            f"{copied} records in {transactions} transactions, {arrived} records and markers, "
            f"offset {committed.offset} of {place.offset}, {refused[:1] or 'none'} refused"
        )
    return {"seconds": seconds, "records": copied}


def _consumed(consumer: Consumer, at_once: int) -> list[Message]:
    messages = consumer.consume(at_once, timeout=1.0)
    for message in messages:
        problem = message.error()
        if problem is not None:
            raise RuntimeError(problem.str())
    return messages


def _stable_end(bootstrap: str, topic: str) -> int:
    """Where committed records end, once no transaction is open."""
    ends = [
        Consumer({**settings.consumer(bootstrap), "isolation.level": level})
        for level in ("read_committed", "read_uncommitted")
    ]
    place = TopicPartition(topic, 0)
    deadline = time.monotonic() + _PATIENCE
    try:
        while True:
            marks = [each.get_watermark_offsets(place, timeout=_PATIENCE) for each in ends]
            if marks[0] is not None and marks[0] == marks[1]:
                return int(marks[0][1])
            if time.monotonic() > deadline:
                raise RuntimeError(f"a transaction stays open: {marks}")
    finally:
        for each in ends:
            each.close()
