"""DescribeQuorum (55): who keeps the metadata, in the terms of Kafka's controller quorum.

Versions   0-2; from 1 on with times, from 2 on with the controller's listeners.
Behaviour  There is no quorum: metadata lies in a store, and one broker is elected to change it.
           That is shown as the partition 0 of `__cluster_metadata`, led by the controller in the
           epoch of its term, the store's revision as its end and high watermark. The controller is
           the only voter; the other brokers follow the store and are observers, and how far
           they have come is not known (-1). Without a controller: NOT_LEADER_OR_FOLLOWER.
Odd        As in Kafka exactly that partition may be asked for, and with anything beside it
           everything is UNKNOWN_TOPIC_OR_PARTITION. Messages where nothing is wrong are empty,
           not null.
Not done   The voter has no folder of its own: its id is zero, as with Kafka's static quorums.
See        KIP-595, KIP-836, KIP-853
"""

from __future__ import annotations

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker
from ottla.model.names import CLUSTER_METADATA_TOPIC
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartition,
    QuorumReplica,
    QuorumTopic,
)

NAMES_NODES = 2
UNKNOWN = -1
NOT_HERE = "This server does not host this topic-partition."


def _failed(request: Request[DescribeQuorumRequest], error: KafkaError) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        error_code=error.code, error_message=error.message or error.code.text, topics=[]
    )


@handles(ApiKey.DESCRIBE_QUORUM, versions=range(3), failure=_failed)
def describe_quorum(
    request: Request[DescribeQuorumRequest], services: Services
) -> DescribeQuorumResponse:
    asked = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions])
        for topic in request.body.topics
    ]
    if asked != [(CLUSTER_METADATA_TOPIC, [0])]:
        return DescribeQuorumResponse(
            topics=[
                QuorumTopic(
                    topic_name=name, partitions=[_unknown(partition) for partition in partitions]
                )
                for name, partitions in asked
            ]
        )
    controller = services.image.brokers.get(services.image.controller_id)
    if controller is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return DescribeQuorumResponse(
        topics=[
            QuorumTopic(
                topic_name=CLUSTER_METADATA_TOPIC, partitions=[_metadata(controller, services)]
            )
        ],
        nodes=[_node(controller)] if request.api_version >= NAMES_NODES else [],
    )


def _unknown(partition: int) -> QuorumPartition:
    return QuorumPartition(
        partition_index=partition,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=NOT_HERE,
        current_voters=[],
        observers=[],
    )


def _metadata(controller: Broker, services: Services) -> QuorumPartition:
    image = services.image
    now = services.clock.now_ms()
    leader = QuorumReplica(
        replica_id=controller.id,
        log_end_offset=image.revision,
        last_fetch_timestamp=now,
        last_caught_up_timestamp=now,
    )
    return QuorumPartition(
        partition_index=0,
        leader_id=controller.id,
        leader_epoch=image.controller_epoch,
        high_watermark=image.revision,
        current_voters=[leader],
        observers=[
            QuorumReplica(replica_id=broker_id, log_end_offset=UNKNOWN)
            for broker_id in sorted(image.brokers)
            if broker_id != controller.id
        ],
    )


def _node(controller: Broker) -> QuorumNode:
    return QuorumNode(
        node_id=controller.id,
        listeners=[
            QuorumListener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)
            for endpoint in controller.endpoints.values()
        ],
    )
