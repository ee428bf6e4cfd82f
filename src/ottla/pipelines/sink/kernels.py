"""The loops over rows that are compiled: where each row goes, and what it looks like in a batch.

Imported to be compiled, which is once: `loops` loads what has become of them. No loop needs the
interpreter's lock, so that sending goes on meanwhile.

numba checks no bounds. What makes it safe: `columns` has checked that offsets rise and end inside
the data, `route` checks partitions, and `encode` works out the size of a record before it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numba import njit, types

from ottla.pipelines.sink.loops import BASE_TIME, COUNT, MAX_TIME, NEEDED, POSITION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Longs = NDArray[np.int64]

LONG = types.int64


# -- where rows go


@njit
def murmur2(data: Bytes, start: int, stop: int) -> Any:
    """Java's `Utils.murmur2` of `data[start:stop]`, before it is made positive."""
    m = types.uint32(0x5BD1E995)
    length = stop - start
    h = types.uint32(types.uint32(0x9747B28C) ^ types.uint32(length))
    position = start
    while position + 4 <= stop:
        k = types.uint32(
            types.uint32(data[position])
            | (types.uint32(data[position + 1]) << types.uint32(8))
            | (types.uint32(data[position + 2]) << types.uint32(16))
            | (types.uint32(data[position + 3]) << types.uint32(24))
        )
        k = types.uint32(k * m)
        k = types.uint32(k ^ (k >> types.uint32(24)))
        k = types.uint32(k * m)
        h = types.uint32(types.uint32(h * m) ^ k)
        position += 4
    left = stop - position
    if left > 0:
        if left > 2:
            h = types.uint32(h ^ (types.uint32(data[position + 2]) << types.uint32(16)))
        if left > 1:
            h = types.uint32(h ^ (types.uint32(data[position + 1]) << types.uint32(8)))
        h = types.uint32(h ^ types.uint32(data[position]))
        h = types.uint32(h * m)
    h = types.uint32(h ^ (h >> types.uint32(13)))
    h = types.uint32(h * m)
    return types.uint32(h ^ (h >> types.uint32(15)))


def route(
    topics: Longs,
    chosen: Longs,
    unkeyed: Bytes,
    key_offsets: Longs,
    keys: Bytes,
    sizes: Longs,
    counts: Longs,
    bases: Longs,
    available: Longs,
    available_at: Longs,
    turn: Longs,
    room: Longs,
    chunk: int,
    lanes: Longs,
) -> int:
    """Fill `lanes`; returns the first row whose chosen partition is not there, or -1."""
    for row in range(topics.size):
        topic = topics[row]
        partition = chosen[row]
        if partition >= 0:
            if partition >= counts[topic]:
                return row
        elif unkeyed[row]:
            first = available_at[topic]
            width = available_at[topic + 1] - first
            partition = available[first + turn[topic] % width]
            room[topic] -= sizes[row]
            if room[topic] <= 0:
                turn[topic] += 1
                room[topic] = chunk
        else:
            hashed = murmur2(keys, key_offsets[row], key_offsets[row + 1])
            partition = LONG(hashed & types.uint32(0x7FFFFFFF)) % counts[topic]
        lanes[row] = bases[topic] + partition
    return -1


def sort_by_lane(lanes: Longs, starts: Longs, order: Longs) -> int:
    """A counting sort that keeps rows of one lane in their order.

    `starts` comes as zeros, one more than there are lanes; afterwards lane n has the rows
    `order[starts[n]:starts[n + 1]]`. Returns how many rows there are.
    """
    for row in range(lanes.size):
        starts[lanes[row] + 1] += 1
    for lane in range(1, starts.size):
        starts[lane] += starts[lane - 1]
    # Each start runs on to the next lane's while it is used, and is put back afterwards.
    for row in range(lanes.size):
        lane = lanes[row]
        order[starts[lane]] = row
        starts[lane] += 1
    for lane in range(starts.size - 1, 0, -1):
        starts[lane] = starts[lane - 1]
    starts[0] = 0
    return lanes.size


# -- what they look like


