"""The codecs, and what they do to corrupt or hostile input."""

from __future__ import annotations

import random
import struct
import tracemalloc

import cramjam
import pytest

from ottla.records.batch import InvalidBatch
from ottla.records.compression import Compression, compress, decompress

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
MEGABYTE = 1024 * 1024


def sample(size: int) -> bytes:
    rng = random.Random(size)
    return b"".join(rng.randbytes(8) + b"-" * 24 for _ in range(size // 32 + 1))[:size]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("size", [0, 1, 100, 32 * 1024, 32 * 1024 + 1, 300_000])
def test_what_goes_in_comes_out(codec: Compression, size: int) -> None:
    data = sample(size)
    packed = compress(codec, data)
    assert decompress(codec, packed) == data
    assert decompress(codec, memoryview(bytearray(packed))) == data


@pytest.mark.parametrize("codec", Compression)
def test_any_buffer_can_be_compressed(codec: Compression) -> None:
    data = sample(5000)
    for buffer in (bytearray(data), memoryview(data)):
        assert decompress(codec, compress(codec, buffer)) == data


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (Compression.GZIP, [-1, 1, 9]),
        (Compression.LZ4, [1, 5, 9, 17]),
        (Compression.ZSTD, [-7, 1, 3, 19]),
        (Compression.SNAPPY, [None]),
    ],
)
def test_every_level_that_kafka_allows_works(codec: Compression, levels: list[int | None]) -> None:
    data = sample(20_000)
    for level in levels:
        assert decompress(codec, compress(codec, data, level)) == data


def test_a_higher_level_compresses_more() -> None:
    data = sample(200_000)
    assert len(compress(Compression.GZIP, data, 9)) < len(compress(Compression.GZIP, data, 1))
    assert len(compress(Compression.LZ4, data, 12)) < len(compress(Compression.LZ4, data, 9))


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    frame = compress(Compression.LZ4, sample(300_000))
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0x20


def test_snappy_is_written_in_xerial_frames() -> None:
    data = sample(70_000)
    packed = compress(Compression.SNAPPY, data)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (first,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == data[: 32 * 1024]


def test_raw_snappy_is_read_too() -> None:
    data = sample(70_000)
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: Compression) -> None:
    data = sample(200_000)
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    with pytest.raises(InvalidBatch, match="more than"):
        decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_cut_off_data_is_invalid(codec: Compression) -> None:
    packed = compress(codec, sample(100_000))
    for keep in (1, 10, 19, len(packed) // 2, len(packed) - 1):
        with pytest.raises(InvalidBatch):
            decompress(codec, packed[:keep])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("junk", [b"\x00" * 50, b"\xff" * 50, b"hello world, hello world"])
def test_junk_is_invalid(codec: Compression, junk: bytes) -> None:
    with pytest.raises(InvalidBatch):
        decompress(codec, junk)


def test_a_xerial_block_with_a_wrong_length_is_invalid() -> None:
    packed = bytearray(compress(Compression.SNAPPY, sample(100)))
    for length in (-1, 2**31 - 1, 1_000):
        struct.pack_into(">i", packed, 16, length)
        with pytest.raises(InvalidBatch, match="a block of"):
            decompress(Compression.SNAPPY, packed)


def test_a_snappy_block_that_claims_four_gigabytes_is_refused_unread() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20
    with pytest.raises(InvalidBatch, match="more than 1048576 bytes"):
        decompress(Compression.SNAPPY, claim, MEGABYTE)


def test_xerial_blocks_share_one_limit() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    framed += (struct.pack(">i", len(block)) + block) * 10
    assert decompress(Compression.SNAPPY, framed, 10_000) == bytes(10_000)
    with pytest.raises(InvalidBatch, match="more than"):
        decompress(Compression.SNAPPY, framed, 9_999)


def zstd_bomb(blocks: int) -> bytes:
    """A zstd frame of run-length blocks: four bytes that stand for 128 KB, each."""
    frame = struct.pack("<IBB", 0xFD2FB528, 0x00, 0x38)  # window of 128 KB
    run = 128 * 1024
    block = struct.pack("<I", run << 3 | 1 << 1)[:3] + b"\x00"
    last = struct.pack("<I", run << 3 | 1 << 1 | 1)[:3] + b"\x00"
    return frame + block * (blocks - 1) + last


def test_the_bomb_of_the_next_test_is_a_real_one() -> None:
    assert decompress(Compression.ZSTD, zstd_bomb(8)) == bytes(MEGABYTE)


def test_a_zstd_bomb_of_ten_gigabytes_costs_no_more_than_the_limit() -> None:
    bomb = zstd_bomb(80_000)
    assert len(bomb) < 330_000
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBatch, match="more than 8388608 bytes"):
            decompress(Compression.ZSTD, bomb, 8 * MEGABYTE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 17 * MEGABYTE


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4])
def test_other_bombs_stop_at_the_limit_too(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 * MEGABYTE))
    with pytest.raises(InvalidBatch, match="more than 1048576 bytes"):
        decompress(codec, bomb, MEGABYTE)


def test_codecs_are_found_by_config_name_and_number() -> None:
    assert Compression.named("uncompressed") is Compression.NONE
    assert Compression.named("zstd") is Compression.ZSTD
    assert [Compression.of(number) for number in range(5)] == list(Compression)
    for number in (5, 6, 7):
        with pytest.raises(InvalidBatch):
            Compression.of(number)
