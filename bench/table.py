"""The table as Markdown and its place between two markers of a document. No I/O."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.figures import Outcome


def figure(value: float) -> str:
    """Three significant digits, thousands separated, no exponent."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}"


def markdown(
    outcomes: Sequence[Outcome], sides: tuple[str, str] = ("Apache Kafka", "Ottla")
) -> str:
    """One line per row: medians with all their samples' range, ratio, target, verdict."""
    lines = [
        f"| figure | unit | {sides[0]} | {sides[1]} | ratio | to reach | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for outcome in outcomes:
        row = outcome.row
        lines.append(
            f"| {row.title} | {row.unit} | {_cell(outcome.kafka)} | {_cell(outcome.ottla)} "
            f"| {_ratio(outcome)} | {row.to_reach} | {outcome.verdict} |"
        )
    return "\n".join(lines)


def text(outcomes: Sequence[Outcome], sides: tuple[str, str] = ("Kafka", "Ottla")) -> str:
    """The same for a terminal, columns aligned."""
    grid = [("figure", "unit", *sides, "ratio", "to reach", "")]
    for outcome in outcomes:
        row = outcome.row
        grid.append(
            (
                row.title,
                row.unit,
                _median(outcome.kafka),
                _median(outcome.ottla),
                _ratio(outcome),
                row.to_reach,
                outcome.verdict,
            )
        )
    widths = [max(len(line[column]) for line in grid) for column in range(7)]
    lines = []
    for line in grid:
        cells = [
            cell.ljust(width) if column in {0, 1, 6} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def replace_between(document: str, name: str, content: str) -> str:
    """The document with what stands between its two markers replaced; the markers stay."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, opening, rest = document.partition(begin)
    _old, closing, tail = rest.partition(end)
    if not opening or not closing:
        raise ValueError(f"the document has no place for {name!r}")
    return f"{head}{begin}\n{content.strip()}\n{end}{tail}"


def _median(samples: Sequence[float]) -> str:
    return figure(median(samples)) if samples else "failed"


def _cell(samples: Sequence[float]) -> str:
    if not samples:
        return "failed"
    if len(samples) == 1:
        return figure(samples[0])
    return f"**{_median(samples)}** ({figure(min(samples))} … {figure(max(samples))})"


def _ratio(outcome: Outcome) -> str:
    return f"{outcome.ratio:.2f}" if outcome.measured else ""
