"""The rows of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bench.__main__ import SESSIONS
from bench.figures import Part, Sheet
from bench.rows import FULL, ROWS
from bench.selection import Selection

if TYPE_CHECKING:
    from pathlib import Path

# Taken by the session while it starts, without a step of their own.
AT_THE_START = {"start", "memory-fresh", "cluster-start", "cluster-start-lent"}


def test_keys_are_unique() -> None:
    keys = [row.key for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_only_rows_added_for_information_have_nothing_to_reach() -> None:
    untargeted = {row.key for row in ROWS if not row.to_reach and row.part is not Part.PROCESSES}
    assert untargeted == {
        "java-produce-100b",
        "requests-64-raw",
        "compaction-produce",
        "compaction-time-paced",
        "growth-20k-first",
        "growth-20k-memory",
        "growth-20k-stopped",
        "growth-20k-killed",
        "cpu-commits-16",
        "offsets-load",
        "offsets-load-compacted",
        "cluster-cpu-produce",
        "cluster-cpu-requests-64",
        "cluster-start-lent",
        "txn-cpu",
        "cluster-txn-cpu",
    }


def test_several_processes_are_held_to_the_cost_of_one() -> None:
    targeted = {row.key: row.limit for row in ROWS if row.part is Part.PROCESSES and row.to_reach}
    assert targeted == {
        "cluster-processes-requests-kept": 1.1,
        "cluster-processes-commits-kept": 1.1,
    }


@pytest.mark.parametrize(
    ("sheet", "pattern"), [(Sheet.CLUSTER, "cluster-[!t]*"), (Sheet.TRANSACTIONS, "*txn-*")]
)
def test_what_is_recorded_together_has_one_pattern(sheet: Sheet, pattern: str) -> None:
    chosen = Selection.of(ROWS, pattern).reported
    assert chosen == {row.key for row in ROWS if row.part.sheet is sheet}


@pytest.mark.parametrize("part", list(Part))
def test_each_row_is_measured_by_a_step_of_its_part(part: Part, tmp_path: Path) -> None:
    system: Any = None
    session = SESSIONS[part](system, system, tmp_path, FULL, Selection.of(ROWS), lambda *_: None)
    measured = {key for _step, keys in session._steps() for key in keys}
    assert {row.key for row in ROWS if row.part is part} - AT_THE_START == measured
