"""`ottla metadata` on folders made by hand: what is refused, and that nothing is lost by that."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from ottla.broker.cluster_folder import ClusterFolder
from ottla.cluster import journal, layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.registry import Registry
from ottla.cluster.store import Create
from ottla.model.ids import TopicId, topic_id_text
from ottla.model.topic import PartitionState, Topic
from ottla.records.builder import build_batch
from ottla.runtime.files import OsFileSystem

Run = Callable[..., Result]
STATE = PartitionState(7, 0, 0, (7,), (7,))
ONE, TWO = TopicId(b"1" * 16), TopicId(b"2" * 16)


def partition(folder: Path, name: str, topic_id: TopicId = ONE) -> None:
    path = folder / name
    path.mkdir()
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id_text(topic_id)}")
    (path / f"{0:020d}.log").write_bytes(build_batch([(1, None, b"v", ())]))


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """The data folder of a stopped broker with the topic `orders`."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=c\n")
    partition(folder, "orders-0")
    store = await EmbeddedStore.open(OsFileSystem(), str(folder / "metadata"))
    registry = Registry(store)
    await registry.ensure_cluster_id("c")
    await registry.create_topics([Topic("orders", ONE, (STATE,), {"retention.ms": "5"})])
    await store.close()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (each for each in folder.rglob("*") if each.is_file() and each.name != ".lock")
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


@pytest.mark.parametrize("words", [("export", "-"), ("rescue", "--yes")])
def test_brokers_that_share_their_metadata_are_refused(
    ottla: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    together = ClusterFolder((str(tmp_path / "data"),))
    together.prepare(OsFileSystem())
    [one] = map(Path, together.data(1))
    one.mkdir()
    (one / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    partition(one, "orders-0")
    before = contents(tmp_path)
    for folder in (together.home, str(one)):
        refused = ottla("metadata", *words, "--data-dir", folder)
        assert refused.exit_code == 1
        assert f"their metadata is in {together.store}" in refused.output
    assert contents(tmp_path) == before
    (tmp_path / "data" / "zookeeper").mkdir()
    refused = ottla("metadata", *words, "--data-dir", str(one))
    assert "their metadata is in a ZooKeeper" in refused.output


def test_an_export_can_be_imported_elsewhere(ottla: Run, folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    printed = ottla("metadata", "export", "-", "--data-dir", str(folder))
    assert printed.exit_code == 0
    assert contents(folder) == before
    file = tmp_path / "backup.json"
    written = ottla("metadata", "export", str(file), "--data-dir", str(folder))
    assert written.exit_code == 0
    assert file.read_text() == printed.stdout
    for each in (folder / "metadata").iterdir():
        each.unlink()
    (folder / "metadata").rmdir()
    looked = ottla("metadata", "import", str(file), "--data-dir", str(folder))
    assert looked.exit_code == 0
    assert "nothing was changed" in looked.stdout
    assert not (folder / "metadata").exists()
    done = ottla("metadata", "import", str(file), "--data-dir", str(folder), "--yes")
    assert done.exit_code == 0, done.output
    entries = journal.read(OsFileSystem(), str(folder / "metadata")).entries
    assert b"retention.ms" in entries["topics/orders"].value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:-30], "cannot be imported"),
        (lambda text: text.replace("orders", "errors"), "checksum"),
    ],
)
def test_a_damaged_file_changes_nothing(
    ottla: Run, folder: Path, tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    text = ottla("metadata", "export", "-", "--data-dir", str(folder)).stdout
    file = tmp_path / "backup.json"
    file.write_text(change(text))
    before = contents(folder)
    outcome = ottla(
        "metadata", "import", str(file), "--data-dir", str(folder), "--yes", "--replace"
    )
    assert outcome.exit_code == 1
    assert said in outcome.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("line", ["node.id=7\ncluster.id=other", "node.id=8\ncluster.id=c"])
def test_the_backup_of_another_broker_changes_nothing(
    ottla: Run, folder: Path, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "backup.json"
    assert ottla("metadata", "export", str(file), "--data-dir", str(folder)).exit_code == 0
    (folder / "meta.properties").write_text(f"version=1\n{line}\n")
    before = contents(folder)
    outcome = ottla(
        "metadata", "import", str(file), "--data-dir", str(folder), "--yes", "--replace"
    )
    assert outcome.exit_code == 1
    assert "nothing was changed" in outcome.stderr
    assert contents(folder) == before


def test_conflicts_are_shown_and_nothing_is_done(ottla: Run, folder: Path) -> None:
    partition(folder, "orders-1", TWO)
    before = contents(folder)
    outcome = ottla("metadata", "rescue", "--data-dir", str(folder), "--yes", "--replace", "--json")
    assert outcome.exit_code == 1
    document = json.loads(outcome.stdout)
    assert not document["done"]
    assert "more than one topic id" in document["conflicts"][0]
    assert "1 conflict" in outcome.stderr
    assert contents(folder) == before


def test_metadata_that_is_there_is_not_rescued(ottla: Run, folder: Path) -> None:
    before = contents(folder)
    outcome = ottla("metadata", "rescue", "--data-dir", str(folder), "--yes")
    assert outcome.exit_code == 1
    assert "--replace" in outcome.stderr
    assert contents(folder) == before


def test_a_damaged_store_is_not_exported(ottla: Run, folder: Path) -> None:
    (snapshot,) = (folder / "metadata").glob("snapshot-*")
    snapshot.write_bytes(b"rubbish")
    outcome = ottla("metadata", "export", "-", "--data-dir", str(folder))
    assert outcome.exit_code == 1
    assert "its checksum is wrong" in outcome.stderr


async def test_an_old_copy_is_not_exported(ottla: Run, folder: Path) -> None:
    store = await EmbeddedStore.open(OsFileSystem(), str(folder / "metadata"))
    await store.commit(Create(layout.HANDED_OVER, layout.encode_hand_over("zk:2181/ottla")))
    await store.close()
    refused = ottla("metadata", "export", "-", "--data-dir", str(folder))
    assert refused.exit_code == 1
    assert "is an old copy, it was handed over to ZooKeeper" in refused.stderr
    assert "with --zookeeper zk:2181/ottla" in refused.stderr
    assert refused.stdout == ""


def test_what_brokers_share_is_not_rescued_from_the_folders_of_one(
    ottla: Run, folder: Path, tmp_path: Path
) -> None:
    shutil.rmtree(folder / "metadata")
    before = contents(folder)
    file = tmp_path / "server.properties"
    file.write_text(f"broker.id=7\nlog.dir={folder}\nzookeeper.connect=127.0.0.1:1/ottla\n")
    refused = ottla("metadata", "rescue", "--config", str(file), "--yes")
    assert refused.exit_code == 1
    assert "`ottla metadata import FILE --zookeeper 127.0.0.1:1/ottla`" in refused.stderr
    assert contents(folder) == before
    assert ottla("metadata", "rescue", "--data-dir", str(folder), "--yes").exit_code == 0


def test_a_data_folder_must_be_named(ottla: Run, tmp_path: Path) -> None:
    assert ottla("metadata", "rescue").exit_code == 2
    assert ottla("metadata", "rescue", "--data-dir", "x", "--partitions", "orders").exit_code == 2
    outcome = ottla("metadata", "export", "-", "--data-dir", str(tmp_path))
    assert outcome.exit_code == 1
    assert "there is no metadata in" in outcome.stderr
    empty = ottla("metadata", "rescue", "--data-dir", str(tmp_path), "--yes")
    assert empty.exit_code == 1
    assert "nothing to rebuild" in empty.stderr
