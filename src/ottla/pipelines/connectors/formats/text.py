"""string and bytes: a record's value as one column.

`string` is UTF-8, checked: Spark's cast puts a replacement character where bytes are wrong. `bytes`
takes everything. Both write a row of one column; `string` writes any type but nested ones, as Spark
casts it to text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from ottla.pipelines.connectors.formats.base import Base
from ottla.pipelines.connectors.formats.columns import ERROR
from ottla.pipelines.connectors.formats.failure import DAMAGED
from ottla.pipelines.connectors.option import Declaration, Kind, Option

if TYPE_CHECKING:
    from pyspark.sql import Column

_COLUMN: Final = Option("column", Kind.TEXT, "What the one column is called.", default="value")
_NESTED: Final = (t.StructType, t.ArrayType, t.MapType)


@dataclass(frozen=True, slots=True)
class Text(Base):
    """UTF-8."""

    name: str = "value"

    def schema(self) -> t.StructType:
        """One string."""
        return t.StructType([t.StructField(self.name, t.StringType())])

    def column(self, data: Column, schema: t.StructType) -> Column:
        """All of it in the JVM."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

        text = data.cast("string")
        right = data.isNull() | F.is_valid_utf8(text)
        value = F.when(data.isNotNull() & right, F.struct(text.alias(self.name)))
        error = F.struct(
            F.lit(DAMAGED).alias("kind"), F.lit("the bytes are no UTF-8").alias("message")
        )
        return F.struct(value.alias("value"), F.when(~right, error).cast(ERROR).alias("error"))

    def encode(self, row: Column, schema: t.StructType) -> Column:
        """The one column as text."""
        field = only_field(schema, "string")
        if isinstance(field.dataType, _NESTED):
            raise ValueError(
                f"column {field.name} is {field.dataType.simpleString()}: format string writes "
                "one plain value; use json, or to_json in the transform"
            )
        if isinstance(field.dataType, t.BinaryType):
            raise ValueError(f"column {field.name} is binary: use format bytes")
        return row[field.name].cast("string").cast("binary")


@dataclass(frozen=True, slots=True)
class Raw(Base):
    """Bytes as they are."""

    name: str = "value"

    def schema(self) -> t.StructType:
        """One binary."""
        return t.StructType([t.StructField(self.name, t.BinaryType())])

    def column(self, data: Column, schema: t.StructType) -> Column:
        """Nothing can be wrong."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

        value = F.when(data.isNotNull(), F.struct(data.alias(self.name)))
        return F.struct(value.alias("value"), F.lit(None).cast(ERROR).alias("error"))

    def encode(self, row: Column, schema: t.StructType) -> Column:
        """The one column, which is binary or text."""
        field = only_field(schema, "bytes")
        if not isinstance(field.dataType, (t.BinaryType, t.StringType)):
            raise ValueError(
                f"column {field.name} is {field.dataType.simpleString()}: format bytes writes "
                "binary or string"
            )
        return row[field.name].cast("binary")


def only_field(schema: t.StructType, name: str) -> t.StructField:
    """The field of a row that has one; ValueError for any other."""
    if len(schema.fields) != 1:
        raise ValueError(
            f"format {name} writes one column, and there are {len(schema.fields)} "
            f"({', '.join(schema.names[:5])}): select one, or use json"
        )
    return schema.fields[0]


def _text(options: Mapping[str, Any]) -> Text:
    return Text(options["column"])


def _raw(options: Mapping[str, Any]) -> Raw:
    return Raw(options["column"])


STRING: Final = Declaration("string", "The whole value as one text, in UTF-8.", (_COLUMN,), _text)
BYTES: Final = Declaration("bytes", "The whole value as it is.", (_COLUMN,), _raw)
