"""Leaders: epochs and watermarks only grow, as far as clients can see, and an epoch has one leader.

A client asks a leader under the epoch that it knows, and the leader refuses who knows another one,
so the epoch of every answer is known. A leader that was deposed and has not heard of it may show
an old mark, which is no error; under the same or a later epoch nobody may.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

TWO_LEADERS = "two-leaders"
EPOCH_BACK = "epoch-went-back"
MARK_BACK = "watermark-went-back"
MARK_BEYOND = "watermark-beyond-the-end"
EPOCH_ORDER = "epochs-out-of-order"
REPLICAS_DIFFER = "replicas-differ"


@dataclass(slots=True)
class _Span:
    """The offsets with an epoch, and the events that tell of the lowest and the highest."""

    low: int
    low_event: int
    high: int
    high_event: int


@dataclass(slots=True)
class _Partition:
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)  # by epoch: leader, event
    marks: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By epoch: end time, mark, event; only where the mark is a new highest."""
    highest: tuple[int, int] = (0, 0)  # mark, event
    before: tuple[int, int] | None = None  # the highest, when it was asked for the end
    spans: dict[int, _Span] = field(default_factory=dict)  # by epoch
    final: tuple[int, int] | None = None


class Leaders(Check):
    """Check 9 of the harness."""

    promises: ClassVar[Mapping[str, str]] = {
        TWO_LEADERS: "an epoch has one leader",
        EPOCH_BACK: "a broker does not go back to an earlier epoch",
        MARK_BACK: "a high watermark that was shown is not taken back",
        MARK_BEYOND: "the log contains every mark that was shown",
        EPOCH_ORDER: "the epochs of a log grow with its offsets",
        REPLICAS_DIFFER: "replicas hold the same in the end",
    }

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}  # broker and partition: epoch
        self._ends: dict[tuple[str, int], dict[int, tuple[int, str, int]]] = {}
        """By topic, where it is told, and partition: of each replica its end, content, event."""

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "end" and event.phase == "invoke":
            partition = self._partition(event.data["p"])
            partition.before = partition.highest
        if event.phase != "ok":
            return ()
        if event.action == "view":
            return self._viewed(event)
        if event.action == "mark":
            return self._marked(event)
        if event.action == "read":
            return self._read(event)
        if event.action == "replica":
            return self._replica(event)
        if event.action == "end":
            self._partition(event.data["p"]).final = event.data["end"], event.number
        return ()

    def finish(self) -> Iterable[Anomaly]:
        for number, partition in sorted(self._partitions.items()):
            if partition.final is None:
                continue
            end, last = partition.final
            mark, event = partition.before or partition.highest
            if mark > end:
                yield Anomaly(
                    MARK_BEYOND,
                    f"partition {number} was shown to be safe up to {mark}, and ends at {end}",
                    (event, last),
                )

    # ------------------------------------------------------------------ inside

    def _viewed(self, event: Event) -> Iterator[Anomaly]:
        """A broker says who leads."""
        broker = str(event.data["broker"])
        for number, leader, epoch in event.data["leaders"]:
            known, before = self._seen.get((broker, number), (-1, 0))
            if epoch < known:
                yield Anomaly(
                    EPOCH_BACK,
                    f"broker {broker} knew epoch {known} of partition {number}, and then {epoch}",
                    (before, event.number),
                )
            else:
                self._seen[broker, number] = epoch, event.number
            if leader < 0:
                continue
            partition = self._partition(number)
            first, told = partition.leaders.setdefault(epoch, (leader, event.number))
            if first != leader:
                yield Anomaly(
                    TWO_LEADERS,
                    f"partition {number} is led by {first} and by {leader} in epoch {epoch}",
                    (told, event.number),
                )

    def _marked(self, event: Event) -> Iterator[Anomaly]:
        """A leader says how far its log is safe."""
        number, epoch, mark = event.data["p"], event.data["epoch"], event.data["mark"]
        partition = self._partition(number)
        for earlier, marks in partition.marks.items():
            if earlier > epoch:
                continue
            index = bisect_right(marks, event.begun, key=lambda entry: entry[0]) - 1
            if index >= 0 and marks[index][1] > mark:
                yield Anomaly(
                    MARK_BACK,
                    f"partition {number} was shown to be safe up to {marks[index][1]} in epoch "
                    f"{earlier}, and later up to {mark} in epoch {epoch}",
                    (marks[index][2], event.number),
                )
                break
        self._shown(event, partition, epoch, mark)

    def _read(self, event: Event) -> Iterator[Anomaly]:
        """What was read is safe; and each batch has the epoch of the leader that took it."""
        number = event.data["p"]
        partition = self._partition(number)
        runs = event.data["runs"]
        if runs:
            end = runs[-1][0] + runs[-1][3]
            if "epoch" in event.data:
                self._shown(event, partition, event.data["epoch"], end)
            elif end > partition.highest[0]:  # by whom, its client does not tell
                partition.highest = end, event.number
        if event.data.get("mark", 0) > partition.highest[0]:
            partition.highest = event.data["mark"], event.number
        for offset, epoch in event.data.get("epochs", ()):
            yield from self._epoch_at(event, number, partition, offset, epoch)

    def _shown(self, event: Event, partition: _Partition, epoch: int, mark: int) -> None:
        marks = partition.marks.setdefault(epoch, [])
        if not marks or mark > marks[-1][1]:
            marks.append((event.time, mark, event.number))
        if mark > partition.highest[0]:
            partition.highest = mark, event.number

    def _epoch_at(
        self, event: Event, number: int, partition: _Partition, offset: int, epoch: int
    ) -> Iterator[Anomaly]:
        here = event.number
        span = partition.spans.setdefault(epoch, _Span(offset, here, offset, here))
        if offset < span.low:
            span.low, span.low_event = offset, here
        if offset > span.high:
            span.high, span.high_event = offset, here
        for other, found in partition.spans.items():
            if other < epoch and found.high > span.low:
                shown = {found.high_event, span.low_event}
            elif other > epoch and found.low < span.high:
                shown = {found.low_event, span.high_event}
            else:
                continue
            yield Anomaly(
                EPOCH_ORDER,
                f"partition {number} has offsets {found.low} to {found.high} of epoch {other} and "
                f"{span.low} to {span.high} of epoch {epoch}",
                tuple(sorted(shown)),
            )
            return

    def _replica(self, event: Event) -> Iterator[Anomaly]:
        """What a broker's files hold after the run."""
        number, end, digest = event.data["p"], event.data["end"], event.data["digest"]
        broker, topic = int(event.data["broker"]), event.data.get("topic", "")
        replicas = self._ends.setdefault((topic, number), {})
        for other, (there, content, before) in replicas.items():
            if (there, content) != (end, digest):
                name = f"{topic}-{number}" if topic else f"partition {number}"
                yield Anomaly(
                    REPLICAS_DIFFER,
                    f"{name} ends at {end} on broker {broker}, at {there} on broker "
                    f"{other}" + (", with other contents" if there == end else ""),
                    (before, event.number),
                )
                break
        replicas[broker] = end, digest, event.number

    def _partition(self, number: int) -> _Partition:
        found = self._partitions.get(number)
        if found is None:
            found = self._partitions[number] = _Partition()
        return found
