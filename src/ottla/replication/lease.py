"""Whether a leader can be sure that nobody else leads, and when its successor can be. No I/O.

A leader that was cut off goes on in good faith: it may be told late, or never, that another replica
leads. Nothing it appends is acknowledged any more, but what it tells from memory may be old. So
whoever tells without appending (a coordinator that is asked for a committed offset) looks here.

Followers vouch for a leader. A follower that fetches under the leader's epoch follows nobody else
and leads nothing itself. It sends a fetch after it got the answer to the one before, so it vouches
for the moment at which that answer was given: how long the fetch itself was on its way, or lay
unread because the leader stood still, does not matter. A follower is *fresh* for `LEASE_MS` after
that moment. It waits half as long for records (`FOLLOWER_WAIT_MS`), so idle followers stay fresh.

A fetch vouches for every partition of its session, also for those that it does not name because
they are at rest (`rounds.py`). A follower changes its role and what it fetches in one step. From
the next fetch on, the leader it has left gets the partition as forgotten, under another epoch, or
in a new session, or gets no fetch any more. So a fetch that says nothing of a partition was put
together while its follower followed this leader under the epoch that it named last, and after it
got the answer before. Each of those signs ends the rest before the fetch that brings it counts for
those at rest; so do another broker epoch, and another epoch of the leader's own, which begins with
followers of whom nothing is known. A session that stands still vouches for nothing new.

Nobody else has acknowledged anything while one of these holds (`certain`):

    nobody else is elected    all that could be elected next are fresh: the in-sync replicas, the
                              eligible ones, those that are about to be added. Only a leader that
                              acts adds others, and the first one that acts is one of these.
    others are too few        of all replicas, those that are not fresh are fewer than
                              `min.insync.replicas`. Whoever else leads needs so many to acknowledge
                              anything, so one of the fresh, or this leader itself, would be among
                              them, and would follow the other.

Where no follower has to vouch (one replica; one in sync; all are needed for a commit) the leader's
own session with the metadata store must be alive for certain: else the replicas, or the minimum,
may be others by now. Who only asks whether there is another leader can do without it where nobody
could be elected (`successors`). Two things are beyond the rule: an unclean election gives up more
than it protects, and whoever lowers `min.insync.replicas`, or gives the partition to other brokers,
while these are cut off from the store lets the others acknowledge alone. While a reassignment goes
on the smaller of what acknowledging needs before and after it counts.

All that counts up to the moment the fresh vouch for, which is up to `LEASE_MS` ago. The rest is the
successor's part: it keeps what was written in its own epoch to itself until everybody who led
before has stopped (`Succession`). That is so when all other replicas have fetched under its epoch,
unless replicas were taken away just now, or epochs have passed of which it was not told: who led
before may be one of these, which fetch no more;
or `LEASE_MS` after so many replicas, itself included, have come over to it as acknowledging needs:
each set of replicas that makes an earlier leader certain has one of these in it, and that one has
not vouched for the earlier leader since. Those that a reassignment brings are in no such set.

What was written before its epoch it may tell at once if it has known for as long that it is
committed: whoever led before that record's epoch has stopped (the record's replicas had come over),
and whoever has led since has it too, and tells it or nothing. The same holds for the rest of that
epoch if its own is the next: else whoever led between them may lack what others have committed
since. But the leader of an epoch that was short may have kept what it wrote to itself, and so does
who comes after it (`Past`), until it has known it for so long itself, if nobody comes over to it
before. So does a leader that goes on under another epoch, with other replicas perhaps, before its
own succession was over.

The clocks are local and never go back; that they run equally fast is assumed, up to `DRIFT_MS`.
"""

from __future__ import annotations

from collections.abc import Collection

from ottla.model.topic import PartitionState

LEASE_MS = 1000.0
FOLLOWER_WAIT_MS = LEASE_MS / 2
"""The longest that a follower's fetch waits for records."""
OLD_MS = LEASE_MS / 4
"""A fetch that vouches for a moment longer ago is answered at once: the next one does better."""
DRIFT_MS = 20.0
"""What the clocks of two brokers may differ by in the course of a lease."""
SUCCESSION_MS = LEASE_MS + DRIFT_MS
"""After so long nobody vouches any more for a leader that was left."""

