"""Zigzag varints."""

from __future__ import annotations

import pytest

from ottla.records import varint
from ottla.records.errors import InvalidBatch

MAX_LONG = 2**63 - 1

VECTORS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
    (MAX_LONG, "feffffffffffffffff01"),
    (-MAX_LONG - 1, "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("value", "encoded"), VECTORS)
def test_values_are_written_and_read_as_kafka_does(value: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert varint.encode(value) == data
    assert varint.decode(data, 0) == (value, len(data))


def test_reading_goes_on_after_the_varint() -> None:
    data = b"\xff" + varint.encode(300) + varint.encode(-5)
    value, position = varint.decode(data, 1)
    assert value == 300
    assert varint.decode(data, position) == (-5, len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff"])
def test_a_varint_that_runs_past_the_end_is_invalid(data: bytes) -> None:
    with pytest.raises(InvalidBatch, match="past the end"):
        varint.decode(data, 0)


def test_a_varint_of_eleven_bytes_is_invalid() -> None:
    with pytest.raises(InvalidBatch, match="more than 64 bits"):
        varint.decode(b"\x80" * 10 + b"\x01", 0)


def test_the_table_of_short_varints_agrees_with_encode() -> None:
    for value in range(64):
        assert varint.SHORT[value << 1] == varint.encode(value)
