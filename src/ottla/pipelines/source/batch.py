"""A topic as a table: the stretch between two places of each partition, read once.

Offsets are looked up when Spark plans the query, once, in a process of its own. The tasks carry
their ranges with them and ask nobody again, so that a task that is tried again reads the same rows.

Spark refuses a reader with `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is set,
even when a query has no filter. So the reader that has it is another class, for `pushdown=true`.
Another reason to be asked: Spark (4.3) keeps what the last query pushed into a DataFrame, and a
second query of the same DataFrame, whose filters cannot be pushed, is given those rows only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.source.connection import connect, fetch_settings
from ottla.pipelines.source.filters import Wanted, narrowed
from ottla.pipelines.source.lookup import ending_marks, find_topics, starting_marks
from ottla.pipelines.source.loss import judge
from ottla.pipelines.source.offsets import Mark
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.planner import split
from ottla.pipelines.source.positions import AtOffsets
from ottla.pipelines.source.ranges import Range
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
        for notice in self._options.notices:
            LOGGER.warning("%s", notice)
        ranges = split(
            self._ranges(),
            self._options.min_partitions,
            self._options.max_records_per_partition,
        )
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:
            return iter(())
        return read_range(partition.value, self._settings)

    def _ranges(self) -> list[Range]:
        """The ranges; a cluster that cannot be reached is tried as often as the options say."""
        options = self._options
        with connect(options) as cluster:
            for _ in range(options.fetch_offset_retries):
                try:
                    return self._looked_up(cluster)
                except Unreachable:
                    time.sleep(options.fetch_offset_retry_interval)
            return self._looked_up(cluster)

    def _looked_up(self, cluster: Cluster) -> list[Range]:
        options, wanted = self._options, self._wanted
        topics = find_topics(cluster, options.strategy)
        begins = starting_marks(cluster, topics, options)
        ends = ending_marks(cluster, topics, options)
        young = self._not_older(cluster, begins)
        there = self._still_there(cluster, begins, ends)
        return [
            Range(
                tp.topic,
                ends[tp].topic_id,
                tp.partition,
                max(there.get(tp, begin.offset), wanted.first, young.get(tp, 0)),
                min(ends[tp].offset, wanted.end),
                ends[tp].epoch,
            )
            for tp, begin in sorted(begins.items())
            if tp in ends and wanted.covers(tp)
        ]

    def _still_there(
        self,
        cluster: Cluster,
        begins: dict[TopicPartition, Mark],
        ends: dict[TopicPartition, Mark],
    ) -> dict[TopicPartition, int]:
        """Where to begin instead, if records are gone that the options ask for by their offset."""
        found: dict[TopicPartition, int] = {}
        if not isinstance(self._options.starting, AtOffsets):
            return found
        for tp, start in cluster.starts(begins).items():
            begin, end = begins[tp], ends[tp].offset
            if begin.offset < start.offset and begin.offset < end:
                part = Range(tp.topic, begin.topic_id, tp.partition, begin.offset, end)
                loss = judge(cluster.observe(part))
                if loss is not None:
                    resumed = loss.resume(self._options.loss.action(loss.cause))
                    LOGGER.warning("%s", loss.sentence())
                    found[tp] = end if resumed is None else resumed
        return found

    def _not_older(
        self, cluster: Cluster, begins: dict[TopicPartition, Mark]
    ) -> dict[TopicPartition, int]:
        """The first offset of each log that can pass a filter on the timestamp, or none of it."""
        since = self._wanted.since
        if since is None:
            return {}
        found = cluster.offsets({tp: since for tp in begins if self._wanted.covers(tp)})
        return {
            tp: info.offset if info.offset >= 0 else self._wanted.end for tp, info in found.items()
        }


class OttlaFilteringReader(OttlaReader):
    """The same for `pushdown=true`: reads no more than filters let through."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Narrow what is read. All filters go back to Spark, which checks the rows."""
        self._wanted = narrowed(filters)
        return filters
