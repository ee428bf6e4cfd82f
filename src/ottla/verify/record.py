"""A record: a folder of histories, one for each of many runs, whose results add up.

A long run is made in parts, so that whoever stops it, or loses power, loses one part. Beside each
history that was judged lies a small file that says what came of it. They tell a later run how much
there is already; `add_up` does not believe them, and judges every history again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ottla
from ottla.verify.checks import Verdict, judge
from ottla.verify.history import History, NoHistory

SUFFIX = ".history.gz"
PART = 100
"""Faults in one history."""


def code_digest() -> str:
    """Tells one state of the program from every other."""
    digest = hashlib.sha256()
    top = Path(ottla.__file__).parent
    for path in sorted(top.rglob("*.py")):
        digest.update(str(path.relative_to(top)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def histories(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def next_history(folder: Path, seed: int) -> Path:
    """Where the next part goes."""
    return folder / f"{len(histories(folder)) + 1:04d}-{seed}{SUFFIX}"


def note(history: Path, store: str, verdict: Verdict, *, complete: bool) -> None:
    """Say beside a history what came of it."""
    document = {
        "store": store,
        "complete": complete,
        "faults": dict(verdict.kinds),
        "anomalies": len(verdict.anomalies) + verdict.left_out,
    }
    _note_of(history).write_text(json.dumps(document) + "\n")


def faults_so_far(folder: Path, store: str) -> int:
    """How many faults are in parts that came to their end, on this kind of store."""
    found = 0
    for history in histories(folder):
        document = _read_note(_note_of(history))
        if document is not None and document["complete"] and document["store"] == store:
            found += sum(document["faults"].values())
    return found


def _read_note(path: Path) -> dict[str, Any] | None:
    """What a run has said of itself; None of one that was killed before, or while it did so."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return document


def _note_of(history: Path) -> Path:
    return history.with_name(history.name.removesuffix(SUFFIX) + ".json")


@dataclass(slots=True)
class Total:
    """Many runs, added up."""

    runs: int = 0
    incomplete: list[Path] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Why a file could not be judged: its writer was killed before it had written anything."""
    codes: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    events: int = 0
    acknowledged: int = 0
    overlapping: int = 0
    fewest_in_flight: int | None = None
    seconds: int = 0
    available: int = 0
    calm: int = 0
    calm_available: int = 0
    committed: int = 0  # transactions
    aborted: int = 0
    undecided: int = 0
    flaws: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[Path, Verdict]] = field(default_factory=list)

    @property
    def anomalies(self) -> int:
        return sum(len(verdict.anomalies) + verdict.left_out for _, verdict in self.bad)

    def add(self, history: History, verdict: Verdict) -> None:
        """One more. Of a run that did not come to its end only anomalies count: what it had at its
        end nobody has looked at."""
        if verdict.anomalies:
            self.bad.append((history.path, verdict))
        if not history.complete:
            self.incomplete.append(history.path)
            return
        self.runs += 1
        self.codes.add(str(history.header.get("code", "unknown")))
        self.kinds.update(verdict.kinds)
        self.events += verdict.events
        self.acknowledged += verdict.acknowledged
        self.overlapping += verdict.overlapping
        self.seconds += verdict.seconds
        self.available += verdict.available
        self.calm += verdict.calm
        self.calm_available += verdict.calm_available
        self.committed += verdict.committed
        self.aborted += verdict.aborted
        self.undecided += verdict.undecided
        self.flaws.update(verdict.flaws)
        fewest = [
            each for each in (self.fewest_in_flight, verdict.fewest_in_flight) if each is not None
        ]
        self.fewest_in_flight = min(fewest, default=None)


def add_up(paths: Iterable[Path]) -> Total:
    """Judge histories, one after the other. What is none is named, and does not count."""
    total = Total()
    for path in paths:
        try:
            history = History(path)
        except NoHistory as error:
            total.unreadable.append(str(error))
            continue
        total.add(history, judge(history))
    return total
