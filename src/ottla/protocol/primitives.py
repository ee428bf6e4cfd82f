"""What generated codecs share: the two failures, and the slow paths of variable-length integers.

Generated code inlines the common case (a length below 128 is one byte) and comes here for
the rest. All integers are big-endian; an unsigned varint carries seven bits a byte, lowest
first, and at most five bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from typing import NoReturn, TypeAlias

Part: TypeAlias = bytes | bytearray | memoryview | Sized
"""One piece of an encoded message: bytes, or an object with a length that the network layer
knows how to send (a region of a file)."""

MAX_STRING = 0x7FFF
MAX_TAGS = 64
"""Tagged fields in one place. Kafka's messages have at most six; each takes two bytes or more, and
longer to step over."""
ZERO_UUID = bytes(16)


class DecodeError(ValueError):
    """Bytes that are not the message they claim to be."""


class EncodeError(ValueError):
    """A message that cannot be written in the wanted version."""


class NotInVersion(EncodeError):
    """A field that the version of the message does not have, and that says something."""


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint: (value, position after it). IndexError when the buffer ends."""
    value = buffer[position]
    position += 1
    if value < 0x80:
        return value, position
    return continue_uvarint(buffer, position, value)


def continue_uvarint(buffer: memoryview, position: int, first: int) -> tuple[int, int]:
    """Read what follows `first`, a byte whose high bit is set and that lies before `position`."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DecodeError("a varint is longer than five bytes")


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))
_pack_two = struct.Struct("BB").pack
_pack_three = struct.Struct("BBB").pack


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return _pack_two(value & 0x7F | 0x80, value >> 7)
    if value < 0x200000:
        return _pack_three(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def too_many_tags(count: int) -> NoReturn:
    raise DecodeError(f"{count} tagged fields in one place, more than {MAX_TAGS}")


def skip_tagged_fields(buffer: memoryview, position: int, count: int) -> int:
    """Step over tagged fields that nobody here knows; their end position.

    `count` is the first byte of how many there are, already read.
    """
    if count > 0x7F:
        count, position = continue_uvarint(buffer, position, count)
    if count > MAX_TAGS:
        too_many_tags(count)
    end = len(buffer)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise DecodeError(f"a tagged field of {size} bytes exceeds the buffer")
    return position


_SMALL = 64


class Repeated:
    """Pack and unpack functions for n values of one fixed-width type, for any n.

    Short arrays (replica lists) take a ready-made `struct.Struct`; long ones go through the
    `struct` module with a format made on the spot.
    """

    __slots__ = ("_code", "_structs")

    def __init__(self, code: str) -> None:
        self._code = code
        self._structs = tuple(struct.Struct(f">{count}{code}") for count in range(_SMALL))

    def unpack(self, buffer: memoryview, position: int, count: int) -> list[int]:
        if count < _SMALL:
            return list(self._structs[count].unpack_from(buffer, position))
        return list(struct.unpack_from(f">{count}{self._code}", buffer, position))

    def pack(self, values: Sequence[int]) -> bytes:
        count = len(values)
        if count < _SMALL:
            return self._structs[count].pack(*values)
        return struct.pack(f">{count}{self._code}", *values)
