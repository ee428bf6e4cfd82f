"""Sparse indexes of one segment: offset to position, and timestamp to offset.

The files are Kafka's. `.index` holds pairs of 32-bit integers, the last offset of a batch relative
to the segment's base and that batch's position in the `.log`. `.timeindex` holds a 64-bit timestamp
and a 32-bit relative offset: no batch up to that offset has a later timestamp. Both are sorted, and
a file's size is its number of entries: Kafka maps a preallocated file and trims it when the segment
is rolled or closed, we append to a plain one, and the trimmed results are byte for byte the same.

An index is a hint, never the truth. Entries of the active segment live in memory and reach the file
in groups; what a kill -9 takes is rebuilt from the `.log` (`recovery.py`). The index of a rolled
segment is not held in memory at all: a look-up opens the file, finds one block by bisection and
reads that, which costs less than the first page of the data it leads to.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP
from ottla.runtime.files import CachedReads
from ottla.storage import paths
from ottla.storage.faults import is_shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.runtime.files import File, FileSystem, Readable

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
MAX_RELATIVE_OFFSET = 2**31 - 1

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_WRITE_GROUP = 64
"""Entries gathered before they are appended to the file: one write(2) per 256 KB of log."""
_BLOCK = 512
"""Entries read at once when the search in a file has come this close."""


class OffsetIndex:
    """`.index`: for some batches, their last offset and where they begin."""

    __slots__ = ("_fs", "_positions", "_relative", "_written", "base_offset", "entries", "path")

    def __init__(self, fs: FileSystem, path: str, base_offset: int, *, entries: int | None) -> None:
        """With `entries` the index of a rolled segment, on disk; with None a new one in memory."""
        self._fs = fs
        self.path = path
        self.base_offset = base_offset
        self.entries = entries or 0
        self._relative: array[int] | None = array("i") if entries is None else None
        self._positions = array("i")
        self._written = 0

    @property
    def in_memory(self) -> bool:
        return self._relative is not None

    @property
    def pending(self) -> int:
        """Entries that have not reached the file."""
        return self.entries - self._written if self._relative is not None else 0

    def is_full(self, max_bytes: int) -> bool:
        return self.entries >= max_bytes // OFFSET_ENTRY.size

    def append(self, offset: int, position: int) -> None:
        """Note that the batch ending with `offset` begins at `position`; offsets only grow."""
        relative = self._relative
        assert relative is not None, "a rolled segment's index does not grow"
        relative.append(offset - self.base_offset)
        self._positions.append(position)
        self.entries += 1
        if self.entries - self._written >= _WRITE_GROUP:
            _unless_short(self.write_out)

    def lookup(self, offset: int, *, cached_only: bool = False) -> int:
        """The position of the last indexed batch that ends at or before `offset`; 0 if none.

        With `cached_only`, here and below: ColdRead rather than waiting for the disk.
        """
        if self.entries == 0:
            return 0
        target = offset - self.base_offset
        if self._relative is not None:
            slot = bisect_right(self._relative, target) - 1
            return self._positions[slot] if slot >= 0 else 0
        with _Opened(self._fs, self.path) as opened:
            file: Readable = CachedReads(opened) if cached_only else opened
            count = _count_up_to(file, self.entries, OFFSET_ENTRY, _INT, 0, target)
            return _entry(file, OFFSET_ENTRY, count - 1)[1] if count else 0

    def positions(self, *, cached_only: bool = False) -> Sequence[int]:
        """Every position there is, in order as long as the index is sound."""
        if self._relative is not None:
            return self._positions
        if self.entries == 0:
            return ()
        with _Opened(self._fs, self.path) as opened:
            file: Readable = CachedReads(opened) if cached_only else opened
            data = file.pread(self.entries * OFFSET_ENTRY.size, 0)
        usable = len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size
        return big_endian(array("i", bytes(data[:usable])))[1::2]

    def lookup_position(
        self, position: int, *, cached_only: bool = False
    ) -> tuple[int, int] | None:
        """The first entry at or after `position`: its offset, beyond everything before it, and its
        position."""
        if self._relative is not None:
            slot = bisect_left(self._positions, position)
            if slot == self.entries:
                return None
            return self.base_offset + self._relative[slot], self._positions[slot]
        if self.entries == 0:
            return None
        with _Opened(self._fs, self.path) as opened:
            file: Readable = CachedReads(opened) if cached_only else opened
            count = _count_up_to(file, self.entries, OFFSET_ENTRY, _INT, 4, position - 1)
            if count == self.entries:
                return None
            relative, found = _entry(file, OFFSET_ENTRY, count)
            return self.base_offset + relative, found

    def last_position(self) -> int:
        """The position of the last entry; 0 when there is none."""
        if self.entries == 0:
            return 0
        if self._relative is not None:
            return self._positions[-1]
        with _Opened(self._fs, self.path) as file:
            return _entry(file, OFFSET_ENTRY, self.entries - 1)[1]

    def truncate_to(self, offset: int) -> None:
        """Forget every entry at or above `offset`."""
        self.load()
        assert self._relative is not None
        keep = bisect_left(self._relative, offset - self.base_offset)
        if keep == self.entries:
            return
        del self._relative[keep:]
        del self._positions[keep:]
        self.entries = keep
        if self._written > keep:
            _cut(self._fs, self.path, keep * OFFSET_ENTRY.size)
            self._written = keep

    def load(self) -> None:
        """Bring a rolled segment's index into memory: it is the active one (again)."""
        if self._relative is not None:
            return
        data = b""
        if self.entries:
            data = self._fs.read_bytes(self.path)[: self.entries * OFFSET_ENTRY.size]
        both = big_endian(array("i", data))
        self._relative = both[0::2]
        self._positions = both[1::2]
        self._written = self.entries

    def write_out(self) -> None:
        """Append what the file does not have yet."""
        if self._relative is None or self._written == self.entries:
            return
        both = array("i", bytes((self.entries - self._written) * OFFSET_ENTRY.size))
        both[0::2] = self._relative[self._written :]
        both[1::2] = self._positions[self._written :]
        _append(self._fs, self.path, big_endian(both), at=self._written * OFFSET_ENTRY.size)
        self._written = self.entries

    def replace(self, data: bytes) -> None:
        """Take what a scan of the rolled segment has found instead of what is there."""
        assert self._relative is None, "the active segment's index is in memory"
        _replace(self._fs, self.path, data)
        self.entries = len(data) // OFFSET_ENTRY.size

    def seal(self) -> None:
        """Write everything and let go of the memory."""
        self.write_out()
        ensure_exists(self._fs, self.path)
        self._relative = None
        self._positions = array("i")
        self._written = 0


