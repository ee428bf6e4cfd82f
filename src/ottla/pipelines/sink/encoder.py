"""Rows into record batches: one batch in the making for each partition, closed when it is full.

The rows of an Arrow batch that go to one partition are appended to its batch by one call of a
native loop (`loops.Loops.encode`), column-wise: no row is ever a Python object. A batch is closed
at `batch_bytes` before compression, or when the task ends, or when all the open ones together take
more than `open_bytes`, as happens with thousands of partitions.

Sequence numbers of an idempotent producer are given when a batch is closed. That is early, and
right: a task sends the batches of a partition one after another, fails as a whole when one is
refused, and a batch split in two keeps the numbers of its records.

Where the native code was not built the same batches are made row by row in Python, some forty times
slower, which `loops` announces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from ottla.pipelines.sink import loops
from ottla.records.batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_SIZE, read_header
from ottla.records.builder import BatchBuilder, assemble
from ottla.records.checksum import crc32c
from ottla.records.compression import Compression, compress
from ottla.records.reader import iter_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ottla.pipelines.sink.columns import Columns

    Longs = NDArray[np.int64]

_FIRST_BYTES: Final = (
    8 * 1024
)  # and doubled from there: a task may write to thousands of partitions
_FIRST_ROWS: Final = 64
_MOST_ROWS: Final = 1 << 20
_SEQUENCES: Final = 0x7FFFFFFF
_CRC: Final = struct.Struct(">I")
_EPOCH_AND_SEQUENCE: Final = struct.Struct(">hi")
_EPOCH_POSITION: Final = 51


@dataclass(slots=True)
class Batch:
    """A closed batch on its way: the bytes, and which row of the task each record was."""

    topic: str
    partition: int
    data: bytes
    rows: Longs
    since: float = 0.0
    """When the producer was given it; its delivery time-out runs from there."""
    attempts: int = 0
    sequence: int = -1
    """Of its first record among all that the task has for this partition; -1: not idempotent."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Format:
    """How batches are made."""

    compression: Compression = Compression.NONE
    level: int | None = None
    batch_bytes: int = 512 * 1024
    open_bytes: int = 16 << 20
    producer_id: int = -1
    producer_epoch: int = -1


class Encoder:
    """The batches in the making of one task; with `native`, by the native loop if there is.

    `sequences` says which number each partition's next record has, and is kept current.
    """

    def __init__(
        self,
        form: Format,
        sequences: dict[tuple[str, int], int] | None = None,
        *,
        native: bool = True,
    ) -> None:
        self._form = form
        found = loops.load() if native else None
        self._encode = None if found is None else found.encode
        self._open: dict[tuple[str, int], _Making] = {}
        self._sequences = {} if sequences is None else sequences

    def add(
        self,
        place: tuple[str, int],
        columns: Columns,
        order: Longs,
        first: int,
        last: int,
        first_row: int,
    ) -> Iterator[Batch]:
        """Append the rows `order[first:last]` to the batch for `place`; yields what is full."""
        making = self._open.get(place)
        if making is None:
            encode = self._encode
            making = _Plain(self._form) if encode is None else _Native(self._form, encode)
            self._open[place] = making
        while True:
            first = making.append(columns, order, first, last, first_row)
            if first == last:
                return
            yield self._close(place, making)

    def overflow(self) -> Iterator[Batch]:
        """All open batches, if they have become too many."""
        if sum(making.held for making in self._open.values()) > self._form.open_bytes:
            yield from self.finish()
            self._open.clear()

    def finish(self) -> Iterator[Batch]:
        """What is still open."""
        for place, making in self._open.items():
            if making.count:
                yield self._close(place, making)

    def _close(self, place: tuple[str, int], making: _Making) -> Batch:
        sequence = -1
        if self._form.producer_id >= 0:
            sequence = self._sequences.get(place, 0)
            self._sequences[place] = (sequence + making.count) & _SEQUENCES
        rows = making.rows()
        return Batch(*place, making.close(sequence), rows, sequence=sequence)


def split(batch: Batch, form: Format) -> tuple[Batch, Batch]:
    """Two batches with half of the records each, and the same sequence numbers."""
    header = read_header(batch.data)
    records = list(iter_records(batch.data, header))
    middle = len(records) // 2
    halves = []
    for first, last in ((0, middle), (middle, len(records))):
        sequence = header.base_sequence
        builder = BatchBuilder(
            compression=form.compression,
            level=form.level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=sequence if sequence < 0 else (sequence + first) & _SEQUENCES,
        )
        builder.extend(record[1:] for record in records[first:last])
        halves.append(
            Batch(
                batch.topic,
                batch.partition,
                builder.build(),
                batch.rows[first:last],
                batch.since,
                batch.attempts,
                batch.sequence if batch.sequence < 0 else (batch.sequence + first) & _SEQUENCES,
            )
        )
    return halves[0], halves[1]


