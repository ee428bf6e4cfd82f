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
    StructType,
    TimestampType,
)

from ottla.pipelines.errors import OptionError
from ottla.pipelines.options import truth

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

_COLUMNS = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


class OttlaDataSource(DataSource):
    """Topics of Ottla or of Apache Kafka. The options are those of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        """The columns of every topic. What is wrong in any case is said here, at `load()`."""
        from ottla.pipelines.source.options import ReadOptions

        mistakes: set[str] = set()
        for streaming in (False, True):
            try:
                ReadOptions.of(self.options, streaming=streaming)
            except OptionError as error:
                mistakes.add(str(error))
                first = error
            else:
                mistakes.add("")
        if len(mistakes) == 1 and "" not in mistakes:
            raise first
        return self._schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.pipelines.source.batch import OttlaFilteringReader, OttlaReader
        from ottla.pipelines.source.options import ReadOptions

        self._refuse_other(schema)
        options = ReadOptions.of(self.options, streaming=False)
        return OttlaFilteringReader(options) if options.pushdown else OttlaReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from ottla.pipelines.source.options import ReadOptions
        from ottla.pipelines.source.stream import OttlaStreamReader

        self._refuse_other(schema)
        return OttlaStreamReader(ReadOptions.of(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.pipelines.sink.writer import OttlaWriter

        return OttlaWriter(schema, dict(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from ottla.pipelines.sink.writer import OttlaStreamWriter

        return OttlaStreamWriter(schema, dict(self.options), overwrite)

    def _schema(self) -> StructType:
        with_headers = truth("includeHeaders", self.options.get("includeHeaders") or "false")
        # `add` changes what it is called on.
        columns = StructType(list(_COLUMNS.fields))
        return columns.add("headers", _HEADERS) if with_headers else columns

    def _refuse_other(self, schema: StructType) -> None:
        fixed = self._schema()
        if schema != fixed:
            raise OptionError(
                "schema",
                "A topic has the columns it has, and a schema cannot be given: leave out schema(), "
                f"and cast from {', '.join(fixed.fieldNames())}.",
            )
