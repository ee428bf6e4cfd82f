"""The record batch, version 2: its header read, patched in place and checked.

    offset  size
         0     8  base offset             \\ set by the broker on append; not covered by the CRC,
         8     4  length of what follows   |  so they are patched without a new one
        12     4  partition leader epoch  /
        16     1  magic, always 2
        17     4  CRC-32C of everything after it
        21     2  attributes: codec (bits 0-2), timestamp type (3), transactional (4), control (5),
                  delete horizon (6)
        23     4  last offset delta
        27     8  base timestamp
        35     8  max timestamp
        43     8  producer id
        51     2  producer epoch
        53     4  base sequence
        57     4  record count
        61        records, compressed as one block when the codec says so

The same bytes are a message on the wire and a piece of a segment file: a broker reads these 61
bytes of each batch and leaves the rest alone. Magic 0 and 1, the formats before Kafka 0.11, keep
the magic byte at the same place, so they are recognised and refused.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, NamedTuple

from ottla.records.checksum import crc32c
from ottla.records.compression import Compression
from ottla.records.errors import InvalidBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

__all__ = [
    "APPEND_TIME_FLAG",
    "ATTRIBUTES_POSITION",
    "COMPRESSION_MASK",
    "CONTROL_FLAG",
    "CRC_POSITION",
    "DELETE_HORIZON_FLAG",
    "HEADER",
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "MAGIC",
    "MAGIC_POSITION",
    "MAX_TIMESTAMP_POSITION",
    "TRANSACTIONAL_FLAG",
    "BatchHeader",
    "InvalidBatch",
    "TimestampType",
    "batches",
    "checksum_ok",
    "read_header",
    "set_append_time",
    "set_max_timestamp",
    "set_offset_and_epoch",
]

HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base offset and length: the part that `length` does not count
MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35

COMPRESSION_MASK = 0x07
APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

_MAX_SEQUENCE = 0x7FFFFFFF
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD

HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_POSITION = 12


class TimestampType(enum.IntEnum):
    """Who set the timestamps: the producer, or the broker on append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 61 bytes, in their order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec; a number that stands for none is an InvalidBatch."""
        return Compression.of(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & APPEND_TIME_FLAG) >> 3)

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop this batch's tombstones; it takes the base timestamp's place."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number, which goes round from 2^31 - 1 to 0; -1 for none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Only the presence of 61 bytes is checked."""
    try:
        return BatchHeader._make(HEADER.unpack_from(buffer, position))
    except struct.error:
        have = max(0, memoryview(buffer).nbytes - position)
        raise InvalidBatch(f"a batch header has {HEADER_SIZE} bytes, here are {have}") from None


def batches(buffer: ReadableBuffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; a torn last one ends the walk in silence.

    A length too small for a batch or a foreign magic byte is an InvalidBatch: what follows could
    not be found. Checksums are not looked at.
    """
    view = memoryview(buffer)
    end = view.nbytes
    position = 0
    unpack = HEADER.unpack_from
    make = BatchHeader._make
    while position + LOG_OVERHEAD <= end:
        (length,) = _LENGTH.unpack_from(view, position + 8)
        if length < _MIN_LENGTH:
            raise InvalidBatch(f"the batch at byte {position} has length {length}")
        if position + LOG_OVERHEAD + length > end:
            return
        header = make(unpack(view, position))
        if header.magic != MAGIC:
            raise InvalidBatch(f"the batch at byte {position} has magic {header.magic}, not 2")
        yield position, header
        position += LOG_OVERHEAD + length


def checksum_ok(buffer: ReadableBuffer, position: int, header: BatchHeader) -> bool:
    """Whether the whole batch is there and its CRC is the stored one."""
    end = position + LOG_OVERHEAD + header.length
    view = memoryview(buffer)
    if header.length < _MIN_LENGTH or end > view.nbytes:
        return False
    return crc32c(view[position + ATTRIBUTES_POSITION : end]) == header.crc


def set_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Give the batch its place in the log. Both fields lie before the CRC's range."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)


def set_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Make `now_ms` every record's timestamp, as `message.timestamp.type=LogAppendTime` wants.

    Readers take the max timestamp for all records of such a batch; base timestamp and deltas stay
    what the producer wrote, as in Kafka.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + ATTRIBUTES_POSITION)
    _rewrite(buffer, position, attributes | APPEND_TIME_FLAG, now_ms)


def set_max_timestamp(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Correct the max timestamp of a batch with create times."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + ATTRIBUTES_POSITION)
    _rewrite(buffer, position, attributes & ~APPEND_TIME_FLAG, timestamp_ms)


def _rewrite(
    buffer: bytearray | memoryview, position: int, attributes: int, max_timestamp: int
) -> None:
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp)
    (length,) = _LENGTH.unpack_from(buffer, position + 8)
    end = position + LOG_OVERHEAD + length
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    _CRC.pack_into(buffer, position + CRC_POSITION, crc)
