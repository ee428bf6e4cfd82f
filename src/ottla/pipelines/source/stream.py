"""A topic as a stream: what Spark asks before, between and after the micro-batches.

Spark makes this reader twice, in a process that it keeps for the query and in one that prepares
the tasks, and calls one method at a time. An exception in any of them ends the query, so only
what a person has to act upon is raised. A cluster that cannot be reached is none of that: `start`
is returned, which says "nothing new", and progress events carry the reason under `unreachable`.
With Trigger.AvailableNow and Trigger.Once "nothing new" would mean "finished", so these wait, in
`latestOffset` and nowhere else: a query that is stopped there has its process ended by Spark, one
that is stopped while it is prepared has not.

While a batch runs Spark asks nothing. A thread looks meanwhile, and says in the log what its tasks
wait for; the next progress event has it under `lastOutage`.

A query that begins while nobody can be reached stands at `PENDING`: where it begins is found out
later, and is written down in the end of its first batch.

`start` is the end of a batch that is finished: that is when it is committed to the group. Spark's
own `commit` comes a batch later, and never for the last. Trigger.Once has no call after its batch
at all: the next run commits it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ottla.model.ids import TopicPartition
from ottla.pipelines.native import driver_notices
from ottla.pipelines.points import Point, reach
from ottla.pipelines.source.commits import GroupCommits
from ottla.pipelines.source.connection import connect, fetch_settings
from ottla.pipelines.source.lookup import find_topics, wanted
from ottla.pipelines.source.offsets import Progress
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.sentry import Sentry
from ottla.pipelines.source.stream_plan import StreamPlan
from ottla.pipelines.source.task import read_range
from ottla.pipelines.source.watch import Watch

LOGGER = logging.getLogger("ottla.pipelines")

PENDING: Final[dict[str, Any]] = {"v": 1, "pending": True}
"""The offset of a query that does not know yet where it begins."""

# Given back by Spark for every trigger but Once, which it tells by ReadAllAvailable.
_ANY_NUMBER: Final = ReadMaxRows((1 << 63) - 1)
_LAST_COMMIT: Final = 5.0


class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch. Making one connects to nobody."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._settings = fetch_settings(options)
        self._driver: _Driver | None = None

    # -- on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name for it
        return dict(PENDING)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name for it
        return _ANY_NUMBER

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name for it
        self._on_driver().fix_the_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name for it
        return self._on_driver().latest(start, everything=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name for it
        return self._on_driver().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = Progress.ranges(_progress(start) or Progress({}), _progress(end) or Progress({}))
        if ranges:
            # Here and not where the batch is planned: one that is replayed is not planned again.
            self._on_driver().look_after(each.topic_partition for each in ranges)
        return [InputPartition(each) for each in ranges]

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def _on_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def __getstate__(self) -> dict[str, Any]:
        # Into the tasks go settings only: connections and threads stay on the driver.
        return {**self.__dict__, "_driver": None}

    # -- in a task

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(partition.value, self._settings)


class _Driver:
    """What the process of a query keeps from batch to batch."""

    def __init__(self, options: ReadOptions) -> None:
        for notice in (*options.notices, *driver_notices()):
            LOGGER.warning("%s", notice)
        self._watch = Watch(
            connect(options),
            lambda cluster: find_topics(cluster, options.strategy),
            wanted(options.strategy),
            topics_age=options.metadata_cache,
        )
        self.plan = StreamPlan(options, self._watch)
        self._sentry = Sentry(lambda: connect(options))
        self._commits = GroupCommits(
            lambda: connect(options), options.group_id, shared=not options.kafka.given("group.id")
        )
        self._commit = options.commit_offsets
        self._spark = os.getppid()
        self._start: dict[str, Any] | None = None
        self._base: Progress | None = None
        self._planned: Progress | None = None

    def fix_the_end(self) -> None:
        """Where the logs end now is where the query ends, whatever comes meanwhile."""
        self.plan.cap()

    def latest(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        self._sentry.rest()
        base = self._standing(start)
        if everything:
            # Of Trigger.Once this is the only call: what the run before this one has read is shown
            # now, and what this one reads when the next begins.
            self._commits.flush(_LAST_COMMIT)
        planned = self.plan.next(base, everything=everything)
        while (everything or self.plan.capped) and (
            planned is None or (planned is base and self.plan.undecided)
        ):
            self._wait()
            planned = self.plan.next(base, everything=everything)
        self._planned = base if planned is None else planned
        if planned is None or planned is base:
            if self.plan.capped:
                # Spark ends the query, and this process with it, as soon as it is told.
                self._commits.flush(_LAST_COMMIT)
            return start
        reach(Point.BEFORE_OFFSET_LOG)
        return planned.to_json()

    def look_after(self, partitions: Iterable[TopicPartition]) -> None:
        """A batch of these begins."""
        self._sentry.look_after(partitions)

    def report(self) -> dict[str, Any]:
        """Where the logs end, and how much of that the batch just planned leaves unread."""
        latest = self.plan.latest()
        reached = {} if self._planned is None else self._planned.ends()
        lag = {tp: max(end - reached.get(tp, end), 0) for tp, end in latest.items()}
        found: dict[str, Any] = {
            "latest": _by_topic(latest),
            "lag": _by_topic(lag),
            "totalLag": sum(lag.values()),
        }
        if lag:
            # By the names, and as texts, of the metrics of Spark's connector.
            found["metrics"] = {
                "avgOffsetsBehindLatest": str(sum(lag.values()) / len(lag)),
                "maxOffsetsBehindLatest": str(max(lag.values())),
                "minOffsetsBehindLatest": str(min(lag.values())),
            }
        if self._watch.trouble is not None:
            found["unreachable"] = self._watch.trouble
        if self._sentry.last is not None:
            found["lastOutage"] = self._sentry.last
        return found

    def close(self) -> None:
        self._sentry.close()
        self._commits.close()
        self._watch.cluster.close()

    def _wait(self) -> None:
        """Sleep until the next attempt is due; for nobody when Spark is gone, killed perhaps."""
        if os.getppid() != self._spark:
            raise SystemExit("Spark has ended.")
        self._watch.wait()

    def _standing(self, start: dict[str, Any]) -> Progress | None:
        """The progress of `start`; a new one is what a finished batch has come to."""
        if start != self._start:
            self._start = start
            self._base = _progress(start)
            if self._commit and self._base is not None and self._base.topics:
                self._commits.put(self._base)
        return self._base


def _progress(document: dict[str, Any]) -> Progress | None:
    return None if document == PENDING else Progress.of_json(document)


def _by_topic(numbers: dict[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for tp, number in sorted(numbers.items()):
        found.setdefault(tp.topic, {})[str(tp.partition)] = number
    return found
