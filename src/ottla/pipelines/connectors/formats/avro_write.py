"""Spark's rows as Avro's bytes, and Spark's schemas as Avro's.

A row is written with the schema that its columns have (`node_of`), or with one that the user has
given: columns are found by name, a field without a column takes its default, and a column without a
field is refused, since its values would be lost.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats.avro_resolve import decimal_of, default_value, unit
from ottla.pipelines.connectors.formats.avro_schema import (
    NULL,
    Array,
    AvroError,
    Enum,
    Field,
    Fixed,
    Logical,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    is_choice,
    nullable,
    others,
    spark_type,
    widest,
)
from ottla.pipelines.connectors.formats.plain import Row
from ottla.pipelines.connectors.formats.text_values import INTEGERS

Put: TypeAlias = Callable[[Any, bytearray], None]

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE: Final[dict[type[t.DataType], Primitive]] = {
    t.BooleanType: Primitive("boolean"),
    t.ByteType: Primitive("int", bits=8),
    t.ShortType: Primitive("int", bits=16),
    t.IntegerType: Primitive("int"),
    t.LongType: Primitive("long"),
    t.FloatType: Primitive("float"),
    t.DoubleType: Primitive("double"),
    t.StringType: Primitive("string"),
    t.BinaryType: Primitive("bytes"),
    t.DateType: Primitive("int", Logical("date")),
    t.TimestampType: Primitive("long", Logical("timestamp-micros")),
    t.TimestampNTZType: Primitive("long", Logical("local-timestamp-micros")),
}


def node_of(schema: t.StructType, name: str) -> Node:
    """The Avro schema of these columns; what may be null has null as its default."""
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise AvroError(f"{name!r} is no name in Avro: letters, digits and _ only")
    fields = []
    for field in schema.fields:
        if not _NAME.fullmatch(field.name):
            raise AvroError(
                f"column {field.name!r} is no name in Avro: give it one of letters, digits and _ "
                "in the transform (select … as …)"
            )
        node = _node_of(field.dataType, f"{name}.{field.name}", field.nullable)
        fields.append(Field(field.name, node, "null" if field.nullable else None))
    return Record(name, tuple(fields))


def _node_of(kind: t.DataType, name: str, may_be_null: bool) -> Node:
    node: Node
    if isinstance(kind, t.StructType):
        node = node_of(kind, name)
    elif isinstance(kind, t.ArrayType):
        node = Array(_node_of(kind.elementType, name, kind.containsNull))
    elif isinstance(kind, t.MapType):
        node = Map(_node_of(kind.valueType, name, kind.valueContainsNull))
    elif isinstance(kind, t.DecimalType):
        node = Primitive("bytes", Logical("decimal", kind.precision, kind.scale))
    else:
        node = _SIMPLE[type(kind)]
    return Union((NULL, node)) if may_be_null else node


def text_of(node: Node) -> str:
    """A schema as JSON."""
    return json.dumps(_json_of(node, set()))


def pretty(node: Node) -> str:
    """The same for a file."""
    return json.dumps(_json_of(node, set()), indent=2) + "\n"


def _json_of(node: Node, defined: set[str]) -> Any:  # noqa: C901, PLR0912 - one for each type
    if isinstance(node, Union):
        return [_json_of(branch, defined) for branch in node.branches]
    if isinstance(node, Array):
        return {"type": "array", "items": _json_of(node.items, defined)}
    if isinstance(node, Map):
        return {"type": "map", "values": _json_of(node.values, defined)}
    made: dict[str, Any]
    if isinstance(node, Primitive):
        made = {"type": node.name}
    else:
        if node.name in defined:
            return node.name
        defined.add(node.name)
        made = {"type": type(node).__name__.lower(), "name": node.name}
        if node.aliases:
            made["aliases"] = list(node.aliases)
    if isinstance(node, Record):
        made["fields"] = [_json_of_field(field, defined) for field in node.fields]
    elif isinstance(node, Enum):
        made["symbols"] = list(node.symbols)
        if node.default is not None:
            made["default"] = node.default
    else:
        if isinstance(node, Fixed):
            made["size"] = node.size
        logical = node.logical or node.foreign
        if logical is not None:
            made["logicalType"] = logical.name
            if logical.name == "decimal":
                made |= {"precision": logical.precision, "scale": logical.scale}
    return made["type"] if len(made) == 1 else made


def _json_of_field(field: Field, defined: set[str]) -> dict[str, Any]:
    made = {"name": field.name, "type": _json_of(field.type, defined)}
    if field.default is not None:
        made["default"] = json.loads(field.default)
    if field.aliases:
        made["aliases"] = list(field.aliases)
    return made


def compile_writer(node: Node, schema: t.StructType, prefix: bytes = b"") -> Callable[[Row], bytes]:
    """A function from a row of `schema` to bytes that begin with `prefix`."""
    put = _writer(node, _content(node, schema), "")

    def write(row: Row) -> bytes:
        out = bytearray(prefix)
        put(row if isinstance(node, Record) else row[0], out)
        return bytes(out)

    return write


def _content(node: Node, schema: t.StructType) -> t.DataType:
    """What is written: the row, or its only column if the schema is no record."""
    if isinstance(node, Record):
        return schema
    if len(schema.fields) != 1:
        raise AvroError(f"the schema is no record, and there are {len(schema.fields)} columns")
    return schema.fields[0].dataType


def _number(value: int, out: bytearray) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _octets(value: bytes, out: bytearray) -> None:
    _number(len(value), out)
    out += value


def _text(value: str, out: bytearray) -> None:
    _octets(value.encode(), out)


def _writer(node: Node, kind: t.DataType, path: str) -> Put:
    if isinstance(node, Union):
        return _union(node, kind, path)
    if isinstance(node, Record) and isinstance(kind, t.StructType):
        return _record(node, kind, path)
    if isinstance(node, Array) and isinstance(kind, t.ArrayType):
        return _array(_writer(node.items, kind.elementType, path))
    if isinstance(node, Map) and isinstance(kind, t.MapType):
        return _map(_writer(node.values, kind.valueType, path))
    made = _simple(node, kind, path)
    if made is None:
        shown = type(node).__name__.lower() if not isinstance(node, Primitive) else node.name
        raise AvroError(f"column {path} is {kind.simpleString()}, and the schema wants {shown}")
    checked = made

    def put(value: Any, out: bytearray) -> None:
        if value is None:
            raise ValueError(f"column {path} is null, and the schema does not allow it")
        checked(value, out)

    return put


def _simple(node: Node, kind: t.DataType, path: str) -> Put | None:  # noqa: PLR0911 - by type
    if isinstance(node, Enum):
        return _enum(node, path) if isinstance(kind, t.StringType) else None
    if not isinstance(node, (Primitive, Fixed)):
        return None
    decimal = decimal_of(node)
    if decimal is not None:
        return _decimal(node, kind, decimal)
    if isinstance(node, Fixed):
        return _fixed(node, path) if isinstance(kind, t.BinaryType) else None
    if node.name in ("int", "long"):
        return _integer(node, kind, path)
    if node.name in ("float", "double") and isinstance(
        kind, (t.FloatType, t.DoubleType, t.ByteType, t.ShortType, t.IntegerType)
    ):
        if node.name == "float" and isinstance(kind, (t.DoubleType, t.IntegerType)):
            return None
        pack = (_FLOAT if node.name == "float" else _DOUBLE).pack
        return lambda value, out: out.extend(pack(value))
    exact: dict[str, tuple[type[t.DataType], Put]] = {
        "boolean": (t.BooleanType, lambda value, out: out.append(1 if value else 0)),
        "string": (t.StringType, _text),
        "bytes": (t.BinaryType, _octets),
    }
    wanted, put = exact.get(node.name, (t.NullType, _text))
    return put if type(kind) is wanted else None


def _integer(node: Primitive, kind: t.DataType, path: str) -> Put | None:
    logical = node.logical.name if node.logical is not None else ""
    if isinstance(kind, t.DateType):
        return _number if logical == "date" else None
    if isinstance(kind, (t.TimestampType, t.TimestampNTZType)):
        if "timestamp" not in logical:
            return None
        step = unit(node, node)

        def put_time(value: int, out: bytearray) -> None:
            # Digits below a millisecond are cut, never rounded up: a moment is not moved forward.
            _number(value // step, out)

        return put_time
    if type(kind) not in INTEGERS or logical:
        return None
    if INTEGERS[type(kind)] <= (32 if node.name == "int" else 64):
        return _number
    return None


def _decimal(node: Primitive | Fixed, kind: t.DataType, decimal: Logical) -> Put | None:
    if not isinstance(kind, t.DecimalType) or kind.scale > decimal.scale:
        return None
    if kind.precision - kind.scale > decimal.precision - decimal.scale:
        return None
    factor = 10 ** (decimal.scale - kind.scale)
    size = node.size if isinstance(node, Fixed) else None

    def put(value: int, out: bytearray) -> None:
        value *= factor
        if size is not None:
            out += value.to_bytes(size, "big", signed=True)
        else:
            length = (value if value >= 0 else ~value).bit_length() // 8 + 1
            _octets(value.to_bytes(length, "big", signed=True), out)

    return put


def _fixed(node: Fixed, path: str) -> Put:
    def put(value: bytes, out: bytearray) -> None:
        if len(value) != node.size:
            raise ValueError(f"column {path} has {len(value)} bytes, and {node.name} {node.size}")
        out += value

    return put


def _enum(node: Enum, path: str) -> Put:
    numbers = {symbol: number for number, symbol in enumerate(node.symbols)}

    def put(value: str, out: bytearray) -> None:
        if value not in numbers:
            raise ValueError(f"column {path}: {value[:40]!r} is no symbol of {node.name}")
        _number(numbers[value], out)

    return put


def _record(node: Record, kind: t.StructType, path: str) -> Put:
    places = {field.name: place for place, field in enumerate(kind.fields)}
    puts: list[tuple[int | None, Put, Any]] = []
    for field in node.fields:
        name = f"{path}.{field.name}" if path else field.name
        place = places.pop(field.name, None)
        if place is not None:
            puts.append((place, _writer(field.type, kind.fields[place].dataType, name), None))
        elif field.default is not None:
            default = default_value(field.type, field.default)
            puts.append((None, _writer(field.type, _default_type(field.type), name), default))
        else:
            raise AvroError(f"there is no column {name}, and the schema has no default for it")
    if places:
        raise AvroError(
            f"the schema has no place for {', '.join(sorted(places)[:5])}: add it to the schema, "
            "or leave it out in the transform"
        )

    def put(row: Row, out: bytearray) -> None:
        if row is None:
            raise ValueError(f"column {path} is null, and the schema does not allow it")
        for place, write, default in puts:
            write(default if place is None else row[place], out)

    return put


def _default_type(node: Node) -> t.DataType:
    return t.NullType() if node == NULL else spark_type(node)


def _array(item: Put) -> Put:
    def put(values: list[Any], out: bytearray) -> None:
        if values:
            _number(len(values), out)
            for value in values:
                item(value, out)
        out.append(0)

    return put


def _map(item: Put) -> Put:
    def put(pairs: list[tuple[str, Any]], out: bytearray) -> None:
        if pairs:
            _number(len(pairs), out)
            for name, value in pairs:
                _text(name, out)
                item(value, out)
        out.append(0)

    return put


def _union(node: Union, kind: t.DataType, path: str) -> Put:
    null = node.branches.index(NULL) if nullable(node) else None
    if is_choice(node) and isinstance(kind, t.StructType):
        members = _members(node, kind, path)
    else:
        members = [_one_of(node, kind, path)]

    def put(value: Any, out: bytearray) -> None:
        if value is None:
            if null is None:
                raise ValueError(f"column {path} is null, and the schema does not allow it")
            _number(null, out)
        elif len(members) == 1:
            number, write = members[0]
            _number(number, out)
            write(value, out)
        else:
            there = [place for place, member in enumerate(value) if member is not None]
            if len(there) != 1:
                raise ValueError(f"column {path}: one member must be set, not {len(there)}")
            number, write = members[there[0]]
            _number(number, out)
            write(value[there[0]], out)

    return put


def _members(node: Union, kind: t.StructType, path: str) -> list[tuple[int, Put]]:
    branches = others(node)
    if len(kind.fields) != len(branches):
        raise AvroError(f"column {path} has {len(kind.fields)} members, the union {len(branches)}")
    return [
        (node.branches.index(branch), _writer(branch, field.dataType, f"{path}.{field.name}"))
        for branch, field in zip(branches, kind.fields, strict=True)
    ]


def _one_of(node: Union, kind: t.DataType, path: str) -> tuple[int, Put]:
    branches = others(node)
    wide = widest(branches) if len(branches) > 1 else None
    if wide is not None:
        branches = (wide,)
    if isinstance(kind, t.NullType):
        return 0, _text
    for branch in branches:
        try:
            return node.branches.index(branch), _writer(branch, kind, path)
        except AvroError:
            if len(branches) == 1:
                raise
    raise AvroError(f"column {path} is {kind.simpleString()}, which is no type of the union")
