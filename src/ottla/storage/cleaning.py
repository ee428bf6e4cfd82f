"""Compacting the segments of a log: the work over files, done in a child process.

Two passes. The first reads the dirty part of the log and notes the latest offset of each key, in a
map of bounded size: when that is full, the cleaning ends there and the next one goes on. The second
reads everything up to that end and copies what stays into new segments: several small ones become
one. Offsets, leader epochs and timestamps stay what they are. Which records stay is decided by
`records.walker.filter_chunk`; here are the batches that it leaves to us: compressed ones, and those
of transactions (`cleaned_txns`). Three kinds of batches stay even with no record left, as a header
alone:

- the last of each active producer: its sequence number tells duplicates after a restart,
- the last control batch of a producer that has written nothing else: its epoch fences zombies,
- the last of each new segment. So a segment's content says where it ends, also when its last
  records are gone, and a start after a crash knows which segments it replaces (`open_log`).

Nothing here touches a file that is in use. The new files are called `.cleaned`, are complete and
synced, with their names, when they are announced, and become part of the log in `Log`, on the event
loop. A process that dies leaves `.cleaned` files, which the next start removes.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.config.setting import MAX_LONG
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.records import varint
from ottla.records.batch import (
    APPEND_TIME_FLAG,
    HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    checksum_ok,
    read_header,
)
from ottla.records.compression import compress
from ottla.records.reader import payload
from ottla.records.walker import (
    ROW,
    End,
    Kept,
    KeyOffsets,
    empty_batch,
    filter_chunk,
    filter_records,
    index_chunk,
    index_records,
    rebuilt_batch,
)
from ottla.storage import paths
from ottla.storage.cleanable import Source, groups
from ottla.storage.cleaned_files import CleanedFiles
from ottla.storage.cleaned_txns import CleanedTransactions, read_aborted
from ottla.storage.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY, OffsetIndex
from ottla.storage.scan import is_start, soundest_start, walk
from ottla.storage.txn_index import TxnIndexError

if TYPE_CHECKING:
    from ottla.runtime.files import File, FileSystem

_SMALLEST_BUFFER = 16 * 1024
_ADVICE = (
    "Check it with `ottla log dump --verify`, restore it from a copy or accept the loss with "
    "`ottla log repair`, then restart the broker"
)


@dataclass(frozen=True, slots=True)
class CleanTask:
    """Everything `clean` needs to know."""

    folder: str
    partition: TopicPartition
    sources: tuple[Source, ...]
    """The segments below `first_uncleanable_offset`, oldest first."""
    later_bases: tuple[int, ...]
    """The segments after them: abort markers may be there."""
    first_dirty_offset: int
    first_uncleanable_offset: int
    last_records: Mapping[int, tuple[int, int]]
    """Of each active producer the last data offset, or -1, and the epoch."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval: int
    map_bytes: int
    load_factor: float
    buffer_bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A new segment whose `.cleaned` files are complete and durable."""

    base_offset: int
    replaces: tuple[int, ...]
    """The base offsets of the segments whose place it takes."""
    size: int
    index_entries: int
    time_entries: int


@dataclass(frozen=True, slots=True)
class CleanSummary:
    """The end of a cleaning."""

    end_offset: int
    """Up to here the log is clean."""
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    map_used: float
    """How full the map of keys was, as a share of what it may take."""


class CleaningFailed(Exception):
    """The log cannot be cleaned as it is; the message says why and what to do."""


class Throttle:
    """Lets `bytes_per_second` through and makes the rest wait."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._sleep = sleep
        self._free_at = now()

    def take(self, count: int) -> None:
        """Wait until `count` more bytes may be read or written."""
        now = self._now()
        self._free_at = max(self._free_at, now) + count / max(self._rate, 1.0)
        if self._free_at - now > 0.01:
            self._sleep(self._free_at - now)


