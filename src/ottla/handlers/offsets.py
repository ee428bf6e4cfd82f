"""ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23): positions in a log.

Versions   ListOffsets 1-11, DeleteRecords 0-2, OffsetForLeaderEpoch 2-4.
Behaviour  ListOffsets takes a timestamp, or one of the named positions: -1 the end (the last
           stable offset for read_committed), -2 the start, -3 the record with the largest
           timestamp, -4 the start of what is on local disk (the same as -2: there are no tiers),
           -5 and -6 the ends of what is tiered or waiting for it (none: offset -1).
           By time, and -3, is looked up in threads, one partition after the other, the
           connections taking turns; as in Kafka the connection's next request waits meanwhile.
           DeleteRecords moves the log start; -1 means everything that can be read. It answers
           the lowest start of all live replicas, once that is where it was asked for;
           REQUEST_TIMED_OUT when that takes longer than its time-out.
           For a follower (a replica id) the end is the log's; with replica id -2 any replica
           answers so, whoever leads. A new leader answers consumers with OFFSET_NOT_AVAILABLE
           (below version 5 LEADER_NOT_AVAILABLE) until its high watermark has reached the first
           offset of its epoch: it may still be behind what the leader before it has shown. So does
           a broker after a restart under `flush.messages`, until what it found is synced.
           The leader epoch that a client knows is judged before anything else, by followers too:
           FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one.
Odd        A named position that is newer than the request's version, or unknown, fails that
           partition with UNSUPPORTED_VERSION. A partition listed twice in ListOffsets fails with
           INVALID_REQUEST, among a thousand entries; in longer lists it is answered twice. A
           timestamp later than every record is no error: offset -1.
See        KIP-79, KIP-107, KIP-207, KIP-320, KIP-405, KIP-734, KIP-1005, KIP-1023
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
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
from ottla.runtime.waiters import Deferred
from ottla.storage.reads import LookUpGoesOn, NeedsLongLookUp, TimeLookUp, TimestampOffset

CONSUMER = -1
ANY_REPLICA = -2
KNOWS_NOT_AVAILABLE = 5

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# What does not depend on the high watermark.
KNOWN_ANYWAY = frozenset({EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD})

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


# How often a partition is looked at anew because records were taken away meanwhile.
LOOKS = 5
# How often it is looked whether followers have deleted records.
LOOK_AGAIN = 0.02


@dataclass(frozen=True, slots=True)
class Pending:
    """A partition that has to be searched for a record."""

    topic: str
    part: ListOffsetsPartition
    answer: ListOffsetsPartitionResponse


class Deletion(NamedTuple):
    """A partition whose followers have not deleted what its leader has."""

    partition: Partition
    start: int
    result: DeleteRecordsPartitionResult


@handles(
    ApiKey.LIST_OFFSETS,
    versions=range(1, 12),
    pieces=ListOf("topics", "topics", "partitions", "partitions"),
)
def list_offsets(  # noqa: C901 - one refusal for each rule, then the lookups that take long
    request: Request[ListOffsetsRequest], services: Services
) -> ListOffsetsResponse | Deferred[ListOffsetsResponse]:
    body = request.body
    times = Counter(
        (topic.name, part.partition_index) for topic in body.topics for part in topic.partitions
    )
    committed = body.isolation_level == READ_COMMITTED
    topics = []
    pending: list[Pending] = []
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
                partition = _partition(services, topic.name, part, body.replica_id)
                if (
                    body.replica_id == CONSUMER
                    and part.timestamp not in KNOWN_ANYWAY
                    and not partition.knows_high_watermark
                ):
                    raise KafkaError(
                        ErrorCode.OFFSET_NOT_AVAILABLE
                        if request.api_version >= KNOWS_NOT_AVAILABLE
                        else ErrorCode.LEADER_NOT_AVAILABLE
                    )
                if part.timestamp >= 0 or part.timestamp == MAX_TIMESTAMP:
                    if not partition.log.look_up_time(_moment(part)).is_vain:
                        pending.append(Pending(topic.name, part, answer))
                else:
                    _name_position(partition, part, committed, answer, body.replica_id)
            except KafkaError as error:
                answer.error_code = error.code
            answers.append(answer)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    response = ListOffsetsResponse(topics=topics)
    if not pending:
        return _without_epochs(response) if request.api_version < KNOWS_EPOCHS else response
    result: Deferred[ListOffsetsResponse] = Deferred(exclusive=True)

    async def look_up_all() -> ListOffsetsResponse:
        for each in pending:
            try:
                await _look_up(each, committed, request.connection, services)
            except KafkaError as error:
                each.answer.error_code = error.code
        return _without_epochs(response) if request.api_version < KNOWS_EPOCHS else response

    def done(task: asyncio.Task[ListOffsetsResponse]) -> None:
        if not task.cancelled():
            error = task.exception()
            if error is None:
                result.resolve(task.result())
            else:
                result.fail(error)

    task = asyncio.get_running_loop().create_task(look_up_all())
    result.on_abandon = task.cancel
    task.add_done_callback(done)
    return result


def _partition(
    services: Services, topic: str, part: ListOffsetsPartition, replica_id: int
) -> Partition:
    index, epoch = part.partition_index, part.current_leader_epoch
    if replica_id != ANY_REPLICA:
        return services.replicas.led_in(epoch, topic, index)
    partition = services.replicas.replica_by_name(topic, index)
    partition.check_epoch(epoch)
    return partition


def _moment(part: ListOffsetsPartition) -> int | None:
    return None if part.timestamp == MAX_TIMESTAMP else part.timestamp


def _without_epochs(response: ListOffsetsResponse) -> ListOffsetsResponse:
    for topic in response.topics:
        for answer in topic.partitions:
            answer.leader_epoch = NO_LEADER_EPOCH
    return response


async def _look_up(pending: Pending, committed: bool, owner: object, services: Services) -> None:
    """Search one partition. When it was truncated, deleted or made anew meanwhile, once more."""
    topic, part, answer = pending.topic, pending.part, pending.answer
    for _ in range(LOOKS):
        partition = services.replicas.led_in(part.current_leader_epoch, topic, part.partition_index)
        look_up = partition.log.look_up_time(_moment(part))
        found: TimestampOffset | None = None
        failure: Exception | None = None
        try:
            found = await _run(look_up, owner, services)
        except (OSError, KafkaError) as error:
            failure = error
        if services.replicas.by_name(topic, part.partition_index) is not partition:
            continue
        if not look_up.is_current:
            continue
        if isinstance(failure, OSError):
            raise partition.log.storage_failed(failure, "reading")
        if failure is not None:
            raise failure
        upper = partition.last_stable_offset() if committed else partition.high_watermark
        if found is not None and found.offset < partition.log_start_offset and part.timestamp >= 0:
            continue  # deleted meanwhile, though its file is still there
        if found is not None and found.offset < upper:
            answer.offset = found.offset
            answer.timestamp = found.timestamp
            answer.leader_epoch = found.leader_epoch
        return
    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def _run(look_up: TimeLookUp, owner: object, services: Services) -> TimestampOffset | None:
    """In turns with the others: who meets a record from a wrong clock looks at a whole segment."""
    workers = services.workers
    short = True
    while look_up.is_current:
        threads = workers.look_ups if short else workers.long_look_ups
        try:
            return await threads.run(owner, partial(look_up.run, short=short))
        except LookUpGoesOn:
            short = True
        except NeedsLongLookUp:
            short = False
    return None


def _name_position(
    partition: Partition,
    part: ListOffsetsPartition,
    committed: bool,
    answer: ListOffsetsPartitionResponse,
    replica_id: int,
) -> None:
    if part.timestamp == LATEST and replica_id != CONSUMER:
        answer.offset = partition.log.log_end_offset
        last = partition.log.latest_epoch
        answer.leader_epoch = NO_LEADER_EPOCH if last is None else last
    elif part.timestamp == LATEST:
        answer.offset = partition.last_stable_offset() if committed else partition.high_watermark
        answer.leader_epoch = partition.leader_epoch
    elif part.timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.log_start_offset
        answer.leader_epoch = partition.start_epoch()
    elif part.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        answer.leader_epoch = NO_LEADER_EPOCH


@handles(
    ApiKey.DELETE_RECORDS,
    versions=range(3),
    pieces=ListOf("topics", "topics", "partitions", "partitions", changes=True),
)
def delete_records(
    request: Request[DeleteRecordsRequest], services: Services
) -> DeleteRecordsResponse | Coroutine[Any, Any, DeleteRecordsResponse]:
    topics = []
    waiting: list[Deletion] = []
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
                start = partition.delete_records(part.offset)
                result.low_watermark = partition.low_watermark(services.image.brokers)
                if result.low_watermark < start:
                    waiting.append(Deletion(partition, start, result))
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    response = DeleteRecordsResponse(topics=topics)
    if not waiting:
        return response
    return _deleted_everywhere(response, waiting, request.body.timeout_ms, services)


async def _deleted_everywhere(
    response: DeleteRecordsResponse, waiting: list[Deletion], timeout_ms: int, services: Services
) -> DeleteRecordsResponse:
    """Wait until the followers have deleted the records too.

    They do so with their next fetch, half a second at the latest. It is looked at again and again,
    since brokers that die meanwhile are not waited for.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    while waiting:
        left = []
        for deletion in waiting:
            partition, result = deletion.partition, deletion.result
            low = partition.low_watermark(services.image.brokers)
            if not partition.leading:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                result.low_watermark = -1
            elif low < deletion.start:
                left.append(deletion)
            else:
                result.low_watermark = low
        waiting = left
        if loop.time() >= deadline:
            for deletion in waiting:
                deletion.result.error_code = ErrorCode.REQUEST_TIMED_OUT
            break
        if waiting:
            await asyncio.sleep(LOOK_AGAIN)
    return response


@handles(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=range(2, 5),
    pieces=ListOf("topics", "topics", "partitions", "partitions"),
)
def offset_for_leader_epoch(
    request: Request[OffsetForLeaderEpochRequest], services: Services
) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.body.topics:
        results = []
        for part in topic.partitions:
            result = EpochEndOffset(partition=part.partition)
            try:
                partition = services.replicas.led_in(
                    part.current_leader_epoch, topic.topic, part.partition
                )
                epoch, end = partition.epoch_end_offset(part.leader_epoch)
                result.leader_epoch = epoch
                result.end_offset = end
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)
