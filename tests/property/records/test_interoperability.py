"""Our batches and those of three other implementations, read by one another.

aiokafka brings every codec with its own xerial framing; kafka-python and kio read and write what
they can without further packages.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from aiokafka.record.default_records import (
    DefaultRecordBatch as AiokafkaBatch,
)
from aiokafka.record.default_records import (
    DefaultRecordBatchBuilder as AiokafkaBuilder,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import (
    DefaultRecordBatch as KafkaPythonBatch,
)
from kafka.record.default_records import (
    DefaultRecordBatchBuilder as KafkaPythonBuilder,
)
from kio.records.readers import read_batch as kio_read_batch
from kio.records.writers import write_batch as kio_write_batch

from ottla.records.batch import checksum_ok, read_header
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.reader import iter_records

Fields = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

TIMES = st.integers(0, 2**44)
CONTENT = st.one_of(st.none(), st.binary(max_size=200), st.just(b"abc" * 5000))
HEADERS = st.lists(st.tuples(st.text(max_size=10), st.one_of(st.none(), st.binary(max_size=20))))
RECORDS = st.lists(st.tuples(TIMES, CONTENT, CONTENT, HEADERS), min_size=1, max_size=30)
CODECS = st.sampled_from(Compression)
OFFSETS = st.integers(0, 2**62)


def ours(records: list[Fields], **fields: Any) -> bytes:
    return build_batch(records, **fields)


def read_by_us(batch: bytes) -> list[Fields]:
    header = read_header(batch)
    assert checksum_ok(batch, 0, header)
    got = list(iter_records(batch, header))
    assert [record.offset for record in got] == [
        header.base_offset + n for n in range(header.record_count)
    ]
    return [(r.timestamp, r.key, r.value, list(r.headers)) for r in got]


@given(RECORDS, CODECS, OFFSETS)
@settings(max_examples=150, deadline=None)
def test_aiokafka_reads_ours(records: list[Fields], codec: Compression, offset: int) -> None:
    batch = ours(
        records,
        compression=codec,
        base_offset=offset,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
    )
    theirs = AiokafkaBatch(batch)
    assert theirs.validate_crc()
    assert theirs.compression_type == codec
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (5, 1, 9)
    got = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs]
    assert got == [
        (offset + n, time, key, value, headers)
        for n, (time, key, value, headers) in enumerate(records)
    ]


@given(RECORDS, CODECS)
@settings(max_examples=150, deadline=None)
def test_we_read_aiokafkas(records: list[Fields], codec: Compression) -> None:
    builder = AiokafkaBuilder(2, int(codec), 0, 5, 1, 9, 2**24)
    for n, (time, key, value, headers) in enumerate(records):
        assert builder.append(n, time, key, value, headers)
    assert read_by_us(bytes(builder.build())) == records


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
@given(RECORDS)
@settings(max_examples=50, deadline=None)
def test_kafka_python_reads_ours_and_we_read_its(codec: Compression, records: list[Fields]) -> None:
    theirs = KafkaPythonBatch(ours(records, compression=codec))
    assert theirs.validate_crc()
    assert [(r.timestamp, r.key, r.value, r.headers) for r in theirs] == records

    builder = KafkaPythonBuilder(2, int(codec), 0, 5, 1, 9, 2**24)
    for n, (time, key, value, headers) in enumerate(records):
        assert builder.append(n, time, key, value, headers)
    assert read_by_us(bytes(builder.build())) == records


@given(RECORDS, OFFSETS)
@settings(max_examples=100, deadline=None)
def test_kio_reads_ours_and_writes_the_same_bytes(records: list[Fields], offset: int) -> None:
    # Whole seconds: kio keeps timestamps in floats.
    records = [(time // 1000 * 1000, *rest) for time, *rest in records]
    batch = ours(records, base_offset=offset, leader_epoch=3, producer_id=7, transactional=True)
    theirs, size = kio_read_batch(batch, 0)
    assert size == len(batch)
    assert [
        (r.offset, r.key, r.value, [(h.key.decode(), h.value) for h in r.headers])
        for r in theirs.records
    ] == [(offset + n, key, value, heads) for n, (_, key, value, heads) in enumerate(records)]
    buffer = io.BytesIO()
    kio_write_batch(buffer, theirs)
    assert buffer.getvalue() == batch
