"""The two loops that run as native code: over the batches of a fetch, and over their records.

A record is a chain of varints: where one field ends is known once it has been read, so there is
nothing for numpy to do at once. `load` gives these functions in C (see `ottla.records.walker`),
which runs without the interpreter's lock. Here they are in Python: the tests hold the one against
the other, with every index checked. Where there is no native code, `plain` decodes records, and
`outline` is used as it stands.

Every read is checked against the end of what is read, every write against the room there is, and
lengths are compared with what is left before they are added to anything: what comes in may be
damaged or hostile, and the answer is then a code, never a wild read.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.pipelines.native import how_to_mend
from ottla.records import walker

log = logging.getLogger(__name__)

# Columns of the outline: one row for each batch.
BEGIN: Final = 0  # of the records, as a position in the bytes
STOP: Final = 1
COUNT: Final = 2
BASE: Final = 3
LAST: Final = 4
BASE_TIME: Final = 5
MAX_TIME: Final = 6
ATTRIBUTES: Final = 7
PRODUCER: Final = 8
CRC: Final = 9
WIDTH: Final = 10

# The cursor: where the walk is, how full the columns are, and how large what did not fit is.
BATCH: Final = 0
POSITION: Final = 1  # in the bytes; -1: at the beginning of the batch
LEFT: Final = 2  # records of the batch
OFFSET: Final = 3  # the last one seen in the batch
ROWS: Final = 4
KEYS: Final = 5  # bytes
VALUES: Final = 6
HEADERS: Final = 7
HEADER_KEYS: Final = 8  # bytes
HEADER_VALUES: Final = 9
KEY_NULLS: Final = 10
VALUE_NULLS: Final = 11
HEADER_NULLS: Final = 12
NEEDED: Final = 13  # bytes of the record that did not fit
CURSOR: Final = 14

# What the walks say.
DONE: Final = 0
FULL: Final = 1
RUNS_OVER: Final = -1
VARINT: Final = -2
RECORD_SIZE: Final = -3
HEADER_COUNT: Final = -4
OFFSETS: Final = -5
TIMESTAMP: Final = -6
LEFTOVER: Final = -7
BATCH_LENGTH: Final = -8
FOREIGN_MAGIC: Final = -9
BATCH_FIELDS: Final = -10

REASONS: Final = {
    RUNS_OVER: "a record runs past its end",
    VARINT: "a number has more than 64 bits",
    RECORD_SIZE: "a record's content is not as long as it says",
    HEADER_COUNT: "a record has an impossible number of headers",
    OFFSETS: "its records' offsets are not in order, or not of this batch",
    TIMESTAMP: "a timestamp is too large for Spark, which counts microseconds in 64 bits",
    LEFTOVER: "there are bytes after its last record",
    BATCH_LENGTH: "its length is too small for a batch",
    FOREIGN_MAGIC: "it is in a format from before Kafka 0.11 (magic 0 or 1), or in none at all",
    BATCH_FIELDS: "its header has an impossible offset or record count",
}

_HEADER_SIZE: Final = 61
_OVERHEAD: Final = 12
_MAGIC_AT: Final = 16
_APPEND_TIME: Final = 0x08
_LARGEST: Final = (1 << 63) - 1
LATEST_MS: Final = _LARGEST // 1000  # in microseconds it still fits 64 bits


class Loops(NamedTuple):
    """`outline` and `walk`, in C."""

    outline: Callable[..., int]
    walk: Callable[..., int]


def _signed(data: Any, position: Any, size: Any) -> Any:
    value = int(data[position])
    value -= (value & 0x80) << 1
    for index in range(1, size):
        value = (value << 8) | int(data[position + index])
    return value


def _varint(data: Any, position: Any, stop: Any) -> Any:
    """The value at `position` and the position after it, which is negative for a failure."""
    if position >= stop:
        return 0, RUNS_OVER
    byte = int(data[position])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    result = byte & 0x7F
    position += 1
    for shift in range(7, 70, 7):
        if position >= stop:
            return 0, RUNS_OVER
        byte = int(data[position])
        position += 1
        if shift == 63 and byte > 1:
            return 0, VARINT
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((result >> 1) & _LARGEST) ^ -(result & 1), position
    return 0, VARINT


def _copy(source: Any, begin: Any, target: Any, at: Any, size: Any) -> None:
    for index in range(size):
        target[at + index] = source[begin + index]


def outline(data: Any, table: Any, found: Any) -> int:
    """One row of `table` for each whole batch in `data`, from the first on.

    `found[0]` is set to how many there are, `found[1]` to the position after them. The last batch
    of a fetch is usually cut off, which is no failure. DONE, FULL, or what is wrong with the batch
    at `found[1]`.
    """
    end = len(data)
    position = 0
    row = 0
    found[0] = 0
    found[1] = 0
    while end - position > _MAGIC_AT:
        if data[position + _MAGIC_AT] != 2:
            return FOREIGN_MAGIC
        length = _signed(data, position + 8, 4)
        if length < _HEADER_SIZE - _OVERHEAD:
            return BATCH_LENGTH
        if length > end - position - _OVERHEAD:
            return DONE
        if row >= table.shape[0]:
            return FULL
        base = _signed(data, position, 8)
        delta = _signed(data, position + 23, 4)
        count = _signed(data, position + 57, 4)
        if base < 0 or delta < 0 or count < 0 or base > _LARGEST - 1 - delta:
            return BATCH_FIELDS
        table[row, BEGIN] = position + _HEADER_SIZE
        table[row, STOP] = position + _OVERHEAD + length
        table[row, COUNT] = count
        table[row, BASE] = base
        table[row, LAST] = base + delta
        table[row, BASE_TIME] = _signed(data, position + 27, 8)
        table[row, MAX_TIME] = _signed(data, position + 35, 8)
        table[row, ATTRIBUTES] = _signed(data, position + 21, 2)
        table[row, PRODUCER] = _signed(data, position + 43, 8)
        table[row, CRC] = _signed(data, position + 17, 4) & 0xFFFFFFFF
        position += _OVERHEAD + length
        row += 1
        found[0] = row
        found[1] = position
    return DONE


def walk(  # noqa: C901, PLR0911, PLR0912, PLR0913, PLR0915, PLR0917 - its twin in C line by line, with the same parameters
    data: Any,
    table: Any,
    cursor: Any,
    first: Any,
    limit: Any,
    with_headers: Any,
    offsets: Any,
    times: Any,
    kinds: Any,
    key_ends: Any,
    key_bits: Any,
    keys: Any,
    value_ends: Any,
    value_bits: Any,
    values: Any,
    header_ends: Any,
    header_key_ends: Any,
    header_keys: Any,
    header_value_ends: Any,
    header_value_bits: Any,
    header_values: Any,
) -> Any:
    """Records `first` <= offset < `limit` of the batches in `table`, appended to the columns.

    Goes on where the cursor is, and leaves it at the first record that is not in the columns.
    DONE when all batches are through, FULL when the columns are, or what is wrong with the record
    at the cursor. `…_ends` are Arrow's offsets: entry n is where row n-1 ends. `…_bits` are
    validity bitmaps, all zero to begin with.
    """
    most_rows = len(offsets)
    most_headers = len(header_value_ends) - 1
    rows = cursor[ROWS]
    while cursor[BATCH] < table.shape[0]:
        batch = cursor[BATCH]
        stop = table[batch, STOP]
        if stop > len(data) or table[batch, BEGIN] < 0:
            return RUNS_OVER
        base = table[batch, BASE]
        span = table[batch, LAST] - base
        append_time = (table[batch, ATTRIBUTES] & _APPEND_TIME) != 0
        base_time = table[batch, MAX_TIME] if append_time else table[batch, BASE_TIME]
        if base_time > LATEST_MS or base_time < -LATEST_MS:
            return TIMESTAMP
        if cursor[POSITION] < 0:
            cursor[POSITION] = table[batch, BEGIN]
            cursor[LEFT] = table[batch, COUNT]
            cursor[OFFSET] = base - 1
        while cursor[LEFT] > 0:
            length, position = _varint(data, cursor[POSITION], stop)
            if position < 0:
                return position
            if length < 0 or length > stop - position:
                return RUNS_OVER
            record_end = position + length
            delta_time, position = _varint(data, position + 1, record_end)
            if position < 0:
                return position
            delta, position = _varint(data, position, record_end)
            if position < 0:
                return position
            if delta < 0 or delta > span or base + delta <= cursor[OFFSET]:
                return OFFSETS
            offset = base + delta
            if offset >= limit:
                break
            if offset < first:
                cursor[OFFSET] = offset
                cursor[POSITION] = record_end
                cursor[LEFT] -= 1
                continue
            moment = base_time
            if not append_time:
                if delta_time > LATEST_MS or delta_time < -LATEST_MS:
                    return TIMESTAMP
                moment += delta_time
                if moment > LATEST_MS or moment < -LATEST_MS:
                    return TIMESTAMP

            key_size, position = _varint(data, position, record_end)
            if position < 0:
                return position
            key_at = position
            if key_size > 0:
                if key_size > record_end - position:
                    return RUNS_OVER
                position += key_size
            value_size, position = _varint(data, position, record_end)
            if position < 0:
                return position
            value_at = position
            if value_size > 0:
                if value_size > record_end - position:
                    return RUNS_OVER
                position += value_size
            header_count, position = _varint(data, position, record_end)
            if position < 0:
                return position
            if header_count < 0 or header_count > record_end - position:
                return HEADER_COUNT
            if (
                rows >= most_rows
                or key_size > len(keys) - cursor[KEYS]
                or value_size > len(values) - cursor[VALUES]
                or (with_headers and header_count > most_headers - cursor[HEADERS])
            ):
                cursor[NEEDED] = length
                return FULL

            # The cursor moves when the record is through; FULL in the middle takes nothing of it.
            headers = cursor[HEADERS]
            header_keys_used = cursor[HEADER_KEYS]
            header_values_used = cursor[HEADER_VALUES]
            header_nulls = 0
            for _ in range(header_count):
                name_size, position = _varint(data, position, record_end)
                if position < 0:
                    return position
                if name_size < 0 or name_size > record_end - position:
                    return RUNS_OVER
                name_at = position
                size, position = _varint(data, position + name_size, record_end)
                if position < 0:
                    return position
                if size > record_end - position:
                    return RUNS_OVER
                if with_headers:
                    if (
                        name_size > len(header_keys) - header_keys_used
                        or size > len(header_values) - header_values_used
                    ):
                        cursor[NEEDED] = length
                        return FULL
                    _copy(data, name_at, header_keys, header_keys_used, name_size)
                    header_keys_used += name_size
                    if size >= 0:
                        _copy(data, position, header_values, header_values_used, size)
                        header_values_used += size
                        header_value_bits[headers >> 3] |= 1 << (headers & 7)
                    else:
                        header_nulls += 1
                    headers += 1
                    header_key_ends[headers] = header_keys_used
                    header_value_ends[headers] = header_values_used
                if size > 0:
                    position += size
            if position != record_end:
                return RECORD_SIZE

            if key_size >= 0:
                _copy(data, key_at, keys, cursor[KEYS], key_size)
                cursor[KEYS] += key_size
                key_bits[rows >> 3] |= 1 << (rows & 7)
            else:
                cursor[KEY_NULLS] += 1
            if value_size >= 0:
                _copy(data, value_at, values, cursor[VALUES], value_size)
                cursor[VALUES] += value_size
                value_bits[rows >> 3] |= 1 << (rows & 7)
            else:
                cursor[VALUE_NULLS] += 1
            offsets[rows] = offset
            times[rows] = moment * 1000
            kinds[rows] = 1 if append_time else 0
            rows += 1
            key_ends[rows] = cursor[KEYS]
            value_ends[rows] = cursor[VALUES]
            if with_headers:
                cursor[HEADERS] = headers
                cursor[HEADER_KEYS] = header_keys_used
                cursor[HEADER_VALUES] = header_values_used
                cursor[HEADER_NULLS] += header_nulls
                header_ends[rows] = headers
            cursor[ROWS] = rows
            cursor[OFFSET] = offset
            cursor[POSITION] = record_end
            cursor[LEFT] -= 1
        if cursor[LEFT] == 0 and cursor[POSITION] != stop:
            return LEFTOVER
        cursor[POSITION] = -1
        cursor[BATCH] += 1
    return DONE


_loading: Final = threading.Lock()


def load() -> Loops | None:
    """The native loops, or None where they were not built, which is logged once."""
    with _loading:
        return _load()


@functools.cache
def _load() -> Loops | None:
    if walker.COLUMN_LOOPS is None:
        log.warning(
            "Records are decoded in plain Python, some thirty times slower: %s.", how_to_mend()
        )
        return None
    return Loops(*walker.COLUMN_LOOPS)