@njit
def varint_size(value: int) -> Any:
    rest = types.uint64((value << 1) ^ (value >> 63))
    size = 1
    while rest >= types.uint64(0x80):
        rest >>= types.uint64(7)
        size += 1
    return size


@njit
def put_varint(out: Bytes, position: int, value: int) -> Any:
    rest = types.uint64((value << 1) ^ (value >> 63))
    while rest >= types.uint64(0x80):
        out[position] = types.uint8(rest & types.uint64(0x7F)) | types.uint8(0x80)
        rest >>= types.uint64(7)
        position += 1
    out[position] = types.uint8(rest)
    return position + 1


@njit
def put_bytes(out: Bytes, position: int, data: Bytes, start: int, stop: int) -> Any:
    position = put_varint(out, position, stop - start)
    # Unsigned: an index that may be negative costs a test per byte, and the vector instructions.
    size, to, source = types.uintp(stop - start), types.uintp(position), types.uintp(start)
    for index in range(size):
        out[to + index] = data[source + index]
    return position + stop - start


def encode(
    order: Longs,
    first: int,
    last: int,
    times: Longs,
    key_nulls: Bytes,
    key_offsets: Longs,
    keys: Bytes,
    value_nulls: Bytes,
    value_offsets: Longs,
    values: Bytes,
    header_lists: Longs,
    header_name_offsets: Longs,
    header_names: Bytes,
    header_nulls: Bytes,
    header_offsets: Longs,
    headers: Bytes,
    out: Bytes,
    rows: Longs,
    first_row: int,
    state: Longs,
) -> int:
    """Append the rows `order[first:last]` to a batch until it is full.

    Returns how far it came. When that is not `last`, NEEDED says how large `out` would have to be
    for the next one (or `rows` is full). `rows` notes which row each record was.
    """
    position = state[POSITION]
    count = state[COUNT]
    index = first
    while index < last and count < rows.size:
        row = order[index]
        moment = times[row]
        base = state[BASE_TIME] if count else moment
        key_size = -1 if key_nulls[row] else key_offsets[row + 1] - key_offsets[row]
        value_size = -1 if value_nulls[row] else value_offsets[row + 1] - value_offsets[row]
        many = header_lists[row + 1] - header_lists[row]

        size = 1 + varint_size(moment - base) + varint_size(count)
        size += varint_size(key_size) + max(key_size, 0)
        size += varint_size(value_size) + max(value_size, 0)
        size += varint_size(many)
        for header in range(header_lists[row], header_lists[row + 1]):
            width = header_name_offsets[header + 1] - header_name_offsets[header]
            size += varint_size(width) + width
            if header_nulls[header]:
                size += 1
            else:
                width = header_offsets[header + 1] - header_offsets[header]
                size += varint_size(width) + width
        end = position + varint_size(size) + size
        if end > out.size:
            state[NEEDED] = end
            break

        position = put_varint(out, position, size)
        out[position] = 0
        position = put_varint(out, position + 1, moment - base)
        position = put_varint(out, position, count)
        if key_size < 0:
            position = put_varint(out, position, -1)
        else:
            position = put_bytes(out, position, keys, key_offsets[row], key_offsets[row + 1])
        if value_size < 0:
            position = put_varint(out, position, -1)
        else:
            position = put_bytes(out, position, values, value_offsets[row], value_offsets[row + 1])
        position = put_varint(out, position, many)
        for header in range(header_lists[row], header_lists[row + 1]):
            position = put_bytes(
                out,
                position,
                header_names,
                header_name_offsets[header],
                header_name_offsets[header + 1],
            )
            if header_nulls[header]:
                position = put_varint(out, position, -1)
            else:
                position = put_bytes(
                    out, position, headers, header_offsets[header], header_offsets[header + 1]
                )

        rows[count] = first_row + row
        if count == 0:
            state[BASE_TIME] = moment
            state[MAX_TIME] = moment
        elif moment > state[MAX_TIME]:
            state[MAX_TIME] = moment
        count += 1
        index += 1
    state[POSITION] = position
    state[COUNT] = count
    return index


def to_compile() -> dict[str, Callable[..., int]]:
    return {"route": route, "sort_by_lane": sort_by_lane, "encode": encode}
