"""JSON texts into plain values (`plain.py`), strictly, by a schema.

Spark's `from_json` reads what it can: it makes nulls of the wrong types, rounds, takes the first of
two objects in one text or of the objects in an array, takes the last of two fields of one name, and
says nothing of any of it. Here every such text raises `Undecodable`, which names the field.

A type takes exactly these JSON values:

    boolean             true, false
    tinyint … bigint    a number without point or exponent that has room in it
    float, double       a number, or "NaN", "Infinity", "-Infinity"
    decimal             a number, or a text of one; never rounded
    string              a text
    date, timestamp, binary   a text, as text_values.py has them
    array, struct, map  an array, an object, an object

A field that is not there is null, if it may be. An object that has none of the schema's fields is
no row of nulls but a failure.

The schema is compiled into one function: per field a look into the object and a test of the
commonest case; whatever does not pass that test goes through `converter`, which knows all cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import text_values
from ottla.pipelines.connectors.formats.failure import (
    DAMAGED,
    MISSING,
    NEW_FIELDS,
    WRONG_TYPE,
    Undecodable,
    shown,
)
from ottla.pipelines.connectors.formats.plain import Row

_LONGEST_NUMBER: Final = 1_000


class _Number(str):
    """The text of a number with a point or an exponent, where a decimal must stay exact."""

    __slots__ = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Undecodable(DAMAGED, f"the field {shown(twice)} is there twice")
    return found


def _constant(text: str) -> Any:
    raise Undecodable(DAMAGED, f"{text} is no JSON")


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise Undecodable(DAMAGED, f"a number has {len(text)} digits")
    return int(text)


_PLAIN = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole)
_EXACT = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole, parse_float=_Number
)


def parse(data: bytes, exact: bool = False) -> Any:
    """The value of one JSON text, and nothing behind it. `exact` keeps fractions as texts."""
    try:
        return (_EXACT if exact else _PLAIN).decode(data.decode())
    except UnicodeDecodeError as error:
        raise Undecodable(DAMAGED, f"no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if not data:
            raise Undecodable(DAMAGED, "an empty value is no JSON") from None
        raise Undecodable(DAMAGED, f"no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Undecodable(DAMAGED, "JSON that is nested too deeply") from None


def blank(value: Any) -> bool:
    """Whether a value says nothing of its type: null, [] and {}, and what is made of these."""
    left = [value]
    while left:  # not by recursion: arrays may be nested as deeply as JSON is parsed
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += one.values()
        elif one is not None:
            return False
    return True


def compile_row(
    schema: t.StructType, new_fields: str | None = NEW_FIELDS
) -> Callable[[bytes], Row]:
    """A function from a JSON text to a row.

    new_fields   the kind of failure for a field that is not in `schema`; None to leave it out
    """
    exact = _has_decimals(schema)
    read = _struct(schema, "", new_fields, top=True)

    def row(data: bytes) -> Row:
        value = parse(data, exact)
        if value.__class__ is not dict:
            raise Undecodable(WRONG_TYPE, f"{_name(value)} instead of an object")
        found: Row = read(value)
        return found

    return row


def _has_decimals(kind: t.DataType) -> bool:
    if isinstance(kind, t.StructType):
        return any(_has_decimals(field.dataType) for field in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _has_decimals(kind.elementType)
    if isinstance(kind, t.MapType):
        return _has_decimals(kind.valueType)
    return isinstance(kind, t.DecimalType)


def _name(value: Any) -> str:
    """What a JSON value is, in JSON's words."""
    names = {dict: "an object", list: "an array", type(None): "null", bool: shown(value).lower()}
    return names.get(type(value)) or (
        "a text" if type(value) is str else f"the number {value}"[:60]
    )


def _wrong(path: str, value: Any, wanted: str) -> Undecodable:
    found = shown(value) if type(value) is str else _name(value)
    return Undecodable(WRONG_TYPE, f"field {path}: {found} {wanted}")


_FAST: Final[dict[type[t.DataType], str]] = {
    t.BooleanType: "{v} is True or {v} is False",
    t.ByteType: "{v}.__class__ is int and -128 <= {v} < 128",
    t.ShortType: "{v}.__class__ is int and -32768 <= {v} < 32768",
    t.IntegerType: "{v}.__class__ is int and -2147483648 <= {v} < 2147483648",
    t.LongType: "{v}.__class__ is int and -9223372036854775808 <= {v} < 9223372036854775808",
    t.DoubleType: "{v}.__class__ is float and -inf < {v} < inf",
    t.StringType: "{v}.__class__ is str",
}


