"""Produce (0): append record batches to partition leaders.

Versions   0-13 are advertised, 3-13 are served. 0-2 carry the message formats that ended with
           Kafka 3; like Kafka 4 we advertise them (librdkafka 2.0 stops compressing otherwise)
           and close the connection of whoever sends one. From 13 on topics are named by id.
Behaviour  One bad partition never fails its neighbours. acks=0 sends no response; when such a
           request fails the connection is closed, the only sign the client can get. acks=1 is
           answered when write(2) has returned, or fsync where the topic asks for it; acks=-1 when
           every in-sync replica has the records. NOT_ENOUGH_REPLICAS below min.insync.replicas;
           REQUEST_TIMED_OUT when `timeout_ms` pass first, which tells nothing about the records.
           A duplicate of an idempotent batch is answered with the offset of the original.
           A request with an idempotent batch that would be refused for a reason that may pass is
           handled when those before it on its connection have been answered, as all are in Kafka:
           so such a refusal leaves at once, and what was sent behind it meets the same reason.
           The first batch of a transaction in a partition is appended when the transaction's
           coordinator has answered: that the transaction includes the partition, or, from version
           12 on, that it does so from now on (transaction version 2).
           From version 10 on NOT_LEADER_OR_FOLLOWER comes with the leader, and its address.
Odd        acks outside -1, 0, 1 fail every partition with INVALID_REQUIRED_ACKS.
           A partition with null or empty records fails with INVALID_RECORD, as in Kafka.
           A message goes with the error only when single records are to blame (v8+).
           zstd below version 7 fails with UNSUPPORTED_COMPRESSION_TYPE.
           A coordinator's own topic fails with INVALID_TOPIC_EXCEPTION, unless the client id is
           `__admin_client`: so in Kafka, where nothing else tells an administrator.
           A transactional batch in a request without a transactional id fails all of it with
           TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
           While the coordinator cannot be asked: NOT_ENOUGH_REPLICAS, which clients retry. A
           partition outside of the transaction: INVALID_TXN_STATE, from 11 on
           TRANSACTION_ABORTABLE.
See        KIP-98, KIP-360, KIP-467, KIP-516, KIP-890, KIP-951
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from ottla.coordinator.transaction.state import Identity
from ottla.dispatch.context import Request, Services
from ottla.dispatch.leaders import LeaderHints
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.topic import INTERNAL_TOPICS
from ottla.net.connection import Hangup, NotYet
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.records.batch import HEADER_SIZE, read_header
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import ChildDied, NoChild
from ottla.storage.log import AppendInfo
from ottla.storage.producers import Guard
from ottla.storage.validate import RecordsRejected, TakesLong, in_a_thread, prepare

BY_ID = 13
OLDEST_SERVED = 3
KNOWS_ZSTD = 7
KNOWS_LEADERS = 10
KNOWS_ABORTABLE = 11
ADDS_PARTITIONS = 12
ADMINISTRATOR = "__admin_client"

ATTRIBUTES_BYTE = 22
TRANSACTIONAL = 0x10
CODEC_MASK = 0x07
ZSTD = 4

_UNABLE_TO_ASK = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

_FOR_NOW = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # before this broker has learned of it
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""What a batch may be refused with, and the next one of the same producer accepted."""

Waiting = list[tuple[PartitionProduceResponse, Deferred[None]]]


class Delayed(NamedTuple):
    """A batch that cannot be appended on the spot, copied: it takes long, or begins a
    transaction, and then comes with the guard for that."""

    answer: PartitionProduceResponse
    partition: Partition
    records: bytes
    guard: Guard | None
    takes_long: bool


def _all_failed(request: Request[ProduceRequest], error: KafkaError) -> ProduceResponse:
    if request.body.acks == 0:
        raise Hangup(f"a request with acks=0 failed: {error}")
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_refused(data, error) for data in topic.partition_data],
            )
            for topic in request.body.topic_data
        ]
    )


