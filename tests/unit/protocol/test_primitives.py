"""Varints and tagged sections, below the generated code."""

from __future__ import annotations

import pytest

from ottla.protocol.primitives import (
    DecodeError,
    Repeated,
    read_uvarint,
    skip_tagged_fields,
    uvarint,
)

EDGES = [0, 1, 127, 128, 300, 16383, 16384, 2097151, 2097152, (1 << 28) - 1, 1 << 28, (1 << 32) - 1]


@pytest.mark.parametrize("value", EDGES)
def test_an_unsigned_varint_reads_back(value: int) -> None:
    encoded = uvarint(value)

    assert read_uvarint(memoryview(b"?" + encoded + b"?"), 1) == (value, len(encoded) + 1)


def test_varint_bytes_are_seven_bits_lowest_first() -> None:
    assert uvarint(0) == b"\x00"
    assert uvarint(127) == b"\x7f"
    assert uvarint(128) == b"\x80\x01"
    assert uvarint(300) == b"\xac\x02"
    assert uvarint(1 << 21) == b"\x80\x80\x80\x01"


def test_a_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(DecodeError, match="five bytes"):
        read_uvarint(memoryview(b"\xff\xff\xff\xff\xff\x01"), 0)


def test_a_varint_cut_short_is_an_index_error_for_the_caller_to_name() -> None:
    with pytest.raises(IndexError):
        read_uvarint(memoryview(b"\x80"), 0)


def test_unknown_tagged_fields_are_stepped_over() -> None:
    section = memoryview(b"\x05\x03abc\x81\x01\x00rest")

    assert skip_tagged_fields(section, 0, 2) == len(section) - 4


def test_more_tagged_fields_than_any_message_has_are_refused() -> None:
    section = memoryview(uvarint(64) + b"\x07\x01x" * 64)
    assert skip_tagged_fields(section, 1, section[0]) == len(section)
    for count in (65, 200, 50_000_000):
        section = memoryview(uvarint(count) + b"\x07\x01x" * 200)
        with pytest.raises(DecodeError, match=f"{count} tagged fields in one place"):
            skip_tagged_fields(section, 1, section[0])


def test_a_tagged_field_longer_than_the_buffer_is_refused() -> None:
    with pytest.raises(DecodeError, match="exceeds"):
        skip_tagged_fields(memoryview(b"\x00\xff\xff\xff\xff\x0f"), 0, 1)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 1000])
def test_arrays_of_numbers_of_any_length_read_back(count: int) -> None:
    numbers = Repeated("i")
    values = [(-1) ** n * n for n in range(count)]

    packed = numbers.pack(values)

    assert len(packed) == 4 * count
    assert numbers.unpack(memoryview(packed), 0, count) == values
