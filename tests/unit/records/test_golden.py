"""Batches written by Apache Kafka 4.2's own Java code, one of each codec, read here."""

from __future__ import annotations

import pytest

from ottla.records.batch import checksum_ok, read_header
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.reader import Record, iter_records

# MemoryRecords.builder(magic 2, codec, CREATE_TIME, base offset 1000, producer id 77, epoch 3,
# sequence 2147483646, transactional, leader epoch 9) with the three records below.
GOLDEN = {
    "none": bytes.fromhex(
        "00000000000003e800000185000000090291f310f10010000000020000018bcfe568000000018bcf"
        "e56805000000000000004d00037ffffffe000000032a000000066b65790a76616c75650402680278"
        "026e01e604000a0201d8046161616161616161616161616161616161616161616161616161616161"
        "61616161616161616161616161616161616161616161616161616161616161616161616161616161"
        "61616161616161616161616161616161616161616161616161616161616161616161616161616161"
        "61616161616161616161616161616161616161616161616161616161616161616161616161616161"
        "61616161616161616161616161616161616161616161616161616161616161616161616161616161"
        "61616161616161616161616161616161616161616161616161616161616161616161616161616161"
        "61616161616161616161616161616161616161616161616161616161616161616161616161616161"
        "616161616161616161616161616161616161616161616161616161616161610010000104046b3201"
        "00"
    ),
    "gzip": bytes.fromhex(
        "00000000000003e80000007100000009023bead1e20011000000020000018bcfe568000000018bcf"
        "e56805000000000000004d00037ffffffe000000031f8b08000000000000ffd362606060cb4eade4"
        "2a4bcc294d6561ca60aa60ca637cc6c2c0c5c47883257114100d180418185958b28d1819002e1adf"
        "e154010000"
    ),
    "snappy": bytes.fromhex(
        "00000000000003e8000000810000000902e8d2ea3a0012000000020000018bcfe568000000018bcf"
        "e56805000000000000004d00037ffffffe0000000382534e41505059000000000100000001000000"
        "3cd402782a000000066b65790a76616c75650402680278026e01e604000a0201d80461fe0100fe01"
        "00fe0100fe0100aa0100240010000104046b320100"
    ),
    "lz4": bytes.fromhex(
        "00000000000003e8000000700000000902b3d499e40013000000020000018bcfe568000000018bcf"
        "e56805000000000000004d00037ffffffe0000000304224d1860408230000000ff102a000000066b"
        "65790a76616c75650402680278026e01e604000a0201d804610100ff19a00010000104046b320100"
        "00000000"
    ),
    "zstd": bytes.fromhex(
        "00000000000003e80000006e0000000902f2b85ec00014000000020000018bcfe568000000018bcf"
        "e56805000000000000004d00037ffffffe0000000328b52ffd00588c010094022a000000066b6579"
        "0a76616c75650402680278026e01e604000a0201d804610010000104046b3201000100a3a8c00901"
        "0000"
    ),
}

RECORDS = [
    Record(1000, 1700000000000, b"key", b"value", (("h", b"x"), ("n", None))),
    Record(1001, 1700000000005, None, b"a" * 300, ()),
    Record(1002, 1699999999999, b"k2", None, ()),
]


@pytest.mark.parametrize("codec", GOLDEN)
def test_a_batch_made_by_java_is_read(codec: str) -> None:
    batch = GOLDEN[codec]
    header = read_header(batch)
    assert header.size == len(batch)
    assert header.compression is Compression.named(codec)
    assert header.base_offset == 1000
    assert header.last_offset == 1002
    assert header.leader_epoch == 9
    assert header.max_timestamp == 1700000000005
    assert (header.producer_id, header.producer_epoch) == (77, 3)
    assert (header.base_sequence, header.last_sequence) == (2147483646, 0)
    assert header.is_transactional
    assert not header.is_control
    assert checksum_ok(batch, 0, header)
    assert list(iter_records(batch)) == RECORDS


def test_an_uncompressed_batch_is_byte_for_byte_javas() -> None:
    ours = build_batch(
        [record[1:] for record in RECORDS],
        base_offset=1000,
        producer_id=77,
        producer_epoch=3,
        base_sequence=2147483646,
        leader_epoch=9,
        transactional=True,
    )
    assert ours == GOLDEN["none"]