@handles(
    ApiKey.PRODUCE,
    versions=range(14),
    failure=_all_failed,
    pieces=ListOf("topic_data", "responses", "partition_data", "partition_responses", changes=True),
)
def produce(  # noqa: C901, PLR0912, PLR0915 - runs for every batch, without a call too many
    request: Request[ProduceRequest], services: Services
) -> ProduceResponse | Deferred[ProduceResponse] | Coroutine[Any, Any, Any] | None:
    body = request.body
    if request.api_version < OLDEST_SERVED:
        raise Hangup(
            f"Produce v{request.api_version} carries a message format that Kafka 4 dropped"
        )
    refusal = _refusal(body)
    now_ms = services.clock.now_ms()
    by_id = request.api_version >= BY_ID
    old = request.api_version < KNOWS_ZSTD
    replicas, acks = services.replicas, body.acks
    transactional = body.transactional_id is not None
    waiting: Waiting = []
    slow: list[Delayed] = []
    failed: ErrorCode | None = None
    for_now = False
    responses: list[TopicProduceResponse] = []
    for topic in body.topic_data:
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            try:
                if refusal is not None:
                    raise refusal
                records = data.records
                if not records:
                    raise KafkaError(ErrorCode.INVALID_RECORD)
                if old and _attributes(records) & CODEC_MASK == ZSTD:
                    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
                partition = (
                    replicas.by_id(topic.topic_id, data.index)
                    if by_id
                    else replicas.by_name(topic.name, data.index)
                )
                if partition.id.topic in INTERNAL_TOPICS and request.client_id != ADMINISTRATOR:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                if acks == -1 and partition.in_sync is not None:
                    partition.check_enough_in_sync()
                if (
                    transactional
                    and _attributes(records) & TRANSACTIONAL
                    and (guard := _begin_verification(records, partition)) is not None
                ):
                    answer = PartitionProduceResponse(index=data.index, base_offset=-1)
                    slow.append(Delayed(answer, partition, bytes(records), guard, False))
                    answers.append(answer)
                    continue
                info = partition.append(records, now_ms)
                base_offset, last_offset, append_time_ms, start, _, _ = info
                answer = PartitionProduceResponse(
                    index=data.index,
                    base_offset=base_offset,
                    log_append_time_ms=append_time_ms,
                    log_start_offset=start,
                )
                if partition.high_watermark <= last_offset and not (
                    acks != -1 and partition.written > last_offset
                ):
                    waiting.append((answer, partition.wait_committed(info, acks)))
            except TakesLong:
                answer = PartitionProduceResponse(index=data.index, base_offset=-1)
                slow.append(Delayed(answer, partition, bytes(data.records or b""), None, True))
            except KafkaError as error:
                failed = error.code
                if failed in _FOR_NOW and acks != 0 and _is_numbered(data.records):
                    if not answers and not responses and request.connection.owes_answers:
                        raise NotYet from None
                    for_now = True
                answer = _refused(data, error)
            answers.append(answer)
        responses.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=answers
            )
        )
    response = ProduceResponse(responses=responses)
    if slow:
        return _append_slowly(response, slow, waiting, failed, services, request)
    if body.acks == 0:
        _hang_up_if(failed)
        return None
    if waiting:
        return _when_committed(response, waiting, request, services, failed, exclusive=for_now)
    if failed is not None:
        _name_leaders(response, request, services)
    if for_now and request.connection.owes_answers:
        told: Deferred[ProduceResponse] = Deferred(exclusive=True)
        told.resolve(response)
        return told
    return response


def _name_leaders(
    response: ProduceResponse, request: Request[ProduceRequest], services: Services
) -> None:
    """Say where the partitions are led that are not led here (KIP-951)."""
    if request.api_version < KNOWS_LEADERS:
        return
    hints = LeaderHints(services, request.listener, LeaderIdAndEpoch, NodeEndpoint)
    by_id = request.api_version >= BY_ID
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                name = topic.topic_id if by_id else topic.name
                answer.current_leader = hints.find(name, answer.index)
    response.node_endpoints = hints.endpoints


