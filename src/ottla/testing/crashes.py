"""A script that changes a disk, run again and again: dead at each of its operations in turn.

    runs = dying_runs(Run, lambda run: run.perform(script), seed=7)
    for run in runs:
        run.check(run.fs.killed())

The script is run once to count its operations on the disk, then once more for each of them. It dies
there, with a write torn at some byte. The script has to do the same in every run, so that the
operations have the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from ottla.testing.files import Crashed, MemoryFileSystem
from ottla.testing.logs import DATA_FOLDER

R = TypeVar("R")

MOST_DEATHS = 40
"""Of a script with more operations than this, that many are drawn to die in."""


def dying_runs(
    start: Callable[[MemoryFileSystem], R],
    perform: Callable[[R], object],
    *,
    seed: int,
    most: int = MOST_DEATHS,
) -> Iterator[R]:
    """What `start` made of a fresh disk, after `perform` died on it.

    The seed chooses the bytes at which writes are torn and, among more operations than `most`,
    those to die in.
    """
    whole = _prepared_disk()
    first = start(whole)
    begin = whole.operations
    perform(first)
    numbers = range(begin, whole.operations)
    rng = random.Random(seed)
    for number in sorted(rng.sample(numbers, min(most, len(numbers)))):
        disk = _prepared_disk()
        run = start(disk)
        size = whole.journal[number].size
        disk.crash_at(number, torn=rng.choice((0, 1, size // 2, max(0, size - 1), size)))
        try:
            perform(run)
        except Crashed:
            pass  # or it died in the background
        if not disk.crashed:
            raise AssertionError(f"operation {number} did not happen in the second run")
        yield run


def _prepared_disk() -> MemoryFileSystem:
    """A disk whose data folder was there before: only what is in it is at stake."""
    fs = MemoryFileSystem()
    fs.makedirs(DATA_FOLDER)
    fs.sync_dir("/")
    return fs
