"""What the comparison of the tools came to, for the terminal and for docs/compatibility.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from bench.tools.compare import Verdict

_SHORT = {"equal": "equal", "known": "known", "different": "DIFFERS", "stale": "STALE"}


def terminal(verdict: Verdict) -> str:
    """One line, and the difference below it when there is one that nobody knew of."""
    line = f"  {_SHORT[verdict.outcome]:8} {verdict.step.words}"
    if verdict.outcome == "known":
        return f"{line}\n           {verdict.detail}"
    shown = verdict.detail.splitlines()
    return "\n".join([line, *(f"           {each}" for each in shown)])


def markdown(verdicts: Sequence[Verdict], day: date) -> str:
    """A row per tool, then every known difference with its reason."""
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    bad = outcomes["different"] + outcomes["stale"]
    text = [
        f"Recorded on {day.isoformat()} with `make interop`: {len(verdicts)} commands, "
        f"{outcomes['equal']} equal, {outcomes['known']} with a known difference, {bad} failed.",
        "",
        "| tool | commands | equal | known difference | failed |",
        "|---|---|---|---|---|",
    ]
    for tool in sorted({verdict.step.tool for verdict in verdicts}):
        found = Counter(verdict.outcome for verdict in verdicts if verdict.step.tool == tool)
        text.append(
            f"| `{tool}` | {found.total()} | {found['equal']} | {found['known']} "
            f"| {found['different'] + found['stale']} |"
        )
    known = [verdict for verdict in verdicts if verdict.outcome == "known"]
    if known:
        text += ["", "| command | what differs, and why |", "|---|---|"]
        # a pipe would end the cell
        cells = [(each.step.words.replace("|", "\\|"), each.detail) for each in known]
        text += [f"| `{words}` | {why} |" for words, why in cells]
    return "\n".join(text)
