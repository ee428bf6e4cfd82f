"""How to know from outside that a broker has compacted: `cleaner-offset-checkpoint`.

Kafka's file, in the folder of the logs: a line with its version, one with the number of entries,
then `topic partition offset`, up to which that log is compacted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Goals = Mapping[tuple[str, int], int]

_CHECKPOINT = "cleaner-offset-checkpoint"
_PAUSE = 0.02


def parse_checkpoint(text: str) -> dict[tuple[str, int], int]:
    """The entries of a checkpoint; of one that is not whole, nothing."""
    lines = text.splitlines()
    if (
        len(lines) < 2
        or lines[0] != "0"
        or not lines[1].isdigit()
        or int(lines[1]) != len(lines) - 2
    ):
        return {}
    found = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        found[topic, int(partition)] = int(offset)
    return found


def read_checkpoint(data: Path) -> dict[tuple[str, int], int]:
    try:
        return parse_checkpoint((data / _CHECKPOINT).read_text())
    except FileNotFoundError:
        return {}


def active_offset(folder: Path) -> int:
    """The first offset of a log's active segment, as its name tells."""
    names = sorted(file.stem for file in folder.glob("*.log"))
    if not names:
        raise BenchError(f"{folder.name} has no segments")
    return int(names[-1])


def log_bytes(folder: Path) -> int:
    """What the segments of a log hold. Those that wait for their removal are not among them."""
    total = 0
    for file in folder.glob("*.log"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # replaced meanwhile
            continue
    return total


def wait_compacted(name: str, data: Path, goals: Goals, *, sign: float, patience: float) -> None:
    """Return when every log is compacted up to its goal.

    A broker that has noted nothing about any of them after `sign` seconds is taken for one that
    does not compact.
    """
    began = time.monotonic()
    while True:
        found = read_checkpoint(data)
        left = {log for log, goal in goals.items() if found.get(log, -1) < goal}
        if not left:
            return
        waited = time.monotonic() - began
        if waited > sign and not any(log in found for log in goals):
            raise BenchError(
                f"{name} does not compact: after {waited:.0f} s its {_CHECKPOINT} has no entry "
                f"of {_named(left)}"
            )
        if waited > patience:
            raise BenchError(
                f"{name} had not compacted {_named(left)} after {waited:.0f} s; the "
                f"{_CHECKPOINT} says {[found.get(log) for log in sorted(left)[:3]]}"
            )
        time.sleep(_PAUSE)


def _named(logs: set[tuple[str, int]]) -> str:
    first = "-".join(map(str, min(logs)))
    return first if len(logs) == 1 else f"{first} and {len(logs) - 1} more"
