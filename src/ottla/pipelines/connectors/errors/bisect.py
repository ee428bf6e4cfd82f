"""Which rows of a failed batch are to blame: a machine that says what to probe next.

    search = Search(count)
    while (probe := search.next()) is not None:
        search.answer(passed(probe))
    search.guilty, search.verdict

Rows are numbers from 0 to `count`; a probe is a range of them, tried without keeping anything. The
machine does no probing and knows no rows.

A range that fails is halved. If its first half passes, the second must be what fails, and is not
probed as a whole. A single row is guilty only if it fails, then a neighbour passes, and then it
fails again: that tells a row from an outage that came meanwhile, and from a sink that takes nothing
at all. The neighbour of a row that is alone in its batch is the empty range. Rows that passed once
are innocent, and are not probed again except as neighbours.

A search looks for one row after the other until everything else has passed, or `most` probes are
used up. Its verdict then says whether the rest may be written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

MOST_PROBES: Final = 64
_NEIGHBOURS: Final = 3
"""So many neighbours that fail as well show that no row is to blame."""


class Span(NamedTuple):
    """Rows from `start` up to, not including, `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


NO_ROWS: Final = Span(0, 0)


class Ending(Enum):
    FOUND = "found"
    """Every row is guilty or has passed."""
    USED_UP = "used up"
    """There are no probes left; some rows are not known."""
    NOBODY = "nobody"
    """Single rows fail, and so do their neighbours: it is not the rows."""
    GONE = "gone"
    """What failed passes now."""


class _Step(Enum):
    HALF = 1
    ALONE = 2
    NEIGHBOUR = 3
    AGAIN = 4
    WHOLE = 5


@dataclass(slots=True)
class Search:
    """One search; `probes` counts what was asked."""

    count: int
    most: int = MOST_PROBES
    guilty: list[int] = field(default_factory=list)
    ending: Ending | None = None
    probes: int = 0
    _suspect: Span = NO_ROWS
    """Is known to fail."""
    _unknown: list[Span] = field(default_factory=list)
    """Nobody has looked; the last is looked at next."""
    _passed: list[Span] = field(default_factory=list)
    _step: _Step = _Step.HALF
    _tried: int = 0
    _asked: Span | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("a batch that failed has at least one row")
        self._begin(Span(0, self.count))

    def next(self) -> Span | None:
        """The range to probe; None when the search has ended. The same until it is answered."""
        if self.ending is None and self._asked is None:
            if self.probes >= self.most:
                self.ending = Ending.USED_UP
            else:
                self._asked = self._wanted()
                self.probes += 1
        return self._asked if self.ending is None else None

    def answer(self, passed: bool) -> None:
        """What came of the range that `next` gave."""
        span, self._asked = self._asked, None
        if span is None:
            raise ValueError("nothing was asked")
        if passed and span.size and self._step is not _Step.NEIGHBOUR:
            self._passed.append(span)
        _ANSWERS[self._step](self, span, passed)

    @property
    def unknown(self) -> list[Span]:
        """Ranges that have neither passed nor been narrowed down, when probes were used up."""
        return sorted([*self._unknown, self._suspect] if self._suspect.size else self._unknown)

    # -- inside

    def _begin(self, span: Span) -> None:
        self._suspect = span
        self._tried = 0
        self._step = _Step.ALONE if span.size == 1 else _Step.HALF

    def _wanted(self) -> Span:
        suspect = self._suspect
        if self._step is _Step.HALF:
            return Span(suspect.start, suspect.start + suspect.size // 2)
        if self._step is _Step.NEIGHBOUR:
            return self._neighbour()
        return suspect

    def _neighbour(self) -> Span:
        """Another row: best one that has passed before, else any that is not known as guilty."""
        rows = self._neighbours()
        if rows:
            return Span(rows[self._tried], rows[self._tried] + 1)
        return Span(self._suspect.start, self._suspect.start)

    def _neighbours(self) -> list[int]:
        row = self._suspect.start
        near = sorted(self._passed, key=lambda span: _distance(span, row))
        rows = [max(span.start, min(row, span.end - 1)) for span in near]
        around = (row + step * side for step in range(1, _NEIGHBOURS + 1) for side in (-1, 1))
        rows += [each for each in around if 0 <= each < self.count]
        return [each for each in dict.fromkeys(rows) if each not in self.guilty and each != row]

    def _halved(self, span: Span, passed: bool) -> None:
        rest = Span(span.end, self._suspect.end)
        if passed:
            self._begin(rest)
        else:
            self._unknown.append(rest)
            self._failed(span)

    def _failed(self, span: Span) -> None:
        """A range was probed and fails; a single row has failed for the first time."""
        self._begin(span)
        if span.size == 1:
            self._step = _Step.NEIGHBOUR

    def _alone(self, span: Span, passed: bool) -> None:
        if passed:
            self._innocent()
        else:
            self._step = _Step.NEIGHBOUR

    def _neighboured(self, span: Span, passed: bool) -> None:
        if passed:
            self._step = _Step.AGAIN
            return
        self._tried += 1
        if self._tried >= min(_NEIGHBOURS, len(self._neighbours())):
            self.ending = Ending.NOBODY

    def _again(self, span: Span, passed: bool) -> None:
        if passed:
            self._innocent()
            return
        self.guilty.append(span.start)
        self._suspect = NO_ROWS
        self._go_on()

    def _innocent(self) -> None:
        """It failed among others and passes alone: what made it fail is over, or is elsewhere."""
        self._suspect = NO_ROWS
        self._go_on()

    def _go_on(self) -> None:
        if self._unknown:
            self._suspect = self._unknown.pop()
            self._step = _Step.WHOLE
            return
        self.ending = Ending.FOUND if self.guilty else Ending.GONE

    def _whole(self, span: Span, passed: bool) -> None:
        """A range that nobody has looked at: it may be right as a whole."""
        if not passed:
            self._failed(span)
            return
        self._suspect = NO_ROWS
        self._go_on()


def _distance(span: Span, row: int) -> int:
    return max(span.start - row, row - span.end + 1, 0)


_ANSWERS: Final = {
    _Step.HALF: Search._halved,
    _Step.ALONE: Search._alone,
    _Step.NEIGHBOUR: Search._neighboured,
    _Step.AGAIN: Search._again,
    _Step.WHOLE: Search._whole,
}
