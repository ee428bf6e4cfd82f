"""One segment: a `.log` file from a base offset on, with its indexes.

A segment is active (the last of its log, appended to) or rolled. The active one keeps its indexes
in memory and remembers where its latest batches begin, so that a consumer at the tail is served
without a system call. A rolled one keeps only its size; everything else is looked up in its files.

Descriptors. Only the `.log` is held open, from its first use, and only as long as `OpenFiles` lets
it: a broker with thousands of partitions must not need thousands of descriptors. A response on its
way out holds its own reference to the file (see `runtime.files`), so closing here never hurts it.

Everything here raises OSError as it comes; `Log` turns it into a storage error.
"""

from __future__ import annotations

import errno
import logging
from array import array
from bisect import bisect_left
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.model.ids import NO_TIMESTAMP
from ottla.runtime.files import CachedReads, ColdRead
from ottla.storage import paths
from ottla.storage.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex, ensure_exists
from ottla.storage.retention import Age
from ottla.storage.scan import Misled, find, is_start, soundest_start, walk
from ottla.storage.txn_index import TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

    from ottla.runtime.files import File, FileSystem, Readable

logger = logging.getLogger(__name__)

MAX_OFFSET = (1 << 63) - 1
_TAIL = 1024
"""Batches of the active segment whose place is remembered: 12 bytes each."""
_UNKNOWN = -2


