"""Walking the batches of a `.log` file by their headers.

Reads that follow an index look at a few small batches in a few kilobytes, or at one batch of a
megabyte: one block is read, used as far as it goes, and the next read starts at the batch that was
not in it. Bodies of large batches are never touched.

An index may be wrong: one bit of it that flips would lead a reader into the middle of a batch, or
past the records it wants, and nobody would miss them. So where a look-up begins is held against the
log itself (`find`, `is_start`), and when the index has misled, its positions are tried until one is
sound (`soundest_start`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.records.batch import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ottla.runtime.files import Readable

_BLOCK = 8192
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_PLACE = struct.Struct(">qi11xi")
"""Base offset, length, and, behind epoch, magic, CRC and attributes, the last offset delta."""


def walk(file: Readable, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch from `position` (where one begins) to `end`."""
    make = BatchHeader._make
    unpack = HEADER.unpack_from
    while position + HEADER_SIZE <= end:
        block = file.pread(min(_BLOCK, end - position), position)
        start = position
        usable = len(block) - HEADER_SIZE
        if usable < 0:
            return
        while position - start <= usable:
            header = make(unpack(block, position - start))
            size = header.length + LOG_OVERHEAD
            if header.length < _MIN_LENGTH or header.magic != MAGIC:
                raise corrupt(file, position)
            if position + size > end:
                return
            yield position, header
            position += size


class Misled(Exception):
    """An index named a position where no batch begins, or one behind the wanted offset."""


def find(
    file: Readable, offset: int, position: int, end: int, *, floor: int = 0
) -> tuple[int, int] | None:
    """Position and size of the first whole batch, from `position` on, that ends at or after
    `offset`; None when there is none before `end`.

    Raises Misled if the batch at `position` cannot be the one to begin with: its offset is at or
    after `floor`, and not after `offset`. The file's beginning is always right.
    """
    unpack = _PLACE.unpack_from
    checked = position == 0
    if not checked and not 0 < position <= end - HEADER_SIZE:
        raise Misled
    while position + HEADER_SIZE <= end:
        block = file.pread(min(_BLOCK, end - position), position)
        start = position
        usable = len(block) - HEADER_SIZE
        if usable < 0:
            return None
        if not checked:
            first = _base_offset(block, end - position, floor)
            if first is None or first > offset:
                raise Misled
            checked = True
        while position - start <= usable:
            base, length, delta = unpack(block, position - start)
            if length < _MIN_LENGTH:
                raise corrupt(file, position)
            size = length + LOG_OVERHEAD
            if base + delta >= offset:
                return (position, size) if position + size <= end else None
            position += size
    return None


def is_start(file: Readable, position: int, end: int, floor: int, offset: int) -> bool:
    """Whether a look-up of `offset` may begin at `position`, as `find` says."""
    if position == 0:
        return True
    if not 0 < position <= end - HEADER_SIZE:
        return False
    base = _base_offset(file.pread(HEADER_SIZE, position), end - position, floor)
    return base is not None and base <= offset


def soundest_start(
    file: Readable, positions: Sequence[int], offset: int, end: int, floor: int
) -> int:
    """Where to begin when the index has misled: the last of its positions that `is_start`; found
    by bisection over the batches that are there, whatever the index says about their offsets."""
    best = low = 0
    high = len(positions)
    while low < high:
        middle = (low + high) // 2
        slot, base = middle, None
        while slot >= low:
            position = positions[slot]
            if best < position <= end - HEADER_SIZE:
                block = file.pread(HEADER_SIZE, position)
                base = _base_offset(block, end - position, floor)
                if base is not None:
                    break
            slot -= 1
        if base is not None and base > offset:
            high = slot
        else:
            if base is not None:
                best = positions[slot]
            low = middle + 1
    return best


def _base_offset(block: bytes | bytearray, room: int, floor: int) -> int | None:
    """The base offset of the batch that begins here, if one does."""
    if len(block) < HEADER_SIZE:
        return None
    base, length, delta = _PLACE.unpack_from(block)
    sound = (
        block[MAGIC_POSITION] == MAGIC
        and _MIN_LENGTH <= length <= room - LOG_OVERHEAD
        and floor <= base
        and delta >= 0
    )
    return base if sound else None


def corrupt(file: Readable, position: int) -> KafkaError:
    """A read came across bytes that are no batch: what Kafka answers with CORRUPT_MESSAGE."""
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"{file.path} holds no record batch at position {position}"
    )
