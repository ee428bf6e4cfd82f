"""Records inside a batch: what is read, and what is refused."""

from __future__ import annotations

import pytest

from ottla.records import varint
from ottla.records.batch import InvalidBatch, read_header, set_append_time
from ottla.records.builder import assemble, build_batch
from ottla.records.compression import Compression
from ottla.records.reader import Record, iter_outlines, iter_records, payload

SOME = [
    (1000, b"key", b"value", (("h", b"x"), ("empty", b""), ("null", None))),
    (1000 + 2**40, None, b"v" * 70, ()),
    (990, b"", None, ()),
    (1000, b"k" * 9000, b"", (("é", b"1"),)),
]


def batch_of(body: bytes, count: int) -> bytes:
    """A batch with any bytes for its records."""
    return assemble(
        body,
        base_offset=0,
        leader_epoch=-1,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )


def record(body: bytes) -> bytes:
    return varint.encode(len(body)) + body


@pytest.mark.parametrize("codec", Compression)
def test_records_come_out_as_they_went_in(codec: Compression) -> None:
    batch = build_batch(SOME, base_offset=50, compression=codec)
    expected = [Record(50 + n, *fields) for n, fields in enumerate(SOME)]
    assert list(iter_records(batch)) == expected
    assert list(iter_records(memoryview(bytearray(batch) + b"next batch"))) == expected


def test_a_batch_may_be_read_with_a_header_that_was_read_before() -> None:
    batch = build_batch(SOME)
    header = read_header(batch)._replace(base_offset=7)
    assert next(iter_records(batch, header)).offset == 7


def test_many_records_have_the_right_offsets_and_timestamps() -> None:
    records = [(5000 + 3 * n, b"k%d" % n, None, ()) for n in range(20_000)]
    got = list(iter_records(build_batch(records, base_offset=2**33)))
    assert [r.offset for r in got] == list(range(2**33, 2**33 + 20_000))
    assert [r.timestamp for r in got] == [5000 + 3 * n for n in range(20_000)]
    assert got[12_345].key == b"k12345"


def test_timestamps_are_the_append_time_when_the_log_set_it() -> None:
    batch = bytearray(build_batch(SOME))
    set_append_time(batch, 0, 77)
    assert {r.timestamp for r in iter_records(batch)} == {77}


def test_a_batch_emptied_by_compaction_has_no_records() -> None:
    batch = assemble(
        b"",
        base_offset=10,
        leader_epoch=1,
        attributes=0,
        last_offset_delta=4,
        base_timestamp=-1,
        max_timestamp=99,
        producer_id=5,
        producer_epoch=0,
        base_sequence=8,
        record_count=0,
    )
    assert list(iter_records(batch)) == []
    assert read_header(batch).next_offset == 15


def test_outlines_tell_deltas_and_keys() -> None:
    batch = build_batch(SOME, compression=Compression.ZSTD)
    assert list(iter_outlines(payload(batch), 4)) == [
        (0, 0, True),
        (1, 2**40, False),
        (2, -10, True),
        (3, 0, True),
    ]


def test_negative_lengths_other_than_minus_one_mean_null_as_in_kafka() -> None:
    body = record(b"\0\0\0" + varint.encode(-5) + varint.encode(-7) + b"\0")
    (only,) = iter_records(batch_of(body, 1))
    assert only.key is None
    assert only.value is None


def test_a_header_key_that_is_not_utf8_is_readable_all_the_same() -> None:
    body = record(b"\0\0\0\x01\x01\x02" + b"\x04\xff\xfe" + b"\x02x")
    (only,) = iter_records(batch_of(body, 1))
    assert only.headers == (("\ufffd\ufffd", b"x"),)


GOOD = record(b"\0\0\0\x02k\x02v\0")

BROKEN = {
    "more records claimed than there are": (GOOD, 2),
    "bytes after the last record": (GOOD + b"\0", 1),
    "fewer records claimed than there are": (GOOD + GOOD, 1),
    "nothing at all": (b"", 1),
    "a record longer than the batch": (varint.encode(100) + GOOD[1:], 1),
    "a record shorter than its content": (varint.encode(len(GOOD) - 2) + GOOD[1:], 1),
    "a negative record length": (b"\x01" + GOOD[1:], 1),
    "a key longer than its record": (record(b"\0\0\0\x7ek\x02v\0") + GOOD * 9, 10),
    "a value longer than its record": (record(b"\0\0\0\x02k\x7ev\0") + GOOD * 9, 10),
    "a length without end": (b"\x80" * 20, 1),
    "a timestamp without end": (record(b"\0" + b"\xff" * 12), 1),
    "a negative header count": (record(b"\0\0\0\x01\x01\x01"), 1),
    "more headers than bytes": (record(b"\0\0\0\x01\x01\x7e"), 1),
    "a header key without length": (record(b"\0\0\0\x01\x01\x02\x01\x01"), 1),
    "a header value past the record": (record(b"\0\0\0\x01\x01\x02\x02h\x7ex") + GOOD * 9, 10),
    "a record without its end": (record(b"\0\0\0\x02k\x02v"), 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_records_are_invalid(name: str) -> None:
    body, count = BROKEN[name]
    with pytest.raises(InvalidBatch):
        list(iter_records(batch_of(body, count)))
    with pytest.raises(InvalidBatch):
        list(iter_outlines(body, count))


def test_a_torn_batch_is_invalid() -> None:
    batch = build_batch(SOME)
    with pytest.raises(InvalidBatch, match="here are"):
        list(iter_records(batch[:-1]))


def test_compressed_records_over_the_limit_are_invalid() -> None:
    batch = build_batch([(0, None, bytes(100_000), ())], compression=Compression.ZSTD)
    assert len(list(iter_records(batch, max_decompressed=101_000))) == 1
    with pytest.raises(InvalidBatch, match="more than 50000 bytes"):
        list(iter_records(batch, max_decompressed=50_000))
