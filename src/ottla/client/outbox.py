"""Outbox: librdkafka's producer, and who serves its delivery reports.

Both producers, blocking and asyncio, are made of it. librdkafka reports the fate of a record
only to whoever calls `poll`. A busy sender does that itself now and then: a second thread that
runs a callback per record would take the interpreter lock from the sender once per record, which
makes sending several times slower. But a future must settle even when nobody sends any more, so
a thread takes over as soon as senders are quiet for a millisecond. It sleeps while nothing is
under way: an idle producer costs nothing.

Nothing is lost silently. Every record that was accepted ends in exactly one report, delivered
or failed. `flush` waits for the reports, not for librdkafka's queue to be empty: the queue is
empty as soon as a report has been taken from it, which is before its callback has run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import confluent_kafka as rd

from ottla.client.contact import Contact
from ottla.client.errors import ClientError, translate, translate_exception
from ottla.client.forks import LEFT_BEHIND, keep_out_of_children
from ottla.client.interrupts import undisturbed
from ottla.client.lookout import Outside, StandStill
from ottla.client.records import Delivery, record_size
from ottla.client.settings import LOGGER, RdkafkaLog
from ottla.errors import ErrorCode, KafkaError

Sink = Callable[["Delivery | None", "KafkaError | None"], None]
"""Told the fate of one record: where it is stored, or why it is not. One of the two is None."""

# How long partition counts for a Python partitioner are believed before they are asked again;
# librdkafka refreshes its own in the background every five minutes.
_COUNT_LIFETIME = 60.0
# How long the exchange of a new idempotent producer with a broker nearby takes, amply.
_SETTLING = 0.015
# The longest single wait inside librdkafka.
_SLICE = 0.1
# A sender serves the reports once in so many records; the thread does it when fewer than that
# were sent in a lull.
_SERVE_EVERY = 32
_LULL = 0.001
# How long the thread waits for reports in one go; close() waits for the end of it.
_SHIFT = 0.02
# How long nobody reports anything, and librdkafka has nothing, before no report is expected.
_NEVER_OFFERED = 1.0


class Outbox:
    """Records on their way to brokers."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = {**config, "error_cb": self._note}
        try:
            self.producer = rd.Producer(self._config, logger=RdkafkaLog())
        except rd.KafkaException as exception:
            raise ValueError(translate_exception(exception).message) from None
        self.closed = False
        self.forked = False
        keep_out_of_children(self, "producer")
        self._contact = Contact(config)
        self._heard = False
        idempotent = bool(config.get("enable.idempotence"))
        self._topics: set[str] = set()
        self._still = StandStill(Outside(config))
        self._settled_at = time.monotonic() + _SETTLING if idempotent else None
        self._lock = threading.Lock()
        self._offered = 0
        self._settled = 0
        self._unobserved: list[KafkaError] = []
        self.failure: ClientError | None = None  # of the first record that was not delivered
        self._reporting: set[int] = set()  # threads that are inside somebody's callback
        self._counts: dict[str, tuple[int, float]] = {}
        self._stopping = False
        self._asleep = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Records accepted and not yet reported; the parent's are no business of a fork."""
        return 0 if self.forked else self._offered - self._settled

    # -- sending

    def offer(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: list[tuple[str, str | bytes | None]] | None,
        sink: Sink | None,
    ) -> bool:
        """Hand a record to librdkafka without waiting. False: its queue is full, try again.

        Without a sink a failure is kept for `take_unobserved`.
        """
        if self.closed:
            raise RuntimeError(LEFT_BEHIND if self.forked else "the producer is closed")
        if topic not in self._topics:
            self._topics.add(topic)
        report = self._report_unobserved if sink is None else partial(self._report, sink)
        with self._lock:
            self._offered += 1
        try:
            self.producer.produce(
                topic, value, key, partition, report, timestamp=timestamp, headers=headers
            )
        except Exception as exception:  # not Ctrl-C, which may come when librdkafka has the record
            with self._lock:
                self._offered -= 1
            if isinstance(exception, BufferError):
                return False
            if isinstance(exception, rd.KafkaException):
                raise translate_exception(exception) from None
            raise
        if self._asleep:
            self._wake.set()
        elif self._thread is None:
            self._start()
        if not self._offered % _SERVE_EVERY:
            self.serve(0)
        return True

    def settling(self) -> float:
        """Seconds to leave a new idempotent producer alone before it is given anything to do.

        It first asks for its producer id. Told of a topic meanwhile, librdkafka drops the
        bootstrap connection that the question was to go out on, and repeats the question half a
        second later; left alone for some milliseconds it has its id.
        """
        if self._settled_at is None:
            return 0.0
        left = self._settled_at - time.monotonic()
        if left <= 0:
            self._settled_at = None
        return max(0.0, left)

    def serve(self, timeout: float) -> None:
        """Wait for reports and pass them on; returns after the first ones."""
        try:
            undisturbed(self.producer.poll, timeout)
        except rd.KafkaException as exception:
            self._note_fatal(exception)

    def take_unobserved(self) -> list[KafkaError]:
        """The failures of records without a sink since the last call."""
        failures, self._unobserved = self._unobserved, []
        return failures

    def knows_partitions(self, topic: str) -> bool:
        """Whether `partition_count` can answer without asking."""
        known = self._counts.get(topic)
        return known is not None and known[1] > time.monotonic()

    def partition_count(self, topic: str, timeout: float) -> int:
        """How many partitions a topic has, asking a broker at most once a minute.

        A topic that does not exist is created by being asked for, where the broker allows that;
        the first answers then say that it has no leader yet.
        """
        if self.knows_partitions(topic):
            return self._counts[topic][0]
        time.sleep(self.settling())
        now = time.monotonic()
        deadline = now + timeout
        while True:
            try:
                answer = self.producer.list_topics(topic, timeout=max(_SLICE, deadline - now))
            except rd.KafkaException as exception:
                raise translate_exception(exception) from None
            described = answer.topics[topic]
            if described.error is None and described.partitions:
                count = len(described.partitions)
                self._counts[topic] = (count, time.monotonic() + _COUNT_LIFETIME)
                return count
            now = time.monotonic()
            error = ClientError(ErrorCode.LEADER_NOT_AVAILABLE, "it has no partition yet")
            if described.error is not None:
                error = translate(described.error)
            if now >= deadline or not error.code.retriable:
                raise ClientError(error.code, f"how many partitions has {topic!r}? {error.message}")
            time.sleep(_SLICE)

    def renew(self) -> None:
        """Go on with a new producer of librdkafka's; to be called when nothing is under way."""
        self.producer = rd.Producer(self._config, logger=RdkafkaLog())
        self._counts.clear()

    # -- ending

    def flush(self, timeout: float | None) -> int:
        """Send what lingers and wait for every report; how many are still out at the deadline."""
        if threading.get_ident() in self._reporting:
            raise RuntimeError("flush() or close() inside a delivery callback would never end")
        deadline = None if timeout is None else time.monotonic() + timeout
        counts, since = (0, 0), 0.0
        while len(self):
            left = _SLICE
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    break
            # librdkafka lets nothing linger while somebody is inside flush(). When its queue is
            # empty, another thread is running the last callbacks: give it a moment.
            try:
                waiting = undisturbed(self.producer.flush, left)
                if waiting or self._reporting or counts != (self._offered, self._settled):
                    counts, since = (self._offered, self._settled), time.monotonic()
                elif time.monotonic() - since >= _NEVER_OFFERED:
                    # Ctrl-C came between the counting of a record and librdkafka.
                    self._settled = self._offered
                if not waiting and len(self):
                    time.sleep(_LULL)
            except rd.KafkaException as exception:
                self._note_fatal(exception)
        return len(self)

    def close(self, timeout: float | None = None) -> int:
        """Flush and stop. What is still out at the deadline fails now; how many those were."""
        if self.closed:
            return 0
        abandoned = self.flush(timeout)
        self.closed = True
        if abandoned:
            self.producer.purge()
            self.flush(5.0)
        self._stopping = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        return abandoned

    def finish(self) -> None:
        """Close a producer that was forgotten; there is nobody to tell but the log."""
        self.close()
        if self.forked:
            return
        if failures := self.take_unobserved():
            LOGGER.error("%d records were not delivered; the first: %s", len(failures), failures[0])

    # -- reports

    def _report(self, sink: Sink, error: rd.KafkaError | None, message: rd.Message) -> None:
        thread = threading.get_ident()
        self._reporting.add(thread)
        try:
            if error is None:
                offset = message.offset()
                sink(
                    Delivery(
                        message.topic() or "",
                        message.partition() or 0,
                        offset if offset is not None and offset >= 0 else -1,
                        message.timestamp()[1],
                    ),
                    None,
                )
            else:
                sink(None, self._failed(error))
        except Exception:
            LOGGER.exception("a delivery callback failed")
        finally:
            self._reporting.discard(thread)
            with self._lock:
                self._settled += 1

    def _report_unobserved(self, error: rd.KafkaError | None, message: rd.Message) -> None:
        if error is not None:
            failure = self._failed(error)
            failure.record_size = record_size(message.key(), message.value(), message.headers())
            self._unobserved.append(failure)
        with self._lock:
            self._settled += 1

    def _failed(self, error: rd.KafkaError) -> ClientError:
        failure = translate(error)
        if self.failure is None:
            self.failure = failure
        return failure

    def _note(self, error: rd.KafkaError) -> None:
        """librdkafka's events that belong to no record; it goes on trying by itself."""
        LOGGER.debug("%s", error)
        if error.code() == rd.KafkaError._ALL_BROKERS_DOWN:
            self._contact.lost()

    def _note_fatal(self, exception: rd.KafkaException) -> None:
        """The client is of no further use. confluent_kafka raises that out of whichever call
        meets the event, once; the reports that follow tell every record."""
        LOGGER.debug("%s", exception)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="ottla-deliveries", daemon=True
                )
                self._thread.start()

    def _serve(self) -> None:
        while not self._stopping:
            if len(self):
                before = self._offered
                time.sleep(_LULL)
                if self._offered < before + _SERVE_EVERY:
                    self.serve(_SHIFT)
                if not self._heard and (self._settled or self._contact.waited):
                    self._heard = True
                    if not self._settled:
                        self._contact.lost()
                self._still.look(self._settled, self._topics)
                continue
            self._still.begin_anew()
            # Announce the nap before looking again: a sender that adds a record now sees it.
            self._wake.clear()
            self._asleep = True
            if not len(self) and not self._stopping:
                self._wake.wait(5.0)
                self.serve(0)  # librdkafka's log lines and errors, if any
            self._asleep = False
