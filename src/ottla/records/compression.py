"""The four codecs of record batches, decompressed under a limit.

The door to `cramjam`. What comes in was sent by strangers: a kilobyte of zstd can stand for ten
gigabytes. So nothing is ever decompressed into a buffer that grows by itself: the output has a
fixed size, starts at a guess, and is retried larger until it fits or the limit is reached; the
codec stops at the first byte too many. Memory is bounded by the limit and the time by a third more
than one decompression to it.

Dialects, found by what Kafka's Java code reads and writes:

- snappy comes raw (librdkafka) or in xerial frames (Java: a magic word, then length-prefixed
  blocks). Both are read. Frames are written, which everybody reads.
- lz4 frames must have independent blocks: Java refuses linked ones. And its level 9, the default,
  is the fast compressor, not the high one.
- zstd frames mostly carry no content size.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Any

import cramjam

from ottla.records.errors import InvalidBatch, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

MAX_DECOMPRESSED = 128 * 1024 * 1024
"""The default limit: far above what any client puts in one batch, far below a machine's memory."""

_FIRST_GUESS = 64 * 1024
_GROWTH = 4

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest compatible version
_XERIAL_BLOCK = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")

_LZ4_FAST = 9
_LZ4_HIGHEST = 12


class Compression(enum.IntEnum):
    """The codecs by their number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, number: int) -> Compression:
        """The codec with this number, or InvalidBatch."""
        try:
            return _BY_NUMBER[number]
        except IndexError:
            raise InvalidBatch(f"unknown compression type id: {number}") from None

    @classmethod
    def named(cls, name: str) -> Compression:
        """The codec by its name in a config: `none` and `uncompressed` are the same."""
        return cls.NONE if name == "uncompressed" else cls[name.upper()]


_BY_NUMBER = tuple(Compression)

DEFAULT_LEVELS = {Compression.GZIP: -1, Compression.LZ4: _LZ4_FAST, Compression.ZSTD: 3}
"""Kafka's `compression.<codec>.level` defaults; gzip's -1 is zlib's own choice, 6."""


def compress(codec: Compression, data: ReadableBuffer, level: int | None = None) -> bytes:
    """`data` as one compressed block; `level` on Kafka's scale for that codec."""
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.SNAPPY:
        return _compress_xerial(data)
    if level is None:
        level = DEFAULT_LEVELS[codec]
    if codec is Compression.GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level < 0 else level))
    if codec is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    lz4 = cramjam.lz4.Compressor(
        level=0 if level == _LZ4_FAST else min(level, _LZ4_HIGHEST),
        content_checksum=False,
        block_linked=False,
    )
    lz4.compress(bytes(data))  # this one takes no other buffer
    return bytes(lz4.finish())


def decompress(
    codec: Compression, data: ReadableBuffer, limit: int = MAX_DECOMPRESSED, *, expected: int = 0
) -> bytes:
    """The content, or InvalidBatch when it is corrupt or would be larger than `limit`.

    Who knows about how large the content is says so with `expected`, and saves a second attempt.
    """
    if codec is Compression.NONE:
        return bytes(data)
    view = memoryview(data)
    if codec is Compression.SNAPPY:
        return _decompress_snappy(view, limit)
    if codec is Compression.GZIP:
        return _decompress_into(cramjam.gzip.decompress_into, codec, view, limit, expected)
    if codec is Compression.LZ4:
        return _decompress_into(cramjam.lz4.decompress_into, codec, view, limit, expected)
    return _decompress_into(cramjam.zstd.decompress_into, codec, view, limit, expected)


def _decompress_into(
    into: Callable[[Any, Any], int],
    codec: Compression,
    data: memoryview,
    limit: int,
    expected: int,
) -> bytes:
    size = min(limit, max(_FIRST_GUESS, _GROWTH * data.nbytes, expected))
    while True:
        out = bytearray(size)
        try:
            written = into(data, out)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise InvalidBatch(f"{codec.name.lower()}: {error}") from None
        else:
            return bytes(memoryview(out)[:written])
        del out  # before there is a larger one
        if size >= limit:
            raise _too_large(codec, limit)
        size = min(limit, size * _GROWTH)


def _too_large(codec: Compression, limit: int) -> TooLarge:
    return TooLarge(f"{codec.name.lower()}: more than {limit} bytes when decompressed")


def _compress_xerial(data: ReadableBuffer) -> bytes:
    view = memoryview(data).cast("B")
    parts = [_XERIAL_HEADER]
    for start in range(0, view.nbytes, _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, limit)
    parts: list[bytes] = []
    position = len(_XERIAL_HEADER)
    end = data.nbytes
    if end < position:
        raise InvalidBatch("snappy: the xerial header is cut off")
    while position < end:
        if position + 4 > end:
            raise InvalidBatch("snappy: a block length is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += 4
        if length < 0 or position + length > end:
            raise InvalidBatch(f"snappy: a block of {length} bytes, {end - position} are left")
        block = _decompress_snappy_block(data[position : position + length], limit)
        limit -= len(block)
        parts.append(block)
        position += length
    return b"".join(parts)


def _decompress_snappy_block(data: memoryview, limit: int) -> bytes:
    try:
        # The block begins with its size: it is checked before anything is allocated for it.
        if cramjam.snappy.decompress_raw_len(data) > limit:
            raise _too_large(Compression.SNAPPY, limit)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise InvalidBatch(f"snappy: {error}") from None
