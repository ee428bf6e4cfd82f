"""The data folders of a broker: start, stop, and what goes wrong in between."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicId, TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.clock import SystemClock
from ottla.runtime.files import OsFileSystem
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories, StorageSettings, StorageUnavailable

ID = TopicId(b"\x01" * 16)
CONFIG = TopicConfig()
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
U0 = TopicPartition("u", 0)


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


def held(folder: Path) -> int:
    """How many files in a folder this process has open."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, by whatever else runs here
            found += os.readlink(f"/proc/self/fd/{entry}").startswith(f"{folder}/")
    return found


class TestRealDisk:
    def directories(self, folder: Path, workers: Workers) -> LogDirectories:
        settings = StorageSettings(child_scan_bytes=1000)
        return LogDirectories(
            OsFileSystem(), [str(folder)], clock=SystemClock(), workers=workers, settings=settings
        )

    async def test_large_scans_run_in_children(
        self, tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = self.directories(tmp_path, workers)
        first.open_folders()
        await first.load(lambda _: CONFIG)
        for partition in (T0, T1, U0):
            log = first.create(partition, ID, CONFIG)
            for number in range(50):
                batch = build_batch(
                    [(log._clock.now_ms(), None, b"v" * 100, ())],
                    producer_id=partition.partition,
                    producer_epoch=0,
                    base_sequence=number,
                )
                log.append(memoryview(bytearray(batch)), leader_epoch=2, now_ms=log._clock.now_ms())
        first._release_locks()  # killed
        torn = tmp_path / "t-0" / "00000000000000000000.log"
        os.truncate(torn, torn.stat().st_size - 10)
        damaged = tmp_path / "u-0" / "00000000000000000000.log"
        with damaged.open("r+b") as file:
            file.seek(300)
            file.write(b"\xff" * 20)

        used: list[Callable[..., object]] = []
        in_child = workers.run_in_child

        async def counted(function: Callable[..., object], *args: object) -> object:
            used.append(function)
            return await in_child(function, *args)

        monkeypatch.setattr(workers, "run_in_child", counted)
        second = self.directories(tmp_path, workers)
        second.open_folders()
        await second.load(lambda _: CONFIG)
        assert len(used) == 3
        assert {tp: log.log_end_offset for tp, log in second.logs.items()} == {T0: 49, T1: 50}
        assert second.logs[T0].latest_epoch == 2
        assert [each.last_sequence for each in second.logs[T1].producers()] == [49]
        assert "u-0" in second.offline_partitions[U0]
        await second.close()

    async def test_a_second_process_is_kept_out(self, tmp_path: Path, workers: Workers) -> None:
        first = self.directories(tmp_path, workers)
        first.open_folders()
        with pytest.raises(StorageUnavailable, match="in use by another process"):
            self.directories(tmp_path, workers).open_folders()
        first._release_locks()

    async def test_many_partitions_need_few_descriptors(
        self, tmp_path: Path, workers: Workers
    ) -> None:
        directories = self.directories(tmp_path, workers)
        directories.open_folders()
        await directories.load(lambda _: CONFIG)
        for number in range(300):
            directories.create(TopicPartition("many", number), ID, CONFIG, is_new=True)
        assert held(tmp_path) < 20
        directories._release_locks()
        again = self.directories(tmp_path, workers)
        again.open_folders()
        gc.collect()
        gc.disable()  # a broker's comes by rarely
        try:
            await again.load(lambda _: CONFIG)
            assert held(tmp_path) < 20
        finally:
            gc.enable()
        assert len(again.logs) == 300
        await again.close()
