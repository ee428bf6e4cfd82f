"""Which offsets a batch read is over: looked up once, when Spark plans the query."""

from __future__ import annotations

import logging
import time
from typing import Final

from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.outage import Outage
from ottla.pipelines.source.connection import connect
from ottla.pipelines.source.filters import Wanted
from ottla.pipelines.source.lookup import ending_marks, find_topics, starting_marks
from ottla.pipelines.source.loss import judge
from ottla.pipelines.source.offsets import Mark
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.planner import split
from ottla.pipelines.source.positions import AtOffsets
from ottla.pipelines.source.ranges import Range

LOGGER = logging.getLogger("ottla.pipelines")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


def plan(options: ReadOptions, wanted: Wanted) -> list[Range]:
    """One range for each task.

    A cluster that cannot be reached is waited for as long as a task would wait for it, and is asked
    as often as the options say at the least.
    """
    ranges = _ranges(options, wanted)
    return split(ranges, options.min_partitions, options.max_records_per_partition)


def _ranges(options: ReadOptions, wanted: Wanted) -> list[Range]:
    patience, retries = options.poll_timeout, options.fetch_offset_retries
    outage = Outage(LOGGER, f"A read of {options.strategy}", patience)
    pause = options.fetch_offset_retry_interval
    with connect(options) as cluster:
        while True:
            try:
                found = _looked_up(cluster, options, wanted)
            except Unreachable as error:
                if outage.note(str(error)) >= patience and retries <= 0:
                    raise _gave_up(options, error) from None
            else:
                outage.over()
                return found
            retries -= 1
            time.sleep(pause)
            pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)


def _gave_up(options: ReadOptions, error: Unreachable) -> Unreachable:
    return Unreachable(
        error.code,
        f"kafka.bootstrap.servers={options.bootstrap} could not be reached for "
        f"{options.poll_timeout:g} s (kafkaConsumer.pollTimeoutMs), at last: {error}",
    )


def _looked_up(cluster: Cluster, options: ReadOptions, wanted: Wanted) -> list[Range]:
    topics = find_topics(cluster, options.strategy)
    begins = starting_marks(cluster, topics, options)
    ends = ending_marks(cluster, topics, options)
    young = _not_older(cluster, begins, wanted)
    there = _still_there(cluster, options, begins, ends)
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
    cluster: Cluster,
    options: ReadOptions,
    begins: dict[TopicPartition, Mark],
    ends: dict[TopicPartition, Mark],
) -> dict[TopicPartition, int]:
    """Where to begin instead, if records are gone that the options ask for by their offset."""
    found: dict[TopicPartition, int] = {}
    if not isinstance(options.starting, AtOffsets):
        return found
    for tp, start in cluster.starts(begins).items():
        begin, end = begins[tp], ends[tp].offset
        if begin.offset < start.offset and begin.offset < end:
            part = Range(tp.topic, begin.topic_id, tp.partition, begin.offset, end)
            loss = judge(cluster.observe(part))
            if loss is not None:
                resumed = loss.resume(options.loss.action(loss.cause))
                LOGGER.warning("%s", loss.sentence())
                found[tp] = end if resumed is None else resumed
    return found


def _not_older(
    cluster: Cluster, begins: dict[TopicPartition, Mark], wanted: Wanted
) -> dict[TopicPartition, int]:
    """The first offset of each log that can pass a filter on the timestamp, or none of it."""
    if wanted.since is None:
        return {}
    found = cluster.offsets({tp: wanted.since for tp in begins if wanted.covers(tp)})
    return {tp: info.offset if info.offset >= 0 else wanted.end for tp, info in found.items()}
