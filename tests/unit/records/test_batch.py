"""The batch header: read, walked, checked and patched in place."""

from __future__ import annotations

import struct

import pytest

from ottla.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    InvalidBatch,
    TimestampType,
    batches,
    checksum_ok,
    read_header,
    set_append_time,
    set_max_timestamp,
    set_offset_and_epoch,
)
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.reader import iter_records


def three_records(**fields: object) -> bytes:
    records = [(1000, b"a", b"x", ()), (1005, b"b", b"y", ()), (999, None, b"z", ())]
    return build_batch(records, **fields)


def test_the_header_has_every_field_where_kafka_has_it() -> None:
    raw = struct.pack(
        ">qiibIhiqqqhii", 7, 49, 3, 2, 0xFFFFFFFF, 0x34, 4, -1, 12, 77, 5, 2**31 - 3, 5
    )
    header = read_header(b"junk" + raw, 4)
    assert header.base_offset == 7
    assert header.length == 49
    assert header.leader_epoch == 3
    assert header.magic == 2
    assert header.crc == 0xFFFFFFFF
    assert header.last_offset_delta == 4
    assert header.base_timestamp == -1
    assert header.max_timestamp == 12
    assert header.producer_id == 77
    assert header.producer_epoch == 5
    assert header.base_sequence == 2**31 - 3
    assert header.record_count == 5
    assert header.size == 61
    assert header.last_offset == 11
    assert header.next_offset == 12
    assert header.compression is Compression.ZSTD
    assert header.is_transactional
    assert header.is_control
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_the_last_sequence_goes_round_to_zero() -> None:
    header = read_header(three_records(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0
    assert header._replace(base_sequence=2**31 - 3).last_sequence == 2**31 - 1
    assert header._replace(base_sequence=0).last_sequence == 2


def test_a_batch_without_sequence_has_no_last_sequence() -> None:
    assert read_header(three_records()).last_sequence == -1


def test_an_unknown_codec_is_invalid_when_asked_for() -> None:
    header = read_header(three_records())._replace(attributes=5)
    with pytest.raises(InvalidBatch, match="compression type id: 5"):
        _ = header.compression


def test_the_delete_horizon_is_the_base_timestamp_when_its_flag_is_set() -> None:
    header = read_header(three_records())
    assert header.delete_horizon_ms is None
    assert header._replace(attributes=0x40).delete_horizon_ms == 1000


def test_too_few_bytes_for_a_header_are_invalid() -> None:
    with pytest.raises(InvalidBatch, match="61 bytes, here are 60"):
        read_header(three_records()[:60])
    with pytest.raises(InvalidBatch, match="here are 0"):
        read_header(b"", 5)


def test_batches_walks_whole_batches_and_stops_at_a_torn_one() -> None:
    first, second = three_records(), three_records(base_offset=3)
    third = three_records(base_offset=6)
    for torn in (0, 1, LOG_OVERHEAD, HEADER_SIZE, len(third) - 1):
        found = list(batches(first + second + third[:torn]))
        assert [(position, header.base_offset) for position, header in found] == [
            (0, 0),
            (len(first), 3),
        ]


def test_batches_refuses_a_length_that_is_no_batch() -> None:
    data = bytearray(three_records() * 2)
    struct.pack_into(">i", data, len(data) // 2 + 8, 48)
    walk = batches(data)
    next(walk)
    with pytest.raises(InvalidBatch, match="length 48"):
        next(walk)


def test_batches_refuses_the_old_message_formats() -> None:
    data = bytearray(three_records())
    data[16] = 1
    with pytest.raises(InvalidBatch, match="magic 1"):
        list(batches(data))


def test_the_checksum_covers_everything_after_itself() -> None:
    batch = three_records()
    header = read_header(batch)
    assert checksum_ok(b"pad" + batch + b"more", 3, header)
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1
        assert not checksum_ok(damaged, 0, header)


def test_the_checksum_of_a_torn_batch_is_not_ok() -> None:
    batch = three_records()
    assert not checksum_ok(batch[:-1], 0, read_header(batch))
    assert not checksum_ok(batch, 0, read_header(batch)._replace(length=48))


def test_offset_and_epoch_are_set_without_touching_the_checksum() -> None:
    batch = bytearray(b"pad" + three_records())
    set_offset_and_epoch(batch, 3, 2**40, 9)
    header = read_header(batch, 3)
    assert header.base_offset == 2**40
    assert header.leader_epoch == 9
    assert checksum_ok(batch, 3, header)
    assert [record.offset for record in iter_records(batch[3:])] == [2**40 + n for n in range(3)]


def test_append_time_replaces_every_records_timestamp() -> None:
    batch = bytearray(three_records(compression=Compression.LZ4))
    set_append_time(memoryview(batch), 0, 5555)
    header = read_header(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.compression is Compression.LZ4
    assert header.base_timestamp == 1000
    assert checksum_ok(batch, 0, header)
    assert [record.timestamp for record in iter_records(batch)] == [5555] * 3


def test_append_time_leaves_the_neighbours_alone() -> None:
    one = three_records()
    data = bytearray(one * 3)
    set_append_time(data, len(one), 5555)
    assert data[: len(one)] == one
    assert data[2 * len(one) :] == one
    assert checksum_ok(data, len(one), read_header(data, len(one)))


def test_the_max_timestamp_can_be_corrected() -> None:
    batch = bytearray(three_records())
    set_append_time(batch, 0, 5555)
    set_max_timestamp(batch, 0, 1005)
    assert batch == three_records()
