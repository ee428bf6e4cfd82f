"""OpenTelemetry's metrics, as far as clients send them: gauges and sums of numbers.

The format is Protocol Buffers', of which this reads the few messages that matter, and steps over
everything else. A length is never trusted: each is checked against what is there. Histograms and
summaries, which no client of Kafka's sends, are counted and left out, and so are a number without a
value, one with more than `LONGEST_POINT` bytes of attributes, and what comes after `MOST_POINTS`.

Reading is a generator that stops after each field and each number, so that whoever reads much lets
others have their turn. A megabyte can be half a million fields that mean nothing, so it is not
enough to stop after each metric.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_POINTS = 5_000
LONGEST_POINT = 8_192
MOST_ATTRIBUTES = 8
LONGEST_TEXT = 200

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELTA = 1
_PATH_OF_METRICS = (1, 2, 2)  # resources, scopes, metrics
_double = struct.Struct("<d").unpack_from
_sfixed64 = struct.Struct("<q").unpack_from


class Malformed(ValueError):
    """Not what it should be; the message says where."""


class Point(NamedTuple):
    """One number: of which metric, what kind of number, and its attributes."""

    name: str
    monotonic: bool
    delta: bool
    attributes: tuple[tuple[str, str], ...]
    value: float


@dataclass(slots=True)
class Read:
    """What was read."""

    points: list[Point] = field(default_factory=list)
    left_out: int = 0


Field = tuple[int, int, int | memoryview]


def read(data: bytes) -> Generator[None, None, Read]:
    """Every number of a MetricsData message, step by step. Raises Malformed."""
    found = Read()
    for metric in _at(memoryview(data), _PATH_OF_METRICS):
        yield
        if metric is not None:
            yield from _read_metric(metric, found)
    return found


def _read_metric(metric: memoryview, found: Read) -> Iterator[None]:
    name = ""
    numbers: memoryview | None = None
    is_sum = False
    for number, kind, value in _fields(metric):
        if number == 1 and kind == _BYTES:
            name = _text(value)
        elif number in (5, 7) and isinstance(value, memoryview):
            numbers, is_sum = value, number == 7
        elif number in (9, 10, 11):
            found.left_out += 1
        yield
    if name and numbers is not None:
        yield from _read_numbers(name, numbers, is_sum, found)


def _read_numbers(name: str, numbers: memoryview, is_sum: bool, found: Read) -> Iterator[None]:
    """The points of a gauge or sum, and what kind of sum it is, which may stand behind them."""
    monotonic = delta = False
    points: list[memoryview] = []
    for number, _, value in _fields(numbers):
        if number == 1 and isinstance(value, memoryview):
            if len(found.points) + len(points) < MOST_POINTS and len(value) <= LONGEST_POINT:
                points.append(value)
            else:
                found.left_out += 1
        elif is_sum and number == 2:
            delta = value == _DELTA
        elif is_sum and number == 3:
            monotonic = bool(value)
        yield
    for point in points:
        attributes, measured = _read_point(point)
        if measured is None:
            found.left_out += 1
        else:
            found.points.append(Point(name, monotonic, delta, attributes, measured))
        yield


def _read_point(point: memoryview) -> tuple[tuple[tuple[str, str], ...], float | None]:
    result: float | None = None
    attributes: dict[str, str] = {}
    for number, kind, value in _fields(point):
        if number == 4 and kind == _FIXED64 and isinstance(value, memoryview):
            (result,) = _double(value)
        elif number == 6 and kind == _FIXED64 and isinstance(value, memoryview):
            result = float(_sfixed64(value)[0])
        elif number == 7 and isinstance(value, memoryview) and len(attributes) < MOST_ATTRIBUTES:
            key, text = _read_attribute(value)
            attributes[key] = text
    return tuple(sorted(attributes.items())), result


def _read_attribute(pair: memoryview) -> tuple[str, str]:
    key = text = ""
    for number, kind, value in _fields(pair):
        if number == 1 and kind == _BYTES:
            key = _text(value)
        elif number == 2 and isinstance(value, memoryview):
            text = _read_value(value)
    return key, text


def _read_value(any_value: memoryview) -> str:
    for number, kind, value in _fields(any_value):
        if number == 1 and kind == _BYTES:
            return _text(value)
        if number == 2:
            return "true" if value else "false"
        if number == 3 and isinstance(value, int):
            return str(value - (1 << 64) if value >= 1 << 63 else value)
        if number == 4 and kind == _FIXED64 and isinstance(value, memoryview):
            return f"{_double(value)[0]:g}"
    return ""


# --- the wire -------------------------------------------------------------------------------------


def _at(data: memoryview, path: tuple[int, ...]) -> Iterator[memoryview | None]:
    """Every message at a path of field numbers; None for each field on the way there."""
    first, rest = path[0], path[1:]
    for number, _, value in _fields(data):
        yield None
        if number == first and isinstance(value, memoryview):
            if rest:
                yield from _at(value, rest)
            else:
                yield value


def _fields(data: memoryview) -> Iterator[Field]:
    """Number, kind and value of each field: a number, or the bytes of everything else."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise Malformed(f"a field without a number at {position}")
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise Malformed(f"a field of kind {kind} at {position}")
        if size > end - position:
            raise Malformed(f"{size} bytes announced at {position}, {end - position} there")
        yield number, kind, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Malformed(f"a number without an end at {position}")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position
        shift += 7


def _text(value: int | memoryview) -> str:
    if not isinstance(value, memoryview):
        return ""
    return bytes(value[: 4 * LONGEST_TEXT]).decode("utf-8", "replace")[:LONGEST_TEXT]
