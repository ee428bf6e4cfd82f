"""Batches made from records: by coordinators for their logs, by recompression and compaction, by
Spark's sink where there is no native code, by the test kit. Client batches are stored as they came,
so this is off the hot path; it still does about half a million small records a second.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ottla.records import varint
from ottla.records.batch import (
    APPEND_TIME_FLAG,
    ATTRIBUTES_POSITION,
    CONTROL_FLAG,
    CRC_POSITION,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    TimestampType,
)
from ottla.records.checksum import crc32c
from ottla.records.compression import Compression, compress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from _typeshed import ReadableBuffer

    HeaderItems = Sequence[tuple[str, bytes | None]]
    RecordItem = tuple[int, bytes | None, bytes | None, HeaderItems]

NO_TIMESTAMP = -1

_pack_before = struct.Struct(">qiibI").pack  # the header's fields up to its checksum
_pack_covered = struct.Struct(">hiqqqhii").pack  # and those that the checksum covers


class BatchBuilder:
    """Collects records and gives the batch. `size` is kept current, uncompressed, so that a caller
    can stop at its limit."""

    __slots__ = (
        "_base_timestamp",
        "_body",
        "_last_delta",
        "_max_timestamp",
        "attributes",
        "base_offset",
        "base_sequence",
        "compression",
        "leader_epoch",
        "level",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    def __init__(  # noqa: PLR0913 - the fields of a batch's header, by name
        self,
        *,
        base_offset: int = 0,
        compression: Compression = Compression.NONE,
        level: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        leader_epoch: int = -1,
        transactional: bool = False,
        control: bool = False,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    ) -> None:
        self.base_offset = base_offset
        self.compression = compression
        self.level = level
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.leader_epoch = leader_epoch
        self.attributes = (
            compression
            | (TRANSACTIONAL_FLAG if transactional else 0)
            | (CONTROL_FLAG if control else 0)
            | (APPEND_TIME_FLAG if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        )
        self.record_count = 0
        self._body = bytearray()
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self._last_delta = -1

    @property
    def size(self) -> int:
        """Bytes of the batch before compression."""
        return HEADER_SIZE + len(self._body)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderItems = (),
        *,
        offset: int | None = None,
    ) -> None:
        """Add a record at the next offset, or at a later `offset` (compaction leaves gaps)."""
        delta = self._last_delta + 1 if offset is None else offset - self.base_offset
        if delta <= self._last_delta:
            raise ValueError(f"offset {offset} is not after the last record's")
        self._last_delta = delta
        if self.record_count == 0:
            self._base_timestamp = timestamp
        self.record_count += 1
        self._max_timestamp = max(self._max_timestamp, timestamp)
        _append_record(self._body, timestamp - self._base_timestamp, delta, key, value, headers)

    def extend(self, records: Iterable[RecordItem]) -> None:
        """Add records at the next offsets: the loop of `append` with its costs taken out."""
        body = self._body
        delta = self._last_delta
        base = self._base_timestamp
        latest = self._max_timestamp
        first = self.record_count == 0
        short = varint.SHORT
        encode = varint.encode
        before = delta
        for timestamp, key, value, headers in records:
            if first:
                base = timestamp
                first = False
            if timestamp > latest:  # noqa: PLR1730 - max() costs a tenth of the loop
                latest = timestamp
            delta += 1
            if headers or key is None or value is None:
                _append_record(body, timestamp - base, delta, key, value, headers)
                continue
            moment = timestamp - base
            stamp = short[moment << 1] if 0 <= moment < 64 else encode(moment)
            index = short[delta << 1] if delta < 64 else encode(delta)
            size = len(key)
            key_size = short[size << 1] if size < 64 else encode(size)
            size = len(value)
            value_size = short[size << 1] if size < 64 else encode(size)
            record = b"\0%b%b%b%b%b%b\0" % (stamp, index, key_size, key, value_size, value)
            size = len(record)
            body += short[size << 1] if size < 64 else encode(size)
            body += record
        self.record_count += delta - before
        self._last_delta = delta
        self._base_timestamp = base
        self._max_timestamp = latest

    def build(self) -> bytes:
        """The batch. The builder may go on collecting afterwards."""
        return assemble(
            compress(self.compression, self._body, self.level),
            base_offset=self.base_offset,
            leader_epoch=self.leader_epoch,
            attributes=self.attributes,
            last_offset_delta=max(self._last_delta, 0),
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            record_count=self.record_count,
        )


def build_batch(  # noqa: PLR0913 - the fields of a batch's header, by name
    records: Iterable[RecordItem],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """One batch of `(timestamp, key, value, headers)` at consecutive offsets."""
    builder = BatchBuilder(
        base_offset=base_offset,
        compression=compression,
        level=level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
        transactional=transactional,
        control=control,
        timestamp_type=timestamp_type,
    )
    builder.extend(records)
    return builder.build()


def build_single(timestamp: int, key: bytes, value: bytes) -> tuple[bytearray, BatchHeader]:
    """The batch of one plain record, ready to be given its offset, and its header.

    The same bytes as `build_batch` makes, in a quarter of its time: coordinators write one such
    batch for nearly every change of a group.
    """
    size = len(key)
    key_size = varint.SHORT[size << 1] if size < 64 else varint.encode(size)
    size = len(value)
    value_size = varint.SHORT[size << 1] if size < 64 else varint.encode(size)
    record = b"\0\0\0%b%b%b%b\0" % (key_size, key, value_size, value)
    size = len(record)
    record_size = varint.SHORT[size << 1] if size < 64 else varint.encode(size)
    length = HEADER_SIZE - LOG_OVERHEAD + len(record_size) + size
    covered = _pack_covered(0, 0, timestamp, timestamp, -1, -1, -1, 1) + record_size + record
    crc = crc32c(covered)
    batch = bytearray(_pack_before(0, length, -1, MAGIC, crc))
    batch += covered
    header = BatchHeader(0, length, -1, MAGIC, crc, 0, 0, timestamp, timestamp, -1, -1, -1, 1)
    return batch, header


def assemble(  # noqa: PLR0913 - the fields of a batch's header, by name
    body: ReadableBuffer,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> bytes:
    """A batch from its header fields and its (already compressed) records; length and CRC are
    computed."""
    view = memoryview(body)
    batch = bytearray(HEADER_SIZE + view.nbytes)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    batch[HEADER_SIZE:] = view
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
    return bytes(batch)


def _append_record(
    body: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: HeaderItems,
) -> None:
    encode = varint.encode
    record = bytearray(1)
    record += encode(timestamp_delta)
    record += encode(offset_delta)
    _append_bytes(record, key)
    _append_bytes(record, value)
    record += encode(len(headers))
    for name, content in headers:
        _append_bytes(record, name.encode())
        _append_bytes(record, content)
    body += encode(len(record))
    body += record


def _append_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # the varint of -1
    else:
        out += varint.encode(len(data))
        out += data
