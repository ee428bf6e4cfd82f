"""A cluster is whole again when it is so everywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.verify.checks import judge
from ottla.verify.clients.writer import Progress
from ottla.verify.faults.fault import Fault
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


class Destroys(Fault):
    """A fault that destroys data."""

    name = "destroys"
    seconds = (0.0, 0.0)
    alone = True

    async def start(self) -> str:
        cluster: Any = self.cluster
        cluster.calls.append("start")
        return "everything"

    async def heal(self) -> None:
        return


def test_data_is_destroyed_only_where_all_replicas_are_in_sync_just_then(tmp_path: Path) -> None:
    """Not only after the round before: it may be a minute until many requests are in flight."""
    calls: list[str] = []
    progress = Progress(busy=1)

    class Watched(Healthy):
        async def wait_healthy(self, topics: object, seconds: float) -> None:
            calls.append("look")
            progress.note_acknowledged(1_000, "t", 0)

    cluster: Any = Watched(calls=calls)

    async def play(recorder: Recorder) -> None:
        nemesis = Nemesis(cluster, [Destroys], ["t"], progress, recorder, seed=1)
        playing = asyncio.ensure_future(nemesis.round())
        while not progress.pressing:
            await asyncio.sleep(0.01)
        calls.append("busy")
        progress.in_flight = 1
        while "start" not in calls:
            await asyncio.sleep(0.01)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

    with Recorder(tmp_path / "history.gz", {}) as recorder:
        asyncio.run(play(recorder))
    assert calls[:3] == ["busy", "look", "start"]


class Idle(Destroys):
    """A fault that finds nothing to break."""

    def happened(self) -> bool:
        return False


def test_a_fault_that_has_met_nothing_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "history.gz"
    cluster: Any = Healthy(calls=[])
    progress = Progress()
    said: list[str] = []

    async def play(recorder: Recorder) -> None:
        nemesis = Nemesis(cluster, [Idle], ["t"], progress, recorder, seed=1, on_fault=said.append)
        playing = asyncio.ensure_future(nemesis.round())
        while not playing.done():
            progress.note_acknowledged(10, "t", 0)
            await asyncio.sleep(0.001)
        playing.result()
        assert (nemesis.faults, nemesis.fewest_in_flight) == (0, None)

    with Recorder(path, {}) as recorder:
        asyncio.run(play(recorder))
    assert said[-1] == "destroys: there was nothing to break; it does not count"
    assert judge(History(path)).faults == 0
