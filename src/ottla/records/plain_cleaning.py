"""What the log cleaner does with records, in Python: the fallback where there is no native code.

Also the definition of what the native code must give, see `walker`, which says what the functions
promise, and `plain_walker`. It is some hundred times slower than the native code.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
from bisect import bisect_left
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from ottla.records import varint
from ottla.records.batch import (
    APPEND_TIME_FLAG,
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    read_header,
)
from ottla.records.builder import NO_TIMESTAMP, assemble
from ottla.records.checksum import crc32c
from ottla.records.errors import InvalidBatch
from ottla.records.plain_walker import MAX_LONG, wrapped
from ottla.records.reader import skip_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _typeshed import ReadableBuffer, WriteableBuffer

_LENGTH = struct.Struct(">i")
_SLOT = struct.Struct("<16sq")
_OFFSET = struct.Struct("<q")
_SPECIAL = COMPRESSION_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG

ROW = struct.Struct("=5q")
"""One written batch: position and size in the output, base offset, last offset, max timestamp."""


class End(enum.IntEnum):
    """Why a walk over a chunk ended at its position."""

    CHUNK = 0
    """No whole batch is left in the chunk."""
    SPECIAL = 1
    """A batch that is compressed, transactional or a control batch: the caller's to handle."""
    FULL = 2
    """No room: in the map of keys for this batch's, or in the output for this batch."""
    DAMAGED = 3
    """Not a batch, a wrong checksum, or records that make no sense."""
    STOP_OFFSET = 4
    """The batch begins at or after the offset to stop at."""


class Indexed(NamedTuple):
    """What `index_chunk` did."""

    position: int
    end: End
    records: int


class Filtered(NamedTuple):
    """What `filter_chunk` did."""

    position: int
    end: End
    filled: int
    """Bytes in the output now."""
    rows: bytes
    """A `ROW` for each batch that was written."""
    records_read: int
    records_kept: int


class Kept(NamedTuple):
    """What is left of a batch's records."""

    body: bytes
    """The records, not compressed."""
    record_count: int
    changed: bool
    """False: the batch stays as it is, byte for byte."""
    sets_horizon: bool
    """`base_timestamp` is the delete horizon, and the batch has to say so in its attributes."""
    base_timestamp: int
    max_timestamp: int


class _Span(NamedTuple):
    start: int
    content: int  # where the record begins after its length
    after_time: int  # where its offset delta begins
    stop: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


class KeyOffsets:
    """The latest offset of each key, in bounded memory: a hash of 16 bytes and an offset a slot.

    The hash is keyed at random, so that nobody can choose keys that collide.
    """

    __slots__ = ("_count", "_secret", "_slots", "_table", "capacity", "latest_offset")

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        if memory_bytes < _SLOT.size or not 0 < load_factor <= 1:
            raise ValueError("a map needs memory for a slot, and a load factor in (0, 1]")
        self._slots = memory_bytes // _SLOT.size
        self.capacity = max(1, int(self._slots * load_factor))
        self._secret = os.urandom(16)
        self._table: mmap.mmap | None = mmap.mmap(-1, self._slots * _SLOT.size)
        self._count = 0
        self.latest_offset = -1

    def __len__(self) -> int:
        return self._count

    def get(self, key: ReadableBuffer) -> int | None:
        table, position, _ = self._find(key)
        if position is None:
            return None
        offset: int = _OFFSET.unpack_from(table, position + 16)[0]
        return offset - 1 if offset else None

    def put(self, key: ReadableBuffer, offset: int) -> bool:
        if not 0 <= offset < MAX_LONG:
            raise ValueError(f"offset {offset} is not one of a record")
        # A full map takes no key at all, known or not, as in Kafka.
        if self._count >= self.capacity:
            return False
        table, position, digest = self._find(key)
        if position is None:
            return False
        if _OFFSET.unpack_from(table, position + 16)[0] == 0:
            self._count += 1
        _SLOT.pack_into(table, position, digest, offset + 1)
        self.latest_offset = max(self.latest_offset, offset)
        return True

    def cover(self, offset: int) -> None:
        self.latest_offset = max(self.latest_offset, offset)

    def clear(self) -> None:
        table = self._open()
        table.close()
        self._table = mmap.mmap(-1, self._slots * _SLOT.size)
        self._secret = os.urandom(16)
        self._count = 0
        self.latest_offset = -1

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None
            self._count = 0

    def _open(self) -> mmap.mmap:
        if self._table is None:
            raise ValueError("the map of keys is closed")
        return self._table

    def _find(self, key: ReadableBuffer) -> tuple[mmap.mmap, int | None, bytes]:
        """The slot of the key, or the empty one where it belongs, if any is empty."""
        table = self._open()
        digest = blake2b(key, digest_size=16, key=self._secret).digest()
        slot = (int.from_bytes(digest[:8], "little") * self._slots) >> 64
        for _ in range(self._slots):
            position = slot * _SLOT.size
            found, offset = _SLOT.unpack_from(table, position)
            if offset == 0 or found == digest:
                return table, position, digest
            slot = slot + 1 if slot + 1 < self._slots else 0
        return table, None, digest


