"""Rows out of nothing, so many a second: for trying things.

    id        0, 1, 2, …
    time      when the row was due
    customer  c00 to c99
    amount    0.00 to 99.99

A row follows from its id and `seed`, so a batch that is run again has the same rows. A pipeline
that was stopped goes on with the next id. A run that ends by itself makes all of `rows`, or as many
as fall into a second.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ottla.pipelines.connectors.contract import Needs, Place
from ottla.pipelines.connectors.option import Declaration, Kind, Option, at_least
from ottla.pipelines.connectors.sources.hidden import as_json, hidden

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "ottla_generator"
COLUMNS: Final = "id long, time timestamp, customer string, amount double"

_ANY_NUMBER: Final = ReadMaxRows((1 << 63) - 1)
_PIECE: Final = 10_000
_MOST_TASKS: Final = 8
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of one task: their ids, and when the row `anchor` was due, in microseconds."""

    first: int
    stop: int
    anchor: int
    at: int


class GeneratorDataSource(DataSource):
    """What Spark is given."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name for it
        given = self.options
        return GeneratorReader(
            float(given["rate"]),
            int(given["rows"]) if "rows" in given else None,
            int(given["seed"]),
        )


class GeneratorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls. An offset says how many rows there were, and when the last was due."""

    def __init__(self, rate: float, rows: int | None, seed: int) -> None:
        self._rate = rate
        self._rows = rows
        self._seed = seed
        self._once = False
        self._goal: int | None = None
        self._began: tuple[float, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name for it
        return {"v": _VERSION, "rows": 0, "at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name for it
        return _ANY_NUMBER

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name for it
        self._once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name for it
        done: int = start["rows"]
        if self._began is None:
            self._began = time.monotonic(), done
            self._goal = done + max(1, round(self._rate)) if self._rows is None else self._rows
        if self._once or isinstance(limit, ReadAllAvailable):
            assert self._goal is not None
            due = self._goal
        else:
            since, at_first = self._began
            due = at_first + int((time.monotonic() - since) * self._rate)
        if self._rows is not None:
            due = min(due, self._rows)
        if due <= done:
            return start
        return {"v": _VERSION, "rows": due, "at": time.time_ns() // 1_000}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, stop = start["rows"], end["rows"]
        tasks = max(1, min(_MOST_TASKS, (stop - first) // _PIECE))
        bounds = [first + (stop - first) * number // tasks for number in range(tasks + 1)]
        return [
            InputPartition(Stretch(left, right, stop - 1, end["at"]))
            for left, right in itertools.pairwise(bounds)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        pass

    def read(self, partition: InputPartition) -> Iterator[Any]:
        whole: Stretch = partition.value
        for first in range(whole.first, whole.stop, _PIECE):
            stop = min(first + _PIECE, whole.stop)
            piece = Stretch(first, stop, whole.anchor, whole.at)
            yield make_rows(piece, self._rate, self._seed)


def make_rows(stretch: Stretch, rate: float, seed: int) -> pa.RecordBatch:
    """The rows of these ids, the same each time."""
    import numpy as np
    import pyarrow as pa

    ids = np.arange(stretch.first, stretch.stop, dtype=np.int64)
    # splitmix64: each id is mixed by itself, so that rows do not depend on how they are cut
    mixed = ids.astype(np.uint64) + np.uint64(seed & 0xFFFF_FFFF)
    mixed = mixed * np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed ^= mixed >> np.uint64(31)
    names = pa.array([f"c{number:02d}" for number in range(100)])
    times = stretch.at - ((stretch.anchor - ids) * (1_000_000 / rate)).astype(np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids),
            pa.array(times).cast(pa.timestamp("us", "UTC")),
            names.take(pa.array((mixed % np.uint64(100)).astype(np.int64))),
            pa.array((mixed >> np.uint64(32)) % np.uint64(10_000) / 100.0),
        ],
        names=["id", "time", "customer", "amount"],
    )


class GeneratorSource(Needs):
    """Rows out of nothing (`contract.Source`)."""

    def __init__(self, rate: float, rows: int | None, seed: int) -> None:
        self._rate = rate
        self._rows = rows
        self._seed = seed

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        spark.dataSource.register(GeneratorDataSource)
        reader = spark.readStream.format(NAME).option("rate", self._rate).option("seed", self._seed)
        if self._rows is not None:
            reader = reader.option("rows", self._rows)
        return reader.load()

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        import pyarrow as pa

        now = time.time_ns() // 1_000
        some = make_rows(Stretch(0, count, count - 1, now), self._rate, self._seed)
        return spark.createDataFrame(pa.Table.from_batches([some]), COLUMNS)

    def rows(self, batch: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        number = F.col("id")
        made = hidden({"row": number}, sequence=number, value=as_json(batch.columns))
        return batch.select("*", made)


def _make(values: Mapping[str, Any]) -> GeneratorSource:
    return GeneratorSource(float(values["rows_per_second"]), values["rows"], values["seed"])


def _check_rate(value: float) -> None:
    if value <= 0:
        raise ValueError("at least some rows have to come: give more than 0")


SOURCE: Final = Declaration(
    "generator",
    "rows out of nothing, for trying things",
    (
        Option("rows_per_second", Kind.NUMBER, "how many", default=10, check=_check_rate),
        Option(
            "rows",
            Kind.INTEGER,
            "how many in all; without end when not given",
            check=at_least(1, "give at least 1, or leave it out for rows without end"),
        ),
        Option("seed", Kind.INTEGER, "another number makes other rows", default=0),
    ),
    _make,
)
