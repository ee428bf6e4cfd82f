"""Which rows a run measures, and which it only goes through before them. No I/O.

What a broker has done before can matter to a row. `--before` lets a row be measured alone and yet
after a chosen history: those rows are run in the order of a whole session, and not reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.figures import Row


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys of the rows that are reported, and of those that are only run."""

    reported: frozenset[str]
    before: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, rows: Iterable[Row], pattern: str = "*", *, before: str = "", large: bool = True
    ) -> Selection:
        """What two patterns choose; rows of the large part are chosen only on demand."""
        keys = [row.key for row in rows if large or not row.part.on_demand]
        return cls(
            frozenset(key for key in keys if fnmatchcase(key, pattern)),
            frozenset(key for key in keys if before and fnmatchcase(key, before)),
        )

    def reports(self, *keys: str) -> bool:
        return any(key in self.reported for key in keys)

    def runs(self, *keys: str) -> bool:
        return any(key in self.reported or key in self.before for key in keys)
