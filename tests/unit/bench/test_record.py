"""The report of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

import pytest
from bench import record
from bench.figures import Better, Outcome, Part, Row, Sheet
from bench.machine import Machine
from bench.record import Check, Report, Spent
from bench.rows import FULL, QUICK

if TYPE_CHECKING:
    from pathlib import Path

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


def test_sheet_has_its_own_parts_rounds_and_minutes(report: Report) -> None:
    spent = [
        Spent(Part.BROKER, 3, 12.0),
        Spent(Part.CLUSTER, 2, 9.0),
        Spent(Part.PROCESSES, 1, 3.0),
    ]
    checks = [Check("a check", passed=True, detail="")]
    sheets = replace(report, spent=spent, checks=checks).sheets()
    one, cluster = sheets[Sheet.ONE_BROKER], sheets[Sheet.CLUSTER]
    transactions = sheets[Sheet.TRANSACTIONS]
    assert {each.row.part for each in cluster.outcomes} == {Part.CLUSTER, Part.PROCESSES}
    of_transactions = {Part.TRANSACTIONS, Part.CLUSTER_TRANSACTIONS}
    assert {each.row.part for each in transactions.outcomes} == of_transactions
    assert sum(len(each.outcomes) for each in sheets.values()) == len(report.outcomes)
    assert (one.rounds, one.minutes, one.checks) == (3, 12.0, checks)
    assert (cluster.rounds, cluster.minutes, cluster.checks) == (2, 12.0, ())


def test_checks_alone_are_recorded_too(report: Report) -> None:
    alone = replace(report, outcomes=[], checks=[Check("a check", passed=True, detail="")])
    assert list(alone.sheets()) == [Sheet.ONE_BROKER]


def test_rows_of_a_cluster_leave_the_other_results_alone(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "performance.md"
    page.write_text(
        "<!-- bench: begin -->\nas it was\n<!-- bench: end -->\n"
        "<!-- cluster: begin -->\nold\n<!-- cluster: end -->\n"
    )
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "PERFORMANCE", page)
    cluster = [each for each in report.outcomes if each.row.part.sheet is Sheet.CLUSTER]
    written = record.write(replace(report, outcomes=cluster), official=True)
    assert written == [tmp_path / "cluster"]
    assert {file.name for file in tmp_path.iterdir()} == {
        "performance.md", "cluster.json", "cluster.md", "cluster.svg",
    }  # fmt: skip
    text = page.read_text()
    assert "as it was" in text
    assert "old" not in text
    assert "a row of CLUSTER" in text
    assert "../bench/results/cluster.svg" in text
