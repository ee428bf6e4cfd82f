"""Control batches: the marks that end a transaction in a partition's log.

A control batch holds one record. Its key says what it is (version, type), its value, for the two
types that end a transaction, which coordinator wrote it (version, epoch). Other types belong to
Kafka's Raft log; they are recognised as not ours.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, NamedTuple

from ottla.records.batch import read_header
from ottla.records.builder import build_batch
from ottla.records.errors import InvalidBatch
from ottla.records.reader import iter_records

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ottla.records.batch import BatchHeader

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_MAX_MARKER = 1024 * 1024


class ControlType(enum.IntEnum):
    """The types that occur in partitions of topics."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """The outcome of a transaction, and the coordinator that decided it."""

    type: ControlType
    coordinator_epoch: int

    @property
    def aborted(self) -> bool:
        return self.type is ControlType.ABORT


def end_marker(
    marker_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch that commits or aborts what `producer_id` has open."""
    key = _KEY.pack(0, marker_type)
    value = _VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [(timestamp, key, value, ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        transactional=True,
        control=True,
    )


def read_end_marker(batch: ReadableBuffer, header: BatchHeader | None = None) -> EndMarker | None:
    """The marker in the control batch at the start of `batch`.

    None when compaction has emptied the batch, or when the control record is of another kind.
    """
    if header is None:
        header = read_header(batch)
    if not header.is_control:
        raise InvalidBatch("not a control batch")
    for record in iter_records(batch, header, max_decompressed=_MAX_MARKER):
        return _parse(record.key, record.value)
    return None


def _parse(key: bytes | None, value: bytes | None) -> EndMarker | None:
    if key is None or len(key) < _KEY.size:
        raise InvalidBatch("a control record without a version and a type in its key")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidBatch(f"a control record key of version {version}")
    if number not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    # Later versions only add fields at the end, so the known ones are read whatever the version.
    if value is None or len(value) < _VALUE.size:
        raise InvalidBatch("an end-of-transaction marker without a coordinator epoch")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise InvalidBatch(f"an end-of-transaction marker of version {version}")
    return EndMarker(ControlType(number), coordinator_epoch)
