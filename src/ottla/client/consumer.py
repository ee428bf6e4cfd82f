"""Consumer: records out of topics.

    with Consumer("127.0.0.1:9092", value=ottla.JSON) as consumer:
        consumer.assign("orders", "earliest")
        for record in consumer:
            print(record.offset, record.value)

Two ways to say what is read. `assign` names partitions and where to start; nothing is shared
and nothing is remembered. `subscribe` joins the group given as `group=`, whose members share the
partitions, and commits offsets. A record counts as processed when the next one is asked for, when
the `with` block is left without an exception, or on `commit`; never before. A consumer that dies,
or whose `with` block is left by an exception, reads again what it had not finished.

A record that the deserializer refuses stops the consumer, every time, until somebody decides what
becomes of it: `on_error="skip"`, or a function that gets the stored record:

    Consumer(value=ottla.JSON, on_error=lambda record, error: dead.send("dead", record.value))

A consumer belongs to one thread at a time.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from operator import methodcaller
from types import TracebackType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import confluent_kafka as rd

from ottla.client import positions
from ottla.client.errors import (
    ClientError,
    DamagedRecordsError,
    Part,
    RecordDecodeError,
    translate,
    translate_exception,
    translated,
)
from ottla.client.inbox import Inbox
from ottla.client.lookout import Outside
from ottla.client.options import Option, documented
from ottla.client.positions import Position, check_offset, check_partition, check_position
from ottla.client.records import Record, TimestampType
from ottla.client.serializers import Deserializer, decoder
from ottla.client.settings import (
    LOGGER,
    STATISTICS_DOC,
    StatisticsCallback,
    bootstrap_servers,
    check_options,
    librdkafka_config,
    statistics,
    timestamp_ms,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Partitions = str | Iterable["TopicPartition | tuple[str, int]"]
"""A topic's name for all of its partitions, or (topic, partition) pairs."""

RebalanceCallback = Callable[[tuple[TopicPartition, ...]], Any]

DecodeErrorHandler = Callable[["Record[bytes, bytes]", RecordDecodeError], Any]
"""Called with a record that cannot be decoded, as it is stored, and why. When it returns the
consumer goes on behind the record; when it raises, the consumer stays. A future that it returns,
such as that of a record sent to another topic, is waited for first."""

# librdkafka demands a group even of a consumer that joins none.
# What librdkafka and brokers say of a partition without a leader.
_NOBODY_LEADS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)

NO_GROUP = "ottla-no-group"

# `message.headers()`, after which the interpreter looks whether it has failed: where a function has
# called a method often it does so no more, and the binding returns something even when it fails.
_headers_of = methodcaller("headers")
_UNREADABLE: Any = []  # in place of headers

_TIMESTAMP_TYPES: dict[int, TimestampType] = {
    rd.TIMESTAMP_NOT_AVAILABLE: "none",
    rd.TIMESTAMP_CREATE_TIME: "create",
    rd.TIMESTAMP_LOG_APPEND_TIME: "append",
}

_RESERVED = {
    "auto.offset.reset": "use reset=",
    "bootstrap.servers": "use bootstrap=",
    "enable.auto.commit": "use auto_commit=",
    "enable.auto.offset.store": "offsets are stored as records are processed; use auto_commit=",
    "enable.partition.eof": "use records(until_end=True)",
    "error_cb": "errors are raised by the method that waits",
    "group.id": "use group=",
    "isolation.level": "use read_uncommitted=",
    "logger": "librdkafka's lines go to the logger 'ottla.client'",
    "stats_cb": "use on_statistics=",
}


