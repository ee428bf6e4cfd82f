"""How often the disk is asked, where thousands of partitions make it many times."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicId, TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories
from ottla.storage.log import Log
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFile, MemoryFileSystem

ID = TopicId(b"\x01" * 16)
CONFIG = TopicConfig()
T0 = TopicPartition("t", 0)
LOG = "t-0/00000000000000000000.log"
SNAPSHOT = "t-0/00000000000000000001.snapshot"


class RecordingFileSystem(MemoryFileSystem):
    """A disk that also remembers what it was asked, not only what was changed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def of_partition(self) -> list[tuple[str, str]]:
        """What was asked about partitions: the operation, and the path in the data folder."""
        return [
            (operation, path.removeprefix("/data/"))
            for operation, path in self.asked
            if path.startswith("/data/t-")
        ]

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self.asked.append(("create" if create else "open", path))
        return super().open(path, create=create)

    def exists(self, path: str) -> bool:
        self.asked.append(("exists", path))
        return super().exists(path)

    def is_dir(self, path: str) -> bool:
        self.asked.append(("is_dir", path))
        return super().is_dir(path)

    def listdir(self, path: str) -> list[str]:
        self.asked.append(("listdir", path))
        return super().listdir(path)

    def size(self, path: str) -> int:
        self.asked.append(("size", path))
        return super().size(path)

    def makedirs(self, path: str) -> bool:
        self.asked.append(("makedirs", path))
        return super().makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self.asked.append(("rename", target))
        super().rename(source, target)

    def read_bytes(self, path: str) -> bytes:
        self.asked.append(("read", path))
        return super().read_bytes(path)

    def sync_dir(self, path: str) -> None:
        self.asked.append(("sync_dir", path))
        super().sync_dir(path)


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    made = Workers()
    yield made
    made.close()


async def started(fs: MemoryFileSystem, workers: Workers) -> LogDirectories:
    directories = LogDirectories(fs, ["/data"], clock=ManualClock(), workers=workers)
    directories.open_folders()
    directories.identify(1, "AAAAAAAAAAAAAAAAAAAAAQ")
    await directories.load(lambda _: CONFIG)
    return directories


def append(log: Log) -> None:
    batch = memoryview(bytearray(build_batch([(0, None, b"one", ())])))
    log.append(batch, leader_epoch=0, now_ms=0)


async def test_a_first_record_makes_what_it_needs_and_looks_for_nothing(workers: Workers):
    fs = RecordingFileSystem()
    directories = await started(fs, workers)
    fs.asked.clear()
    fs.journal.clear()
    append(directories.create(T0, ID, CONFIG, is_new=True))
    assert fs.of_partition() == [
        ("makedirs", "t-0"),
        ("create", LOG),
        ("create", "t-0/partition.metadata.tmp"),
        ("rename", "t-0/partition.metadata"),
        ("create", "t-0/leader-epoch-checkpoint.tmp"),
        ("rename", "t-0/leader-epoch-checkpoint"),
        ("open", LOG),
    ]
    done = [(change.kind, change.path.removeprefix("/data/")) for change in fs.journal]
    assert done == [
        ("mkdir", "t-0"),
        ("create", LOG),
        ("create", "t-0/partition.metadata.tmp"),
        ("append", "t-0/partition.metadata.tmp"),
        ("rename", "t-0/partition.metadata.tmp"),
        ("create", "t-0/leader-epoch-checkpoint.tmp"),
        ("append", "t-0/leader-epoch-checkpoint.tmp"),
        ("rename", "t-0/leader-epoch-checkpoint.tmp"),
        ("append", LOG),
    ]


async def test_a_folder_that_was_there_is_looked_through_all_the_same(workers: Workers):
    fs = RecordingFileSystem()
    directories = await started(fs, workers)
    fs.makedirs("/data/t-0")
    fs.open(f"/data/{LOG}.deleted", create=True).close()
    log = directories.create(T0, ID, CONFIG, is_new=True)
    append(log)
    assert fs.listdir("/data/t-0") == [
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


async def test_a_log_that_was_stopped_cleanly_is_listed_once(workers: Workers):
    fs = RecordingFileSystem()
    directories = await started(fs, workers)
    append(directories.create(T0, ID, CONFIG, is_new=True))
    await directories.close()
    fs.asked.clear()
    directories = await started(fs, workers)
    assert directories.logs[T0].log_end_offset == 1
    listed = [asked for asked in fs.of_partition() if asked[0] == "listdir"]
    assert listed == [("listdir", "t-0")]
    read = [path for operation, path in fs.of_partition() if operation == "read"]
    assert sorted(set(read)) == sorted(read), "nothing is read twice"
    assert SNAPSHOT in read
    opened = [path for operation, path in fs.of_partition() if operation == "open"]
    assert sorted(set(opened)) == sorted(opened), "nothing is opened twice"
