"""Transactions and producer ids: 22, 24-27, DescribeProducers (61).

Versions   InitProducerId 0-5, AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4, EndTxn 0-5,
           WriteTxnMarkers 1-2, DescribeProducers 0.
Behaviour  An idempotent producer (no transactional id) gets a new id and epoch 0 every time,
           whatever id it claims to have had. Ids come from blocks that are committed to the
           metadata store before the first of them is handed out, so none is ever given twice.
           While the store is away and the block used up: COORDINATOR_LOAD_IN_PROGRESS, as in
           Kafka when the controller does not answer; clients try again.
           With a transactional id the coordinator raises the epoch, so that the producer before is
           fenced, and aborts what that one had open: CONCURRENT_TRANSACTIONS until that is done.
           EndTxn is answered when the decision is committed; the markers follow. The next
           transaction can begin when they are written. That is waited for, for a moment, before
           AddPartitionsToTxn or AddOffsetsToTxn fails with CONCURRENT_TRANSACTIONS.
           AddOffsetsToTxn sees to it that there is a topic for offsets; while this broker does not
           know of it: COORDINATOR_LOAD_IN_PROGRESS.
           EndTxn 5 (transaction version 2) raises the epoch and answers with it.
           AddPartitionsToTxn 4 and 5 are for brokers: for many transactions, and with verify_only
           the question whether a transaction includes partitions.
           WriteTxnMarkers is answered when the markers are committed. Many are written in turns
           with what others ask for.
           DescribeProducers is answered by followers, too: tools may ask a certain replica.
Odd        An empty transactional id, or a producer id without an epoch (or the reverse), fails
           with INVALID_REQUEST.
           If one of the partitions of AddPartitionsToTxn does not exist, none is added: the others
           get OPERATION_NOT_ATTEMPTED. So if one is of a coordinator's own topic, which a client
           cannot add (TOPIC_AUTHORIZATION_FAILED).
           WriteTxnMarkers to the transactions' own log fails with INVALID_TOPIC_EXCEPTION.
           Fenced producers of old versions are told INVALID_PRODUCER_EPOCH: before 4 of
           InitProducerId, before 2 of the others.
           What a client speaks decides, not what the cluster has agreed on: EndTxn 5 raises the
           epoch even after a downgrade, or its producer's sequence numbers would not fit.
Not done   Two-phase commit (InitProducerId 6).
See        KIP-98, KIP-360, KIP-664, KIP-890, KIP-1228
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ottla.cluster.store import StoreError
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.replies import attempt, gather, then, when_there
from ottla.coordinator.transaction.state import (
    RAISES_EPOCH,
    AddPartitions,
    EndTransaction,
    Identity,
    InitProducer,
    VerifyPartitions,
)
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.model.topic import INTERNAL_TOPICS
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.marker import Marker
from ottla.runtime.waiters import Deferred

INIT_KNOWS_FENCED = 4
KNOWS_FENCED = 2
MANY_TRANSACTIONS = 4
END_RAISES_EPOCH = 5

Outcome = Mapping[TopicPartition, ErrorCode]


def _fenced(error: KafkaError, version: int, since: int) -> ErrorCode:
    """The code, in the words of the client's version."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


# --- InitProducerId -------------------------------------------------------------------------------


def _init_failed(
    request: Request[InitProducerIdRequest], error: KafkaError
) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=_fenced(error, request.api_version, INIT_KNOWS_FENCED),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )


@handles(ApiKey.INIT_PRODUCER_ID, versions=range(6), failure=_init_failed)
def init_producer_id(
    request: Request[InitProducerIdRequest], services: Services
) -> InitProducerIdResponse | Coroutine[Any, Any, InitProducerIdResponse]:
    body = request.body
    if body.transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if body.transactional_id is None:
        return _new_producer(services)
    expected = None
    if body.producer_id != NO_PRODUCER_ID:
        expected = Identity(body.producer_id, body.producer_epoch)
    command = InitProducer(body.transactional_id, body.transaction_timeout_ms, expected)
    return _transactional_producer(command, services)


async def _new_producer(services: Services) -> InitProducerIdResponse:
    try:
        producer_id = await services.producer_ids.next()
    except StoreError as error:
        raise _no_id(error) from None
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _transactional_producer(
    command: InitProducer, services: Services
) -> InitProducerIdResponse:
    try:
        producer_id, epoch = await services.transactions.init_producer(command)
    except StoreError as error:
        raise _no_id(error) from None
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _no_id(error: StoreError) -> KafkaError:
    return KafkaError(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        f"no producer id is left, and the metadata store gives no others now: {error}",
    )


