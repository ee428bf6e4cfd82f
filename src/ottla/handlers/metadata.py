"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75): who is where.

Versions   Metadata 0-13, DescribeCluster 0-2, DescribeTopicPartitions 0.
Behaviour  Every address is the one advertised for the listener the request came in on.
           A topic that does not exist is created when the client and
           `auto.create.topics.enable` both allow it. Kafka answers such a look-up with an error
           and creates the topic meanwhile; we create it and answer with its leader, which spares
           the client a retry.
           Brokers are those that are live and have that listener; replicas on others are offline.
           Metadata lists a broker that was lost for some seconds more; see `cluster.departed`.
           When there is none, as just after an outage of the metadata store, this one is named:
           librdkafka forgets whom an answer leaves out, and would have nobody to ask any more.
           A partition without such a leader, or whose disk has failed here, is shown without one:
           with LEADER_NOT_AVAILABLE in Metadata, without an error in DescribeTopicPartitions.
           A topic that is asked for twice is answered once, as in Kafka.
Odd        Version 0 asks for all topics with an empty list, later ones with null. It leaves out
           replicas that are not live and says REPLICA_NOT_AVAILABLE; later ones list them all.
           A live leader without the client's listener is LISTENER_NOT_FOUND from version 6 on.
           Versions 10 and 11 have topic ids in their schema but must not use them. Where an id
           is given it decides, whatever the name: Java sends an empty one beside it.
           DescribeCluster can name fenced brokers too: those that are registered and were not
           admitted yet. Of one that has gone no address is kept, while Kafka keeps it.
           DescribeCluster asked for controllers answers MISMATCHED_ENDPOINT_TYPE, as a broker's
           listener does in Kafka.
See        KIP-4, KIP-430, KIP-516, KIP-700, KIP-919, KIP-966
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from ottla.controller.topics import NewTopic
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.dispatch.turns import InTurns
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_TOPIC_ID, TopicId
from ottla.model.names import topic_name_problem
from ottla.model.topic import INTERNAL_TOPICS, PartitionState, Topic
from ottla.protocol.apis import ApiKey
from ottla.protocol.decoder import MAX_ELEMENTS
from ottla.protocol.messages.metadata import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

IDS_USABLE = 12
KNOWS_LISTENERS = 6
ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2
AUTO_CREATE_MS = 5_000
"""How long the answer about other topics may wait for a controller that makes the missing ones."""

# What an anonymous client may do while there is no authorizer: bit n stands for ACL operation n.
NOT_ASKED = -(2**31)
TOPIC_OPERATIONS = sum(1 << op for op in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << op for op in (5, 7, 8, 9, 10, 11, 12))


def _metadata_failed(request: Request[MetadataRequest], error: KafkaError) -> MetadataResponse:
    named = [
        MetadataResponseTopic(
            error_code=error.code, name=topic.name or "", topic_id=topic.topic_id, partitions=[]
        )
        for topic in request.body.topics or []
    ]
    return MetadataResponse(brokers=[], topics=named)


