"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37).

Versions   CreateTopics 2-7, DeleteTopics 1-6, CreatePartitions 0-3.
Behaviour  One bad topic never fails its neighbours. A topic can be used when it is answered: its
           metadata is what every later request sees, and a log is made when first needed.
           `validate_only` does everything but the change. The timeout is not needed, since
           nothing is waited for.
           From CreateTopics 5 on the answer holds the topic's effective settings.
Odd        With `delete.topic.enable=false` a deletion fails with TOPIC_DELETION_DISABLED, below
           version 3 with INVALID_REQUEST. An unknown topic id fails with UNKNOWN_TOPIC_ID.
           The rules of names, counts and assignments are in `controller/topics.py`.
See        KIP-4, KIP-195, KIP-464, KIP-516, KIP-525, KIP-599
"""

from __future__ import annotations

from ottla.config.describe import describe_topic
from ottla.controller.topics import DeleteTopic, GrowTopic, NewTopic, TopicCreation
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_TOPIC_ID, TopicId
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

DELETE_BY_STATE = 6
KNOWS_DELETION_DISABLED = 3


def _create_failed(
    request: Request[CreateTopicsRequest], error: KafkaError
) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.body.topics
        ]
    )


@handles(
    ApiKey.CREATE_TOPICS,
    versions=range(2, 8),
    failure=_create_failed,
    pieces=ListOf("topics", "topics", answered_within="configs", piece=16, changes=True),
    for_controller=True,
)
async def create_topics(
    request: Request[CreateTopicsRequest], services: Services
) -> CreateTopicsResponse:
    body = request.body
    requests = [
        NewTopic(
            name=topic.name,
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=[
                (assignment.partition_index, assignment.broker_ids)
                for assignment in topic.assignments
            ],
            config={config.name: config.value for config in topic.configs},
        )
        for topic in body.topics
    ]
    outcomes = await services.controller.create_topics(requests, validate_only=body.validate_only)
    return CreateTopicsResponse(topics=[_created(outcome, services) for outcome in outcomes])


def _created(outcome: TopicCreation, services: Services) -> CreatableTopicResult:
    topic = outcome.topic
    if outcome.error is not None or topic is None:
        code = outcome.error.code if outcome.error else ErrorCode.UNKNOWN_SERVER_ERROR
        message = outcome.error.message if outcome.error else None
        return CreatableTopicResult(name=outcome.name, error_code=code, error_message=message)
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.id,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=[
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in describe_topic(topic.config, services.config)
        ],
    )


def _delete_failed(
    request: Request[DeleteTopicsRequest], error: KafkaError
) -> DeleteTopicsResponse:
    named = [(name, ZERO_TOPIC_ID) for name in request.body.topic_names]
    by_state = [(topic.name, TopicId(topic.topic_id)) for topic in request.body.topics]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=error.code, error_message=error.message
            )
            for name, topic_id in (*named, *by_state)
        ]
    )


@handles(
    ApiKey.DELETE_TOPICS,
    versions=range(1, 7),
    failure=_delete_failed,
    pieces=ListOf("topics", "responses", formerly="topic_names", changes=True),
    for_controller=True,
)
async def delete_topics(
    request: Request[DeleteTopicsRequest], services: Services
) -> DeleteTopicsResponse:
    body = request.body
    if not services.config.delete_topic_enable:
        if request.api_version < KNOWS_DELETION_DISABLED:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "This version does not support topic deletion."
            )
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    requests = (
        [DeleteTopic(topic.name, TopicId(topic.topic_id)) for topic in body.topics]
        if request.api_version >= DELETE_BY_STATE
        else [DeleteTopic(name) for name in body.topic_names]
    )
    outcomes = await services.controller.delete_topics(requests)
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=outcome.name,
                topic_id=outcome.id,
                error_code=ErrorCode.NONE if outcome.error is None else outcome.error.code,
                error_message=None if outcome.error is None else outcome.error.message,
            )
            for outcome in outcomes
        ]
    )


def _grow_failed(
    request: Request[CreatePartitionsRequest], error: KafkaError
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.body.topics
        ]
    )


@handles(
    ApiKey.CREATE_PARTITIONS,
    versions=range(4),
    failure=_grow_failed,
    pieces=ListOf("topics", "results", piece=16, changes=True),
    for_controller=True,
)
async def create_partitions(
    request: Request[CreatePartitionsRequest], services: Services
) -> CreatePartitionsResponse:
    body = request.body
    requests = [
        GrowTopic(
            name=topic.name,
            count=topic.count,
            assignments=(
                None
                if topic.assignments is None
                else [assignment.broker_ids for assignment in topic.assignments]
            ),
        )
        for topic in body.topics
    ]
    outcomes = await services.controller.create_partitions(
        requests, validate_only=body.validate_only
    )
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=outcome.name,
                error_code=ErrorCode.NONE if outcome.error is None else outcome.error.code,
                error_message=None if outcome.error is None else outcome.error.message,
            )
            for outcome in outcomes
        ]
    )
