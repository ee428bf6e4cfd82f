"""Which partition of an internal topic keeps a group, or a transactional id: Java's hash of it."""

from __future__ import annotations

import functools

SHORT_KEY = 256
"""Characters of a key up to which its hash is remembered."""
_INT = 0xFFFFFFFF


def key_hash(key: str) -> int:
    """Java's `String.hashCode`, made positive as Kafka does (its abs of the least int is 0)."""
    return _short_hash(key) if len(key) <= SHORT_KEY else _long_hash(key)


@functools.lru_cache(maxsize=16_384)
def _short_hash(key: str) -> int:
    value = 0
    units = _utf16(key)
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _INT
    return _positive(value)


def _long_hash(key: str) -> int:
    """The same for very long keys, which only a hostile client has: not one character after the
    other, which takes milliseconds, but all at once. They are the digits of a large number, 64 bits
    each, whose upper half is folded into the lower one until one digit is left."""
    units = _utf16(key)
    count = len(units) // 2
    size = 1 << (count - 1).bit_length()  # zeros in front change nothing
    digits = bytearray(8 * size)
    digits[8 * (size - count) + 6 :: 8] = units[::2]
    digits[8 * (size - count) + 7 :: 8] = units[1::2]
    number = int.from_bytes(digits, "big")
    while size > 1:
        size //= 2
        mask = _ints(size)
        upper, lower = number >> 64 * size, number & mask
        number = upper * pow(31, size, 1 << 32) + lower & mask
    return _positive(number)


@functools.lru_cache(maxsize=16)
def _ints(count: int) -> int:
    """A mask: the lower half of so many digits."""
    return int.from_bytes(b"\0\0\0\0\xff\xff\xff\xff" * count, "big")


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _positive(value: int) -> int:
    if value >= 1 << 31:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value
