"""Plain values (`plain.py`) as text, as JSON and CSV have them, and strictly back.

    date        2026-03-01
    timestamp   2026-03-01T12:00:00.123456Z; read with any offset, and without one as UTC
    binary      base64
    decimal     12.50, all digits of its scale; read with any number of zeros behind
    double      also NaN, Infinity and -Infinity

Spark's permissive casts make nulls of what they cannot read, round decimals and wrap integers.
These functions raise ValueError.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from pyspark.sql import types as t

INTEGERS: Final[dict[type[t.DataType], int]] = {
    t.ByteType: 8,
    t.ShortType: 16,
    t.IntegerType: 32,
    t.LongType: 64,
}
"""Bits by type."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_MICRO = timedelta(microseconds=1)
_SECOND: Final = 1_000_000
_DAY: Final = 86_400 * _SECOND
_NUMBER = re.compile(r"([+-]?)(\d+)(?:\.(\d*))?(?:[eE]([+-]?\d{1,4}))?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
NOT_FINITE: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
"""What Spark, Kafka Connect and JavaScript call them, and Python."""
_LARGEST_FLOAT: Final = 3.4028235677973366e38  # from here on a float is infinite
_DIGITS: Final = 38


def integer(bits: int) -> Callable[[str], int]:
    """A reader of integers of this size."""
    limit = 1 << (bits - 1)

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError("is no integer")
        value = int(text)
        if not -limit <= value < limit:
            raise ValueError(f"has no room in {bits} bits")
        return value

    return read


def boolean(text: str) -> bool:
    """Only true and false."""
    if text not in {"true", "false"}:
        raise ValueError("is neither true nor false")
    return text == "true"


def floating(text: str, single: bool) -> float:
    """A number, or one of the three names."""
    if text in NOT_FINITE:
        return float(NOT_FINITE[text])
    if not _FLOAT.fullmatch(text):
        raise ValueError("is no number")
    return fitting(float(text), single)


def fitting(value: float, single: bool) -> float:
    """The number as it is, if it is finite as a double, or as a float (`single`)."""
    if abs(value) >= (_LARGEST_FLOAT if single else float("inf")):
        raise ValueError("is too large")
    return value


def decimal(precision: int, scale: int) -> Callable[[str], int]:
    """A reader of decimals of this type, as unscaled integers; no digit is rounded away."""
    limit = 10**precision

    def read(text: str) -> int:
        match = _NUMBER.fullmatch(text)
        if not match:
            raise ValueError("is no decimal number")
        sign, whole, fraction, exponent = match.groups()
        digits = (whole + (fraction or "")).lstrip("0")
        shift = scale - len(fraction or "") + int(exponent or 0)
        if shift < 0:
            kept, cut = digits[:shift], digits[shift:]
            if cut.strip("0"):
                raise ValueError(f"has more than {scale} digits behind the point")
            digits, shift = kept, 0
        if digits and len(digits) + shift > _DIGITS:
            raise ValueError(f"has no room in decimal({precision}, {scale})")
        value = int(digits or "0") * 10**shift if digits else 0
        if value >= limit:
            raise ValueError(f"has no room in decimal({precision}, {scale})")
        return -value if sign == "-" else value

    return read


def days(text: str) -> int:
    """A date."""
    if len(text) != 10:
        raise ValueError("is no date such as 2026-03-01")
    try:
        return date.fromisoformat(text).toordinal() - _FIRST_DAY
    except ValueError:
        raise ValueError("is no date such as 2026-03-01") from None


def micros(text: str) -> int:
    """A moment; without an offset it is meant in UTC. Digits below a microsecond are cut."""
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no time such as 2026-03-01T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICRO


def local_micros(text: str) -> int:
    """A time of day and date that is tied to no place: an offset is a mistake."""
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            raise ValueError
    except ValueError:
        raise ValueError("is no time without an offset, such as 2026-03-01T12:00:00") from None
    return (moment.replace(tzinfo=UTC) - _EPOCH) // _MICRO


def octets(text: str) -> bytes:
    """Base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is no base64") from None


def reader(kind: t.DataType) -> Callable[[str], Any]:
    """What reads a text of this type; raises ValueError with the end of a sentence."""
    if type(kind) in INTEGERS:
        return integer(INTEGERS[type(kind)])
    if isinstance(kind, t.DecimalType):
        return decimal(kind.precision, kind.scale)
    readers: dict[type[t.DataType], Callable[[str], Any]] = {
        t.StringType: str,
        t.BooleanType: boolean,
        t.FloatType: lambda text: floating(text, single=True),
        t.DoubleType: lambda text: floating(text, single=False),
        t.DateType: days,
        t.TimestampType: micros,
        t.TimestampNTZType: local_micros,
        t.BinaryType: octets,
    }
    return readers[type(kind)]


def write_decimal(value: int, scale: int) -> str:
    """All digits of the scale."""
    digits = str(abs(value)).rjust(scale + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def write_days(value: int) -> str:
    """A date; ValueError outside of the years 1 to 9999."""
    try:
        return date.fromordinal(value + _FIRST_DAY).isoformat()
    except (ValueError, OverflowError):
        raise ValueError("is a date outside of the years 1 to 9999") from None


def write_micros(value: int) -> str:
    """A moment with Z; ValueError outside of the years 1 to 9999."""
    return f"{write_local_micros(value)}Z"


def write_local_micros(value: int) -> str:
    """The same without Z."""
    try:
        moment = _EPOCH + timedelta(days=value // _DAY, microseconds=value % _DAY)
    except OverflowError:
        raise ValueError("is a time outside of the years 1 to 9999") from None
    return moment.replace(tzinfo=None).isoformat(
        timespec="microseconds" if value % _SECOND else "seconds"
    )


def write_floating(value: float) -> str:
    """The shortest text that reads as the same double."""
    if math.isnan(value):
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def writer(kind: t.DataType) -> Callable[[Any], str]:
    """What writes a value of this type as the text that `reader` reads."""
    if isinstance(kind, t.DecimalType):
        scale = kind.scale
        return lambda value: write_decimal(value, scale)
    writers: dict[type[t.DataType], Callable[[Any], str]] = {
        t.BooleanType: lambda value: "true" if value else "false",
        t.FloatType: write_floating,
        t.DoubleType: write_floating,
        t.DateType: write_days,
        t.TimestampType: write_micros,
        t.TimestampNTZType: write_local_micros,
        t.BinaryType: lambda value: base64.b64encode(value).decode(),
    }
    return writers.get(type(kind), str)
