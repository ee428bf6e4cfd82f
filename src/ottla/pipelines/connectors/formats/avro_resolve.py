"""Which of a writer's types can be read as which of a reader's: Avro's schema resolution.

By Avro's rules, and a little wider where the reader's type is one of Spark's: an enum can be read
as a string, a fixed as bytes, a decimal as one of another scale as long as no digit is lost.

And a little narrower, where Avro's rules look at bytes only: a date, a time of day or nanoseconds
are not read as a timestamp, a text's letters are no digits of a decimal, and its digits no text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from ottla.pipelines.connectors.formats.avro_schema import (
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
    widest,
)

_PROMOTIONS: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
    "boolean": ("boolean",),
    "null": ("null",),
}
_MILLI: Final = 1_000
_MOMENTS: Final = ("timestamp-millis", "timestamp-micros")


def reads(writer: Node, reader: Node) -> bool:  # noqa: PLR0911 - one for each type
    """Whether some value of the writer's type is one of the reader's; unions are told elsewhere."""
    if isinstance(writer, (Primitive, Fixed)) and not _means_the_same(writer, reader):
        return False
    if isinstance(writer, Primitive):
        if isinstance(reader, Primitive):
            return reader.name in _PROMOTIONS[writer.name]
        return isinstance(reader, Fixed) and writer.name == "bytes" and is_decimal(reader)
    if isinstance(writer, Fixed):
        if isinstance(reader, Fixed):
            decimals = is_decimal(reader) and written_decimal(writer) is not None
            return reader.size == writer.size or decimals
        return isinstance(reader, Primitive) and reader.name == "bytes"
    if isinstance(writer, Enum):
        if isinstance(reader, Primitive):
            return reader.name in ("string", "bytes") and not is_decimal(reader)
        return isinstance(reader, Enum)
    return type(writer) is type(reader)


def _means_the_same(writer: Primitive | Fixed, reader: Node) -> bool:
    """Whether the writer's logical type is what the reader takes the value for.

    A reader without a logical type takes the bare value, and so does one with a writer that has
    none: that is how a logical type is added to a schema.
    """
    if not isinstance(reader, (Primitive, Fixed)):
        return True
    written = _meaning(writer.logical or writer.foreign)
    wanted = _meaning(reader.logical)
    if wanted == "":
        return written != "decimal" or reader.name != "string"
    if wanted == "decimal" and writer.name == "string":
        return False
    return written in ("", wanted)


def _meaning(logical: Logical | None) -> str:
    """The name of a logical type; times that differ in unit and place only have one in common."""
    if logical is None:
        return ""
    return "timestamp" if logical.name.endswith(_MOMENTS) else logical.name


def is_decimal(node: Node) -> bool:
    """Whether bytes are digits."""
    return isinstance(node, (Primitive, Fixed)) and decimal_of(node) is not None


def decimal_of(node: Node) -> Logical | None:
    """The decimal that a type is, if it is one."""
    logical = getattr(node, "logical", None)
    return logical if isinstance(logical, Logical) and logical.name == "decimal" else None


def written_decimal(node: Node) -> Logical | None:
    """The same of a writer's type, which may have more digits than Spark has: Connect's have 64."""
    foreign = getattr(node, "foreign", None)
    if isinstance(foreign, Logical) and foreign.name == "decimal":
        return foreign
    return decimal_of(node)


def fields_read(writer: Record, reader: Record) -> dict[str, Field]:
    """Which of the reader's fields each of the writer's becomes, by the name that it was written
    under; those that the reader does not have are missing."""
    wanted: dict[str, Field] = {}
    places = {field.name: place for place, field in enumerate(writer.fields)}
    for field in reader.fields:
        # The field's own name comes first, whatever the order in which they were written.
        names = (field.name,) if field.name in places else field.aliases
        written = [name for name in names if name in places]
        if written:
            wanted[min(written, key=places.__getitem__)] = field
    return wanted


def chosen(writer: Node, reader: Union) -> tuple[int, Node]:
    """The reader's branch for a writer's type, and its number among those that are not null."""
    branches = others(reader)
    fitting = _fitting(writer, branches)
    if not fitting:
        raise AvroError(f"{described(writer)} is none of the types of {described(reader)}")
    return fitting[0], branches[fitting[0]]


def _fitting(writer: Node, branches: tuple[Node, ...]) -> list[int]:
    """The numbers of those that a writer's type can be, the best one first.

    Among several types a record is told by its name: read as another one, its fields would be
    missing there, and nulls.
    """
    same = [n for n, branch in enumerate(branches) if _same(writer, branch)]
    if same or (isinstance(writer, Record) and len(branches) > 1):
        return same
    return [n for n, branch in enumerate(branches) if reads(writer, branch)]


def _same(writer: Node, reader: Node) -> bool:
    if isinstance(writer, (Record, Enum, Fixed)) and isinstance(reader, type(writer)):
        named = (reader.name, *reader.aliases)
        return writer.name in named or short(writer.name) in map(short, named)
    if isinstance(writer, Primitive) and isinstance(reader, Primitive):
        return writer.name == reader.name
    return type(writer) is type(reader)


def short(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


def described(node: Node) -> str:
    """A type in a message."""
    if isinstance(node, Union):
        return f"[{', '.join(described(branch) for branch in node.branches)}]"
    if isinstance(node, (Array, Map)):
        return type(node).__name__.lower()
    logical = getattr(node, "logical", None) or getattr(node, "foreign", None)
    return f"{node.name} ({logical.name})" if isinstance(logical, Logical) else node.name


def unit(writer: Node, reader: Node) -> int:
    """How many microseconds one step of a writer's long is, where the reader wants a time."""
    for node in (writer, reader):
        logical = getattr(node, "logical", None)
        if isinstance(logical, Logical) and "timestamp" in logical.name:
            return _MILLI if logical.name.endswith("millis") else 1
    return 1


