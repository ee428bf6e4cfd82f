"""The columns of an Arrow batch as plain arrays: offsets, data, nulls.

Spark hands over batches of up to a few thousand rows. Their buffers are looked at where they are;
only offsets are widened to 64 bits and null bits to bytes, so that string and binary columns, with
small and large offsets, all look the same to the loops behind. What Arrow would let pass and a
loop without bounds would not survive is refused here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ottla.pipelines.sink.failures import RowFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Longs = NDArray[np.int64]

_NOTHING: Final[Bytes] = np.empty(0, np.uint8)
_MICROSECONDS: Final = 1000  # in a millisecond
_WIDTHS: Final = {
    "string": np.int32,
    "binary": np.int32,
    "large_string": np.int64,
    "large_binary": np.int64,
}


@dataclass(frozen=True, slots=True)
class Blobs:
    """A column of byte strings: row n is `data[offsets[n]:offsets[n + 1]]`, or null."""

    nulls: Bytes
    offsets: Longs
    data: Bytes

    def item(self, row: int) -> bytes | None:
        if self.nulls[row]:
            return None
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def sizes(self) -> Longs:
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Columns:
    """What becomes records, for all rows of one Arrow batch."""

    count: int
    keys: Blobs
    values: Blobs
    times: Longs  # milliseconds
    header_lists: Longs  # row n has the headers from header_lists[n] to header_lists[n + 1]
    header_names: Blobs
    header_values: Blobs

    def headers(self, row: int) -> list[tuple[str, bytes | None]]:
        return [
            ((self.header_names.item(at) or b"").decode(), self.header_values.item(at))
            for at in range(self.header_lists[row], self.header_lists[row + 1])
        ]

    def arrays(self) -> tuple[Longs | Bytes, ...]:
        """All of it, in the order in which `loops.Loops.encode` takes it."""
        return (
            self.times,
            self.keys.nulls,
            self.keys.offsets,
            self.keys.data,
            self.values.nulls,
            self.values.offsets,
            self.values.data,
            self.header_lists,
            self.header_names.offsets,
            self.header_names.data,
            self.header_values.nulls,
            self.header_values.offsets,
            self.header_values.data,
        )

    def sizes(self) -> Longs:
        """About how many bytes each row takes: key and value, and a little for the rest."""
        return self.keys.sizes() + self.values.sizes() + 8


def columns_of(batch: Any, *, timestamps: bool = False, now_ms: int | None = None) -> Columns:
    """The record columns of a `pyarrow.RecordBatch`; those it does not have are null.

    `timestamps` takes the column timestamp where it is not null; else the time is now.
    """
    count = batch.num_rows
    present = {name: position for position, name in enumerate(batch.schema.names)}

    def blobs(name: str) -> Blobs:
        if name not in present:
            return Blobs(np.ones(count, np.uint8), np.zeros(count + 1, np.int64), _NOTHING)
        return blobs_of(batch.column(present[name]))

    lists, names, values = np.zeros(count + 1, np.int64), _no_blobs(), _no_blobs()
    if "headers" in present:
        lists, names, values = _headers_of(batch.column(present["headers"]))
    if now_ms is None:
        now_ms = time.time_ns() // 1_000_000
    times = np.full(count, now_ms, np.int64)
    if timestamps and "timestamp" in present:
        times = _times_of(batch.column(present["timestamp"]), times)
    return Columns(count, blobs("key"), blobs("value"), times, lists, names, values)


def blobs_of(column: Any) -> Blobs:
    """A string or binary column, or its large variant."""
    width = _WIDTHS.get(str(column.type))
    if width is None:
        raise TypeError(f"an Arrow column of type {column.type} where strings or bytes belong")
    count, offset = len(column), column.offset
    _, offset_buffer, data_buffer = column.buffers()
    data = _NOTHING if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if offset_buffer is None or not count:
        return Blobs(_nulls_of(column), np.zeros(count + 1, np.int64), data)
    offsets = np.frombuffer(offset_buffer, width)[offset : offset + count + 1].astype(np.int64)
    _check_offsets(offsets, count, data.size)
    return Blobs(_nulls_of(column), offsets, data)


def integers_of(column: Any) -> tuple[Longs, Bytes]:
    """An int32 column and its nulls."""
    count, offset = len(column), column.offset
    _, buffer = column.buffers()
    if buffer is None or not count:
        return np.zeros(count, np.int64), _nulls_of(column)
    values = np.frombuffer(buffer, np.int32)[offset : offset + count].astype(np.int64)
    return values, _nulls_of(column)


def _no_blobs() -> Blobs:
    return Blobs(_NOTHING, np.zeros(1, np.int64), _NOTHING)


def _nulls_of(column: Any) -> Bytes:
    count, offset = len(column), column.offset
    validity = column.buffers()[0]
    if validity is None or not column.null_count:
        return np.zeros(count, np.uint8)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=offset + count, bitorder="little")
    return np.subtract(1, bits[offset:], dtype=np.uint8)


def _check_offsets(offsets: Longs, count: int, size: int) -> None:
    if offsets.size != count + 1 or offsets[0] < 0 or offsets[-1] > size:
        raise ValueError(f"an Arrow column of {count} rows points outside its {size} bytes")
    if count and np.diff(offsets).min() < 0:
        raise ValueError("an Arrow column has offsets that fall")


def _times_of(column: Any, default: Longs) -> Longs:
    count, offset = len(column), column.offset
    _, buffer = column.buffers()
    if buffer is None or not count:
        return default
    stamps = np.frombuffer(buffer, np.int64)[offset : offset + count] // _MICROSECONDS
    times = np.where(_nulls_of(column), default, stamps)
    if times.min() < 0:
        row = int(np.argmax(times < 0))
        raise RowFailed(row, "its timestamp is before 1970, which Kafka does not take")
    return times


def _headers_of(column: Any) -> tuple[Longs, Blobs, Blobs]:
    count = len(column)
    lists = np.asarray(column.offsets, np.int64)
    pairs = column.values
    _check_offsets(lists, count, len(pairs))
    nulls = _nulls_of(column)
    if nulls.any() and (np.diff(lists)[nulls != 0] != 0).any():
        # Arrow lets a null list point at headers; written out they would appear from nowhere.
        return _headers_of(_without_null_lists(column))
    names, values = blobs_of(_readable(pairs.field(0))), blobs_of(pairs.field(1))
    nameless = names.nulls | _nulls_of(pairs)
    if nameless.any():
        for row in range(count):
            if nameless[lists[row] : lists[row + 1]].any():
                raise RowFailed(row, "it has a header without a key")
    return lists, names, values


def _readable(names: Any) -> Any:
    """Header keys as valid UTF-8: as in Java, what is not gets replacement characters."""
    import pyarrow as pa

    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        kind = pa.large_binary() if pa.types.is_large_string(names.type) else pa.binary()
        raw = names.view(kind).to_pylist()
        return pa.array(
            [None if name is None else name.decode("utf-8", "replace") for name in raw],
            names.type,
        )
    return names


def _without_null_lists(column: Any) -> Any:
    import pyarrow as pa

    return pa.array(column.to_pylist(), type=column.type)
