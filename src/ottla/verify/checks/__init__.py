"""What a history is judged by: the list of checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.checks import transactions
from ottla.verify.checks.appends import Appends
from ottla.verify.checks.compaction import Compaction
from ottla.verify.checks.groups import Groups
from ottla.verify.checks.health import Health
from ottla.verify.checks.leaders import Leaders
from ottla.verify.checks.losses import Causes, Losses
from ottla.verify.checks.moves import Moves
from ottla.verify.checks.reads import Reads
from ottla.verify.checks.stable import StableOffsets
from ottla.verify.checks.topics import Topics
from ottla.verify.checks.transactions import Transactions
from ottla.verify.checks.zombies import Zombies
from ottla.verify.history import Event

OF_TRANSACTIONS: tuple[Callable[[], Check], ...] = (
    Transactions,
    StableOffsets,
    Moves,
    Zombies,
    Compaction,
)
CHECKS: tuple[Callable[[], Check], ...] = (
    Appends,
    Reads,
    Leaders,
    Groups,
    Topics,
    Health,
    *OF_TRANSACTIONS,
)

MOST_OF_A_KIND = 10
"""A fault that loses a thousand records is shown by the first few."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all checks found."""

    events: int
    acknowledged: int  # records
    anomalies: tuple[Anomaly, ...]
    left_out: int = 0  # further anomalies of a kind that is there often enough
    reported: int = 0  # anomalies that are a loss which was expected and reported
    flaws: Mapping[str, int] = field(default_factory=dict)  # of transaction version 1, by name
    committed: int = 0  # transactions
    aborted: int = 0
    undecided: int = 0  # transactions whose commit may have happened, or not
    kinds: Mapping[str, int] = field(default_factory=dict)  # of faults
    overlapping: int = 0  # faults that began while another one lasted
    fewest_in_flight: int | None = None  # requests, when a fault began
    seconds: int = 0  # from the first acknowledgement to the last
    available: int = 0  # of these, seconds with an acknowledgement
    calm: int = 0  # of these, seconds in which no fault lasted
    calm_available: int = 0  # of the calm ones, seconds with an acknowledgement

    @property
    def faults(self) -> int:
        return sum(self.kinds.values())


def promises() -> Mapping[str, str]:
    """Everything that is checked: the name of the anomaly, and what holds without it."""
    return {name: text for check in CHECKS for name, text in check().promises.items()}


@dataclass(slots=True)
class _Fault:
    """One that lasts, or is over."""

    kind: str
    in_flight: int | None
    during: list[_Fault]  # those that lasted when it began


class _Counts:
    """What a history has a lot of."""

    def __init__(self) -> None:
        self.events = self.acknowledged = 0
        self._happened: list[_Fault] = []
        self._now = 0  # second
        self.kinds: Counter[str] = Counter()
        self.fewest_in_flight: int | None = None
        self.seconds: set[int] = set()  # in which something was acknowledged
        self.committed = self.aborted = self.undecided = 0  # transactions
        self._sending: dict[str, int] = {}
        self._committing: set[str] = set()
        self._lasting: dict[str, _Fault] = {}
        self._broken_since = 0
        self._broken: set[int] = set()  # seconds in which a fault lasted

    def feed(self, event: Event) -> None:
        self.events += 1
        self._now = event.time // 1_000_000
        if event.action == "send":
            if event.phase == "invoke":
                self._sending[event.client] = event.data["count"]
            elif event.phase == "ok":
                self.acknowledged += self._sending[event.client]
                self.seconds.add(self._now)
        elif event.action == "txn-send":
            if event.phase == "invoke":
                self._sending[event.client] = sum(count for _, _, count in event.data["values"])
            elif event.phase == "ok":
                self.acknowledged += self._sending[event.client]
                self.seconds.add(self._now)
        elif event.action == "txn-end":
            self._end(event)
        elif event.action == "fault":
            self._fault(event)

    def _end(self, event: Event) -> None:
        if event.phase == "invoke":
            if event.data["commit"]:
                self._committing.add(event.client)
        elif event.client in self._committing:
            self._committing.discard(event.client)
            self.committed += event.phase == "ok"
            self.undecided += event.phase == "unknown"
        else:
            self.aborted += event.phase == "ok"

    def _fault(self, event: Event) -> None:
        if event.phase != "invoke":
            ended = self._lasting.pop(event.client)
            if event.phase == "ok":
                self._count(ended)
            if not self._lasting:
                self._broken.update(range(self._broken_since, self._now + 1))
            return
        if not self._lasting:
            self._broken_since = self._now
        self._lasting[event.client] = _Fault(
            event.data["kind"], event.data.get("in_flight"), [*self._lasting.values()]
        )

    def _count(self, fault: _Fault) -> None:
        """One that has met something: what breaks nothing does not count."""
        self.kinds[fault.kind] += 1
        self._happened.append(fault)
        if fault.in_flight is not None:
            fewest = self.fewest_in_flight
            self.fewest_in_flight = (
                fault.in_flight if fewest is None else min(fewest, fault.in_flight)
            )

    @property
    def overlapping(self) -> int:
        """Those that began while another one lasted."""
        happened = {id(each) for each in self._happened}
        return sum(any(id(other) in happened for other in each.during) for each in self._happened)

    def calm(self) -> set[int]:
        """Seconds between the first and the last acknowledgement in which no fault lasted."""
        if not self.seconds:
            return set()
        last = max(self.seconds)
        broken = {*self._broken, *(range(self._broken_since, last + 1) if self._lasting else ())}
        return {*range(min(self.seconds), last + 1)} - broken


def judge(events: Iterable[Event]) -> Verdict:
    """Judge a history by all checks."""
    checks = [check() for check in CHECKS]
    counts, losses = _Counts(), Losses()
    found: list[tuple[Anomaly, Causes]] = []
    seen: Counter[tuple[str, Causes]] = Counter()
    flaws: Counter[str] = Counter()

    def note(anomalies: Iterable[Anomaly]) -> None:
        for anomaly in anomalies:
            if anomaly.check.startswith(transactions.VERSION_ONE):
                flaws[anomaly.check] += 1
                continue
            causes = losses.causes(anomaly)
            seen[anomaly.check, causes] += 1
            if seen[anomaly.check, causes] <= MOST_OF_A_KIND:
                found.append((anomaly, causes))

    for event in events:
        counts.feed(event)
        losses.feed(event)
        for check in checks:
            note(check.feed(event))
    for check in checks:
        note(check.finish())
    shown: list[Anomaly] = []
    of_kind: Counter[str] = Counter()
    for anomaly, causes in found:
        of_kind[anomaly.check] += not losses.excuse(causes)
        if not losses.excuse(causes) and of_kind[anomaly.check] <= MOST_OF_A_KIND:
            shown.append(anomaly)
    reported = sum(number for (_, causes), number in seen.items() if losses.excuse(causes))
    calm = counts.calm()
    return Verdict(
        counts.events,
        counts.acknowledged,
        tuple(shown),
        seen.total() - reported - len(shown),
        reported=reported,
        flaws=dict(flaws),
        committed=counts.committed,
        aborted=counts.aborted,
        undecided=counts.undecided,
        kinds=dict(counts.kinds),
        overlapping=counts.overlapping,
        fewest_in_flight=counts.fewest_in_flight,
        seconds=max(counts.seconds) - min(counts.seconds) + 1 if counts.seconds else 0,
        available=len(counts.seconds),
        calm=len(calm),
        calm_available=len(calm & counts.seconds),
    )
