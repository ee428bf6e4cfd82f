"""The ratios as a bar chart: one SVG, written by hand, no library. No I/O.

The axis is logarithmic and shows how many times better Ottla is, so that rows where more is better
and rows where less is better read the same way: right of the line it leads. A tick marks the
target. Colours follow the reader's light or dark scheme; the background is left to the page.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from bench.figures import Better

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.figures import Outcome

_TITLE = "Ottla beside Apache Kafka: how many times better"
_TIMES = "\N{MULTIPLICATION SIGN}"
_LABELS = 330
_LETTER = 6.7
"""About how wide a letter of a label is: the longest title decides where the bars begin."""
_BARS = 430
_VALUES = 90
_TOP = 58
_LINE = 26
_BAR = 14
_STYLE = """\
    text { font: 13px system-ui, sans-serif; fill: #24292f; }
    .small { font-size: 11px; fill: #57606a; }
    .title { font-size: 15px; font-weight: 600; }
    .grid { stroke: #8c959f; stroke-opacity: .35; }
    .one { stroke: #57606a; stroke-width: 1.5; }
    .ahead { fill: #1a7f5a; }
    .behind { fill: #bc4c00; }
    .target { stroke: #24292f; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .small { fill: #9da7b3; }
      .one { stroke: #9da7b3; }
      .ahead { fill: #3fb98a; }
      .behind { fill: #f0883e; }
      .target { stroke: #e6edf3; }
    }"""


def svg(outcomes: Sequence[Outcome], subtitle: str) -> str:
    """The chart of all rows that were measured on both sides."""
    shown = [
        outcome for outcome in outcomes if outcome.measured and math.isfinite(outcome.advantage)
    ]
    low, high = _range([outcome.advantage for outcome in shown])
    labels = max([_LABELS, *(round(len(each.row.title) * _LETTER) + 24 for each in shown)])
    width = labels + _BARS + _VALUES
    height = _TOP + _LINE * len(shown) + 44
    bottom = _TOP + _LINE * len(shown) + 4

    def across(advantage: float) -> float:
        return labels + _BARS * (math.log10(advantage) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Ottla beside Apache Kafka">',
        f"  <style>\n{_STYLE}\n  </style>",
        f'  <text class="title" x="12" y="22">{_TITLE}</text>',
        f'  <text class="small" x="12" y="40">{escape(subtitle)}</text>',
    ]
    for tick in _ticks(low, high):
        x = across(tick)
        kind = "one" if tick == 1 else "grid"
        parts.append(
            f'  <line class="{kind}" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
        )
        parts.append(
            f'  <text class="small" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{tick:g}{_TIMES}</text>"
        )
    for index, outcome in enumerate(shown):
        y = _TOP + _LINE * index
        parts += _bar(outcome, y, labels, across)
    parts.append(
        f'  <text class="small" x="{labels}" y="{bottom + 32}">right of 1{_TIMES}: Ottla leads; '
        "a short upright line is the target</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def _bar(outcome: Outcome, y: int, labels: int, across: Callable[[float], float]) -> list[str]:
    advantage = outcome.advantage
    start, end = sorted((across(1.0), across(advantage)))
    colour = "ahead" if advantage >= 1 else "behind"
    middle = y + _BAR - 3
    title = escape(outcome.row.title)
    parts = [
        f'  <text x="{labels - 12}" y="{middle}" text-anchor="end">{title}</text>',
        f'  <rect class="{colour}" x="{start:.1f}" y="{y}" width="{max(1.5, end - start):.1f}" '
        f'height="{_BAR}" rx="2"/>',
        f'  <text x="{labels + _BARS + _VALUES - 16}" y="{middle}" text-anchor="end">'
        f"{advantage:.2f}{_TIMES}</text>",
    ]
    if outcome.row.target is not None:
        higher = outcome.row.better is Better.HIGHER
        target = across(outcome.row.target if higher else 1 / outcome.row.target)
        parts.append(
            f'  <line class="target" x1="{target:.1f}" y1="{y - 3}" '
            f'x2="{target:.1f}" y2="{y + _BAR + 3}"/>'
        )
    return parts


def _range(advantages: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis as powers of ten, with one and every target well inside."""
    low = min([math.log10(0.5), *(math.log10(value) for value in advantages)])
    high = max([1.0, *(math.log10(value) for value in advantages)])
    return low - 0.05, high + 0.1


def _ticks(low: float, high: float) -> list[float]:
    ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    return [tick for tick in ticks if low <= math.log10(tick) <= high]
