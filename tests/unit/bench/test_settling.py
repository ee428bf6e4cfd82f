"""Rows that make many files wait until deleted ones are out of the way."""

from __future__ import annotations

import os
from pathlib import Path

from bench.settling import PATIENCE, QUICK_SECONDS, cost_of_a_file, wait_settled


def test_it_waits_until_files_are_cheap_and_says_so_once(tmp_path: Path):
    costs = iter([QUICK_SECONDS * 9, QUICK_SECONDS * 3, QUICK_SECONDS])
    lines: list[str] = []
    pauses: list[float] = []
    assert wait_settled(
        tmp_path / "probes", lines.append, cost=lambda _: next(costs), sleep=pauses.append
    )
    assert len(pauses) == 2
    assert len(lines) == 1
    assert "450 µs" in lines[0]


def test_it_does_not_wait_for_ever(tmp_path: Path):
    lines: list[str] = []
    pauses: list[float] = []
    assert not wait_settled(
        tmp_path / "probes", lines.append, cost=lambda _: 1.0, sleep=pauses.append
    )
    assert sum(pauses) == PATIENCE
    assert "all the same" in lines[-1]


def test_the_probes_stay_so_that_they_are_no_deleted_files_themselves(tmp_path: Path):
    assert cost_of_a_file(tmp_path / "probe") >= 0
    assert len(os.listdir(tmp_path / "probe")) == 200