class OpenFiles:
    """At most `limit` open segment files. The one that was not used for longest is closed first.

    "Not used" is the clock algorithm's notion: every use sets a flag on the segment, the sweep
    clears it and closes what it finds clear. A use so costs one attribute, not a list operation.
    """

    __slots__ = ("_ring", "fs", "limit", "on_doubt")

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self.fs = fs
        self.limit = limit
        self.on_doubt: Callable[[Segment], None] | None = None
        """Called with a rolled segment whose indexes have turned out to be wrong."""
        self._ring: deque[Segment] = deque()

    def __len__(self) -> int:
        return len(self._ring)

    def open(self, segment: Segment) -> File:
        """Open a segment's `.log`; close others if that makes too many."""
        try:
            file = self.fs.open(segment.path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._ring:
                raise
            # Somebody else (connections) has the descriptors. Not the disk's fault: make room.
            self._shrink_to(len(self._ring) // 2)
            file = self.fs.open(segment.path)
        if not segment.pooled:
            self._shrink_to(self.limit - 1)
            segment.pooled = True
            self._ring.append(segment)
        return file

    def close(self) -> None:
        """Close all of them."""
        while self._ring:
            segment = self._ring.popleft()
            segment.pooled = False
            segment.close_file()

    def close_again(self, segment: Segment) -> None:
        """Close what was opened for one look, by whoever passed by all segments."""
        if self._ring and self._ring[-1] is segment:
            self._ring.pop()
            segment.pooled = False
        segment.close_file()

    def _shrink_to(self, count: int) -> None:
        while len(self._ring) > count:
            candidate = self._ring.popleft()
            if candidate.used and candidate.is_open:
                candidate.used = False
                self._ring.append(candidate)
            else:
                candidate.pooled = False
                candidate.close_file()


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment as a thread may see it: facts of one moment, and the names of its files.

    Nothing here changes while the segment grows. When it is truncated or removed a thread may read
    other bytes than were meant, or miss a file: whoever uses a view compares `Segments.generation`
    before he believes what was found.
    """

    fs: FileSystem
    folder: str
    base_offset: int
    size: int
    latest: tuple[int, int] | None
    start: int | None
    index_entries: int
    time_entries: int

    def open(self) -> File:
        return self.fs.open(f"{self.folder}/{paths.log_name(self.base_offset)}")

    def offset_index(self) -> OffsetIndex:
        path = f"{self.folder}/{paths.index_name(self.base_offset)}"
        return OffsetIndex(self.fs, path, self.base_offset, entries=self.index_entries)

    def time_index(self) -> TimeIndex:
        path = f"{self.folder}/{paths.timeindex_name(self.base_offset)}"
        return TimeIndex(self.fs, path, self.base_offset, entries=self.time_entries)

    def read_index(self) -> None:
        """Read all of the offset index's file, if it is looked up there."""
        if self.start is None and self.index_entries:
            self.fs.read_bytes(f"{self.folder}/{paths.index_name(self.base_offset)}")

    def locate(self, offset: int) -> tuple[int, int] | None:
        """As `Segment.locate`."""
        if self.size == 0:
            return None
        file = self.open()
        try:
            try:
                return find(file, offset, self.start_for(file, offset)[0], self.size)
            except Misled:
                return find(file, offset, 0, self.size)
        finally:
            file.close()

    def start_for(self, file: File, offset: int) -> tuple[int, bool]:
        """Where a look-up of `offset` begins in the segment's open `.log`, and whether the index
        was right about it."""
        if self.start is not None:
            sound = is_start(file, self.start, self.size, self.base_offset, MAX_OFFSET)
            return self.start if sound else 0, sound
        index = self.offset_index()
        start = index.lookup(offset)
        if is_start(file, start, self.size, self.base_offset, offset):
            return start, True
        positions = index.positions()
        return soundest_start(file, positions, offset, self.size, self.base_offset), False

    def time_start_for(self, file: File, timestamp: int, least: int) -> tuple[int, bool]:
        """Where to look for the first record at `timestamp` or later, from the offset `least` on,
        and whether the indexes were right about it."""
        if self.start is not None:
            return self.start_for(file, least)
        noted, offset = self.time_index().lookup(timestamp)
        if noted == NO_TIMESTAMP:
            return self.start_for(file, least)
        # The entry names a batch, and the latest time up to it, which is that batch's own.
        begin, sound = self.start_for(file, offset)
        place = find(file, offset, begin, self.size)
        header = None if place is None else next(walk(file, place[0], self.size), None)
        if header is None or header[1].max_timestamp != noted:
            return self.start_for(file, least)[0], False
        if least <= offset:
            return begin, sound
        begin, also = self.start_for(file, least)
        return begin, sound and also


class Segment:
    """The batches of one base offset."""

    __slots__ = (
        "_doubted",
        "_file",
        "_files",
        "_first_timestamp",
        "_folder",
        "_interval",
        "_max_index_bytes",
        "_tail_floor",
        "_tail_offsets",
        "_tail_positions",
        "_unindexed",
        "_written",
        "base_offset",
        "created_ms",
        "index_full",
        "jitter_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "pooled",
        "size",
        "time_index",
        "txn_index",
        "used",
    )

    def __init__(
        self,
        files: OpenFiles,
        folder: str,
        base_offset: int,
        *,
        size: int,
        index_entries: int | None,
        time_entries: int | None,
        now_ms: int,
    ) -> None:
        """Entry counts are those of the files; None for both makes an empty index in memory."""
        fs = files.fs
        self._files = files
        self._folder = folder
        self.base_offset = base_offset
        self.size = size
        self.created_ms = now_ms
        self.jitter_ms = 0

        self._file: File | None = None
        self.pooled = False
        self.used = False

        index_path = f"{folder}/{paths.index_name(base_offset)}"
        time_path = f"{folder}/{paths.timeindex_name(base_offset)}"
        self.offset_index = OffsetIndex(fs, index_path, base_offset, entries=index_entries)
        self.time_index = TimeIndex(fs, time_path, base_offset, entries=time_entries)
        self.txn_index = TransactionIndex(fs, f"{folder}/{paths.txnindex_name(base_offset)}")
        self._interval = 0
        self._max_index_bytes = 0
        self._unindexed = 0
        self.index_full = False
        self._doubted = False

        self._first_timestamp: int | None = None
        self.max_timestamp = _UNKNOWN if size else NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._written = (-1, 0)  # the size at which the file's time was looked up, and that time

        self._tail_floor = 0
        self._tail_offsets = array("q")
        self._tail_positions = array("i")

    def __repr__(self) -> str:
        return f"Segment({self.path!r}, size={self.size})"

    @property
    def path(self) -> str:
        return f"{self._folder}/{paths.log_name(self.base_offset)}"

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def file(self) -> File:
        """The open `.log`."""
        file = self._file
        if file is None:
            file = self._file = self._files.open(self)
            self.used = False  # a single read must not keep it open longer than busy files
        else:
            self.used = True
        return file

    def create_file(self) -> None:
        """Make the empty `.log` of a new segment. The indexes' files come with their first entries
        or when the segment is closed: a new partition is one file, not three."""
        file = self._files.fs.open(self.path, create=True)
        try:
            if file.size():
                file.truncate(0)
        finally:
            file.close()

    def file_paths(self) -> list[str]:
        """The segment's files, the `.log` first; indexes only if they exist."""
        fs = self._files.fs
        indexes = (self.offset_index.path, self.time_index.path, self.txn_index.path)
        return [self.path, *(path for path in indexes if fs.exists(path))]

    def swapped_paths(self) -> list[str]:
        """The names that files of a finished replacement get, the `.log` first: from then on the
        others are only what could be rebuilt from it."""
        return [self.path, self.offset_index.path, self.time_index.path, self.txn_index.path]

    # --- being the active one -----------------------------------------------------------------

    def activate(self, *, index_interval: int, max_index_bytes: int, jitter_ms: int) -> None:
        """Take appends: bring the indexes into memory."""
        self.offset_index.load()
        self.time_index.load()
        self.latest()
        self._interval = index_interval
        self._max_index_bytes = max_index_bytes
        self.jitter_ms = jitter_ms
        self._check_full()

    def set_index_interval(self, index_interval: int) -> None:
        self._interval = index_interval

    def append(self, records: ReadableBuffer) -> None:
        """Write whole batches at the end; `note` must follow for each of them.

        When the disk is full or fails, what was written of them is cut off again if the disk lets
        us, so that the file keeps ending with a whole batch."""
        file = self.file
        try:
            file.append(records)
        except OSError as error:
            if error.filename is None:
                error.filename = self.path
            try:
                file.truncate(self.size)
            except OSError:
                self._file = None  # where it would write next is unknown now
            raise

    def note(
        self,
        size: int,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        record_count: int = 1,
    ) -> None:
        """Account for one batch that `append` has written. One without records, which compaction
        has left, has no time to be found by."""
        position = self.size
        self.size = position + size
        if max_timestamp > self.max_timestamp and record_count:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self._first_timestamp = max_timestamp

        offsets = self._tail_offsets
        if not offsets:
            self._tail_floor = first_offset
        elif len(offsets) >= _TAIL:
            drop = _TAIL // 2
            self._tail_floor = offsets[drop - 1] + 1
            del offsets[:drop]
            del self._tail_positions[:drop]
        offsets.append(last_offset)
        self._tail_positions.append(position)

        if self._unindexed > self._interval:
            # Both indexes may write to their files here, and fail: the batch is accounted for.
            self._unindexed = size
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self._check_full()
        else:
            self._unindexed += size

    def _check_full(self) -> None:
        limit = self._max_index_bytes
        self.index_full = self.offset_index.is_full(limit) or self.time_index.is_full(limit)

    def should_roll(
        self,
        size: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
        segment_bytes: int,
        segment_ms: int,
    ) -> bool:
        """Whether a batch of `size` bytes belongs into a new segment, by Kafka's four rules: the
        file would grow too large, has been filling for too long, an index is full, or the offset
        is too far from the base."""
        if self.size > segment_bytes - size or self.index_full:
            return True
        if not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            return True
        if self.size == 0:
            return False
        first = self._first_timestamp
        if first is None or first < 0:
            return self.waited_ms(now_ms, max_timestamp) > segment_ms - self.jitter_ms
        return max_timestamp - first > segment_ms - self.jitter_ms

    def waited_ms(self, now_ms: int, max_timestamp: int) -> int:
        """How long the segment has been filling, by the records' own time if they have one."""
        first = self.first_timestamp()
        return max_timestamp - first if first >= 0 else now_ms - self.created_ms

    def first_timestamp(self) -> int:
        """The latest timestamp of the first batch; -1 when there is none."""
        first = self._first_timestamp
        if first is None:
            first = NO_TIMESTAMP
            was_open = self.is_open
            for _, header in walk(self.file, 0, self.size):
                first = header.max_timestamp
                break
            if not was_open:
                self._files.close_again(self)
            self._first_timestamp = first if self.size else None
        return first

    def complete(self) -> None:
        """Write everything that a rolled segment has on disk; it may still be appended to, and
        this may fail and be repeated. `seal` then needs no descriptor."""
        self.finish_indexes()
        for index in (self.time_index, self.offset_index):
            ensure_exists(self._files.fs, index.path)

    def seal(self) -> None:
        """Stop taking appends: complete the indexes and let go of the memory."""
        self.complete()
        self.offset_index.seal()
        self.time_index.seal()
        if self._doubted:
            self._have_rebuilt()
        self._tail_floor = 0
        self._tail_offsets = array("q")
        self._tail_positions = array("i")

    def finish_indexes(self) -> bool:
        """Write the indexes as a closed segment has them: the time index ends with the latest
        timestamp of all, which is what retention will go by. Says whether there was anything."""
        timestamp, offset = self.latest()
        self.time_index.maybe_append(timestamp, offset)
        changed = bool(self.time_index.pending or self.offset_index.pending)
        self.time_index.write_out()
        self.offset_index.write_out()
        self.txn_index.write_out()
        if self.size:
            for index in (self.time_index, self.offset_index):
                ensure_exists(self._files.fs, index.path)
        return changed

    # --- looking up ---------------------------------------------------------------------------

    def locate(self, offset: int, *, cached_only: bool = False) -> tuple[int, int] | None:
        """Position and size of the first batch that ends at or after `offset`.

        With `cached_only`: ColdRead rather than waiting for the disk."""
        offsets = self._tail_offsets
        if offsets and offset >= self._tail_floor:
            slot = bisect_left(offsets, offset)
            positions = self._tail_positions
            count = len(positions)
            if slot == count:
                return None
            position = positions[slot]
            slot += 1
            return position, (positions[slot] if slot < count else self.size) - position
        if self.size == 0:
            return None
        start = self.offset_index.lookup(offset, cached_only=cached_only)
        file: Readable = CachedReads(self.file) if cached_only else self.file
        try:
            return find(file, offset, start, self.size, floor=self.base_offset)
        except Misled:
            listed = self.offset_index.positions(cached_only=cached_only)
            start = soundest_start(file, listed, offset, self.size, self.base_offset)
            self.doubt_indexes()
            return find(file, offset, start, self.size)

    def doubt_indexes(self) -> None:
        """An index has turned out to be wrong: have both rebuilt, now or when they are rolled."""
        if not self._doubted:
            self._doubted = True
            logger.warning(
                "the indexes of %s do not fit its records: damaged on the disk, or changed from "
                "outside; they are rebuilt, and until then the records are looked for",
                self.path,
            )
            self._have_rebuilt()

    def _have_rebuilt(self) -> None:
        if self._files.on_doubt is not None and not self.offset_index.in_memory:
            self._files.on_doubt(self)

    def replace_indexes(self, index: bytes, time_index: bytes) -> None:
        """Take what a scan of this rolled segment has found instead of what is there."""
        self.offset_index.replace(index)
        self.time_index.replace(time_index)
        self.max_timestamp = _UNKNOWN if self.size else NO_TIMESTAMP
        self._doubted = False

    def upper_bound(self, position: int, *, cached_only: bool = False) -> int | None:
        """An offset that no batch before `position` reaches, if the index has one that the log
        confirms. What is not in memory is not read for that: there are other bounds."""
        found = self.offset_index.lookup_position(position, cached_only=cached_only)
        if found is None:
            return None
        offset, at = found
        file: Readable = CachedReads(self.file) if cached_only else self.file
        try:
            if self.offset_index.in_memory or is_start(
                file, at, self.size, self.base_offset, offset
            ):
                return offset
        except ColdRead:
            return None
        self.doubt_indexes()
        return None

    def view(self, start: int) -> SegmentView:
        """What a thread may look at. `start` is where it begins in a segment whose index is in
        memory; in others the index on disk tells."""
        return SegmentView(
            fs=self._files.fs,
            folder=self._folder,
            base_offset=self.base_offset,
            size=self.size,
            latest=None if self.max_timestamp == _UNKNOWN else self.latest(),
            start=start if self.offset_index.in_memory else None,
            index_entries=self.offset_index.entries,
            time_entries=self.time_index.entries,
        )

    def learn_latest(self, latest: tuple[int, int]) -> None:
        """A thread has read what `latest` would have read."""
        if self.max_timestamp == _UNKNOWN:
            self.max_timestamp, self.max_timestamp_offset = latest

    def latest(self) -> tuple[int, int]:
        """The latest timestamp and the last offset of its batch; (-1, base offset) if none."""
        if self.max_timestamp == _UNKNOWN:
            # In this order: a thread may be at it (`remember_age`), and the first says both are.
            timestamp, self.max_timestamp_offset = self.time_index.last()
            self.max_timestamp = timestamp
        return self.max_timestamp, self.max_timestamp_offset

    def largest_timestamp(self) -> int:
        """What age is counted from: the latest timestamp, else when the file was last written."""
        timestamp, _ = self.latest()
        return timestamp if timestamp >= 0 else self._files.fs.mtime_ms(self.path)

    def age(self, after_max_ms: int) -> Age:
        """What retention counts the age from; `retention` says how that is chosen."""
        newest, _ = self.latest()
        try:
            written = self.written_ms()
        except FileNotFoundError:
            if newest < 0:
                raise
            written = newest  # whoever deletes the segment will say that its file is gone
        believed = 0 <= newest <= written + after_max_ms
        return Age(newest if believed else written, newest)

    def written_ms(self) -> int:
        """When the file was last written; looked up again when its size has changed."""
        size, moment = self._written
        if size != self.size:
            moment = self._files.fs.mtime_ms(self.path)
            self._written = (self.size, moment)
        return moment

    def remember_age(self) -> None:
        """Look up what `age` needs, from any thread. Whatever fails will fail again in `age`."""
        with suppress(OSError):
            self.age(0)

    def rolls_at(self, segment_ms: int) -> int:
        """The first moment at which a record of that moment would belong into a new segment."""
        first = self.first_timestamp()
        since = first if first >= 0 else self.created_ms
        return since + segment_ms - self.jitter_ms + 1

    # --- ending -------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Drop every batch that ends at or after `offset`; returns the bytes dropped."""
        place = self.locate(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        dropped = 0
        if place is not None:
            dropped = self.size - place[0]
            self.file.truncate(place[0])
            self.size = place[0]
        if self.size == 0:
            self.created_ms = now_ms
            self._first_timestamp = None
        self._written = (-1, 0)
        self._unindexed = 0
        self._tail_offsets = array("q")
        self._tail_positions = array("i")
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        if self.size:
            start = self.offset_index.lookup(self.max_timestamp_offset)
            if not is_start(self.file, start, self.size, self.base_offset, MAX_OFFSET):
                start = 0
            for _, header in walk(self.file, start, self.size):
                if header.max_timestamp > self.max_timestamp and header.record_count:
                    self.max_timestamp = header.max_timestamp
                    self.max_timestamp_offset = header.last_offset
        return dropped

    def close_file(self) -> None:
        """Let go of the descriptor; the next use opens it again."""
        self._file = None
