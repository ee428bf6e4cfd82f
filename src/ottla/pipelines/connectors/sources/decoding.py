"""How a source that has bytes decodes them: the schema is known before the query starts.

A query's columns have to be known when it is made, so a schema that neither the options nor a file
tells is learnt from some of the source's own values first. Later batches may let it grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.pipelines.connectors.contract import Outage, Place
from ottla.pipelines.connectors.formats.reading import NothingToInfer, Reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from ottla.pipelines.connectors.formats.contract import Format

_READ: Final = "_ottla_read"
SAMPLE: Final = 1_000
"""Values that a schema is learnt from, at most."""


class PartReading:
    """The key or the value of a source's records, on the driver."""

    def __init__(self, form: Format) -> None:
        self._format = form
        self._reading = Reading(form)

    def learn(self, sample: Callable[[], list[bytes]], place: Place, where: str) -> StructType:
        """The schema; `sample` is asked for values only if nothing else tells it."""
        try:
            known = self._reading.schema()
            return known if known is not None else self._reading.learn(sample())
        except NothingToInfer:
            raise Outage(
                where,
                f"pipeline {place.pipeline}: {where} has nothing yet from which a schema could be "
                "inferred: give a schema or schema_file, or wait for the first row",
            ) from None
        except Outage:
            raise
        except ValueError as error:
            raise ValueError(f"pipeline {place.pipeline}: {where}: {error}") from None

    def decoded(self, batch: DataFrame, data: str, into: str) -> DataFrame:
        """The batch and a column `into`: struct<value, error> of its binary column `data`."""
        schema = self._reading.schema()
        if batch.isStreaming and schema is not None:
            # asked for its columns only: a stream cannot be looked through for new fields
            return batch.withColumn(into, self._format.column(batch[data], schema))
        return self._reading.decoded(batch, data, into)

    def letters(self, letters: DataFrame) -> DataFrame:
        """Dead letters with `row` and `error`: their `value` is what was, or was not, decoded."""
        read = self._reading.decoded(letters, "value", _READ)
        parts = {"row": read[f"{_READ}.value"], "error": read[f"{_READ}.error"]}
        return read.withColumns(parts).drop(_READ)
