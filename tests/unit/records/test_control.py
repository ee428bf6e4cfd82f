"""Transaction markers, against those that Apache Kafka 4.2 writes."""

from __future__ import annotations

import pytest

from ottla.records.batch import InvalidBatch, read_header
from ottla.records.builder import assemble, build_batch
from ottla.records.control import ControlType, EndMarker, end_marker, read_end_marker

# MemoryRecords.withEndTransactionMarker(offset, 1700000000000, leader epoch 4, producer 77 epoch 3,
# coordinator epoch) at offsets 55 and 56.
JAVA = {
    ControlType.ABORT: bytes.fromhex(
        "0000000000000037000000420000000402e83c4b3e0030000000000000018bcfe568000000018bcf"
        "e56800000000000000004d0003ffffffff000000012000000008000000000c00000000000c00"
    ),
    ControlType.COMMIT: bytes.fromhex(
        "00000000000000380000004200000004020fa005010030000000000000018bcfe568000000018bcf"
        "e56800000000000000004d0003ffffffff000000012000000008000000010c00000000000d00"
    ),
}


@pytest.mark.parametrize(
    ("kind", "offset", "coordinator_epoch"),
    [(ControlType.ABORT, 55, 12), (ControlType.COMMIT, 56, 13)],
)
def test_markers_are_byte_for_byte_javas(
    kind: ControlType, offset: int, coordinator_epoch: int
) -> None:
    ours = end_marker(
        kind,
        producer_id=77,
        producer_epoch=3,
        coordinator_epoch=coordinator_epoch,
        timestamp=1700000000000,
        base_offset=offset,
        leader_epoch=4,
    )
    assert ours == JAVA[kind]
    assert read_end_marker(ours) == EndMarker(kind, coordinator_epoch)
    header = read_header(ours)
    assert header.is_control
    assert header.is_transactional
    assert header.base_sequence == -1


def test_a_marker_knows_whether_it_aborts() -> None:
    assert EndMarker(ControlType.ABORT, 0).aborted
    assert not EndMarker(ControlType.COMMIT, 0).aborted


def test_a_data_batch_has_no_marker() -> None:
    with pytest.raises(InvalidBatch, match="not a control batch"):
        read_end_marker(build_batch([(1, b"k", b"v", ())]))


def control(key: bytes | None, value: bytes | None) -> bytes:
    return build_batch([(1, key, value, ())], producer_id=1, producer_epoch=0, control=True)


def test_other_control_records_are_not_markers() -> None:
    leader_change = control(b"\0\0\0\2", b"whatever")
    assert read_end_marker(leader_change) is None


def test_a_control_batch_emptied_by_compaction_has_no_marker() -> None:
    header = read_header(JAVA[ControlType.ABORT])._asdict()
    for computed in ("length", "magic", "crc"):
        del header[computed]
    assert read_end_marker(assemble(b"", **{**header, "record_count": 0})) is None


def test_later_versions_of_a_marker_are_read() -> None:
    batch = control(b"\0\1\0\1", b"\0\1\0\0\0\x09more")
    assert read_end_marker(batch) == EndMarker(ControlType.COMMIT, 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\1"),
        (b"\0\0\0", b"\0\0\0\0\0\1"),
        (b"\xff\xff\0\1", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0\0\0\0\0"),
        (b"\0\0\0\1", b"\xff\xff\0\0\0\1"),
    ],
)
def test_a_damaged_marker_is_invalid(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidBatch):
        read_end_marker(control(key, value))
