"""Walks over many records at once: the one way for validation, time look-ups, the log cleaner and
Spark's source. Spark's sink, which makes records, has its loops in the same extension.

The door to `_native`, a small extension in C that is built where there is a compiler: some sixty
million records a second, without the interpreter's lock. Where it is not there, or where the
environment has OTTLA_NATIVE=0, the same functions are done in Python (`plain_walker`,
`plain_cleaning`), with the same results and errors; `NATIVE` says which it is, `WHY_PLAIN` why.

Whatever the bytes are, the answer is a result or InvalidBatch. Bytes are checked as strictly as by
`reader.iter_records`: a record must end exactly where its length says, and inside the batch; there
must be exactly as many as the header says, and nothing after them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ottla.records import plain_cleaning, plain_walker
from ottla.records.plain_cleaning import (
    ROW,
    End,
    Filtered,
    Indexed,
    Kept,
    empty_batch,
    rebuilt_batch,
)
from ottla.records.plain_walker import MAX_LONG, MIN_LONG, Offender, Rules, Summary

if TYPE_CHECKING:
    from array import array
    from types import ModuleType

    from _typeshed import ReadableBuffer, WriteableBuffer

    from ottla.records.batch import BatchHeader
    from ottla.records.plain_cleaning import KeyOffsets

__all__ = [
    "COLUMN_LOOPS",
    "NATIVE",
    "ROW",
    "ROW_LOOPS",
    "TURNED_OFF",
    "WHY_PLAIN",
    "End",
    "Filtered",
    "Indexed",
    "Kept",
    "KeyOffsets",
    "Offender",
    "Rules",
    "Summary",
    "empty_batch",
    "filter_chunk",
    "filter_records",
    "find_offenders",
    "first_at_or_after",
    "index_chunk",
    "index_records",
    "rebuilt_batch",
    "renumber",
    "summarize",
]

_INTERFACE: Final = 5  # of `_native`, as its sources beside this module have it

TURNED_OFF: Final = os.environ.get("OTTLA_NATIVE") == "0"


def _load() -> tuple[ModuleType | None, str]:
    """The native code, or why there is none."""
    if TURNED_OFF:
        return None, "OTTLA_NATIVE=0 turns the native code off"
    try:
        from ottla.records import _native
    except ImportError as error:
        return None, f"the native code is not there ({error})"
    if getattr(_native, "INTERFACE", None) != _INTERFACE:
        return None, "the native code was built from other sources"
    return _native, ""


_native, WHY_PLAIN = _load()
NATIVE: Final = _native is not None

COLUMN_LOOPS: Final = None if _native is None else (_native.outline, _native.fill_columns)
"""From the bytes of a fetch to Arrow's columns, for Spark's source (`pipelines.source.kernel`)."""

ROW_LOOPS: Final = (
    None if _native is None else (_native.route, _native.sort_by_lane, _native.encode)
)
"""From Arrow's columns to the bytes of records, for Spark's sink (`pipelines.sink.loops`)."""

if not TYPE_CHECKING:
    KeyOffsets = plain_cleaning.KeyOffsets if _native is None else _native.KeyOffsets


def summarize(data: ReadableBuffer, record_count: int) -> Summary:
    """What validation needs of the `record_count` records in `data`, a decompressed payload."""
    if _native is None:
        return plain_walker.summarize(data, record_count)
    return Summary._make(_native.summarize(data, record_count))


def find_offenders(
    data: ReadableBuffer, record_count: int, rules: Rules, limit: int
) -> tuple[int, int, list[Offender]]:
    """How many of the records break a rule, how many of those by their time and not for want of a
    key, and the first `limit` of them."""
    if _native is None:
        return plain_walker.find_offenders(data, record_count, rules, limit)
    keyed, oldest, newest, exempt = rules
    if oldest > MAX_LONG or newest < MIN_LONG:
        oldest, newest = 1, 0  # none is in such a range
    if exempt is not None and not MIN_LONG <= exempt <= MAX_LONG:
        exempt = None
    total, late, found = _native.find_offenders(
        data,
        record_count,
        keyed,
        max(oldest, MIN_LONG),
        min(newest, MAX_LONG),
        exempt is not None,
        exempt or 0,
        limit,
    )
    return total, late, [Offender._make(each) for each in found]


def first_at_or_after(
    data: ReadableBuffer,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    timestamp: int,
    min_offset: int,
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record that has both at least. What comes after it is not
    looked at. With a batch's max timestamp it finds the first record that has it."""
    walk = plain_walker.first_at_or_after if _native is None else _native.first_at_or_after
    return walk(data, record_count, base_offset, base_timestamp, timestamp, min_offset)


