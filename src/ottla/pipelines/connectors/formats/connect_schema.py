"""Kafka Connect's schemas, as its JsonConverter writes them beside every value.

boolean, int8 … int64, float, double, string, bytes    the same in Spark
array, map (from string), struct                       array, map<string, …>, struct
…connect.data.Decimal (bytes)      decimal; JSON holds the digits as base64, or as a number
…connect.data.Date (int32)         date, in days
…connect.data.Timestamp (int64)    timestamp, in milliseconds
io.debezium.time.MicroTimestamp    timestamp, in microseconds
io.debezium.time.Date              date
other names                        what they are made of
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import text_values
from ottla.pipelines.connectors.formats.failure import (
    MISSING,
    SCHEMA_MISMATCH,
    WRONG_TYPE,
    Undecodable,
    shown,
)
from ottla.pipelines.connectors.formats.inference import is_name
from ottla.pipelines.connectors.formats.plain import Row

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
DATE: Final = "org.apache.kafka.connect.data.Date"
TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
DAYS: Final = "io.debezium.time.Date"
MICROS: Final = "io.debezium.time.MicroTimestamp"
MILLIS: Final = "io.debezium.time.Timestamp"
_PRECISION: Final = "connect.decimal.precision"

_SIMPLE: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int8": t.ByteType(),
    "int16": t.ShortType(),
    "int32": t.IntegerType(),
    "int64": t.LongType(),
    "float": t.FloatType(),
    "float32": t.FloatType(),
    "double": t.DoubleType(),
    "float64": t.DoubleType(),
    "string": t.StringType(),
    "bytes": t.BinaryType(),
}
_NAMED: Final[dict[str, t.DataType]] = {
    DATE: t.DateType(),
    DAYS: t.DateType(),
    TIMESTAMP: t.TimestampType(),
    MILLIS: t.TimestampType(),
    MICROS: t.TimestampType(),
}
_BACK: Final[dict[type[t.DataType], dict[str, Any]]] = {
    t.BooleanType: {"type": "boolean"},
    t.ByteType: {"type": "int8"},
    t.ShortType: {"type": "int16"},
    t.IntegerType: {"type": "int32"},
    t.LongType: {"type": "int64"},
    t.FloatType: {"type": "float"},
    t.DoubleType: {"type": "double"},
    t.StringType: {"type": "string"},
    t.BinaryType: {"type": "bytes"},
    t.DateType: {"type": "int32", "name": DATE, "version": 1},
}
_DEEPEST: Final = 40
_DIGITS: Final = 38
_MILLI: Final = 1_000
_INT64: Final = 1 << 63


def struct_of(schema: Any) -> t.StructType:
    """The columns of a Connect schema; ValueError if it is none of a struct."""
    try:
        kind = _type_of(schema, 0)
    except (TypeError, KeyError, AttributeError, OverflowError):
        raise ValueError("no schema of Kafka Connect") from None
    if not isinstance(kind, t.StructType):
        raise ValueError("the schema is not of a struct: choose another format")
    return kind


def _type_of(schema: Any, depth: int) -> t.DataType:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        raise ValueError("no schema of Kafka Connect")
    kind, name = schema.get("type"), schema.get("name")
    if name == DECIMAL:
        parameters = schema.get("parameters") or {}
        scale = int(parameters.get("scale", 0))
        # A column may be declared with more digits than Spark has; its values seldom have them.
        precision = min(int(parameters.get(_PRECISION, _DIGITS)), _DIGITS)
        if not 0 <= scale <= precision:
            raise ValueError(f"decimals with a scale of {scale} have no place in Spark")
        return t.DecimalType(precision, scale)
    if isinstance(name, str) and name in _NAMED:
        return _NAMED[name]
    if kind == "struct":
        return _struct_of(schema, depth)
    if kind == "array":
        items = schema.get("items") or {}
        return t.ArrayType(_type_of(items, depth + 1), bool(items.get("optional")))
    if kind == "map":
        values = schema.get("values") or {}
        key = _type_of(schema.get("keys"), depth + 1)
        return t.MapType(key, _type_of(values, depth + 1), bool(values.get("optional")))
    if not isinstance(kind, str) or kind not in _SIMPLE:
        raise ValueError(f"{shown(kind)} is no type of Kafka Connect")
    return _SIMPLE[kind]


def _struct_of(schema: Any, depth: int) -> t.StructType:
    fields: dict[str, t.StructField] = {}
    for field in schema.get("fields") or ():
        name = field["field"]
        if not is_name(name) or name in fields:
            raise ValueError(f"a field is called {shown(name)}, which is no name, or there twice")
        optional = bool(field.get("optional"))
        fields[name] = t.StructField(name, _type_of(field, depth + 1), optional)
    return t.StructType(list(fields.values()))


def schema_of(kind: t.DataType, nullable: bool, micros: bool, field: str | None = None) -> Any:
    """The schema to write beside values of this type."""
    made: dict[str, Any]
    if isinstance(kind, t.StructType):
        fields = [schema_of(f.dataType, f.nullable, micros, f.name) for f in kind.fields]
        made = {"type": "struct", "fields": fields}
    elif isinstance(kind, t.ArrayType):
        made = {"type": "array", "items": schema_of(kind.elementType, kind.containsNull, micros)}
    elif isinstance(kind, t.MapType):
        keys = schema_of(kind.keyType, False, micros)
        values = schema_of(kind.valueType, kind.valueContainsNull, micros)
        made = {"type": "map", "keys": keys, "values": values}
    elif isinstance(kind, t.DecimalType):
        parameters = {"scale": str(kind.scale), _PRECISION: str(kind.precision)}
        made = {"type": "bytes", "name": DECIMAL, "version": 1, "parameters": parameters}
    elif isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        made = {"type": "int64", "name": MICROS if micros else TIMESTAMP, "version": 1}
    else:
        made = dict(_BACK[type(kind)])
    made["optional"] = nullable
    if field is not None:
        made["field"] = field
    return made


def payload_reader(
    schema: Any, wanted: t.StructType, new_fields: str | None, path: str = ""
) -> Callable[[Any], Row]:
    """A function from a payload that has this schema to a row of the wanted columns.

    new_fields   the kind of failure for a field that is not wanted; None to leave it out
    """
    names = struct_of(schema).names
    described = {field["field"]: field for field in schema.get("fields") or ()}
    inside = f"{path}." if path else ""
    new = [f"{inside}{name}" for name in names if name not in set(wanted.names)]
    if new and new_fields is not None:
        shown_names = ", ".join(new[:5])
        raise Undecodable(new_fields, f"fields that the schema does not have: {shown_names}")
    if not path and described.keys().isdisjoint(wanted.names):
        raise Undecodable(MISSING, "none of the schema's fields is there")
    readers = [
        (
            f"{inside}{field.name}",
            field.name,
            *_field(field, described.get(field.name), new_fields, f"{inside}{field.name}"),
        )
        for field in wanted.fields
    ]

    def row(payload: Any) -> Row:
        if not isinstance(payload, dict):
            what = f"field {path}" if path else "the payload"
            raise Undecodable(WRONG_TYPE, f"{what} is {shown(payload)}, not an object")
        made = []
        for full, name, read, nullable, default in readers:
            value = payload.get(name)
            if value is None:
                value = default
            if value is None and not nullable:
                raise Undecodable(MISSING, f"field {full}: null, and it must not be")
            made.append(None if value is None else read(value))
        return tuple(made)

    return row


def _field(
    field: t.StructField, schema: Any, new_fields: str | None, path: str
) -> tuple[Callable[[Any], Any], bool, Any]:
    """How one field is read, whether it may be null, and its default."""
    if schema is not None:
        read = _reader(schema, field.dataType, new_fields, path)
        return read, field.nullable, schema.get("default")
    if not field.nullable:
        what = f"field {path}: the record's schema does not have it"
        raise Undecodable(SCHEMA_MISMATCH, what)
    return lambda value: None, True, None


def _reader(
    schema: Any, wanted: t.DataType, new_fields: str | None, path: str
) -> Callable[[Any], Any]:
    from ottla.pipelines.connectors.formats.json_values import converter

    name = schema.get("name")
    found = _type_of(schema, 0)
    if isinstance(wanted, t.StructType) and isinstance(found, t.StructType):
        inner: Callable[[Any], Any] = payload_reader(schema, wanted, new_fields, path)
        return inner
    if isinstance(wanted, t.ArrayType) and isinstance(found, t.ArrayType):
        item = _or_null(_reader(schema["items"], wanted.elementType, new_fields, f"{path}[]"))
        return lambda value: [item(one) for one in _expected(value, list, path)]
    if isinstance(wanted, t.MapType) and isinstance(found, t.MapType):
        each = _or_null(_reader(schema["values"], wanted.valueType, new_fields, f"{path}[]"))
        return lambda value: [(k, each(v)) for k, v in _expected(value, dict, path).items()]
    if isinstance(wanted, t.DecimalType) and isinstance(found, t.DecimalType):
        return _decimal(found.scale, wanted, path)
    if type(wanted) is not type(found) and not _widens(found, wanted):
        raise Undecodable(
            SCHEMA_MISMATCH,
            f"field {path}: {found.simpleString()} cannot be read as {wanted.simpleString()}",
        )
    if isinstance(wanted, (t.DateType, t.TimestampType)):
        step = 1 if name in (MICROS, DATE, DAYS) else _MILLI
        return _counted(step, path)
    read: Callable[[Any], Any] = converter(wanted, True, path, None)
    return read


def _widens(found: t.DataType, wanted: t.DataType) -> bool:
    if isinstance(wanted, t.TimestampNTZType) and isinstance(found, t.TimestampType):
        return False
    bits = text_values.INTEGERS
    if type(found) in bits and type(wanted) in bits:
        return bits[type(found)] <= bits[type(wanted)]
    return isinstance(found, t.FloatType) and isinstance(wanted, t.DoubleType)


def _or_null(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _expected(value: Any, kind: type, path: str) -> Any:
    if not isinstance(value, kind):
        raise Undecodable(WRONG_TYPE, f"field {path}: {shown(value)} is no {kind.__name__}")
    return value


def _counted(step: int, path: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not -_INT64 <= value * step < _INT64:
            raise Undecodable(WRONG_TYPE, f"field {path}: {shown(value)} is no date or time")
        return value * step

    return read


def _decimal(scale: int, wanted: t.DecimalType, path: str) -> Callable[[Any], int]:
    """Base64 of the unscaled digits, or with `decimal.format=NUMERIC` a number."""
    from_text = text_values.decimal(wanted.precision, wanted.scale)

    def read(value: Any) -> int:
        try:
            if type(value) is str:
                data = base64.b64decode(value, validate=True)
                unscaled = int.from_bytes(data, "big", signed=True)
                return from_text(text_values.write_decimal(unscaled, scale))
            if type(value) is bool or not isinstance(value, (int, float, str)):
                raise ValueError("is no decimal number")
            return from_text(str(value))
        except (ValueError, binascii.Error) as error:
            raise Undecodable(WRONG_TYPE, f"field {path}: {shown(value)} {error}") from None

    return read


def payload_writer(kind: t.DataType, micros: bool) -> Callable[[Any], Any]:  # noqa: PLR0911 - by type
    """A function from a plain value to what `json.dumps` writes."""
    if isinstance(kind, t.StructType):
        inner = [(field.name, payload_writer(field.dataType, micros)) for field in kind.fields]
        return lambda row: (
            None
            if row is None
            else {name: write(value) for (name, write), value in zip(inner, row, strict=True)}
        )
    if isinstance(kind, t.ArrayType):
        item = payload_writer(kind.elementType, micros)
        return lambda values: None if values is None else [item(value) for value in values]
    if isinstance(kind, t.MapType):
        each = payload_writer(kind.valueType, micros)
        return lambda pairs: None if pairs is None else {k: each(v) for k, v in pairs}
    if isinstance(kind, t.DecimalType):
        return _or_null(_unscaled)
    if isinstance(kind, t.BinaryType):
        return _or_null(lambda value: base64.b64encode(value).decode())
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        step = 1 if micros else _MILLI
        return _or_null(lambda value: value // step)
    if isinstance(kind, (t.FloatType, t.DoubleType)):
        return _or_null(_finite)
    return lambda value: value


def _unscaled(value: int) -> str:
    length = (value if value >= 0 else ~value).bit_length() // 8 + 1
    return base64.b64encode(value.to_bytes(length, "big", signed=True)).decode()


def _finite(value: float) -> Any:
    text = text_values.write_floating(value)
    return text if text in text_values.NOT_FINITE else value


def dumps(value: Any) -> bytes:
    """JSON without a space that nobody needs."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
