"""The columns of a topic as a table, and the Arrow buffers that records are written into.

The schema is that of Spark's Kafka connector, in the Arrow types that Spark expects of it: they
must be equal to the last detail. A read has some of these columns (`column_choice`), and Spark is
handed no others. A record without headers has an empty list, never a null, which Spark would be
many times slower to hand on.

`Room` is the space for one record batch. Topic and partition are the same in every row: they are
written once and shared by all batches of a task.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ottla.pipelines.source import kernel
from ottla.pipelines.source.column_choice import HEADERS

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field(HEADERS, pa.list_(pa.field("element", HEADER))))

# Arrow's offsets are 32 bits wide: no column of a batch can hold more bytes than this.
MOST_BYTES: Final = (1 << 31) - 1
# What a batch holds is bounded by its rows, and by this many bytes of keys or of values.
USUAL_BYTES: Final = 8 << 20
_SMALLEST: Final = 4096
_SLACK: Final = 1.25


def schema_of(names: tuple[str, ...]) -> Any:
    """The schema of the columns of these names, in their order."""
    return pa.schema([SCHEMA_WITH_HEADERS.field(name) for name in names])


class Repeated:
    """The two columns that are the same in every row; `rows` of them at most."""

    def __init__(self, topic: str, partition: int, rows: int) -> None:
        name = topic.encode()
        self.rows = rows = max(1, min(rows, MOST_BYTES // max(1, len(name))))
        ends = np.arange(0, (rows + 1) * len(name), len(name), dtype=np.int32)
        self._topics = pa.StringArray.from_buffers(
            rows, pa.py_buffer(ends), pa.py_buffer(name * rows)
        )
        self._partitions = pa.array(np.full(rows, partition, np.int32))

    def take(self, rows: int) -> tuple[Any, Any]:
        return self._topics[:rows], self._partitions[:rows]


class Sizes:
    """How much space to set aside for the next batch, from how much the last one took.

    Too little only makes a batch shorter than it might be.
    """

    def __init__(self, rows: int, first: int) -> None:
        self.rows = rows
        self.keys = self.values = self.header_keys = self.header_values = _within(first)
        self.headers = max(rows, _SMALLEST)

    def learn(self, cursor: Any) -> None:
        rows = int(cursor[kernel.ROWS])

        def scaled(used: Any) -> int:
            return _within(int(used) / rows * self.rows * _SLACK)

        self.keys = scaled(cursor[kernel.KEYS])
        self.values = scaled(cursor[kernel.VALUES])
        self.headers = scaled(cursor[kernel.HEADERS])
        self.header_keys = scaled(cursor[kernel.HEADER_KEYS])
        self.header_values = scaled(cursor[kernel.HEADER_VALUES])

    def at_least(self, record: int) -> None:
        """Make space for one record of so many bytes, which no other limit is to keep out."""
        self.keys = max(self.keys, record)
        self.values = max(self.values, record)
        self.headers = max(self.headers, record // 2)  # a header takes two bytes or more
        self.header_keys = max(self.header_keys, record)
        self.header_values = max(self.header_values, record)


class Room:
    """Space for the columns of one record batch, written by `kernel.walk(…, *room.columns)`."""

    def __init__(self, sizes: Sizes, names: tuple[str, ...]) -> None:
        rows = sizes.rows
        self._names = names
        self.with_headers = with_headers = HEADERS in names
        self.cursor = np.zeros(kernel.CURSOR, np.int64)
        self.cursor[kernel.POSITION] = -1
        self._offsets = _space(rows, np.int64)
        self._times = _space(rows, np.int64)
        self._kinds = _space(rows, np.int32)
        self._keys = _Strings(rows, sizes.keys)
        self._values = _Strings(rows, sizes.values)
        headers = sizes.headers if with_headers else 0
        self._header_ends = _ends(rows if with_headers else 0)
        self._header_keys = _Strings(headers, sizes.header_keys if with_headers else 0)
        self._header_values = _Strings(headers, sizes.header_values if with_headers else 0)
        self.columns = (
            self._offsets,
            self._times,
            self._kinds,
            *(self._keys.ends, self._keys.bits, self._keys.data),
            *(self._values.ends, self._values.bits, self._values.data),
            self._header_ends,
            *(self._header_keys.ends, self._header_keys.data),
            *(self._header_values.ends, self._header_values.bits, self._header_values.data),
        )

    @property
    def rows(self) -> int:
        return int(self.cursor[kernel.ROWS])

    def batch(self, repeated: Repeated) -> Any:
        """What was written, as a `pyarrow.RecordBatch` that keeps this memory."""
        (rows, key_bytes, value_bytes, headers, header_key_bytes, header_value_bytes) = (
            int(number) for number in self.cursor[kernel.ROWS : kernel.HEADER_VALUES + 1]
        )
        key_nulls, value_nulls, header_nulls = (
            int(number) for number in self.cursor[kernel.KEY_NULLS : kernel.HEADER_NULLS + 1]
        )
        topics, partitions = repeated.take(rows)

        def column(name: str) -> Any:  # noqa: PLR0911 - one branch for each column
            match name:
                case "key":
                    return self._keys.array(pa.binary(), rows, key_bytes, key_nulls)
                case "value":
                    return self._values.array(pa.binary(), rows, value_bytes, value_nulls)
                case "topic":
                    return topics
                case "partition":
                    return partitions
                case "offset":
                    return _numbers(pa.int64(), self._offsets, rows)
                case "timestamp":
                    return _numbers(pa.timestamp("us", tz="UTC"), self._times, rows)
                case "timestampType":
                    return _numbers(pa.int32(), self._kinds, rows)
            keys = self._header_keys.array(pa.string(), headers, header_key_bytes, 0)
            contents = self._header_values.array(
                pa.binary(), headers, header_value_bytes, header_nulls
            )
            pairs = pa.StructArray.from_arrays([readable(keys), contents], fields=list(HEADER))
            return pa.Array.from_buffers(
                SCHEMA_WITH_HEADERS.field(HEADERS).type,
                rows,
                [None, _buffer(self._header_ends, rows + 1)],
                children=[pairs],
            )

        columns = [column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=schema_of(self._names))


class _Strings:
    """Arrow's three buffers of a binary or string column."""

    def __init__(self, rows: int, size: int) -> None:
        self.ends = _ends(rows)
        self.bits = np.zeros((rows + 7) // 8, np.uint8)
        self.data = _space(size, np.uint8)

    def array(self, kind: Any, rows: int, size: int, nulls: int) -> Any:
        bits = _buffer(self.bits, (rows + 7) // 8) if nulls else None
        buffers = [bits, _buffer(self.ends, rows + 1), _buffer(self.data, size)]
        return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def readable(names: Any) -> Any:
    """Header keys as valid UTF-8: as in Java, what is not gets replacement characters."""
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = names.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return names


def _within(size: float) -> int:
    return int(min(max(size, _SMALLEST), USUAL_BYTES))


def _space(count: int, kind: Any) -> Any:
    """Memory of Arrow's pool, which keeps it for the next batch when this one has been sent."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def _ends(rows: int) -> Any:
    ends = _space(rows + 1, np.int32)
    ends[0] = 0
    return ends


def _buffer(numbers: Any, count: int) -> Any:
    return pa.py_buffer(numbers[:count])


def _numbers(kind: Any, numbers: Any, rows: int) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, _buffer(numbers, rows)])
