"""Rounds: a follower's fetch session, as its leader keeps it between two fetches.

A follower asks for all of its partitions in every fetch, and names only those that have changed
(KIP-227). To look at each of them in every round would cost a leader of thousands, of which a few
are written to, nearly all of its time. So the partitions tell of what happens to them, and a fetch
looks at those: the named ones, and those that were appended to, whose high watermark or in-sync set
has moved, or that are not led here any more.

A partition is at rest once its follower has everything, is in sync, and was told everything. What a
fetch says of it without naming it is that the follower still is where it was: so it counts as
caught up at every fetch, as if it had been named (`isr.Follower.rest`), and vouches (`lease.py`).
A fetch that names a partition, forgets it, or comes under another broker epoch ends its rest first:
such a fetch vouches for it only when it is looked at, if the follower still follows this leader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from ottla.errors import KafkaError
from ottla.replication.lease import LONG_AGO
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Signal

# A partition as the follower named it: by topic id from version 13 on, by name before.
Key = tuple[str | bytes, int]


class Wanted(Protocol):
    """What the follower has said of a partition, and what it was told."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start: int
    high_watermark: int
    log_start_offset: int


W = TypeVar("W")


class Rounds:
    """The partitions of one follower's session; `epoch` is that of its broker's registration."""

    __slots__ = (
        "_active", "_watches", "appends", "asked_after_ms", "at_ms", "broker", "closed", "epoch",
        "news",
    )  # fmt: skip

    def __init__(
        self,
        broker: int,
        epoch: int,
        keys: Iterable[Key],
        now_ms: float,
        asked_after_ms: float = LONG_AGO,
    ) -> None:
        # for the life of the session
        self.broker = broker
        self.news = Signal()  # signalled with the number of bytes that can be fetched
        self._watches: dict[Key, Watch] = {}
        self.appends = 0  # so far, to all of them: one may come while a fetch is looked at
        self.closed = False  # the session has ended
        # changes with every fetch
        self.epoch = epoch
        self.at_ms = now_ms
        self.asked_after_ms = asked_after_ms
        self._active: dict[Key, None] = dict.fromkeys(keys)  # in the order of their turn

    def __len__(self) -> int:
        """How many partitions the next fetch looks at."""
        return len(self._active)

    def begin(self, epoch: int, now_ms: float, asked_after_ms: float = LONG_AGO) -> None:
        """The follower asks again, after a moment; what it names and forgets is known already.
        Under another epoch it tells anew of everything."""
        if epoch != self.epoch:
            self.epoch = epoch
            for watch in self._watches.values():
                watch.changed()
        self.at_ms = now_ms
        # It has sent this fetch after those before, so also after what they were sent after.
        self.asked_after_ms = max(self.asked_after_ms, asked_after_ms)

    def attend(self, wanted: Mapping[Key, Wanted]) -> bool:
        """Take note of what a fetch says of the partitions to be looked at, if that is all there is
        to do: the follower has the same log, and all of it. False: they have to be looked at."""
        appends = self.appends
        for key in tuple(self._active):
            watch, want = self._watches.get(key), wanted[key]
            if watch is None or watch.unsure:
                return False
            partition = watch.partition
            log = partition.log
            if (
                want.offset != log.log_end_offset
                or want.leader_epoch != partition.leader_epoch
                or log.failure is not None
                or (want.last_fetched_epoch >= 0 and want.last_fetched_epoch != log.latest_epoch)
            ):
                return False
            try:
                partition.fetched_by(
                    self.broker, self.epoch, want.offset, want.log_start, self.asked_after_ms
                )
            except KafkaError:
                return False
            if (
                want.high_watermark == partition.high_watermark
                and want.log_start_offset == log.log_start_offset
                and partition.rests(self.broker, self.epoch, self)
            ):
                self._active.pop(key, None)
        # What is committed by this may lead to appends, also where was looked already.
        return self.appends == appends

    def due(self, wanted: Mapping[Key, W]) -> OrderedDict[Key, W]:
        """What is to be looked at, of all that the session has."""
        return OrderedDict((key, wanted[key]) for key in self._active)

    def named(self, key: Key) -> None:
        """The follower asks for this one expressly."""
        watch = self._watches.get(key)
        if watch is None:
            self._active[key] = None
        else:
            watch.changed()

    def forget(self, key: Key) -> None:
        """The follower does not want it any more."""
        self._active.pop(key, None)
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.end()

    def looked_at(self, key: Key, partition: Partition, *, settled: bool) -> None:
        """A fetch has looked at a partition; `settled` if there is nothing to be sent or told."""
        if self.closed:
            return  # the follower has another session by now, where the partition may be at rest
        watch = self._watches.get(key)
        if watch is None or watch.partition is not partition:
            if watch is not None:
                watch.end()
            watch = self._watches[key] = Watch(self, key, partition)
        watch.unsure = False
        if settled and partition.rests(self.broker, self.epoch, self):
            self._active.pop(key, None)

    def served(self, key: Key) -> None:
        """`key` gave records: the others come first next time."""
        if key in self._active:
            del self._active[key]
            self._active[key] = None

    def close(self) -> None:
        """The session has ended; a fetch of it may still be under way."""
        self.closed = True
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()
        self._active.clear()

    def stir(self, watch: Watch) -> None:
        """Something has happened to a partition: the next look is at it too."""
        if watch.key not in self._active:
            self._active[watch.key] = None
            watch.partition.stir(self.broker, self)


class Watch:
    """One partition's way to tell of what happens to it. It is told of by `Partition`."""

    __slots__ = ("_rounds", "key", "partition", "unsure")

    def __init__(self, rounds: Rounds, key: Key, partition: Partition) -> None:
        self._rounds = rounds
        self.key = key
        self.partition = partition
        self.unsure = False  # whether it is this one still that the follower means
        partition.watches.append(self)

    def appended(self, size: int) -> None:
        """There is more: a fetch that waits is answered."""
        self._rounds.appends += 1
        self._rounds.stir(self)
        self._rounds.news.notify(size)

    def changed(self) -> None:
        """A mark or a set is another: the next answer tells."""
        self._rounds.stir(self)

    def hurry(self) -> None:
        """The partition is not led here any more: that is told at once."""
        self.unsure = True
        self._rounds.stir(self)
        self._rounds.news.hurry()

    def end(self) -> None:
        self.partition.watches.remove(self)
        self.partition.stir(self._rounds.broker, self._rounds)