# --- AddPartitionsToTxn, AddOffsetsToTxn ----------------------------------------------------------


def _all_of(topics: Iterable[AddPartitionsToTxnTopic]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.name, index) for topic in topics for index in topic.partitions
    )


def _by_topic(outcome: Outcome) -> list[AddPartitionsToTxnTopicResult]:
    results: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (topic, index), code in outcome.items():
        if topic not in results:
            results[topic] = AddPartitionsToTxnTopicResult(name=topic, results_by_partition=[])
        results[topic].results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        )
    return list(results.values())


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions=range(6), most=1 << 17)
def add_partitions_to_txn(
    request: Request[AddPartitionsToTxnRequest], services: Services
) -> AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse]:
    body, version = request.body, request.api_version
    if version >= MANY_TRANSACTIONS:
        return _add_many(body, version, services)
    command = AddPartitions(
        body.v3_and_below_transactional_id,
        Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
        _all_of(body.v3_and_below_topics),
    )
    return then(
        _ask(command, version, services),
        lambda outcome: AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=_by_topic(outcome)
        ),
    )


def _add_many(
    body: AddPartitionsToTxnRequest, version: int, services: Services
) -> AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse]:
    replies: list[Outcome | KafkaError | Deferred[Outcome]] = []
    for each in body.transactions:
        producer = Identity(each.producer_id, each.producer_epoch)
        partitions = _all_of(each.topics)
        command = (
            VerifyPartitions(each.transactional_id, producer, partitions)
            if each.verify_only
            else AddPartitions(each.transactional_id, producer, partitions, RAISES_EPOCH)
        )
        replies.append(_ask(command, version, services))

    def done(outcomes: list[Outcome | KafkaError]) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=_by_topic(
                        dict.fromkeys(_all_of(each.topics), outcome.code)
                        if isinstance(outcome, KafkaError)
                        else outcome
                    ),
                )
                for each, outcome in zip(body.transactions, outcomes, strict=True)
            ]
        )

    return then(gather(replies), done)


def _ask(
    command: AddPartitions | VerifyPartitions, version: int, services: Services
) -> Outcome | Deferred[Outcome]:
    """The outcome by partition; refusals too are outcomes."""
    topics = services.image.topics
    partitions = command.partitions
    refused: dict[TopicPartition, ErrorCode] = {}
    for each in partitions:
        topic = topics.get(each.topic)
        if version < MANY_TRANSACTIONS and each.topic in INTERNAL_TOPICS:
            refused[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= each.partition < len(topic.partitions):
            refused[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if refused:
        return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
    transactions = services.transactions
    run: Callable[[], Any] = (
        partial(transactions.add, command)
        if isinstance(command, AddPartitions)
        else partial(transactions.run_certainly, command)
    )
    reply = gather([attempt(run)])

    def done(replies: list[Any]) -> Outcome:
        (outcome,) = replies
        if isinstance(outcome, KafkaError):
            return dict.fromkeys(partitions, _fenced(outcome, version, KNOWS_FENCED))
        return outcome if isinstance(outcome, dict) else dict.fromkeys(partitions, ErrorCode.NONE)

    return then(reply, done)


def _offsets_failed(
    request: Request[AddOffsetsToTxnRequest], error: KafkaError
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=_fenced(error, request.api_version, KNOWS_FENCED))


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=range(5), failure=_offsets_failed)
def add_offsets_to_txn(
    request: Request[AddOffsetsToTxnRequest], services: Services
) -> (
    AddOffsetsToTxnResponse
    | Deferred[AddOffsetsToTxnResponse]
    | Coroutine[Any, Any, AddOffsetsToTxnResponse]
):
    if OFFSETS_TOPIC in services.image.topics:
        return _add_offsets(request.body, services)
    return _create_topic_and_add_offsets(request.body, services)


async def _create_topic_and_add_offsets(
    body: AddOffsetsToTxnRequest, services: Services
) -> AddOffsetsToTxnResponse:
    """A partition that this broker does not know when the transaction ends gets no marker: it would
    be one of a topic that was deleted. So nothing is added that is not known.

    Who is no coordinator any more, or not of this producer, says so first: it may be cut off from
    the controller, too, and would be asked again and again.
    """
    producer = Identity(body.producer_id, body.producer_epoch)
    verify = VerifyPartitions(body.transactional_id, producer, frozenset())
    await when_there(services.transactions.run_certainly(verify))
    with suppress(KafkaError):
        await services.internal_topics.ensure(OFFSETS_TOPIC)
    if OFFSETS_TOPIC not in services.image.topics:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return await when_there(_add_offsets(body, services))


def _add_offsets(
    body: AddOffsetsToTxnRequest, services: Services
) -> AddOffsetsToTxnResponse | Deferred[AddOffsetsToTxnResponse]:
    partition = TopicPartition(OFFSETS_TOPIC, services.groups.partition_for(body.group_id))
    command = AddPartitions(
        body.transactional_id,
        Identity(body.producer_id, body.producer_epoch),
        frozenset({partition}),
    )
    reply = services.transactions.add(command)
    return then(reply, lambda code: AddOffsetsToTxnResponse())


# --- EndTxn, WriteTxnMarkers ----------------------------------------------------------------------


def _end_failed(request: Request[EndTxnRequest], error: KafkaError) -> EndTxnResponse:
    return EndTxnResponse(error_code=_fenced(error, request.api_version, KNOWS_FENCED))


@handles(ApiKey.END_TXN, versions=range(6), failure=_end_failed)
async def end_txn(request: Request[EndTxnRequest], services: Services) -> EndTxnResponse:
    body = request.body
    raises = request.api_version >= END_RAISES_EPOCH
    command = EndTransaction(
        body.transactional_id,
        Identity(body.producer_id, body.producer_epoch),
        body.committed,
        RAISES_EPOCH if raises else 0,
    )
    try:
        producer_id, epoch = await services.transactions.end(command)
    except StoreError as error:
        raise _no_id(error) from None
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)


