"""The table of the Java clients' run."""

from __future__ import annotations

from datetime import date

from bench.interop import Line, markdown, parse

DAY = date(2025, 1, 2)


def test_only_lines_of_the_program_are_read() -> None:
    output = "WARNING: something\nproducer\tgzip\tpassed\t12\t200 records\na\tb\n"
    assert parse(output) == [Line("producer", "gzip", "passed", 12, "200 records")]


def test_each_check_is_one_row_with_a_column_per_client() -> None:
    old = [Line("admin", "alterConfigs", "passed", 1, "")]
    new = [Line("admin", "alterConfigs", "skipped", 1, "not in this client")]
    text = markdown({"4.2.0": new, "3.9.1": old}, DAY)
    assert "| admin | alterConfigs | skipped (not in this client) | passed |" in text


def test_summary_counts_verdicts_by_client() -> None:
    lines = [Line("a", "b", "passed", 1, ""), Line("a", "c", "failed", 1, "Error: no")]
    text = markdown({"4.2.0": lines}, DAY)
    assert "kafka-clients 4.2.0: 1 passed, 1 failed, 0 not in this client." in text


def test_failure_is_shown_with_its_reason() -> None:
    text = markdown({"4.2.0": [Line("a", "c", "failed", 1, "Error: no")]}, DAY)
    assert "**failed**: Error: no" in text


def test_check_that_one_client_never_reached_is_not_passed_over() -> None:
    text = markdown({"4.2.0": [Line("a", "b", "passed", 1, "")], "3.9.1": []}, DAY)
    assert "| a | b | passed | **did not run** |" in text
