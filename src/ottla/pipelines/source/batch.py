"""A topic as a table: the stretch between two places of each partition, read once.

Offsets are looked up when Spark plans the query, once, in a process of its own. The tasks carry
their ranges with them and ask nobody again, so that a task that is tried again reads the same rows.
The reader goes into every task with them: what only planning needs is in `batch_plan`.

Spark refuses a reader with `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is set,
even when a query has no filter. So the reader that has it is another class, for `pushdown=true`.
Another reason to be asked: Spark (4.3) keeps what the last query pushed into a DataFrame, and a
second query of the same DataFrame, whose filters cannot be pushed, is given those rows only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ottla.pipelines.native import driver_notices
from ottla.pipelines.source.connection import fetch_settings
from ottla.pipelines.source.filters import Wanted, narrowed
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.task import read_range

LOGGER = logging.getLogger("ottla.pipelines")


class OttlaReader(DataSourceReader):
    """Reads topics from one place to another. Making one connects to nobody."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._settings = fetch_settings(options)
        self._wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        """One task for each range. The list may be empty; Spark then reads one without a value."""
        from ottla.pipelines.source.batch_plan import plan

        for notice in (*self._options.notices, *driver_notices()):
            LOGGER.warning("%s", notice)
        return [InputPartition(each) for each in plan(self._options, self._wanted)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:
            return iter(())
        return read_range(partition.value, self._settings)


class OttlaFilteringReader(OttlaReader):
    """The same for `pushdown=true`: reads no more than filters let through."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name for it
        """Narrow what is read. All filters go back to Spark, which checks the rows."""
        self._wanted = narrowed(filters)
        return filters
