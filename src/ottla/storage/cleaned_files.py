"""The files of a segment that the cleaner writes, under their `.cleaned` names.

The steps from here into the log, and what a crash leaves at each:

    X.log.cleaned …  being written, then synced with their names  removed by the next start
    X.log.swap …     `rename_to_swap`; names synced afterwards    removed while one is `.cleaned`,
                                                                  then put in place
    X.log …          old files renamed to `.deleted`, then the    finished by the next start
                     new ones to their names, `.log` first
    X.log.deleted …  removed after `file.delete.delay.ms`         removed by the next start

Apache Kafka takes the same steps and starts by the same rules, so each may finish what the other
has begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import HEADER_SIZE
from ottla.records.walker import ROW
from ottla.storage import paths
from ottla.storage.index import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex, ensure_exists
from ottla.storage.txn_index import AbortedTxn, TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import ReadableBuffer

    from ottla.runtime.files import FileSystem

_SYNC_EVERY = 32 * 1024 * 1024
"""Bytes after which the file is synced on the way: one sync of a whole segment at the end would
make everybody else's fsync wait behind it."""


class CleanedFiles:
    """A segment on its way. Used by the process that cleans."""

    def __init__(
        self, fs: FileSystem, folder: str, base_offset: int, index_interval: int, max_index: int
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._base = base_offset
        self._interval = index_interval
        self._max_index = max_index
        for path in temporary_paths(folder, base_offset, paths.CLEANED_SUFFIX):
            if fs.exists(path):
                fs.remove(path)
        log, index, times, txns = temporary_paths(folder, base_offset, paths.CLEANED_SUFFIX)
        self._path = log
        self._file = fs.open(log, create=True)
        self._index = OffsetIndex(fs, index, base_offset, entries=None)
        self._times = TimeIndex(fs, times, base_offset, entries=None)
        self._txns = TransactionIndex(fs, txns)
        self._unindexed = 0
        self._unsynced = 0
        self._newest = NO_TIMESTAMP, base_offset
        self.size = 0

    @property
    def index_entries(self) -> int:
        return self._index.entries

    @property
    def time_entries(self) -> int:
        return self._times.entries

    def write(self, batches: ReadableBuffer, rows: bytes) -> None:
        """Append batches; a `walker.ROW` describes each."""
        self._file.append(batches)
        size = 0
        for _, size, _, last_offset, max_timestamp in ROW.iter_unpack(rows):
            if last_offset - self._base > MAX_RELATIVE_OFFSET or self.size > MAX_RELATIVE_OFFSET:
                raise OverflowError(f"{self._path} has no room for offset {last_offset}")
            self._note(size, last_offset, max_timestamp)
            self._unsynced += size
        if self._unsynced >= _SYNC_EVERY:
            self._file.sync()
            self._unsynced = 0

    def _note(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """As `Segment.note` for an append. A batch without records has no time to be found by."""
        position = self.size
        self.size = position + size
        if max_timestamp > self._newest[0] and size > HEADER_SIZE:
            self._newest = max_timestamp, last_offset
        if self._unindexed <= self._interval:
            self._unindexed += size
            return
        self._unindexed = size
        if not self._index.is_full(self._max_index):
            self._index.append(last_offset, position)
        if not self._times.is_full(self._max_index):
            self._times.maybe_append(*self._newest)

    def finish(self, aborted: Iterable[AbortedTxn], modified_ms: int) -> None:
        """Complete the indexes and make everything durable."""
        self._times.maybe_append(*self._newest)
        self._index.write_out()
        self._times.write_out()
        for index in (self._index, self._times):
            ensure_exists(self._fs, index.path)
        for txn in aborted:
            self._txns.append(txn)
        self._file.sync()
        self.close()
        for path in (self._index.path, self._times.path, self._txns.path):
            if self._fs.exists(path):
                file = self._fs.open(path)
                try:
                    file.sync()
                finally:
                    file.close()
        # Who has no timestamps is deleted by the age of his file: that must not begin anew.
        self._fs.set_mtime_ms(self._path, modified_ms)
        self._fs.sync_dir(self._folder)

    def close(self) -> None:
        self._file.close()


def temporary_paths(folder: str, base_offset: int, suffix: str) -> list[str]:
    """The names of a segment's files on their way, the `.log` first."""
    stem = f"{folder}/{base_offset:020d}"
    return [f"{stem}{kind}{suffix}" for kind in paths.SEGMENT_SUFFIXES]


def rename_to_swap(fs: FileSystem, folder: str, base_offset: int) -> None:
    """The files are to replace others. The `.log` is the last to be renamed. Raises OSError when
    one is missing; only the transaction index need not be there."""
    cleaned = temporary_paths(folder, base_offset, paths.CLEANED_SUFFIX)
    swap = temporary_paths(folder, base_offset, paths.SWAP_SUFFIX)
    for source, target in reversed(list(zip(cleaned, swap, strict=True))):
        if source != cleaned[-1] or fs.exists(source):
            fs.rename(source, target)


def remove_leftovers(fs: FileSystem, folder: str) -> None:
    """Remove what an unfinished cleaning has left. Blocks. To be done before the next one begins:
    a file of the old one would be taken for one of the new."""
    for name in fs.listdir(folder):
        if name.endswith(paths.CLEANED_SUFFIX):
            fs.remove(f"{folder}/{name}")


def withdraw(fs: FileSystem, folder: str, base_offset: int) -> list[str]:
    """Rename files on their way to `.deleted`, whichever names they have; returns the new names.

    The `.log` becomes `.cleaned` first: a start that finds one puts nothing in place."""
    log, *indexes = temporary_paths(folder, base_offset, paths.SWAP_SUFFIX)
    unfinished = temporary_paths(folder, base_offset, paths.CLEANED_SUFFIX)
    if fs.exists(log):
        fs.rename(log, unfinished[0])
    renamed: list[str] = []
    for path in (*indexes, *reversed(unfinished)):
        if fs.exists(path):
            target = f"{path}{paths.DELETED_SUFFIX}"
            fs.rename(path, target)
            renamed.append(target)
    return renamed
