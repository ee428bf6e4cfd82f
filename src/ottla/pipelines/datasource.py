"""`format("ottla")`: topics as tables, to read and to write, in batches and as streams.

Spark finds it by itself through the module `pyspark_ottla`. It makes an object of this class in
short-lived processes and pickles it into others, so making one does nothing, and what is needed is
imported where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.pipelines import catalog
from ottla.pipelines.errors import OptionError
from ottla.pipelines.option_table import Use
from ottla.pipelines.source.column_choice import USUAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

_FIELDS = {
    field.name: field
    for field in (
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
        ),
    )
}


class OttlaDataSource(DataSource):
    """Topics of Ottla or of Apache Kafka. The options are those of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        """The columns of every topic. Options that cannot be right are refused here, at `load()`.

        Spark asks for it with the properties of a table when that is created.
        """
        table = catalog.table_options(self.options)
        if table is None:
            return _schema(_columns(self.options))
        columns = _columns(table)
        schema = _schema(columns)
        carrier = "value" if "value" in columns else columns[0]
        schema[carrier].metadata = catalog.metadata(table)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.pipelines.source.batch import OttlaFilteringReader, OttlaReader
        from ottla.pipelines.source.options import ReadOptions

        given = catalog.read_options(self.options, schema, Use.BATCH)
        options = ReadOptions.of(given, streaming=False)
        _refuse_other(schema, options.columns)
        return OttlaFilteringReader(options) if options.pushdown else OttlaReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name for it
        from ottla.pipelines.source.options import ReadOptions
        from ottla.pipelines.source.stream import OttlaStreamReader

        given = catalog.read_options(self.options, schema, Use.STREAM)
        options = ReadOptions.of(given, streaming=True)
        _refuse_other(schema, options.columns)
        return OttlaStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.pipelines.sink.writer import OttlaWriter

        return OttlaWriter(schema, catalog.write_options(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name for it
        from ottla.pipelines.sink.writer import OttlaStreamWriter

        return OttlaStreamWriter(schema, catalog.write_options(self.options), overwrite)


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a read by these options."""
    from ottla.pipelines.source.options import ReadOptions

    mistakes: list[OptionError] = []
    for streaming in (False, True):
        try:
            return ReadOptions.of(given, streaming=streaming).columns
        except OptionError as error:
            mistakes.append(error)
    if len({str(mistake) for mistake in mistakes}) == 1:
        raise mistakes[0]
    return USUAL  # whoever asks for a reader is told what is wrong for that one


def _schema(names: tuple[str, ...]) -> StructType:
    fields = (_FIELDS[name] for name in names)
    return StructType([StructField(field.name, field.dataType) for field in fields])


def _refuse_other(schema: StructType, names: tuple[str, ...]) -> None:
    found = [(field.name, field.dataType) for field in schema.fields]
    if found != [(name, _FIELDS[name].dataType) for name in names]:
        raise OptionError(
            "schema",
            "A topic has the columns it has, and a schema cannot be given: leave out schema(), "
            f"and cast from {', '.join(names)}.",
        )
