"""csv: a record's value is one line of fields, in the order of the schema.

As RFC 4180 has it: a field with the delimiter, a quote or a line break in it stands between quotes,
and a quote in it is doubled. An empty field is null, and "" an empty text. The number of fields
must be right, and each is read strictly (`text_values.py`): Spark's `from_csv` makes nulls of what
it cannot read and of fields that are not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import plain, text_values
from ottla.pipelines.connectors.formats.base import Base
from ottla.pipelines.connectors.formats.columns import decoded, encoded
from ottla.pipelines.connectors.formats.failure import (
    DAMAGED,
    MISSING,
    WRONG_TYPE,
    Undecodable,
    shown,
)
from ottla.pipelines.connectors.formats.plain import Row
from ottla.pipelines.connectors.formats.schema_file import SCHEMA, SCHEMA_FILE, SchemaPlace
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option

if TYPE_CHECKING:
    from pyspark.sql import Column

_NESTED: Final = (t.StructType, t.ArrayType, t.MapType)


@dataclass(frozen=True, slots=True)
class Csv(Base):
    """Comma-separated values, or separated by another character."""

    place: SchemaPlace
    delimiter: str = ","

    def schema(self) -> t.StructType | None:
        """What the options or the file say."""
        found = self.place.load()
        if found is not None:
            check_flat(found)
        return found

    def infer(self, sample: list[bytes]) -> t.StructType:
        """As many texts as the first values have fields: c0, c1, …"""
        split = _splitter(self.delimiter)
        counts = set()
        for data in sample:
            try:
                counts.add(len(split(data)))
            except Undecodable:
                continue
        if len(counts) != 1:
            raise ValueError(
                "the values do not have the same number of fields: give a schema, or choose "
                "another format"
            )
        fields = [t.StructField(f"c{number}", t.StringType()) for number in range(counts.pop())]
        return t.StructType(fields)

    def pin(self, schema: t.StructType) -> None:
        """Into the file."""
        self.place.pin(schema)

    def column(self, data: Column, schema: t.StructType) -> Column:
        """In Python, in the tasks."""
        check_flat(schema)
        return decoded(data, schema, compile_reader, schema, self.delimiter)

    def encode(self, row: Column, schema: t.StructType) -> Column:
        """In Python, in the tasks."""
        check_flat(schema)
        return encoded(row, schema, compile_writer, schema, self.delimiter)


def check_flat(schema: t.StructType) -> None:
    """Refuse what has no place in a line of texts."""
    plain.check(schema)
    for field in schema.fields:
        if isinstance(field.dataType, _NESTED):
            raise ValueError(
                f"column {field.name} is {field.dataType.simpleString()}, which csv has no place "
                "for: use json, or to_json in the transform"
            )


def compile_reader(schema: t.StructType, delimiter: str) -> Callable[[bytes], Row]:
    """A function from a line to a row."""
    split = _splitter(delimiter)
    fields = [
        (field.name, text_values.reader(field.dataType), field.nullable) for field in schema.fields
    ]
    count = len(fields)

    def read(data: bytes) -> Row:
        texts = split(data)
        if len(texts) != count:
            raise Undecodable(WRONG_TYPE, f"{len(texts)} fields, and the schema has {count}")
        row: list[Any] = []
        for text, (name, convert, nullable) in zip(texts, fields, strict=True):
            if text is None:
                if not nullable:
                    raise Undecodable(MISSING, f"field {name}: empty, and it must not be")
                row.append(None)
                continue
            try:
                row.append(convert(text))
            except ValueError as error:
                raise Undecodable(WRONG_TYPE, f"field {name}: {shown(text)} {error}") from None
        return tuple(row)

    return read


def _splitter(delimiter: str) -> Callable[[bytes], list[str | None]]:
    """A function from a line to its fields; None for one that is empty and not quoted."""
    apart = re.escape(delimiter)
    field = re.compile(rf'"((?:[^"]|"")*)"(?={apart}|\Z)|([^"\r\n{apart}]*)(?={apart}|\Z)')

    def split(data: bytes) -> list[str | None]:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(DAMAGED, f"no UTF-8 at byte {error.start}") from None
        text = text.removesuffix("\n").removesuffix("\r")
        if '"' not in text:
            if "\n" in text or "\r" in text:
                raise Undecodable(DAMAGED, "more than one line")
            return [part or None for part in text.split(delimiter)]
        found: list[str | None] = []
        place = 0
        while True:
            match = field.match(text, place)
            if match is None:
                raise Undecodable(DAMAGED, f"no CSV at character {place}")
            quoted, bare = match.groups()
            found.append(bare or None if quoted is None else quoted.replace('""', '"'))
            place = match.end()
            if place == len(text):
                return found
            place += len(delimiter)

    return split


def _quoted(text: str, special: frozenset[str]) -> str:
    if not text or not special.isdisjoint(text):
        return '"' + text.replace('"', '""') + '"'
    return text


def compile_writer(schema: t.StructType, delimiter: str) -> Callable[[Row], bytes]:
    """A function from a row to a line without a line break."""
    writers = [text_values.writer(field.dataType) for field in schema.fields]
    quoted = partial(_quoted, special=frozenset(f'"\r\n{delimiter}'))

    def write(row: Row) -> bytes:
        parts = [
            "" if value is None else quoted(to_text(value))
            for value, to_text in zip(row, writers, strict=True)
        ]
        return delimiter.join(parts).encode()

    return write


def _delimiter(value: Any) -> None:
    if not isinstance(value, str) or len(value) != 1 or value in '"\r\n':
        raise ValueError("a delimiter is one character, and neither a quote nor a line break")


def _make(options: Mapping[str, Any]) -> Csv:
    made = Csv(SchemaPlace.from_options(options), options["delimiter"])
    if made.place.text is not None:
        try:
            made.schema()
        except ValueError as error:
            raise Mistake("schema", str(error)) from None
    return made


CSV: Final = Declaration(
    "csv",
    "One line of comma-separated values for each record.",
    (
        SCHEMA,
        SCHEMA_FILE,
        Option(
            "delimiter",
            Kind.TEXT,
            "What stands between two fields.",
            default=",",
            check=_delimiter,
        ),
    ),
    _make,
)