def clean(
    fs: FileSystem, task: CleanTask, throttle: Throttle | None = None
) -> Iterator[CleanedSegment | CleanSummary]:
    """Clean a log's segments; the summary comes last. Raises OSError and CleaningFailed."""
    keys = KeyOffsets(task.map_bytes, task.load_factor)
    work = _Cleaning(fs, task, keys, throttle or Throttle(task.bytes_per_second))
    try:
        yield from work.run()
    except (InvalidBatch, KafkaError, OverflowError, TxnIndexError) as error:
        raise CleaningFailed(f"{work.path}: {error}. {_ADVICE}") from None
    finally:
        keys.close()


class _Cleaning:
    def __init__(
        self, fs: FileSystem, task: CleanTask, keys: KeyOffsets, throttle: Throttle
    ) -> None:
        self._fs = fs
        self._task = task
        self._keys = keys
        self._throttle = throttle
        size = max(_SMALLEST_BUFFER, task.buffer_bytes)
        self._input = bytearray(size)
        self._output = bytearray(size)
        self._read = self._written = 0
        self._records_read = self._records_kept = 0
        self._transactions = CleanedTransactions(())
        self._stay: frozenset[int] = frozenset()
        self.path = task.folder

    def run(self) -> Iterator[CleanedSegment | CleanSummary]:
        task = self._task
        self._note_keys()
        end_offset = self._keys.latest_offset + 1
        if end_offset <= task.first_dirty_offset:
            return
        self._transactions = self._track(task.sources[0].base_offset)
        sources = [source for source in task.sources if source.base_offset < end_offset]
        for group in groups(
            sources,
            end_offset=task.first_uncleanable_offset,
            max_bytes=task.segment_bytes,
            max_index_bytes=task.segment_index_bytes,
        ):
            yield self._clean_group(group)
        yield CleanSummary(
            end_offset,
            self._read,
            self._written,
            self._records_read,
            self._records_kept,
            len(self._keys) / self._keys.capacity,
        )

    def _track(self, first: int) -> CleanedTransactions:
        task = self._task
        bases = [source.base_offset for source in task.sources]
        upper = task.first_uncleanable_offset
        aborted = read_aborted(self._fs, task.folder, (*bases, *task.later_bases), first, upper)
        return CleanedTransactions(aborted)

    # --- the first pass -----------------------------------------------------------------------

    def _note_keys(self) -> None:
        task = self._task
        self._transactions = self._track(task.first_dirty_offset)
        ends = [source.base_offset for source in task.sources[1:]]
        ends.append(task.first_uncleanable_offset)
        for source, end in zip(task.sources, ends, strict=True):
            if end <= task.first_dirty_offset:
                continue
            if self._note_segment(source):
                return
            # Compaction leaves gaps: whatever was between the last batch and here is gone.
            self._keys.cover(end - 1)

    def _note_segment(self, source: Source) -> bool:
        """Note the keys of one segment; whether the map is full."""
        task = self._task
        first, stop = task.first_dirty_offset, task.first_uncleanable_offset
        start = 0
        if source.base_offset < first:
            file = self._fs.open(f"{task.folder}/{paths.log_name(source.base_offset)}")
            try:
                start = self._start_for(source, file, first)
            finally:
                file.close()
        for chunk, progress in self._chunks(source, start):
            at = 0
            while True:
                at, end, _ = index_chunk(self._keys, chunk, at, first, stop)
                if end != End.SPECIAL:
                    break
                header = self._special(chunk, at, progress)
                if self._note_special(header, chunk[at : at + header.size]):
                    end = End.FULL
                    break
                at += header.size
            if end == End.FULL:
                return True
            progress.used(at, end)
        return False

    def _note_special(self, header: BatchHeader, batch: memoryview) -> bool:
        task = self._task
        if header.is_control:
            self._transactions.marker(header, batch)
        elif header.is_transactional and self._transactions.data(header):
            pass
        elif header.last_offset >= task.first_dirty_offset:
            return index_records(
                self._keys,
                header,
                payload(batch, header),
                task.first_dirty_offset,
                task.first_uncleanable_offset,
            )
        if header.last_offset >= task.first_dirty_offset:
            self._keys.cover(header.last_offset)
        return False

    # --- the second pass ----------------------------------------------------------------------

    def _clean_group(self, group: list[Source]) -> CleanedSegment:
        """Copy what stays of neighbouring segments into a new one."""
        task = self._task
        base = group[0].base_offset
        out = CleanedFiles(
            self._fs, task.folder, base, task.index_interval, task.segment_index_bytes
        )
        try:
            stay = self._offsets_to_stay(group)
            self._stay = frozenset(stay)
            for source in group:
                self._filter(source, out, stay)
            self._written += out.size
            aborted, self._transactions.retained = self._transactions.retained, []
            modified = self._fs.mtime_ms(f"{task.folder}/{paths.log_name(group[-1].base_offset)}")
            out.finish(aborted, modified)
        finally:
            out.close()
        return CleanedSegment(
            base,
            tuple(source.base_offset for source in group),
            out.size,
            out.index_entries,
            out.time_entries,
        )

    def _offsets_to_stay(self, group: list[Source]) -> array[int]:
        """The last offsets of batches that stay without records, ascending."""
        offsets = {offset for offset, _ in self._task.last_records.values() if offset >= 0}
        for source in reversed(group):
            if source.size:
                offsets.add(self._last_offset(source))
                break
        return array("q", sorted(offsets))

    def _last_offset(self, source: Source) -> int:
        self.path = f"{self._task.folder}/{paths.log_name(source.base_offset)}"
        file = self._fs.open(self.path)
        try:
            last = source.base_offset
            for _, header in walk(file, self._start_for(source, file, MAX_LONG), source.size):
                last = header.last_offset
            return last
        finally:
            file.close()

    def _start_for(self, source: Source, file: File, offset: int) -> int:
        """Where a look-up of `offset` begins in a segment's open file: where its index says, if
        the file agrees."""
        base = source.base_offset
        path = f"{self._task.folder}/{paths.index_name(base)}"
        entries = source.index_bytes // OFFSET_ENTRY.size
        index = OffsetIndex(self._fs, path, base, entries=entries)
        try:
            start = index.lookup(min(offset, base + MAX_RELATIVE_OFFSET))
        except KafkaError:  # the index is shorter than it was
            start = -1
        if is_start(file, start, source.size, base, offset):
            return start
        return soundest_start(file, index.positions(), offset, source.size, base)

    def _filter(self, source: Source, out: CleanedFiles, stay: array[int]) -> None:
        task = self._task
        horizon = min(task.now_ms + task.delete_retention_ms, MAX_LONG)
        for chunk, progress in self._chunks(source, 0):
            at = 0
            while True:
                done = filter_chunk(
                    self._keys,
                    chunk,
                    at,
                    self._output,
                    0,
                    now_ms=task.now_ms,
                    horizon_ms=horizon,
                    must_stay=stay,
                )
                self._records_read += done.records_read
                self._records_kept += done.records_kept
                if done.filled:
                    self._write(out, memoryview(self._output)[: done.filled], done.rows)
                if done.end == End.FULL and done.position == at:
                    self._output = bytearray(2 * len(self._output))
                at, end = done.position, done.end
                if end == End.SPECIAL:
                    header = self._special(chunk, at, progress)
                    batch = self._filter_special(header, chunk[at : at + header.size], horizon)
                    if batch:
                        row = ROW.pack(0, len(batch), *_outline(read_header(batch)))
                        self._write(out, batch, row)
                    at += header.size
                elif end != End.FULL:
                    break
            progress.used(at, end)

    def _filter_special(self, header: BatchHeader, batch: memoryview, horizon: int) -> bytes:
        """What stays of a batch that is compressed, of a transaction, or a marker."""
        self._records_read += header.record_count
        if header.is_control:
            return self._filter_marker(header, batch, horizon)
        if header.is_transactional and self._transactions.data(header):
            return empty_batch(header) if header.last_offset in self._stay else b""
        kept = filter_records(
            self._keys,
            header,
            payload(batch, header),
            now_ms=self._task.now_ms,
            horizon_ms=horizon,
        )
        _, count, changed, *_ = kept
        self._records_kept += count
        if count == 0:
            return empty_batch(header) if header.last_offset in self._stay else b""
        if not changed:
            return bytes(batch)
        return rebuilt_batch(header, kept, compress(header.compression, kept.body))

    def _filter_marker(self, header: BatchHeader, batch: memoryview, horizon: int) -> bytes:
        done_with = self._transactions.marker(header, batch)
        due = header.delete_horizon_ms
        if header.record_count == 0 or (done_with and due is not None and due <= self._task.now_ms):
            last = self._task.last_records.get(header.producer_id)
            fences = last is not None and last == (-1, header.producer_epoch)
            return empty_batch(header) if fences or header.last_offset in self._stay else b""
        self._records_kept += header.record_count
        if done_with and due is None:
            return _with_horizon(header, payload(batch, header), horizon)
        return bytes(batch)

    def _write(self, out: CleanedFiles, data: bytes | memoryview, rows: bytes) -> None:
        self._throttle.take(len(data))
        out.write(data, rows)

    # --- reading ------------------------------------------------------------------------------

    def _chunks(self, source: Source, position: int) -> Iterator[tuple[memoryview, _Progress]]:
        """The file in pieces that begin with a batch. Whoever works on one says how far he came."""
        self.path = f"{self._task.folder}/{paths.log_name(source.base_offset)}"
        file = self._fs.open(self.path)
        try:
            progress = _Progress(self.path, position)
            while progress.position < source.size:
                left = source.size - progress.position
                view = memoryview(self._input)[:left]
                chunk = view[: file.pread_into(view, progress.position)]
                before = progress.position
                yield chunk, progress
                done = progress.position - before
                if done == 0:
                    # Not one whole batch: the buffer is too small for it.
                    if len(chunk) < HEADER_SIZE or not len(chunk) < read_header(chunk).size <= left:
                        raise progress.damaged(0)
                    self._input = bytearray(read_header(chunk).size)
                self._read += done
                self._throttle.take(done)
        finally:
            file.close()

    def _special(self, chunk: memoryview, at: int, progress: _Progress) -> BatchHeader:
        header = read_header(chunk, at)
        if not checksum_ok(chunk, at, header):
            raise progress.damaged(at)
        return header


