"""Which followers are in sync with a leader, and how far everybody has come. No I/O, no clock.

The leader of a partition learns of its followers by their fetches: who asks for an offset has
everything below it. Out of that come three things:

The high watermark. Every in-sync replica has what is below it. While a change of the ISR is on its
way to the store, or its outcome is not known, the old set and the new one count together: whichever
of the two the next leader comes from has what was shown and acknowledged. A follower that has
caught up and is about to join counts too, or a busy leader would run away from it for ever. Below
min.insync.replicas the mark stands still (KIP-966), so that those who left remain eligible; and as
long as the store calls anybody eligible, whatever the minimum is by now: a smaller one counts from
the moment when the store has taken note that nobody else may lead.

Who leaves. A follower that has not been caught up for `replica.lag.time.max.ms`, or one that asks
for less than the high watermark: it has lost what it had, and is not eligible either. A follower is
caught up when it asks for the end of the log; also, from the moment of its last fetch, when it asks
for what was the end then: so a busy partition has in-sync followers although none is ever quite at
the end. Where nothing is appended a follower stays, as in Kafka, though it may not fetch any more,
unless the leader is asked for what needs its word (`silent`).

Who joins. A follower that has reached the high watermark and the first offset of this leader's
epoch, fetches under the broker epoch it is live with (KIP-903), and has no change in flight. One
that was taken out of the set shows by a fetch that it still has what it had: what was known of it
before does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

from ottla.model.topic import PartitionState
from ottla.replication.lease import LEASE_MS, LONG_AGO, Succession, certain, successors

NO_BROKER_EPOCH = -1
UNKNOWN = -1
NOBODY: frozenset[int] = frozenset()


class Rules(NamedTuple):
    """What a topic's settings say about its partitions."""

    min_insync: int
    unclean: bool = False