# The first walk: what is the latest offset of each key?


def index_chunk(
    keys: KeyOffsets, chunk: ReadableBuffer, position: int, first_offset: int, stop_offset: int
) -> Indexed:
    view = memoryview(chunk).cast("B")
    indexed = 0
    while True:
        header, end = _next_batch(view, position)
        if header is None:
            return Indexed(position, end, indexed)
        if header.base_offset >= stop_offset:
            return Indexed(position, End.STOP_OFFSET, indexed)
        attributes = header.attributes
        if header.last_offset < first_offset and not attributes & (
            TRANSACTIONAL_FLAG | CONTROL_FLAG
        ):
            position += header.size
            continue
        if attributes & _SPECIAL:
            return Indexed(position, End.SPECIAL, indexed)
        body = _sound_body(view, position, header)
        if body is None:
            return Indexed(position, End.DAMAGED, indexed)
        try:
            full = index_records(keys, header, body, first_offset, stop_offset)
        except InvalidBatch:
            return Indexed(position, End.DAMAGED, indexed)
        if full:
            return Indexed(position, End.FULL, indexed)
        indexed += header.record_count
        position += header.size


def index_records(
    keys: KeyOffsets,
    header: BatchHeader,
    data: ReadableBuffer,
    first_offset: int,
    stop_offset: int,
) -> bool:
    for span in _spans(bytes(data), header):
        offset = header.base_offset + span.offset_delta
        wanted = span.key is not None and first_offset <= offset < stop_offset
        if wanted and not keys.put(span.key or b"", offset):
            return True
    last = min(header.last_offset, stop_offset - 1)
    if last >= first_offset:
        keys.cover(last)
    return False


# The second walk: what stays?


def filter_chunk(  # noqa: C901 - its twin in C line by line
    keys: KeyOffsets,
    chunk: ReadableBuffer,
    position: int,
    out: WriteableBuffer,
    filled: int,
    *,
    now_ms: int,
    horizon_ms: int,
    must_stay: Sequence[int],
) -> Filtered:
    view = memoryview(chunk).cast("B")
    target = memoryview(out).cast("B")
    if not 0 <= filled <= target.nbytes:
        raise ValueError(f"byte {filled} is not in an output of {target.nbytes}")
    rows = bytearray()
    read = kept = 0
    while True:
        header, end = _next_batch(view, position)
        if header is None:
            break
        if header.attributes & _SPECIAL:
            end = End.SPECIAL
            break
        body = _sound_body(view, position, header)
        if body is None:
            end = End.DAMAGED
            break
        try:
            left = filter_records(keys, header, body, now_ms=now_ms, horizon_ms=horizon_ms)
        except InvalidBatch:
            end = End.DAMAGED
            break
        batch: ReadableBuffer
        max_timestamp = left.max_timestamp
        if not left.changed and header.record_count:
            batch = view[position : position + header.size]
            max_timestamp = header.max_timestamp
        elif left.record_count:
            batch = rebuilt_batch(header, left, left.body)
        elif _among(must_stay, header.last_offset):
            batch = empty_batch(header)
            max_timestamp = header.max_timestamp
        else:
            batch = b""
        size = memoryview(batch).nbytes
        if size > target.nbytes - filled:
            end = End.FULL
            break
        if size:
            target[filled : filled + size] = batch
            rows += ROW.pack(filled, size, header.base_offset, header.last_offset, max_timestamp)
            filled += size
        read += header.record_count
        kept += left.record_count
        position += header.size
    return Filtered(position, end, filled, bytes(rows), read, kept)