def _refusal(body: ProduceRequest) -> KafkaError | None:
    """Why nothing of the request is taken, if so."""
    if body.acks not in (-1, 0, 1):
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if body.transactional_id is None:
        for topic in body.topic_data:
            for data in topic.partition_data:
                records = data.records
                if records and _attributes(records) & TRANSACTIONAL:
                    return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return None


def _is_numbered(records: memoryview | None) -> bool:
    """Whether a batch is one of an idempotent producer."""
    return (
        records is not None
        and len(records) >= HEADER_SIZE
        and read_header(records).base_sequence >= 0
    )


def _begin_verification(records: memoryview, partition: Partition) -> Guard | None:
    """The guard of a batch that begins a transaction; None for others, and for what is no batch."""
    if len(records) < HEADER_SIZE:
        return None
    header = read_header(records)
    return partition.log.begin_verification(
        header.producer_id, header.producer_epoch, header.base_sequence
    )


def _attributes(records: memoryview) -> int:
    """The low byte of the first batch's attributes; 0 for what is too short to have them."""
    return records[ATTRIBUTES_BYTE] if len(records) > ATTRIBUTES_BYTE else 0


def _refused(data: PartitionProduceData, error: KafkaError) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(index=data.index, base_offset=-1)
    _mark_failed(answer, error)
    return answer


def _mark_failed(answer: PartitionProduceResponse, error: KafkaError) -> None:
    answer.error_code = error.code
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1
    if isinstance(error, RecordsRejected):
        answer.error_message = error.message
        answer.record_errors = [
            BatchIndexAndErrorMessage(
                batch_index=record.batch_index, batch_index_error_message=record.message
            )
            for record in error.errors
        ]


def _hang_up_if(failed: ErrorCode | None) -> None:
    if failed is not None:
        raise Hangup(f"a record batch sent with acks=0 was refused: {failed.name}")


def _when_committed(
    response: ProduceResponse,
    waiting: Waiting,
    request: Request[ProduceRequest],
    services: Services,
    failed: ErrorCode | None,
    *,
    exclusive: bool = False,
) -> Deferred[ProduceResponse]:
    """Two-stage: the appends are done and in order, only the answer waits."""
    return Uncommitted(response, waiting, request, services, failed, exclusive).result


