"""Whatever the bytes are, reading them gives records or InvalidBatch, and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records.batch import InvalidBatch, batches, read_header
from ottla.records.builder import build_batch
from ottla.records.compression import Compression, decompress
from ottla.records.control import read_end_marker
from ottla.records.reader import iter_outlines, iter_records, payload

SMALL = 1024 * 1024

WELL_FORMED = [
    build_batch(
        [(1000 + n, b"k" * n, b"v" * (n * 9), (("h", b"x"),) * (n % 3)) for n in range(20)],
        compression=codec,
    )
    for codec in Compression
]


def read_everything(data: bytes) -> None:
    try:
        header = read_header(data)
        if header.is_control:
            read_end_marker(data, header)
        count = sum(1 for _ in iter_records(data, header, max_decompressed=SMALL))
        outlines = iter_outlines(payload(data, header, max_decompressed=SMALL), count)
        assert sum(1 for _ in outlines) == count
    except InvalidBatch:
        pass


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_do_no_harm(data: bytes) -> None:
    read_everything(data)
    try:
        list(batches(data))
    except InvalidBatch:
        pass


@given(
    st.sampled_from(WELL_FORMED),
    st.lists(st.tuples(st.floats(0, 0.999999), st.integers(0, 255)), min_size=1, max_size=6),
)
@settings(max_examples=500, deadline=None)
def test_damaged_batches_do_no_harm(batch: bytes, damage: list[tuple[float, int]]) -> None:
    data = bytearray(batch)
    for place, value in damage:
        data[int(place * len(data))] = value
    read_everything(bytes(data))


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_damaged_compressed_data_does_no_harm(codec: Compression) -> None:
    rng = random.Random(codec)
    packed = WELL_FORMED[codec][61:]
    for _ in range(2000):
        data = bytearray(packed)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert len(decompress(codec, data[: rng.randint(1, len(data))], SMALL)) <= SMALL
        except InvalidBatch:
            pass