def least_size(node: Node) -> int:
    """The fewest bytes that a value takes."""
    if isinstance(node, Primitive):
        return {"null": 0, "float": 4, "double": 8}.get(node.name, 1)
    if isinstance(node, Fixed):
        return node.size
    if isinstance(node, Record):
        return sum(least_size(field.type) for field in node.fields)
    return 1


def default_value(node: Node, text: str) -> Any:
    """A default, which is JSON, as a plain value of the reader's type."""
    return _default(node, json.loads(text))


def _default(node: Node, value: Any) -> Any:
    try:
        if isinstance(node, Union):
            return _union_default(node, value)
        if isinstance(node, Record):
            made = []
            for field in node.fields:
                inner = (
                    value[field.name] if field.name in value else json.loads(field.default or "")
                )
                made.append(_default(field.type, inner))
            return tuple(made)
        if isinstance(node, Array):
            return [_default(node.items, item) for item in _of(list, value)]
        if isinstance(node, Map):
            pairs = _of(dict, value).items()
            return [(_text(name), _default(node.values, item)) for name, item in pairs]
        if isinstance(node, Enum):
            return node.symbols[node.symbols.index(value)]
        return _simple_default(node, value)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise AvroError(f"{json.dumps(value)[:40]} is no default for {described(node)}") from None


def _union_default(node: Union, value: Any) -> Any:
    if value is None and nullable(node):
        return None
    branches = others(node)
    if is_choice(node):
        inner = _default(branches[0], value)
        return (inner, *(None,) * (len(branches) - 1))
    return _default(widest(branches) or branches[0], value)


def _simple_default(node: Primitive | Fixed, value: Any) -> Any:
    """Strict: `str(None)` is a text, and `bool("false")` is true."""
    if isinstance(node, Fixed) or node.name == "bytes":
        return _octets_default(node, value.encode("latin-1"))
    if node.name == "null":
        return _of(type(None), value)
    if node.name == "boolean":
        return _of(bool, value)
    if node.name == "string":
        return _text(value)
    if isinstance(value, bool):
        raise TypeError
    if node.name in ("float", "double"):
        return float(value)
    whole = int(value)
    limit = 1 << (node.bits - 1 if node.name == "int" else 63)
    step = unit(node, node)
    if (isinstance(value, float) and whole != value) or not -limit <= whole * step < limit:
        raise ValueError
    return whole * step


