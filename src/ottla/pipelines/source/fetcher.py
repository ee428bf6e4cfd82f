"""The batches of a range of offsets, from the leader of their partition.

`fetch` asks, in a thread of its own, for one stretch after the other and unpacks what comes, until
as much is waiting for the consumer as `prefetch_bytes` allows. Topics are named by their id where
the broker knows ids, so that records of another topic of the same name are never taken for ours.

A leader that moves, dies or is not elected yet is waited for, as long as `patience` allows. What
is not going to pass is judged (`loss`) and settled as the policy says:

- A log that starts behind our place has lost records: the reader goes on where it starts, or fails.
- A topic that is gone, or is another one now, and a log that ends before the place where this
  range was planned to end, have nothing more of this range. It ends here, or fails. Going on with
  a topic of the same name is a matter for the next plan, not for this one.

Since brokers learn news one after the other, the second kind must be so for a while before it is
believed.

Offsets without a record (compacted away, or markers of transactions) are passed over: a batch
says what its last offset is. An answer without any batch, although the log goes on, proves nothing
by itself. A follower that serves readers (KIP-392) may be behind, and is not asked again. The
leader's word counts only where compaction may have removed what there was: twice in a row, without
an error in between. Anywhere else records are missing, which is for `failOnDataLoss` to judge.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from ottla.client.retry import ABSENT, Backoff, passes
from ottla.client.router import Router, check
from ottla.client.topology import Leader
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_TOPIC_ID
from ottla.pipelines.outage import Outage
from ottla.pipelines.source import kernel
from ottla.pipelines.source.decoder import Piece, outline, unpack
from ottla.pipelines.source.loss import Cause, Loss, Observation, judge
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.task import FetchSettings
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

log = logging.getLogger(__name__)

_TELLING: Final = ABSENT | {ErrorCode.OFFSET_OUT_OF_RANGE}
_UNCLEAR: Final = ABSENT | {ErrorCode.UNKNOWN_SERVER_ERROR}
_CERTAIN_AFTER: Final = 2.0  # seconds for which a topic must be gone
_FIRST_GUESS: Final = 1024  # bytes of a record that nobody has seen yet
_LEAST: Final = 64 << 10
_MOST: Final = 255 << 20  # what a connection takes as one answer
_MOST_HOPS: Final = 4  # from broker to broker: to a new leader, from there to a follower


class Answer(NamedTuple):
    """What a broker says: batches, and up to which offset there may be any."""

    records: memoryview
    readable_to: int
    aborted: tuple[tuple[int, int], ...] = ()
    throttled: float = 0.0
    from_leader: bool = True


class Source(Protocol):
    """Where a reader gets its answers."""

    def fetch(self, position: int, size: int) -> Answer:
        """Batches from `position` on, about `size` bytes; KafkaError with the broker's reason."""

    def forget(self) -> None:
        """Look for the leader anew before the next fetch, and do not be sent to a follower."""

    def loss(self, position: int) -> Loss | None:
        """Why there is nothing to be had at `position`; None when there is."""

    def is_compacted(self) -> bool:
        """Whether the topic may have offsets without records anywhere."""

    def close(self) -> None:
        """Let go of connections; a fetch under way fails."""


def fetch(part: Range, settings: FetchSettings) -> Generator[Piece]:
    """The records of `part` in pieces, fetched ahead of the consumer."""
    source = LeaderSource(part, settings)
    stop = threading.Event()
    reader = Reader(part, settings, source, stop=stop)

    def enough() -> None:
        stop.set()
        source.close()

    return ahead(reader.pieces(), settings.prefetch_bytes, enough)


