"""The logs that a start has found, compared with what the metadata says of them.

Logs of no topic are set aside. Partitions that may have lost their last records, or that are newer
than the metadata, get a new leader epoch before anybody reads or writes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ottla.model.broker import LostPartition
from ottla.model.ids import ZERO_TOPIC_ID, TopicPartition
from ottla.model.image import ClusterImage
from ottla.runtime.logs import first_few
from ottla.storage.directory import LogDirectories
from ottla.storage.loader import Progress

logger = logging.getLogger(__name__)

AskHighWatermarks = Callable[
    [int, Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]
]

MOST_LOST = 10_000
"""So many partitions fit into a registration, which is one key of the store."""


def set_aside_strays(logs: LogDirectories, image: ClusterImage, node_id: int) -> None:
    """Logs that no topic claims: a topic was deleted while we were dying, or made anew since. And
    those of partitions that were moved to other brokers meanwhile.

    Kafka renames such folders and keeps them, since the metadata may be what is wrong.
    """
    found = {**logs.damaged, **{each: log.topic_id for each, log in logs.logs.items()}}
    for partition, topic_id in found.items():
        topic = image.topics.get(partition.topic)
        known = topic is not None and partition.partition < len(topic.partitions)
        moved = False
        if known and topic is not None and topic_id in (topic.id, ZERO_TOPIC_ID):
            if node_id in topic.partitions[partition.partition].replicas:
                continue
            moved = True
        kept = logs.set_aside(partition)
        if kept is None:
            continue
        if moved:
            logger.warning(
                "%s was moved to other brokers; its data was kept in %s", partition, kept
            )
        else:
            logger.warning(
                "%s belongs to no topic of this cluster; its data was kept in %s", partition, kept
            )


def report_lost(logs: LogDirectories, image: ClusterImage, node_id: int) -> None:
    """Tell which partitions begin anew, empty, though no other broker has their records: a data
    folder is missing that this broker had."""
    before = image.broker_states.get(node_id)
    if before is None or {*before.directories} <= {*logs.directory_ids} or logs.offline_folders:
        return
    here = {*logs.logs, *logs.damaged, *logs.offline_partitions}
    lost = [
        partition
        for topic in image.topics.values()
        for index, state in enumerate(topic.partitions)
        if state.replicas == (node_id,)
        and (partition := TopicPartition(topic.name, index)) not in here
    ]
    if lost:
        logger.error(
            "a data folder is missing that this broker had: %d partition(s) that no other broker "
            "has begin anew, and their records are lost: %s",
            len(lost),
            first_few(lost),
        )


def needing_new_epochs(
    logs: LogDirectories, image: ClusterImage, node_id: int
) -> dict[TopicPartition, int]:
    """The partitions of ours that need a new leader epoch, each with the one to be above.

    A log that may have lost its end will give the lost offsets to other records; that these come
    under a new epoch is how a consumer that had read the old ones notices (KIP-320). A log with
    epochs the metadata has not seen means metadata older than the data, as from a backup; that is
    looked for also in partitions that only we have, which nobody leads yet.
    """
    found: dict[TopicPartition, int] = {}
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            leads = state.leader == node_id
            if not leads and state.replicas != (node_id,):
                continue
            partition = TopicPartition(topic.name, index)
            log = logs.logs.get(partition)
            noted = -1 if log is None or log.latest_epoch is None else log.latest_epoch
            if noted > state.leader_epoch or (leads and logs.may_be_cut(partition)):
                found[partition] = noted
    return found


async def behind_their_leaders(
    logs: LogDirectories, image: ClusterImage, node_id: int, ask: AskHighWatermarks
) -> frozenset[TopicPartition]:
    """Partitions in which this broker counts as in sync or eligible, and has less than what their
    leaders know to be safe: records are gone that it once had, however that has come about.

    A leader that does not answer finds it out with the first fetch, when this broker is live."""
    led: dict[int, list[TopicPartition]] = {}
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            elsewhere = state.leader in image.brokers and state.leader != node_id
            if elsewhere and node_id in (*state.isr, *state.elr):
                led.setdefault(state.leader, []).append(TopicPartition(topic.name, index))
    behind: set[TopicPartition] = set()
    for marks in await asyncio.gather(*(ask(*each) for each in led.items())):
        for partition, mark in marks.items():
            log = logs.logs.get(partition)
            end = 0 if log is None else log.log_end_offset
            if end < mark:
                behind.add(partition)
                logger.warning(
                    "%s ends at %d here, and its leader's high watermark is %d: records are gone "
                    "that this broker once had",
                    partition,
                    end,
                    mark,
                )
    return frozenset(behind)


def lost_partitions(
    partitions: Iterable[TopicPartition], image: ClusterImage
) -> frozenset[LostPartition] | None:
    """Those of the partitions that have other replicas, by their topics' ids; None: too many to be
    named one by one."""
    found = frozenset(
        LostPartition(topic.id, index)
        for name, index in partitions
        if (topic := image.topics.get(name)) is not None
        and index < len(topic.partitions)
        and len(topic.partitions[index].replicas) > 1
    )
    return found if len(found) <= MOST_LOST else None


def log_progress(progress: Progress) -> None:
    """A line while loading takes its time."""
    logger.info(
        "loading %s: %d of %d partitions, %d of %d MB checked, %.0f s",
        progress.folder,
        progress.loaded,
        progress.total,
        progress.scanned_bytes >> 20,
        progress.bytes_to_scan >> 20,
        progress.seconds,
    )
