"""Reads: a consumer that reads a partition on its own gets every record once, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from ottla.verify.anomaly import Anomaly, Check
from ottla.verify.history import Event

SKIPPED = "poll-skip"
REWOUND = "nonmonotonic-poll"
NO_POSITION = "lost-position"


class Reads(Check):
    """Check 4 of the harness. The topic is neither compacted nor transactional, and is kept."""

    promises: ClassVar[Mapping[str, str]] = {
        SKIPPED: "a consumer skips no record",
        REWOUND: "a consumer gets no record that it has had",
        NO_POSITION: "a position that was read up to stays one that can be read from",
    }

    def __init__(self) -> None:
        self._positions: dict[tuple[str, int], tuple[int, int]] = {}  # next offset, event

    def feed(self, event: Event) -> Iterable[Anomaly]:
        if event.action == "end" and event.phase == "ok":
            return self._ended(event)
        if event.action != "read":
            return ()
        if event.phase == "fail":
            return self._failed(event)
        return self._read(event)

    def _failed(self, event: Event) -> Iterator[Anomaly]:
        number = event.data["p"]
        position, before = self._positions.get((event.client, number), (0, 0))
        yield Anomaly(
            NO_POSITION,
            f"{event.client} has read partition {number} up to {position}, and is told "
            f"{event.data.get('error', 'that it cannot go on')}",
            (before, event.number) if before else (event.number,),
        )

    def _ended(self, event: Event) -> Iterator[Anomaly]:
        """Whoever reads everything in the end has done so."""
        number, end = event.data["p"], event.data["end"]
        position, before = self._positions.get((event.client, number), (0, 0))
        if position < end:
            yield Anomaly(
                SKIPPED,
                f"{event.client} got everything below {position} of partition {number}, and "
                f"nothing up to its end at {end}",
                (before, event.number) if before else (event.number,),
            )

    def _read(self, event: Event) -> Iterator[Anomaly]:
        number = event.data["p"]
        key = event.client, number
        expected, before = self._positions.get(key, (event.data.get("from", 0), 0))
        shown = (before, event.number) if before else (event.number,)
        for offset, _, _, count in event.data["runs"]:
            if offset > expected:
                yield Anomaly(
                    SKIPPED,
                    f"{event.client} got offset {offset} of partition {number} where {expected} "
                    "was next",
                    shown,
                )
            elif offset < expected:
                yield Anomaly(
                    REWOUND,
                    f"{event.client} got offset {offset} of partition {number}, and has had "
                    f"everything below {expected}",
                    shown,
                )
            expected = offset + count
        self._positions[key] = expected, event.number