class Reader:
    """Goes through a range, whatever happens on the way."""

    def __init__(
        self,
        part: Range,
        settings: FetchSettings,
        source: Source,
        *,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._part = part
        self._settings = settings
        self._source = source
        self._stop = stop or threading.Event()
        self._clock = clock
        self._pause = pause or self._stop.wait

        self._position = part.start
        self._bytes_per_offset = float(_FIRST_GUESS)
        self._at_least = 0  # bytes to ask for, after an answer too small for a batch
        self._empty_answers = 0
        self._backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)
        self._failures = 0  # in a row
        self._outage = Outage(
            log,
            f"Partition {part.partition} of topic {part.topic}",
            settings.patience,
            clock=clock,
        )
        self._suspect_since: float | None = None
        self._short_since: float | None = None
        self._missing_since: float | None = None

    def pieces(self) -> Generator[Piece]:
        try:
            while self._position < self._part.end and not self._stop.is_set():
                answer = self._ask()
                if answer is None:
                    continue
                if answer.records:
                    yield from self._taken(answer)
                else:
                    self._nothing(answer)
        finally:
            self._source.close()

    # -- what came

    def _taken(self, answer: Answer) -> Iterator[Piece]:
        position = self._position
        table = outline(answer.records, self._part, position)
        if not len(table):
            # Not even one whole batch: brokers before Kafka 0.10.1 cut where they were told to.
            self._at_least = min(_MOST, 2 * max(len(answer.records), self._size()))
            if len(answer.records) >= _MOST:
                raise self._error(ErrorCode.MESSAGE_TOO_LARGE, "a batch is larger than an answer")
            return
        after = int(table[-1, kernel.LAST]) + 1
        if after <= position:
            raise self._error(ErrorCode.CORRUPT_MESSAGE, "the broker sends batches of the past")
        first = max(position, int(table[0, kernel.BASE]))
        self._bytes_per_offset = len(answer.records) / (after - first)
        self._at_least = self._empty_answers = 0
        self._short_since = self._missing_since = None
        # A log may start inside a batch: what is before our place in it was deleted.
        left = replace(self._part, start=position)
        yield from unpack(answer.records, table, answer.aborted, left, self._settings)
        self._position = min(after, self._part.end)

    def _nothing(self, answer: Answer) -> None:
        if answer.throttled:
            self._pause(answer.throttled)
            return
        if self._position < answer.readable_to:
            self._nothing_although(answer)
            return
        now = self._clock()
        if self._short_since is None:
            self._short_since = now
        waited = now - self._short_since
        if waited < self._settings.log_end_patience:
            # The broker has waited for records before it sent this; one that was told not to is
            # not asked much more often.
            self._pause(0.0 if self._settings.max_wait else self._settings.retry_backoff)
            return
        loss = self._judged(self._part.end)
        if loss is not None:
            self._settle(loss)
            return
        patience = self._settings.patience
        if patience is not None and waited >= patience:
            readable = f"only offsets below {answer.readable_to} can be read"
            raise self._error(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{readable}, not {self._part.end} as planned (for {patience:g} s)",
            )
        self._pause(self._settings.retry_backoff_max)

    def _nothing_although(self, answer: Answer) -> None:
        """There should be records at our place, and the answer has none."""
        if not answer.from_leader:
            self._source.forget()
            return
        self._empty_answers += 1
        if self._empty_answers < 2:
            return
        self._empty_answers = 0
        gap_end = min(answer.readable_to, self._part.end)
        try:
            compacted = self._source.is_compacted()
        except KafkaError as error:
            self._failed(error)
            return
        if compacted:
            self._position = gap_end
            return
        now = self._clock()
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since < self._settings.log_end_patience:
            self._source.forget()
            self._pause(self._settings.retry_backoff_max)
            return
        part = self._part
        evidence = f"the leader sends none, although its log goes on to {answer.readable_to}"
        self._settle(
            self._judged(self._position)
            or Loss(
                part.topic,
                part.partition,
                Cause.DELETED,
                self._position,
                gap_end,
                evidence,
                resume_skip=gap_end,
                resume_rewind=gap_end,
                topic_id=part.topic_id,
            )
        )

    def _size(self) -> int:
        expected = int((self._part.end - self._position) * self._bytes_per_offset * 1.1)
        limit = min(self._settings.max_partition_bytes, _MOST)
        return max(self._at_least, min(max(expected + _LEAST, _LEAST), limit))

    # -- what went wrong

    def _ask(self) -> Answer | None:
        """The next answer; None when it was none and there is another try, or an end."""
        try:
            answer = self._source.fetch(self._position, self._size())
        except KafkaError as error:
            if self._stop.is_set():
                return None
            self._failed(error)
            return None
        self._outage.over()
        self._suspect_since = None
        self._failures = 0
        return answer

    def _failed(self, error: KafkaError) -> None:
        self._empty_answers = 0
        if error.code in _TELLING:
            self._source.forget()
            loss = self._judged(self._position)
            if loss is not None and self._certain(loss):
                self._settle(loss)
                return
        elif not passes(error.code):
            raise self._error(error.code, error.message)
        self._source.forget()
        self._wait(error.code, error.message)

    def _judged(self, position: int) -> Loss | None:
        """What is lost; None when nothing is, or nobody can tell yet."""
        try:
            return self._source.loss(position)
        except KafkaError as error:
            # A topic may be deleted while one looks: the next look finds that it is not there.
            if not passes(error.code) and error.code not in _UNCLEAR:
                raise
            return None

    def _certain(self, loss: Loss) -> bool:
        if loss.resume_skip is not None and loss.cause in (Cause.AGED_OUT, Cause.DELETED):
            return True
        now = self._clock()
        if self._suspect_since is None:
            self._suspect_since = now
        patience = self._settings.log_end_patience
        return now - self._suspect_since >= min(_CERTAIN_AFTER, patience)

    def _settle(self, loss: Loss) -> None:
        resume = loss.resume(self._settings.loss.action(loss.cause))
        log.warning("%s Going on without them, as failOnDataLoss says.", loss.sentence())
        if loss.cause in (Cause.RECREATED, Cause.TRUNCATED) or resume is None:
            resume = self._part.end
        if resume <= self._position:
            raise self._error(ErrorCode.OFFSET_OUT_OF_RANGE, "the log has no such offset")
        self._position = min(resume, self._part.end)
        self._outage.over()
        self._suspect_since = None
        self._short_since = self._missing_since = None

    def _wait(self, code: ErrorCode, message: str | None) -> None:
        waited = self._outage.note(str(self._error(code, message)))
        patience = self._settings.patience
        if patience is not None and waited >= patience:
            raise self._error(
                code,
                f"{message or code.text} (for {patience:g} s, kafkaConsumer.pollTimeoutMs; "
                f"kafka.bootstrap.servers={self._settings.bootstrap})",
            )
        self._pause(self._backoff.pause(self._failures))
        self._failures += 1

    def _error(self, code: ErrorCode, message: str | None) -> KafkaError:
        return KafkaError(
            code,
            f"partition {self._part.partition} of topic {self._part.topic}, offset "
            f"{self._position}: {message or code.text}",
        )


