"""Which rows are measured, and which only make up the past of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bench.__main__ import options, sizes_for
from bench.course import Course
from bench.rows import FULL, ROWS, rows_for
from bench.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.course import Step


def test_pattern_selects_what_is_reported() -> None:
    selection = Selection.of(ROWS, "cold-*")
    assert selection.reported == {"cold-produce-p99", "cold-consume-p99"}
    assert not selection.before


def test_every_kind_of_new_row_has_a_pattern_of_its_own() -> None:
    for pattern, count in (("compaction-*", 5), ("growth-5k-*", 4), ("offsets-*", 2)):
        assert len(Selection.of(ROWS, pattern).reported) == count


def test_rows_on_demand_are_left_out_unless_asked_for() -> None:
    assert not Selection.of(ROWS, "growth-20k-*", large=False).reported
    assert len(Selection.of(ROWS, "growth-20k-*", large=True).reported) == 4


def test_rows_before_are_run_and_not_reported() -> None:
    selection = Selection.of(ROWS, "cold-*", before="produce-1k-*")
    assert selection.runs("produce-1k-1p")
    assert not selection.reports("produce-1k-1p")
    assert not selection.runs("consume-1k")


class Walk(Course):
    """A session that only notes what it does."""

    def __init__(self, folder: Path, selection: Selection) -> None:
        nothing: Any = None
        self.done: list[str] = []
        self.told: list[str] = []
        super().__init__(
            nothing, nothing, folder, FULL, selection, lambda key, _value: self.told.append(key)
        )

    def _steps(self) -> Sequence[Step]:
        return tuple((lambda key=key: self._do(key), (key,)) for key in "abcd")

    def _warm_up(self) -> None:
        self.done.append("warm")

    def _do(self, key: str) -> None:
        self.done.append(key)
        self._report(key, 1.0)

    def go(self) -> None:
        for step in self._chosen():
            step()


@pytest.mark.parametrize(
    ("reported", "before", "done"),
    [
        ("c", "", ["warm", "c"]),
        ("c", "ab", ["warm", "a", "b", "c"]),
        ("c", "abd", ["warm", "a", "b", "c"]),
        ("bd", "", ["warm", "b", "d"]),
        ("", "ab", []),
    ],
)
def test_session_goes_through_the_past_of_its_rows_and_no_further(
    tmp_path: Path, reported: str, before: str, done: list[str]
) -> None:
    walk = Walk(tmp_path, Selection(frozenset(reported), frozenset(before)))
    walk.go()
    assert walk.done == done
    assert walk.told == list(reported)


def test_number_of_partitions_on_demand_is_in_the_titles_of_their_rows() -> None:
    sizes = sizes_for(options(["--large", "12000"]))
    titles = {row.key: row.title for row in rows_for(sizes)}
    assert titles["growth-20k-memory"] == "resident memory, 12,000 partitions"
    assert titles["growth-5k-memory"] == "resident memory, 5,000 partitions"
    assert len(titles) == len(ROWS)
