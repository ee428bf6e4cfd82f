"""The bench's SVG chart."""

from __future__ import annotations

from xml.etree import ElementTree

from bench import chart
from bench.figures import Better, Outcome, Row

SVG = "{http://www.w3.org/2000/svg}"
FASTER = Row("rate", "rate <&> more", "MB/s", Better.HIGHER, 1.1)
SHORTER = Row("delay", "delay", "ms", Better.LOWER, 0.5)


def parsed(outcomes: list[Outcome]) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg(outcomes, "three rounds"))


def bars(root: ElementTree.Element) -> list[ElementTree.Element]:
    return root.findall(f"{SVG}rect")


def line_at_one(root: ElementTree.Element) -> float:
    (found,) = [line for line in root.findall(f"{SVG}line") if line.get("class") == "one"]
    return float(found.get("x1", "nan"))


def test_titles_are_escaped_so_that_the_chart_stays_well_formed() -> None:
    root = parsed([Outcome(FASTER, (1.0,), (2.0,))])
    assert "rate <&> more" in [text.text for text in root.findall(f"{SVG}text")]


def test_leading_bars_lie_right_of_one_and_trailing_bars_left_of_it() -> None:
    root = parsed([Outcome(FASTER, (1.0,), (2.0,)), Outcome(SHORTER, (1.0,), (2.0,))])
    ahead, behind = bars(root)
    middle = line_at_one(root)
    assert ahead.get("class") == "ahead"
    assert abs(float(ahead.get("x", "nan")) - middle) < 0.2
    assert behind.get("class") == "behind"
    assert float(behind.get("x", "nan")) < middle


def test_equal_advantages_have_equally_long_bars_whichever_way_is_good() -> None:
    faster, shorter = bars(
        parsed([Outcome(FASTER, (1.0,), (2.0,)), Outcome(SHORTER, (2.0,), (1.0,))])
    )
    assert faster.get("width") == shorter.get("width")


def test_target_is_marked_where_an_advantage_of_that_size_would_end() -> None:
    root = parsed([Outcome(SHORTER, (2.0,), (1.0,))])
    (bar,) = bars(root)
    (target,) = [line for line in root.findall(f"{SVG}line") if line.get("class") == "target"]
    end = float(bar.get("x", "nan")) + float(bar.get("width", "nan"))
    assert abs(float(target.get("x1", "nan")) - end) < 0.2


def test_row_without_a_target_has_no_mark() -> None:
    root = parsed([Outcome(Row("x", "x", "s", Better.LOWER, None), (1.0,), (2.0,))])
    assert [line for line in root.findall(f"{SVG}line") if line.get("class") == "target"] == []


def test_rows_that_were_not_measured_are_left_out() -> None:
    root = parsed([Outcome(FASTER, (1.0,), ()), Outcome(SHORTER, (1.0,), (2.0,))])
    assert len(bars(root)) == 1


def test_very_large_and_very_small_ratios_stay_inside_the_picture() -> None:
    root = parsed([Outcome(FASTER, (1.0,), (400.0,)), Outcome(FASTER, (1.0,), (0.004,))])
    width = float(root.get("viewBox", "").split()[2])
    for bar in bars(root):
        start = float(bar.get("x", "nan"))
        assert start >= 0
        assert start + float(bar.get("width", "nan")) <= width


def test_chart_of_nothing_is_still_a_picture() -> None:
    assert bars(parsed([])) == []


def test_colours_follow_the_reader_into_the_dark() -> None:
    assert "prefers-color-scheme: dark" in chart.svg([], "")


def test_longest_title_has_its_place_left_of_the_bars() -> None:
    title = "a title that says at some length what was measured, and beside what"
    long_row = Row("long", title, "s", Better.LOWER, 1.0)
    root = parsed([Outcome(long_row, (1.0,), (2.0,))])
    (label,) = [text for text in root.findall(f"{SVG}text") if text.text == title]
    assert float(label.get("x", "nan")) > 6 * len(title)
    assert float(label.get("x", "nan")) < line_at_one(root)
