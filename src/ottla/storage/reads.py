"""Looking things up in a log's segments: by offset, by timestamp, by latest timestamp.

The functions change nothing. They raise OSError as it comes, and KafkaError(CORRUPT_MESSAGE) when
a file does not hold what it should.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import APPEND_TIME_FLAG, InvalidBatch
from ottla.records.reader import iter_records
from ottla.storage.scan import corrupt, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.records.batch import BatchHeader
    from ottla.storage.segment import Segment
    from ottla.storage.segments import Segments


class TimestampOffset(NamedTuple):
    """A record found by time. `leader_epoch` is -1 when its batch has none."""

    offset: int
    timestamp: int
    leader_epoch: int


def locate(segments: Segments, offset: int) -> tuple[Segment, tuple[int, int]] | None:
    """The batch that holds `offset`, or the next one if compaction or a lost file left a gap: its
    segment, and its position and size in it."""
    for segment in segments.from_slot(segments.slot_of(offset)):
        place = segment.locate(offset)
        if place is not None:
            return segment, place
    return None


def bytes_between(segments: Segments, offset: int, upper: int) -> int:
    """Bytes of the batches from `offset` up to `upper`."""
    first, last = segments.slot_of(offset), segments.slot_of(upper)
    start = _position(segments[first], offset)
    if first == last:
        return max(0, _position(segments[first], upper) - start)
    between = sum(segments[slot].size for slot in range(first + 1, last))
    return segments[first].size - start + between + _position(segments[last], upper)


def _position(segment: Segment, offset: int) -> int:
    place = segment.locate(offset)
    return segment.size if place is None else place[0]


def offset_for_timestamp(
    segments: Segments, timestamp_ms: int, log_start_offset: int
) -> TimestampOffset | None:
    """The first record, at or after the log's start, with this timestamp or a later one.

    Within a segment the first such record by offset is found. Segments are tried in order, those
    whose latest timestamp is too early being skipped.
    """
    for segment in segments:
        if segment.largest_timestamp() < timestamp_ms:
            continue
        _, indexed = segment.time_index.lookup(timestamp_ms)
        start = segment.offset_index.lookup(max(indexed, log_start_offset))
        for position, header in walk(segment.file, start, segment.size):
            if header.max_timestamp < timestamp_ms or header.last_offset < log_start_offset:
                continue
            for offset, timestamp in _timestamps(segment, position, header):
                if timestamp >= timestamp_ms and offset >= log_start_offset:
                    return TimestampOffset(offset, timestamp, header.leader_epoch)
    return None


def latest_record(segments: Segments) -> TimestampOffset | None:
    """The first record that has the log's latest timestamp."""
    latest, at = NO_TIMESTAMP, None
    for segment in segments:
        timestamp, _ = segment.latest()
        if timestamp > latest:
            latest, at = timestamp, segment
    if at is None:
        return None
    start = at.offset_index.lookup(at.latest()[1])
    for position, header in walk(at.file, start, at.size):
        if header.max_timestamp == latest:
            for offset, timestamp in _timestamps(at, position, header):
                if timestamp == latest:
                    return TimestampOffset(offset, timestamp, header.leader_epoch)
    return None


def _timestamps(segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of a batch's records. With append time all have the batch's, and the
    batch is not decompressed to learn that."""
    if header.attributes & APPEND_TIME_FLAG and header.record_count == header.last_offset_delta + 1:
        for offset in range(header.base_offset, header.last_offset + 1):
            yield offset, header.max_timestamp
        return
    batch = segment.file.pread(header.size, position)
    try:
        for record in iter_records(batch, header):
            yield record.offset, record.timestamp
    except InvalidBatch:
        raise corrupt(segment.file, position) from None
