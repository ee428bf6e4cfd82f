"""Files of a log, read offline: what both `ottla log dump` and kafka-dump-log print.

Each format is decoded by the package that owns it; here is the way to it from a path. Nothing is
written, and a file that a running broker appends to may be read. Raises OSError, and for a file
that is not what its name says one of `UNREADABLE`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.records.batch import BatchHeader, InvalidBatch, batches
from ottla.runtime.files import OsFileSystem
from ottla.storage import paths
from ottla.storage.checkpoints import CheckpointError
from ottla.storage.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.storage.producers import SnapshotEntry, SnapshotError, snapshot_entries
from ottla.storage.txn_index import AbortedTxn, TransactionIndex, TxnIndexError

FS = OsFileSystem()


class TornIndex(Exception):
    """An index that ends in the middle of an entry."""


UNREADABLE = (InvalidBatch, CheckpointError, SnapshotError, TornIndex, TxnIndexError)


def base_offset(path: str) -> int:
    """The offset in a file's name; a copy under another name begins at 0."""
    stem = os.path.basename(path).partition(".")[0]
    return int(stem) if stem.isascii() and stem.isdigit() else 0


@contextmanager
def mapped(path: str) -> Iterator[memoryview]:
    """The content of a file, without reading it before it is looked at."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        # Not closed here: whoever was interrupted may still hold a piece of it.
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def compression_name(header: BatchHeader) -> str | None:
    """The codec of a batch; None when its number is that of none."""
    try:
        return header.compression.name.lower()
    except InvalidBatch:
        return None


def segment_of(index: str) -> str:
    """The segment that an index belongs to."""
    return os.path.splitext(index)[0] + paths.LOG_SUFFIX


def heads(segment: str) -> tuple[dict[int, BatchHeader], bool]:
    """The header of each batch by its position, and whether that is all of them: the rest may be
    damaged."""
    found: dict[int, BatchHeader] = {}
    with mapped(segment) as view:
        try:
            found.update(batches(view))
        except InvalidBatch:
            return found, False
    return found, True


def offset_entries(path: str) -> Iterator[tuple[int, int]]:
    """Of an `.index`, offsets and positions."""
    base = base_offset(path)
    for relative, position in _entries(path, OFFSET_ENTRY):
        yield base + relative, position


def time_entries(path: str) -> Iterator[tuple[int, int]]:
    """Of a `.timeindex`, timestamps and offsets."""
    base = base_offset(path)
    for timestamp, relative in _entries(path, TIME_ENTRY):
        yield timestamp, base + relative


def _entries(path: str, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Kafka preallocates the index it writes to, and a killed one leaves it so: the zeros at the
    end are no entries. No real one is all zero, because the first batch is never indexed."""
    data = FS.read_bytes(path)
    used = -(-len(data.rstrip(b"\0")) // entry.size) * entry.size
    if used > len(data):
        raise TornIndex(
            f"the file ends in the middle of an entry of {entry.size} bytes; delete it, and the "
            f"broker builds it anew"
        )
    return entry.iter_unpack(data[:used])


def aborted_transactions(path: str) -> Iterator[AbortedTxn]:
    """Of a `.txnindex`."""
    os.stat(path)  # to the index itself a file that is missing is an empty one
    return iter(TransactionIndex(FS, path))


def producers(path: str) -> list[SnapshotEntry]:
    """Of a `.snapshot`."""
    return snapshot_entries(FS.read_bytes(path))
