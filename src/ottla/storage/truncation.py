"""Truncating the logs of a running broker, so that not even a power cut can do harm.

`Log.truncate_to` is for files and memory, and kill -9 may come at any moment of it. A power cut
brings back what was not synced, and the folder's checkpoints are always synced. A recovery point
above a cut would have the next start call new records flushed that are not: a torn one among them
would take the partition offline, and batches below it would not be looked at. A log start above it
would hide them, a cleaner's offset would leave them uncompacted. So, in this order:

1. the checkpoints are written with nothing at or above the cut, once for all logs;
2. the logs are cut;
3. files and names are synced. Until then nothing may be appended.

Kafka does 1 after 2, and never 3.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.storage.faults import OutOfDescriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.model.ids import TopicPartition
    from ottla.storage.directory import LogDirectories
    from ottla.storage.log import Log


class Cut(NamedTuple):
    """A log that is to end at `offset`, or, `fully`, to hold nothing and go on there."""

    partition: TopicPartition
    offset: int
    fully: bool = False


async def truncate(cuts: Sequence[Cut], directories: LogDirectories) -> None:
    """Make the cuts. Raises KafkaError; what was done then may be done again."""
    listed = [(_find(directories, cut.partition), cut) for cut in cuts]
    shrinking = [(log, cut) for log, cut in listed if cut.fully or cut.offset < log.log_end_offset]
    try:
        for log, cut in shrinking:
            log.truncating_to = min(cut.offset, log.log_start_offset) if cut.fully else cut.offset
        if shrinking and not await directories.write_checkpoints():
            raise OutOfDescriptors(
                ErrorCode.KAFKA_STORAGE_ERROR, "no descriptor was free to write the checkpoints"
            )
        for log, cut in listed:
            if cut.fully:
                log.truncate_fully_and_start_at(cut.offset)
            elif log.truncate_to(cut.offset):
                await asyncio.sleep(0)  # there may be thousands of them
    finally:
        for log, _ in shrinking:
            log.truncating_to = None
    unsynced = [log for log, _ in listed if log.has_unsynced_truncation]
    # Among the log's other flushes: one that is under way may have taken the names to be synced.
    flushes = (directories.group_commit.wait_flushed(log, log.log_end_offset) for log in unsynced)
    results = await asyncio.gather(*flushes, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _find(directories: LogDirectories, partition: TopicPartition) -> Log:
    log = directories.find(partition)
    if log is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not here")
    return log
