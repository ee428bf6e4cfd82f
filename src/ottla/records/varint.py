"""Zigzag varints, as records use for every length, delta and count.

The loops in `reader` and `builder` inline the one-byte case, which is nearly all of them in
practice; these functions are the rest of the way and the whole of it elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.records.errors import InvalidBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_BYTES = 10  # a 64-bit value in groups of seven bits


def encode(value: int) -> bytes:
    """`value` (64-bit signed) as a varint."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return SHORT[rest]
    out = bytearray()
    while rest >= 0x80:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode(data: Sequence[int], position: int) -> tuple[int, int]:
    """The value at `position` and the position after it; over ten bytes is not a varint."""
    result = 0
    try:
        for shift in range(0, 7 * _MAX_BYTES, 7):
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1), position
    except IndexError:
        raise InvalidBatch(f"a varint runs past the end of the data at byte {position}") from None
    raise InvalidBatch(f"a varint before byte {position} has more than {_MAX_BYTES} bytes")


def size_of(value: int) -> int:
    """How many bytes `encode` gives."""
    return max(1, (((value << 1) ^ (value >> 63)).bit_length() + 6) // 7)


SHORT: tuple[bytes, ...] = tuple(bytes((number,)) for number in range(0x80))
"""The one-byte varints by their zigzag value: `SHORT[value << 1]` for 0 <= value < 64."""
