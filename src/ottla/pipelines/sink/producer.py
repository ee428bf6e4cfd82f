"""Batches to the leaders of their partitions: Produce, spoken by ourselves.

    producer = Producer(settings, "Spark partition 3")
    form = producer.begin(Format())   # how batches are to be made
    producer.send(batch)              # blocks only while too much is waiting
    producer.flush()                  # returns when everything is acknowledged, or raises
    producer.close()

One thread for each leader sends while the task's own thread makes the next batches. A request
carries the oldest waiting batch of every partition that the leader has. A partition has one batch
on its way at a time: records keep their order through every retry, and the sequence numbers of an
idempotent producer are right by themselves.

What passes (a leader that moved, a broker that restarts) is tried again, with a growing pause and a
new look at the metadata, until `delivery.timeout.ms`; in a stream, where nobody has set that, for
as long as it takes; a broker that names the new leader in its answer (KIP-951) spares the pause and
the look. A task that waits says so in its log. A batch that is too large for the topic is split in
two as long as it has more than one record. Anything else fails the task: the error names the row
and repeats the broker's words.

Idempotent, as it is unless told otherwise: a repeated request that had arrived after all is
recognised by the broker, which answers with the first one's offset or DUPLICATE_SEQUENCE_NUMBER;
either is a success. Without it such a repetition is a second copy. A broker that does not remember
the producer (UNKNOWN_PRODUCER_ID, from those before 2.5 whose retention took all of its records) is
sent the batch as the first of a new epoch, as Java does. A sequence that the broker finds out of
order means that an acknowledged batch is lost: Java begins a new epoch there and goes on without
it; here the task fails, and Spark writes its rows again. Only where that batch was of an earlier
task, which had the same producer id (`identities`), a new epoch is all that can be done.

acks=0 is fire and forget: only a connection that breaks is noticed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ottla.client.retry import UNREACHABLE, Backoff, is_retriable, passes
from ottla.client.router import error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.outage import Outage
from ottla.pipelines.sink import identities
from ottla.pipelines.sink.encoder import Batch, Format, restamp, split
from ottla.pipelines.sink.failures import WriteFailed, row_failed
from ottla.pipelines.sink.leaders import NOBODY, Leaders
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from ottla.records.batch import read_header

if TYPE_CHECKING:
    from ottla.pipelines.sink.options import WriteOptions

LOGGER = logging.getLogger("ottla.pipelines")

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_STALE: Final = 300.0  # seconds a thread sleeps at most while there is nothing to do
_LAST_WORDS: Final = 5.0  # seconds to wait for a thread; one that is connecting cannot be woken


@dataclass(slots=True)
class _Lane:
    """What waits for one partition."""

    node: int
    """Whose thread takes care of it: the leader, or who led it last."""
    waiting: deque[Batch] = field(default_factory=deque)
    sending: bool = False
    lost: bool = False
    """Who leads it has to be asked before the next attempt."""
    looks: int = 0
    """How often that was asked in vain."""
    not_before: float = 0.0
    excused: float = 0.0
    """When the last trouble was seen that a stream waits out: time before that does not count."""
    trouble: KafkaError | None = None
    acknowledged: bool = False
    """Whether something of this task is."""
    bumps: int = 0
    """Epochs of the producer that were begun for this partition."""
    first: int = 0
    """The sequence number of the batch that the last of them began with."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What was acknowledged so far."""

    records: int
    bytes: int
    batches: int
    requests: int


