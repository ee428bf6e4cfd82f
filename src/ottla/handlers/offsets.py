"""ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23): positions in a log.

Versions   ListOffsets 1-11, DeleteRecords 0-2, OffsetForLeaderEpoch 2-4.
Behaviour  ListOffsets takes a timestamp, or one of the named positions: -1 the end (the last
           stable offset for read_committed), -2 the start, -3 the record with the largest
           timestamp, -4 the start of what is on local disk (the same as -2: there are no tiers),
           -5 and -6 the ends of what is tiered or waiting for it (none: offset -1).
           DeleteRecords moves the log start; -1 means everything that can be read.
Odd        A named position that is newer than the request's version, or unknown, fails that
           partition with UNSUPPORTED_VERSION. A partition listed twice in ListOffsets fails with
           INVALID_REQUEST. A timestamp later than every record is no error: offset -1.
See        KIP-79, KIP-107, KIP-207, KIP-320, KIP-405, KIP-734, KIP-1005, KIP-1023
"""

from __future__ import annotations

from collections import Counter

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH
from ottla.model.topic import INTERNAL_TOPICS
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.replication.partition import Partition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# The first version that knows each named position.
SINCE = {
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NEVER = 2**15

READ_COMMITTED = 1
KNOWS_EPOCHS = 4


@handles(ApiKey.LIST_OFFSETS, versions=range(1, 12))
def list_offsets(request: Request[ListOffsetsRequest], services: Services) -> ListOffsetsResponse:
    body = request.body
    times = Counter(
        (topic.name, part.partition_index) for topic in body.topics for part in topic.partitions
    )
    committed = body.isolation_level == READ_COMMITTED
    topics = []
    for topic in body.topics:
        answers = []
        for part in topic.partitions:
            answer = ListOffsetsPartitionResponse(partition_index=part.partition_index)
            try:
                if times[topic.name, part.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                if part.timestamp < LATEST and (
                    request.api_version < SINCE.get(part.timestamp, NEVER)
                ):
                    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
                partition = services.replicas.by_name(topic.name, part.partition_index)
                partition.check_epoch(part.current_leader_epoch)
                _look_up(partition, part, committed, answer)
            except KafkaError as error:
                answer.error_code = error.code
            if request.api_version < KNOWS_EPOCHS:
                answer.leader_epoch = NO_LEADER_EPOCH
            answers.append(answer)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _look_up(
    partition: Partition,
    part: ListOffsetsPartition,
    committed: bool,
    answer: ListOffsetsPartitionResponse,
) -> None:
    upper = partition.last_stable_offset() if committed else partition.high_watermark
    log = partition.log
    if part.timestamp == LATEST:
        answer.offset = upper
        answer.leader_epoch = partition.leader_epoch
    elif part.timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = log.log_start_offset
        answer.leader_epoch = partition.start_epoch()
    elif part.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        answer.leader_epoch = NO_LEADER_EPOCH
    else:
        found = (
            log.max_timestamp()
            if part.timestamp == MAX_TIMESTAMP
            else log.offset_for_timestamp(part.timestamp)
        )
        if found is not None and found.offset < upper:
            answer.offset = found.offset
            answer.timestamp = found.timestamp
            answer.leader_epoch = found.leader_epoch


@handles(ApiKey.DELETE_RECORDS, versions=range(3))
def delete_records(
    request: Request[DeleteRecordsRequest], services: Services
) -> DeleteRecordsResponse:
    topics = []
    for topic in request.body.topics:
        results = []
        for part in topic.partitions:
            result = DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1
            )
            try:
                if topic.name in INTERNAL_TOPICS:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                partition = services.replicas.by_name(topic.name, part.partition_index)
                result.low_watermark = partition.delete_records(part.offset)
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=range(2, 5))
def offset_for_leader_epoch(
    request: Request[OffsetForLeaderEpochRequest], services: Services
) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.body.topics:
        results = []
        for part in topic.partitions:
            result = EpochEndOffset(partition=part.partition)
            try:
                partition = services.replicas.by_name(topic.topic, part.partition)
                partition.check_epoch(part.current_leader_epoch)
                epoch, end = partition.epoch_end_offset(part.leader_epoch)
                result.leader_epoch = epoch
                result.end_offset = end
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)