class ConsumerOptions(TypedDict, total=False):
    """What a consumer may be told besides brokers and deserializers, all of it optional."""

    group: Annotated[
        str,
        Option("None", "The group that `subscribe` joins and that offsets are committed for."),
    ]
    reset: Annotated[
        Literal["earliest", "latest", "error"],
        Option(
            '"latest"',
            "Where to go on when an offset is not in the log, or the group has none yet.",
        ),
    ]
    auto_commit: Annotated[
        bool,
        Option("True", "With a group: commit processed records every five seconds and on close."),
    ]
    on_error: Annotated[
        Literal["raise", "skip"] | DecodeErrorHandler,
        Option(
            '"raise"',
            'What becomes of a record that cannot be decoded. "raise" raises RecordDecodeError and '
            'stays at the record; "skip" logs it and goes on; a function is called with the record '
            "as it is stored and the error, and when it returns, and a future that it returns is "
            "settled, the consumer goes on; when either fails it stays. Damaged "
            'records are left behind only with "skip", and raise DamagedRecordsError otherwise.',
        ),
    ]
    read_uncommitted: Annotated[
        bool, Option("False", "Also give records of transactions that are open or aborted.")
    ]
    timeout: Annotated[float, Option("30.0", "Seconds that a question to a broker may take.")]
    on_statistics: Annotated[StatisticsCallback, Option("None", STATISTICS_DOC)]
    client_id: Annotated[str, Option('"ottla"', "The name that brokers see in their logs.")]
    config: Annotated[
        Mapping[str, Any], Option("{}", "librdkafka's own properties, over all of the above.")
    ]


