"""Rows on standard output, to look at: one JSON object a line.

Nothing is promised: a batch that is run again is printed again, and only its first rows are shown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import HIDDEN, Batch, Guarantee, Needs, Place
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.sinks.tasks import Written, in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MOST: Final = 20


class ConsoleSink(Needs):
    """Prints the first rows of every batch; 0: all of them."""

    def __init__(self, rows: int, output: IO[str] | None = None) -> None:
        self._most = rows
        self._output = output

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.NONE

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        """There is nothing to prepare."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        output = sys.stdout if self._output is None else self._output
        # All rows are read, also those that are not shown: what is counted meanwhile is the batch.
        lines = [
            line
            for answer in in_tasks(self._lines(rows), _First(self._most))
            for line in json.loads(answer.found or "[]")
        ]
        for line in lines[: self._most] if self._most else lines:
            output.write(f"{line}\n")
        output.flush()

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        self._lines(rows).write.format("noop").mode("overwrite").save()

    @staticmethod
    def _lines(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        plain = rows.drop(HIDDEN)
        whole = f.struct(*(f.col("`" + name.replace("`", "``") + "`") for name in plain.columns))
        return plain.select(f.to_json(whole, {"ignoreNullFields": "false"}).alias("line"))


@dataclass(frozen=True, slots=True)
class _First:
    """The first lines of a task; 0: all of them."""

    most: int

    def __call__(self, task: int, batches: Iterator[Any]) -> Written:
        lines: list[str] = []
        count = 0
        for batch in batches:
            left = batch.num_rows if not self.most else max(0, self.most - len(lines))
            lines += batch.column(0).slice(0, left).to_pylist()
            count += batch.num_rows
        return Written(count, found=json.dumps(lines))


def _make(options: Mapping[str, Any]) -> ConsoleSink:
    return ConsoleSink(options["rows"])


def _check_rows(value: int) -> None:
    if value < 0:
        raise ValueError("rows counts lines: give 0 for all of them, or how many")


SINK: Final = Declaration(
    "console",
    "standard output, to look at; promises nothing",
    (
        Option(
            "rows",
            Kind.INTEGER,
            "how many rows of a batch are printed at most; 0: all of them",
            default=_MOST,
            check=_check_rows,
        ),
    ),
    _make,
)
