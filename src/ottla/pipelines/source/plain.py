"""Records decoded in Python, where there is no native code: the same rows, the same refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla.pipelines.source import kernel
from ottla.pipelines.source.columns import USUAL_BYTES, Repeated, schema_of
from ottla.pipelines.source.decoder import Piece, invalid
from ottla.records.batch import APPEND_TIME_FLAG, HEADER_SIZE, LOG_OVERHEAD, BatchHeader
from ottla.records.errors import InvalidBatch
from ottla.records.reader import Record, iter_records

if TYPE_CHECKING:
    from ottla.pipelines.source.ranges import Range
    from ottla.pipelines.source.task import FetchSettings

_EACH: dict[str, Callable[[Record], Any]] = {
    "key": lambda record: record.key,
    "value": lambda record: record.value,
    "offset": lambda record: record.offset,
    "timestamp": lambda record: record.timestamp * 1000,
    "headers": lambda record: [{"key": key, "value": value} for key, value in record.headers],
}
_NO_HEADER = bytes(HEADER_SIZE)


def decode_plainly(pieces: Iterator[Piece], part: Range, settings: FetchSettings) -> Iterator[Any]:
    """The records of pieces as `pyarrow.RecordBatch`es."""
    most = max(1, min(settings.rows_per_batch, part.end - part.start))
    repeated = Repeated(part.topic, part.partition, most)
    found: list[Record] = []
    kinds: list[int] = []
    size = 0
    for piece in pieces:
        for row in piece.table.tolist():
            kind = 1 if row[kernel.ATTRIBUTES] & APPEND_TIME_FLAG else 0
            for record in _records(piece, row, part):
                needed = len(record.key or b"") + len(record.value or b"")
                if found and (len(found) >= repeated.rows or size + needed > USUAL_BYTES):
                    yield _batch(found, kinds, repeated, settings.columns)
                    found, kinds, size = [], [], 0
                found.append(record)
                kinds.append(kind)
                size += needed
    if found:
        yield _batch(found, kinds, repeated, settings.columns)


def _records(piece: Piece, row: list[int], part: Range) -> Iterator[Record]:
    content = memoryview(piece.data)[row[kernel.BEGIN] : row[kernel.STOP]]
    base = row[kernel.BASE]
    header = BatchHeader(
        base_offset=base,
        length=len(content) + HEADER_SIZE - LOG_OVERHEAD,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=row[kernel.ATTRIBUTES],
        last_offset_delta=row[kernel.LAST] - base,
        base_timestamp=row[kernel.BASE_TIME],
        max_timestamp=row[kernel.MAX_TIME],
        producer_id=row[kernel.PRODUCER],
        producer_epoch=-1,
        base_sequence=-1,
        record_count=row[kernel.COUNT],
    )
    previous = base - 1
    try:
        for record in iter_records(_NO_HEADER + content, header):
            if not previous < record.offset <= row[kernel.LAST]:
                raise InvalidBatch(kernel.REASONS[kernel.OFFSETS])
            previous = record.offset
            if record.offset >= part.end:
                return
            if record.offset < piece.first:
                continue
            if abs(record.timestamp) > kernel.LATEST_MS:
                raise InvalidBatch(kernel.REASONS[kernel.TIMESTAMP])
            yield record
    except InvalidBatch as error:
        raise invalid(part, base, str(error)) from None


def _batch(
    records: list[Record], kinds: list[int], repeated: Repeated, names: tuple[str, ...]
) -> Any:
    schema = schema_of(names)
    topics, partitions = repeated.take(len(records))
    given = {"topic": topics, "partition": partitions, "timestampType": pa.array(kinds, pa.int32())}
    columns = [
        given[name]
        if name in given
        else pa.array([_EACH[name](record) for record in records], schema.field(name).type)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
