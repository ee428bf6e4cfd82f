"""Any format that Spark reads as a stream, by its name and options.

What is read again the same way is up to that format: Spark's own sources are. Nothing is known of a
row's place, so its position is the number of its batch, the one that it has there, and a hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import HIDDEN, Needs, Place
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.sources.hidden import as_json, hidden

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ID: Final = "streaming.sql.batchId"
"""Set by Spark where a batch is worked on; documented nowhere, and a test holds it."""


class SparkSource(Needs):
    """A format of Spark (`contract.Source`)."""

    def __init__(
        self, form: str, options: Mapping[str, Any], schema: str | None, path: str | None
    ) -> None:
        self._format = form
        self._options = {name: _text(value) for name, value in options.items()}
        self._schema = schema
        self._path = path

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        reader = spark.readStream.format(self._format).options(**self._options)
        if self._schema is not None:
            reader = reader.schema(self._schema)
        return reader.load() if self._path is None else reader.load(self._path)

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        reader = spark.read.format(self._format).options(**self._options)
        if self._schema is not None:
            reader = reader.schema(self._schema)
        whole = reader.load() if self._path is None else reader.load(self._path)
        return whole.limit(count)

    def rows(self, batch: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        if HIDDEN in batch.columns:
            raise ValueError(
                f"format {self._format} has a column {HIDDEN}, which is the pipeline's own name"
            )
        text = as_json(batch.columns)
        number = F.monotonically_increasing_id()
        position = {
            "format": F.lit(self._format),
            "batch": F.lit(_batch_id(batch)).cast("long"),
            "row": number,
            "hash": F.hex(F.xxhash64(text)),
        }
        return batch.select("*", hidden(position, sequence=number, value=text))


def _batch_id(batch: DataFrame) -> int | None:
    """The number of the micro-batch that is under way: its rows are counted from 0 in each."""
    number = batch.sparkSession.sparkContext.getLocalProperty(_BATCH_ID)
    return None if number is None else int(number)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _make(values: Mapping[str, Any]) -> SparkSource:
    return SparkSource(values["format"], values["options"] or {}, values["schema"], values["path"])


SOURCE: Final = Declaration(
    "spark",
    "any format that Spark reads as a stream",
    (
        Option("format", Kind.TEXT, "its name, as in `spark.readStream.format(…)`", required=True),
        Option("options", Kind.MAP, "its options", secret=True),
        Option("schema", Kind.TEXT, "its columns, `id long, name string`, if it has to be told"),
        Option("path", Kind.TEXT, "what `load` is given, if anything"),
    ),
    _make,
)
