"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): other replicas.

Versions   AlterPartitionReassignments 0-1, from 1 on with whether the number of replicas may
           change; ListPartitionReassignments 0.
Behaviour  Replicas that are new are added, and the others are taken away once all the new ones are
           in sync; null cancels that. A reassignment may replace one in progress. Both are answered
           by the controller, to which whoever is asked hands them on; what was changed is in the
           metadata then. Errors are those of Kafka, per partition: UNKNOWN_TOPIC_OR_PARTITION,
           INVALID_REPLICA_ASSIGNMENT for no broker, an unknown one, or the same one twice,
           INVALID_REPLICATION_FACTOR where the number must not change, and
           NO_REASSIGNMENT_IN_PROGRESS.
Odd        Of a partition that is named twice the last request counts. Partitions that do
           not exist are left out of List. Where a reassignment has replaced another, cancelling it
           leads back to where the first one began; Kafka keeps what the first one was bringing.
See        KIP-455, KIP-860
"""

from __future__ import annotations

from ottla.controller.reassignment import ongoing
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def _failed(
    request: Request[AlterPartitionReassignmentsRequest], error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=error.code, error_message=error.message, responses=[]
    )


def _list_failed(
    request: Request[ListPartitionReassignmentsRequest], error: KafkaError
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(
        error_code=error.code, error_message=error.message, topics=[]
    )


@handles(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=range(2),
    failure=_failed,
    pieces=ListOf("topics", "responses", "partitions", "partitions", changes=True),
    for_controller=True,
)
async def alter_partition_reassignments(
    request: Request[AlterPartitionReassignmentsRequest], services: Services
) -> AlterPartitionReassignmentsResponse:
    body = request.body
    wanted = {
        TopicPartition(topic.name, part.partition_index): part.replicas
        for topic in body.topics
        for part in topic.partitions
    }
    outcomes = await services.controller.reassign(
        wanted, allow_factor_change=body.allow_replication_factor_change
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=body.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _outcome(
                        part.partition_index,
                        outcomes[TopicPartition(topic.name, part.partition_index)],
                    )
                    for part in topic.partitions
                ],
            )
            for topic in body.topics
        ],
    )


def _outcome(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=index)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message
    )


@handles(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=range(1),
    failure=_list_failed,
    pieces=ListOf("topics", "topics", "partition_indexes", "partitions"),
    for_controller=True,
)
async def list_partition_reassignments(
    request: Request[ListPartitionReassignmentsRequest], services: Services
) -> ListPartitionReassignmentsResponse:
    wanted: dict[str, set[int]] | None = None
    if request.body.topics is not None:
        wanted = {}
        for asked in request.body.topics:
            wanted.setdefault(asked.name, set()).update(asked.partition_indexes)
    topics: dict[str, OngoingTopicReassignment] = {}
    for (name, index), found in ongoing(services.image, wanted).items():
        topic = topics.setdefault(name, OngoingTopicReassignment(name=name, partitions=[]))
        topic.partitions.append(
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(found.replicas),
                adding_replicas=list(found.adding),
                removing_replicas=list(found.removing),
            )
        )
    return ListPartitionReassignmentsResponse(topics=list(topics.values()))
