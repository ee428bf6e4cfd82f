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

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

import confluent_kafka as rd

from ottla.client.callbacks import RebalanceCallback, check_done, settle
from ottla.client.consumer_options import (
    ConsumerOptions,
    check_consumer_options,
    consumer_config,
)
from ottla.client.decoding import UNREADABLE, as_record, deal_with, headers_of, refusal
from ottla.client.errors import (
    DamagedRecordsError,
    Part,
    RecordDecodeError,
    translate,
    translate_exception,
    translated,
)
from ottla.client.inbox import Inbox
from ottla.client.lookout import Outside
from ottla.client.lookups import Lookups, Partitions
from ottla.client.options import documented
from ottla.client.positions import Position, check_offset, check_partition, check_position
from ottla.client.records import Record
from ottla.client.serializers import Deserializer, decoder
from ottla.client.settings import timestamp_ms
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


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
        check_consumer_options(options)
        self._on_error = options.get("on_error", "raise")
        self._decode_key = decoder("key", key)
        self._decode_value = decoder("value", value)
        self._group = options.get("group")
        self._timeout = options.get("timeout", 30.0)
        config = consumer_config(bootstrap, options)
        outside = Outside(config)
        self._inbox = Inbox(config, stores_offsets=self._group is not None, outside=outside)
        self._lookups = Lookups(self._inbox, outside, self._timeout)

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
        return self._lookups.partitions(topic)

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
        offsets = self._lookups.starts(partitions, start)
        with translated():
            self._client.assign(
                [rd.TopicPartition(tp.topic, tp.partition, at) for tp, at in offsets.items()]
            )
        self._inbox.forget()
        self._inbox.assigned = not self._inbox.subscribed
        self._inbox.given.update(offsets)
        self._lookups.say_offline()
        return tuple(offsets)

    def incremental_assign(
        self,
        partitions: Partitions | Mapping[TopicPartition, Position],
        start: Position = "latest",
    ) -> tuple[TopicPartition, ...]:
        """Read these partitions as well; those assigned before go on undisturbed."""
        offsets = self._lookups.starts(partitions, start)
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
        chosen = self._lookups.expand(partitions)
        missing = [tp for tp in chosen if tp not in self.assignment()]
        if missing:
            raise ValueError(f"{missing[0]} is not assigned")
        with translated():
            self._client.incremental_unassign([rd.TopicPartition(*tp) for tp in chosen])
        self._inbox.unpause(chosen)
        self._inbox.forget(chosen)

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

        A callback that closes the consumer has that done when it has returned.

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
                with self._inbox.telling():
                    check_done(on_assign(_plain(partitions)), "on_assign=")

        # Nothing is stored below: what was processed has been, and a record that is only just being
        # handed out must go to the partition's next owner as well.

        def revoked(_client: rd.Consumer, partitions: list[rd.TopicPartition]) -> None:
            gone = _plain(partitions)
            with self._inbox.revoking(gone):
                if on_revoke is not None:
                    check_done(on_revoke(gone), "on_revoke=")

        def lost(_client: rd.Consumer, partitions: list[rd.TopicPartition]) -> None:
            gone = _plain(partitions)
            self._inbox.lose(gone)
            callback = on_lost or on_revoke
            if callback is not None:
                with self._inbox.telling():
                    check_done(callback(gone), "on_lost=")

        with translated():
            if self._inbox.assigned:
                self.unassign()  # librdkafka would go on as if the group had given them
            self._inbox.join()
            self._client.subscribe(names, on_assign=gained, on_revoke=revoked, on_lost=lost)
        self._lookups.say_offline()

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
        offset = self._lookups.resolve({tp: position})[tp]
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
        chosen = self._lookups.expand(partitions)
        return self._lookups.resolve(dict.fromkeys(chosen, check_position(at)))

    def offsets_for_times(
        self, moments: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, int | None]:
        """The first offset whose timestamp is not before a moment; None when there is none."""
        asked = {check_partition(tp): timestamp_ms(moment) for tp, moment in moments.items()}
        return self._lookups.for_times(asked)

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
        return self._lookups.committed([check_partition(tp) for tp in partitions])

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
                settle(deal_with(self._on_error, refusal))
                self._go_past(refusal)

    def _go_past(self, refusal: RecordDecodeError | DamagedRecordsError) -> None:
        """Leave behind what `on_error` has dealt with."""
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

    def _need_group(self, method: str) -> None:
        if self._group is None:
            raise ValueError(f"{method}() needs a group: Consumer(group='name')")

    def _record(self, message: rd.Message) -> Record[K, V]:
        """The record that a message holds, given to the reader; or not, if it cannot be decoded."""
        # What a message lacks only when it is an error, which this one is not.
        key: Any = message.key()
        value: Any = message.value()
        part: Part = "headers"
        try:
            headers = headers_of(message)
            if headers is UNREADABLE:
                raise ValueError
            part = "key"
            if key is not None and self._decode_key is not None:
                key = self._decode_key(key)
            part = "value"
            if value is not None and self._decode_value is not None:
                value = self._decode_value(value)
        except Exception as error:
            raise refusal(part, message, error) from error
        record: Record[K, V] = as_record(message, key, value, headers)
        self._inbox.give(message)
        return record


def _plain(partitions: Iterable[rd.TopicPartition]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(tp.topic, tp.partition) for tp in partitions))
