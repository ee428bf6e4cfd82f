"""How long a client with default settings waits while a cluster loses one of its brokers.

Records are sent at a fixed rate, each with its number, and wait for all in-sync replicas. What is
measured is the longest time between two acknowledgements. Afterwards every record that was
acknowledged has to be in the log.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.load import settings, throughput

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATIENCE = 120.0
_AT_ONCE = 10_000


def pause(bootstrap: str, topic: str, rate: int) -> dict[str, float]:  # noqa: C901 - a sender, a listener and callbacks over one set of counters
    """Send at `rate` until told to end; the longest pause since the first line was told.

    Prints `ready` once records flow. The first line of standard input says that a broker is about
    to be killed, the second one ends the load.
    """
    acks: list[tuple[int, int]] = []
    refused: list[str] = []
    told: list[int] = []
    running = threading.Event()
    running.set()

    def judged(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error.str())
            return
        acks.append((time.monotonic_ns(), int.from_bytes(message.value() or b"", "big")))

    def serve() -> None:
        while running.is_set():
            producer.poll(0.2)

    def listen() -> None:
        for _line in sys.stdin:
            told.append(time.monotonic_ns())
            if len(told) == 2:
                break
        running.clear()

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for work in (serve, listen):
        threading.Thread(target=work, daemon=True).start()
    sent = 0
    announced = False
    turn = time.monotonic()
    while running.is_set():
        producer.produce(topic, sent.to_bytes(8, "big"), partition=0, on_delivery=judged)
        sent += 1
        if not announced and len(acks) > rate:
            print("ready", flush=True)
            announced = True
        turn += 1.0 / rate
        time.sleep(max(0.0, turn - time.monotonic()))
    left = producer.flush(_PATIENCE)
    if left or refused:
        raise RuntimeError(f"{left} records unsent, {len(refused)} refused: {refused[:1]}")
    times = [at for at, _number in acks]
    there = _read(bootstrap, topic)
    lost = {number for _at, number in acks} - set(there)
    if lost:
        raise RuntimeError(f"{len(lost)} of {len(acks)} acknowledged records are lost")
    return {
        "longest_seconds": longest_gap(times, told[0]) / 1e9,
        "acknowledged": len(acks),
        "twice": len(there) - len(set(there)),
    }


def longest_gap(times: Sequence[int], since: int) -> int:
    """The longest time without an acknowledgement that ended after `since`."""
    return max((end - begin for begin, end in pairwise(sorted(times)) if end > since), default=0)


def _read(bootstrap: str, topic: str) -> list[int]:
    """The numbers of all records."""
    end = throughput.end_offset(bootstrap, topic, 1)
    consumer = Consumer(settings.consumer(bootstrap))
    consumer.assign([TopicPartition(topic, 0, 0)])
    numbers: list[int] = []
    deadline = time.monotonic() + _PATIENCE
    while len(numbers) < end:
        for message in consumer.consume(_AT_ONCE, timeout=1.0):
            problem = message.error()
            if problem is not None:
                raise RuntimeError(problem.str())
            numbers.append(int.from_bytes(message.value() or b"", "big"))
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(numbers)} of {end} records came")
    consumer.close()
    return numbers
