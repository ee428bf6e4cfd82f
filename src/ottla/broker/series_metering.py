"""What is measured of each topic, follower, group and data folder.

Anybody may be able to make up topics and groups, so the number of series is bounded: `traffic.MOST`
topics have series of their own, and of the lags of groups the `MOST_LAGS` largest are shown.

The functions are generators that give None where others may have a turn on the loop.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator

from ottla.dispatch.context import Services
from ottla.replication.isr import UNKNOWN
from ottla.replication.traffic import Traffic
from ottla.runtime.metrics import Reading

TURN = 256
MOST_LAGS = 1_000
LONGEST_LABEL = 200

_TRAFFIC = (
    ("messages_in", "Records that producers appended, by topic.", "messages_in"),
    ("bytes_in", "Bytes of record batches that producers appended, by topic.", "bytes_in"),
    ("bytes_out", "Bytes of record batches that consumers fetched, by topic.", "bytes_out"),
    ("replication_bytes_in", "Bytes copied from leaders, by topic.", "replicated_in"),
    ("replication_bytes_out", "Bytes sent to followers, by topic.", "replicated_out"),
)


def traffic(of: Traffic) -> Iterator[Reading | None]:
    """What came in and went out, by topic."""
    topics = list(of)
    for name, text, attribute in _TRAFFIC:
        yield Reading(
            f"kafka_server_broker_topic_metrics_{name}_total",
            text,
            "counter",
            ("topic",),
            tuple(((topic,), getattr(counted, attribute)) for topic, counted in topics),
        )
    yield None


def logs_by_topic(services: Services) -> Iterator[Reading | None]:
    """Sizes and segments of the logs on this broker."""
    label = services.replicas.traffic.label
    sizes: defaultdict[str, int] = defaultdict(int)
    segments: defaultdict[str, int] = defaultdict(int)
    for number, (partition, log) in enumerate(list(services.logs.logs.items())):
        topic = label(partition.topic)
        sizes[topic] += log.size
        segments[topic] += log.segment_count
        if number % TURN == TURN - 1:
            yield None
    yield Reading(
        "kafka_log_log_size",
        "Bytes in the logs of a topic's partitions on this broker.",
        "gauge",
        ("topic",),
        _by_name(sizes),
    )
    yield Reading(
        "kafka_log_log_num_log_segments",
        "Segment files of a topic's partitions on this broker.",
        "gauge",
        ("topic",),
        _by_name(segments),
    )


def replica_lag(services: Services) -> Iterator[Reading | None]:
    """How far followers are behind the partitions that are led here."""
    records: defaultdict[str, int] = defaultdict(int)
    for number, partition in enumerate(list(services.replicas.led())):
        in_sync = partition.in_sync
        if in_sync is not None:
            log = partition.log
            for broker, follower in in_sync.followers.items():
                has = log.log_start_offset if follower.end == UNKNOWN else follower.end
                lag = max(0, log.log_end_offset - has)
                records[str(broker)] = max(records[str(broker)], lag)
        if number % TURN == TURN - 1:
            yield None
    yield Reading(
        "ottla_replica_lag_records",
        "Records that a follower lacks of the partition led here of which it lacks most.",
        "gauge",
        ("follower",),
        _by_name(records),
    )


def group_lag(services: Services) -> Iterator[Reading | None]:
    """How far groups coordinated here are behind, where this broker has all that they read."""
    lags: dict[tuple[str, str], int] = {}
    elsewhere: set[tuple[str, str]] = set()
    committed = services.groups.all_committed()
    for number, (group, topic, index, offset) in enumerate(committed, start=1):
        if number % TURN == 0:
            yield None
        partition = services.replicas.held(topic, index)
        if partition is None:
            elsewhere.add((group, topic))
            continue
        # What retention has deleted nobody can be behind with any more.
        behind = partition.high_watermark - max(offset, partition.log.log_start_offset)
        lags[group, topic] = lags.get((group, topic), 0) + max(0, behind)
    largest: list[tuple[int, tuple[str, str]]] = []
    for number, (pair, lag) in enumerate(lags.items(), start=1):
        if number % TURN == 0:
            yield None
        if pair not in elsewhere:
            (heapq.heappush if len(largest) < MOST_LAGS else heapq.heappushpop)(
                largest, (lag, pair)
            )
    shown: dict[tuple[str, ...], float] = {}
    for lag, (group, topic) in sorted(largest, reverse=True):
        shown.setdefault((group[:LONGEST_LABEL], topic), lag)
    yield Reading(
        "ottla_group_lag_records",
        "Records that a group has yet to read of a topic, by what it has committed.",
        "gauge",
        ("group", "topic"),
        tuple(sorted(shown.items())),
    )


def volumes(folders: Iterable[str]) -> list[Reading]:
    """The volumes of data folders. Blocks: for threads only."""
    sizes: dict[str, int] = {}
    free: dict[str, int] = {}
    for folder in folders:
        try:
            volume = os.statvfs(folder)
        except OSError:
            continue  # it has failed, which another metric tells, or is about to
        sizes[folder] = volume.f_blocks * volume.f_frsize
        free[folder] = volume.f_bavail * volume.f_frsize
    return [
        Reading(
            "ottla_log_directory_volume_bytes",
            "Size of the volume of a data folder.",
            "gauge",
            ("directory",),
            _by_name(sizes),
        ),
        Reading(
            "ottla_log_directory_free_bytes",
            "Bytes that are free on the volume of a data folder.",
            "gauge",
            ("directory",),
            _by_name(free),
        ),
    ]


def _by_name(values: dict[str, int]) -> tuple[tuple[tuple[str], int], ...]:
    return tuple(((name,), value) for name, value in sorted(values.items()))
