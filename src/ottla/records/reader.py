"""The records inside a batch.

For whoever needs whole records as Python values: coordinators that load their logs, the command
line, the test kit. What a broker does to many records at once (validation, look-ups by time,
compaction) is `walker`'s. So this is plain Python, tuned as far as that goes: one pass
over a `bytes` object, the one-byte varint inlined (lengths under 64, small deltas), slices instead
of readers. About a million records of 100 bytes a second.

Everything is checked: a record must end exactly where its length says, and inside the batch; the
batch must hold exactly as many records as its header says. What is not so is an InvalidBatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.records import varint
from ottla.records.batch import APPEND_TIME_FLAG, COMPRESSION_MASK, HEADER_SIZE, read_header
from ottla.records.compression import MAX_DECOMPRESSED, Compression, decompress
from ottla.records.errors import InvalidBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

    from ottla.records.batch import BatchHeader

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordOutline(NamedTuple):
    """What validation and time look-ups need of a record, without its content."""

    offset_delta: int
    timestamp_delta: int
    has_key: bool


def payload(
    batch: ReadableBuffer,
    header: BatchHeader | None = None,
    *,
    max_decompressed: int = MAX_DECOMPRESSED,
) -> bytes:
    """The records' bytes of the batch at the start of `batch`, decompressed."""
    if header is None:
        header = read_header(batch)
    view = memoryview(batch)
    if header.length + 12 > view.nbytes:
        raise InvalidBatch(f"a batch of {header.size} bytes, here are {view.nbytes}")
    body = view[HEADER_SIZE : header.length + 12]
    return decompress(Compression.of(header.attributes & COMPRESSION_MASK), body, max_decompressed)


def iter_records(  # noqa: C901, PLR0912, PLR0915 - runs for every record: varints are read in line, without a call
    batch: ReadableBuffer,
    header: BatchHeader | None = None,
    *,
    max_decompressed: int = MAX_DECOMPRESSED,
) -> Iterator[Record]:
    """The records of the batch at the start of `batch`, in order."""
    if header is None:
        header = read_header(batch)
    data = payload(batch, header, max_decompressed=max_decompressed)
    end = len(data)
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & APPEND_TIME_FLAG else None
    unsigned = varint.decode_unsigned
    new = tuple.__new__
    position = 0
    try:
        for _ in range(header.record_count):
            length = data[position]
            if length < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                length += (high << 7) - 0x80
                position += 2
            else:
                length, position = unsigned(data, position)
            length = (length >> 1) ^ -(length & 1)
            stop = position + length
            if stop > end:
                raise _cut_off(length, end - position)
            position += 1  # the record's attributes: no bit has a meaning yet

            moment = data[position]
            if moment < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                moment += (high << 7) - 0x80
                position += 2
            else:
                moment, position = unsigned(data, position)
            if append_time is None:
                timestamp = base_timestamp + ((moment >> 1) ^ -(moment & 1))
            else:
                timestamp = append_time

            delta = data[position]
            if delta < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                delta += (high << 7) - 0x80
                position += 2
            else:
                delta, position = unsigned(data, position)
            offset = base_offset + ((delta >> 1) ^ -(delta & 1))

            size = data[position]
            if size < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                size += (high << 7) - 0x80
                position += 2
            else:
                size, position = unsigned(data, position)
            if size & 1:  # negative: there is none
                key = None
            else:
                size >>= 1
                key = data[position : position + size]
                position += size

            size = data[position]
            if size < 0x80:
                position += 1
            elif (high := data[position + 1]) < 0x80:
                size += (high << 7) - 0x80
                position += 2
            else:
                size, position = unsigned(data, position)
            if size & 1:
                value = None
            else:
                size >>= 1
                value = data[position : position + size]
                position += size

            if data[position]:
                headers, position = _read_headers(data, position, stop)
            else:
                headers = ()
                position += 1
            if position != stop:
                raise _wrong_size(length, position - stop)
            yield new(Record, (offset, timestamp, key, value, headers))
    except IndexError:
        raise InvalidBatch("the records run past the end of the batch") from None
    if position != end:
        raise InvalidBatch(
            f"{end - position} bytes after the last of {header.record_count} records"
        )


def iter_outlines(data: bytes, record_count: int) -> Iterator[RecordOutline]:
    """The outlines of the records in a `payload`, checked as strictly as by `iter_records`."""
    end = len(data)
    decode = varint.decode
    new = tuple.__new__
    position = 0
    try:
        for _ in range(record_count):
            length, position = decode(data, position)
            stop = position + length
            if stop > end:
                raise _cut_off(length, end - position)
            timestamp_delta, position = decode(data, position + 1)
            offset_delta, position = decode(data, position)
            key_size, position = decode(data, position)
            if key_size > 0:
                position += key_size
            value_size, position = decode(data, position)
            if value_size > 0:
                position += value_size
            if data[position]:
                _, position = _read_headers(data, position, stop)
            else:
                position += 1
            if position != stop:
                raise _wrong_size(length, position - stop)
            yield new(RecordOutline, (offset_delta, timestamp_delta, key_size >= 0))
    except IndexError:
        raise InvalidBatch("the records run past the end of the batch") from None
    if position != end:
        raise InvalidBatch(f"{end - position} bytes after the last of {record_count} records")


def _read_headers(data: bytes, position: int, stop: int) -> tuple[Headers, int]:
    count, position = varint.decode(data, position)
    if not 0 <= count <= stop - position:
        raise InvalidBatch(f"a record claims {count} headers in {stop - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = varint.decode(data, position)
        if size < 0:
            raise InvalidBatch(f"a header key of {size} bytes")
        # Java decodes keys with replacement characters; a strange key must not hide the record.
        name = data[position : position + size].decode("utf-8", "replace")
        position += size
        size, position = varint.decode(data, position)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[position : position + size]))
            position += size
        if position > stop:
            raise _wrong_size(-1, position - stop)
    return tuple(headers), position


def skip_headers(data: bytes, position: int, stop: int) -> int:
    """The position after the headers at `position` of a record that ends at `stop`."""
    return _read_headers(data, position, stop)[1] if data[position] else position + 1


def _cut_off(length: int, left: int) -> InvalidBatch:
    return InvalidBatch(f"a record of {length} bytes where {left} are left")


def _wrong_size(length: int, difference: int) -> InvalidBatch:
    return InvalidBatch(f"a record of {length} bytes has content for {length + difference}")
