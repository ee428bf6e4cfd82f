"""Avro's schemas: read from JSON, and what they are in Spark.

    boolean, int, long, float, double, string   the same; bytes and fixed are binary, enum is string
    decimal, date                               the same
    timestamp-millis, timestamp-micros          timestamp; local-timestamp-… timestamp_ntz
    other logical types (uuid, time-…, duration, …)   what they are made of
    array, map, record                          array, map<string, …>, struct
    union of null and one type                  that type, which may be null
    union of int and long, of float and double  the wider one
    other unions                                struct<member0, member1, …>, one of them not null
    a schema that is no record                  one column, `value`

That is how Spark's own Avro module maps them. A type that contains itself has no place in Spark and
is refused, and so is null alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import plain

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
ONLY_COLUMN: Final = "value"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEEPEST: Final = 40
_DEEPEST_BY_NAME: Final = 80
_MOST_TYPES: Final = 20_000
"""Where each name is what it stands for: a reader is made in a second or two of so many."""
_DIGITS: Final = 38
_DECIMAL_BYTES: Final = 16
"""So many have room for all digits that Spark has."""


class AvroError(ValueError):
    """A schema that is none, or one that Spark has no place for."""


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type; precision and scale are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Primitive:
    """`bits` narrows an int to Spark's tinyint and smallint, which Avro does not have.

    `foreign` is a logical type that Spark has no type for. Values are what it is made of, but they
    are no times or decimals of another kind.
    """

    name: str
    logical: Logical | None = None
    bits: int = 32
    foreign: Logical | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    name: str
    size: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = ()
    foreign: Logical | None = None


@dataclass(frozen=True, slots=True)
class Enum:
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Array:
    items: Node


@dataclass(frozen=True, slots=True)
class Map:
    values: Node


@dataclass(frozen=True, slots=True)
class Union:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """`default` is JSON text, or None: a value that dataclasses can compare and hash."""

    name: str
    type: Node
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()


Node: TypeAlias = Primitive | Fixed | Enum | Array | Map | Union | Record
NULL: Final = Primitive("null")


def parse(text: str, references: tuple[str, ...] = ()) -> Node:
    """A schema from its JSON; `references` are schemas whose names it uses."""
    parser = _Parser()
    for reference in references:
        parser.node(load(reference), "", 0)
    found = parser.node(load(text), "", 0)
    parser.check(found)
    return found


def load(text: str) -> Any:
    """A schema's text as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # The registry gives "string" with its quotes, people write string without them.
        if text.strip() in PRIMITIVES:
            return text.strip()
        raise AvroError(f"no JSON: {error}") from None


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Node | None] = {}
        self._extents: dict[str, tuple[int, int]] = {}

    def node(self, value: Any, space: str, depth: int) -> Node:  # noqa: PLR0911 - one for each type
        if depth > _DEEPEST:
            raise AvroError("types are nested too deeply")
        if isinstance(value, str):
            return self._by_name(value, space)
        if isinstance(value, list):
            return self._union(value, space, depth)
        if not isinstance(value, dict) or "type" not in value:
            raise AvroError(f"{str(value)[:60]!r} is no type of Avro")
        kind = value["type"]
        if kind == "array":
            return Array(self.node(value.get("items"), space, depth + 1))
        if kind == "map":
            return Map(self.node(value.get("values"), space, depth + 1))
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(kind, value, space, depth)
        if isinstance(kind, str) and kind in PRIMITIVES:
            logical, foreign = _logical(value, kind, 0)
            return Primitive(kind, logical, foreign=foreign)
        return self.node(kind, space, depth + 1)

    def _by_name(self, name: str, space: str) -> Node:
        if name in PRIMITIVES:
            return Primitive(name)
        full = name if "." in name or not space else f"{space}.{name}"
        for candidate in (full, name):
            if candidate in self._named:
                found = self._named[candidate]
                if found is None:
                    raise AvroError(f"{name} contains itself, which Spark has no type for")
                return found
        raise AvroError(f"{name!r} is no type of Avro, and none that the schema defines")

    def _union(self, value: list[Any], space: str, depth: int) -> Union:
        branches = tuple(self.node(branch, space, depth + 1) for branch in value)
        if not branches or any(isinstance(branch, Union) for branch in branches):
            raise AvroError("a union has at least one type, and no union among them")
        kinds = [branch_name(branch) for branch in branches]
        if len(set(kinds)) != len(kinds):
            raise AvroError(f"a union has two types of one name: {', '.join(kinds)}")
        return Union(branches)

    def _define(self, kind: str, value: dict[str, Any], space: str, depth: int) -> Node:
        name = str(value.get("name", ""))
        if "." not in name and value.get("namespace", space):
            name = f"{value.get('namespace', space)}.{name}"
        if not all(_NAME.fullmatch(part) for part in name.split(".")):
            raise AvroError(f"{name[:60]!r} is no name in Avro")
        if name in self._named:
            raise AvroError(f"{name} is defined twice")
        aliases = _texts(value.get("aliases"), f"aliases of {name}")
        self._named[name] = None
        made: Node
        if kind == "enum":
            symbols = _texts(value.get("symbols"), f"symbols of {name}")
            default = value.get("default")
            if not symbols or len(set(symbols)) != len(symbols):
                raise AvroError(f"the symbols of {name} are none, or not unique")
            if default is not None and default not in symbols:
                raise AvroError(f"the default of {name} is none of its symbols")
            made = Enum(name, symbols, default, aliases)
        elif kind == "fixed":
            size = value.get("size")
            if not isinstance(size, int) or not 0 <= size < 1 << 31:
                raise AvroError(f"the size of {name} is no number of bytes")
            logical, foreign = _logical(value, "fixed", size)
            made = Fixed(name, size, logical, aliases, foreign)
        else:
            made = self._record(name, value, aliases, depth)
        self._measure(name, made)
        self._named[name] = made
        return made

    def _measure(self, name: str, made: Node) -> None:
        """How large it is once each name is what it stands for; refused if it is too large.

        A name is a word in the text, and all that it stands for in a reader: sixty records of
        which each has the one before it twice are more than any memory holds.
        """
        inner = [self._extent(field.type) for field in getattr(made, "fields", ())]
        types = 1 + sum(types for types, _ in inner)
        self._extents[name] = types, 1 + max((depth for _, depth in inner), default=0)
        self.check(made)

    def check(self, node: Node) -> None:
        """Refuse a type that is too large."""
        types, depth = self._extent(node)
        if depth > _DEEPEST_BY_NAME:
            raise AvroError("types are nested too deeply")
        if types > _MOST_TYPES:
            raise AvroError(f"the schema is too large: it has more than {_MOST_TYPES} types")

    def _extent(self, node: Node) -> tuple[int, int]:
        """How many types are in it, and how deep it is."""
        if isinstance(node, Union):
            inner = [self._extent(branch) for branch in node.branches]
            return 1 + sum(types for types, _ in inner), 1 + max(depth for _, depth in inner)
        if isinstance(node, (Array, Map)):
            types, depth = self._extent(node.items if isinstance(node, Array) else node.values)
            return types + 1, depth + 1
        return (1, 1) if isinstance(node, Primitive) else self._extents[node.name]

    def _record(
        self, name: str, value: dict[str, Any], aliases: tuple[str, ...], depth: int
    ) -> Record:
        listed = value.get("fields")
        if not isinstance(listed, list):
            raise AvroError(f"the record {name} has no list of fields")
        space = name.rpartition(".")[0]
        fields = []
        for item in listed:
            called = item.get("name") if isinstance(item, dict) else None
            if not isinstance(called, str) or not _NAME.fullmatch(called):
                raise AvroError(f"a field of {name} has no name")
            default = json.dumps(item["default"]) if "default" in item else None
            node = self.node(item.get("type"), space, depth + 1)
            others = _texts(item.get("aliases"), f"aliases of {called}")
            fields.append(Field(called, node, default, others))
        if len({field.name for field in fields}) != len(fields):
            raise AvroError(f"the record {name} has two fields of one name")
        return Record(name, tuple(fields), aliases)


def _texts(value: Any, what: str) -> tuple[str, ...]:
    try:
        if value is None or isinstance(value, list):
            return tuple(str(each) for each in value or () if each.encode() is not None)
    except (AttributeError, UnicodeEncodeError):
        pass  # no text, or half a surrogate pair
    raise AvroError(f"the {what} are no list of texts")


def branch_name(node: Node) -> str:
    """What tells the types of a union apart."""
    if isinstance(node, (Primitive, Record, Enum, Fixed)):
        return node.name
    return type(node).__name__.lower()


_LOGICAL: Final = {
    "decimal": ("bytes", "fixed"),
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
}
_FOREIGN: Final = {
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
}


def _logical(value: dict[str, Any], kind: str, size: int) -> tuple[Logical | None, Logical | None]:
    """One that Spark has a type for, or one that it has none for.

    What is wrong with either is ignored, as Avro wants it.
    """
    name = value.get("logicalType")
    if not isinstance(name, str):
        return None, None
    if kind in _FOREIGN.get(name, ()):
        return None, Logical(name)
    if kind not in _LOGICAL.get(name, ()):
        return None, None
    if name != "decimal":
        return Logical(name), None
    found = _decimal(value, size if kind == "fixed" else _DECIMAL_BYTES)
    return (None, found) if found is not None and found.precision > _DIGITS else (found, None)


def _decimal(value: dict[str, Any], size: int) -> Logical | None:
    precision, scale = value.get("precision"), value.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 <= scale <= precision or precision < 1:
        return None
    # A size of two billion is a number of two gigabytes, if it is not looked at before.
    if size < _DECIMAL_BYTES and 10 ** min(precision, _DIGITS) > 1 << max(8 * size - 1, 0):
        return None
    return Logical("decimal", precision, scale)


def nullable(node: Node) -> bool:
    """Whether null is one of its values."""
    return node == NULL or (isinstance(node, Union) and NULL in node.branches)


def others(node: Union) -> tuple[Node, ...]:
    """The branches that are not null."""
    return tuple(branch for branch in node.branches if branch != NULL)


def widest(branches: tuple[Node, ...]) -> Primitive | None:
    """The one number that all branches of a union fit in, if Spark's module takes it so."""
    names = {branch.name if isinstance(branch, Primitive) else "" for branch in branches}
    plain = all(isinstance(branch, Primitive) and branch.logical is None for branch in branches)
    if plain and names == {"int", "long"}:
        return Primitive("long")
    return Primitive("double") if plain and names == {"float", "double"} else None


def is_choice(node: Node) -> bool:
    """Whether a union becomes a struct of members."""
    return isinstance(node, Union) and len(others(node)) > 1 and widest(others(node)) is None


def struct_of(node: Node) -> t.StructType:
    """The columns of a schema."""
    if isinstance(node, Record):
        return _struct(node)
    return t.StructType([t.StructField(ONLY_COLUMN, spark_type(node), nullable(node))])


def _struct(node: Record) -> t.StructType:
    return t.StructType(
        [
            t.StructField(field.name, spark_type(field.type), nullable(field.type))
            for field in node.fields
        ]
    )


_SIMPLE: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "local-timestamp-millis": t.TimestampNTZType(),
    "local-timestamp-micros": t.TimestampNTZType(),
}
_INTEGERS: Final = {8: t.ByteType(), 16: t.ShortType(), 32: t.IntegerType()}


def spark_type(node: Node) -> t.DataType:  # noqa: C901, PLR0911 - one for each type
    """What a schema is in Spark."""
    if isinstance(node, Record):
        return _struct(node)
    if isinstance(node, Array):
        return t.ArrayType(spark_type(node.items), nullable(node.items))
    if isinstance(node, Map):
        return t.MapType(t.StringType(), spark_type(node.values), nullable(node.values))
    if isinstance(node, Union):
        branches = others(node)
        if not branches:
            raise AvroError("null alone has no type in Spark")
        one = branches[0] if len(branches) == 1 else widest(branches)
        if one is not None:
            return spark_type(one)
        return t.StructType(
            [t.StructField(f"member{n}", spark_type(b)) for n, b in enumerate(branches)]
        )
    if isinstance(node, Enum):
        return t.StringType()
    if node.logical is not None:
        if node.logical.name == "decimal":
            return t.DecimalType(node.logical.precision, node.logical.scale)
        return _SIMPLE[node.logical.name]
    if isinstance(node, Fixed):
        return t.BinaryType()
    if node == NULL:
        raise AvroError("null alone has no type in Spark")
    return _INTEGERS[node.bits] if node.name == "int" else _SIMPLE[node.name]


def extended(node: Node, schema: t.StructType) -> Node:
    """A reader's schema, and behind its fields those that only `schema` has, on all levels.

    Aliases and defaults stay; a field whose type cannot be extended gets that of `schema`.
    """
    from ottla.pipelines.connectors.formats.avro_write import node_of

    if not isinstance(node, Record):
        return node
    fields = []
    theirs = {field.name: field for field in schema.fields}
    for field in node.fields:
        wanted = theirs.pop(field.name, None)
        if wanted is None:
            fields.append(field)
            continue
        kind = _extended_type(field.type, wanted.dataType)
        if plain.loose(spark_type(kind)) == plain.loose(wanted.dataType):
            fields.append(replace(field, type=kind))
        else:
            made = node_of(t.StructType([wanted]), node.name)
            assert isinstance(made, Record)
            fields.append(replace(made.fields[0], aliases=field.aliases))
    for new in theirs.values():
        made = node_of(t.StructType([new]), node.name)
        assert isinstance(made, Record)
        fields += made.fields
    return replace(node, fields=tuple(fields))


def _extended_type(node: Node, kind: t.DataType) -> Node:
    if isinstance(node, Union) and not is_choice(node):
        return Union(tuple(_extended_type(branch, kind) for branch in node.branches))
    if isinstance(node, Array) and isinstance(kind, t.ArrayType):
        return Array(_extended_type(node.items, kind.elementType))
    if isinstance(node, Map) and isinstance(kind, t.MapType):
        return Map(_extended_type(node.values, kind.valueType))
    return extended(node, kind) if isinstance(kind, t.StructType) else node
