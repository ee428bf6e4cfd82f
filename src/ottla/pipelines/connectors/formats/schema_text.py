"""Schemas as text, in Spark's own notation, without Spark.

    id bigint not null,
    customer string,          -- remarks are allowed
    address struct<street: string, city: string>,
    tags array<string>, attributes map<string, string>, amount decimal(10, 2)

Spark has a parser of this, in the JVM. A pipeline's file is checked where no JVM runs, and the file
that a schema is pinned in should look the same whoever has written it.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import types as t

_SIMPLE: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "byte": t.ByteType(),
    "smallint": t.ShortType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "real": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
}
_TOKEN = re.compile(r"\s*+(?:--[^\n]*+\s*+)*+(`(?:[^`]|``)+`|[^\W\d]\w*|\d+|[<>(),:])")
_END = re.compile(r"\s*+(?:--[^\n]*+\s*+)*+\Z")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*", re.ASCII)
_DEEPEST: Final = 50
_KEYWORDS: Final = frozenset({"not", "comment"})


class SchemaError(ValueError):
    """A text that is no schema; says where."""


def read(text: str) -> t.StructType:
    """The schema that a text says."""
    return _Parser(text).schema()


def write(schema: t.StructType) -> str:
    """One field a line, as `read` reads it."""
    return ",\n".join(_field(field, " ") for field in schema.fields) + "\n"


def write_inline(schema: t.StructType) -> str:
    """The same in one line."""
    return ", ".join(_field(field, " ") for field in schema.fields)


def _field(field: t.StructField, between: str) -> str:
    name = field.name
    if not _PLAIN_NAME.fullmatch(name) or name.lower() in _KEYWORDS:
        name = "`" + name.replace("`", "``") + "`"
    return f"{name}{between}{_type(field.dataType)}{'' if field.nullable else ' not null'}"


def _type(kind: t.DataType) -> str:
    if isinstance(kind, t.StructType):
        return f"struct<{', '.join(_field(field, ': ') for field in kind.fields)}>"
    if isinstance(kind, t.ArrayType):
        return f"array<{_type(kind.elementType)}>"
    if isinstance(kind, t.MapType):
        return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
    if isinstance(kind, t.DecimalType):
        return f"decimal({kind.precision}, {kind.scale})"
    return kind.simpleString()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._next = ""
        self._depth = 0
        self._advance()

    def schema(self) -> t.StructType:
        if not self._next:
            raise SchemaError("the schema is empty: write a name and a type for each field")
        return t.StructType(self._fields(""))

    def _advance(self) -> str:
        taken = self._next
        match = _TOKEN.match(self._text, self._place)
        if match:
            self._next = match[1]
            self._place = match.end()
        elif _END.match(self._text, self._place):
            self._next = ""
            self._place = len(self._text)
        else:
            raise self._error(f"{self._text[self._place :].strip()[:10]!r} cannot stand here")
        return taken

    def _error(self, sentence: str) -> SchemaError:
        before = self._text[: self._place - len(self._next)]
        line = before.count("\n") + 1
        return SchemaError(f"line {line} of the schema: {sentence}")

    def _expect(self, token: str) -> None:
        if self._next != token:
            raise self._error(f"{token!r} is expected, not {self._next or 'the end'!r}")
        self._advance()

    def _fields(self, end: str) -> list[t.StructField]:
        found: list[t.StructField] = []
        while True:
            found.append(self._field(nested=bool(end)))
            if any(found[-1].name.lower() == other.name.lower() for other in found[:-1]):
                raise self._error(f"there are two fields {found[-1].name}")
            if self._next != ",":
                break
            self._advance()
            if not self._next and not end:  # a comma behind the last field
                break
        if self._next != end:
            raise self._error(f"',' is expected, not {self._next or 'the end'!r}")
        return found

    def _field(self, nested: bool) -> t.StructField:
        if not self._next or self._next[0] in "<>(),:" or self._next.isdigit():
            raise self._error(f"a field's name is expected, not {self._next or 'the end'!r}")
        token = self._advance()
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        if self._next == ":":
            self._advance()
        elif nested and not self._next:
            raise self._error("':' is expected")
        kind = self._type()
        nullable = True
        if self._next.lower() == "not":
            self._advance()
            if self._next.lower() != "null":
                raise self._error("'null' is expected behind 'not'")
            self._advance()
            nullable = False
        return t.StructField(name, kind, nullable)

    def _type(self) -> t.DataType:
        name = self._next.lower()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("types are nested too deeply")
        found: t.DataType
        if name in ("decimal", "numeric", "dec"):
            self._advance()
            found = self._decimal()
        elif name == "array":
            self._advance()
            self._expect("<")
            found = t.ArrayType(self._type())
            self._expect(">")
        elif name == "map":
            self._advance()
            self._expect("<")
            key = self._type()
            self._expect(",")
            found = t.MapType(key, self._type())
            self._expect(">")
        elif name == "struct":
            self._advance()
            self._expect("<")
            found = t.StructType(self._fields(">"))
            self._expect(">")
        elif name in _SIMPLE:
            self._advance()
            found = _SIMPLE[name]
        else:
            raise self._error(f"{self._next or 'the end'!r} is no type (such as bigint or string)")
        self._depth -= 1
        return found

    def _decimal(self) -> t.DecimalType:
        if self._next != "(":
            return t.DecimalType(10, 0)
        self._advance()
        precision, scale = self._number(), 0
        if self._next == ",":
            self._advance()
            scale = self._number()
        self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error("decimal(p, s) has 1 to 38 digits, s of them behind the point")
        return t.DecimalType(precision, scale)

    def _number(self) -> int:
        if not self._next.isdigit() or len(self._next) > 3:
            raise self._error(f"a number is expected, not {self._next or 'the end'!r}")
        return int(self._advance())
