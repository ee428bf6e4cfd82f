"""DescribeLogDirs (35): the data folders, and what lies in them.

Versions   1-4; from 4 on with the size and the free space of the volume.
Behaviour  Topics null asks for everything. A failed folder is listed with KAFKA_STORAGE_ERROR, as
           is one whose volume cannot be asked for its size.
Odd        The lag is how far the high watermark is ahead of the log: 0 on a leader.
Not done   Future replicas (moving a log between folders).
See        KIP-113, KIP-827
"""

from __future__ import annotations

import logging
import os

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

logger = logging.getLogger(__name__)


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
        for log in logs.logs_in(folder):
            name, index = log.partition
            if wanted is not None and (name, index) not in wanted:
                continue
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name, partitions=[]))
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=log.size,
                    offset_lag=0,
                    is_future_key=False,
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