@documented(ConsumerOptions)
class Consumer(Generic[K, V]):
    """Reads records; not for several threads at once.

    bootstrap   brokers to start from, "host:port,…"; else OTTLA_BOOTSTRAP, else 127.0.0.1:9092
    key, value  a Serde or a function from bytes; without one, bytes are given
    """

    @overload
    def __init__(
        self: Consumer[bytes, bytes],
        bootstrap: str | Iterable[str] | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[bytes, V],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        value: Deserializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K, bytes],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        key: Deserializer[K],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K, V],
        bootstrap: str | Iterable[str] | None = ...,
        *,
        key: Deserializer[K],
        value: Deserializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        key: Deserializer[K] | None = None,
        value: Deserializer[V] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        check_options("a consumer", options, ConsumerOptions)
        reset = options.get("reset", "latest")
        if reset not in ("earliest", "latest", "error"):
            raise ValueError(f'reset is "earliest", "latest" or "error", not {reset!r}')
        self._on_error = _check_on_error(options.get("on_error", "raise"))
        self._decode_key = decoder("key", key)
        self._decode_value = decoder("value", value)
        self._group = options.get("group")
        self._timeout = options.get("timeout", 30.0)
        own: dict[str, object] = {
            "auto.offset.reset": reset,
            # As Java's client: damage on a disk or on the way is noticed, not handed out.
            "check.crcs": True,
            "bootstrap.servers": bootstrap_servers(bootstrap, "Consumer"),
            "client.id": options.get("client_id", "ottla"),
            "enable.auto.commit": self._group is not None and options.get("auto_commit", True),
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # A queue that is full is looked at again after this long. librdkafka's own 1 s is
            # longer than it takes to empty the queue, and the reader would run dry.
            "fetch.queue.backoff.ms": 5,
            # How long a broker holds a fetch that finds nothing. A partition that is added
            # meanwhile waits for it, so librdkafka's 500 ms can delay the first record by that.
            "fetch.wait.max.ms": 100,
            "group.id": self._group or NO_GROUP,
            "isolation.level": "read_uncommitted"
            if options.get("read_uncommitted")
            else "read_committed",
            **statistics(options.get("on_statistics")),
        }
        config = librdkafka_config(own, options.get("config"), _RESERVED)
        self._outside = Outside(config)
        self._inbox = Inbox(config, stores_offsets=self._group is not None, outside=self._outside)
        self._leaderless: list[TopicPartition] = []

    @property
    def _client(self) -> rd.Consumer:
        return self._inbox.client

    @property
    def group(self) -> str | None:
        """The group that offsets are committed for."""
        return self._group

    @property
    def joining(self) -> bool:
        """Whether the group has not given us any partitions yet."""
        return self._inbox.joining

    # -- what to read

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """All partitions of a topic; KafkaError when there is no such topic."""

        def look(timeout: float) -> Any:
            with translated():
                return self._client.list_topics(topic, timeout=timeout).topics[topic]

        described = self._ask(look)
        if described.error is not None:
            error = translate(described.error)
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise ClientError(error.code, f"there is no topic {topic!r}")
            raise error
        found = tuple(TopicPartition(topic, number) for number in sorted(described.partitions))
        self._leaderless = [tp for tp in found if described.partitions[tp.partition].leader < 0]
        return found

    def assign(
        self,
        partitions: Partitions | Mapping[TopicPartition, Position],
        start: Position = "latest",
    ) -> tuple[TopicPartition, ...]:
        """Read these partitions from `start` on, instead of those assigned before.

        `partitions` is a topic's name (all of its partitions), (topic, partition) pairs, or a
        mapping from such pairs to a start for each. "latest" is the end at this moment: what is
        written after this call returns is read.
        """
        offsets = self._starts(partitions, start)
        with translated():
            self._client.assign(
                [rd.TopicPartition(tp.topic, tp.partition, at) for tp, at in offsets.items()]
            )
        self._inbox.forget()
        self._inbox.assigned = not self._inbox.subscribed
        self._inbox.given.update(offsets)
        self._say_offline()
        return tuple(offsets)

    def incremental_assign(
        self,
        partitions: Partitions | Mapping[TopicPartition, Position],
        start: Position = "latest",
    ) -> tuple[TopicPartition, ...]:
        """Read these partitions as well; those assigned before go on undisturbed."""
        offsets = self._starts(partitions, start)
        known = [tp for tp in offsets if tp in self.assignment()]
        if known:
            raise ValueError(f"{known[0]} is assigned already; seek() moves within it")
        with translated():
            self._client.incremental_assign(
                [rd.TopicPartition(tp.topic, tp.partition, at) for tp, at in offsets.items()]
            )
        self._inbox.assigned = not self._inbox.subscribed
        self._inbox.given.update(offsets)
        return tuple(offsets)

    def incremental_unassign(self, partitions: Partitions) -> None:
        """Stop reading these partitions; the others go on."""
        chosen = self._expand(partitions)
        missing = [tp for tp in chosen if tp not in self.assignment()]
        if missing:
            raise ValueError(f"{missing[0]} is not assigned")
        with translated():
            self._client.incremental_unassign([rd.TopicPartition(*tp) for tp in chosen])
        self._inbox.unpause(chosen)
        self._inbox.forget(chosen)

    def _starts(
        self, partitions: Partitions | Mapping[TopicPartition, Position], start: Position
    ) -> dict[TopicPartition, int]:
        wanted: dict[TopicPartition, Position]
        if isinstance(partitions, Mapping):
            wanted = {check_partition(tp): check_position(at) for tp, at in partitions.items()}
        else:
            wanted = dict.fromkeys(self._expand(partitions), check_position(start))
        return self._resolve(wanted)

    def unassign(self) -> None:
        """Stop reading; the consumer can be assigned or subscribed anew."""
        with translated():
            self._client.unassign()
        self._inbox.assigned = False
        self._inbox.forget()

    def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group and read what it gives us of these topics ("^…" is a pattern).

        The callbacks are told, from inside the method that waits for records, of partitions that
        were gained, that are about to be given up, and that were lost: another member may have
        them already, so nothing can be committed for them any more. What was processed is
        committed before partitions are given up; with `auto_commit=False`, `commit()` in
        `on_revoke` does that. Without `on_lost`, `on_revoke` is told of both.

        Called again it changes the topics: what is read goes on until the group takes it away.
        Callbacks of an `AsyncConsumer` may be coroutines, which are waited for.
        """
        self._need_group("subscribe")
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise ValueError("subscribe() needs at least one topic")

        def gained(_client: rd.Consumer, partitions: list[rd.TopicPartition]) -> None:
            self._inbox.joining = self._inbox.rejoining = False
            if on_assign is not None:
                _check_done(on_assign(_plain(partitions)), "on_assign=")

        # Nothing is stored below: what was processed has been, and a record that is only just being
        # handed out must go to the partition's next owner as well.

        def revoked(_client: rd.Consumer, partitions: list[rd.TopicPartition]) -> None:
            gone = _plain(partitions)
            with self._inbox.revoking(gone):
                if on_revoke is not None:
                    _check_done(on_revoke(gone), "on_revoke=")

        def lost(_client: rd.Consumer, partitions: list[rd.TopicPartition]) -> None:
            gone = _plain(partitions)
            self._inbox.lose(gone)
            callback = on_lost or on_revoke
            if callback is not None:
                _check_done(callback(gone), "on_lost=")

        with translated():
            if self._inbox.assigned:
                self.unassign()  # librdkafka would go on as if the group had given them
            self._inbox.join()
            self._client.subscribe(names, on_assign=gained, on_revoke=revoked, on_lost=lost)
        self._say_offline()

    def unsubscribe(self) -> None:
        """Leave the group; `on_revoke` is told of its partitions before this returns."""
        self._inbox.store()
        with translated():
            self._client.unsubscribe()
            self._inbox.leave()

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions being read."""
        with translated():
            return _plain(self._client.assignment())

    # -- where we are

    def seek(self, partition: TopicPartition | tuple[str, int], position: Position) -> int:
        """Go on reading a partition from elsewhere; returns the offset that is."""
        tp, position = check_partition(partition), check_position(position)
        if tp not in self.assignment():
            raise ValueError(f"{tp} is not assigned; seek() moves within what is being read")
        offset = self._resolve({tp: position})[tp]
        self._move(tp, offset)
        self._inbox.forget((tp,))
        self._inbox.given[tp] = offset
        return offset

    def _move(self, tp: TopicPartition, offset: int) -> None:
        if self._inbox.restart(tp, offset):
            return
        target = rd.TopicPartition(tp.topic, tp.partition, offset)
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._client.seek(target)
                break
            except rd.KafkaException as exception:
                error = translate_exception(exception)
                # An assignment takes effect in the background; until then there is nothing
                # that could be moved.
                if error.local != "_STATE" or time.monotonic() >= deadline:
                    raise error from None
                time.sleep(0.005)

    def position(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """The offset of the next record of a partition; None when nothing is known of it yet."""
        return self._inbox.given.get(check_partition(partition))

    def offsets(self, partitions: Partitions, at: Position) -> dict[TopicPartition, int]:
        """The offset that a position is in each partition, without moving there."""
        return self._resolve(dict.fromkeys(self._expand(partitions), check_position(at)))

    def offsets_for_times(
        self, moments: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, int | None]:
        """The first offset whose timestamp is not before a moment; None when there is none."""
        asked = {check_partition(tp): timestamp_ms(moment) for tp, moment in moments.items()}
        with self._explained(asked):
            found = self._ask(lambda timeout: positions.look_up(self._client, asked, timeout))
        return {tp: offset if offset >= 0 else None for tp, offset in found.items()}

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give no more records of these partitions until `resume`, or until they are given up."""
        chosen = [check_partition(tp) for tp in partitions]
        with translated():
            self._client.pause([rd.TopicPartition(*tp) for tp in chosen])
        self._inbox.hold(chosen)

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Go on with paused partitions."""
        chosen = [check_partition(tp) for tp in partitions]
        with translated():
            self._client.resume([rd.TopicPartition(*tp) for tp in chosen])
        self._inbox.release(chosen)

    # -- records

    def poll(self, timeout: float | None = 0.0) -> Record[K, V] | None:
        """The next record, waiting at most `timeout` seconds for it (None: for ever)."""
        self._inbox.store()
        return self._given(timeout)

    def take(self, most: int, timeout: float | None = 0.0) -> list[Record[K, V]]:
        """Up to `most` records: those that are there, after waiting for the first one.

        They count as processed together, when the next ones are asked for.
        """
        self._inbox.store()
        self._inbox.begin(several=True)
        try:
            return self._inbox.hand_over(self._take(most, timeout))
        except BaseException:
            self._inbox.take_back()
            raise

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Records without end."""
        return self.records()

    def records(
        self,
        *,
        limit: int | None = None,
        until_end: bool = False,
        idle: float | None = None,
    ) -> Iterator[Record[K, V]]:
        """Records until a reason to stop.

        limit      that many were given
        until_end  every assigned partition was read at least up to where it ended at the start
        idle       nothing came for that many seconds, once the group has given us partitions
        """
        finished = self.end_check() if until_end else None
        given = 0
        while not self._inbox.closed and (limit is None or given < limit):
            self._inbox.store()
            record = self._given(idle, finished, once_joined=True)
            if record is None:
                return
            yield record
            given += 1

    # -- offsets of a group

    def commit(
        self,
        what: Record[Any, Any] | Mapping[TopicPartition, int] | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Commit all that was given so far, one partition up to and including a record, or offsets
        of your own: for each partition the offset to go on at, one above the last one done. Called
        by `on_revoke` it commits what was processed, and no record that is still in hand. Without
        `wait` a commit that fails is a line of the log."""
        self._need_group("commit")
        if isinstance(what, Record):
            chosen = {TopicPartition(what.topic, what.partition): what.offset + 1}
        elif what is None:
            chosen = self._inbox.to_commit()
        else:
            chosen = {check_partition(tp): check_offset(at) for tp, at in what.items()}
        offsets = [rd.TopicPartition(*tp, offset) for tp, offset in chosen.items()]
        if not offsets:
            return
        with translated():
            if not wait:
                self._client.commit(offsets=offsets, asynchronous=True)
            else:
                for answer in self._client.commit(offsets=offsets, asynchronous=False):
                    if answer.error is not None:
                        raise translate(answer.error)
        self._inbox.keep(chosen, answered=wait)

    def committed(
        self, *partitions: TopicPartition | tuple[str, int]
    ) -> dict[TopicPartition, int | None]:
        """What the group has committed; None where it has nothing."""
        self._need_group("committed")
        asked = [rd.TopicPartition(*check_partition(tp)) for tp in partitions]

        def look(timeout: float) -> list[rd.TopicPartition]:
            with translated():
                return self._client.committed(asked, timeout=timeout)

        answers = self._ask(look)
        for answer in answers:
            if answer.error is not None:
                raise translate(answer.error)
        return {
            TopicPartition(answer.topic, answer.partition): answer.offset
            if answer.offset >= 0
            else None
            for answer in answers
        }

    def rewind(self) -> dict[TopicPartition, int]:
        """Read again what was given and is not committed, as after a transaction that was aborted;
        returns the offsets at which that begins. Partitions that were taken away meanwhile are left
        to their next owner. For consumers with `auto_commit=False`."""
        progress = self._inbox.by_hand("rewind()")
        first = {tp: at for tp, at in progress.first.items() if tp in self.assignment()}
        for tp, offset in first.items():
            self._move(tp, offset)
            self._inbox.forget((tp,))
            self._inbox.given[tp] = offset
        progress.settle()
        return first

    # -- the end

    def close(self) -> None:
        """Leave the group, committing what was processed, and let go of everything.

        The last record that was given counts as processed, unless an exception is being handled
        (a `finally:` that closes the consumer): then it comes again after the next start.
        """
        self._inbox.close(finished=sys.exception() is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inbox.close(finished=kind is None)

    def end_check(self) -> Callable[[], bool]:
        """A question for whoever calls `poll` or `take` himself: is everything read up to where
        the assigned partitions ended when it was first asked? To be asked when nothing comes."""
        return self._inbox.end_check(self._timeout)

    # -- inside, and what AsyncConsumer builds on

    def _ready(self) -> Record[K, V] | None:
        """The next record if it can be had without waiting for librdkafka at all."""
        message = self._inbox.first()
        return None if message is None else self._record(message)

    def _given(
        self,
        timeout: float | None,
        finished: Callable[[], bool] | None = None,
        *,
        once_joined: bool = False,
    ) -> Record[K, V] | None:
        """The next record, or if Ctrl-C comes, none: not even one that was about to be given."""
        self._inbox.begin()
        try:
            return self._next(timeout, finished, once_joined=once_joined)
        except BaseException:
            self._inbox.take_back()
            raise

    def _take(self, most: int, timeout: float | None) -> list[Record[K, V]]:
        taken: list[Record[K, V]] = []
        while len(taken) < most:
            try:
                record = self._next(0.0 if taken else timeout)
            except KafkaError as error:
                if not taken:
                    raise
                self._postpone(error)
                break
            if record is None:
                break
            taken.append(record)
        return taken

    def _next(
        self,
        timeout: float | None,
        finished: Callable[[], bool] | None = None,
        *,
        once_joined: bool = False,
    ) -> Record[K, V] | None:
        """The next record, past those that `on_error` has dealt with."""
        while True:
            try:
                message = self._inbox.next(timeout, finished, once_joined=once_joined)
                return None if message is None else self._record(message)
            except (RecordDecodeError, DamagedRecordsError) as refusal:
                _settle(self._deal_with(refusal))
                self._go_past(refusal)

    def _deal_with(self, refusal: RecordDecodeError | DamagedRecordsError) -> object:
        """Do with what cannot be read as `on_error` says; returns what that returned, and raises
        where the consumer is to stay."""
        if self._on_error == "skip" and refusal.next_offset is not None:
            LOGGER.warning("skipped: %s", refusal.message)
            return None
        if callable(self._on_error) and isinstance(refusal, RecordDecodeError):
            return self._on_error(refusal.record, refusal)
        raise refusal

    def _go_past(self, refusal: RecordDecodeError | DamagedRecordsError) -> None:
        """Leave behind what `_deal_with` has dealt with."""
        if isinstance(refusal, RecordDecodeError):
            self._inbox.drop(refusal.topic, refusal.partition, refusal.offset)
        elif refusal.next_offset is not None:
            tp = TopicPartition(refusal.topic, refusal.partition)
            self._move(tp, refusal.next_offset)
            self._inbox.skip(tp, refusal.next_offset)

    def _postpone(self, error: KafkaError) -> None:
        """What was taken is given first, then the error. Some come again by themselves."""
        if not isinstance(error, RecordDecodeError):
            self._inbox.postpone(error)

    def _resolve(self, wanted: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
        with self._explained(wanted):
            return self._ask(lambda timeout: positions.resolve(self._client, wanted, timeout))

    def _ask(self, question: Callable[[float], T]) -> T:
        return self._inbox.contact.ask(question, self._timeout)

    def _say_offline(self) -> None:
        """Warn, in the background, if partitions of the topic looked up last are offline:
        the others are read."""
        if self._leaderless:
            self._inbox.look_at(self._leaderless)
            self._leaderless = []

    @contextmanager
    def _explained(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Ask partitions; for one that nobody leads librdkafka has only misleading words."""
        try:
            yield
        except ClientError as error:
            if error.code in _NOBODY_LEADS:
                found = self._outside.problems(partitions)
                raise next(iter(found.values()), error) from None
            raise

    def _need_group(self, method: str) -> None:
        if self._group is None:
            raise ValueError(f"{method}() needs a group: Consumer(group='name')")

    def _expand(self, partitions: Partitions) -> tuple[TopicPartition, ...]:
        if isinstance(partitions, str):
            return self.partitions(partitions)
        return tuple(check_partition(tp) for tp in partitions)

    def _record(self, message: rd.Message) -> Record[K, V]:
        """The record that a message holds, given to the reader; or not, if it cannot be decoded."""
        # What a message lacks only when it is an error, which this one is not.
        key: Any = message.key()
        value: Any = message.value()
        part: Part = "headers"
        try:
            headers = _headers_of(message)
            if headers is _UNREADABLE:
                raise ValueError
            part = "key"
            if key is not None and self._decode_key is not None:
                key = self._decode_key(key)
            part = "value"
            if value is not None and self._decode_value is not None:
                value = self._decode_value(value)
        except Exception as error:
            raise _refusal(part, message, error) from error
        record: Record[K, V] = _as_record(message, key, value, headers)
        self._inbox.give(message)
        return record


def _refusal(part: Part, message: rd.Message, error: Exception) -> RecordDecodeError:
    """Why a record is not given. librdkafka's binding fails at names of headers that are not UTF-8,
    and asked again it has tuples with holes: whoever looks into one crashes."""
    if part == "headers":
        message.set_headers(_UNREADABLE)
        error = ValueError("the name of a header is not UTF-8")
    headers = message.headers()
    return RecordDecodeError(
        part, _as_record(message, message.key(), message.value(), headers), error
    )


def _as_record(message: rd.Message, key: Any, value: Any, headers: Any) -> Record[Any, Any]:
    topic: Any = message.topic()
    partition: Any = message.partition()
    offset: Any = message.offset()
    kind, timestamp = message.timestamp()
    epoch = message.leader_epoch()
    return Record(
        topic,
        partition,
        offset,
        timestamp,
        _TIMESTAMP_TYPES[kind],
        key,
        value,
        tuple(headers) if headers else (),
        -1 if epoch is None else epoch,
    )


def _settle(outcome: object) -> None:
    """Wait for the future of a record that an error handler has sent; raises if it failed."""
    _check_done(outcome, "on_error=")
    if isinstance(outcome, Future):
        outcome.result()


def _check_done(outcome: object, callback: str) -> None:
    if inspect.isawaitable(outcome):
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise TypeError(f"{callback} of a Consumer cannot be awaited; use a plain function")


def _check_on_error(given: object) -> Any:
    if given in ("raise", "skip") or callable(given):
        return given
    raise ValueError(f'on_error is "raise", "skip" or a function of (record, error), not {given!r}')


def _plain(partitions: Iterable[rd.TopicPartition]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(tp.topic, tp.partition) for tp in partitions))
