"""TxnOffsetCommit (28): offsets of a group that count when a transaction is committed.

Versions   0-5.
Behaviour  The offsets are written into the group's log as part of the transaction, and answered
           when that is committed there. They are pending until the transaction's marker is written
           to the same log: OffsetFetch with require_stable answers UNSTABLE_OFFSET_COMMIT, without
           it the offset before. The first commit of a transaction asks the transaction's
           coordinator: whether AddOffsetsToTxn has added the group's partition, or, from version 5
           on, to add it (transaction version 2).
           From version 3 on the member and generation of the consumer are judged, so that a
           consumer that has lost its partitions cannot commit for them (KIP-447).
Odd        A stale member epoch is ILLEGAL_GENERATION.
           While the transaction's coordinator cannot be asked: COORDINATOR_LOAD_IN_PROGRESS, which
           every client retries; in versions 0 and 1 COORDINATOR_NOT_AVAILABLE.
See        KIP-98, KIP-447, KIP-890
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.coordinator.errors import as_coordinator
from ottla.coordinator.group.commands import CommitOffsets, PartitionCommit
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.shard import TransactionalProducer
from ottla.coordinator.transaction.state import Identity
from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_SEQUENCE, TopicPartition
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.runtime.waiters import Deferred

KNOWS_LOADING = 2
KNOWS_ABORTABLE = 4
ADDS_PARTITION = 5

_UNABLE_TO_ASK = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


def _failed(request: Request[TxnOffsetCommitRequest], error: KafkaError) -> TxnOffsetCommitResponse:
    count = sum(len(topic.partitions) for topic in request.body.topics)
    return _answer(request, [error.code] * count)


@handles(ApiKey.TXN_OFFSET_COMMIT, versions=range(6), failure=_failed)
async def txn_offset_commit(
    request: Request[TxnOffsetCommitRequest], services: Services
) -> TxnOffsetCommitResponse:
    body = request.body
    topics = services.image.topics
    commits: list[PartitionCommit] = []
    known: list[bool] = []
    for requested in body.topics:
        topic = topics.get(requested.name)
        for partition in requested.partitions:
            index = partition.partition_index
            known.append(topic is not None and 0 <= index < len(topic.partitions))
            if topic is not None and known[-1]:
                commits.append(
                    PartitionCommit(
                        topic.name,
                        index,
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        partition.committed_metadata,
                        topic.id,
                    )
                )
    codes = iter(await _commit(request, services, commits) if commits else ())
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _answer(request, [next(codes) if each else unknown for each in known])


async def _commit(
    request: Request[TxnOffsetCommitRequest], services: Services, commits: list[PartitionCommit]
) -> list[ErrorCode]:
    body = request.body
    try:
        producer = await _join_transaction(request, services)
        reply = services.groups.commit_in_transaction(
            CommitOffsets(
                body.group_id,
                tuple(commits),
                body.member_id,
                body.group_instance_id,
                body.generation_id,
                api_version=request.api_version,
                producer=producer,
            )
        )
        return await reply if isinstance(reply, Deferred) else reply
    except KafkaError as error:
        return [as_coordinator(error).code] * len(commits)


async def _join_transaction(
    request: Request[TxnOffsetCommitRequest], services: Services
) -> TransactionalProducer:
    """The producer, whose transaction includes the group's partition. Raises KafkaError."""
    body, version = request.body, request.api_version
    identity = Identity(body.producer_id, body.producer_epoch)
    place = TopicPartition(OFFSETS_TOPIC, services.groups.partition_for(body.group_id))
    partition = services.replicas.by_name(*place)
    adds = version >= ADDS_PARTITION
    joined = await services.transactions.join(
        body.transactional_id, identity, {partition: NO_SEQUENCE}, add=adds
    )
    found = joined[partition]
    if isinstance(found, ErrorCode):
        raise KafkaError(_not_allowed(found, version, adds))
    return TransactionalProducer(*identity, found)


def _not_allowed(code: ErrorCode, version: int, adds: bool) -> ErrorCode:
    """What the coordinator's refusal is to a producer: Kafka's translation."""
    if code in _UNABLE_TO_ASK or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _answer(
    request: Request[TxnOffsetCommitRequest], codes: Iterable[ErrorCode]
) -> TxnOffsetCommitResponse:
    """The response; a code for each partition of the request, in their order."""
    given = iter(codes)

    def code() -> ErrorCode:
        found = next(given)
        if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and request.api_version < KNOWS_LOADING:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return found

    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code()
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )
