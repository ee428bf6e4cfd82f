"""InitProducerId (22), DescribeProducers (61): identities of idempotent producers.

Versions   InitProducerId 0-5, DescribeProducers 0.
Behaviour  An idempotent producer (no transactional id) gets a new id and epoch 0 every time,
           whatever id it claims to have had. Ids come from blocks that are committed to the
           metadata store before the first of them is handed out, so none is ever given twice.
           While the store is away and the block used up: COORDINATOR_LOAD_IN_PROGRESS, as in
           Kafka when the controller does not answer; clients try again.
Odd        An empty transactional id, or a producer id without an epoch (or the reverse), fails
           with INVALID_REQUEST.
Not done   Transactions: a transactional id fails with TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
           which every client takes as fatal; a retriable code would make it try for ever.
See        KIP-98, KIP-360, KIP-664, KIP-890
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from ottla.cluster.store import StoreError
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def _init_failed(
    request: Request[InitProducerIdRequest], error: KafkaError
) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
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
    if body.transactional_id is not None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return _new_producer(services)


async def _new_producer(services: Services) -> InitProducerIdResponse:
    try:
        producer_id = await services.producer_ids.next()
    except StoreError as error:
        raise KafkaError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            f"no producer id is left, and the metadata store gives no others now: {error}",
        ) from None
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


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
                log = services.replicas.by_name(topic.name, index).log
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
