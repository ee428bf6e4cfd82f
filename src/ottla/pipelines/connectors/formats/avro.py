"""avro: a record's value is one Avro datum, alone or behind Confluent's five bytes.

With a registry every record begins with a zero and the id of the schema that it was written with
(the framing of Confluent's serializers). That schema is asked for once and resolved against the one
that is wanted: `schema`, `schema_file`, or what the registry has as the subject's newest when the
pipeline first runs. Without a registry all records are of `schema`.

Written records have the schema of their columns, or `schema`. With a registry it is registered as
`<topic>-value` or `<topic>-key`, like Confluent's serializers do, unless `subject` says otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import avro_schema, inference, plain, schema_text
from ottla.pipelines.connectors.formats.avro_columns import (
    Columns,
    by_head,
    compile_columns,
    read_rows,
    rows_there,
    suits,
    values_of,
)
from ottla.pipelines.connectors.formats.avro_read import compile_reader
from ottla.pipelines.connectors.formats.avro_resolve import fields_read, renamed, unread
from ottla.pipelines.connectors.formats.avro_schema import AvroError, Node, Record
from ottla.pipelines.connectors.formats.avro_write import (
    compile_writer,
    node_of,
    pretty,
    text_of,
)
from ottla.pipelines.connectors.formats.base import Base
from ottla.pipelines.connectors.formats.columns import Found, decoded, encoded
from ottla.pipelines.connectors.formats.failure import (
    DAMAGED,
    MISSING,
    SCHEMA_MISMATCH,
    UNKNOWN_SCHEMA,
    Undecodable,
)
from ottla.pipelines.connectors.formats.plain import Row
from ottla.pipelines.connectors.formats.registry_client import (
    OPTIONS,
    Registered,
    Registry,
    UnknownSchema,
    client,
)
from ottla.pipelines.connectors.formats.schema_file import (
    ADD,
    EVOLUTION,
    NOWHERE,
    SCHEMA_FILE,
    SchemaPlace,
    failure_kind,
)
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ottla.pipelines.connectors.formats.contract import Format

HEAD: Final = 5
"""A zero and the schema's id in four bytes."""
_MOST_IDS: Final = 1_000
_NO_NAME = re.compile(r"\W", re.ASCII)


