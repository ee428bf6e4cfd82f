"""From the bytes of a fetch to Arrow, in two steps that may run in two threads.

`unpack` looks at batches: is the checksum right, is it one to leave out (a control batch, an
aborted transaction, outside of the range), is it compressed. It gives `Piece`s: bytes with plain
records in them, and an outline that says where. Batches are handled in runs, so that a topic of
many small ones is not slow.

`decode` walks the records of pieces and copies keys and values straight into Arrow's buffers, with
native code; where that was not built in Python, which is announced once, gives the same rows and is
some thirty times slower.

Data that no producer can have written raises InvalidBatch with the topic, the partition and the
offset: damaged, cut short, of a format before Kafka 0.11, or larger than the limit when it is
decompressed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ottla.pipelines.source import kernel
from ottla.pipelines.source.column_choice import HEADERS
from ottla.pipelines.source.columns import Repeated, Room, Sizes
from ottla.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
)
from ottla.records.checksum import crc32c
from ottla.records.compression import Compression, decompress
from ottla.records.control import read_end_marker
from ottla.records.errors import InvalidBatch

if TYPE_CHECKING:
    from collections.abc import Generator

    from ottla.pipelines.source.ranges import Range
    from ottla.pipelines.source.task import FetchSettings

# Decompressed batches are gathered up to this size before they are decoded.
_PIECE: Final = 1 << 20
_SLACK: Final = 1.25
_UNUSUAL: Final = COMPRESSION_MASK | CONTROL_FLAG | TRANSACTIONAL_FLAG
_BATCHES: Final = 1024


@dataclass(slots=True)
class Piece:
    """Bytes, and an outline (see `kernel`) of the plain records in them, wanted from `first` on."""

    data: Any
    table: Any
    first: int

    @property
    def size(self) -> int:
        return len(self.data)


def outline(data: Any, part: Range, position: int) -> Any:
    """The outline of the whole batches in `data`, which was fetched at `position`."""
    native = kernel.load()
    walk = kernel.outline if native is None else native.outline
    found = np.zeros(2, np.int64)
    table = np.empty((_BATCHES, kernel.WIDTH), np.int64)
    while (status := walk(data, table, found)) == kernel.FULL:
        table = np.empty((len(table) * 8, kernel.WIDTH), np.int64)
    count = int(found[0])
    if status != kernel.DONE and count == 0:
        raise invalid(part, position, kernel.REASONS[status])
    # What comes before a batch that makes no sense is read first; then it is first itself.
    table = table[:count]
    disorder = np.flatnonzero(table[1:, kernel.BASE] <= table[:-1, kernel.LAST])
    if len(disorder):
        raise invalid(
            part, int(table[disorder[0] + 1, kernel.BASE]), "it comes after later offsets"
        )
    return table


def unpack(
    data: Any,
    table: Any,
    aborted: Collection[tuple[int, int]],
    part: Range,
    settings: FetchSettings,
) -> Iterator[Piece]:
    """Pieces with the records of the batches in `table` that are in `part`, or what is left of it.

    `aborted` are producer ids and first offsets of transactions that were rolled back.
    """
    gone = _rolled_back(memoryview(data), table.tolist(), aborted, part) if aborted else set()
    table = table[(table[:, kernel.LAST] >= part.start) & (table[:, kernel.BASE] < part.end)]
    if settings.check_crcs:
        view = memoryview(data)
        for begin, stop, base, crc in table[
            :, (kernel.BEGIN, kernel.STOP, kernel.BASE, kernel.CRC)
        ].tolist():
            if crc32c(view[begin - HEADER_SIZE + ATTRIBUTES_POSITION : stop]) != crc:
                raise invalid(part, base, "its checksum is wrong")
    if not len(table):
        return
    if not (table[:, kernel.ATTRIBUTES] & _UNUSUAL).any():
        yield Piece(data, table, part.start)
        return
    yield from _sorted_out(data, table, gone, part, settings)


def _sorted_out(
    data: Any, table: Any, gone: set[int], part: Range, settings: FetchSettings
) -> Iterator[Piece]:
    view = memoryview(data)
    plain: list[int] = []  # rows of the table, or
    loose: list[bytes] = []  # decompressed records, and
    loose_rows: list[list[int]] = []  # their rows
    size = 0
    ratio = 0.0  # of the last batch; the next one will not be very different
    for number, row in enumerate(table.tolist()):
        attributes = row[kernel.ATTRIBUTES]
        if attributes & CONTROL_FLAG or row[kernel.BASE] in gone or row[kernel.COUNT] == 0:
            continue
        codec = attributes & COMPRESSION_MASK
        if loose and (not codec or size >= _PIECE):
            yield _gathered(loose, loose_rows, part.start)
            loose, loose_rows, size = [], [], 0
        if not codec:
            plain.append(number)
            continue
        if plain:
            yield Piece(data, table[plain], part.start)
            plain = []
        packed = view[row[kernel.BEGIN] : row[kernel.STOP]]
        try:
            content = decompress(
                Compression.of(codec),
                packed,
                settings.max_decompressed,
                expected=int(len(packed) * ratio * _SLACK),
            )
        except InvalidBatch as error:
            raise invalid(part, row[kernel.BASE], str(error)) from None
        ratio = len(content) / max(1, len(packed))
        row[kernel.BEGIN] = size
        size += len(content)
        row[kernel.STOP] = size
        row[kernel.ATTRIBUTES] = attributes & ~COMPRESSION_MASK
        loose.append(content)
        loose_rows.append(row)
    if plain:
        yield Piece(data, table[plain], part.start)
    if loose:
        yield _gathered(loose, loose_rows, part.start)


def _gathered(contents: list[bytes], rows: list[list[int]], first: int) -> Piece:
    data = contents[0] if len(contents) == 1 else b"".join(contents)
    return Piece(data, np.array(rows, np.int64), first)


def _rolled_back(
    view: memoryview, rows: list[list[int]], aborted: Collection[tuple[int, int]], part: Range
) -> set[int]:
    """Where the batches begin that belong to transactions which were rolled back.

    A producer's transaction lasts from its first offset to the next marker of that producer.
    """
    coming = sorted(aborted, key=lambda each: each[1], reverse=True)
    producers: set[int] = set()
    gone: set[int] = set()
    for row in rows:
        while coming and coming[-1][1] <= row[kernel.LAST]:
            producers.add(coming.pop()[0])
        attributes = row[kernel.ATTRIBUTES]
        producer = row[kernel.PRODUCER]
        if attributes & CONTROL_FLAG:
            batch = view[row[kernel.BEGIN] - HEADER_SIZE : row[kernel.STOP]]
            try:
                marker = read_end_marker(batch)
            except InvalidBatch as error:
                raise invalid(part, row[kernel.BASE], str(error)) from None
            if marker is not None and marker.aborted:
                producers.discard(producer)
        elif attributes & TRANSACTIONAL_FLAG and producer in producers:
            gone.add(row[kernel.BASE])
    return gone


# ---------------------------------------------------------------------- records


def decode(pieces: Generator[Piece], part: Range, settings: FetchSettings) -> Iterator[Any]:
    """The records of pieces as `pyarrow.RecordBatch`es."""
    with closing(pieces):
        native = kernel.load()
        if native is None:
            from ottla.pipelines.source.plain import decode_plainly

            yield from decode_plainly(pieces, part, settings)
        else:
            yield from _decode(native, pieces, part, settings)


def _decode(
    native: kernel.Loops, pieces: Iterator[Piece], part: Range, settings: FetchSettings
) -> Iterator[Any]:
    names, with_headers = settings.columns, HEADERS in settings.columns
    rows = max(1, min(settings.rows_per_batch, part.end - part.start))
    repeated = Repeated(part.topic, part.partition, rows)
    sizes: Sizes | None = None
    room: Room | None = None
    for piece in pieces:
        if sizes is None:
            sizes = Sizes(repeated.rows, piece.size)
        if room is not None:
            room.cursor[kernel.BATCH] = 0
        while True:
            if room is None:
                room = Room(sizes, names)
            cursor = room.cursor
            status = native.walk(
                piece.data, piece.table, cursor, piece.first, part.end, with_headers, *room.columns
            )
            if status == kernel.DONE:
                break
            if status != kernel.FULL:
                row = piece.table[cursor[kernel.BATCH]]
                raise invalid(part, int(row[kernel.BASE]), kernel.REASONS[status])
            place = cursor[: kernel.ROWS].copy()
            if room.rows:
                yield room.batch(repeated)
                sizes.learn(cursor)
            else:
                sizes.at_least(int(cursor[kernel.NEEDED]))
            room = Room(sizes, names)
            room.cursor[: kernel.ROWS] = place
    if room is not None and room.rows:
        yield room.batch(repeated)


def invalid(part: Range, offset: int, reason: str) -> InvalidBatch:
    return InvalidBatch(
        f"partition {part.partition} of topic {part.topic}, the batch at offset {offset}: {reason}"
    )
