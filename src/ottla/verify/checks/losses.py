"""Losses: what is excused where more replicas were destroyed than may be, and it was reported.

The fault that destroys them says so (`loss`) when a controller has reported that records may be
lost. What it may have lost was promised while it lasted: whoever was told something before that, or
after, must find it. So an anomaly is excused that has an event from that time. A few kinds show
only what is there in the end, or where a consumer has to go that was beyond it; these are excused
when there was such a fault before.
"""

from __future__ import annotations

from ottla.verify.anomaly import Anomaly
from ottla.verify.checks import (
    appends,
    compaction,
    groups,
    leaders,
    moves,
    reads,
    stable,
    transactions,
    zombies,
)
from ottla.verify.history import Event

_OF_THE_TIME = frozenset(
    {
        appends.LOST,
        appends.INCONSISTENT,
        appends.OUT_OF_ORDER,
        leaders.MARK_BACK,
        leaders.MARK_BEYOND,
        leaders.EPOCH_ORDER,
        groups.TWO_OWNERS,
        groups.STALE_COMMIT,
        groups.OFFSET_BACK,
        transactions.ABORTED_READ,
        transactions.UNCOMMITTED_READ,
        transactions.TORN,
        transactions.SKIPPED_INSIDE,
        transactions.REWOUND_INSIDE,
        stable.STABLE_BACK,
        zombies.NOT_FENCED,
    }
)
_AFTERWARDS = frozenset(
    {
        appends.FORGOTTEN,
        compaction.LOST_KEY,
        compaction.LOST_TOMBSTONE,
        reads.NO_POSITION,
        reads.REWOUND,
        reads.SKIPPED,
        stable.HANGING,
        moves.TWICE,
        moves.NOT_MOVED,
        moves.OUT_OF_ORDER,
        moves.UNCOMMITTED_OFFSET,
    }
)

Causes = frozenset[str]
"""Faults, by their names in the history."""


class Losses:
    """The faults of a history. `feed` takes its events in their order."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[int, int | None]] = {}  # by fault: first and last event
        self._reported: set[str] = set()

    def feed(self, event: Event) -> None:
        if event.action == "fault":
            if event.phase == "invoke":
                self._spans[event.client] = event.number, None
            else:
                first, _ = self._spans.get(event.client, (event.number, None))
                self._spans[event.client] = first, event.number
        elif event.action == "loss":
            self._reported.add(event.client)

    def causes(self, anomaly: Anomaly) -> Causes:
        """The faults that may have led to an anomaly that was found now."""
        if anomaly.check in _AFTERWARDS:
            return frozenset(self._spans)
        if anomaly.check not in _OF_THE_TIME:
            return frozenset()
        return frozenset(
            fault
            for fault, (first, last) in self._spans.items()
            if any(first < number and (last is None or number < last) for number in anomaly.events)
        )

    def excuse(self, causes: Causes) -> bool:
        """Whether one of these has lost records, and that was reported. To be asked in the end."""
        return not causes.isdisjoint(self._reported)