def restamp(batch: Batch, epoch: int, sequence: int) -> None:
    """Give a batch another epoch of its producer, and the sequence number that it has there."""
    data = bytearray(batch.data)
    _EPOCH_AND_SEQUENCE.pack_into(data, _EPOCH_POSITION, epoch, sequence & _SEQUENCES)
    _CRC.pack_into(data, CRC_POSITION, crc32c(memoryview(data)[ATTRIBUTES_POSITION:]))
    batch.data = bytes(data)


class _Making(Protocol):
    """A batch in the making; after `close` it is empty and begins anew."""

    @property
    def count(self) -> int: ...
    @property
    def held(self) -> int: ...
    def append(
        self, columns: Columns, order: Longs, first: int, last: int, first_row: int
    ) -> int: ...
    def rows(self) -> Longs: ...
    def close(self, sequence: int) -> bytes: ...


class _Native:
    """A buffer that the native loop writes to."""

    def __init__(self, form: Format, encode: Callable[..., int]) -> None:
        self._form = form
        self._encode = encode
        self._buffer = self._new()
        self._rows = np.empty(_FIRST_ROWS, np.int64)
        self._state = np.zeros(loops.STATE_SIZE, np.int64)

    @property
    def count(self) -> int:
        return int(self._state[loops.COUNT])

    @property
    def held(self) -> int:
        return int(self._buffer.nbytes + self._rows.nbytes)

    def append(self, columns: Columns, order: Longs, first: int, last: int, first_row: int) -> int:
        arrays = columns.arrays()
        while True:
            first = self._encode(
                *arrays, order, first, last, self._buffer, self._rows, first_row, self._state
            )
            if first == last or not self._grow():
                return first

    def rows(self) -> Longs:
        rows: Longs = self._rows[: self.count].copy()
        return rows

    def close(self, sequence: int) -> bytes:
        form, state = self._form, self._state.tolist()
        body = self._buffer[: state[loops.POSITION]].data
        count = state[loops.COUNT]
        batch = assemble(
            body
            if form.compression is Compression.NONE
            else compress(form.compression, body, form.level),
            base_offset=0,
            leader_epoch=-1,
            attributes=form.compression,
            last_offset_delta=count - 1,
            base_timestamp=state[loops.BASE_TIME],
            max_timestamp=state[loops.MAX_TIME],
            producer_id=form.producer_id,
            producer_epoch=form.producer_epoch,
            base_sequence=sequence,
            record_count=count,
        )
        self._state[:] = 0
        if self._buffer.size > form.batch_bytes:
            # One record was larger than a batch may be; those after it are not to have its room.
            self._buffer = self._new()
        return batch

    def _new(self) -> NDArray[np.uint8]:
        return np.empty(min(_FIRST_BYTES, self._form.batch_bytes), np.uint8)

    def _grow(self) -> bool:
        """Make room for the next record; False when the batch is full instead."""
        rows, buffer, state = self._rows, self._buffer, self._state
        if self.count == rows.size:
            if self.count >= _MOST_ROWS:
                return False
            self._rows = np.concatenate((rows, np.empty_like(rows)))
            return True
        needed = int(state[loops.NEEDED])
        limit = self._form.batch_bytes - HEADER_SIZE
        if self.count and needed > limit:
            return False
        # A record that is larger than a batch may be gets one of its own, whatever its size.
        size = max(needed, min(2 * buffer.size, limit))
        larger = np.empty(size, np.uint8)
        position = state[loops.POSITION]
        larger[:position] = buffer[:position]
        self._buffer = larger
        return True


class _Plain:
    """The same by `ottla.records.builder`, a row at a time."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._rows: list[int] = []
        self._builder = self._new()

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def held(self) -> int:
        return self._builder.size + 8 * len(self._rows)

    def append(self, columns: Columns, order: Longs, first: int, last: int, first_row: int) -> int:
        builder = self._builder
        for index in range(first, last):
            row = int(order[index])
            key, value = columns.keys.item(row), columns.values.item(row)
            headers = columns.headers(row)
            about = len(key or b"") + len(value or b"") + 32
            about += sum(len(name) + len(data or b"") + 10 for name, data in headers)
            if self._rows and builder.size + about > self._form.batch_bytes:
                return index
            builder.append(int(columns.times[row]), key, value, headers)
            self._rows.append(first_row + row)
        return last

    def rows(self) -> Longs:
        return np.asarray(self._rows, np.int64)

    def close(self, sequence: int) -> bytes:
        self._builder.base_sequence = sequence
        batch = self._builder.build()
        self._rows.clear()
        self._builder = self._new()
        return batch

    def _new(self) -> BatchBuilder:
        form = self._form
        return BatchBuilder(
            compression=form.compression,
            level=form.level,
            producer_id=form.producer_id,
            producer_epoch=form.producer_epoch,
        )
