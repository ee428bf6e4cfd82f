from __future__ import annotations

import pytest

from ottla.testing.crashes import dying_runs
from ottla.testing.files import MemoryFileSystem

FILES = [f"/data/{number}" for number in range(6)]


def write(fs: MemoryFileSystem) -> None:
    for path in FILES:
        fs.makedirs(path)


def test_a_script_dies_in_each_of_its_operations() -> None:
    runs = list(dying_runs(lambda fs: fs, write, seed=1))
    assert all(run.crashed for run in runs)
    left = [len(run.killed().listdir("/data")) for run in runs]
    assert left == list(range(len(FILES)))


def test_of_many_operations_the_seed_chooses_some() -> None:
    def died(seed: int) -> list[int]:
        runs = dying_runs(lambda fs: fs, write, seed=seed, most=2)
        return [len(run.killed().listdir("/data")) for run in runs]

    assert died(1) == died(1)
    assert len({tuple(died(seed)) for seed in range(10)}) > 1
    assert {len(died(seed)) for seed in range(10)} == {2}


def test_a_script_that_does_something_else_the_second_time_is_noticed() -> None:
    lives: list[int] = []

    def shorter(fs: MemoryFileSystem) -> None:
        for path in FILES[len(lives) :]:
            fs.makedirs(path)
        lives.append(1)

    with pytest.raises(AssertionError, match="did not happen in the second run"):
        list(dying_runs(lambda fs: fs, shorter, seed=1, most=100))