class LeaderSource:
    """Who leads a partition, over the network."""

    def __init__(self, part: Range, settings: FetchSettings) -> None:
        self._part = part
        self._settings = settings
        self._router = Router(
            settings.bootstrap,
            timeout=settings.request_timeout + settings.max_wait,
            client_id=settings.client_id,
            by_id=(ApiKey.FETCH,),
        )
        self._follower: int | None = None  # to whom the leader sends us
        self._topic_id = part.topic_id
        # Where a follower is nearer (KIP-392) the leader sends us there, unless we do not say
        # where we are: after the first trouble with it we do not.
        self._rack = settings.rack

    def fetch(self, position: int, size: int) -> Answer:
        for _ in range(_MOST_HOPS):
            answer = self._fetch(position, size)
            if answer is not None:
                return answer
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "brokers send us to one another")

    def _fetch(self, position: int, size: int) -> Answer | None:
        """An answer; None if we are sent elsewhere, to a new leader (KIP-951) or a follower."""
        leader = self._find()
        node = leader.node if self._follower is None else self._follower
        wire = self._router.node(node)
        settings = self._settings
        wanted = FetchPartition(
            partition=self._part.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=position,
            partition_max_bytes=size,
        )
        answer = wire.ask(
            FetchRequest(
                max_wait_ms=int(settings.max_wait * 1000),
                min_bytes=settings.min_bytes,
                max_bytes=max(settings.max_bytes, size),
                isolation_level=1 if settings.read_committed else 0,
                topics=[
                    FetchTopic(topic=self._part.topic, topic_id=self._topic_id, partitions=[wanted])
                ],
                rack_id=self._rack,
            )
        )
        check(answer.error_code)
        [topic] = answer.responses
        [found] = topic.partitions
        hint = (self._part.topic_partition, found.current_leader)
        if found.error_code and self._router.learn_leaders([hint], answer.node_endpoints):
            self._follower = None
            return None
        check(found.error_code)
        if found.preferred_read_replica not in (-1, node) and not found.records:
            self._follower = found.preferred_read_replica
            return None
        readable_to = found.last_stable_offset if settings.read_committed else found.high_watermark
        return Answer(
            memoryview(found.records or b""),
            readable_to,
            tuple(
                (each.producer_id, each.first_offset) for each in found.aborted_transactions or ()
            ),
            answer.throttle_time_ms / 1000,
            from_leader=node == leader.node,
        )

    def forget(self) -> None:
        if self._follower is not None:
            self._rack = ""
        self._follower = None
        self._router.forget([self._part.topic_partition])

    def loss(self, position: int) -> Loss | None:
        return judge(self._observe(position))

    def is_compacted(self) -> bool:
        return "compact" in (self._observe(self._part.start).cleanup_policy or "")

    def _observe(self, position: int) -> Observation:
        from ottla.pipelines.cluster import Cluster

        settings = self._settings
        with Cluster(
            settings.bootstrap,
            timeout=settings.request_timeout,
            client_id=settings.client_id,
            stable=settings.read_committed,
        ) as cluster:
            return cluster.observe(self._part, position)

    def close(self) -> None:
        self._router.close()

    def _find(self) -> Leader:
        """Who leads the partition, as long as it is the topic's that we are to read."""
        leader = self._router.leader(self._part.topic_partition)
        found = self._router.topology.topic_id(self._part.topic)
        if self._topic_id == ZERO_TOPIC_ID:
            self._topic_id = found
        elif found not in (self._topic_id, ZERO_TOPIC_ID):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, "the topic was made anew")
        return leader


