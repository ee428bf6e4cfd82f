"""One check of the interoperability run: what was tried, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Line:
    """One check of one client."""

    suite: str
    check: str
    verdict: str
    """`passed`, `failed` or `skipped`."""
    milliseconds: int
    detail: str

    def __str__(self) -> str:
        return (
            f"  {self.verdict:8} {self.suite:9} {self.check:42} {self.milliseconds:6} ms  "
            f"{self.detail}"
        )


def cell(line: Line | None) -> str:
    """A check in a table."""
    if line is None:
        return "**did not run**"
    if line.verdict == "failed":
        return f"**failed**: {line.detail}"
    return f"{line.verdict} ({line.detail})" if line.detail else line.verdict


def failures(lines: Sequence[Line]) -> int:
    return sum(line.verdict == "failed" for line in lines)