LONG_AGO = float("-inf")


def successors(leader: int, state: PartitionState, joining: Collection[int] = ()) -> set[int]:
    """Who could be elected next without `leader`; `joining` are replicas that the store was asked
    to call in sync."""
    return {*state.isr, *state.elr, *joining} - {leader}


def certain(
    leader: int,
    state: PartitionState,
    min_insync: int,
    fresh: Collection[int],
    *,
    joining: Collection[int] = (),
    session_alive: bool,
) -> bool:
    """Whether nobody but `leader` can have acknowledged anything before the moment that the `fresh`
    followers vouch for; `joining` are replicas that the store was asked to call in sync."""
    next_leaders = successors(leader, state, joining)
    others = sum(each != leader and each not in fresh for each in state.replicas)
    needed = min(min_insync, len(state.original), len(state.target))
    if next_leaders.issubset(fresh) and (next_leaders or session_alive):
        return True
    return others < needed and (bool(fresh) or session_alive)


class Succession:
    """The beginning of a leader's epoch: have all who led before stopped telling what they know?"""

    __slots__ = ("_all_here", "_enough_ms", "_over", "_seen")

    def __init__(self, state: PartitionState, *, all_here: bool = True) -> None:
        self._seen: set[int] = set()
        self._enough_ms: float | None = None
        self._all_here = all_here  # whether all who can have led before are among the replicas
        # Nobody has led a partition before its first epoch, nor one that is nowhere else.
        self._over = state.leader_epoch == 0 or (len(state.replicas) == 1 and all_here)

    def came_over(self, follower: int) -> None:
        """A follower has fetched under this epoch."""
        if not self._over:
            self._seen.add(follower)

    def is_over(self, leader: int, state: PartitionState, min_insync: int, now_ms: float) -> bool:
        """Whether what was written in this epoch may be told from now on."""
        if self._over:
            return True
        here = {leader, *self._seen}
        # Those that a reassignment brings are in no set that makes an earlier leader certain.
        held_before = here.intersection(state.original)
        if self._enough_ms is None and len(held_before) >= state.minimum(min_insync):
            self._enough_ms = now_ms
        self._over = (self._all_here and here.issuperset(state.replicas)) or (
            self._enough_ms is not None and now_ms - self._enough_ms >= SUCCESSION_MS
        )
        return self._over


class Past:
    """What a replica remembers of the time before its epoch, should it be elected."""

    __slots__ = ("_long_known", "_mark", "_moved_ms", "_noted", "_noted_ms", "_taken_away_ms")

    def __init__(self, mark: int, now_ms: float) -> None:
        self._mark = mark  # the high watermark as it is known
        self._moved_ms = now_ms
        self._noted = mark  # as it was some time ago: once in a second it is noted
        self._noted_ms = now_ms
        self._long_known = 0  # as it was known more than a second ago
        self._taken_away_ms = LONG_AGO

    def moved(self, mark: int, now_ms: float) -> None:
        """The high watermark is known to be at `mark`."""
        self._long_known = self.long_known(now_ms)
        if now_ms - self._noted_ms >= SUCCESSION_MS:
            self._noted, self._noted_ms = mark, now_ms
        self._mark, self._moved_ms = mark, now_ms

    def settled(self, mark: int) -> None:
        """Nobody is certain any more who does not know what is below `mark`."""
        self._long_known = self._noted = self._mark = mark

    def long_known(self, now_ms: float) -> int:
        """A mark that was known here so long ago that whoever was certain then, and did not know
        it, has stopped."""
        if now_ms - self._moved_ms >= SUCCESSION_MS:
            return self._mark
        if now_ms - self._noted_ms >= SUCCESSION_MS:
            return self._noted
        return self._long_known

    def taken_away(self, now_ms: float) -> None:
        """Replicas were, or may have been, one of which may have led."""
        self._taken_away_ms = now_ms

    def all_here(self, now_ms: float) -> bool:
        """Whether nobody leads any more, in good faith, who holds no replica now."""
        return now_ms - self._taken_away_ms >= SUCCESSION_MS
