"""The last stable offset: it only grows, and in the end it is at the end of the log.

As with high watermarks, a leader that was deposed and has not heard of it may show an old one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

STABLE_BACK = "stable-offset-went-back"
HANGING = "hanging-transaction"

Mark = tuple[int, int, int]
"""When it was shown, the offset, the event."""


class StableOffsets(Check):
    """Check 6 of the harness, as far as it is about the last stable offset."""

    promises: ClassVar[Mapping[str, str]] = {
        STABLE_BACK: "a last stable offset that was shown is not taken back",
        HANGING: "no transaction stays open longer than its time-out",
    }

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], dict[int, list[Mark]]] = defaultdict(dict)  # by epoch

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "txn-stable" and event.phase == "fail":
            return (Anomaly(HANGING, event.data["text"], (event.number,)),)
        if event.phase != "ok" or event.data.get("level") != "committed":
            return ()
        if event.action == "txn-mark":
            return self._marked(event)
        if event.action == "txn-read":
            self._shown(event, event.data["next"])
        return ()

    def _marked(self, event: Event) -> Iterator[Anomaly]:
        topic, number = event.data["topic"], event.data["p"]
        epoch, mark = event.data["epoch"], event.data["mark"]
        for earlier, marks in self._marks[topic, number].items():
            if earlier > epoch:
                continue
            index = bisect_right(marks, event.begun, key=lambda entry: entry[0]) - 1
            if index >= 0 and marks[index][1] > mark:
                yield Anomaly(
                    STABLE_BACK,
                    f"{topic}-{number} was stable up to {marks[index][1]} in epoch {earlier}, and "
                    f"later up to {mark} in epoch {epoch}",
                    (marks[index][2], event.number),
                )
                break
        self._shown(event, mark)

    def _shown(self, event: Event, mark: int) -> None:
        place = event.data["topic"], event.data["p"]
        marks = self._marks[place].setdefault(event.data["epoch"], [])
        if not marks or mark > marks[-1][1]:
            marks.append((event.time, mark, event.number))
