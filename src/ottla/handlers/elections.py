"""ElectLeaders (43): leaders on request.

Versions   0-2. Version 0 knows preferred elections only.
Behaviour  A preferred election makes the first replica leader where it is live and in sync, else
           PREFERRED_LEADER_NOT_AVAILABLE. An unclean one is for partitions without a leader: all
           live replicas are asked what they have, and the one with most of it leads, whatever it
           may lack; an eligible one comes first. ELIGIBLE_LEADERS_NOT_AVAILABLE if none answers.
           ELECTION_NOT_NEEDED where there is such a leader already. Null asks for all partitions.
           Whoever is asked hands it on to the controller; what it has changed is in the metadata
           when it is answered.
Odd        Kafka's unclean election takes the first live replica without asking.
           Of all partitions, those that need no election are left out, as in Kafka, while their
           topics are listed. An unknown kind of election fails with INVALID_REQUEST.
See        KIP-183, KIP-460, KIP-966
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.elections import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED, UNCLEAN = 0, 1


def _failed(request: Request[ElectLeadersRequest], error: KafkaError) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=error.code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[_result(index, error) for index in topic.partitions],
            )
            for topic in request.body.topic_partitions or []
        ],
    )


@handles(
    ApiKey.ELECT_LEADERS,
    versions=range(3),
    failure=_failed,
    pieces=ListOf(
        "topic_partitions",
        "replica_election_results",
        "partitions",
        "partition_result",
        changes=True,
    ),
    for_controller=True,
)
async def elect_leaders(
    request: Request[ElectLeadersRequest], services: Services
) -> ElectLeadersResponse:
    body = request.body
    if body.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {body.election_type}")
    wanted = None
    if body.topic_partitions is not None:
        wanted = [
            TopicPartition(topic.topic, index)
            for topic in body.topic_partitions
            for index in topic.partitions
        ]
    outcomes = await services.controller.elect_leaders(
        wanted, unclean=body.election_type == UNCLEAN
    )
    return ElectLeadersResponse(replica_election_results=_results(outcomes, services, wanted))


def _results(
    outcomes: Mapping[TopicPartition, KafkaError | None],
    services: Services,
    wanted: list[TopicPartition] | None,
) -> list[ReplicaElectionResult]:
    by_topic: dict[str, list[PartitionResult]] = {}
    if wanted is None:
        by_topic = {name: [] for name in services.image.topics}
    for partition in outcomes if wanted is None else wanted:
        result = _result(partition.partition, outcomes[partition])
        by_topic.setdefault(partition.topic, []).append(result)
    return [
        ReplicaElectionResult(topic=topic, partition_result=results)
        for topic, results in by_topic.items()
    ]


def _result(index: int, error: KafkaError | None) -> PartitionResult:
    if error is None:
        return PartitionResult(partition_id=index)
    return PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
