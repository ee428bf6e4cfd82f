"""Walking the batches of a `.log` file by their headers.

Reads that follow an index look at a few small batches in a few kilobytes, or at one batch of a
megabyte: one block is read, used as far as it goes, and the next read starts at the batch that was
not in it. Bodies of large batches are never touched.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def find(file: Readable, offset: int, position: int, end: int) -> tuple[int, int] | None:
    """Position and size of the first whole batch, from `position` on, that ends at or after
    `offset`; None when there is none before `end`."""
    unpack = _PLACE.unpack_from
    while position + HEADER_SIZE <= end:
        block = file.pread(min(_BLOCK, end - position), position)
        start = position
        usable = len(block) - HEADER_SIZE
        if usable < 0:
            return None
        while position - start <= usable:
            base, length, delta = unpack(block, position - start)
            if length < _MIN_LENGTH:
                raise corrupt(file, position)
            size = length + LOG_OVERHEAD
            if base + delta >= offset:
                return (position, size) if position + size <= end else None
            position += size
    return None


def corrupt(file: Readable, position: int) -> KafkaError:
    """A read came across bytes that are no batch: what Kafka answers with CORRUPT_MESSAGE."""
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"{file.path} holds no record batch at position {position}"
    )