def renumber(data: ReadableBuffer, record_count: int, *, same_time: bool = False) -> bytes:
    """The records with the offset deltas 0, 1, 2, …; with `same_time` the time deltas are all 0."""
    walk = plain_walker.renumber if _native is None else _native.renumber
    return walk(data, record_count, same_time)


# The log cleaner. A chunk is a piece of a segment file that begins with a batch. Plain batches are
# handled one after the other; a walk ends where the caller has to do something, and says why.


def index_chunk(
    keys: KeyOffsets, chunk: ReadableBuffer, position: int, first_offset: int, stop_offset: int
) -> Indexed:
    """Note the offset of each key, of records with `first_offset` <= offset < `stop_offset`.

    Begins at the batch at `position` and returns the position of the first batch that was not
    done. `keys.latest_offset` follows: whatever lies below it is noted, and if the map became full
    in the middle of a batch, that is where it stands.
    """
    if _native is None:
        return plain_cleaning.index_chunk(keys, chunk, position, first_offset, stop_offset)
    position, end, records = _native.index_chunk(keys, chunk, position, first_offset, stop_offset)
    return Indexed(position, End(end), records)


def index_records(
    keys: KeyOffsets,
    header: BatchHeader,
    data: ReadableBuffer,
    first_offset: int,
    stop_offset: int,
) -> bool:
    """The same for the decompressed records of one batch; whether the map became full."""
    if _native is None:
        return plain_cleaning.index_records(keys, header, data, first_offset, stop_offset)
    full: bool = _native.index_records(
        keys,
        data,
        header.base_offset,
        header.last_offset_delta,
        header.record_count,
        first_offset,
        stop_offset,
    )
    return full


def filter_chunk(
    keys: KeyOffsets,
    chunk: ReadableBuffer,
    position: int,
    out: WriteableBuffer,
    filled: int,
    *,
    now_ms: int,
    horizon_ms: int,
    must_stay: array[int],
) -> Filtered:
    """Copy what stays of the batches from `position` on to `out`, which has `filled` bytes so far.

    A record stays if it is after `keys.latest_offset`; or if it has a key, no later offset is known
    for the key, and it is not a tombstone whose delete horizon has come by `now_ms`. A batch that
    keeps a tombstone and has no horizon gets `horizon_ms`. A batch that loses nothing stays as it
    is, byte for byte. From another one records are taken out, nothing moves: base and last offset,
    producer, sequence and epoch stay; the max timestamp is that of the remaining records. A batch
    that loses everything goes, unless its last offset is among `must_stay` (ascending): then its
    header stays, with no records.
    """
    if _native is None:
        return plain_cleaning.filter_chunk(
            keys,
            chunk,
            position,
            out,
            filled,
            now_ms=now_ms,
            horizon_ms=horizon_ms,
            must_stay=must_stay,
        )
    position, end, *rest = _native.filter_chunk(
        keys, chunk, position, out, filled, now_ms, horizon_ms, must_stay
    )
    return Filtered(position, End(end), *rest)


def filter_records(
    keys: KeyOffsets, header: BatchHeader, data: ReadableBuffer, *, now_ms: int, horizon_ms: int
) -> Kept:
    """The same choice among the decompressed records of one batch. `rebuilt_batch` makes a batch of
    what is left, compressed again by the caller, `empty_batch` one without records."""
    if _native is None:
        return plain_cleaning.filter_records(
            keys, header, data, now_ms=now_ms, horizon_ms=horizon_ms
        )
    return Kept._make(
        _native.filter_records(
            keys,
            data,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.attributes,
            header.record_count,
            now_ms,
            horizon_ms,
        )
    )
