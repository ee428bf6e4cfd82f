"""Every batch of a segment file, checked: what recovery, `repair` and `log dump` stand on.

One pass over the file verifies lengths, offsets and checksums, and collects on the way what a
segment's indexes must hold. It ends at the end of the file or at the first thing that is no batch;
then the question is whether a batch comes after it, because that tells a torn write from damage.
A header cannot be recognised by its looks alone, but one whose checksum covers the bytes behind it
is a batch beyond reasonable doubt: candidates are found by the few bytes that are known (the high
half of the offset, a length that is not negative, the magic number) and then checked in full.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
)
from ottla.records.checksum import crc32c
from ottla.storage.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY, TIME_ENTRY, big_endian

if TYPE_CHECKING:
    from ottla.runtime.files import FileSystem


class Readable(Protocol):
    """The part of an open file that checking needs."""

    def pread(self, size: int, position: int) -> bytes: ...


Visitor = Callable[[BatchHeader, memoryview], None]
"""Called with each batch that has a producer id, in order."""

_CHUNK = 4 * 1024 * 1024
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_HALF = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Damage:
    """The first place of a segment that is no batch, and what was expected there."""

    position: int
    offset: int
    problem: str
    zeros: bool
    """Nothing but zeros from here on: preallocated space, or an allocation without its data."""
    intact_at: int | None
    """Where the next whole batch begins, if there is one: then this is no torn write."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A segment's whole batches, from its start to its end or to the damage."""

    size: int
    end_offset: int
    max_timestamp: int
    index: bytes
    """What the `.index` of this segment holds."""
    time_index: bytes
    """What the `.timeindex` holds, with the entry that closes it."""
    epochs: tuple[tuple[int, int], ...]
    """Leader epochs newer than all before: (epoch, offset of its first batch)."""
    damage: Damage | None


def check_segment(  # noqa: C901, PLR0912, PLR0915 - runs for every batch of a recovery; one refusal for each damage
    file: Readable,
    base_offset: int,
    size: int,
    *,
    index_interval: int,
    latest_epoch: int = -1,
    visit: Visitor | None = None,
) -> Checked:
    """Check the first `size` bytes of a segment file."""
    index = array("i")
    times: list[bytes] = []
    epochs: list[tuple[int, int]] = []
    next_offset = base_offset
    newest, newest_offset, indexed_time = NO_TIMESTAMP, base_offset, NO_TIMESTAMP
    last_indexed = 0
    position = 0
    problem: str | None = None
    want = _CHUNK
    unpack = HEADER.unpack_from
    while position < size and problem is None:
        chunk = memoryview(file.pread(min(want, size - position), position))
        here = 0
        want = _CHUNK
        while True:
            if here + HEADER_SIZE > len(chunk):
                if position + here + HEADER_SIZE > size and position + here < size:
                    problem = f"only {size - position - here} bytes are left, less than a header"
                break
            fields = unpack(chunk, here)
            base, length, epoch, magic, crc, _, delta = fields[:7]
            end = here + length + LOG_OVERHEAD
            if length < _MIN_LENGTH or magic != MAGIC:
                problem = _no_header(length, magic)
                break
            if position + end > size:
                problem = f"a batch of {length + LOG_OVERHEAD} bytes runs past the end of the file"
                break
            if end > len(chunk):
                want = max(_CHUNK, end - here)
                break
            if crc32c(chunk[here + ATTRIBUTES_POSITION : end]) != crc:
                problem = "the checksum is wrong"
                break
            last = base + delta
            if base < next_offset or delta < 0 or last - base_offset > MAX_RELATIVE_OFFSET:
                problem = f"offset {base} to {last} where {next_offset} is next"
                break
            max_timestamp = fields[8]
            if max_timestamp > newest and fields[12]:  # compaction leaves batches without records
                newest, newest_offset = max_timestamp, last
            at = position + here
            if at - last_indexed > index_interval:
                index.append(last - base_offset)
                index.append(at)
                if newest > indexed_time:
                    times.append(TIME_ENTRY.pack(newest, newest_offset - base_offset))
                    indexed_time = newest
                last_indexed = at
            if epoch > latest_epoch:
                latest_epoch = epoch
                epochs.append((epoch, base))
            if visit is not None and fields[9] >= 0:
                visit(BatchHeader._make(fields), chunk[here:end])
            next_offset = last + 1
            here = end
        position += here
    if newest > indexed_time:
        times.append(TIME_ENTRY.pack(newest, newest_offset - base_offset))
    damage = None
    if problem is not None:
        damage = _assess(file, position, size, next_offset, problem)
    return Checked(
        position,
        next_offset,
        newest,
        big_endian(index).tobytes(),
        b"".join(times),
        tuple(epochs),
        damage,
    )


def check_file(
    fs: FileSystem, path: str, base_offset: int, size: int, index_interval: int
) -> Checked:
    """Check a segment file by its name: for a thread or a child process."""
    file = fs.open(path)
    try:
        return check_segment(file, base_offset, size, index_interval=index_interval)
    finally:
        file.close()


def _no_header(length: int, magic: int) -> str:
    if magic in (0, 1) and length >= 14:
        return f"the message format is {magic}, of Kafka before 0.11, which is not supported"
    return f"there is no batch header (length {length}, magic {magic})"


def _assess(file: Readable, position: int, size: int, offset: int, problem: str) -> Damage:
    if _only_zeros(file, position, size):
        return Damage(position, offset, "nothing but zeros follows", True, None)
    intact_at = find_batch(file, position + 1, size, offset)
    return Damage(position, offset, problem, False, intact_at)


def _only_zeros(file: Readable, position: int, size: int) -> bool:
    while position < size:
        chunk = file.pread(min(_CHUNK, size - position), position)
        if not chunk or chunk.count(0) != len(chunk):
            return False
        position += len(chunk)
    return True


def find_batch(file: Readable, position: int, size: int, offset: int) -> int | None:
    """The position, from `position` on, of the first whole batch at `offset` or a later offset."""
    halves = {_HALF.pack(offset >> 32), _HALF.pack((offset + MAX_RELATIVE_OFFSET) >> 32)}
    # base offset: high half known, low half open; length: not negative; epoch: open; magic: 2.
    pattern = re.compile(
        b"(?=(?:" + b"|".join(map(re.escape, halves)) + rb").{4}[\x00-\x7f].{3}.{4}\x02)",
        re.DOTALL,
    )
    while position + HEADER_SIZE <= size:
        chunk = file.pread(min(_CHUNK, size - position), position)
        for match in pattern.finditer(chunk):
            start = match.start()
            if start + HEADER_SIZE > len(chunk):
                break
            header = BatchHeader._make(HEADER.unpack_from(chunk, start))
            if (
                header.length >= _MIN_LENGTH
                and position + start + header.size <= size
                and offset <= header.base_offset <= offset + MAX_RELATIVE_OFFSET
                and header.last_offset_delta >= 0
                and 0 <= header.record_count <= header.last_offset_delta + 1
                and _checksum_matches(file, position + start, header)
            ):
                return position + start
        position += max(1, len(chunk) - HEADER_SIZE + 1)
    return None


def _checksum_matches(file: Readable, position: int, header: BatchHeader) -> bool:
    body = file.pread(header.size - ATTRIBUTES_POSITION, position + ATTRIBUTES_POSITION)
    return crc32c(body) == header.crc


def index_entries(checked: Checked) -> tuple[int, int]:
    """How many entries the two indexes of a checked segment have."""
    return len(checked.index) // OFFSET_ENTRY.size, len(checked.time_index) // TIME_ENTRY.size
