"""How a source decodes: the schema found or made once, grown when it must be, one pass a batch.

    reading = Reading(format.bound("orders", "value"))
    frame = reading.decoded(batch, "value", "_decoded")      # in every batch
    frame.select("_decoded.value.*", "_decoded.error")

The schema is that of the options or of their file. If there is none yet, it is inferred from the
first values that are not null, and pinned. It is on the driver that this happens; tasks get the
schema with their work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from ottla.pipelines.connectors.formats.contract import Format

SAMPLE: Final = 1_000


class NothingToInfer(ValueError):
    """There is no schema, and no record yet from which one could be inferred."""


class Reading:
    """One part of the records of one topic, on the driver."""

    def __init__(self, form: Format) -> None:
        self._format = form
        self._schema: StructType | None = None

    def schema(self) -> StructType | None:
        """What is known before any record is read."""
        if self._schema is None:
            self._schema = self._format.schema()
        return self._schema

    def learn(self, sample: list[bytes]) -> StructType:
        """The schema; inferred from these values and pinned if there was none.

        A registry may know it without any value. Otherwise none at all is `NothingToInfer`.
        """
        found = self.schema()
        if found is None:
            try:
                found = self._schema = self._format.infer(sample)
            except ValueError:
                if sample:
                    raise
                raise NothingToInfer("there is no schema, and no record to infer it from") from None
            self._format.pin(found)
        return found

    def decoded(self, batch: DataFrame, data: str, into: str) -> DataFrame:
        """The batch and a column `into`: struct<value, error> of its binary column `data`.

        Raises `NothingToInfer` if there is neither a schema nor a value that is not null.
        """
        column = batch[data]
        if self.schema() is None:
            rows = batch.select(column.alias("data")).where("data is not null").limit(SAMPLE)
            self.learn([bytes(row["data"]) for row in rows.collect()])
        assert self._schema is not None  # `learn` has raised otherwise
        grown = self._format.grow(batch, column, self._schema)
        if grown != self._schema:
            self._format.pin(grown)
            self._schema = grown
        return batch.withColumn(into, self._format.column(column, self._schema))