def eligible(
    state: PartitionState,
    isr: Collection[int],
    rules: Rules,
    *,
    lost: Collection[int] = NOBODY,
    emptied: Collection[int] = NOBODY,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Who may lead when nobody is in sync, and who was last known to, once `isr` are in sync.

    The sets are explained in `controller/election.py`. Of those who have `lost` records the
    `emptied` ones may have none left.
    """
    if len(isr) >= state.minimum(rules.min_insync):
        return (), ()
    were = {*state.isr, *state.elr}
    elr = tuple(each for each in state.replicas if each in were and each not in (*isr, *lost))
    were.update(state.last_known_elr)
    last_known = tuple(
        each for each in state.replicas if each in were and each not in (*isr, *elr, *emptied)
    )
    return elr, last_known


def with_isr(
    state: PartitionState, isr: tuple[int, ...], rules: Rules, *, lost: Collection[int] = NOBODY
) -> PartitionState:
    """The next state of a partition whose leader has found other replicas in sync, and some that
    have `lost` records; the same object if it is that already."""
    elr, last_known = eligible(state, isr, rules, lost=lost)
    if (isr, elr, last_known) == (state.isr, state.elr, state.last_known_elr):
        return state
    return replace(
        state,
        partition_epoch=state.partition_epoch + 1,
        isr=isr,
        elr=elr,
        last_known_elr=last_known,
    )


class Attendance(Protocol):
    """One follower's rounds over many partitions: what is told once for all where nothing moves."""

    @property
    def at_ms(self) -> float:
        """The moment of its last fetch."""
        ...

    @property
    def asked_after_ms(self) -> float:
        """The latest moment after which one of its fetches was certainly sent."""
        ...


class Follower:
    """One of the other replicas, as the leader knows it.

    One that is at the end of a quiet log, as every fetch would say again, may be at rest: from then
    on it counts as caught up, and vouches (`lease.py`), whenever its fetcher comes by, until
    something moves.
    """

    __slots__ = (
        "_caught_up_ms", "_fetched_ms", "_round", "_vouched_ms",
        "broker_epoch", "end", "leader_end", "start",
    )  # fmt: skip

    def __init__(self, now_ms: float, caught_up: bool) -> None:
        self.end = UNKNOWN  # what it asked for last: it has everything below
        self.start = UNKNOWN  # where its log starts
        self.broker_epoch = NO_BROKER_EPOCH
        # Whoever was in sync when this leader began has the usual time to show itself.
        self._caught_up_ms = now_ms if caught_up else LONG_AGO
        self._fetched_ms = LONG_AGO
        self._vouched_ms = LONG_AGO
        self._round: Attendance | None = None
        self.leader_end = UNKNOWN  # the end of the leader's log at its last fetch

    @property
    def caught_up_ms(self) -> float:
        """When it last had everything."""
        if self._round is None:
            return self._caught_up_ms
        return max(self._caught_up_ms, self._round.at_ms)

    @property
    def fetched_ms(self) -> float:
        """When it last asked for more."""
        return self._fetched_ms if self._round is None else max(self._fetched_ms, self._round.at_ms)

    @property
    def vouched_ms(self) -> float:
        """Up to then it certainly followed this leader, and nobody after it: see `lease.py`."""
        if self._round is None:
            return self._vouched_ms
        return max(self._vouched_ms, self._round.asked_after_ms)

    def fetched(
        self, offset: int, leader_end: int, now_ms: float, asked_after_ms: float = LONG_AGO
    ) -> None:
        if self._round is not None:
            self.stir()
        if offset >= leader_end:
            self._caught_up_ms = max(self._caught_up_ms, now_ms)
        elif self.leader_end != UNKNOWN and offset >= self.leader_end:
            self._caught_up_ms = max(self._caught_up_ms, self._fetched_ms)
        self.end = offset
        self._fetched_ms = now_ms
        self._vouched_ms = max(self._vouched_ms, asked_after_ms)
        self.leader_end = leader_end

    def rest(self, fetcher: Attendance) -> None:
        """It is at the end of the log, and is not named again until something moves."""
        self._round = fetcher

    def rests_with(self, fetcher: Attendance) -> bool:
        return self._round is fetcher

    def stir(self) -> None:
        """Something has moved: what its fetcher did until now counts, what it does next does not,
        unless it says so."""
        self._caught_up_ms = self.caught_up_ms
        self._fetched_ms = self.fetched_ms
        self._vouched_ms = self.vouched_ms
        self._round = None

    def leave(self) -> None:
        """It is in sync no more. Who took it out may know what this leader does not (its disk has
        failed, and it fetches no more): it is about to join only when it has caught up again."""
        self.stir()
        self._caught_up_ms = LONG_AGO

    def begin_life(self, broker_epoch: int) -> None:
        """Its broker has registered anew: what the life before had says nothing about this one."""
        if self._round is not None:
            self.stir()
        self.broker_epoch = broker_epoch
        self.end = UNKNOWN
        self.leader_end = UNKNOWN

    def is_caught_up(self, leader_end: int, now_ms: float, max_lag_ms: float) -> bool:
        return self.end == leader_end or now_ms - self.caught_up_ms <= max_lag_ms


class InSyncReplicas:
    """The followers of one partition, for the time of one leader epoch."""

    __slots__ = (
        "_node_id", "_proposed", "_succession", "epoch_start", "followers", "rules", "state",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        state: PartitionState,
        epoch_start: int,
        rules: Rules,
        now_ms: float,
        *,
        all_here: bool = True,
    ) -> None:
        self._node_id = node_id
        self.state = state
        self.epoch_start = epoch_start  # the end of the log when this leader began
        self.rules = rules
        self._proposed: tuple[int, ...] | None = None  # on its way, or of unknown outcome
        self._succession = Succession(state, all_here=all_here)
        self.followers = {
            each: Follower(now_ms, each in state.isr) for each in state.replicas if each != node_id
        }

    # ------------------------------------------------------------------ what the store says

    def confirmed(self, state: PartitionState, now_ms: float) -> bool:
        """The store has this state, of the same leader epoch: nothing is in flight any more.
        Says whether something was, be it this or something else, which is in vain then."""
        asked = self.in_flight
        for each in self.state.isr:
            if each not in state.isr and each in self.followers:
                self.followers[each].leave()
        self.state = state
        self._proposed = None
        for each in state.replicas:
            if each != self._node_id and each not in self.followers:
                self.followers[each] = Follower(now_ms, each in state.isr)
        for each in tuple(self.followers):
            if each not in state.replicas:
                del self.followers[each]
        return asked

    def proposed(self, isr: tuple[int, ...]) -> None:
        """The store was asked for this set: until it has answered both count."""
        self._proposed = isr

    def refused(self) -> None:
        """The store certainly did not take the proposal."""
        self._proposed = None

    @property
    def alone(self) -> bool:
        """Whether nobody else counts: the leader's own progress is everybody's."""
        return self._proposed is None and len(self.state.isr) == 1

    @property
    def in_flight(self) -> bool:
        return self._proposed is not None

    @property
    def min_insync(self) -> int:
        """How many must be in sync: never more than there are replicas."""
        return self.state.minimum(self.rules.min_insync)

    @property
    def enough(self) -> bool:
        """Whether `acks=all` may be promised: by the confirmed set, and by what is proposed."""
        if self._proposed is not None and len(self._proposed) < self.min_insync:
            return False
        return len(self.state.isr) >= self.min_insync

    # ------------------------------------------------------------------ what followers say

    def fetched(
        self,
        broker: int,
        broker_epoch: int,
        offset: int,
        leader_end: int,
        now_ms: float,
        asked_after_ms: float = LONG_AGO,
    ) -> bool:
        """Note a fetch that was sent after a moment; whether the follower has come further by
        it."""
        follower = self.followers[broker]
        if broker_epoch != follower.broker_epoch:
            if broker_epoch < follower.broker_epoch:
                return False
            follower.begin_life(broker_epoch)
        before = follower.end
        follower.fetched(offset, leader_end, now_ms, asked_after_ms)
        self._succession.came_over(broker)
        return offset != before

    def high_watermark(
        self,
        current: int,
        leader_end: int,
        now_ms: float,
        max_lag_ms: float,
        may_join: Callable[[int, int], bool],
    ) -> int:
        """How far everybody has come; never below `current`."""
        if self.state.elr or not self.enough:
            return current
        counted = self.counted
        mark = leader_end
        for broker, follower in self.followers.items():
            if broker in counted:
                mark = min(mark, follower.end)  # unknown: not before it was heard of
            elif follower.end < mark and self._is_joining(
                broker, follower, current, now_ms, max_lag_ms, may_join
            ):
                mark = follower.end
        return max(current, mark)

    @property
    def counted(self) -> set[int]:
        """Whoever the mark waits for in any case."""
        return {*self.state.isr, *(self._proposed or ())}

    def waits_for(
        self,
        broker: int,
        high_watermark: int,
        now_ms: float,
        max_lag_ms: float,
        may_join: Callable[[int, int], bool],
    ) -> bool:
        """Whether the mark does not pass a follower."""
        follower = self.followers.get(broker)
        return broker in self.counted or (
            follower is not None
            and self._is_joining(broker, follower, high_watermark, now_ms, max_lag_ms, may_join)
        )

    def _is_joining(
        self,
        broker: int,
        follower: Follower,
        high_watermark: int,
        now_ms: float,
        max_lag_ms: float,
        may_join: Callable[[int, int], bool],
    ) -> bool:
        """Whether a follower has caught up, and can be added."""
        return (
            follower.end >= max(high_watermark, self.epoch_start)
            and now_ms - follower.caught_up_ms <= max_lag_ms
            and may_join(broker, follower.broker_epoch)
        )

    # ------------------------------------------------------------------ is anybody else leader?

    @property
    def successors(self) -> set[int]:
        """Who could be elected in this leader's place, though it does nothing any more."""
        return successors(self._node_id, self.state, self._proposed or ())

    def certain(self, now_ms: float, *, session_alive: bool) -> bool:
        """Whether nobody else can have acknowledged anything yet that this leader lacks."""
        fresh = {
            broker
            for broker, follower in self.followers.items()
            if now_ms - follower.vouched_ms < LEASE_MS
        }
        return certain(
            self._node_id,
            self.state,
            self.rules.min_insync,
            fresh,
            joining=self._proposed or (),
            session_alive=session_alive,
        )

    def has_succeeded(self, now_ms: float) -> bool:
        """Whether nobody who led before can still be certain to."""
        return self._succession.is_over(self._node_id, self.state, self.rules.min_insync, now_ms)

    # ------------------------------------------------------------------ who leaves, who joins

    def to_remove(
        self, high_watermark: int, leader_end: int, now_ms: float, max_lag_ms: float
    ) -> frozenset[int]:
        """Replicas that lag behind, or that lack what they once had: of those in sync, and of those
        that the store was to be asked to call so, for whom the mark waits as well."""
        return frozenset(
            each
            for each in self.counted
            if (follower := self.followers.get(each)) is not None
            and (
                UNKNOWN < follower.end < high_watermark
                or not follower.is_caught_up(leader_end, now_ms, max_lag_ms)
            )
        )

    def silent(self, now_ms: float, max_lag_ms: float) -> frozenset[int]:
        """In-sync replicas that have not fetched for long, though they may have everything; nobody
        while a change is in flight."""
        if self.in_flight:
            return frozenset()
        return frozenset(
            each
            for each in self.state.isr
            if (follower := self.followers.get(each)) is not None
            and now_ms - max(follower.fetched_ms, follower.caught_up_ms) > max_lag_ms
        )

    def lacking(self, high_watermark: int) -> frozenset[int]:
        """Replicas that count as having everything below the high watermark, and have not."""
        state = self.state
        return frozenset(
            each
            for each in (*state.isr, *state.elr)
            if (follower := self.followers.get(each)) is not None
            and UNKNOWN < follower.end < high_watermark
        )

    def may_add(
        self, broker: int, high_watermark: int, may_join: Callable[[int, int], bool]
    ) -> bool:
        """Whether a replica can become an in-sync one now."""
        follower = self.followers.get(broker)
        return (
            follower is not None
            and not self.in_flight
            and broker not in self.state.isr
            and follower.end >= max(high_watermark, self.epoch_start)
            and may_join(broker, follower.broker_epoch)
        )

    def to_add(
        self,
        high_watermark: int,
        now_ms: float,
        max_lag_ms: float,
        may_join: Callable[[int, int], bool],
    ) -> list[int]:
        """Everybody for whom the high watermark waits because it is about to join; nobody while a
        change is in flight. It need not fetch again for that: a throttle may hold it back."""
        if self.in_flight:
            return []
        return [
            broker
            for broker, follower in self.followers.items()
            if broker not in self.state.isr
            and self._is_joining(broker, follower, high_watermark, now_ms, max_lag_ms, may_join)
        ]

    def without(self, removed: Collection[int]) -> tuple[int, ...]:
        """The ISR less some."""
        return tuple(each for each in self.state.isr if each not in removed)

    def with_(self, added: Iterable[int]) -> tuple[int, ...]:
        """The ISR and some more, in the order of the replicas."""
        wanted = {*self.state.isr, *added}
        return tuple(each for each in self.state.replicas if each in wanted)

    def lowest_start(self, own_start: int, live: Container[int]) -> int:
        """The lowest log start of all live replicas, for DeleteRecords to wait for; -1 while one
        of them was not heard of."""
        starts = (each.start for broker, each in self.followers.items() if broker in live)
        return min([own_start, *starts])

    def validate(self) -> None:
        """Raise AssertionError unless everything here fits together."""
        state = self.state
        assert self._node_id == state.leader, "only a leader has followers"
        assert self._node_id in state.isr, "a leader is in sync with itself"
        assert set(state.isr) <= set(state.replicas), "only replicas are in sync"
        assert set(self.followers) == set(state.replicas) - {self._node_id}
        assert self._proposed is None or self._node_id in self._proposed
