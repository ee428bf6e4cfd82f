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
_MAX_UNSIGNED = (1 << 64) - 1
_GROUPS = tuple((size, 7 * (size - 1)) for size in range(2, _MAX_BYTES + 1))


def encode(value: int) -> bytes:
    """`value` (64-bit signed) as a varint."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return SHORT[rest]
    if rest < 0x4000:
        return bytes((rest & 0x7F | 0x80, rest >> 7))
    out = bytearray()
    while rest >= 0x80:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode(data: Sequence[int], position: int) -> tuple[int, int]:
    """The value at `position` and the position after it."""
    value, position = decode_unsigned(data, position)
    return (value >> 1) ^ -(value & 1), position


def decode_unsigned(data: Sequence[int], position: int) -> tuple[int, int]:
    """The same before the sign is unfolded from it. Over 64 bits is not a varint."""
    try:
        byte = data[position]
        if byte < 0x80:
            return byte, position + 1
        result = byte
        for size, shift in _GROUPS:
            byte = data[position + size - 1]
            result += (byte - 1) << shift  # and takes back the flag bit of the byte before
            if byte < 0x80:
                if result > _MAX_UNSIGNED:
                    break
                return result, position + size
    except IndexError:
        raise InvalidBatch(f"the varint at byte {position} runs past the end") from None
    raise InvalidBatch(f"the varint at byte {position} has more than 64 bits")


SHORT: tuple[bytes, ...] = tuple(bytes((number,)) for number in range(0x80))
"""The one-byte varints by their zigzag value: `SHORT[value << 1]` for 0 <= value < 64."""
