"""Inbox: librdkafka's consumer, and what it has handed over that nobody has seen yet.

Records are taken from librdkafka many at a time, because a call per record is what makes Python
consumers slow. What is waiting here belongs to the present assignment: whenever a partition is
moved, paused or taken away, its records here must go too, or the reader would get them from a
place it has already left.

`given` is the offset after the last record that the reader got, by partition. Offsets to commit
come from it and not from librdkafka's own idea of what was consumed, which runs ahead by as much
as is waiting here. librdkafka is told of them (`store`) only when the reader has finished with the
records, since what it was told it commits by itself: every few seconds, before a partition is given
up, and when the consumer is closed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar, cast

import confluent_kafka as rd

from ottla.client import positions
from ottla.client.callbacks import log_commit
from ottla.client.contact import Contact
from ottla.client.errors import (
    DamagedRecordsError,
    translate,
    translate_exception,
    translated,
)
from ottla.client.forks import LEFT_BEHIND, keep_out_of_children
from ottla.client.lookout import Lookout, Outside
from ottla.client.progress import Progress
from ottla.client.records import Record
from ottla.client.settings import LOGGER, RdkafkaLog
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

K = TypeVar("K")
V = TypeVar("V")

# Records taken from librdkafka's queue in one go.
_BATCH = 500
# One uninterrupted wait inside librdkafka; signals and cancellations are handled in between.
SLICE = 0.1
# What makes every further wait useless, as opposed to a broker that is away for a moment.
_HOPELESS = (rd.KafkaError._AUTHENTICATION, rd.KafkaError._FATAL)


# What librdkafka calls bytes that it cannot read.
_DAMAGED = (
    rd.KafkaError._BAD_MSG,
    rd.KafkaError._BAD_COMPRESSION,
    rd.KafkaError._NOT_IMPLEMENTED,
    rd.KafkaError._UNDERFLOW,
    rd.KafkaError.INVALID_MSG,
)
# Seconds without a record after which a partition that has more is looked at; twice as many the
# next time, up to a minute.
_QUIET = 2.0
_LONGEST_QUIET = 60.0
# Seconds that a broker has to answer what is asked meanwhile.
_ASK = 2.0

# Seconds after which librdkafka has its turn although records wait here.
_TURN = 0.5
# Seconds that librdkafka has for giving up what we leave.
_LEAVE = 5.0
# Seconds after which it is said again that a partition is not read.
_REMIND = 2.0
# Times that librdkafka is put back to the same place.
_PUT_BACK = 5


class Inbox:
    """Messages on their way to the reader. `outside` looks at a partition without librdkafka."""

    def __init__(self, config: dict[str, Any], *, stores_offsets: bool, outside: Outside) -> None:
        try:
            self.client = rd.Consumer(
                {**config, "on_commit": self._note_commit, "error_cb": self._note},
                logger=RdkafkaLog(),
            )
        except rd.KafkaException as exception:
            raise ValueError(translate_exception(exception).message) from None
        self._on_commit = config.get("on_commit") or log_commit
        self.closed = False
        self.forked = False
        keep_out_of_children(self, "client")
        self.contact = Contact(config)
        self._heard = False
        self._stores_offsets = stores_offsets
        self._from_start = config["auto.offset.reset"] == "earliest"
        # Whether a group gives all partitions at once, and never some more of them.
        self._eager = config.get("group.protocol") != "consumer" and not str(
            config.get("partition.assignment.strategy", "")
        ).startswith("cooperative")
        # A static member stays one: it may be back before the group misses it.
        self._leaves_at_the_end = not config.get("group.instance.id")
        self._outside = outside
        self._lookout = Lookout(outside)
        self._failure: KafkaError | None = None
        self._torn = False  # records were lost on their way from librdkafka
        # Of the present assignment.
        self.given: dict[TopicPartition, int] = {}
        # Of a consumer that commits when it is told to, and not by itself.
        commits_by_hand = stores_offsets and not config["enable.auto.commit"]
        self.progress = Progress(self.given) if commits_by_hand else None
        self._promised: set[TopicPartition] = set()  # commits that no broker has answered yet
        # Of a subscribed consumer: what it would say of itself to the group if it were no member.
        self.as_stranger: object = None
        self._ready: deque[rd.Message] = deque()
        self._held: dict[TopicPartition, list[rd.Message]] = {}  # of paused partitions
        self._unstored: set[TopicPartition] = set()
        # As `given`, without the records that the reader may still be at work on.
        self._finished: dict[TopicPartition, int] = {}
        self._revoking = False
        self._telling = False  # the reader of partitions, from inside a call of librdkafka
        self._close_wanted = False  # by whom we told
        self._at_end: dict[TopicPartition, int] = {}  # where librdkafka found the end
        self._unreturned: list[rd.Message] | None = None  # given `together`, so far
        self._asking = False  # the reader has not got those yet
        self._postponed: KafkaError | None = None
        self.assigned = False  # by `assign`, and not by a group
        self.subscribed = False
        self.joining = False  # subscribed, and not told of any partitions yet
        self.rejoining = False  # with other topics, and not told of any change yet
        self._paused: set[TopicPartition] = set()
        self._suspects: dict[TopicPartition, rd.Message] = {}  # what librdkafka could not read
        self._damaged: dict[TopicPartition, DamagedRecordsError] = {}
        # Librdkafka does not know where to begin in these, says so once, and leaves it at that.
        self._stuck: dict[TopicPartition, KafkaError] = {}
        self._reminded = 0.0
        # Damage was met in them, and how often librdkafka was put back to where since.
        self._watched: dict[TopicPartition, tuple[int, int]] = {}
        self._doubtful: rd.Message | None = None  # the first of `_ready`, perhaps too far on
        self._looked_at: set[TopicPartition] = set()  # by a look whose results count
        self._quiet_since = time.monotonic()
        self._quiet = _QUIET
        self._turn = 0.0  # when librdkafka had its turn

    def first(self) -> rd.Message | None:  # noqa: C901 - runs for every record; one branch for each kind of message
        """The next record that waits here; None when none does. Raises what went wrong.

        The record stays here until it is given: Ctrl-C may come at any moment."""
        if self.closed:
            raise RuntimeError(LEFT_BEHIND if self.forked else "the consumer is closed")
        if self._postponed is not None:
            error, self._postponed = self._postponed, None
            raise error
        if self._stuck:
            self._remind()
        while self._ready:
            message = self._ready[0]
            if self._suspects and _partition_of(message) in self._suspects:
                self._ready.popleft()
                continue  # whatever librdkafka made of the bytes behind the damaged ones
            if self._watched and self._is_doubtful(message):
                self._doubtful = message
                return None
            problem = message.error()
            if problem is None:
                return message
            if problem.code() in _DAMAGED and message.topic() is not None:
                self._suspects[_partition_of(message)] = message
                continue
            if problem.code() == rd.KafkaError._PARTITION_EOF:
                self._at_end[_partition_of(message)] = cast(int, message.offset())
                self._ready.popleft()
                continue
            self._ready.popleft()
            if self._stores_offsets or message.topic() is not None:
                raise self._meaning(message, problem)
            # librdkafka looks for the coordinator of the group it makes us name although we
            # join none; that there is none, or not for us, does not matter.
            LOGGER.debug("%s", problem)
        if self._damaged:
            raise self._damaged.pop(next(iter(self._damaged)))
        if self._failure is not None:
            raise self._failure
        return None

    def fill(self, wait: float) -> None:
        """Take what librdkafka has, waiting up to so many seconds when it has nothing.

        Whatever asks a broker is done here, since `first` may be called on an event loop."""
        while self._suspects:
            tp, message = next(iter(self._suspects.items()))
            error = message.error()
            assert error is not None
            self._stop_at(tp, message.offset(), error.str())
            del self._suspects[tp]
        if self._lookout.busy:
            self._heed_lookout()
        if self._damaged:
            return
        if self._doubtful is not None:
            self._settle_doubt()
            return
        if self._torn:
            self._go_back()
        try:
            with self._serving():
                self._receive(wait)
                self._turn = time.monotonic()
        except BaseException:
            # Ctrl-C, or a function that librdkafka called for us. librdkafka's binding throws away
            # the records that the call was about to return, and librdkafka goes on behind them.
            self._torn = True
            raise
        now = time.monotonic()
        if self._ready:
            self._heard = True
            self._quiet_since, self._quiet = now, _QUIET
        elif not self._heard and self.contact.waited:
            self._heard = True  # looked once; from now on librdkafka's errors are the reason to
            self.contact.lost()
        elif wait > 0 and now - self._quiet_since >= self._quiet:
            self._look_for_damage()
            self._quiet_since = now
            self._quiet = min(2 * self._quiet, _LONGEST_QUIET)

    @property
    def overdue(self) -> bool:
        """Whether records wait here that take the reader so long that `attend` has to be called:
        only in its own calls librdkafka sees that the reader is alive, and lets it give up
        partitions that the group wants to have."""
        return bool(self._ready) and time.monotonic() - self._turn >= _TURN

    def attend(self) -> None:
        """Give librdkafka a turn. It may hand over one record, as the reader is about to take one:
        what waits here does not grow."""
        if self._torn:
            self._go_back()
        try:
            with self._serving():
                self._turn = time.monotonic()
                self._ready.extend(self.client.consume(1, 0))
        except BaseException:
            self._torn = True
            raise

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Let librdkafka call back; who closes us meanwhile does that now."""
        try:
            with translated():
                yield
        finally:
            if self._close_wanted:
                self.close(finished=False)

    def _receive(self, wait: float) -> None:
        # consume() waits until it has as many as it was asked for, so it is only ever asked for
        # what is there; poll() does the waiting.
        batch = self.client.consume(_BATCH, 0)
        if not batch and wait > 0:
            first = self.client.poll(wait)
            if first is None:
                return
            # Before anything else: what librdkafka calls next may take its partition from us.
            self._ready.append(first)
            batch = self.client.consume(_BATCH, 0)
        self._ready.extend(batch)

    def _go_back(self) -> None:
        """Read again from behind the last record that is here or was given."""
        reached = dict(self.given)
        for message in chain(self._ready, *self._held.values()):
            if message.error() is None:
                reached[_partition_of(message)] = cast(int, message.offset()) + 1
        with translated():
            for each in self.client.position(self.client.assignment()):
                if each.offset < 0:
                    continue  # nothing has left librdkafka yet
                at = reached.get(TopicPartition(each.topic, each.partition))
                if at is None:
                    at = self._position(TopicPartition(each.topic, each.partition))
                # Of a new group that begins at the end nobody knows where that was.
                each.offset = max(0, each.offset - _BATCH) if at is None else at
                self.client.seek(each)
        self._torn = False

    def next(
        self,
        timeout: float | None,
        finished: Callable[[], bool] | None = None,
        *,
        once_joined: bool = False,
    ) -> rd.Message | None:
        """The next record; None when time is up or `finished` says so. With `once_joined` the time
        begins when the group has given us our partitions."""
        if self._ready and time.monotonic() - self._turn >= _TURN:  # `overdue`, for every record
            self.attend()
        message = self.first()
        if message is not None:
            return message
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if finished is not None and finished():
                return None
            if once_joined and self.joining and timeout is not None:
                deadline = time.monotonic() + timeout
            left = SLICE if deadline is None else deadline - time.monotonic()
            self.fill(max(0.0, min(left, SLICE)))
            message = self.first()
            if message is not None or left <= 0:
                return message

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is given inside reaches the reader all at once at the end. If an exception ends it,
        nothing does: the records come again."""
        self.begin(several=True)
        try:
            yield
        except BaseException:
            self.take_back()
            raise
        finally:
            self._asking = False
            self._unreturned = None

    def begin(self, *, several: bool = False) -> None:
        """The reader asks; what it is given from now on can be taken back."""
        self._unreturned = []
        self._asking = several  # of one record nobody hears before it is returned

    def hand_over(self, records: list[Record[K, V]]) -> list[Record[K, V]]:
        """What was given since `begin` is about to be returned; until then it can be taken back.
        What belongs to others by now is left out: its partition was taken away meanwhile."""
        self._asking = False
        ours = self._unreturned
        if ours is None or len(ours) == len(records):
            return records
        # Of a partition that came back the newest are ours: they may be the same records again.
        left = Counter(map(_partition_of, ours))
        kept = []
        for each in reversed(records):
            tp = TopicPartition(each.topic, each.partition)
            if left[tp]:
                left[tp] -= 1
                kept.append(each)
        return kept[::-1]

    def take_back(self) -> None:
        """An exception keeps what was given since `begin` from the reader: it comes again."""
        self._asking = False
        while self._unreturned:
            message = self._unreturned[-1]
            self.given[_partition_of(message)] = cast(int, message.offset())
            if not self._ready or self._ready[0] is not message:
                self._ready.appendleft(message)
            self._unreturned.pop()

    def postpone(self, error: KafkaError) -> None:
        """Raise this when the reader asks next."""
        if isinstance(error, DamagedRecordsError):
            self._damaged[TopicPartition(error.topic, error.partition)] = error
        else:
            self._postponed = error

    def give(self, message: rd.Message) -> None:
        """The reader has got this record."""
        if self._unreturned is not None:
            self._unreturned.append(message)
        if self._ready and self._ready[0] is message:
            self._ready.popleft()
        self._go_behind(message)

    def _go_behind(self, message: rd.Message) -> None:
        tp = _partition_of(message)
        offset = cast(int, message.offset())
        self.given[tp] = offset + 1
        if self.progress is not None:
            self.progress.give(tp, offset)
        self._unstored.add(tp)
        self._at_end.pop(tp, None)

    def skip(self, tp: TopicPartition, offset: int) -> None:
        """Go on at `offset`; what was given and has not reached the reader yet still does, or
        comes again."""
        kept, self._unreturned = self._unreturned, None
        progress, self.progress = self.progress, None
        self.forget((tp,))
        self._unreturned, self.progress = kept, progress
        self.given[tp] = offset

    def drop(self, topic: str, partition: int, offset: int) -> None:
        """Go past a record that was not given, if it is still the next one."""
        if self._ready:
            first = self._ready[0]
            if (first.topic(), first.partition(), first.offset()) == (topic, partition, offset):
                self._ready.popleft()
                self._go_behind(first)

    def store(self) -> None:
        """Tell librdkafka that everything given is processed, so that it may be committed."""
        if not self._stores_offsets or not self._unstored:
            return
        finished = {tp: self.given[tp] for tp in self._unstored}
        self._finished.update(finished)
        self._unstored.clear()
        self._store(finished)

    def keep(self, committed: Mapping[TopicPartition, int], *, answered: bool = True) -> None:
        """These offsets were committed: what librdkafka was told before is not to be committed over
        them, when its time has come or the consumer is closed. Until a broker has `answered`, the
        reader has the records in hand."""
        if not answered:
            self._promised.update(committed)
        elif self.progress is not None:
            self.progress.commit(committed)
        self._store(committed)

    def _note_commit(
        self, error: rd.KafkaError | None, partitions: list[rd.TopicPartition] | None
    ) -> None:
        """What came of a commit that nobody waited for, by us or by librdkafka."""
        if self.progress is not None and error is None:
            for each in partitions or ():
                tp = TopicPartition(each.topic, each.partition)
                # Moved or taken away since then, or committed further on, it does not count.
                news = tp in self._promised and each.offset > self.progress.first.get(
                    tp, each.offset
                )
                if news and each.error is None:
                    self.progress.commit({tp: each.offset})
        self._on_commit(error, partitions)

    def _store(self, chosen: Mapping[TopicPartition, int]) -> None:
        offsets = [rd.TopicPartition(*tp, offset) for tp, offset in chosen.items()]
        try:
            self.client.store_offsets(offsets=offsets)
        except rd.KafkaException as exception:
            error = translate_exception(exception)
            # A partition that has just been taken from us: its new owner reads on from the
            # last commit.
            if error.local not in ("_STATE", "_UNKNOWN_PARTITION"):
                raise error from None

    def join(self) -> None:
        """The group gives us partitions from now on. Of a member that asks for other topics some
        groups take all away and give it partitions anew, and others only what is different."""
        if self.subscribed:
            self.rejoining = True
            return
        if self.progress is not None:
            self.as_stranger = self.client.consumer_group_metadata()
        self.forget()
        self.subscribed = self.joining = True

    def leave(self) -> None:
        """We are no member from now on. Whoever is told of the partitions that we give up by this
        can still commit: so he is told now, as in Java, and what was given is forgotten then."""
        with self._serving():
            try:
                self._give_up()
            finally:
                self.lose(tuple(self.given))
                self.forget()
                self.as_stranger = None
                self.subscribed = self.joining = self.rejoining = False

    def _give_up(self) -> None:
        """Have librdkafka tell of what we give up, until nothing is left, or time is up."""
        deadline = time.monotonic() + _LEAVE
        while self.client.assignment() and time.monotonic() < deadline:
            self.client.consume(1, SLICE / 10)  # records that come now are not for us

    @contextmanager
    def revoking(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """These partitions are given up when this ends; until then they can be committed."""
        gone = set(partitions)
        if self.rejoining:
            with translated():
                kept = {(tp.topic, tp.partition) for tp in self.client.assignment()} - gone
            self.joining = self.joining or not kept
        self._revoking = True
        try:
            with self.telling():
                yield
        finally:
            self._revoking = False
            self.lose(gone)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """The reader is told of partitions, from inside a call of librdkafka."""
        before, self._telling = self._telling, True
        try:
            yield
        finally:
            self._telling = before

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions belong to others from now on."""
        gone = tuple(partitions)
        if self.progress is not None:
            self.progress.take_away(gone)
        self.unpause(gone)
        self.forget(gone)

    def by_hand(self, what: str) -> Progress:
        """What was given and is not committed; raises if that is not up to the reader."""
        if self.closed:
            raise RuntimeError(LEFT_BEHIND if self.forked else "the consumer is closed")
        if self.progress is None:
            wanted = "auto_commit=False" if self._stores_offsets else "a group: group='name'"
            raise ValueError(f"{what} needs a Consumer with {wanted}")
        return self.progress

    def to_commit(self) -> dict[TopicPartition, int]:
        """The offsets of a commit that names none: behind all that was given. While partitions are
        given up, the reader is inside one of our methods, and what that is about to give it, or
        what an exception has interrupted, belongs to the partition's next owner. Nor is what we are
        about to give committed by somebody else whom we call."""
        if self._revoking:
            return dict(self._finished)
        chosen = dict(self.given)
        for message in reversed(self._unreturned or ()) if self._asking else ():
            chosen[_partition_of(message)] = cast(int, message.offset())
        return chosen

    def forget(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Drop what waits of these partitions (of all), and where the reader was in them."""
        gone = None if partitions is None else frozenset(partitions)
        if self.progress is not None:
            self.progress.forget(gone)
        if gone is None:
            self.unpause(self._paused)
            self._ready.clear()
            self._held.clear()
            self.given.clear()
            self._finished.clear()
            self._unstored.clear()
            self._promised.clear()
            self._at_end.clear()
            self._suspects.clear()
            self._damaged.clear()
            self._stuck.clear()
            self._watched.clear()
            self._looked_at.clear()
            if self._unreturned is not None:
                self._unreturned.clear()
            return
        self._ready = deque(m for m in self._ready if _partition_of(m) not in gone)
        for tp in gone:
            self._held.pop(tp, None)
            self.given.pop(tp, None)
            self._finished.pop(tp, None)
            self._suspects.pop(tp, None)
            self._damaged.pop(tp, None)
            self._stuck.pop(tp, None)
            self._at_end.pop(tp, None)
        self._unstored -= gone
        self._promised -= gone
        self._looked_at -= gone
        if self._unreturned is not None:
            self._unreturned = [m for m in self._unreturned if _partition_of(m) not in gone]

    def _is_doubtful(self, message: rd.Message) -> bool:
        """Whether there are offsets between the last record and this one, where damage was met.

        librdkafka may take garbage for an offset. It finds no such offset at the broker and goes to
        where `reset` says, also when it has been put back in the meantime."""
        error = message.error()
        if error is not None and error.code() != rd.KafkaError._PARTITION_EOF:
            return False
        tp, offset = _partition_of(message), cast(int, message.offset())
        return tp in self._watched and offset > self.given.get(tp, offset)

    def _settle_doubt(self) -> None:
        """Let the doubtful message pass, if nothing readable is before it; else read again."""
        message, self._doubtful = self._doubtful, None
        if message is None or not self._ready or self._ready[0] is not message:
            return
        tp, offset = _partition_of(message), cast(int, message.offset())
        at = self.given[tp]
        damage = self._outside.examine(tp, at)
        first = None if damage is not None else self._outside.first_offset(tp, at)
        place, times = self._watched[tp]
        times = times + 1 if place == at else 1
        is_end = message.error() is not None
        if damage is None and (times > _PUT_BACK or (is_end if first is None else first >= offset)):
            # Nothing is there for the reader.
            if is_end:
                self._ready.popleft()
                self._at_end[tp] = offset
            else:
                self.given[tp] = offset
            return
        self._ready = deque(m for m in self._ready if _partition_of(m) != tp)
        self._at_end.pop(tp, None)
        if damage is not None:
            self._stop_at(tp, at, damage.problem, damage.next_offset)
        else:
            self._seek(tp, at)
        self._watched[tp] = (at, times)

    def _look_for_damage(self) -> None:
        """Nothing has come for a while: is there a partition that librdkafka cannot read on?"""
        with translated():
            assigned = self.client.assignment()
        places: dict[TopicPartition, int | None] = {}
        for each in assigned:
            tp = TopicPartition(each.topic, each.partition)
            # An end that is not behind the last record: librdkafka may have gone to a wrong place.
            end = self._at_end.get(tp)
            if tp in self._paused or (end is not None and end == self.given.get(tp, end)):
                continue
            given = self.given.get(tp)
            if given is not None or self._stores_offsets:
                places[tp] = given
        if places and not self._lookout.busy:
            self._looked_at = set(places)
            self._lookout.begin(places)

    def look_at(self, partitions: Iterable[TopicPartition]) -> None:
        """Say in the log what is wrong with partitions that nobody leads."""
        self._lookout.begin(dict.fromkeys(partitions, 0))

    def _heed_lookout(self) -> None:
        """Stop at damage that was found, where the reader still waits for those records."""
        for tp, offset, damage in self._lookout.fetch():
            if tp not in self._looked_at:
                continue  # moved or taken away since then; if we have it again, then elsewhere
            waiting = any(_partition_of(message) == tp for message in self._ready)
            if waiting or tp in self._paused or self.given.get(tp, offset) != offset:
                continue
            with translated():
                assigned = self.client.assignment()
            if any((each.topic, each.partition) == tp for each in assigned):
                self._stop_at(tp, offset, damage.problem, damage.next_offset)

    def _position(self, tp: TopicPartition) -> int | None:
        """The offset that librdkafka tries to read, also before the first record of a group."""
        given = self.given.get(tp)
        if given is not None or not self._stores_offsets:
            return given
        target = rd.TopicPartition(*tp)
        with translated():
            [answer] = self.client.committed([target], timeout=_ASK)
            if answer.error is None and answer.offset >= 0:
                return answer.offset
            if not self._from_start:
                return None
            low, _ = self.client.get_watermark_offsets(target, timeout=_ASK)
        return low

    def _stop_at(
        self, tp: TopicPartition, offset: int | None, problem: str, behind: int | None = None
    ) -> None:
        """Stay in front of damaged bytes, and say so when the reader asks next.

        librdkafka may have taken garbage for an offset and gone on there, so it is put back."""
        at = self.given.get(tp, -1 if offset is None else offset)
        if behind is None:
            found = self._outside.examine(tp, at)
            behind = None if found is None else found.next_offset
        self._damaged[tp] = DamagedRecordsError(tp, at, problem, behind)
        if at >= 0:
            self.given[tp] = at
        self._watched.setdefault(tp, (at, 0))
        self._seek(tp, at)

    def _seek(self, tp: TopicPartition, at: int) -> None:
        try:
            self.client.seek(rd.TopicPartition(*tp, at))
        except rd.KafkaException as exception:
            LOGGER.debug("%s cannot be put back to %d: %s", tp, at, exception)

    def _meaning(self, message: rd.Message, problem: rd.KafkaError) -> KafkaError:
        """What to say now; of some problems, again and again while nothing is done about them."""
        error = translate(problem)
        if problem.code() != rd.KafkaError._AUTO_OFFSET_RESET:
            return error
        tp = _partition_of(message)
        error.message = (
            f"{tp}: {error.message}. Nothing of it is read until seek(({tp.topic!r}, "
            f"{tp.partition}), ...) says where to go on"
        )
        self._stuck[tp] = error
        self._reminded = time.monotonic()
        return error

    def _remind(self) -> None:
        now = time.monotonic()
        if now - self._reminded >= _REMIND:
            self._reminded = now
            raise next(iter(self._stuck.values())).with_traceback(None)

    def restart(self, tp: TopicPartition, offset: int) -> bool:
        """Begin anew in a partition of which librdkafka does not know where to begin, and where it
        refuses to seek; False for any other."""
        if tp not in self._stuck:
            return False
        target = rd.TopicPartition(*tp, offset)
        with translated():
            if not (self._eager and self.subscribed):
                self.client.incremental_unassign([target])
                self.client.incremental_assign([target])
                return True
            kept = self.client.position(self.client.assignment())
            for each in kept:
                if each.offset < 0:  # nothing has left librdkafka yet
                    each.offset = rd.OFFSET_STORED
            kept = [each for each in kept if (each.topic, each.partition) != tp]
            self.client.assign([*kept, target])
        return True

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Keep what waits of these partitions aside."""
        chosen = frozenset(partitions)
        self._paused |= chosen
        kept: deque[rd.Message] = deque()
        for message in self._ready:
            tp = _partition_of(message)
            if tp in chosen:
                self._held.setdefault(tp, []).append(message)
            else:
                kept.append(message)
        self._ready = kept

    def unpause(self, partitions: Iterable[TopicPartition]) -> None:
        """We have these no longer; to librdkafka they would be paused when we have them again."""
        chosen = self._paused.intersection(partitions)
        if chosen:
            with translated():
                self.client.resume([rd.TopicPartition(*tp) for tp in chosen])
            self._paused -= chosen

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Give what was held again, before anything newer."""
        for tp in partitions:
            self._paused.discard(tp)
            self._ready.extendleft(reversed(self._held.pop(tp, [])))

    def end_check(self, timeout: float) -> Callable[[], bool]:
        """A question: is every assigned partition read up to where it ended at first sight?

        Records at the very end may be invisible (a transaction's markers, aborted records), so
        librdkafka's word that it was at that end, or behind it, counts as well.
        """
        ends: dict[TopicPartition, int] = {}

        def finished() -> bool:
            with translated():
                assigned = [
                    TopicPartition(tp.topic, tp.partition) for tp in self.client.assignment()
                ]
            new = [tp for tp in assigned if tp not in ends]
            ends.update(positions.latest(self.client, new, timeout))
            return bool(assigned) and all(
                max(self._at_end.get(tp, -1), self.given.get(tp, -1)) >= ends[tp] for tp in assigned
            )

        return finished

    def close(self, *, finished: bool) -> None:
        """Leave and let go of everything; `finished`: the reader is done with what it was given."""
        if self.closed:
            return
        if self._telling:
            # librdkafka would wait for the call to end that we are in. And what is about to be
            # given is not processed.
            self._close_wanted = True
            return
        if finished:
            self.store()
        with translated():
            try:
                if self._leaves_at_the_end and self.subscribed:
                    # A librdkafka that is closed while the group wants partitions back leaves
                    # first, and commits then: the coordinator does not know us any more.
                    self.client.unsubscribe()
                    self._give_up()
            finally:
                self.closed = True
                self._ready.clear()
                self.client.close()

    def _note(self, error: rd.KafkaError) -> None:
        """librdkafka's events that belong to no partition; most of them pass by themselves."""
        if error.fatal() or error.code() in _HOPELESS:
            self._failure = translate(error)
        else:
            LOGGER.debug("%s", error)
            if error.code() == rd.KafkaError._ALL_BROKERS_DOWN:
                self.contact.lost()


def _partition_of(message: rd.Message) -> TopicPartition:
    return TopicPartition(cast(str, message.topic()), cast(int, message.partition()))