class Uncommitted:
    """A response that waits until its appends are committed, or its client's time is up.

    One object for each request, and no cycle for the collector once it is settled.
    """

    __slots__ = ("_failed", "_request", "_response", "_services", "_timer", "_unsettled", "result")

    def __init__(
        self,
        response: ProduceResponse,
        waiting: Waiting,
        request: Request[ProduceRequest],
        services: Services,
        failed: ErrorCode | None,
        exclusive: bool,
    ) -> None:
        self._response = response
        self._request = request
        self._services = services
        self._failed = failed
        self._unsettled = {commit: answer for answer, commit in waiting}
        self.result: Deferred[ProduceResponse] = Deferred(exclusive=exclusive)
        timeout = max(0, request.body.timeout_ms) / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout, self._give_up)
        for _, commit in waiting:
            commit.on_done(self._settled)

    def _settled(self, commit: Deferred[None]) -> None:
        answer = self._unsettled.pop(commit, None)
        if answer is None:
            return
        try:
            commit.result()
        except KafkaError as error:
            self._failed = error.code
            _mark_failed(answer, error)
        if not self._unsettled:
            self._timer.cancel()
            self._respond()

    def _give_up(self) -> None:
        for commit, answer in self._unsettled.items():
            _mark_failed(answer, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
            commit.abandon()
        self._unsettled.clear()
        self._respond()

    def _respond(self) -> None:
        if self._failed is not None:
            _name_leaders(self._response, self._request, self._services)
        self.result.resolve(self._response)


async def _append_slowly(
    response: ProduceResponse,
    slow: list[Delayed],
    waiting: Waiting,
    failed: ErrorCode | None,
    services: Services,
    request: Request[ProduceRequest],
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    """Batches that must be recompressed or read record by record: prepared off the loop. And those
    that begin a transaction: its coordinator is asked first.

    A coroutine holds back the connection's next request, so one producer's batches keep their
    order; other connections go on.
    """
    acks = request.body.acks
    joined = await _join_transaction(slow, request, services)
    for delayed in slow:
        answer, partition = delayed.answer, delayed.partition
        try:
            guard = joined.get(partition)
            if isinstance(guard, KafkaError):
                raise guard
            info = await _append_delayed(delayed, guard, acks, services)
        except (KafkaError, ChildDied, NoChild) as problem:
            error = (
                problem
                if isinstance(problem, KafkaError)
                else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))
            )
            failed = error.code
            _mark_failed(answer, error)
            continue
        answer.base_offset = info.base_offset
        answer.log_append_time_ms = info.append_time_ms
        answer.log_start_offset = info.log_start_offset
        if not partition.committed(info, acks):
            waiting.append((answer, partition.wait_committed(info, acks)))
    if acks == 0:
        _hang_up_if(failed)
        return None
    if waiting:
        return _when_committed(response, waiting, request, services, failed)
    if failed is not None:
        _name_leaders(response, request, services)
    return response


async def _append_delayed(
    delayed: Delayed, guard: Guard | None, acks: int, services: Services
) -> AppendInfo:
    _, partition, records, _, takes_long = delayed
    if acks == -1:
        partition.check_enough_in_sync()
    if not takes_long:
        with suppress(TakesLong):
            buffer = memoryview(bytearray(records))
            return partition.append(buffer, services.clock.now_ms(), guard=guard)
    buffer = memoryview(bytearray(await _prepared(records, partition, services)))
    return partition.append(buffer, services.clock.now_ms(), prepared=True, guard=guard)


async def _join_transaction(
    slow: list[Delayed], request: Request[ProduceRequest], services: Services
) -> dict[Partition, Guard | KafkaError | None]:
    """What batches that begin a transaction are appended with, or why they may not be."""
    beginning = [each for each in slow if each.guard is not None]
    if not beginning:
        return {}
    transactional_id, version = request.body.transactional_id, request.api_version
    headers = {each.partition: read_header(each.records) for each in beginning}
    producers = {Identity(each.producer_id, each.producer_epoch) for each in headers.values()}
    if len(producers) != 1 or transactional_id is None:
        # As in Kafka: a transaction has one producer.
        return dict.fromkeys(headers, KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    adds = version >= ADDS_PARTITIONS
    sequences = {partition: header.base_sequence for partition, header in headers.items()}
    (producer,) = producers
    joined = await services.transactions.join(transactional_id, producer, sequences, add=adds)
    return {
        partition: _not_allowed(found, version, adds) if isinstance(found, ErrorCode) else found
        for partition, found in joined.items()
    }


def _not_allowed(code: ErrorCode, version: int, adds: bool) -> KafkaError:
    """What the coordinator's refusal is to a producer: Kafka's translation."""
    if code in _UNABLE_TO_ASK or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {code.name}",
        )
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    return KafkaError(code)


async def _prepared(records: bytes, partition: Partition, services: Services) -> bytes:
    """In a thread, where native code lets go of the interpreter; in a child process otherwise."""
    workers, config, now_ms = services.workers, partition.log.config, services.clock.now_ms()
    limits = in_a_thread()
    if limits is not None:
        try:
            return await workers.run_native(
                prepare, records, config, now_ms, partition=partition.id, limits=limits
            )
        except TakesLong:
            pass
    return await workers.run_in_child(prepare, records, config, now_ms, partition=partition.id)
