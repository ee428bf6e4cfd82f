"""A broker that ends by itself is noticed, also if a fault starts it again at once."""

from __future__ import annotations

import asyncio
import errno
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.testing.process import BrokerProcessError
from ottla.verify.cluster import ClusterUnderTest, NotHealthy
from ottla.verify.failing_broker import FULL, fail_if, mend_disk
from ottla.verify.faults.disks import DiskFull
from ottla.verify.faults.links import CutBrokers
from ottla.verify.faults.processes import Kill, KillAll
from ottla.verify.faults.stores import KillStore, WipeZooKeeper


class FakeBroker:
    """A process that does as it is told, and may crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alive = True
        self.starts_in_vain = 0

    def launch(self) -> None:
        self.alive = not self.starts_in_vain
        self.starts_in_vain = max(0, self.starts_in_vain - 1)

    def wait_listening(self, *, timeout: float) -> None:
        if not self.alive:
            raise BrokerProcessError("has ended", "")

    def kill(self) -> None:
        self.alive = False

    crash = kill


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    found: Any = ClusterUnderTest(tmp_path, brokers=3, store="lent")
    found.brokers.update({number: FakeBroker(tmp_path) for number in (1, 2, 3)})
    return found


def a_fault(kind: type[Any], cluster: Any) -> Any:
    fault = kind(cluster, random.Random(1), lambda *_, **__: None)
    fault.any_broker = lambda: 2
    return fault


def test_a_broker_that_was_killed_has_not_ended_by_itself(cluster: Any) -> None:
    async def play() -> None:
        both = [a_fault(Kill, cluster), a_fault(KillAll, cluster)]
        for fault in both:
            await fault.start()
        for fault in both:
            await fault.heal()

    asyncio.run(play())
    assert cluster.dead() == []


@pytest.mark.parametrize("kind", [Kill, KillAll])
def test_a_broker_that_has_crashed_is_noticed_though_it_is_killed_and_started(
    cluster: Any, kind: type[Any]
) -> None:
    async def play() -> None:
        cluster.brokers[2].crash()
        fault = a_fault(kind, cluster)
        await fault.start()
        await fault.heal()

    asyncio.run(play())
    assert cluster.brokers[2].alive
    assert cluster.dead() == [2]


def test_a_broker_may_end_while_its_disk_is_full_whatever_else_starts_it(cluster: Any) -> None:
    async def play() -> None:
        full, kill = a_fault(DiskFull, cluster), a_fault(KillAll, cluster)
        await full.start()
        await kill.start()
        await kill.heal()
        cluster.brokers[2].crash()
        await full.heal()

    asyncio.run(play())
    assert cluster.dead() == []


def test_a_broker_whose_disk_is_whole_again_may_not_end(cluster: Any) -> None:
    async def play() -> None:
        full = a_fault(DiskFull, cluster)
        await full.start()
        await full.heal()

    asyncio.run(play())
    cluster.brokers[2].crash()
    assert cluster.dead() == [2]


def test_a_broker_that_does_not_get_to_its_metadata_is_started_again(cluster: Any) -> None:
    async def play() -> None:
        cluster.kill(2)
        cluster.brokers[2].starts_in_vain = 2
        await asyncio.gather(cluster.start_brokers([2]), cluster.start_brokers([1, 2, 3]))

    asyncio.run(play())
    assert cluster.brokers[2].alive
    assert cluster.dead() == []


class FakeStore:
    """The process that keeps the metadata."""

    def __init__(self) -> None:
        self.alive = True

    def launch(self) -> None:
        self.alive = True

    def kill(self) -> None:
        self.alive = False


def test_the_metadata_store_is_away_until_all_who_killed_it_start_it(cluster: Any) -> None:
    cluster.store = FakeStore()

    async def play() -> None:
        short, long = a_fault(KillStore, cluster), a_fault(KillStore, cluster)
        await long.start()
        await short.start()
        await short.heal()
        assert not cluster.store.alive
        await long.heal()

    asyncio.run(play())
    assert cluster.store.alive


def played(cluster: Any, kind: type[Any], *during: Any) -> bool:
    """Whether a fault of this kind happens while others last."""

    async def play() -> bool:
        for other in during:
            await other.start()
        fault = a_fault(kind, cluster)
        await fault.start()
        await fault.heal()
        return bool(fault.happened())

    return asyncio.run(play())


def test_what_is_dead_already_is_not_killed(cluster: Any) -> None:
    cluster.store = FakeStore()
    assert played(cluster, Kill)
    assert not played(cluster, Kill, a_fault(KillAll, cluster))
    assert played(cluster, KillStore)
    assert not played(cluster, KillStore, a_fault(KillStore, cluster))


def test_a_link_over_which_nothing_goes_is_not_cut(cluster: Any) -> None:
    assert not played(cluster, CutBrokers)


def test_a_disk_to_which_nobody_writes_is_not_full(cluster: Any, tmp_path: Path) -> None:
    assert not played(cluster, DiskFull)
    (tmp_path / FULL).touch()  # as a broker that writes finds it
    with pytest.raises(OSError, match="No space left"):
        fail_if(str(tmp_path / FULL), errno.ENOSPC, "a file")
    assert mend_disk(tmp_path, FULL)
    assert not mend_disk(tmp_path, FULL)


def test_an_import_that_does_not_end_is_the_clusters_failure(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(line: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(line, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    cluster.zookeepers = [SimpleNamespace(port=1)]
    fault = a_fault(WipeZooKeeper, cluster)
    fault._backup = "backup.json"
    with pytest.raises(NotHealthy, match="`ottla metadata import` has not ended after 120 s"):
        asyncio.run(fault._ottla("import"))
