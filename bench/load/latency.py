"""Records at a fixed rate: how long until the ack, and how long until a tailing consumer has them.

One process holds a producer and a consumer of the same partition, so one monotonic clock serves
both ends. Sending never waits for anything: a record whose turn has come is sent even when earlier
ones are still under way, so a stall of the broker shows in every record that it delays.
"""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.figures import percentile
from bench.load import settings

_PATIENCE = 60.0


def paced(bootstrap: str, topic: str, rate: int, size: int, acks: int = 1) -> dict[str, float]:  # noqa: C901, PLR0915 - three threads and a sender over one set of counters
    """Send at `rate` until told to end; percentiles, in ms, of what was sent in the open window.

    Prints `ready` once records flow. The first line of standard input opens the window that counts,
    the second closes it.
    """
    taken: list[tuple[int, int]] = []
    arrivals: list[tuple[int, int]] = []
    running = threading.Event()
    running.set()
    now = time.monotonic_ns
    padding = bytes(max(0, size - 8))

    def acknowledged(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(error.str())
        value = message.value()
        assert value is not None
        taken.append((int.from_bytes(value[:8], "big"), now()))

    producer = Producer(settings.prompt_producer(bootstrap, acks))
    consumer = Consumer(settings.consumer(bootstrap))
    marks = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_PATIENCE)
    assert marks is not None
    consumer.assign([TopicPartition(topic, 0, marks[1])])

    def tail() -> None:
        while True:
            message = consumer.poll(0.2)
            if message is not None:
                arrived = now()
                problem = message.error()
                if problem is not None:
                    raise RuntimeError(problem.str())
                value = message.value()
                assert value is not None
                arrivals.append((int.from_bytes(value[:8], "big"), arrived))
            elif not running.is_set() and len(arrivals) >= sent:
                return
            if not running.is_set() and time.monotonic() > give_up:
                return

    def collect_acks() -> None:
        while running.is_set():
            producer.poll(0.2)

    window: list[int] = []

    def listen() -> None:
        for _line in sys.stdin:
            window.append(now())
            if len(window) == 2:
                break
        running.clear()

    sent = 0
    give_up = float("inf")
    threads = [threading.Thread(target=work, daemon=True) for work in (tail, collect_acks, listen)]
    for thread in threads:
        thread.start()
    interval = 1.0 / rate
    turn = time.monotonic()
    announced = False
    while running.is_set():
        producer.produce(
            topic, now().to_bytes(8, "big") + padding, partition=0, on_delivery=acknowledged
        )
        sent += 1
        if not announced and sent > rate // 2 and arrivals and taken:
            print("ready", flush=True)
            announced = True
        turn += interval
        wait = turn - time.monotonic()
        if wait > 0:
            time.sleep(wait)
    left = producer.flush(_PATIENCE)
    give_up = time.monotonic() + _PATIENCE
    threads[0].join()
    consumer.close()
    if left or len(taken) != sent or len(arrivals) != sent:
        raise RuntimeError(f"{sent} sent, {len(taken)} acknowledged, {len(arrivals)} arrived")
    begin, end = window
    return {
        "records": sum(begin <= at < end for at, _ in arrivals),
        **_percentiles("ack", taken, begin, end),
        **_percentiles("end_to_end", arrivals, begin, end),
    }


def _percentiles(
    name: str, samples: list[tuple[int, int]], begin: int, end: int
) -> dict[str, float]:
    delays = sorted((then - at) / 1e6 for at, then in samples if begin <= at < end)
    return {
        f"{name}_p50": percentile(delays, 0.50),
        f"{name}_p99": percentile(delays, 0.99),
        f"{name}_p999": percentile(delays, 0.999),
        f"{name}_max": delays[-1],
    }
