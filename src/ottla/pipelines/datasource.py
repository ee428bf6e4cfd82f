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

from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.column_choice import USUAL

if TYPE_CHECKING:
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
        """The columns of every topic. What is wrong in any case is said here, at `load()`."""
        from ottla.pipelines.source.options import ReadOptions

        mistakes: list[OptionError] = []
        for streaming in (False, True):
            try:
                return _schema(ReadOptions.of(self.options, streaming=streaming).columns)
            except OptionError as error:
                mistakes.append(error)
        if len({str(mistake) for mistake in mistakes}) == 1:
            raise mistakes[0]
        return _schema(USUAL)  # whoever asks for a reader is told what is wrong for that one

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.pipelines.source.batch import OttlaFilteringReader, OttlaReader
        from ottla.pipelines.source.options import ReadOptions

        options = ReadOptions.of(self.options, streaming=False)
        _refuse_other(schema, options.columns)
        return OttlaFilteringReader(options) if options.pushdown else OttlaReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from ottla.pipelines.source.options import ReadOptions
        from ottla.pipelines.source.stream import OttlaStreamReader

        options = ReadOptions.of(self.options, streaming=True)
        _refuse_other(schema, options.columns)
        return OttlaStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.pipelines.sink.writer import OttlaWriter

        return OttlaWriter(schema, dict(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from ottla.pipelines.sink.writer import OttlaStreamWriter

        return OttlaStreamWriter(schema, dict(self.options), overwrite)


def _schema(names: tuple[str, ...]) -> StructType:
    return StructType([_FIELDS[name] for name in names])


def _refuse_other(schema: StructType, names: tuple[str, ...]) -> None:
    fixed = _schema(names)
    if schema != fixed:
        raise OptionError(
            "schema",
            "A topic has the columns it has, and a schema cannot be given: leave out schema(), "
            f"and cast from {', '.join(fixed.fieldNames())}.",
        )
