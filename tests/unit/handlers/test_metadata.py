"""Metadata: what a client is told of a topic that was to be created for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.controller.topics import NewTopic, TopicCreation
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.metadata import metadata
from ottla.model.image import ClusterImage
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
async def test_a_topic_that_this_broker_has_not_learned_of_is_unknown_for_the_moment(
    refusal: ErrorCode, told: ErrorCode
) -> None:
    """Another client may have had it created; its image follows when the store is back."""

    async def refuse(topics: list[NewTopic], _timeout_ms: int) -> list[TopicCreation]:
        return [TopicCreation(topic.name, error=KafkaError(refusal)) for topic in topics]

    services: Any = SimpleNamespace(
        image=ClusterImage(),
        config=SimpleNamespace(auto_create_topics_enable=True, broker_rack=None),
        controller_link=SimpleNamespace(create_topics=refuse),
        departed=SimpleNamespace(recent=list),
        endpoints={},
    )
    body = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    request: Any = SimpleNamespace(api_version=12, listener="PLAINTEXT", body=body)
    answering: Any = metadata(request, services)
    [answer] = (await answering).topics
    assert answer.error_code is told
