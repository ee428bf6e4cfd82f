"""The suites that kafka-python and aiokafka test themselves with, as part of `make interop`.

They are run by `tests/conformance/upstream/run.py`, which also says what is left out and why;
here is what of it is written down.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from bench.maven import ROOT
from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from pathlib import Path

    Outcome = dict[str, Any]

RUNNER = ROOT / "tests" / "conformance" / "upstream" / "run.py"


def run(folder: Path, arguments: Sequence[str]) -> list[Outcome]:
    """Both suites; their own output goes to the terminal as it comes."""
    report = folder / "upstream.json"
    subprocess.run([sys.executable, str(RUNNER), "--report", str(report), *arguments], check=False)
    if not report.exists():
        raise BenchError("the suites of kafka-python and aiokafka ended early")
    outcomes: list[Outcome] = json.loads(report.read_text())
    return outcomes


def total(outcome: Outcome) -> int:
    left_out = sum(len(tests) for tests in outcome["left_out"].values())
    return int(outcome["passed"]) + len(outcome["failed"]) + len(outcome["skipped"]) + left_out


def markdown(outcomes: Sequence[Outcome], day: date) -> str:
    """A row per suite, then every test that did not run, with the reason."""
    text = [
        f"Recorded on {day.isoformat()} with `make interop`.",
        "",
        "| suite | tests | passed | failed | skipped by the suite | left out |",
        "|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        left_out = sum(len(tests) for tests in outcome["left_out"].values())
        text.append(
            f"| {outcome['suite']} {outcome['version']} | {total(outcome)} | {outcome['passed']} "
            f"| {len(outcome['failed'])} | {len(outcome['skipped'])} | {left_out} |"
        )
    text += ["", "| suite | reason | tests it is about |", "|---|---|---|"]
    for outcome in outcomes:
        for reason, tests in outcome["left_out"].items():
            text.append(f"| {outcome['suite']} | {reason} | {_names(tests)} |")
        by_reason: dict[str, list[str]] = {}
        for test, reason in outcome["skipped"].items():
            by_reason.setdefault(f"skipped by the suite: {reason}", []).append(test)
        if outcome["again"]:
            by_reason["passed only at the second try, on a busy machine"] = outcome["again"]
        if outcome["failed"]:
            by_reason["**failed**"] = outcome["failed"]
        for reason, tests in by_reason.items():
            text.append(f"| {outcome['suite']} | {reason} | {_names(tests)} |")
    return "\n".join(text)


def _names(tests: Sequence[str]) -> str:
    return f"{len(tests)}: " + ", ".join(f"`{test.rpartition('::')[2]}`" for test in tests)
