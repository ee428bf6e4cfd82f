"""One segment: appending, looking up, and how many descriptors that takes."""

from __future__ import annotations

import errno

import pytest

from ottla.errors import KafkaError
from ottla.records.builder import build_batch
from ottla.storage.segment import OpenFiles, Segment
from ottla.testing.files import MemoryFileSystem

NOW = 1_700_000_000_000
GIGABYTE = 1 << 30
WEEK = 604_800_000


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem()


def new_segment(fs: MemoryFileSystem, base: int = 0, *, files: OpenFiles | None = None) -> Segment:
    if files is None:
        files = OpenFiles(fs, 10)
    segment = Segment(files, "", base, size=0, index_entries=None, time_entries=None, now_ms=0)
    segment.create_file()
    segment.activate(index_interval=300, max_index_bytes=10_000, jitter_ms=0)
    return segment


def add(segment: Segment, offset: int, *, count: int = 1, timestamp: int = NOW) -> int:
    records = [(timestamp, None, b"v" * 40, ())] * count
    batch = build_batch(records, base_offset=offset)
    segment.append(batch)
    segment.note(len(batch), offset, offset + count - 1, timestamp)
    return len(batch)


def test_a_batch_is_found_by_any_of_its_offsets(fs: MemoryFileSystem) -> None:
    segment = new_segment(fs)
    sizes = [add(segment, 0, count=3), add(segment, 3, count=2), add(segment, 5)]
    for offset, slot in ((0, 0), (2, 0), (3, 1), (4, 1), (5, 2)):
        assert segment.locate(offset) == (sum(sizes[:slot]), sizes[slot])
    assert segment.locate(6) is None


def test_a_gap_in_the_offsets_leads_to_the_next_batch(fs: MemoryFileSystem) -> None:
    segment = new_segment(fs)
    first = add(segment, 0)
    add(segment, 10)
    assert segment.locate(4) == (first, segment.size - first)


def test_the_tail_is_found_without_reading(fs: MemoryFileSystem) -> None:
    segment = new_segment(fs)
    for offset in range(50):
        add(segment, offset)
    fs.fail("*", errno.EIO, operations=["read", "open"])
    assert segment.locate(49) is not None
    assert segment.locate(0) is not None


@pytest.mark.parametrize("state", ["active", "sealed", "reopened"])
def test_every_batch_is_found_when_there_are_more_than_the_tail_remembers(
    fs: MemoryFileSystem, state: str
) -> None:
    segment = new_segment(fs, 100)
    places = []
    for number in range(3000):
        position = segment.size
        places.append((position, add(segment, 100 + number, timestamp=NOW + number)))
    if state != "active":
        segment.seal()
    if state == "reopened":
        entries = segment.offset_index.entries
        size = segment.size
        segment = Segment(
            OpenFiles(fs, 1), "", 100, size=size, index_entries=entries, time_entries=0, now_ms=0
        )
    for number in (0, 1, 999, 1500, 1999, 2487, 2488, 2999):
        assert segment.locate(100 + number) == places[number]
    assert segment.locate(3100) is None


def test_an_index_entry_comes_after_each_interval_as_in_kafka(fs: MemoryFileSystem) -> None:
    # The interval is 300: an entry for the first batch that begins after more than that.
    segment = new_segment(fs)
    positions = []
    for offset in range(12):
        positions.append(segment.size)
        size = add(segment, offset)
    assert size == 108
    segment.seal()
    assert [segment.offset_index.lookup(offset) for offset in (2, 3, 5, 6, 8, 9, 11)] == [
        0, positions[3], positions[3], positions[6], positions[6], positions[9], positions[9],
    ]  # fmt: skip


def test_sealing_ends_the_time_index_with_the_latest_timestamp(fs: MemoryFileSystem) -> None:
    segment = new_segment(fs)
    add(segment, 0, timestamp=NOW + 7)
    add(segment, 1, timestamp=NOW + 3)
    segment.seal()
    assert segment.time_index.last() == (NOW + 7, 0)
    assert segment.largest_timestamp() == NOW + 7


def test_without_timestamps_age_is_counted_from_the_files_last_change(
    fs: MemoryFileSystem,
) -> None:
    segment = new_segment(fs)
    fs.now_ms = 777
    add(segment, 0, timestamp=-1)
    assert segment.latest() == (-1, 0)
    assert segment.largest_timestamp() == 777