def ahead(pieces: Generator[Piece], limit: int, stop: Callable[[], None]) -> Generator[Piece]:
    """The same pieces, made by a thread that is at most `limit` bytes (or one piece) ahead.

    `stop` is called when nobody wants any more: it must make the thread's next step the last.
    """
    ready: deque[Piece | None] = deque()
    change = threading.Condition()
    waiting = 0
    unwanted = False
    failure: BaseException | None = None

    def has_room() -> bool:
        return unwanted or not ready or waiting < limit

    def work() -> None:
        nonlocal waiting, failure
        try:
            for piece in pieces:
                with change:
                    change.wait_for(has_room)
                    if unwanted:
                        return
                    ready.append(piece)
                    waiting += piece.size
                    change.notify_all()
        except BaseException as error:
            failure = error
        finally:
            pieces.close()
            with change:
                ready.append(None)
                change.notify_all()

    thread = threading.Thread(target=work, name="ottla-fetch", daemon=True)
    thread.start()
    try:
        while True:
            with change:
                change.wait_for(lambda: ready)
                piece = ready.popleft()
                if piece is None:
                    break
                waiting -= piece.size
                change.notify_all()
            yield piece
        if failure is not None:
            raise failure
    finally:
        with change:
            unwanted = True
            change.notify_all()
        stop()