@handles(
    ApiKey.METADATA,
    versions=range(14),
    failure=_metadata_failed,
    pieces=ListOf(
        "topics",
        "topics",
        answered_within="partitions",
        same=lambda topic: (topic.name, topic.topic_id),
    ),
)
def metadata(
    request: Request[MetadataRequest], services: Services
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    body = request.body
    wanted = body.topics
    if wanted is not None and request.api_version < IDS_USABLE:
        _refuse_ids(wanted, request.api_version)
    if not wanted and (wanted is None or request.api_version == 0):
        sight = Sight(request, services)
        answers = [sight.topic(topic) for topic in services.image.topics.values()]
        return _response(request, services, answers)
    if wanted:
        wanted = list({(topic.name, topic.topic_id): topic for topic in wanted}.values())
    missing = {
        topic.name
        for topic in wanted or []
        if topic.topic_id == ZERO_TOPIC_ID
        and topic.name is not None
        and topic.name not in services.image.topics
    }
    if missing and body.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        return _create_and_answer(request, services, wanted or [], missing)
    return _response(request, services, _answers(wanted or [], Sight(request, services), {}))


async def _create_and_answer(
    request: Request[MetadataRequest],
    services: Services,
    wanted: Iterable[MetadataRequestTopic],
    missing: set[str],
) -> MetadataResponse:
    failures: dict[str, ErrorCode] = {}
    for name in sorted(missing & INTERNAL_TOPICS):
        # The broker's own topics have settings of their own.
        try:
            await services.internal_topics.ensure(name)
        except KafkaError as error:
            failures[name] = error.code
    new_topics = [NewTopic(name) for name in sorted(missing - INTERNAL_TOPICS)]
    creating = services.controller_link.create_topics
    # What the request asks about besides is answered in any case.
    with suppress(KafkaError):
        for outcome in await creating(new_topics, AUTO_CREATE_MS) if new_topics else ():
            if outcome.error is not None:
                failures[outcome.name] = outcome.error.code
    # Where nobody makes topics now these stay unknown, and clients ask again. Why that is so is
    # about the controller: as an answer about a topic no client expects it. One that another client
    # has had made is unknown until this broker learns of it, which may be without the store now.
    lasting: dict[str, ErrorCode] = {
        name: code
        for name, code in failures.items()
        if not code.retriable and code is not ErrorCode.TOPIC_ALREADY_EXISTS
    }
    return _response(request, services, _answers(wanted, Sight(request, services), lasting))


def _refuse_ids(wanted: Iterable[MetadataRequestTopic], version: int) -> None:
    for topic in wanted:
        if topic.topic_id != ZERO_TOPIC_ID or topic.name is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"topic ids are not supported in version {version}"
            )


def _answers(
    wanted: Iterable[MetadataRequestTopic], sight: Sight, failures: dict[str, ErrorCode]
) -> list[MetadataResponseTopic]:
    image = sight.image
    answers: list[MetadataResponseTopic] = []
    for topic in wanted:
        name = topic.name
        if name is None or topic.topic_id != ZERO_TOPIC_ID:
            known = image.topic_names.get(TopicId(topic.topic_id))
            if known is None:
                answers.append(
                    MetadataResponseTopic(
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                        name=None,
                        topic_id=topic.topic_id,
                        partitions=[],
                    )
                )
                continue
            name = known
        found = image.topics.get(name)
        if found is not None:
            answers.append(sight.topic(found))
            continue
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic_name_problem(name) is not None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        answers.append(
            MetadataResponseTopic(error_code=failures.get(name, code), name=name, partitions=[])
        )
    return answers


class Sight:
    """The cluster as one client sees it: through its listener, in its version."""

    __slots__ = ("_live_only", "_reachable", "_services", "_tells_listeners", "image")

    def __init__(self, request: Request[Any], services: Services) -> None:
        self._services = services
        self.image = image = services.image
        listener = request.listener
        self._reachable = {
            broker.id for broker in image.brokers.values() if listener in broker.endpoints
        }
        self._live_only = request.api_version == 0
        self._tells_listeners = request.api_version >= KNOWS_LISTENERS

    def topic(self, topic: Topic) -> MetadataResponseTopic:
        partitions = []
        for index, state in enumerate(topic.partitions):
            leader, offline = self.standing(topic.name, index, state)
            error = ErrorCode.NONE
            replicas, isr = list(state.replicas), list(state.isr)
            if leader < 0:
                error = ErrorCode.LEADER_NOT_AVAILABLE
                hidden = state.leader in self.image.brokers and state.leader not in self._reachable
                if hidden and self._tells_listeners:
                    error = ErrorCode.LISTENER_NOT_FOUND
            if self._live_only:
                replicas = [each for each in replicas if each in self._reachable]
                isr = [each for each in isr if each in self._reachable]
                if not error and len(replicas) + len(isr) < len(state.replicas) + len(state.isr):
                    error = ErrorCode.REPLICA_NOT_AVAILABLE
            partitions.append(
                MetadataResponsePartition(
                    error_code=error,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=replicas,
                    isr_nodes=isr,
                    offline_replicas=offline,
                )
            )
        return MetadataResponseTopic(
            name=topic.name, topic_id=topic.id, is_internal=topic.internal, partitions=partitions
        )

    def standing(self, topic: str, index: int, state: PartitionState) -> tuple[int, list[int]]:
        """A partition's leader, or -1, and its replicas that cannot be reached."""
        reachable, services = self._reachable, self._services
        offline = [replica for replica in state.replicas if replica not in reachable]
        node_id = services.node_id
        if node_id in state.replicas and services.replicas.offline(topic, index) is not None:
            offline.append(node_id)
        if state.leader not in reachable or state.leader in offline:
            return -1, offline
        return state.leader, offline


