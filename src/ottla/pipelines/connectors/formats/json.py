"""json: a record's value is one JSON object.

Decoding is strict (`json_values.py`). Encoding is Spark's `to_json` with the settings that lose
nothing: nulls are written, times have microseconds and are in UTC.

`evolution: add` looks through a batch for new fields before it is decoded, which costs about as
much as decoding it; the other choices notice them on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from ottla.pipelines.connectors.contract import EXACT_JSON
from ottla.pipelines.connectors.formats import inference, json_values, plain, schema_text
from ottla.pipelines.connectors.formats.base import Base
from ottla.pipelines.connectors.formats.columns import decoded, in_tasks
from ottla.pipelines.connectors.formats.failure import Undecodable
from ottla.pipelines.connectors.formats.schema_file import (
    ADD,
    EVOLUTION,
    NOWHERE,
    SCHEMA,
    SCHEMA_FILE,
    SchemaPlace,
    failure_kind,
)
from ottla.pipelines.connectors.option import Declaration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MOST_NEWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Json(Base):
    """Plain JSON."""

    place: SchemaPlace = NOWHERE
    evolution: str = ADD

    def schema(self) -> t.StructType | None:
        """What the options or the file say."""
        return self.place.load()

    def infer(self, sample: list[bytes]) -> t.StructType:
        """From the values that are JSON objects; the others will be dead letters."""
        return inference.infer(_objects(sample))

    def pin(self, schema: t.StructType) -> None:
        """Into the file."""
        self.place.pin(schema)

    def grow(self, batch: DataFrame, data: Column, schema: t.StructType) -> t.StructType:
        """With `add`: the fields of the batch's values that `schema` has not."""
        if self.evolution != ADD:
            return schema
        return grow_by_text(batch, news(data, schema), schema)

    def column(self, data: Column, schema: t.StructType) -> Column:
        """In Python, in the tasks."""
        plain.check(schema)
        return decoded(data, schema, json_values.compile_row, schema, failure_kind(self.evolution))

    def encode(self, row: Column, schema: t.StructType) -> Column:
        """In the JVM."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

        plain.check(schema)
        return F.when(row.isNotNull(), F.to_json(row, EXACT_JSON).cast("binary"))


def _objects(sample: list[bytes]) -> list[Any]:
    found = []
    for data in sample:
        try:
            value = json_values.parse(data)
        except Undecodable:
            continue
        if isinstance(value, dict):
            found.append(value)
    if not found and sample:
        raise inference.Ambiguous(
            f"none of the first {len(sample)} values is a JSON object: choose another format"
        )
    return found


def news(data: Column, schema: t.StructType) -> Column:
    """A text: the fields of each value that `schema` lacks, as a schema; null if there are none."""

    def look(values: pa.Array) -> pa.Array:
        return pa.array(news_of(values.to_pylist(), schema), pa.string())

    return in_tasks(look, t.StringType())(data)


def news_of(values: list[bytes | None], schema: t.StructType) -> list[str | None]:
    """The same of a list. A text that is not right is no news: decoding will say what it is."""
    found: list[str | None] = []
    unknown = _unknown_names(schema)
    for data in values:
        text = None
        if data is not None:
            try:
                value = json_values.parse(data)
                if isinstance(value, dict) and unknown(value):
                    new = lacking(schema, inference.infer([value]))
                    text = schema_text.write_inline(new) if new.fields else None
            except (Undecodable, inference.Ambiguous):
                pass
        found.append(text)
    return found


def _unknown_names(kind: t.DataType) -> Callable[[Any], bool]:
    """Whether a value has a name that its type has not: quick, for nearly all have none."""
    if isinstance(kind, t.ArrayType):
        of_item = _unknown_names(kind.elementType)
        return lambda value: isinstance(value, list) and any(map(of_item, value))
    if not isinstance(kind, t.StructType):
        return lambda value: False
    known = frozenset(kind.names)
    inner = [
        (field.name, _unknown_names(field.dataType))
        for field in kind.fields
        if isinstance(field.dataType, (t.StructType, t.ArrayType))
    ]

    def unknown(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        return not value.keys() <= known or any(of(value.get(name)) for name, of in inner)

    return unknown


def lacking(schema: t.StructType, found: t.StructType) -> t.StructType:
    """The fields of `found` that `grown` would add, with the structs around them."""
    known = {field.name: field.dataType for field in schema.fields}
    new = []
    for field in found.fields:
        if field.name not in known:
            new.append(field)
            continue
        inner = _lacking_type(known[field.name], field.dataType)
        if inner is not None:
            new.append(t.StructField(field.name, inner))
    return t.StructType(new)


def _lacking_type(known: t.DataType, found: t.DataType) -> t.DataType | None:
    if isinstance(known, t.StructType) and isinstance(found, t.StructType):
        inner = lacking(known, found)
        return inner if inner.fields else None
    if isinstance(known, t.ArrayType) and isinstance(found, t.ArrayType):
        item = _lacking_type(known.elementType, found.elementType)
        return None if item is None else t.ArrayType(item)
    if isinstance(known, t.MapType) and isinstance(found, t.MapType):
        item = _lacking_type(known.valueType, found.valueType)
        return None if item is None else t.MapType(known.keyType, item)
    return None


def grow_by_text(batch: DataFrame, texts: Column, schema: t.StructType) -> t.StructType:
    """`schema` grown by all that `news` finds in a batch, whatever the order of its rows."""
    frame = batch.select(texts.alias("news"))
    rows = frame.where("news is not null").distinct().limit(_MOST_NEWS).collect()
    return grown_by(schema, sorted(row["news"] for row in rows))


def grown_by(schema: t.StructType, texts: list[str]) -> t.StructType:
    """A new field of two types gets none: its records will be dead letters that name it."""
    found = t.StructType([])
    for text in texts:
        try:
            found = inference.merge(found, schema_text.read(text))
        except ValueError:
            continue
    return inference.grown(schema, found)


def _make(options: Mapping[str, Any]) -> Json:
    return Json(SchemaPlace.from_options(options), options["evolution"])


JSON: Final = Declaration(
    "json", "One JSON object for each record.", (SCHEMA, SCHEMA_FILE, EVOLUTION), _make
)