class TimeIndex:
    """`.timeindex`: for some offsets, the latest timestamp up to there."""

    __slots__ = (
        "_fs", "_last", "_relative", "_timestamps", "_written", "base_offset", "entries", "path",
    )  # fmt: skip

    def __init__(self, fs: FileSystem, path: str, base_offset: int, *, entries: int | None) -> None:
        """With `entries` the index of a rolled segment, on disk; with None a new one in memory."""
        self._fs = fs
        self.path = path
        self.base_offset = base_offset
        self.entries = entries or 0
        self._timestamps: array[int] | None = array("q") if entries is None else None
        self._relative = array("i")
        self._written = 0
        self._last: tuple[int, int] | None = (NO_TIMESTAMP, base_offset) if not entries else None

    @property
    def in_memory(self) -> bool:
        return self._timestamps is not None

    @property
    def pending(self) -> int:
        """Entries that have not reached the file."""
        return self.entries - self._written if self._timestamps is not None else 0

    def is_full(self, max_bytes: int) -> bool:
        """One slot is kept back: rolling adds the segment's latest timestamp."""
        return self.entries >= max_bytes // TIME_ENTRY.size - 1

    def last(self) -> tuple[int, int]:
        """The last entry as (timestamp, offset); (-1, base offset) when there is none."""
        if self._last is None:
            with _Opened(self._fs, self.path) as file:
                timestamp, relative = _entry(file, TIME_ENTRY, self.entries - 1)
            self._last = (timestamp, self.base_offset + relative)
        return self._last

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Note the latest timestamp so far and its offset, if it is later than the last noted."""
        timestamps = self._timestamps
        assert timestamps is not None, "a rolled segment's index does not grow"
        if timestamp <= self.last()[0]:
            return
        timestamps.append(timestamp)
        self._relative.append(offset - self.base_offset)
        self._last = (timestamp, offset)
        self.entries += 1
        if self.entries - self._written >= _WRITE_GROUP:
            _unless_short(self.write_out)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry whose timestamp is at or before the given one; else (-1, base offset)."""
        found: tuple[int, int] | None = None
        if self._timestamps is not None:
            slot = bisect_right(self._timestamps, timestamp) - 1
            if slot >= 0:
                found = self._timestamps[slot], self._relative[slot]
        elif self.entries:
            with _Opened(self._fs, self.path) as file:
                count = _count_up_to(file, self.entries, TIME_ENTRY, _LONG, 0, timestamp)
                if count:
                    found = _entry(file, TIME_ENTRY, count - 1)
        if found is None:
            return NO_TIMESTAMP, self.base_offset
        return found[0], self.base_offset + found[1]

    def truncate_to(self, offset: int) -> None:
        """Forget every entry at or above `offset`."""
        self.load()
        assert self._timestamps is not None
        keep = bisect_left(self._relative, offset - self.base_offset)
        if keep == self.entries:
            return
        del self._timestamps[keep:]
        del self._relative[keep:]
        self.entries = keep
        self._last = (
            (self._timestamps[-1], self.base_offset + self._relative[-1])
            if keep
            else (NO_TIMESTAMP, self.base_offset)
        )
        if self._written > keep:
            _cut(self._fs, self.path, keep * TIME_ENTRY.size)
            self._written = keep

    def load(self) -> None:
        """Bring a rolled segment's index into memory: it is the active one (again)."""
        if self._timestamps is not None:
            return
        data = b""
        if self.entries:
            data = self._fs.read_bytes(self.path)[: self.entries * TIME_ENTRY.size]
        timestamps, relative = array("q"), array("i")
        for timestamp, offset in TIME_ENTRY.iter_unpack(data):
            timestamps.append(timestamp)
            relative.append(offset)
        self._timestamps, self._relative = timestamps, relative
        self._written = self.entries
        if timestamps and len(timestamps) == self.entries:
            self._last = timestamps[-1], self.base_offset + relative[-1]

    def write_out(self) -> None:
        """Append what the file does not have yet."""
        if self._timestamps is None or self._written == self.entries:
            return
        pairs = zip(self._timestamps[self._written :], self._relative[self._written :], strict=True)
        data = b"".join(TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs)
        _append(self._fs, self.path, data, at=self._written * TIME_ENTRY.size)
        self._written = self.entries

    def replace(self, data: bytes) -> None:
        """Take what a scan of the rolled segment has found instead of what is there."""
        assert self._timestamps is None, "the active segment's index is in memory"
        _replace(self._fs, self.path, data)
        self.entries = len(data) // TIME_ENTRY.size
        self._last = None if data else (NO_TIMESTAMP, self.base_offset)

    def seal(self) -> None:
        """Write everything and let go of the memory."""
        self.last()
        self.write_out()
        ensure_exists(self._fs, self.path)
        self._timestamps = None
        self._relative = array("i")
        self._written = 0


