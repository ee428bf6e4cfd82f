"""AlterReplicaLogDirs (34) and DescribeLogDirs (35): the data folders, and what lies in them.

Versions   AlterReplicaLogDirs 1-2; DescribeLogDirs 1-4, from 4 on with the size and the free space
           of the volume.
Behaviour  AlterReplicaLogDirs has the broker that is asked move its replicas to other folders of
           its own, and is answered when that has begun. It goes on by itself, also after a restart;
           naming the folder that a replica is in cancels it, and naming a third one begins anew.
           A replica that is not here yet is made in the folder when it comes, and answered with
           REPLICA_NOT_AVAILABLE, or UNKNOWN_TOPIC_OR_PARTITION if there is no such partition.
           LOG_DIR_NOT_FOUND is for a path that is none of the folders' absolute ones,
           KAFKA_STORAGE_ERROR for a folder or a replica that is offline.
           DescribeLogDirs: topics null asks for everything. A failed folder is listed with
           KAFKA_STORAGE_ERROR, as is one whose volume cannot be asked for its size. A replica that
           is being moved is listed in both folders, as a future one where it goes to.
Odd        The lag is how far the high watermark is ahead of the log: 0 on a leader; that of a
           future replica is what it still lacks. Of a partition that is named twice, the last
           folder counts. What was said about replicas to come is forgotten by a restart.
See        KIP-113, KIP-827
"""

from __future__ import annotations

import asyncio
import logging
import os

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.runtime.logs import first_few

logger = logging.getLogger(__name__)

TURN = 64


@handles(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=range(1, 3), most=1 << 17)
async def alter_replica_log_dirs(
    request: Request[AlterReplicaLogDirsRequest], services: Services
) -> AlterReplicaLogDirsResponse:
    wanted = {
        TopicPartition(topic.name, index): folder.path
        for folder in request.body.dirs
        for topic in folder.topics
        for index in topic.partitions
    }
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    refused: list[str] = []
    for count, (tp, path) in enumerate(wanted.items()):
        if count % TURN == 0:
            await asyncio.sleep(0)  # others have their turn, also where nothing is waited for
        code = ErrorCode.NONE
        try:
            await _move(tp, path, services)
        except KafkaError as error:
            code = error.code
            refused.append(f"{tp} is not moved to {path}: {error.message or code.name}")
        result = results.setdefault(
            tp.topic, AlterReplicaLogDirTopicResult(topic_name=tp.topic, partitions=[])
        )
        result.partitions.append(
            AlterReplicaLogDirPartitionResult(partition_index=tp.partition, error_code=code)
        )
    if refused:
        logger.warning("%s", first_few(refused))  # one line, however many
    return AlterReplicaLogDirsResponse(results=list(results.values()))


async def _move(tp: TopicPartition, path: str, services: Services) -> None:
    """Have one replica moved, or made, in the folder of this path. Raises KafkaError."""
    logs = services.logs
    named = path.rstrip("/") or path
    if any(os.path.abspath(folder) == named for folder in logs.offline_folders):
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
    folder = next((each for each in logs.folders if os.path.abspath(each) == named), None)
    if folder is None:
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
    reason = services.replicas.offline(*tp)
    if reason is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
    logs.prefer(tp, folder)
    try:
        services.replicas.replica_by_name(*tp)
    except KafkaError as error:
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            # As Kafka has it: clients know this answer to mean "not yet".
            raise KafkaError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"{tp} will be made in {folder}"
            ) from None
        raise
    await logs.moves.request(tp, folder)


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 5), most=1 << 17)
async def describe_log_dirs(
    request: Request[DescribeLogDirsRequest], services: Services
) -> DescribeLogDirsResponse:
    wanted = (
        None
        if request.body.topics is None
        else {(topic.topic, index) for topic in request.body.topics for index in topic.partitions}
    )
    logs = services.logs
    results = [_failed(folder) for folder in logs.offline_folders]
    for folder in logs.folders:
        try:
            # In a thread: a file system over a network may take its time.
            volume = await services.workers.run_in_thread(os.statvfs, folder)
        except OSError as error:
            logger.warning("cannot tell how large the volume of %s is: %s", folder, error.strerror)
            results.append(_failed(folder))
            continue
        topics: dict[str, DescribeLogDirsTopic] = {}
        lying = [(log.partition, log.size, 0, False) for log in logs.logs_in(folder)]
        coming = [
            (move.partition, move.log.size, move.lag, True) for move in logs.moves.into(folder)
        ]
        waiting = [
            (log.partition, 0, log.log_end_offset, True) for log in logs.moves.waiting_for(folder)
        ]
        for (name, index), size, lag, is_future in (*lying, *coming, *waiting):
            if wanted is not None and (name, index) not in wanted:
                continue
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name, partitions=[]))
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=size,
                    offset_lag=lag,
                    is_future_key=is_future,
                )
            )
        results.append(
            DescribeLogDirsResult(
                log_dir=os.path.abspath(folder),
                topics=list(topics.values()),
                total_bytes=volume.f_blocks * volume.f_frsize,
                usable_bytes=volume.f_bavail * volume.f_frsize,
            )
        )
    return DescribeLogDirsResponse(results=results)


def _failed(folder: str) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=os.path.abspath(folder), topics=[]
    )
