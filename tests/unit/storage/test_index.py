"""The sparse indexes of a segment, in memory and on disk."""

from __future__ import annotations

import struct

import pytest

from ottla.model.ids import NO_TIMESTAMP
from ottla.storage.index import (
    OffsetIndex,
    TimeIndex,
    offset_index_fault,
    time_index_fault,
)
from ottla.testing.files import MemoryFileSystem

BASE = 1000
PATH = "/00000000000000001000.index"


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem()


def offsets(fs: MemoryFileSystem, count: int) -> OffsetIndex:
    """Entries 1010 -> 100, 1020 -> 200, …"""
    index = OffsetIndex(fs, PATH, BASE, entries=None)
    for number in range(1, count + 1):
        index.append(BASE + 10 * number, 100 * number)
    return index


def times(fs: MemoryFileSystem, count: int) -> TimeIndex:
    """Entries 5001 -> 1010, 5002 -> 1020, …"""
    index = TimeIndex(fs, PATH, BASE, entries=None)
    for number in range(1, count + 1):
        index.maybe_append(5000 + number, BASE + 10 * number)
    return index


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("count", [1, 7, 64, 1700])
def test_lookup_gives_the_last_batch_that_ends_at_or_before_the_offset(
    fs: MemoryFileSystem, count: int, sealed: bool
) -> None:
    index = offsets(fs, count)
    if sealed:
        index.seal()
    assert index.lookup(BASE) == 0
    assert index.lookup(BASE + 9) == 0
    for number in (1, count // 2 + 1, count):
        assert index.lookup(BASE + 10 * number) == 100 * number
        assert index.lookup(BASE + 10 * number + 9) == 100 * number
        assert index.lookup(BASE + 10 * number - 1) == 100 * (number - 1)
    assert index.lookup(10**12) == 100 * count


@pytest.mark.parametrize("sealed", [False, True])
def test_lookup_by_position_gives_an_offset_beyond_everything_before_it(
    fs: MemoryFileSystem, sealed: bool
) -> None:
    index = offsets(fs, 1700)
    if sealed:
        index.seal()
    assert index.lookup_position(0) == (BASE + 10, 100)
    assert index.lookup_position(100) == (BASE + 10, 100)
    assert index.lookup_position(101) == (BASE + 20, 200)
    assert index.lookup_position(170_000) == (BASE + 17_000, 170_000)
    assert index.lookup_position(170_001) is None
    assert index.last_position() == 170_000


def test_an_offset_entry_is_eight_bytes_big_endian(fs: MemoryFileSystem) -> None:
    offsets(fs, 2).seal()
    assert fs.read_bytes(PATH) == struct.pack(">iiii", 10, 100, 20, 200)


def test_a_time_entry_is_twelve_bytes_big_endian(fs: MemoryFileSystem) -> None:
    times(fs, 2).seal()
    assert fs.read_bytes(PATH) == struct.pack(">qiqi", 5001, 10, 5002, 20)


def test_entries_reach_the_file_in_groups(fs: MemoryFileSystem) -> None:
    index = offsets(fs, 63)
    assert not fs.exists(PATH)
    index.append(BASE + 640, 6400)
    assert fs.size(PATH) == 64 * 8
    index.append(BASE + 650, 6500)
    assert index.pending == 1
    index.write_out()
    assert fs.size(PATH) == 65 * 8


def test_an_index_without_entries_is_an_empty_file_when_sealed(fs: MemoryFileSystem) -> None:
    offsets(fs, 0).seal()
    assert fs.size(PATH) == 0


def test_a_loaded_index_goes_on_where_it_ended(fs: MemoryFileSystem) -> None:
    offsets(fs, 100).seal()
    index = OffsetIndex(fs, PATH, BASE, entries=100)
    index.load()
    index.append(BASE + 1010, 10_100)
    index.seal()
    assert fs.read_bytes(PATH)[-8:] == struct.pack(">ii", 1010, 10_100)
    assert fs.size(PATH) == 101 * 8


@pytest.mark.parametrize(
    ("offset", "left"), [(BASE, 0), (1010, 0), (1011, 1), (1030, 2), (9999, 3)]
)
@pytest.mark.parametrize("written", [False, True])
def test_truncation_forgets_entries_at_or_above_the_offset(
    fs: MemoryFileSystem, offset: int, left: int, written: bool
) -> None:
    both = offsets(fs, 3), TimeIndex(fs, PATH + "2", BASE, entries=None)
    for number in range(1, 4):
        both[1].maybe_append(5000 + number, BASE + 10 * number)
    for index in both:
        if written:
            index.write_out()
        index.truncate_to(offset)
        assert index.entries == left
    assert both[0].lookup(10**9) == 100 * left
    assert both[1].last() == ((5000 + left, BASE + 10 * left) if left else (NO_TIMESTAMP, BASE))
    if written:
        assert fs.size(PATH) == 8 * left
        assert fs.size(PATH + "2") == 12 * left


@pytest.mark.parametrize("sealed", [False, True])
def test_time_lookup_gives_the_last_entry_up_to_the_moment(
    fs: MemoryFileSystem, sealed: bool
) -> None:
    index = times(fs, 1300)
    if sealed:
        index.seal()
    assert index.lookup(5000) == (NO_TIMESTAMP, BASE)
    assert index.lookup(5001) == (5001, BASE + 10)
    assert index.lookup(5650) == (5650, BASE + 6500)
    assert index.lookup(99_999) == (6300, BASE + 13_000)
    assert index.last() == (6300, BASE + 13_000)


def test_the_time_index_takes_only_later_timestamps(fs: MemoryFileSystem) -> None:
    index = times(fs, 2)
    index.maybe_append(5002, BASE + 30)
    index.maybe_append(4000, BASE + 40)
    assert index.entries == 2
    index.maybe_append(5003, BASE + 50)
    assert index.last() == (5003, BASE + 50)


def test_a_full_time_index_keeps_one_slot_for_the_closing_entry(fs: MemoryFileSystem) -> None:
    assert not offsets(fs, 3).is_full(32)
    assert offsets(fs, 4).is_full(32)
    assert not times(fs, 1).is_full(36)
    assert times(fs, 2).is_full(36)


def test_a_sealed_index_opens_its_file_only_for_the_lookup(fs: MemoryFileSystem) -> None:
    index = offsets(fs, 700)
    index.seal()
    index.lookup(BASE + 500)
    assert fs.open_files == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", None),
        (struct.pack(">ii", 10, 100), None),
        (struct.pack(">iii", 10, 100, 20), "multiple of 8"),
        (struct.pack(">ii", 10, 100) + bytes(800), "padded"),
        (bytes(80), "padded"),
        (struct.pack(">ii", 10, 5000), "behind the end"),
        (struct.pack(">ii", -10, 100), "padded"),
    ],
)
def test_an_offset_index_that_cannot_be_used_is_recognised(
    fs: MemoryFileSystem, content: bytes, said: str | None
) -> None:
    fs.write_atomic(PATH, content)
    fault = offset_index_fault(fs, PATH, 4000)
    assert fault is None if said is None else said in (fault or "")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", None),
        (struct.pack(">qi", 5000, 10), None),
        (struct.pack(">qiqi", 5000, 10, 5001, 20), None),
        (struct.pack(">qi", 5000, 10) + b"x", "multiple of 12"),
        (struct.pack(">qi", 5000, 10) + bytes(120), "not later"),
        (bytes(120), "not later"),
    ],
)
def test_a_time_index_that_cannot_be_used_is_recognised(
    fs: MemoryFileSystem, content: bytes, said: str | None
) -> None:
    fs.write_atomic(PATH, content)
    fault = time_index_fault(fs, PATH)
    assert fault is None if said is None else said in (fault or "")
