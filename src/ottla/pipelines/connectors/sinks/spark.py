"""Rows into anything that Spark can write: `{spark: {format: …, options: {…}}}`.

The format's own rules hold, and no guarantee is claimed for it: every batch is written once as a
whole, as `df.write` does, and once more if it is run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import HIDDEN, Batch, Guarantee, Needs, Place
from ottla.pipelines.connectors.errors.outages import outage_of
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option
from ottla.pipelines.points import Point, reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.types import StructType

_MODES: Final = ("append", "overwrite")


class SparkSink(Needs):
    """One format of Spark with its options."""

    def __init__(
        self, form: str, options: Mapping[str, str], mode: str, path: str | None, table: str | None
    ) -> None:
        self._form = form
        self._options = dict(options)
        self._mode = mode
        self._path = path
        self._table = table

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.NONE

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        """What the format needs, it says at the first batch."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        reach(Point.BEFORE_WRITE)
        try:
            writer = self._writer(rows)
            if self._table is not None:
                writer.saveAsTable(self._table)
            else:
                writer.save(self._path)
        except Exception as error:
            raise self._judged(error) from error
        reach(Point.AFTER_WRITE)

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        """The rows are computed; a format of Spark has nowhere to try them."""
        rows.drop(HIDDEN).write.format("noop").mode("overwrite").save()

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        return rows.drop(HIDDEN).write.format(self._form).mode(self._mode).options(**self._options)

    def _judged(self, error: Exception) -> Exception:
        return outage_of(error, f"Spark's format {self._form}") or error


def _make(options: Mapping[str, Any]) -> SparkSink:
    if options["path"] is not None and options["table"] is not None:
        raise Mistake("table", "rows go to a path or into a table: leave one of them out.")
    return SparkSink(
        options["format"],
        {name: str(value) for name, value in (options["options"] or {}).items()},
        options["mode"],
        options["path"],
        options["table"],
    )


SINK: Final = Declaration(
    "spark",
    "any format that Spark can write; its own rules hold, and nothing is promised",
    (
        Option("format", Kind.TEXT, "the format, as `df.write.format` takes it", required=True),
        Option("options", Kind.MAP, "its options", secret=True),
        Option("mode", Kind.TEXT, "Spark's save mode", default="append", choices=_MODES),
        Option("path", Kind.PATH, "where to, for a format of files"),
        Option("table", Kind.TEXT, "a table of Spark's catalog, instead of a path"),
    ),
    _make,
)
