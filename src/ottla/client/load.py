"""Load: records as fast as they go, or at a rate, and how long that took.

    report = produce_load("127.0.0.1:9092", "orders", 1_000_000, letters(100))
    print(report.total.rate, report.total.percentiles)

Behind kafka-producer-perf-test and its relatives and behind `ottla perf`. These talk to librdkafka
without the typed face between, as a future or a record object for each message would be measured
too. A record's latency is librdkafka's own: from `produce` until the broker's acknowledgement.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka as rd

from ottla.client.errors import translate, translate_exception, translated
from ottla.client.interrupts import Interrupts
from ottla.client.settings import LOGGER
from ottla.errors import ErrorCode, KafkaError

_SAMPLES = 500_000  # latencies that are kept; with more records, every n-th
_SERVE_EVERY = 64  # records between two looks at the delivery reports
_FETCHED = 10_000  # records taken from librdkafka at once
_SLICE = 0.1  # seconds: the longest wait that Ctrl-C has to sit out
_SEED = 0  # the same records in every run

_MOST_FAILURES = 20

Payloads = Iterator[bytes]


# -- what is sent


def letters(size: int) -> Payloads:
    """Values of `size` random capital letters, as Kafka's own tool sends."""
    generator = random.Random(_SEED)
    pool = bytes(generator.choices(range(65, 91), k=size + 65_536))
    starts = [generator.randrange(65_536) for _ in range(4096)]
    while True:
        for start in starts:
            yield pool[start : start + size]


def counting() -> Payloads:
    """0, 1, 2 …"""
    number = 0
    while True:
        yield b"%d" % number
        number += 1


def picked(values: list[bytes]) -> Payloads:
    """One of these at random, each time."""
    generator = random.Random(_SEED)
    while True:
        yield generator.choice(values)


# -- what is measured


@dataclass(frozen=True, slots=True)
class Window:
    """Some records: how many, how large, in what time; latencies in milliseconds."""

    records: int
    bytes: int
    seconds: float
    mean: float
    longest: float
    percentiles: tuple[float, ...] = ()  # the 50th, 95th, 99th and 99.9th, of the whole only

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def megabytes(self) -> float:
        """Megabytes (of 1,048,576) a second."""
        return self.bytes / self.seconds / 1048576 if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a produced load."""

    total: Window
    steady: Window | None  # without the first records, if some were to be left out
    failed: int
    first_failure: KafkaError | None
    statistics: Mapping[str, Any]
    stopped: bool = False  # by Ctrl-C, before all were sent
    abandoned: int = 0  # by a second Ctrl-C: neither acknowledged nor refused


class Tally:
    """Counts deliveries; a window ends when `interval` seconds have passed."""

    def __init__(
        self, expected: int, interval: float, report: Callable[[Window], None] | None
    ) -> None:
        self._interval = interval
        self.report = report
        self._every = max(1, expected // min(max(expected, 1), _SAMPLES))
        self._latencies: list[float] = []
        self._begun = self._window_begun = time.monotonic()
        self.records = self._window_records = 0
        self.bytes = self._window_bytes = 0
        self._sum = self._window_sum = 0.0
        self._longest = self._window_longest = 0.0

    def add(self, latency: float, size: int) -> None:
        """One record, acknowledged after `latency` milliseconds."""
        if self.records % self._every == 0:
            self._latencies.append(latency)
        self.records += 1
        self.bytes += size
        self._sum += latency
        self._window_sum += latency
        self._longest = max(self._longest, latency)
        self._window_longest = max(self._window_longest, latency)

    def look(self) -> None:
        """End the window if it is time to."""
        now = time.monotonic()
        elapsed = now - self._window_begun
        if elapsed < self._interval:
            return
        count = self.records - self._window_records
        if count and self.report is not None:
            self.report(
                Window(
                    count,
                    self.bytes - self._window_bytes,
                    elapsed,
                    self._window_sum / count,
                    self._window_longest,
                )
            )
        self._window_begun = now
        self._window_records, self._window_bytes = self.records, self.bytes
        self._window_sum = self._window_longest = 0.0

    def total(self) -> Window:
        """All of it."""
        return Window(
            self.records,
            self.bytes,
            time.monotonic() - self._begun,
            self._sum / self.records if self.records else 0.0,
            self._longest,
            percentiles(self._latencies),
        )


def percentiles(latencies: list[float]) -> tuple[float, ...]:
    """The 50th, 95th, 99th and 99.9th."""
    ordered = sorted(latencies)
    if not ordered:
        return (0.0, 0.0, 0.0, 0.0)
    last = len(ordered) - 1
    return tuple(ordered[min(int(part * len(ordered)), last)] for part in (0.5, 0.95, 0.99, 0.999))


class Pace:
    """Holds a sender back to `rate` records a second; below 0 it does not."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begun = time.monotonic()

    def ahead(self, sent: int) -> float:
        """Seconds to wait before the next record."""
        if self._rate <= 0:
            return 0.0
        return self._begun + sent / self._rate - time.monotonic()