@handles(ApiKey.WRITE_TXN_MARKERS, versions=range(1, 3))
def write_txn_markers(
    request: Request[WriteTxnMarkersRequest], services: Services
) -> WriteTxnMarkersResponse | Deferred[WriteTxnMarkersResponse]:
    places = [
        (at, TopicPartition(topic.name, index))
        for at, marker in enumerate(request.body.markers)
        for topic in marker.topics
        for index in topic.partition_indexes
    ]
    markers = [_marker(each) for each in request.body.markers]
    writing = services.transactions.writer.write_all(
        (markers[at], partition) for at, partition in places
    )

    def done(outcomes: list[KafkaError | None]) -> WriteTxnMarkersResponse:
        topics: list[dict[str, WritableTxnMarkerTopicResult]] = [{} for _ in markers]
        for (at, (topic, index)), outcome in zip(places, outcomes, strict=True):
            if topic not in topics[at]:
                topics[at][topic] = WritableTxnMarkerTopicResult(name=topic, partitions=[])
            code = ErrorCode.NONE if outcome is None else outcome.code
            topics[at][topic].partitions.append(
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
            )
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id, topics=list(topics[at].values())
                )
                for at, marker in enumerate(markers)
            ]
        )

    return then(writing, done)


def _marker(each: WritableTxnMarker) -> Marker:
    return Marker(
        each.producer_id,
        each.producer_epoch,
        each.transaction_result,
        each.coordinator_epoch,
        each.transaction_version >= RAISES_EPOCH,
    )


# --- DescribeProducers ----------------------------------------------------------------------------


@handles(
    ApiKey.DESCRIBE_PRODUCERS,
    versions=range(1),
    pieces=ListOf("topics", "topics", "partition_indexes", "partitions"),
)
def describe_producers(
    request: Request[DescribeProducersRequest], services: Services
) -> DescribeProducersResponse:
    topics = []
    for topic in request.body.topics:
        answers = []
        for index in topic.partition_indexes:
            answer = PartitionResponse(partition_index=index, active_producers=[])
            try:
                log = services.replicas.replica_by_name(topic.name, index).log
                answer.active_producers = [
                    ProducerState(
                        producer_id=state.producer_id,
                        producer_epoch=state.producer_epoch,
                        last_sequence=state.last_sequence,
                        last_timestamp=state.last_timestamp,
                        coordinator_epoch=state.coordinator_epoch,
                        current_txn_start_offset=state.txn_start_offset,
                    )
                    for state in log.producers()
                ]
            except KafkaError as error:
                answer.error_code = error.code
                answer.error_message = error.message
            answers.append(answer)
        topics.append(TopicResponse(name=topic.name, partitions=answers))
    return DescribeProducersResponse(topics=topics)
