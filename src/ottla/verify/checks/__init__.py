"""What a history is judged by: the list of checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.checks.appends import Appends
from ottla.verify.checks.groups import Groups
from ottla.verify.checks.health import Health
from ottla.verify.checks.leaders import Leaders
from ottla.verify.checks.reads import Reads
from ottla.verify.checks.topics import Topics
from ottla.verify.history import Event

CHECKS: tuple[Callable[[], Check], ...] = (Appends, Reads, Leaders, Groups, Topics, Health)

MOST_OF_A_KIND = 10
"""A fault that loses a thousand records is shown by the first few."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all checks found."""

    events: int
    acknowledged: int  # records
    faults: int
    anomalies: tuple[Anomaly, ...]
    left_out: int = 0  # further anomalies of a kind that is there often enough


def promises() -> Mapping[str, str]:
    """Everything that is checked: the name of the anomaly, and what holds without it."""
    return {name: text for check in CHECKS for name, text in check().promises.items()}


class _Counts:
    """What a history has a lot of."""

    def __init__(self) -> None:
        self.events = self.acknowledged = self.faults = 0
        self._sending: dict[str, int] = {}

    def feed(self, event: Event) -> None:
        self.events += 1
        if event.action == "send":
            if event.phase == "invoke":
                self._sending[event.client] = event.data["count"]
            elif event.phase == "ok":
                self.acknowledged += self._sending[event.client]
        elif event.action == "fault" and event.phase == "invoke":
            self.faults += 1


def judge(events: Iterable[Event]) -> Verdict:
    """Judge a history by all checks."""
    checks = [check() for check in CHECKS]
    counts = _Counts()
    found: list[Anomaly] = []
    seen: Counter[str] = Counter()

    def note(anomalies: Iterable[Anomaly]) -> None:
        for anomaly in anomalies:
            seen[anomaly.check] += 1
            if seen[anomaly.check] <= MOST_OF_A_KIND:
                found.append(anomaly)

    for event in events:
        counts.feed(event)
        for check in checks:
            note(check.feed(event))
    for check in checks:
        note(check.finish())
    return Verdict(
        counts.events,
        counts.acknowledged,
        counts.faults,
        tuple(found),
        seen.total() - len(found),
    )