# -- the loads


def produce_load(  # noqa: C901, PLR0912, PLR0913, PLR0915 - librdkafka's callbacks and the loop that feeds it, over one set of counters
    bootstrap: str,
    topic: str,
    records: int,
    payloads: Payloads,
    *,
    rate: float = -1,
    warmup: int = 0,
    interval: float = 5.0,
    on_window: Callable[[Window], None] | None = None,
    on_steady: Callable[[], None] | None = None,
    transaction: float | None = None,
    config: Mapping[str, Any] | None = None,
) -> Sent:
    """Send records and wait until all of them are acknowledged or have failed.

    `warmup` leaves that many out of `steady`, whose first window is announced by `on_steady`;
    `transaction` commits every so many seconds (`transactional.id` is in `config` then).
    Ctrl-C ends the sending, not the counting; a second one gives up what is under way.
    """
    statistics: dict[str, Any] = {}
    settings: dict[str, Any] = {"queue.buffering.max.messages": 1_000_000, "linger.ms": 5}
    if transaction is None:
        settings["message.timeout.ms"] = 120_000  # Java's; librdkafka's would be five minutes
    settings |= {**(config or {}), "bootstrap.servers": bootstrap}
    if settings.get("statistics.interval.ms"):
        settings["stats_cb"] = lambda text: statistics.update(json.loads(text))
    try:
        producer = rd.Producer(settings, logger=LOGGER)
    except rd.KafkaException as exception:
        raise ValueError(translate_exception(exception).message) from None
    total = Tally(records, interval, on_window)
    steady: Tally | None = None
    failures: list[KafkaError] = []
    failed = 0
    told = False

    def steady_window(window: Window) -> None:
        nonlocal told
        if not told and on_steady is not None:
            on_steady()
        told = True
        if on_window is not None:
            on_window(window)

    def delivered(error: rd.KafkaError | None, message: rd.Message) -> None:
        nonlocal steady, failed
        if error is not None:
            failed += 1
            if len(failures) < _MOST_FAILURES:
                failures.append(translate(error))
            return
        latency, size = (message.latency() or 0.0) * 1000, len(message)
        total.add(latency, size)
        if steady is not None:
            steady.add(latency, size)
        elif warmup and total.records >= warmup:
            total.report = None
            steady = Tally(records - warmup, interval, steady_window)

    def serve(wait: float = 0.0) -> None:
        producer.poll(wait)
        total.look()
        if steady is not None:
            steady.look()

    interrupts = Interrupts()

    def offer(value: bytes) -> bool:
        while not interrupts.count:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                return True
            except BufferError:
                serve(0.01)
        return False

    pace = Pace(rate)
    sent = 0
    is_open = transaction is not None  # until the last record of a transaction is committed
    with interrupts:
        with translated():
            if transaction is not None:
                producer.init_transactions()
                producer.begin_transaction()
            committed = time.monotonic()
            for value in payloads:
                if sent == records or not offer(value):
                    break
                sent += 1
                if sent % _SERVE_EVERY == 0:
                    serve()
                while (early := pace.ahead(sent)) > 0 and not interrupts.count:
                    serve(min(early, 0.1))
                if transaction is not None and time.monotonic() - committed >= transaction:
                    producer.commit_transaction()
                    committed = time.monotonic()
                    is_open = sent < records
                    if is_open:
                        producer.begin_transaction()
        while len(producer) and interrupts.count < 2:
            serve(0.1)
        if is_open and interrupts.count < 2:
            with translated():
                producer.commit_transaction()
        if settings.get("statistics.interval.ms") and not statistics and not interrupts.count:
            producer.poll(int(settings["statistics.interval.ms"]) / 1000 + 0.2)
    return Sent(
        total.total(),
        None if steady is None else steady.total(),
        failed,
        failures[0] if failures else None,
        statistics,
        sent < records,
        len(producer),
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """What was read so far, and since the last report."""

    records: int
    bytes: int
    seconds: float
    joining: float  # seconds of that until there were partitions to read


@dataclass(frozen=True, slots=True)
class Consumed:
    """What became of a consumed load."""

    total: Taken
    enough: bool
    statistics: Mapping[str, Any]
    idle: float = 0.0  # seconds at the end in which nothing came
    stopped: bool = False  # by Ctrl-C


def consume_load(  # noqa: C901, PLR0912, PLR0915 - librdkafka's callbacks and the loop that polls it, over one set of counters
    bootstrap: str,
    topics: list[str],
    records: int,
    *,
    group: str | None = None,
    timeout: float = 10.0,
    interval: float = 5.0,
    on_window: Callable[[Taken, Taken], None] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Consumed:
    """Read until there were `records`, or none came for `timeout` seconds.

    With a group its members share the topics; without one every partition is read from its
    beginning. `on_window` is told of the whole, and of what came since it was last told.
    """
    statistics: dict[str, Any] = {}
    settings: dict[str, Any] = {
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": 1_000_000,
        "group.id": group or "ottla-perf",
        "enable.auto.commit": group is not None,
    }
    settings |= {**(config or {}), "bootstrap.servers": bootstrap}
    if settings.get("statistics.interval.ms"):
        settings["stats_cb"] = lambda text: statistics.update(json.loads(text))
    try:
        consumer = rd.Consumer(settings, logger=LOGGER)
    except rd.KafkaException as exception:
        raise ValueError(translate_exception(exception).message) from None
    begun = joining_since = time.monotonic()
    joining = window_joining = 0.0

    def assigned(_consumer: rd.Consumer, _partitions: list[rd.TopicPartition]) -> None:
        nonlocal joining, window_joining
        elapsed = time.monotonic() - joining_since
        joining += elapsed
        window_joining += elapsed

    def revoked(_consumer: rd.Consumer, _partitions: list[rd.TopicPartition]) -> None:
        nonlocal joining_since
        joining_since = time.monotonic()

    count = size = window_count = window_size = 0
    window_begun = last = begun
    with Interrupts() as interrupts:
        with translated():
            if group is None:
                consumer.assign(_beginnings(consumer, topics))
            else:
                consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked)
            while count < records and not interrupts.count:
                batch = consumer.consume(min(_FETCHED, records - count), 0.1)
                now = time.monotonic()
                for message in batch:
                    error = message.error()
                    if error is not None:
                        _complain(error)
                        continue
                    count += 1
                    size += len(message)
                    key = message.key()
                    if key is not None:
                        size += len(key)
                if batch:
                    last = now
                elif now - last > timeout:
                    break
                if now - window_begun >= interval:
                    if on_window is not None and count > window_count:
                        on_window(
                            Taken(count, size, now - begun, joining),
                            Taken(
                                count - window_count,
                                size - window_size,
                                now - window_begun,
                                window_joining,
                            ),
                        )
                    window_begun, window_count, window_size = now, count, size
                    window_joining = 0.0
        ended = time.monotonic()
        with translated():
            if settings.get("statistics.interval.ms") and not statistics and not interrupts.count:
                consumer.poll(int(settings["statistics.interval.ms"]) / 1000 + 0.2)
            consumer.close()
    return Consumed(
        Taken(count, size, ended - begun, joining),
        count >= records,
        statistics,
        ended - last,
        interrupts.count > 0 and count < records,
    )


def _beginnings(consumer: rd.Consumer, topics: list[str]) -> list[rd.TopicPartition]:
    found: list[rd.TopicPartition] = []
    for topic in topics:
        described = consumer.list_topics(topic, timeout=30).topics[topic]
        if described.error is not None:
            _complain(described.error, topic)
        found += [
            rd.TopicPartition(topic, number, rd.OFFSET_BEGINNING) for number in described.partitions
        ]
    return found


def _complain(error: rd.KafkaError, topic: str | None = None) -> None:
    """Raise what does not pass by itself."""
    passing = (
        rd.KafkaError._PARTITION_EOF,
        rd.KafkaError._TRANSPORT,
        rd.KafkaError._ALL_BROKERS_DOWN,
        rd.KafkaError._RESOLVE,
    )
    if error.code() in passing:
        return
    found = translate(error)
    if found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic is not None:
        raise KafkaError(found.code, f"there is no topic {topic!r}")
    raise found


def latency_load(  # noqa: PLR0913 - options of the measurement, by name
    bootstrap: str,
    topic: str,
    records: int,
    value: Callable[[int], bytes],
    *,
    key: Callable[[int], bytes] | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    acks: str = "all",
    timeout: float = 60.0,
    producer_config: Mapping[str, Any] | None = None,
    consumer_config: Mapping[str, Any] | None = None,
) -> Iterator[float]:
    """Send a record, wait for it at the other end, and only then send the next.

    Gives each one's time in milliseconds. Anybody else who writes to the topic is an error.
    Ctrl-C raises KeyboardInterrupt, as anywhere.
    """
    producer = rd.Producer(
        {
            "linger.ms": 0,
            **(producer_config or {}),
            "acks": acks,
            "bootstrap.servers": bootstrap,
        },
        logger=LOGGER,
    )
    consumer = rd.Consumer(
        {
            "fetch.wait.max.ms": 500,
            "group.id": "ottla-perf",
            "enable.auto.commit": False,
            **(consumer_config or {}),
            "bootstrap.servers": bootstrap,
        },
        logger=LOGGER,
    )
    interrupts = Interrupts()
    try:
        with interrupts, translated():
            consumer.assign(_ends(consumer, topic))
            for number in range(records):
                sent, name = value(number), None if key is None else key(number)
                begun = time.monotonic_ns()
                producer.produce(topic, sent, name, headers=list(headers))
                deadline = time.monotonic() + timeout
                while producer.flush(_SLICE):
                    interrupts.check()
                    if time.monotonic() >= deadline:
                        raise KafkaError(
                            ErrorCode.REQUEST_TIMED_OUT, f"no acknowledgement within {timeout:g} s"
                        )
                message = _next(consumer, timeout, interrupts)
                elapsed = time.monotonic_ns() - begun
                if message.value() != sent or message.key() != name:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD,
                        f"the record read is not the one sent; who else writes to {topic}?",
                    )
                yield elapsed / 1e6
    finally:
        consumer.close()


def _ends(consumer: rd.Consumer, topic: str) -> list[rd.TopicPartition]:
    places = _beginnings(consumer, [topic])
    for place in places:
        place.offset = -1  # ListOffsets' number for the end
    return consumer.offsets_for_times(places, timeout=30)


def _next(consumer: rd.Consumer, timeout: float, interrupts: Interrupts) -> rd.Message:
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        interrupts.check()
        message = consumer.poll(min(left, _SLICE))
        if message is None:
            continue
        error = message.error()
        if error is None:
            return message
        _complain(error)
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the record did not arrive within {timeout:g} s")
