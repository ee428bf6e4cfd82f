"""The folder of a cluster on one machine is told from that of one broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.broker.cluster_folder import ClusterFolder, belongs_to_cluster
from ottla.broker.start_failed import StartFailed
from ottla.cluster.embedded import EmbeddedStore
from ottla.runtime.files import OsFileSystem

FS = OsFileSystem()


def test_a_new_folder_is_made_and_marked(tmp_path: Path) -> None:
    folder = ClusterFolder((str(tmp_path / "a"), str(tmp_path / "b")))
    assert belongs_to_cluster(FS, folder.roots) is None
    folder.prepare(FS)
    several = "has the data of several brokers"
    assert belongs_to_cluster(FS, folder.roots) == f"{folder.home} {several}"
    assert belongs_to_cluster(FS, folder.roots[1:]) == f"{folder.roots[1]} {several}"
    [one, other] = folder.data(2)
    assert (
        belongs_to_cluster(FS, [one])
        == f"{one} has the data of one of the brokers in {folder.home}"
    )
    assert belongs_to_cluster(FS, [f"{other}/"]) is not None
    assert belongs_to_cluster(FS, [folder.process(2), f"{folder.home}/mine"]) is None
    folder.prepare(FS)


@pytest.mark.parametrize("name", ["meta.properties", "ottla.metadata"])
def test_the_folder_of_one_broker_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(StartFailed, match="is the data folder of a single broker"):
        ClusterFolder((str(tmp_path),)).prepare(FS)
    assert belongs_to_cluster(FS, [str(tmp_path)]) is None


def test_brokers_whose_metadata_is_gone_are_not_started_anew(tmp_path: Path) -> None:
    folder = ClusterFolder((str(tmp_path),))
    folder.prepare(FS)
    (tmp_path / "broker-1").mkdir()
    (tmp_path / "broker-1" / "meta.properties").touch()
    with pytest.raises(StartFailed, match=r"their metadata, which was in .*cluster, is not there"):
        folder.prepare(FS)

    async def bring_back() -> None:
        await (await EmbeddedStore.open(FS, folder.store)).close()

    asyncio.run(bring_back())
    folder.prepare(FS)


def test_metadata_here_and_metadata_in_a_zookeeper_are_not_mixed_up(tmp_path: Path) -> None:
    folder = ClusterFolder((str(tmp_path),))
    folder.prepare(FS, lent=False)
    (tmp_path / "zookeeper").mkdir()
    with pytest.raises(StartFailed, match="start it with --zookeeper"):
        folder.prepare(FS)
    (tmp_path / "zookeeper").rmdir()

    async def make() -> None:
        await (await EmbeddedStore.open(FS, folder.store)).close()

    asyncio.run(make())
    with pytest.raises(StartFailed, match="start it without --zookeeper"):
        folder.prepare(FS, lent=False)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartFailed, match="file/data cannot be used"):
        ClusterFolder((str(tmp_path / "file" / "data"),)).prepare(FS)


def test_brokers_are_found_by_their_processes_and_their_folders(tmp_path: Path) -> None:
    for name in ("broker-2.pid", "broker-10.pid", "broker-x.pid", "supervisor.pid", "broker-7.x"):
        (tmp_path / name).touch()
    for name in ("broker-2", "broker-3", "broker-y", "4"):
        (tmp_path / name).mkdir()
    assert ClusterFolder((str(tmp_path),)).brokers() == [2, 3, 10]
