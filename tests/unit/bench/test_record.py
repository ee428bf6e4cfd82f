"""The report of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date

import pytest
from bench.figures import Better, Outcome, Part, Row
from bench.machine import Machine
from bench.record import Report, Spent
from bench.rows import FULL, QUICK

MACHINE = Machine("cpu", 2, 8, "6", "ext4", "3.11", "2", "2", "17", "4.2")


@pytest.fixture
def report() -> Report:
    outcomes = [
        Outcome(
            Row(part.name, f"a row of {part.name}", "s", Better.LOWER, 1.0, part), (2.0,), (1.0,)
        )
        for part in Part
    ]
    return Report(date(2025, 1, 2), MACHINE, 3, 20.0, FULL, outcomes, [], [])


def test_each_part_has_its_table_under_its_name(report: Report) -> None:
    text = report.markdown()
    places = [text.index(f"## {part.value}") for part in Part]
    assert places == sorted(places)
    for part, begin, end in zip(Part, places, [*places[1:], len(text)], strict=True):
        assert begin < text.index(f"a row of {part.name} ") < end


def test_minutes_and_rounds_of_each_part_are_told(report: Report) -> None:
    told = replace(report, spent=[Spent(Part.GROWTH, 2, 12.4), Spent(Part.LARGE_GROWTH, 1, 9.8)])
    assert "12 minutes, 2 rounds." in told.markdown()
    assert "10 minutes, one round." in told.markdown()
    assert json.loads(told.json())["parts"] == {
        "growth": {"rounds": 2, "minutes": 12.4},
        "large_growth": {"rounds": 1, "minutes": 9.8},
    }


def test_more_partitions_on_demand_are_no_reduction(report: Report) -> None:
    text = replace(report, sizes=replace(FULL, large_growth_partitions=12_000)).markdown()
    assert "reduced" not in text


def test_part_that_was_not_measured_is_left_out(report: Report) -> None:
    text = replace(report, outcomes=report.outcomes[:1]).markdown()
    assert "## Groups" not in text


def test_settings_that_differ_from_the_default_are_told(report: Report) -> None:
    assert "`group.initial.rebalance.delay.ms=0`" in report.markdown()


def test_reduced_sizes_are_told(report: Report) -> None:
    assert "reduced" in replace(report, sizes=QUICK).markdown()
    assert "reduced" not in report.markdown()


def test_chart_leaves_the_commands_to_their_table(report: Report) -> None:
    chart = report.svg()
    assert "a row of GROUPS" in chart
    assert "a row of COMMANDS" not in chart


def test_json_tells_the_part_of_each_row(report: Report) -> None:
    rows = json.loads(report.json())["rows"]
    assert [row["part"] for row in rows] == [part.name.lower() for part in Part]