@dataclass(frozen=True, slots=True)
class Avro(Base):
    """One schema, or as many as the registry has."""

    place: SchemaPlace
    evolution: str = ADD
    registry: Registry | None = None
    subject: str | None = None
    name: str | None = None
    register: bool = True

    def bound(self, topic: str, part: Literal["key", "value"]) -> Format:
        """The subject and the record's name, if the options give none."""
        name = _NO_NAME.sub("_", topic)
        return replace(
            self,
            subject=self.subject or f"{topic}-{part}",
            name=self.name or f"{'_' if name[:1].isdigit() else ''}{name}_{part}",
        )

    def schema(self) -> t.StructType | None:
        """What the options or the file say, in Avro's or in Spark's notation."""
        return self.place.load(lambda text: avro_schema.struct_of(_given(text)))

    def infer(self, sample: list[bytes]) -> t.StructType:
        """The registry's newest schema of the subject, or the newest that these values have."""
        if self.registry is None:
            raise ValueError("Avro without a registry needs a schema, or a schema_file")
        found: Registered | None = None
        if self.subject is not None:
            try:
                found = client(self.registry).latest(self.subject)
            except UnknownSchema:
                pass
        if found is None:
            found = self._newest(sample)
        schema = avro_schema.struct_of(avro_schema.parse(found.text, found.references))
        plain.check(schema)
        return schema

    def _newest(self, sample: list[bytes]) -> Registered:
        assert self.registry is not None
        heads = {data[1:HEAD] for data in sample if len(data) >= HEAD and data[0] == 0}
        for head in sorted(heads, reverse=True):
            try:
                return client(self.registry).schema(int.from_bytes(head, "big"))
            except UnknownSchema:
                continue
        raise ValueError(
            f"the registry has no subject {self.subject}, and none of the values names a schema "
            "that it has: give a schema, or choose another format"
        )

    def pin(self, schema: t.StructType) -> None:
        """Into the file, as Avro's JSON, or as it was: Avro has no tinyint and no smallint."""
        text = self.place.read()
        if text is None or _is_avro(text):
            self.place.replace(pretty(self._reader(schema)))
        else:
            self.place.pin(schema)

    def grow(self, batch: DataFrame, data: Column, schema: t.StructType) -> t.StructType:
        """With `add`: the fields of all schemas that records of this batch were written with."""
        if self.evolution != ADD or self.registry is None:
            return schema
        from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

        heads = batch.select(F.substring(data, 1, HEAD).alias("head"))
        rows = heads.where("head is not null").distinct().limit(_MOST_IDS).collect()
        return self.grown(schema, sorted(bytes(row["head"]) for row in rows))

    def grown(self, schema: t.StructType, heads: list[bytes]) -> t.StructType:
        """`schema` and what the schemas of these ids have besides."""
        assert self.registry is not None
        for head in heads:
            if len(head) < HEAD or head[0] != 0:
                continue
            try:
                found = client(self.registry).schema(int.from_bytes(head[1:], "big"))
                writer = avro_schema.parse(found.text, found.references)
                reader = _fitting(writer, self._reader(schema))
                if not unread(writer, reader):
                    continue
                theirs = avro_schema.struct_of(renamed(writer, reader))
                plain.check(theirs)
            except (UnknownSchema, ValueError):
                continue  # decoding will say what is wrong with these records
            schema = inference.grown(schema, theirs)
        return schema

    def column(self, data: Column, schema: t.StructType) -> Column:
        """In Python, in the tasks."""
        plain.check(schema)
        kind = failure_kind(self.evolution)
        reader = self._reader(schema)
        if self.registry is None:
            return decoded(data, schema, BareReader, self._writer(schema), reader)
        return decoded(data, schema, FramedReader, self.registry, reader, kind)

    def encode(self, row: Column, schema: t.StructType) -> Column:
        """In Python; the schema's id is asked for here, on the driver."""
        plain.check(schema)
        node = self._writer(schema)
        compile_writer(node, schema)  # whether it fits is said before anything is written
        prefix = b"" if self.registry is None else self.head(node)
        return encoded(row, schema, compile_writer, node, schema, prefix)

    def head(self, node: Node) -> bytes:
        """The five bytes in front of a record of this schema."""
        assert self.registry is not None
        if self.subject is None:
            raise ValueError("Avro with a registry needs a subject to write")
        text = self._registered(node)
        if self.register:
            number = client(self.registry).register(self.subject, text)
        else:
            try:
                number = client(self.registry).lookup(self.subject, text)
            except UnknownSchema:
                raise ValueError(
                    f"the registry has no such schema under {self.subject}: register it, or set "
                    f"register: true. The schema: {text[:500]}"
                ) from None
        return b"\0" + number.to_bytes(4, "big")

    def _registered(self, node: Node) -> str:
        """A schema that was given is registered with all that it says, its documentation, too."""
        text = self.place.read()
        if text is not None and _is_avro(text) and avro_schema.parse(text) == node:
            return json.dumps(avro_schema.load(text))
        return text_of(node)

    def _writer(self, schema: t.StructType) -> Node:
        text = self.place.read()
        return node_of(schema, self.name or "record") if text is None else _given(text)

    def _reader(self, schema: t.StructType) -> Node:
        """The given schema, which may know aliases and defaults, with the fields of `schema`."""
        text = self.place.read()
        if text is not None:
            found = avro_schema.extended(_given(text), schema)
            if plain.loose(avro_schema.struct_of(found)) == plain.loose(schema):
                return found
        return node_of(schema, self.name or "record")


def _given(text: str) -> Node:
    if _is_avro(text):
        return avro_schema.parse(text)
    return node_of(schema_text.read(text), "record")


def _is_avro(text: str) -> bool:
    """Whether it is Avro's notation, and not Spark's."""
    return text.lstrip()[:1] in ("{", "[", '"') or text.strip() in avro_schema.PRIMITIVES


def _fitting(writer: Node, reader: Node) -> Node:
    """What a datum that is no record is read as: the only column."""
    only = isinstance(reader, Record) and [f.name for f in reader.fields] == [
        avro_schema.ONLY_COLUMN
    ]
    if only and isinstance(reader, Record) and not isinstance(writer, Record):
        return reader.fields[0].type
    return reader


class BareReader:
    """Records without framing, all of one schema (`columns.Bulk`)."""

    def __init__(self, writer: Node, reader: Node) -> None:
        wanted = _fitting(writer, reader)
        self._read = compile_reader(writer, wanted)
        self._columns = compile_columns(writer, wanted)

    def __call__(self, data: bytes) -> Row:
        return self._read(data, 0)

    def many(self, values: Any) -> list[Found]:
        if self._columns is None or not suits(values):
            return []
        return read_rows(self._columns, values_of(values), rows_there(values))


