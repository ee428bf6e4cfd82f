"""Bits of an index that flip: nothing is hidden by it, and the index is rebuilt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicId
from ottla.records.batch import read_header
from ottla.runtime.files import OsFileSystem
from ottla.runtime.tasks import Tasks
from ottla.runtime.workers import NoChild
from ottla.storage.directory import LogDirectories, StorageSettings
from ottla.storage.log import Log
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem
from ottla.testing.logs import FOLDER, PARTITION, FolderBench, InlineWorkers, LogBench

P = ParamSpec("P")
T = TypeVar("T")

ID = TopicId(b"\x01" * 16)
CONFIG = TopicConfig(internal_segment_bytes=4000, index_interval_bytes=300)
BATCHES = 100
START = 1_700_000_000_000
SEGMENT = 0
INDEXES = {".index": 8, ".timeindex": 12}  # and the size of an entry


def fill(bench: LogBench | FolderBench, log: Log) -> None:
    for number in range(BATCHES):
        # Ever later, with a step back now and then: that is what makes time indexes matter.
        bench.append(log, b"a", b"b", timestamp=START + 1000 * number - 2500 * (number % 7 == 6))


def filled() -> LogBench:
    bench = LogBench(CONFIG)
    log = bench.open(clean=True)
    fill(bench, log)
    assert log.segment_count == 2
    bench.close(log)
    return bench


def flip(fs: MemoryFileSystem, path: str, position: int, bit: int) -> None:
    file = fs.open(path)
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 1 << bit]), position)
    file.close()


def check_offsets(log: Log) -> None:
    end = log.log_end_offset
    for offset in range(end):
        region = log.read(offset, 1, upper=end).region
        assert region is not None, offset
        header = read_header(region.read())
        assert header.base_offset <= offset <= header.last_offset


def times(log: Log) -> list[object]:
    moments = range(START - 1, START + 45_000, 700)
    return [log.look_up_time(moment).run(short=True) for moment in moments]


@pytest.mark.parametrize("suffix", INDEXES)
def test_whichever_bit_flips_every_record_is_found(suffix: str) -> None:
    bench = filled()
    sound = bench.killed()
    end = 2 * BATCHES
    expected = times(sound.open(clean=True, recovery_point=end))
    path = f"{FOLDER}/{SEGMENT:020d}{suffix}"
    entry = INDEXES[suffix]
    middle = bench.fs.size(path) - entry
    assert middle >= 5 * entry
    for position in range(middle):
        for bit in (0, 5):
            damaged = bench.killed()
            flip(damaged.fs, path, position, bit)
            log = damaged.open(clean=True, recovery_point=end)
            check_offsets(log)
            assert times(log) == expected, (position, bit)


def test_a_page_of_zeros_in_an_index_hides_nothing() -> None:
    bench = filled()
    path = f"{FOLDER}/{SEGMENT:020d}.index"
    file = bench.fs.open(path)
    file.pwrite(bytes(5 * 8), 8)
    log = bench.open(clean=True, recovery_point=2 * BATCHES)
    check_offsets(log)


def test_what_is_read_of_a_transaction_has_all_that_was_aborted() -> None:
    bench = LogBench(CONFIG)
    log = bench.open(clean=True)
    for number in range(BATCHES):
        producer = {"producer_id": 7, "producer_epoch": 0}
        bench.append(log, b"a", sequence=number, transactional=True, **producer)
        bench.end_transaction(log, 7, commit=False)
    end = log.log_end_offset
    bench.close(log)
    path = f"{FOLDER}/{SEGMENT:020d}.index"
    for position in range(bench.fs.size(path) - 8):
        damaged = bench.killed()
        flip(damaged.fs, path, position, 4)
        log = damaged.open(clean=True, recovery_point=end)
        for offset in range(0, 60, 2):
            read = log.read(offset, 500, upper=end)
            assert read.region is not None
            last = read_header(read.region.read()).base_offset
            bound = log.end_of(read)
            found = [aborted.first_offset for aborted in log.aborted_transactions(offset, bound)]
            assert last in found or last % 2


def test_truncation_finds_its_place_despite_the_index() -> None:
    bench = filled()
    path = f"{FOLDER}/{SEGMENT:020d}.index"
    size = read_header(bench.fs.read_bytes(f"{FOLDER}/{SEGMENT:020d}.log")).size
    for position in range(bench.fs.size(path) - 8):
        damaged = bench.killed()
        flip(damaged.fs, path, position, 3)
        log = damaged.open(clean=True, recovery_point=2 * BATCHES)
        log.truncate_to(40)
        assert (log.log_end_offset, log.size) == (40, 20 * size)
        damaged.append(log, b"new")
        check_offsets(log)


@pytest.mark.parametrize("suffix", INDEXES)
async def test_the_index_is_rebuilt_with_a_line_in_the_log(
    suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = FolderBench(CONFIG, fs=MemoryFileSystem())
    first.fs.makedirs("/data")
    log = await first.open(ID)
    fill(first, log)
    expected = times(log)
    await first.directories.close()
    path = f"{log.folder}/{SEGMENT:020d}{suffix}"
    before = first.fs.read_bytes(path)
    # The third entry seems to be the first: whoever looks for what lies before it begins behind.
    flip_to_zero = INDEXES[suffix] * 2 + (3 if suffix == ".index" else 5)
    file = first.fs.open(path)
    file.pwrite(bytes(1), flip_to_zero)
    file.close()
    assert first.fs.read_bytes(path) != before
    second = FolderBench(CONFIG, fs=first.fs)
    log = await second.open(ID)
    looked = [log.look_up_time(START + 500 * number) for number in range(2 * BATCHES)]
    for look_up in looked:
        look_up.run(short=True)
        assert look_up.is_current
    check_offsets(log)
    assert "do not fit its records" in caplog.text
    await second.idle()
    assert "are rebuilt\n" in caplog.text
    assert first.fs.read_bytes(path) == before
    caplog.clear()
    check_offsets(log)
    assert times(log) == expected
    await second.idle()
    assert caplog.text == ""
    await second.directories.close()


class NoChildren(InlineWorkers):
    """Workers on a machine that has no process, or no memory, to spare."""

    async def run_in_child(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        raise NoChild("Cannot allocate memory")


async def test_a_large_index_that_cannot_be_rebuilt_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deaths: list[str] = []
    directories = LogDirectories(
        OsFileSystem(),
        [str(tmp_path)],
        clock=ManualClock(),
        workers=NoChildren(),
        settings=StorageSettings(child_scan_bytes=0),
        tasks=Tasks(lambda what, error: deaths.append(f"{what}: {error}")),
    )
    directories.open_folders()
    directories.identify(1, "AAAAAAAAAAAAAAAAAAAAAQ")
    await directories.load(lambda _: CONFIG)
    bench = LogBench(CONFIG)
    log = directories.create(PARTITION, ID, CONFIG)
    fill(bench, log)
    path = tmp_path / "t-0" / f"{SEGMENT:020d}.index"
    data = bytearray(path.read_bytes())
    data[2 * INDEXES[".index"] + 3] = 0  # the third entry seems to be the first
    path.write_bytes(data)
    check_offsets(log)
    for _ in range(30):
        await asyncio.sleep(0)
    assert "are not rebuilt: Cannot allocate memory" in caplog.text
    assert deaths == []
    check_offsets(log)
    await directories.close()
