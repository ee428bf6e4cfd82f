"""The bench's table and its place in a document."""

from __future__ import annotations

import pytest
from bench import table
from bench.figures import Better, Outcome, Row

ROW = Row("rate", "produce 100 B", "MB/s", Better.HIGHER, 1.1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12,346"), (1000, "1,000"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23")],
)
def test_figure_shows_three_digits_or_all_before_the_point(value: float, shown: str) -> None:
    assert table.figure(value) == shown


def test_figure_below_one_keeps_three_decimals() -> None:
    assert table.figure(0.0456) == "0.046"


def test_markdown_shows_median_range_ratio_target_and_verdict() -> None:
    lines = table.markdown([Outcome(ROW, (100.0, 90.0, 110.0), (150.0, 140.0, 160.0))]).splitlines()
    assert lines[2] == (
        "| produce 100 B | MB/s | **100** (90.0 … 110) | **150** (140 … 160) "
        "| 1.50 | >= 1.1 | reached |"
    )


def test_every_line_of_the_markdown_table_has_the_same_number_of_cells() -> None:
    outcomes = [Outcome(ROW, (1.0,), (2.0,)), Outcome(ROW, (1.0,), ())]
    assert {line.count("|") for line in table.markdown(outcomes).splitlines()} == {8}


def test_side_without_samples_is_shown_as_failed() -> None:
    assert "| failed |" in table.markdown([Outcome(ROW, (1.0,), ())])


def test_text_for_the_terminal_aligns_its_columns() -> None:
    long_row = Row("x", "a much longer title than the other", "MB/s", Better.HIGHER, 1.1)
    outcomes = [Outcome(ROW, (1.0,), (2.0,)), Outcome(long_row, (1000.0,), (2000.0,))]
    lines = table.text(outcomes).splitlines()
    assert len({line.index("MB/s") for line in lines[1:]}) == 1
    assert len({line.index(">= 1.1") for line in lines[1:]}) == 1


def test_replacing_keeps_the_markers_and_everything_around_them() -> None:
    document = "before\n<!-- bench: begin -->\nold\n<!-- bench: end -->\nafter\n"
    changed = table.replace_between(document, "bench", "new\n")
    assert changed == "before\n<!-- bench: begin -->\nnew\n<!-- bench: end -->\nafter\n"
    assert table.replace_between(changed, "bench", "new") == changed


@pytest.mark.parametrize(
    "document", ["", "<!-- bench: begin -->", "<!-- bench: end --> <!-- bench: begin -->"]
)
def test_replacing_refuses_a_document_without_both_markers_in_order(document: str) -> None:
    with pytest.raises(ValueError, match="no place"):
        table.replace_between(document, "bench", "new")