class _Schema(NamedTuple):
    """How records of one schema are read: one by one, and many at once where that is possible."""

    one: Callable[[bytes, int], Row]
    many: Columns | None


class FramedReader:
    """Records with framing (`columns.Bulk`); the registry is asked when a new id is met."""

    def __init__(self, registry: Registry, reader: Node, new_fields: str | None) -> None:
        self._registry = registry
        self._reader = reader
        self._new_fields = new_fields
        self._known: dict[bytes, _Schema] = {}

    def __call__(self, data: bytes) -> Row:
        found = self._known.get(data[:HEAD])
        if found is None:
            found = self._learn(data[:HEAD])
        return found.one(data, HEAD)

    def many(self, values: Any) -> list[Found]:
        """A part for each schema; what is not framed, or of a schema that is not there, is left."""
        if not suits(values):
            return []
        given = values_of(values)
        found: list[Found] = []
        for head, rows in by_head(given, rows_there(values), HEAD):
            columns = self._columns(head)
            if columns is not None:
                found += read_rows(columns, given, rows, HEAD)
        return found

    def _columns(self, head: bytes) -> Columns | None:
        try:
            return (self._known.get(head) or self._learn(head)).many
        except Undecodable:
            return None  # whatever it is, it is said of each record

    def _learn(self, head: bytes) -> _Schema:
        found = _schema_of(client(self._registry), _id_of(head), self._reader, self._new_fields)
        if len(self._known) >= _MOST_IDS:
            self._known.clear()
        self._known[head] = found
        return found


def _id_of(data: bytes) -> int:
    if len(data) < HEAD:
        raise Undecodable(DAMAGED, f"{len(data)} bytes, too few for a schema's id")
    if data[0] != 0:
        raise Undecodable(DAMAGED, f"the first byte is {data[0]}, not 0: no schema's id follows")
    return int.from_bytes(data[1:HEAD], "big")


def _schema_of(registry: Any, number: int, reader: Node, new_fields: str | None) -> _Schema:
    try:
        found = registry.schema(number)
    except UnknownSchema as error:
        raise Undecodable(UNKNOWN_SCHEMA, str(error)) from None
    except ValueError as error:
        return _refusing(SCHEMA_MISMATCH, str(error))
    try:
        writer = avro_schema.parse(found.text, found.references)
        wanted = _fitting(writer, reader)
        read = compile_reader(writer, wanted)
    except AvroError as error:
        return _refusing(SCHEMA_MISMATCH, f"schema {number}: {error}")
    new = unread(writer, wanted) if new_fields is not None else []
    if new and new_fields is not None:
        names = ", ".join(new[:5])
        message = f"schema {number} has fields that the schema does not have: {names}"
        return _refusing(new_fields, message)
    if isinstance(writer, Record) and writer.fields and not _shared(writer, wanted):
        return _refusing(MISSING, f"schema {number} has none of the schema's fields")
    return _Schema(read, compile_columns(writer, wanted))


def _shared(writer: Record, reader: Node) -> bool:
    """Whether anything of a record is read: a row of nulls, or of defaults, is no row."""
    return not isinstance(reader, Record) or bool(fields_read(writer, reader))


def _refusing(kind: str, message: str) -> _Schema:
    def read(data: bytes, place: int) -> Row:
        raise Undecodable(kind, message)

    return _Schema(read, None)


def _make(options: Mapping[str, Any]) -> Avro:
    place = SchemaPlace.from_options(options)
    registry = Registry.from_options(options)
    if registry is None and place == NOWHERE:
        raise Mistake("registry", "give a registry, a schema or a schema_file")
    if place.text is not None:
        try:
            avro_schema.struct_of(_given(place.text))
        except ValueError as error:
            raise Mistake("schema", str(error)) from None
    return Avro(
        place,
        options["evolution"],
        registry,
        options["subject"],
        options["name"],
        options["register"],
    )


AVRO: Final = Declaration(
    "avro",
    "One Avro datum for each record, alone or with the id of its schema in a registry.",
    (
        Option("schema", Kind.TEXT, "The schema, in Avro's JSON or in Spark's notation."),
        SCHEMA_FILE,
        EVOLUTION,
        *OPTIONS,
        Option("subject", Kind.TEXT, "The subject, if it is not `<topic>-value` or `<topic>-key`."),
        Option("name", Kind.TEXT, "What the record is called in a schema that is made of columns."),
        Option("register", Kind.FLAG, "Register the schema of what is written.", default=True),
    ),
    _make,
)
