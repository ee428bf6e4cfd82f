"""Batches made from records."""

from __future__ import annotations

import pytest

from ottla.records.batch import TimestampType, checksum_ok, read_header
from ottla.records.builder import BatchBuilder, build_batch, build_single
from ottla.records.compression import Compression
from ottla.records.reader import iter_records


def test_a_built_batch_has_a_complete_header() -> None:
    batch = build_batch(
        [(100, b"a", b"b", ()), (90, None, None, ()), (120, b"c", b"d", ())],
        base_offset=1000,
        producer_id=7,
        producer_epoch=2,
        base_sequence=30,
        leader_epoch=4,
        transactional=True,
        compression=Compression.GZIP,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    )
    header = read_header(batch)
    assert header.size == len(batch)
    assert header.magic == 2
    assert checksum_ok(batch, 0, header)
    assert (header.base_offset, header.last_offset, header.record_count) == (1000, 1002, 3)
    assert (header.base_timestamp, header.max_timestamp) == (100, 120)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 30)
    assert header.leader_epoch == 4
    assert header.is_transactional
    assert not header.is_control
    assert header.compression is Compression.GZIP
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_without_options_a_batch_is_a_plain_producers() -> None:
    header = read_header(build_batch([(1, None, b"x", ())]))
    assert header.base_offset == 0
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.leader_epoch == -1
    assert header.attributes == 0


def test_appending_one_by_one_gives_the_same_as_extending() -> None:
    records = [
        (1000 + n, b"k" * n if n % 3 else None, b"v" * (n * 7) if n % 5 else None, (("h", b"x"),))
        if n % 2
        else (1000 - n, b"k", b"v" * n, ())
        for n in range(200)
    ]
    one_by_one = BatchBuilder(base_offset=5)
    for record in records:
        one_by_one.append(*record)
    assert one_by_one.build() == build_batch(records, base_offset=5)


def test_extending_may_be_continued() -> None:
    builder = BatchBuilder()
    builder.append(10, b"a", b"1")
    builder.extend([(12, b"b", b"2", ()), (11, b"c", b"3", ())])
    builder.append(5, b"d", b"4")
    got = list(iter_records(builder.build()))
    assert [(r.offset, r.timestamp, r.key) for r in got] == [
        (0, 10, b"a"),
        (1, 12, b"b"),
        (2, 11, b"c"),
        (3, 5, b"d"),
    ]
    assert read_header(builder.build()).max_timestamp == 12


@pytest.mark.parametrize("size", [0, 1, 40, 63, 64, 200, 100_000])
def test_a_single_record_makes_the_same_batch_in_a_shorter_way(size: int) -> None:
    for key, value in ((b"k", b"v" * size), (b"k" * size, b"v"), (b"k" * size, b"v" * size)):
        batch, header = build_single(1_700_000_000_000, key, value)
        assert batch == build_batch([(1_700_000_000_000, key, value, ())])
        assert header == read_header(batch)


def test_offsets_may_have_gaps() -> None:
    builder = BatchBuilder(base_offset=100)
    builder.append(1, b"a", b"")
    builder.append(1, b"b", b"", offset=105)
    builder.append(1, b"c", b"")
    batch = builder.build()
    assert [record.offset for record in iter_records(batch)] == [100, 105, 106]
    header = read_header(batch)
    assert (header.last_offset, header.record_count) == (106, 3)


def test_offsets_never_go_back() -> None:
    builder = BatchBuilder(base_offset=100)
    builder.append(1, b"a", b"", offset=103)
    with pytest.raises(ValueError, match="offset 103"):
        builder.append(1, b"b", b"", offset=103)


def test_the_size_is_that_of_the_uncompressed_batch() -> None:
    builder = BatchBuilder()
    assert builder.size == 61
    for n in range(50):
        builder.append(n, b"key", b"v" * n, [("h", b"x")])
    assert builder.size == len(builder.build())
    assert builder.record_count == 50


def test_a_record_without_timestamp_keeps_none() -> None:
    header = read_header(build_batch([(-1, None, b"x", ())]))
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
