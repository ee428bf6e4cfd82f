"""Batches as they should not be, and the edges of those that are."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ottla.pipelines.source import columns, decoder, kernel
from ottla.pipelines.source.column_choice import ALL
from ottla.pipelines.source.loss import LossPolicy
from ottla.pipelines.source.ranges import Range
from ottla.pipelines.source.task import FetchSettings
from ottla.records import walker
from ottla.records.builder import assemble, build_batch
from ottla.records.compression import Compression, compress
from ottla.records.errors import InvalidBatch

PART = Range("orders", bytes(range(16)), 3, 0, 1 << 40)
SETTINGS = FetchSettings(loss=LossPolicy(), bootstrap="")
RECORDS: Sequence[Any] = [(1_000 + n, b"k%d" % n, b"v%d" % n, ()) for n in range(20)]


@pytest.fixture(params=["native", "plain"], autouse=True)
def _both_decoders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(kernel, "load", lambda: None)


def decoded(data: bytes, part: Range = PART, **changes: Any) -> list[Any]:
    how = replace(SETTINGS, **changes)

    def pieces() -> Iterator[decoder.Piece]:
        table = decoder.outline(data, part, part.start)
        yield from decoder.unpack(data, table, (), part, how)

    return list(decoder.decode(pieces(), part, how))


def column(found: list[Any], name: str) -> list[Any]:
    return [value for batch in found for value in batch.column(name).to_pylist()]


def made(body: bytes, count: int, **changes: Any) -> bytes:
    """A batch whose checksum is right, whatever is in it."""
    fields: dict[str, Any] = {
        "base_offset": 40,
        "leader_epoch": 0,
        "attributes": 0,
        "last_offset_delta": max(0, count - 1),
        "base_timestamp": 0,
        "max_timestamp": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": count,
    }
    return assemble(body, **(fields | changes))


def test_rows_come_in_batches_of_the_size_that_was_asked_for() -> None:
    data = build_batch(RECORDS) + build_batch(RECORDS, base_offset=20)
    found = decoded(data, rows_per_batch=15)
    assert [batch.num_rows for batch in found] == [15, 15, 10]
    assert column(found, "offset") == list(range(40))


def test_a_wrong_checksum_is_named_with_its_place() -> None:
    data = bytearray(build_batch(RECORDS, base_offset=40))
    data[-1] ^= 1
    with pytest.raises(
        InvalidBatch,
        match=r"^partition 3 of topic orders, the batch at offset 40: its checksum is wrong",
    ):
        decoded(bytes(data))


def test_checksums_are_not_looked_at_when_nobody_wants_that() -> None:
    data = bytearray(build_batch(RECORDS, base_offset=40))
    data[17] ^= 1
    assert column(decoded(bytes(data), check_crcs=False), "value") == [r[2] for r in RECORDS]


def test_batches_outside_of_the_range_are_not_even_checked() -> None:
    spoilt = bytearray(build_batch(RECORDS))
    spoilt[-1] ^= 1
    part = replace(PART, start=25)
    found = decoded(bytes(spoilt) + build_batch(RECORDS, base_offset=20), part)
    assert column(found, "offset") == list(range(25, 40))


@pytest.mark.parametrize("magic", [0, 1])
def test_formats_before_kafka_0_11_are_refused_by_name(magic: int) -> None:
    message = struct.pack(">qiIbb", 40, 14, 0, magic, 0) + bytes(20)
    with pytest.raises(InvalidBatch, match=r"before Kafka 0\.11"):
        decoded(message)


def test_what_comes_before_a_bad_batch_is_read_first() -> None:
    bad = bytearray(build_batch(RECORDS, base_offset=20))
    bad[16] = 1
    assert len(decoded(build_batch(RECORDS) + bytes(bad))) == 1


def test_batches_that_overlap_are_refused() -> None:
    data = build_batch(RECORDS, base_offset=40) + build_batch(RECORDS, base_offset=59)
    with pytest.raises(InvalidBatch, match="the batch at offset 59: it comes after later offsets"):
        decoded(data)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("record_count", -1, "impossible offset or record count"),
        ("last_offset_delta", -1, "impossible offset or record count"),
        ("base_offset", -5, "impossible offset or record count"),
    ],
)
def test_impossible_headers_are_refused(field: str, value: int, reason: str) -> None:
    with pytest.raises(InvalidBatch, match=reason):
        decoded(made(b"", 0, **{field: value}))


def test_a_length_too_small_for_a_batch_is_refused() -> None:
    data = bytearray(build_batch(RECORDS))
    data[8:12] = struct.pack(">i", -3)
    with pytest.raises(InvalidBatch, match="its length is too small"):
        decoded(bytes(data))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="no record"),
        pytest.param(b"\x0e\0\0\0\1", id="cut off"),
        pytest.param(b"\x0c\0\0\0\1\xfe\xff\xff\x0f", id="a value longer than the batch"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", id="no varint"),
        pytest.param(b"\1\0\0\0\1\1\0", id="a negative length"),
        pytest.param(b"\x0c\0\0\0\1\1\2", id="a header that is not there"),
        pytest.param(b"\x0c\0\0\0\1\1\1", id="a negative number of headers"),
        pytest.param(b"\x0c\0\0\2\1\1\0", id="an offset behind the batch"),
        pytest.param(b"\x0c\0\0\1\1\1\0", id="an offset before the batch"),
        pytest.param(b"\x0c\0\0\0\1\1\0\0\0", id="bytes left over"),
        pytest.param(b"\x10\0\0\0\1\1\0\0\0", id="a record with too much in it"),
    ],
)
def test_records_that_make_no_sense_are_refused_with_their_place(body: bytes) -> None:
    with pytest.raises(InvalidBatch, match="partition 3 of topic orders, the batch at offset 40"):
        decoded(made(body, 1))


def test_a_time_that_spark_cannot_hold_is_refused() -> None:
    data = build_batch([(1 << 60, None, b"", ())])
    with pytest.raises(InvalidBatch, match="too large for Spark"):
        decoded(data)


def test_a_bomb_is_stopped_at_the_limit() -> None:
    data = build_batch([(0, None, bytes(5 << 20), ())], compression=Compression.ZSTD)
    assert len(data) < 10_000
    with pytest.raises(InvalidBatch, match="offset 0: zstd: more than 1048576 bytes"):
        decoded(data, max_decompressed=1 << 20)


def test_content_that_is_not_of_its_codec_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="the batch at offset 40: gzip"):
        decoded(made(b"this is not gzip", 1, attributes=Compression.GZIP))


def test_batches_that_compaction_emptied_have_no_rows() -> None:
    data = made(b"", 0, last_offset_delta=9)
    data += made(compress(Compression.ZSTD, b""), 0, attributes=4, base_offset=60)
    assert decoded(data) == []


def test_a_record_larger_than_a_usual_batch_comes_alone() -> None:
    large = bytes(columns.USUAL_BYTES + 5)
    records = [(0, b"k", b"small", ()), (0, large, large, [("h", large)]), (0, b"k", b"small", ())]
    found = decoded(build_batch(records, base_offset=7), columns=ALL)
    assert column(found, "offset") == [7, 8, 9]
    assert [len(value) for value in column(found, "value")] == [5, len(large), 5]
    assert column(found, "headers")[1] == [{"key": "h", "value": large}]


def test_no_batch_grows_far_beyond_what_is_usual() -> None:
    records = [(0, None, bytes(1 << 20), ())] * 20
    found = decoded(build_batch(records))
    assert len(column(found, "value")) == 20
    assert max(batch.nbytes for batch in found) < columns.USUAL_BYTES * 1.1


def test_records_without_headers_have_an_empty_list() -> None:
    found = decoded(build_batch(RECORDS), columns=ALL)
    assert column(found, "headers") == [[]] * 20
    assert found[0].column("headers").null_count == 0


def test_header_keys_that_are_no_text_are_made_readable_as_in_java() -> None:
    record = b"\0\0\0\1\1\2\4\xff\xfe\2v"
    found = decoded(made(bytes([len(record) << 1]) + record, 1), columns=ALL)
    assert column(found, "headers") == [[{"key": "\ufffd\ufffd", "value": b"v"}]]


def test_the_broker_s_time_is_every_record_s_time_where_it_sets_them() -> None:
    data = made(b"\x0c\0\x10\0\1\1\0", 1, attributes=8, base_timestamp=5, max_timestamp=77)
    [batch] = decoded(data)
    assert batch.column("timestampType").to_pylist() == [1]
    assert batch.column("timestamp").cast("int64").to_pylist() == [77_000]


def test_no_time_is_the_millisecond_before_1970_as_in_sparks_connector() -> None:
    [batch] = decoded(build_batch([(-1, None, None, ())]))
    assert batch.column("timestamp").cast("int64").to_pylist() == [-1_000]


def test_a_machine_without_native_code_is_told_once_that_it_is_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(walker, "COLUMN_LOOPS", None)
    monkeypatch.setattr(walker, "WHY_PLAIN", "it was not built")
    kernel._load.cache_clear()
    try:
        for _ in range(2):
            assert column(decoded(build_batch(RECORDS)), "offset") == list(range(20))
    finally:
        kernel._load.cache_clear()
    [line] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert line.startswith(
        "Records are decoded in plain Python, some thirty times slower: it was not built; install "
    )
