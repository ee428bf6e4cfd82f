"""The walks over records that `walker` offers, in Python: the fallback without native code.

Also the definition of what the native code must give: the tests hold each of its functions against
the one of the same name here, on sound, mutated and truncated bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.records import varint
from ottla.records.errors import InvalidBatch
from ottla.records.reader import iter_outlines

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_LONG = (1 << 63) - 1
MIN_LONG = -(1 << 63)
_ALL_BITS = (1 << 64) - 1


class Summary(NamedTuple):
    """What validation asks about all the records of a batch at once."""

    oldest_delta: int
    """The smallest timestamp delta; 0 where there is no record."""
    newest_delta: int
    """The largest one."""
    in_order: bool
    """Whether the offset deltas are 0, 1, 2, …"""
    keyless: int
    """How many records have no key."""


class Offender(NamedTuple):
    """A record that breaks a rule."""

    batch_index: int
    offset_delta: int
    timestamp_delta: int
    has_key: bool


class Rules(NamedTuple):
    """What each record of a batch must be."""

    keyed: bool
    """It has a key."""
    oldest_delta: int
    newest_delta: int
    """Its timestamp delta is in this range,"""
    exempt_delta: int | None
    """or this one, which stands for "no timestamp"."""


def wrapped(moment: int) -> int:
    """A sum or difference of timestamps in 64 bits, as Java computes it: whatever a producer has
    made of them, its batch can be copied and looked through, and a reader gets the same times."""
    return ((moment - MIN_LONG) & _ALL_BITS) + MIN_LONG


def summarize(data: ReadableBuffer, record_count: int) -> Summary:
    oldest = newest = None
    in_order = True
    keyless = 0
    for index, (offset_delta, timestamp_delta, has_key) in enumerate(
        iter_outlines(bytes(data), record_count)
    ):
        if oldest is None or newest is None:
            oldest = newest = timestamp_delta
        elif timestamp_delta > newest:
            newest = timestamp_delta
        elif timestamp_delta < oldest:
            oldest = timestamp_delta
        if offset_delta != index:
            in_order = False
        if not has_key:
            keyless += 1
    return Summary(oldest or 0, newest or 0, in_order, keyless)


def find_offenders(
    data: ReadableBuffer, record_count: int, rules: Rules, limit: int
) -> tuple[int, int, list[Offender]]:
    keyed, oldest, newest, exempt = rules
    total = late = 0
    found: list[Offender] = []
    for index, (offset_delta, timestamp_delta, has_key) in enumerate(
        iter_outlines(bytes(data), record_count)
    ):
        keyless = keyed and not has_key
        if keyless or not (oldest <= timestamp_delta <= newest or timestamp_delta == exempt):
            total += 1
            late += not keyless
            if total <= limit:
                found.append(Offender(index, offset_delta, timestamp_delta, has_key))
    return total, late, found


def first_at_or_after(
    data: ReadableBuffer,
    record_count: int,
    base_offset: int,
    base_timestamp: int,
    timestamp: int,
    min_offset: int,
) -> tuple[int, int] | None:
    for offset_delta, timestamp_delta, _ in iter_outlines(bytes(data), record_count):
        offset = base_offset + offset_delta
        if not MIN_LONG <= offset <= MAX_LONG:
            raise InvalidBatch("a record's offset has more than 64 bits")
        moment = wrapped(base_timestamp + timestamp_delta)
        if moment >= timestamp and offset >= min_offset:
            return offset, moment
    return None


def renumber(data: ReadableBuffer, record_count: int, same_time: bool) -> bytes:
    source = bytes(data)
    for _ in iter_outlines(source, record_count):
        pass  # so that it is known to be sound
    out = bytearray()
    position = 0
    for index in range(record_count):
        length, content = varint.decode(source, position)
        position = content + length
        _, after_time = varint.decode(source, content + 1)
        _, after_offset = varint.decode(source, after_time)
        before = source[content : content + 1] + b"\0" if same_time else source[content:after_time]
        renumbered = b"".join((before, varint.encode(index), source[after_offset:position]))
        out += varint.encode(len(renumbered))
        out += renumbered
    return bytes(out)
