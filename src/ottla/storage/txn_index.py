"""A segment's aborted transactions (`.txnindex`).

A fetch with `isolation_level=read_committed` returns, beside the records, which transactions among
them were aborted: the client drops those. Each entry stands in the segment that holds its abort
marker, in the order of markers:

    version (2) = 0 | producer id (8) | first offset (8) | last offset (8) | last stable offset (8)

The file is made with the first entry: most segments have none, and a segment keeps no descriptor
for it. The entries are read once, when they are first asked for, and kept as they are on disk, 34
bytes each: every fetch of a read-committed consumer asks, and must not cost a system call.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from ottla.storage.faults import is_shortage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.runtime.files import FileSystem
    from ottla.storage.producers import CompletedTxn

_ENTRY = struct.Struct(">hqqqq")
_MARKER, _MARKER_AT = struct.Struct(">q"), 18
"""The last offset in an entry: that of the marker."""
_VERSION = 0


class TxnIndexError(Exception):
    """A transaction index that does not fit its segment: it is rebuilt from the log."""


class AbortedTxn(NamedTuple):
    """A transaction that was aborted by the marker at `last_offset`.

    `last_stable_offset` is the start of the oldest transaction that was open after it: once that
    is at or past the end of a fetched range, no later entry can touch the range.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The index of one segment, in the file at `path`. Making one touches no file."""

    __slots__ = ("_data", "_fs", "_unwritten", "path")

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self._data: bytearray | None = None
        self._unwritten = 0
        """Bytes at the end that the file does not have yet: there was no descriptor for it."""

    def exists(self) -> bool:
        """Whether there is a file."""
        return self._fs.exists(self.path)

    def _load(self, *, cached_only: bool = False) -> bytearray:
        data = self._data
        if data is None:
            try:
                data = bytearray(self._read_cached() if cached_only else self.read())
            except FileNotFoundError:
                data = bytearray()
            # A torn last entry was never relied upon: what it told is still in the log's replay.
            del data[len(data) - len(data) % _ENTRY.size :]
            self._data = data
        return data

    def load(self) -> None:
        """Read the entries, if they have not been read yet."""
        self._load()

    def read(self) -> bytes:
        """The file's content; FileNotFoundError when there is none."""
        return self._fs.read_bytes(self.path)

    def _read_cached(self) -> bytes | bytearray:
        file = self._fs.open(self.path)
        try:
            return file.pread_cached(file.size(), 0)
        finally:
            file.close()

    def __iter__(self) -> Iterator[AbortedTxn]:
        """Every entry, in the order of their markers."""
        for version, *fields in _ENTRY.iter_unpack(bytes(self._load())):
            yield self._checked(version, fields)

    def _checked(self, version: int, fields: list[int]) -> AbortedTxn:
        if version != _VERSION:
            raise TxnIndexError(f"{self.path}: an entry of version {version}")
        return AbortedTxn(*fields)

    def append(self, txn: CompletedTxn | AbortedTxn) -> None:
        """Note a transaction that has just been aborted; its marker is after all others."""
        data = self._load()
        if data:
            last_offset = _ENTRY.unpack_from(data, len(data) - _ENTRY.size)[3]
            if txn.last_offset <= last_offset:
                raise ValueError(
                    f"{self.path}: marker {txn.last_offset} is not after {last_offset}"
                )
        entry = _ENTRY.pack(
            _VERSION, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset
        )
        data += entry
        self._unwritten += len(entry)
        try:
            self.write_out()
        except OSError as error:
            if not is_shortage(error):
                del data[-len(entry) :]
                self._unwritten -= len(entry)
                raise
            # The marker is in the log already: the entry is written with the next one, or when
            # the segment is rolled or closed.

    def write_out(self) -> None:
        """Append what the file does not have yet."""
        if not self._unwritten or self._data is None:
            return
        file = self._fs.open(self.path, create=True)
        try:
            at = len(self._data) - self._unwritten
            file.pwrite(bytes(self._data[at:]), at)
        finally:
            file.close()
        self._unwritten = 0

    def collect_aborted(
        self, fetch_offset: int, upper: int, *, cached_only: bool = False
    ) -> tuple[list[AbortedTxn], bool]:
        """The transactions that touch offsets from `fetch_offset` up to, not including, `upper`.

        And whether that is all of them: if not, the next segment may hold more. With
        `cached_only`: ColdRead rather than waiting for the disk.
        """
        found: list[AbortedTxn] = []
        data = self._load(cached_only=cached_only)
        # The entries before have ended before. There may be a million of them, and a consumer at
        # the end of the log asks with every fetch.
        for slot in range(self._first_from(data, fetch_offset), len(data) // _ENTRY.size):
            version, *fields = _ENTRY.unpack_from(data, slot * _ENTRY.size)
            txn = self._checked(version, fields)
            if txn.first_offset < upper:
                found.append(txn)
            if txn.last_stable_offset >= upper:
                return found, True
        return found, False

    def _first_from(self, data: bytearray, offset: int) -> int:
        """The slot of the first entry whose marker is at `offset` or later."""

        def marker(slot: int) -> int:
            found: int = _MARKER.unpack_from(data, slot * _ENTRY.size + _MARKER_AT)[0]
            return found

        return bisect_left(range(len(data) // _ENTRY.size), offset, key=marker)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose markers are at `offset` or later."""
        kept = 0
        for txn in self:
            if txn.last_offset >= offset:
                break
            kept += _ENTRY.size
        self._cut(kept)

    def reset(self) -> None:
        """Drop all entries, to be filled anew from the log."""
        self._data, self._unwritten = bytearray(), 0
        self._cut(0)

    def _cut(self, size: int) -> None:
        data = self._load()
        written = len(data) - self._unwritten
        del data[size:]
        self._unwritten = max(0, size - written)
        if self.exists():
            file = self._fs.open(self.path)
            try:
                if file.size() > size:
                    file.truncate(size)
            finally:
                file.close()

    def check(self, base_offset: int) -> None:
        """Raise TxnIndexError when an entry cannot be of the segment that begins there."""
        previous = -1
        for txn in self:
            if txn.last_offset < base_offset:
                raise TxnIndexError(
                    f"{self.path}: {txn} ends before the segment's first offset {base_offset}"
                )
            if txn.last_offset <= previous or txn.first_offset > txn.last_offset:
                raise TxnIndexError(f"{self.path}: {txn} is out of order")
            previous = txn.last_offset