class Producer:
    """Sends batches; `task` is how errors call the place where the rows come from."""

    def __init__(self, settings: WriteOptions, task: str) -> None:
        # for its whole life
        self._settings = settings
        self._task = task
        self.form = Format()
        self.identity: identities.Identity | None = None
        """Its producer id, and where the sequence numbers of its batches begin."""
        self._outage = Outage(LOGGER, f"The writing of {task}")
        self._leaders = Leaders(settings, self._outage)
        self._backoff = Backoff(settings.backoff, settings.longest_backoff)
        # what is on its way, guarded by `_changed`
        self._changed = threading.Condition()
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._buffered = 0
        self._totals = Totals(0, 0, 0, 0)
        self._failure: WriteFailed | None = None
        self._closed = False
        self._cluster: str | None = None
        self._done = False

    # -- the task's side

    def begin(self, form: Format) -> Format:
        """How batches are to be made: `form`, with a producer id when writes are idempotent."""
        if self._settings.idempotent:
            try:
                self._cluster = self._leaders.cluster_id()
                identity = identities.take(self._cluster)
                if identity is None:
                    identity = identities.Identity(*self._leaders.producer_id())
            except KafkaError as error:
                raise WriteFailed(
                    f"{self._task} was not written: {self._no_producer_id(error)}", error.code
                ) from None
            self.identity = identity
            form = replace(form, producer_id=identity.producer_id, producer_epoch=identity.epoch)
        self.form = form
        return form

    def _no_producer_id(self, error: KafkaError) -> str:
        if error.code in UNREACHABLE:
            return (
                f"no broker of {self._settings.bootstrap} could be asked after "
                f"{self._settings.max_block:g} s (kafka.max.block.ms): {error}"
            )
        return (
            f"no producer id was given out, {error}; to write without one, and with a repeated "
            f"request as a second copy, set delivery=at_least_once"
        )

    def partitions(self, topic: str) -> tuple[int, list[int]]:
        """How many partitions a topic has, and those with a leader; KafkaError if it has none."""
        return self._leaders.partitions(topic)

    def send(self, batch: Batch) -> None:
        """Hand over a batch; blocks while more than `buffer.memory` is on its way."""
        place = TopicPartition(batch.topic, batch.partition)
        with self._changed:
            while self._buffered >= self._settings.buffer_bytes and self._failure is None:
                self._changed.wait(_STALE)
            self._raise_failure()
            self._done = False
            batch.since = time.monotonic()
            lane = self._lanes.get(place)
            if lane is None:
                node = self._leaders.of(place)
                lane = self._lanes[place] = _Lane(node, lost=node == NOBODY)
            self._start(lane.node)
            lane.waiting.append(batch)
            self._buffered += len(batch.data)
            self._changed.notify_all()

    def flush(self) -> Totals:
        """Wait until everything is acknowledged; WriteFailed when something was not."""
        with self._changed:
            while self._buffered and self._failure is None:
                self._changed.wait(_STALE)
            self._raise_failure()
            self._done = True
            return self._totals

    def close(self) -> None:
        """End the threads; what is still on its way is given up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads.values())
        self._leaders.close()
        for thread in threads:
            thread.join(_LAST_WORDS)
        self._leaders.close()  # one of them may have connected in the last moment
        # A partition that had to begin a new epoch is not where the others are.
        if self._done and self.identity and not any(lane.bumps for lane in self._lanes.values()):
            identities.leave(self._cluster, self.identity)
            self._done = False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- a leader's thread

    def _find_leaders(self, lost: list[TopicPartition]) -> None:
        """Ask who leads these now, and give each to that leader's thread."""
        troubles = self._leaders.look_again(lost)
        with self._changed:
            for place in lost:
                lane = self._lanes[place]
                trouble, node = troubles.get(place[0]), self._leaders.of(place)
                if trouble is not None or node == NOBODY:
                    # Left with this thread, which asks again.
                    self._note(lane, trouble or KafkaError(ErrorCode.LEADER_NOT_AVAILABLE))
                    lane.not_before = time.monotonic() + self._backoff.pause(lane.looks)
                    lane.looks += 1
                else:
                    lane.node, lane.lost, lane.looks = node, False, 0
                    self._start(node)
            self._changed.notify_all()

    def _start(self, node: int) -> None:
        if node not in self._threads and not self._closed:
            thread = threading.Thread(
                target=self._serve, args=(node,), name=f"ottla-produce-{node}", daemon=True
            )
            self._threads[node] = thread
            thread.start()

    def _serve(self, node: int) -> None:
        try:
            while True:
                batches, lost = self._take(node)
                if lost:
                    self._find_leaders(lost)
                elif batches:
                    self._exchange(node, batches)
                else:
                    return
        except Exception as error:  # a bug of ours must not look like a broker that never answers
            with self._changed:
                self._fail(WriteFailed(f"{self._task} was not written: {error!r}"))

    def _take(self, node: int) -> tuple[list[Batch], list[TopicPartition]]:  # noqa: C901 - one decision under one lock
        """What this thread is to do next: send batches, or find leaders; nothing at the end."""
        with self._changed:
            while not self._closed and self._failure is None:
                now = time.monotonic()
                wake = now + _STALE
                size = 0
                batches: list[Batch] = []
                lost: list[TopicPartition] = []
                for place, lane in self._lanes.items():
                    if lane.node != node or lane.sending or not lane.waiting:
                        continue
                    batch = lane.waiting[0]
                    if self._time_is_up(batch, lane, now):
                        self._fail(self._too_late(batch, lane))
                        return [], []
                    if lane.not_before > now:
                        wake = min(wake, lane.not_before)
                    elif lane.lost:
                        lost.append(place)
                    elif not batches or size + len(batch.data) <= self._settings.request_bytes:
                        batches.append(batch)
                        size += len(batch.data)
                if lost:
                    return [], lost
                if batches:
                    for batch in batches:
                        place = TopicPartition(batch.topic, batch.partition)
                        # To the end of the line: a request has no room for all of them.
                        lane = self._lanes[place] = self._lanes.pop(place)
                        lane.waiting.popleft()
                        lane.sending = True
                        if lane.bumps:
                            self._in_last_epoch(batch, lane)
                    return batches, []
                self._changed.wait(wake - now)
        return [], []

    def _exchange(self, node: int, batches: list[Batch]) -> None:
        request = _request(batches, self._settings)
        try:
            wire = self._leaders.router.node(node)
            moved: set[TopicPartition] = set()
            if self._settings.acks == 0:
                wire.tell(request)
                answers = {}
            else:
                answer = wire.ask(request)
                moved = self._leaders.learn(answer)
                answers = {
                    (topic.name, partition.index): partition
                    for topic in answer.responses
                    for partition in topic.partition_responses
                }
        except KafkaError as error:
            with self._changed:
                self._totals = replace(self._totals, requests=self._totals.requests + 1)
                for batch in batches:
                    if is_retriable(error.code):
                        self._again(batch, error)
                    else:
                        self._fail(self._rows_failed(batch, str(error), error.code))
                self._changed.notify_all()
            return
        with self._changed:
            self._totals = replace(self._totals, requests=self._totals.requests + 1)
            for batch in batches:
                self._settle(batch, answers.get((batch.topic, batch.partition)))
            for place in moved:
                lane = self._lanes[place]
                if lane.lost:
                    lane.node, lane.lost, lane.not_before = self._leaders.of(place), False, 0.0
                    self._start(lane.node)
            self._changed.notify_all()

    # -- what became of a batch; the caller holds `_changed`

    def _settle(self, batch: Batch, answer: PartitionProduceResponse | None) -> None:
        lane = self._lanes[TopicPartition(batch.topic, batch.partition)]
        if answer is None and self._settings.acks != 0:
            self._again(batch, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "left out of the answer"))
            return
        code = ErrorCode.NONE if answer is None else error_code(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            lane.sending = False
            lane.trouble = None
            if self._outage.lasts and not any(each.trouble for each in self._lanes.values()):
                self._outage.over()
            lane.acknowledged = True
            self._buffered -= len(batch.data)
            self._totals = _with(self._totals, batch)
        elif code in _TOO_LARGE and len(batch) > 1:
            lane.sending = False
            first, second = split(batch, self.form)
            lane.waiting.extendleft((second, first))
            self._buffered += len(first.data) + len(second.data) - len(batch.data)
        elif self._is_forgotten(code, batch, lane):
            assert answer is not None
            lane.first = batch.sequence
            lane.bumps += 1
            self._again(batch, KafkaError(code, answer.error_message))
        elif code.retriable:
            assert answer is not None
            self._again(batch, KafkaError(code, answer.error_message))
        else:
            assert answer is not None
            self._fail(self._refused(batch, code, answer))

    def _is_forgotten(self, code: ErrorCode, batch: Batch, lane: _Lane) -> bool:
        """Whether the broker does not remember what this batch follows, all of it settled."""
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return batch.sequence > 0 and not lane.acknowledged and not lane.bumps
        return code is ErrorCode.UNKNOWN_PRODUCER_ID and self.form.producer_id >= 0

    def _in_last_epoch(self, batch: Batch, lane: _Lane) -> None:
        epoch = self.form.producer_epoch + lane.bumps
        if read_header(batch.data).producer_epoch != epoch:
            restamp(batch, epoch, batch.sequence - lane.first)

    def _again(self, batch: Batch, trouble: KafkaError) -> None:
        lane = self._lanes[TopicPartition(batch.topic, batch.partition)]
        lane.sending = False
        lane.lost = True
        self._note(lane, trouble)
        lane.not_before = time.monotonic() + self._backoff.pause(batch.attempts)
        batch.attempts += 1
        lane.waiting.appendleft(batch)
        if batch.attempts > self._settings.retries:
            self._fail(self._too_late(batch, lane))

    def _time_is_up(self, batch: Batch, lane: _Lane, now: float) -> bool:
        since = batch.since
        if self._settings.endless_delivery:
            if lane.trouble is None or passes(lane.trouble.code):
                return False
            since = max(since, lane.excused)
        return now >= since + self._settings.delivery_timeout

    def _note(self, lane: _Lane, trouble: KafkaError) -> None:
        lane.trouble = trouble
        self._outage.note(str(trouble))
        if passes(trouble.code):
            lane.excused = time.monotonic()

    def _fail(self, failure: WriteFailed) -> None:
        if self._failure is None:
            self._failure = failure
        self._changed.notify_all()

    def _too_late(self, batch: Batch, lane: _Lane) -> WriteFailed:
        trouble = lane.trouble or KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        waited = time.monotonic() - batch.since
        hint = ""
        if (
            trouble.code is ErrorCode.NETWORK_EXCEPTION
            and len(batch.data) > self._settings.request_bytes
        ):
            hint = (
                f"; the batch has {len(batch.data)} bytes, and a broker hangs up on a request "
                "above its socket.request.max.bytes"
            )
        return self._rows_failed(
            batch,
            f"not acknowledged after {waited:.1f} s and {batch.attempts} attempts"
            f" (kafka.delivery.timeout.ms, kafka.retries), at last: {trouble}{hint}",
            trouble.code,
        )

    def _refused(
        self, batch: Batch, code: ErrorCode, answer: PartitionProduceResponse
    ) -> WriteFailed:
        message = answer.error_message or ""
        if answer.record_errors:
            blamed = answer.record_errors[0]
            reason = blamed.batch_index_error_message or message
            at = min(max(blamed.batch_index, 0), len(batch) - 1)
            row = int(batch.rows[at])
            return row_failed(self._task, row, _to(batch, code, reason), code)
        if code in _TOO_LARGE:
            message = message or (
                f"the record alone makes a batch of {len(batch.data)} bytes, more than the topic's "
                f"max.message.bytes"
            )
        return self._rows_failed(batch, _to(batch, code, message), code)

    def _rows_failed(self, batch: Batch, reason: str, code: ErrorCode) -> WriteFailed:
        first, last = int(batch.rows.min()), int(batch.rows.max())
        if first == last:
            return row_failed(self._task, first, reason, code)
        return WriteFailed(
            f"{len(batch)} rows between {first} and {last} (counted from 0) of {self._task} were "
            f"not written: {reason}",
            code,
            first,
        )


def _to(batch: Batch, code: ErrorCode, message: str) -> str:
    reason = f"{code.name}: {message}" if message else code.name
    return f"{batch.topic}-{batch.partition} refused it with {reason}"


def _with(totals: Totals, batch: Batch) -> Totals:
    return replace(
        totals,
        records=totals.records + len(batch),
        bytes=totals.bytes + len(batch.data),
        batches=totals.batches + 1,
    )


def _request(batches: list[Batch], settings: WriteOptions) -> ProduceRequest:
    topics: defaultdict[str, list[PartitionProduceData]] = defaultdict(list)
    for batch in batches:
        topics[batch.topic].append(
            PartitionProduceData(index=batch.partition, records=memoryview(batch.data))
        )
    return ProduceRequest(
        transactional_id=None,
        acks=settings.acks,
        timeout_ms=int(settings.request_timeout * 1000),
        topic_data=[
            TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
        ],
    )