class TestRolling:
    def rolls(self, segment: Segment, **changes: int) -> bool:
        batch = {
            "size": 100,
            "last_offset": 1,
            "max_timestamp": NOW,
            "now_ms": NOW,
            "segment_bytes": GIGABYTE,
            "segment_ms": WEEK,
        }
        return segment.should_roll(**{**batch, **changes})

    def test_not_without_a_reason(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        add(segment, 0)
        assert not self.rolls(segment)

    def test_when_the_batch_would_not_fit(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        size = add(segment, 0)
        assert not self.rolls(segment, segment_bytes=size + 100)
        assert self.rolls(segment, segment_bytes=size + 99)

    def test_when_the_records_are_a_segments_time_apart(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        add(segment, 0)
        assert not self.rolls(segment, max_timestamp=NOW + 500, segment_ms=500)
        assert self.rolls(segment, max_timestamp=NOW + 501, segment_ms=500)

    def test_jitter_makes_it_earlier(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        add(segment, 0)
        segment.activate(index_interval=300, max_index_bytes=10_000, jitter_ms=100)
        assert self.rolls(segment, max_timestamp=NOW + 401, segment_ms=500)
        assert not self.rolls(segment, max_timestamp=NOW + 400, segment_ms=500)

    def test_the_first_batchs_time_survives_reopening(self, fs: MemoryFileSystem) -> None:
        add(new_segment(fs), 0, timestamp=NOW)
        size = fs.size("/00000000000000000000.log")
        again = Segment(
            OpenFiles(fs, 1), "", 0, size=size, index_entries=0, time_entries=0, now_ms=NOW + 900
        )
        again.activate(index_interval=300, max_index_bytes=10_000, jitter_ms=0)
        assert self.rolls(again, max_timestamp=NOW + 501, now_ms=NOW + 900, segment_ms=500)

    def test_without_timestamps_the_clock_counts(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        add(segment, 0, timestamp=-1)
        assert not self.rolls(segment, max_timestamp=-1, now_ms=500, segment_ms=500)
        assert self.rolls(segment, max_timestamp=-1, now_ms=501, segment_ms=500)

    def test_an_empty_segment_never_gets_too_old(self, fs: MemoryFileSystem) -> None:
        assert not self.rolls(new_segment(fs), now_ms=10 * WEEK, max_timestamp=10 * WEEK)

    def test_when_the_offset_is_too_far_from_the_base(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs, 100)
        assert not self.rolls(segment, last_offset=100 + 2**31 - 1)
        assert self.rolls(segment, last_offset=100 + 2**31)

    def test_when_an_index_is_full(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        segment.activate(index_interval=0, max_index_bytes=36, jitter_ms=0)
        for offset in range(4):  # the first batch needs no entry
            add(segment, offset)
            assert not self.rolls(segment)
        add(segment, 4)
        assert self.rolls(segment)


class TestTruncation:
    def test_a_batch_goes_with_any_of_its_offsets(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        first = add(segment, 0, count=2, timestamp=NOW)
        second = add(segment, 2, count=3, timestamp=NOW + 5)
        assert segment.truncate_to(3, NOW) == second
        assert segment.size == first == fs.size(segment.path)
        assert segment.latest() == (NOW, 1)
        assert segment.locate(2) is None
        assert segment.locate(1) == (0, first)

    def test_beyond_the_end_nothing_goes(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        add(segment, 0)
        assert segment.truncate_to(1, NOW) == 0

    def test_appends_go_on_at_the_cut(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        first = add(segment, 0)
        add(segment, 1)
        segment.truncate_to(1, NOW)
        size = add(segment, 1)
        assert segment.locate(1) == (first, size)
        assert fs.size(segment.path) == first + size


class TestFailure:
    def test_a_torn_write_is_cut_off_again(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        size = add(segment, 0)
        fs.fail("*.log", errno.ENOSPC, operations=["append"], torn=7)
        with pytest.raises(OSError, match="No space") as caught:
            segment.append(b"x" * 50)
        assert caught.value.filename == segment.path
        assert fs.size(segment.path) == size == segment.size

    def test_when_it_cannot_be_cut_the_file_is_opened_anew(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        add(segment, 0)
        fs.fail("*.log", errno.EIO, operations=["append", "truncate"], torn=7)
        with pytest.raises(OSError, match="Input/output"):
            segment.append(b"x" * 50)
        assert not segment.is_open

    def test_bytes_that_are_no_batch_are_not_served(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        add(segment, 0)
        size = segment.size
        file = fs.open(segment.path)
        file.append(bytes(100))
        broken = Segment(
            OpenFiles(fs, 1), "", 0, size=size + 100, index_entries=0, time_entries=0, now_ms=0
        )
        with pytest.raises(KafkaError, match=rf"CORRUPT_MESSAGE.*position {size}"):
            broken.locate(1)


class TestDescriptors:
    def test_nothing_is_open_before_the_first_use(self, fs: MemoryFileSystem) -> None:
        new_segment(fs)
        assert fs.open_files == 0

    def test_only_so_many_files_are_open(self, fs: MemoryFileSystem) -> None:
        files = OpenFiles(fs, 4)
        segments = [new_segment(fs, 1000 * number, files=files) for number in range(20)]
        for segment in segments:
            add(segment, segment.base_offset)
        assert fs.open_files <= 4
        for segment in segments:
            assert segment.file.pread(1, 0)
        assert fs.open_files <= 4

    def test_what_is_used_stays_open(self, fs: MemoryFileSystem) -> None:
        files = OpenFiles(fs, 3)
        busy = new_segment(fs, 0, files=files)
        opened = busy.file
        for number in range(1, 20):
            add(new_segment(fs, number * 100, files=files), number * 100)
            assert busy.file is opened

    def test_a_region_on_its_way_keeps_its_file(self, fs: MemoryFileSystem) -> None:
        segment = new_segment(fs)
        size = add(segment, 0)
        held = segment.file
        segment.close_file()
        fs.remove(segment.path)
        assert len(held.pread(1000, 0)) == size

    def test_when_the_process_has_no_descriptor_left_others_are_closed(
        self, fs: MemoryFileSystem
    ) -> None:
        files = OpenFiles(fs, 100)
        segments = [new_segment(fs, 1000 * number, files=files) for number in range(10)]
        for segment in segments[:9]:
            add(segment, segment.base_offset)
        for segment in segments:
            segment.used = False
        fs.fail("*.log", errno.EMFILE, operations=["open"], times=1)
        add(segments[9], 9000)
        assert fs.open_files == 5
