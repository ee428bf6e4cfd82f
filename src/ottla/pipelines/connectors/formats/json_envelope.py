"""json_envelope: JSON with Kafka Connect's schema beside each value.

    {"schema": {"type": "struct", "fields": […]}, "payload": {…}}

It is what Connect's JsonConverter writes with `schemas.enable=true`, its default. The schema in the
record says how the payload is to be read (dates are days, decimals base64 digits); the columns are
those that the pipeline has pinned. A null payload is an error: it would be a row of nulls.

Times are written in milliseconds, as Connect's Timestamp has them, and lose what is below; with
`timestamps: micros` they keep it under Debezium's name. timestamp_ntz is written as a timestamp.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import (
    connect_schema,
    inference,
    json_values,
    plain,
    schema_text,
)
from ottla.pipelines.connectors.formats.base import Base
from ottla.pipelines.connectors.formats.columns import decoded, encoded, in_tasks
from ottla.pipelines.connectors.formats.failure import (
    DAMAGED,
    MISSING,
    SCHEMA_MISMATCH,
    Undecodable,
)
from ottla.pipelines.connectors.formats.json import grow_by_text, lacking
from ottla.pipelines.connectors.formats.plain import Row
from ottla.pipelines.connectors.formats.schema_file import (
    ADD,
    EVOLUTION,
    NOWHERE,
    SCHEMA,
    SCHEMA_FILE,
    SchemaPlace,
    failure_kind,
)
from ottla.pipelines.connectors.option import Declaration, Kind, Option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEYS: Final = {"schema", "payload"}
_MOST_SCHEMAS: Final = 1_000


@dataclass(frozen=True, slots=True)
class JsonEnvelope(Base):
    """Connect's JSON."""

    place: SchemaPlace = NOWHERE
    evolution: str = ADD
    micros: bool = False

    def schema(self) -> t.StructType | None:
        """What the options or the file say."""
        return self.place.load()

    def infer(self, sample: list[bytes]) -> t.StructType:
        """The fields of the schemas in these values."""
        found = t.StructType([])
        wrong: Exception | None = None
        for data in sample:
            try:
                envelope = _envelope(data)
                if envelope["payload"] is not None:
                    found = inference.grown(found, connect_schema.struct_of(envelope["schema"]))
            except Undecodable:
                continue
            except ValueError as error:  # decoding will say so of this record
                wrong = error
        if not found.fields:
            none = "none of the values has a schema beside it: use json, or give one"
            raise ValueError(none if wrong is None else str(wrong))
        plain.check(found)
        return found

    def pin(self, schema: t.StructType) -> None:
        """Into the file."""
        self.place.pin(schema)

    def grow(self, batch: DataFrame, data: Column, schema: t.StructType) -> t.StructType:
        """With `add`: the fields of the schemas in this batch."""
        if self.evolution != ADD:
            return schema

        def look(values: pa.Array) -> pa.Array:
            return pa.array(news_of(values.to_pylist(), schema), pa.string())

        return grow_by_text(batch, in_tasks(look, t.StringType())(data), schema)

    def column(self, data: Column, schema: t.StructType) -> Column:
        """In Python, in the tasks."""
        plain.check(schema)
        return decoded(data, schema, compile_reader, schema, failure_kind(self.evolution))

    def encode(self, row: Column, schema: t.StructType) -> Column:
        """In Python, in the tasks."""
        plain.check(schema)
        return encoded(row, schema, compile_writer, schema, self.micros)


def _envelope(data: bytes) -> dict[str, Any]:
    value = json_values.parse(data, exact=True)
    if not isinstance(value, dict) or value.keys() != _KEYS:
        raise Undecodable(DAMAGED, 'no object with "schema" and "payload", and nothing else')
    return value


def _key(schema: Any) -> str:
    """The schema as a text that tells it from others, and that any schema has."""
    try:
        return json.dumps(schema)
    except RecursionError:
        raise Undecodable(DAMAGED, "a schema that is nested too deeply") from None


def news_of(values: list[bytes | None], schema: t.StructType) -> list[str | None]:
    """The fields of each value's schema that `schema` lacks, as a text; None if there are none."""
    known: dict[str, str | None] = {}
    found: list[str | None] = []
    for data in values:
        text = None
        try:
            described = None if data is None else _envelope(data)["schema"]
            if described is not None:
                key = _key(described)
                if key not in known:
                    new = lacking(schema, connect_schema.struct_of(described))
                    known[key] = schema_text.write_inline(new) if new.fields else None
                text = known[key]
        except (Undecodable, ValueError):
            pass  # decoding will say what is wrong with it
        found.append(text)
    return found


def compile_reader(wanted: t.StructType, new_fields: str | None) -> Callable[[bytes], Row]:
    """A function from an envelope to a row; it keeps a reader for each schema that it has met."""
    readers: dict[str, Callable[[Any], Row]] = {}

    def read(data: bytes) -> Row:
        envelope = _envelope(data)
        payload = envelope["payload"]
        if payload is None:
            raise Undecodable(MISSING, "the payload is null: a tombstone has no bytes at all")
        key = _key(envelope["schema"])
        found = readers.get(key)
        if found is None:
            try:
                found = connect_schema.payload_reader(envelope["schema"], wanted, new_fields)
            except ValueError as error:
                raise Undecodable(SCHEMA_MISMATCH, f"the record's schema: {error}") from None
            if len(readers) >= _MOST_SCHEMAS:
                readers.clear()
            readers[key] = found
        return found(payload)

    return read


def compile_writer(schema: t.StructType, micros: bool) -> Callable[[Row], bytes]:
    """A function from a row to an envelope; the schema's text is made once."""
    described = connect_schema.dumps(connect_schema.schema_of(schema, False, micros))
    before = b'{"schema":' + described + b',"payload":'
    write = connect_schema.payload_writer(schema, micros)
    return lambda row: before + connect_schema.dumps(write(row)) + b"}"


def _make(options: Mapping[str, Any]) -> JsonEnvelope:
    return JsonEnvelope(
        SchemaPlace.from_options(options),
        options["evolution"],
        options["timestamps"] == "micros",
    )


JSON_ENVELOPE: Final = Declaration(
    "json_envelope",
    "JSON with Kafka Connect's schema beside each value (`schemas.enable=true`).",
    (
        SCHEMA,
        SCHEMA_FILE,
        EVOLUTION,
        Option(
            "timestamps",
            Kind.TEXT,
            "In which unit times are written.",
            default="millis",
            choices=("millis", "micros"),
        ),
    ),
    _make,
)