def _struct(
    kind: t.StructType, path: str, new_fields: str | None, top: bool = False
) -> Callable[[dict[str, Any]], Row]:
    known = frozenset(field.name for field in kind.fields)
    scope: dict[str, Any] = {
        "inf": float("inf"),
        "known": known,
        "new": _new_fields(known, path, new_fields),
    }
    lines = ["def read(value):", " get = value.get"]
    if new_fields is not None:
        lines.append(" if not value.keys() <= known: new(value)")
    for number, field in enumerate(kind.fields):
        name = f"{path}.{field.name}" if path else field.name
        scope[f"k{number}"] = field.name
        scope[f"c{number}"] = converter(field.dataType, field.nullable, name, new_fields)
        lines.append(f" v{number} = get(k{number})")
        fast = _FAST.get(type(field.dataType))
        call = f"v{number} = c{number}(v{number})"
        lines.append(f" if not ({fast.format(v=f'v{number}')}): {call}" if fast else f" {call}")
    row = "".join(f"v{number}, " for number in range(len(kind.fields)))
    if top and kind.fields:
        nothing = " and ".join(f"v{number} is None" for number in range(len(kind.fields)))
        lines.append(f" if {nothing}: nothing(value)")
        scope["nothing"] = _nothing(known)
    lines.append(f" return ({row})")
    # Only numbers that this function has made are in the text; names come in through the scope.
    exec("\n".join(lines), scope)
    made: Callable[[dict[str, Any]], Row] = scope["read"]
    return made


def _nothing(known: frozenset[str]) -> Callable[[dict[str, Any]], None]:
    def check(value: dict[str, Any]) -> None:
        if known.isdisjoint(value):
            raise Undecodable(MISSING, "none of the schema's fields is there")

    return check


def _new_fields(
    known: frozenset[str], path: str, kind: str | None
) -> Callable[[dict[str, Any]], None]:
    def check(value: dict[str, Any]) -> None:
        new = [name for name, item in value.items() if name not in known and not blank(item)]
        if new and kind is not None:
            names = ", ".join(f"{path}.{name}" if path else name for name in new[:5])
            raise Undecodable(kind, f"fields that the schema does not have: {names[:200]}")

    return check


def converter(  # noqa: C901 - one branch for each kind of type
    kind: t.DataType, nullable: bool, path: str, new_fields: str | None
) -> Callable[[Any], Any]:
    """A function from any JSON value to a plain value of this type."""
    convert: Callable[[Any], Any]
    if isinstance(kind, t.StructType):
        read = _struct(kind, path, new_fields)

        def convert(value: Any) -> Any:
            if value.__class__ is not dict:
                raise _wrong(path, value, "is no object")
            return read(value)

    elif isinstance(kind, t.ArrayType):
        item = converter(kind.elementType, kind.containsNull, f"{path}[]", new_fields)

        def convert(value: Any) -> Any:
            if value.__class__ is not list:
                raise _wrong(path, value, "is no array")
            return [item(one) for one in value]

    elif isinstance(kind, t.MapType):
        item = converter(kind.valueType, kind.valueContainsNull, f"{path}[]", new_fields)

        def convert(value: Any) -> Any:
            if value.__class__ is not dict:
                raise _wrong(path, value, "is no object")
            return [(name, item(one)) for name, one in value.items()]

    elif type(kind) in text_values.INTEGERS:
        convert = _integer(text_values.INTEGERS[type(kind)], path)
    elif isinstance(kind, (t.FloatType, t.DoubleType)):
        convert = _floating(isinstance(kind, t.FloatType), path)
    elif isinstance(kind, t.DecimalType):
        convert = _decimal(kind, path)
    elif isinstance(kind, t.BooleanType):

        def convert(value: Any) -> Any:
            if value.__class__ is not bool:
                raise _wrong(path, value, "is neither true nor false")
            return value

    else:
        convert = _text(kind, path)

    def convert_or_null(value: Any) -> Any:
        if value is None:
            if not nullable:
                raise Undecodable(MISSING, f"field {path}: null or not there, and it must not be")
            return None
        return convert(value)

    return convert_or_null


def _integer(bits: int, path: str) -> Callable[[Any], int]:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> int:
        if value.__class__ is not int:
            raise _wrong(path, value, "is no integer")
        if not -limit <= value < limit:
            raise _wrong(path, value, f"has no room in {bits} bits")
        return int(value)

    return convert


def _floating(single: bool, path: str) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        try:
            if value.__class__ in (int, float, _Number):
                return text_values.fitting(float(value), single)
            if value.__class__ is str and value in text_values.NOT_FINITE:
                return float(text_values.NOT_FINITE[value])
        except (ValueError, OverflowError):
            raise _wrong(path, value, "is no number, or one that is too large") from None
        raise _wrong(path, value, "is no number")

    return convert


def _decimal(kind: t.DecimalType, path: str) -> Callable[[Any], int]:
    read = text_values.decimal(kind.precision, kind.scale)

    def convert(value: Any) -> int:
        if value.__class__ not in (int, str, _Number):
            raise _wrong(path, value, "is no decimal number")
        try:
            return read(str(value))
        except ValueError as error:
            raise _wrong(path, value, str(error)) from None

    return convert


def _text(kind: t.DataType, path: str) -> Callable[[Any], Any]:
    read = text_values.reader(kind)

    def convert(value: Any) -> Any:
        if value.__class__ is not str:
            raise _wrong(path, value, "is no text")
        try:
            return read(value)
        except ValueError as error:
            raise _wrong(path, value, str(error)) from None

    return convert
