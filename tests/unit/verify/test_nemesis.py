"""A cluster is whole again when it is so everywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.verify.clients.writer import Progress
from ottla.verify.history import History, Recorder
from ottla.verify.nemesis import GaveUp, Nemesis


class Healthy(SimpleNamespace):
    """A cluster in which all replicas say that they are in sync."""

    def dead(self) -> list[int]:
        return []

    async def wait_healthy(self, topics: object, seconds: float) -> None:
        return


async def wait_whole(path: Path, partitions: set[int], *, patience: float) -> None:
    """Wait for a cluster that goes on in these partitions, of two."""
    progress = Progress()
    progress.expect("t", 2)

    async def write() -> None:
        while True:
            for partition in partitions:
                progress.note_acknowledged(100, "t", partition)
            await asyncio.sleep(0.01)

    cluster: Any = Healthy()
    with Recorder(path, {}) as recorder:
        nemesis = Nemesis(cluster, [], ["t"], progress, recorder, seed=1, patience=patience)
        writing = asyncio.ensure_future(write())
        try:
            await nemesis.wait_whole()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


def test_a_cluster_that_goes_on_in_every_partition_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    asyncio.run(wait_whole(path, {0, 1}, patience=60.0))
    assert [(event.action, event.phase) for event in History(path)] == [("healed", "ok")]


def test_a_partition_that_takes_nothing_any_more_is_named(tmp_path: Path) -> None:
    with pytest.raises(GaveUp, match=r"nothing is acknowledged in t-1 for 0\.5 s"):
        asyncio.run(wait_whole(tmp_path / "history.gz", {0}, patience=0.5))
