"""Values in transactional topics: written in a transaction, and read as a consumer reads them.

A reader of committed records leaves out what was aborted, as clients of Kafka do: a response names
the aborted transactions, each by its producer and its first offset, and a marker ends it.

In the compacted topic a value has a key, and may be a tombstone. So who it is stands in a header,
which a tombstone has as well, and key and tombstone follow from its number: `key_of`, `is_deleted`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.records.batch import BatchHeader, batches
from ottla.records.builder import build_batch
from ottla.records.control import read_end_marker
from ottla.records.reader import Record, iter_records
from ottla.verify.values import Run, check_batch, parse_value, write_value

if TYPE_CHECKING:
    from ottla.records.builder import RecordItem

KEYS = 8
"""Of one writer in the compacted topic."""
_HEADER = "v"
_NO_VALUE = b""


class Values(NamedTuple):
    """Values of one writer, with consecutive numbers."""

    writer: int
    first: int
    length: int


class Producer(NamedTuple):
    """Who writes a batch, and where in its sequence."""

    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool


class Aborted(NamedTuple):
    """A transaction that a reader of committed records must leave out."""

    producer_id: int
    first_offset: int


class Marker(NamedTuple):
    """The end of a transaction in a log."""

    offset: int
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int


class Content(NamedTuple):
    """What a fetch has brought."""

    runs: list[Run]
    markers: list[Marker]
    next_offset: int


def key_of(number: int) -> int:
    """Which of its writer's keys a value has in the compacted topic."""
    return number % KEYS


def is_deleted(number: int) -> bool:
    """Whether it is a tombstone there."""
    return (number // KEYS + number) % 4 == 3


def write_values(
    values: Iterable[Values], producer: Producer, *, now_ms: int, keyed: bool = False
) -> bytes:
    """One batch with these values, in their order."""
    item = _keyed if keyed else _plain
    return build_batch(
        [
            item(now_ms, writer, number)
            for writer, first, count in values
            for number in range(first, first + count)
        ],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.sequence,
        transactional=producer.transactional,
    )


def _plain(now_ms: int, writer: int, number: int) -> RecordItem:
    return now_ms, None, write_value(writer, number), ()


def _keyed(now_ms: int, writer: int, number: int) -> RecordItem:
    key = b"%d-%d" % (writer, key_of(number))
    value = None if is_deleted(number) else _NO_VALUE
    return now_ms, key, value, ((_HEADER, write_value(writer, number)),)


def read_log(
    records: memoryview, position: int, aborted: Sequence[Aborted] | None, *, keyed: bool = False
) -> Content:
    """The values from an offset on; with a list of `aborted` transactions, without those of these.
    Raises ForeignRecord and InvalidBatch."""
    runs: list[Run] = []
    markers: list[Marker] = []
    waiting = deque(sorted(aborted or (), key=lambda each: each.first_offset))
    left_out: set[int] = set()
    for place, header in batches(records):
        check_batch(records, place, header)
        while waiting and waiting[0].first_offset <= header.last_offset:
            left_out.add(waiting.popleft().producer_id)
        if header.is_control:
            marker = _marker(records[place:], header)
            if marker is not None:
                if not marker.committed:
                    left_out.discard(header.producer_id)
                if header.base_offset >= position:
                    markers.append(marker)
        elif not (header.is_transactional and header.producer_id in left_out):
            for record in iter_records(records[place:]):
                if record.offset >= position:
                    _add(runs, record.offset, *_identity(record, keyed))
        position = max(position, header.last_offset + 1)
    return Content(runs, markers, position)


def _marker(batch: memoryview, header: BatchHeader) -> Marker | None:
    found = read_end_marker(batch, header)
    if found is None:
        return None
    return Marker(
        header.base_offset,
        header.producer_id,
        header.producer_epoch,
        not found.aborted,
        found.coordinator_epoch,
    )


def _identity(record: Record, keyed: bool) -> tuple[int, int]:
    if not keyed:
        return parse_value(record.offset, record.value)
    return parse_value(record.offset, record.headers[0][1] if record.headers else None)


def _add(runs: list[Run], offset: int, writer: int, number: int) -> None:
    """Add a value, to the run before it where it goes on from there."""
    if runs:
        at, by, first, count = runs[-1]
        if by == writer and number == first + count and offset == at + count:
            runs[-1] = Run(at, by, first, count + 1)
            return
    runs.append(Run(offset, writer, number, 1))