def _octets_default(node: Primitive | Fixed, data: bytes) -> Any:
    decimal = decimal_of(node)
    if isinstance(node, Fixed) and len(data) != node.size:
        raise ValueError
    if decimal is None:
        return data
    unscaled = int.from_bytes(data, "big", signed=True)
    if abs(unscaled) >= 10**decimal.precision:
        raise ValueError
    return unscaled


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def _text(value: Any) -> str:
    value.encode()  # half a surrogate pair is no text anywhere else
    return str(value)


def members_of(writer: Union, reader: Node) -> Record | None:
    """The struct<member0, …> that a union of several types becomes, if that is what is wanted.

    It may have fewer members than the union has types, or more: unions gain types at their end, and
    records of both are in one topic.
    """
    if isinstance(reader, Union) and len(others(reader)) == 1:
        reader = others(reader)[0]
    if not is_choice(writer) or not isinstance(reader, Record):
        return None
    names = [f"member{number}" for number in range(len(reader.fields))]
    return reader if [field.name for field in reader.fields] == names else None


def renamed(writer: Node, reader: Node) -> Node:
    """The writer's type with the names that the reader has for its fields, on all levels.

    A field that the reader knows by another name is no new one.
    """
    if isinstance(reader, Union) and len(others(reader)) == 1:
        reader = others(reader)[0]
    if isinstance(writer, Union):
        if is_choice(writer):
            return writer
        return Union(tuple(renamed(branch, reader) for branch in writer.branches))
    if isinstance(writer, Array) and isinstance(reader, Array):
        return Array(renamed(writer.items, reader.items))
    if isinstance(writer, Map) and isinstance(reader, Map):
        return Map(renamed(writer.values, reader.values))
    if not isinstance(writer, Record) or not isinstance(reader, Record):
        return writer
    wanted = fields_read(writer, reader)
    aliases = {alias for field in reader.fields for alias in field.aliases}
    fields = []
    for field in writer.fields:
        into = wanted.get(field.name)
        if into is not None:
            fields.append(replace(field, name=into.name, type=renamed(field.type, into.type)))
        elif field.name not in aliases:
            fields.append(field)
    return replace(writer, fields=tuple(fields))


def _unread_of_union(writer: Union, reader: Node, path: str) -> list[str]:
    members = members_of(writer, reader)
    found: list[str] = []
    for number, branch in enumerate(others(writer)):
        if members is None:
            found += unread(branch, reader, path)
        elif number < len(members.fields):
            found += unread(branch, members.fields[number].type, path)
        else:
            found.append(f"{path}.member{number}" if path else f"member{number}")
    return found


def unread(writer: Node, reader: Node, path: str = "") -> list[str]:
    """The fields that are written and that the reader's schema does not have, by their paths."""
    if isinstance(writer, Union):
        return _unread_of_union(writer, reader, path)
    if isinstance(reader, Union):
        fitting = _fitting(writer, others(reader))
        return unread(writer, others(reader)[fitting[0]], path) if fitting else []
    if isinstance(writer, Array) and isinstance(reader, Array):
        return unread(writer.items, reader.items, f"{path}[]")
    if isinstance(writer, Map) and isinstance(reader, Map):
        return unread(writer.values, reader.values, f"{path}[]")
    if not isinstance(writer, Record) or not isinstance(reader, Record):
        return []
    known = {name: field for field in reader.fields for name in (field.name, *field.aliases)}
    found: list[str] = []
    for field in writer.fields:
        name = f"{path}.{field.name}" if path else field.name
        if field.name in known:
            found += unread(field.type, known[field.name].type, name)
        else:
            found.append(name)
    return found