def _response(
    request: Request[MetadataRequest], services: Services, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    image = services.image
    departed = [lost for lost in services.departed.recent() if lost.id not in image.brokers]
    if request.body.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    brokers = [
        MetadataResponseBroker(
            node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker in [*image.brokers.values(), *departed]
        if (endpoint := broker.endpoints.get(request.listener)) is not None
    ]
    own = services.endpoints.get(request.listener)
    if not brokers and own is not None:
        rack = services.config.broker_rack
        brokers = [
            MetadataResponseBroker(
                node_id=services.node_id, host=own.host, port=own.port, rack=rack
            )
        ]
    return MetadataResponse(
        brokers=brokers,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.body.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


# ---------------------------------------------------------------------- DescribeCluster


def _cluster_failed(
    request: Request[DescribeClusterRequest], error: KafkaError
) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=error.code, error_message=error.message, cluster_id="", brokers=[]
    )


@handles(ApiKey.DESCRIBE_CLUSTER, versions=range(3), failure=_cluster_failed)
def describe_cluster(
    request: Request[DescribeClusterRequest], services: Services
) -> DescribeClusterResponse:
    body = request.body
    if body.endpoint_type == ENDPOINT_CONTROLLERS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "the request asks for controllers, but this is a broker's endpoint",
        )
    if body.endpoint_type != ENDPOINT_BROKERS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {body.endpoint_type}"
        )
    image = services.image
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.id not in image.brokers,
            )
            for broker in (
                image.registrations if body.include_fenced_brokers else image.brokers
            ).values()
            if (endpoint := broker.endpoints.get(request.listener)) is not None
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


# ---------------------------------------------------------------------- DescribeTopicPartitions


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=range(1), most=MAX_ELEMENTS)
def describe_topic_partitions(
    request: Request[DescribeTopicPartitionsRequest], services: Services
) -> InTurns[DescribeTopicPartitionsResponse]:
    """Topics in the order of their names, a page of partitions at a time."""
    body = request.body
    image = services.image
    names = sorted({topic.name for topic in body.topics} or image.topics)
    first = 0
    if body.cursor is not None:
        names = [name for name in names if name >= body.cursor.topic_name]
        if names and names[0] == body.cursor.topic_name:
            first = max(0, body.cursor.partition_index)
    sight = Sight(request, services)
    limit = services.config.max_request_partition_size_limit
    left = max(1, min(body.response_partition_limit, limit))
    response = DescribeTopicPartitionsResponse(topics=[])
    for name in names:
        yield 1
        topic = image.topics.get(name)
        if topic is None:
            code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if topic_name_problem(name) is None
                else ErrorCode.INVALID_TOPIC_EXCEPTION
            )
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=code, name=name, topic_id=ZERO_TOPIC_ID, partitions=[]
                )
            )
            continue
        if not left:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        page = range(first, min(len(topic.partitions), first + left))
        response.topics.append(_described(topic, page, sight))
        left -= len(page)
        if page.stop < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=page.stop)
            break
        first = 0
    return response


def _described(topic: Topic, page: range, sight: Sight) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in page:
        state = topic.partitions[index]
        leader, offline = sight.standing(topic.name, index, state)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                eligible_leader_replicas=list(state.elr),
                last_known_elr=list(state.last_known_elr),
                offline_replicas=offline,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
