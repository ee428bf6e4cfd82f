"""Values that are unique: a writer's number, and the number of the record among this writer's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from ottla.records.batch import BatchHeader, batches, checksum_ok
from ottla.records.builder import build_batch
from ottla.records.errors import InvalidBatch
from ottla.records.reader import iter_records

_VALUE = Struct(">4sIQ")
_MARK = b"OTTV"


class Run(NamedTuple):
    """Values of one writer, with consecutive numbers at consecutive offsets."""

    offset: int
    writer: int
    first: int
    length: int


class ForeignRecord(Exception):
    """Somebody else writes to the topic."""


def write_batch(
    writer: int,
    first: int,
    count: int,
    *,
    now_ms: int,
    size: int = _VALUE.size,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """One batch with `count` values, each of at least `size` bytes."""
    padding = b"." * (size - _VALUE.size)
    return build_batch(
        (
            (now_ms, None, _VALUE.pack(_MARK, writer, number) + padding, ())
            for number in range(first, first + count)
        ),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )


def write_value(writer: int, number: int) -> bytes:
    """One value by itself."""
    return _VALUE.pack(_MARK, writer, number)


def runs_of(records: Iterable[tuple[int, bytes]]) -> list[Run]:
    """The values at these offsets. Raises ForeignRecord."""
    runs: list[Run] = []
    _join(runs, (Run(offset, *parse_value(offset, value), 1) for offset, value in records))
    return runs


class Content(NamedTuple):
    """What a fetch has brought."""

    runs: list[Run]
    epochs: list[tuple[int, int]]  # offset and leader epoch: of the first, the last, each change
    next_offset: int


def check_batch(records: memoryview, place: int, header: BatchHeader) -> None:
    """Raises InvalidBatch where not every byte is as it was written."""
    if not checksum_ok(records, place, header):
        raise InvalidBatch(f"the batch at offset {header.base_offset} has a wrong checksum")


def read_batches(records: memoryview, position: int) -> Content:
    """The values in record batches from an offset on. Raises ForeignRecord and InvalidBatch."""
    runs: list[Run] = []
    epochs: list[tuple[int, int]] = []
    last: tuple[int, int] | None = None
    for place, header in batches(records):
        if header.base_offset + header.last_offset_delta < position:
            continue
        check_batch(records, place, header)
        found = (max(header.base_offset, position), header.leader_epoch)
        if last is None or found[1] != last[1]:
            epochs.append(found)
        last = found
        _join(runs, _values(records[place:], position))
        position = max(position, header.base_offset + header.last_offset_delta + 1)
    if last is not None and epochs[-1] != last:
        epochs.append(last)
    return Content(runs, epochs, position)


def _values(batch: memoryview, position: int) -> Iterator[Run]:
    for record in iter_records(batch):
        if record.offset < position:
            continue
        yield Run(record.offset, *parse_value(record.offset, record.value), 1)


def parse_value(offset: int, value: bytes | memoryview | None) -> tuple[int, int]:
    """Writer and number. Raises ForeignRecord."""
    if value is not None and len(value) >= _VALUE.size:
        mark, writer, number = _VALUE.unpack_from(value)
        if mark == _MARK:
            return writer, number
    raise ForeignRecord(f"offset {offset} holds a record of somebody else")


def _join(runs: list[Run], more: Iterable[Run]) -> None:
    """Add single values, each to the run before it where it goes on from there."""
    if runs:
        offset, writer, first, count = runs.pop()
    else:
        offset, writer, first, count = 0, -1, 0, 0
    for at, by, number, _ in more:
        if by == writer and number == first + count and at == offset + count:
            count += 1
            continue
        if count:
            runs.append(Run(offset, writer, first, count))
        offset, writer, first, count = at, by, number, 1
    if count:
        runs.append(Run(offset, writer, first, count))
