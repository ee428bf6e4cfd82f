"""What `ottla verify run` says of other systems, as a table."""

from __future__ import annotations

from datetime import date

import pytest
from bench.processes import BenchError
from bench.verified import Told, markdown, report_in

OUTPUT = """seed 7, history x; Ctrl-C ends the run and judges it
{
  "acknowledged": 12345, "unknown": 6, "longest_pause": 8.04,
  "anomalies": [], "left_out": 0
}
"""


def test_the_report_is_found_behind_what_is_for_a_terminal() -> None:
    assert report_in(OUTPUT)["acknowledged"] == 12345


def test_a_run_that_has_said_nothing_is_shown() -> None:
    with pytest.raises(BenchError, match="no broker answers"):
        report_in("Error: no broker answers at 127.0.0.1:1\n")


def test_each_system_is_a_row() -> None:
    told = [Told("Apache Kafka", report_in(OUTPUT))]
    text = markdown(told, date(2026, 11, 16))
    assert text.splitlines()[-1] == "| Apache Kafka | 12,345 | 6 | 8.0 s | none |"


def test_anomalies_are_counted() -> None:
    report = {**report_in(OUTPUT), "anomalies": [{"check": "lost-write"}], "left_out": 3}
    assert markdown([Told("x", report)], date(2026, 11, 16)).endswith("| 4 |")
