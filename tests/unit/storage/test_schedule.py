"""What happens to logs by itself, and at once when settings change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator

import pytest

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicId, TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories
from ottla.storage.log import Log
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem

ID = TopicId(b"\x01" * 16)
DAY = 86_400_000


class Committed:
    def __init__(self, **offsets: int) -> None:
        self._offsets = offsets

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        return self._offsets.get(group)


class Folder:
    """Logs on a disk in memory, under a clock that stands still."""

    def __init__(self, workers: Workers) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFileSystem()
        self.logs = LogDirectories(
            self.fs, ["/data"], clock=self.clock, workers=workers, rng=random.Random(1)
        )
        self.logs.open_folders()

    def create(self, number: int = 0, **settings: object) -> Log:
        config = TopicConfig(**settings)
        return self.logs.create(TopicPartition("t", number), ID, config, is_new=True)

    def append(self, log: Log) -> None:
        self.fs.now_ms = self.clock.now_ms()
        batch = build_batch([(self.clock.now_ms(), None, b"v", ())])
        log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=self.clock.now_ms())


@pytest.fixture
async def folder() -> AsyncIterator[Folder]:
    workers = Workers()
    made = Folder(workers)
    yield made
    await made.logs.close()
    workers.close()


async def turns() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_pass_rolls_quiet_segments_and_leaves_empty_ones_alone(folder: Folder) -> None:
    quiet, empty = folder.create(0, retention_ms=-1), folder.create(1, retention_ms=-1)
    folder.append(quiet)
    folder.clock.advance(8 * DAY)
    assert await folder.logs.apply_retention() == 0
    assert (quiet.segment_count, empty.segment_count) == (2, 1)
    assert await folder.logs.apply_retention() == 0
    assert (quiet.segment_count, empty.segment_count) == (2, 1)


async def test_an_expired_segment_is_deleted_and_not_rolled_as_well(folder: Folder) -> None:
    log = folder.create(0)
    folder.append(log)
    folder.clock.advance(8 * DAY)
    assert await folder.logs.apply_retention() == 1
    assert (log.segment_count, log.log_start_offset, log.size) == (1, 1, 0)


@pytest.mark.parametrize(
    ("change", "start", "segments"),
    [
        ({"retention_ms": 1000}, 1, 1),
        ({"retention_bytes": 0}, 1, 1),
        ({"segment_ms": 1000}, 0, 2),
        ({"max_message_bytes": 1000}, 0, 1),
    ],
)
async def test_a_change_acts_at_once(
    folder: Folder, change: dict[str, object], start: int, segments: int
) -> None:
    log = folder.create(0)
    folder.append(log)
    folder.clock.advance(DAY)
    folder.logs.start_schedule()
    log.config = TopicConfig(**change)
    assert (log.log_start_offset, log.segment_count) == (0, 1)  # not on the path of the change
    await turns()
    assert (log.log_start_offset, log.segment_count) == (start, segments)


async def test_a_policy_that_comes_to_delete_does_so_at_once(folder: Folder) -> None:
    log = folder.create(0, cleanup_policy=frozenset[str](), retention_ms=1)
    folder.append(log)
    folder.clock.advance(DAY)
    folder.logs.start_schedule()
    log.config = TopicConfig(retention_ms=1)
    await turns()
    assert log.log_start_offset == 1


async def test_several_changes_are_one_look_at_each_log(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [folder.create(number) for number in range(3)]
    folder.logs.start_schedule()
    looks: list[Log] = []
    monkeypatch.setattr(Log, "delete_old", lambda self, *_: looks.append(self) or [])
    for retention_ms in (5000, 4000, 3000):
        for log in logs:
            log.config = TopicConfig(retention_ms=retention_ms)
    await turns()
    assert looks == logs
    logs[0].config = TopicConfig(retention_ms=1)
    await turns()
    assert looks == [*logs, logs[0]]


async def test_a_deleted_log_is_passed_over(folder: Folder) -> None:
    gone, left = folder.create(0), folder.create(1)
    for log in (gone, left):
        folder.append(log)
    folder.clock.advance(DAY)
    folder.logs.start_schedule()
    for log in (gone, left):
        log.config = TopicConfig(retention_ms=1)
    folder.logs.delete(gone.partition)
    await turns()
    assert left.log_start_offset == 1


async def test_before_the_start_changes_wait_for_the_first_round(folder: Folder) -> None:
    log = folder.create(0)
    folder.append(log)
    folder.clock.advance(DAY)
    log.config = TopicConfig(retention_ms=1)
    await turns()
    assert log.log_start_offset == 0
    await folder.logs.apply_retention()
    assert log.log_start_offset == 1


async def test_a_hold_that_gives_way_is_logged(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    log = folder.create(
        0,
        retention_ms=1,
        ottla_retention_hold_groups=("slow",),
        ottla_retention_hold_bytes=10,
    )
    folder.append(log)
    folder.clock.advance(DAY)
    folder.logs.positions = Committed(slow=0)
    with caplog.at_level(logging.INFO):
        await folder.logs.apply_retention()
    assert "group slow had not read 1 of the records deleted from t-0" in caplog.text


async def test_positions_of_the_coordinator_are_asked(folder: Folder) -> None:
    log = folder.create(0, retention_ms=1, ottla_retention_hold_groups=("slow",))
    folder.append(log)
    folder.clock.advance(DAY)
    await folder.logs.apply_retention()
    assert log.log_start_offset == 0
    folder.logs.positions = Committed(slow=1)
    await folder.logs.apply_retention()
    assert log.log_start_offset == 1