def filter_records(
    keys: KeyOffsets, header: BatchHeader, data: ReadableBuffer, *, now_ms: int, horizon_ms: int
) -> Kept:
    data = bytes(data)
    attributes = header.attributes
    has_horizon = attributes & DELETE_HORIZON_FLAG != 0
    drops_tombstones = has_horizon and now_ms >= header.base_timestamp
    append_time = attributes & APPEND_TIME_FLAG != 0
    kept: list[_Span] = []
    tombstones = False
    count = 0
    for span in _spans(data, header):
        count += 1
        offset = header.base_offset + span.offset_delta
        if offset <= keys.latest_offset:
            if span.key is None:
                continue
            latest = keys.get(span.key)
            if latest is not None and offset < latest:
                continue
            if not span.has_value and drops_tombstones:
                continue
        tombstones = tombstones or not span.has_value
        kept.append(span)
    sets_horizon = tombstones and not has_horizon
    base = horizon_ms if sets_horizon else header.base_timestamp
    newest = NO_TIMESTAMP
    body = bytearray()
    for span in kept:
        moment = wrapped(header.base_timestamp + span.timestamp_delta)
        if append_time:
            moment = header.max_timestamp
        newest = max(newest, moment)
        if sets_horizon:
            content = b"".join(
                (
                    data[span.content : span.content + 1],
                    varint.encode(wrapped(moment - base)),
                    data[span.after_time : span.stop],
                )
            )
            body += varint.encode(len(content))
            body += content
        else:
            body += data[span.start : span.stop]
    return Kept(
        bytes(body), len(kept), sets_horizon or len(kept) != count, sets_horizon, base, newest
    )


def rebuilt_batch(header: BatchHeader, kept: Kept, body: ReadableBuffer) -> bytes:
    """The batch with what is left in it: `kept.body`, compressed as the batch was."""
    fields = _fields(header)
    if kept.sets_horizon:
        fields["attributes"] |= DELETE_HORIZON_FLAG
    fields["base_timestamp"] = kept.base_timestamp
    fields["max_timestamp"] = kept.max_timestamp
    fields["record_count"] = kept.record_count
    return assemble(body, **fields)


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without its records, as Kafka keeps the last one of a producer: with no codec, no
    base timestamp and no delete horizon."""
    fields = _fields(header)
    fields["attributes"] &= APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
    fields["base_timestamp"] = NO_TIMESTAMP
    fields["record_count"] = 0
    return assemble(b"", **fields)


def _fields(header: BatchHeader) -> dict[str, int]:
    fields = header._asdict()
    for computed in ("length", "magic", "crc"):
        del fields[computed]
    return fields


def _among(ascending: Sequence[int], offset: int) -> bool:
    place = bisect_left(ascending, offset)
    return place < len(ascending) and ascending[place] == offset


# Batches and records


def _next_batch(view: memoryview, position: int) -> tuple[BatchHeader | None, End]:
    """The header at `position`, or why there is none."""
    left = view.nbytes - position
    if position < 0 or left < 0:
        raise ValueError(f"byte {position} is not in a chunk of {view.nbytes}")
    if left < LOG_OVERHEAD:
        return None, End.CHUNK
    (length,) = _LENGTH.unpack_from(view, position + 8)
    if length < HEADER_SIZE - LOG_OVERHEAD:
        return None, End.DAMAGED
    if length > left - LOG_OVERHEAD:
        return None, End.CHUNK
    header = read_header(view, position)
    if (
        header.magic != MAGIC
        or header.base_offset < 0
        or header.last_offset_delta < 0
        or header.record_count < 0
        or header.last_offset >= MAX_LONG
    ):
        return None, End.DAMAGED
    return header, End.CHUNK


def _sound_body(view: memoryview, position: int, header: BatchHeader) -> memoryview | None:
    stop = position + header.size
    if crc32c(view[position + ATTRIBUTES_POSITION : stop]) != header.crc:
        return None
    return view[position + HEADER_SIZE : stop]


def _spans(data: bytes, header: BatchHeader) -> Iterator[_Span]:
    """Where each record is, checked as strictly as by `iter_records`; and all of them belong to
    this batch."""
    end = len(data)
    position = 0
    decode = varint.decode
    try:
        for _ in range(header.record_count):
            start = position
            length, content = decode(data, position)
            stop = content + length
            if length < 1 or stop > end:
                raise InvalidBatch(f"a record of {length} bytes where {end - content} are left")
            timestamp_delta, after_time = decode(data, content + 1)
            offset_delta, position = decode(data, after_time)
            if not 0 <= offset_delta <= header.last_offset_delta:
                raise InvalidBatch(f"an offset delta of {offset_delta}")
            size, position = decode(data, position)
            key = None
            if size >= 0:
                key = data[position : position + size]
                position += size
            value_size, position = decode(data, position)
            position += max(0, value_size)
            position = skip_headers(data, position, stop)
            if position != stop:
                raise InvalidBatch(f"a record of {length} bytes has content for another size")
            yield _Span(
                start,
                content,
                after_time,
                stop,
                timestamp_delta,
                offset_delta,
                key,
                value_size >= 0,
            )
    except IndexError:
        raise InvalidBatch("the records run past the end of the batch") from None
    if position != end:
        raise InvalidBatch(
            f"{end - position} bytes after the last of {header.record_count} records"
        )