def offset_index_fault(fs: FileSystem, path: str, log_size: int) -> str | None:
    """Why an `.index` on disk cannot be used, or None. Looks at its size and its last entry only.

    A file left preallocated by a killed Kafka ends in zeros. The first batch is never indexed, so
    position 0 in the last entry means padding.
    """
    size = fs.size(path)
    if size % OFFSET_ENTRY.size:
        return f"its size {size} is not a multiple of {OFFSET_ENTRY.size}"
    if size == 0:
        return None
    with _Opened(fs, path) as file:
        relative, position = _entry(file, OFFSET_ENTRY, size // OFFSET_ENTRY.size - 1)
    if position <= 0 or relative < 0:
        return "it is padded with zeros"
    if position >= log_size:
        return f"its last entry points to {position}, behind the end of the log at {log_size}"
    return None


def time_index_fault(fs: FileSystem, path: str) -> str | None:
    """Why a `.timeindex` on disk cannot be used, or None."""
    size = fs.size(path)
    if size % TIME_ENTRY.size:
        return f"its size {size} is not a multiple of {TIME_ENTRY.size}"
    if size == 0:
        return None
    with _Opened(fs, path) as file:
        first = _entry(file, TIME_ENTRY, 0)
        last = _entry(file, TIME_ENTRY, size // TIME_ENTRY.size - 1)
    if last[1] < 0 or (size > TIME_ENTRY.size and last <= first):
        return "its last entry is not later than its first"
    return None


class _Opened:
    """A file that is closed at the end of the block, whatever happens."""

    __slots__ = ("_file",)

    def __init__(self, fs: FileSystem, path: str, *, create: bool = False) -> None:
        self._file = fs.open(path, create=create)

    def __enter__(self) -> File:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _unless_short(write_out: Callable[[], None]) -> None:
    """Write a group of entries; without a free descriptor they go with the next group. The batch
    they are about is in the log, so this is no reason to refuse it."""
    try:
        write_out()
    except OSError as error:
        if not is_shortage(error):
            raise


def big_endian(numbers: array[int]) -> array[int]:
    """Swap in place between this machine's order and the files'."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def ensure_exists(fs: FileSystem, path: str) -> None:
    """An index without entries is an empty file, not a missing one."""
    if not fs.exists(path):
        fs.open(path, create=True).close()


def _replace(fs: FileSystem, path: str, data: bytes) -> None:
    """In one step for those who open it meanwhile. Not synced: it can be rebuilt again."""
    beside = path + paths.DELETED_SUFFIX  # what a start finds under such a name is removed
    with _Opened(fs, beside, create=True) as file:
        file.truncate(0)
        if data:
            file.append(data)
    fs.rename(beside, path)


def _append(fs: FileSystem, path: str, data: bytes | array[int], *, at: int) -> None:
    with _Opened(fs, path, create=True) as file:
        if file.size() != at:
            file.truncate(at)
        file.append(data)


def _cut(fs: FileSystem, path: str, size: int) -> None:
    with _Opened(fs, path) as file:
        file.truncate(size)


def _count_up_to(
    file: Readable, entries: int, entry: struct.Struct, key: struct.Struct, at: int, target: int
) -> int:
    """How many entries of a sorted file have a key, `at` bytes into the entry, up to `target`."""
    low, high = 0, entries
    while high - low > _BLOCK:
        middle = (low + high) // 2
        if _read(file, key, middle * entry.size + at)[0] <= target:
            low = middle
        else:
            high = middle
    start = low
    block = file.pread((high - low) * entry.size, low * entry.size)
    low, high = 0, len(block) // entry.size
    while low < high:
        middle = (low + high) // 2
        if key.unpack_from(block, middle * entry.size + at)[0] <= target:
            low = middle + 1
        else:
            high = middle
    return start + low


def _entry(file: Readable, entry: struct.Struct, slot: int) -> tuple[int, int]:
    first, second = _read(file, entry, slot * entry.size)
    return first, second


def _read(file: Readable, what: struct.Struct, position: int) -> tuple[int, ...]:
    """Numbers of an index's file. It is shorter than was believed only when somebody has changed
    it: from outside, or since a thread was told its size."""
    try:
        return what.unpack(file.pread(what.size, position))
    except struct.error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{file.path} ends before position {position + what.size}"
        ) from None
