"""Fetch (1): read record batches, waiting for them if asked to.

Versions   4-18. From 7 on incremental sessions (KIP-227), from 13 on topics are named by id.
Behaviour  Answers at once when `min_bytes` are there, when a partition has an error, or when the
           client will not wait; else when enough was appended or `max_wait_ms` has passed. Enough
           is the smaller of `min_bytes` and `max_bytes`, and what a partition could give counts up
           to its `partition_max_bytes`. A reader that is not in the last segment is never kept
           waiting: more of its segment will not come. Data is never read into memory here: the
           answer holds file regions.
           `max_bytes` bounds the whole, `partition_max_bytes` each part; the first batch of the
           first partition with data is sent whole even when it is larger than both.
           isolation_level 1 reads up to the last stable offset and lists aborted transactions.
Odd        The last batch may be cut off by the limit, as in Kafka; every client copes.
           An offset beyond the high watermark but not beyond the log's end is no error.
Not done   Follower fetches (replica ids), tiered offsets: a replica id >= 0 is refused.
See        KIP-74, KIP-98, KIP-227, KIP-320, KIP-392, KIP-516, KIP-595, KIP-1166
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, ZERO_TOPIC_ID
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    Key,
    Session,
    Wanted,
)
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred, Waiter

BY_ID = 13
READ_COMMITTED = 1

Item = tuple[Key, Wanted]


@dataclass(slots=True)
class Plan:
    """What is to be read, and under which session it is answered."""

    items: OrderedDict[Key, Wanted]
    by_id: bool
    committed: bool
    min_bytes: int
    max_bytes: int
    session: Session | None = None
    incremental: bool = False


@dataclass(slots=True)
class Reading:
    """What one pass over the partitions found."""

    parts: list[tuple[Key, PartitionData]]
    size: int
    at_once: bool  # there is an error or a divergence: do not wait


def _failed(request: Request[FetchRequest], error: KafkaError) -> FetchResponse:
    return FetchResponse(error_code=error.code, session_id=NO_SESSION, responses=[])


@handles(ApiKey.FETCH, versions=range(4, 19), failure=_failed)
def fetch(
    request: Request[FetchRequest], services: Services
) -> FetchResponse | Deferred[FetchResponse]:
    body = request.body
    try:
        plan = _plan(request, services)
    except KafkaError as error:
        return _failed(request, error)
    reading = _read(plan, services)
    if body.max_wait_ms <= 0 or not plan.items or _suffices(plan, reading, services):
        return _respond(plan, reading)
    return _wait(plan, services, reading, body.max_wait_ms / 1000)


def _suffices(plan: Plan, reading: Reading, services: Services) -> bool:
    """Whether there is no reason to wait for more."""
    if reading.at_once or reading.size >= plan.min_bytes:
        return True
    for key, wanted in plan.items.items():
        partition = _find(key, services)
        upper = partition.last_stable_offset() if plan.committed else partition.high_watermark
        if partition.log.is_behind(wanted.offset, upper):
            return True
    return False


def _wait(
    plan: Plan, services: Services, reading: Reading, seconds: float
) -> Deferred[FetchResponse]:
    result: Deferred[FetchResponse] = Deferred()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds

    def wait(size: int) -> None:
        signals = [partition.readable for partition in _partitions(plan, services)]
        waiter = Waiter(loop, signals, plan.min_bytes - size, deadline - loop.time(), ready)
        result.on_abandon = waiter.cancel

    def ready() -> None:
        # So much was appended; but what exceeds a partition's limit does not count.
        reading = _read(plan, services)
        if loop.time() >= deadline or _suffices(plan, reading, services):
            result.resolve(_respond(plan, reading))
        else:
            wait(reading.size)

    wait(reading.size)
    return result


# ---------------------------------------------------------------------- what is asked for


def _plan(request: Request[FetchRequest], services: Services) -> Plan:
    body = request.body
    if body.replica_id >= 0 or (body.replica_state and body.replica_state.replica_id >= 0):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "this broker has no followers")
    by_id = request.api_version >= BY_ID
    max_bytes = min(body.max_bytes, services.config.fetch_max_bytes)
    plan = Plan(
        items=OrderedDict(),
        by_id=by_id,
        committed=body.isolation_level == READ_COMMITTED,
        min_bytes=min(body.min_bytes, max_bytes),
        max_bytes=max_bytes,
    )
    now = services.clock.monotonic()
    sessions = services.fetch_sessions
    if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if body.session_id != NO_SESSION:
            sessions.close(body.session_id)
        plan.items.update(_requested(body, by_id))
        if body.session_epoch == INITIAL_EPOCH:
            plan.session = sessions.open(plan.items, by_id, now)
        return plan
    session = sessions.resume(
        body.session_id,
        body.session_epoch,
        by_id,
        _requested(body, by_id),
        _forgotten(body, by_id),
        now,
    )
    plan.items = session.partitions
    if session.partitions:
        plan.session = session
        plan.incremental = True
    return plan


def _requested(body: FetchRequest, by_id: bool) -> Iterator[Item]:
    for topic in body.topics:
        name = topic.topic_id if by_id else topic.topic
        for part in topic.partitions:
            yield (
                (name, part.partition),
                Wanted(
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                ),
            )


def _forgotten(body: FetchRequest, by_id: bool) -> Iterator[Key]:
    for topic in body.forgotten_topics_data:
        name = topic.topic_id if by_id else topic.topic
        for index in topic.partitions:
            yield name, index


def _find(key: Key, services: Services) -> Partition:
    name, index = key
    if isinstance(name, str):
        return services.replicas.by_name(name, index)
    return services.replicas.by_id(name, index)


def _partitions(plan: Plan, services: Services) -> Iterator[Partition]:
    for key in plan.items:
        try:
            yield _find(key, services)
        except KafkaError:
            continue


# ---------------------------------------------------------------------- what is there


def _read(plan: Plan, services: Services) -> Reading:
    reading = Reading([], 0, False)
    left = plan.max_bytes
    min_one = True
    for key, wanted in plan.items.items():
        try:
            part = _read_partition(
                key[1], _find(key, services), wanted, plan.committed, left, min_one
            )
        except KafkaError as error:
            reading.at_once = True
            part = PartitionData(
                partition_index=key[1],
                error_code=error.code,
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                aborted_transactions=None,
                records=b"",
            )
        else:
            if part.diverging_epoch is not None:
                reading.at_once = True
            size = _size(part)
            if size:
                min_one = False
                left = max(0, left - size)
                reading.size += size
        reading.parts.append((key, part))
    return reading


def _size(part: PartitionData) -> int:
    return 0 if part.records is None else len(part.records)


def _read_partition(
    index: int, partition: Partition, wanted: Wanted, committed: bool, left: int, min_one: bool
) -> PartitionData:
    if wanted.leader_epoch != NO_LEADER_EPOCH:
        partition.check_epoch(wanted.leader_epoch)
    high_watermark = partition.high_watermark
    stable = partition.last_stable_offset()
    part = PartitionData(
        partition_index=index,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=None,
        records=b"",
    )
    offset = wanted.offset
    if wanted.last_fetched_epoch >= 0:
        epoch, end = partition.epoch_end_offset(wanted.last_fetched_epoch)
        if end < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < wanted.last_fetched_epoch or end < offset:
            part.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
            return part
    upper = stable if committed else high_watermark
    result = partition.read(offset, min(wanted.max_bytes, left), upper, min_one)
    if result.region is not None:
        part.records = result.region
    if committed:
        part.aborted_transactions = [
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
            for txn in partition.log.aborted_transactions(offset, partition.log.end_of(result))
        ]
    return part


# ---------------------------------------------------------------------- what is answered


def _respond(plan: Plan, reading: Reading) -> FetchResponse:
    session = plan.session
    responses: list[FetchableTopicResponse] = []
    by_topic: dict[str | bytes, FetchableTopicResponse] = {}
    for key, part in reading.parts:
        if session is not None:
            wanted = session.partitions.get(key)
            size = _size(part)
            news = wanted is None or wanted.news(
                size > 0, part.error_code, part.high_watermark, part.log_start_offset
            )
            if size and wanted is not None:
                session.served(key)
            if plan.incremental and not news and part.diverging_epoch is None:
                continue
        name = key[0]
        topic = by_topic.get(name)
        if topic is None:
            topic = by_topic[name] = FetchableTopicResponse(
                topic=name if isinstance(name, str) else "",
                topic_id=name if isinstance(name, bytes) else ZERO_TOPIC_ID,
                partitions=[],
            )
            responses.append(topic)
        topic.partitions.append(part)
    return FetchResponse(
        session_id=session.id if session is not None else NO_SESSION, responses=responses
    )