class _Progress:
    """How far the work over a file has come."""

    __slots__ = ("path", "position")

    def __init__(self, path: str, position: int) -> None:
        self.path = path
        self.position = position

    def used(self, count: int, end: End) -> None:
        """So much of the chunk is done, and why not more."""
        if end == End.DAMAGED:
            raise self.damaged(count)
        self.position += count

    def damaged(self, at: int) -> CleaningFailed:
        return CleaningFailed(f"{self.path} is damaged at position {self.position + at}. {_ADVICE}")


def _outline(header: BatchHeader) -> tuple[int, int, int]:
    return header.base_offset, header.last_offset, header.max_timestamp


def _with_horizon(header: BatchHeader, data: bytes, horizon: int) -> bytes:
    """A control batch with a delete horizon: that becomes the base of its record's timestamp."""
    length, content = varint.decode(data, 0)
    delta, after = varint.decode(data, content + 1)
    moment = header.base_timestamp + delta
    if header.attributes & APPEND_TIME_FLAG:
        moment = header.max_timestamp
    stamp = varint.encode(moment - horizon)
    record = data[content : content + 1] + stamp + data[after : content + length]
    body = varint.encode(len(record)) + record
    kept = Kept(body, 1, True, True, horizon, moment)
    return rebuilt_batch(header, kept, compress(header.compression, body))
