"""The broker's own topics: their settings, and how many replicas there can be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ottla.broker.internal_topics import InternalTopics
from ottla.config.broker import BrokerConfig
from ottla.controller.remote import ControllerLink
from ottla.controller.topics import NewTopic, TopicCreation
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import Topic

OFFSETS = "__consumer_offsets"


class FakeController:
    """A controller that notes what it is asked for."""

    def __init__(self, brokers: int = 1) -> None:
        self.image = ClusterImage(brokers={each: Broker(each, 0, {}) for each in range(brokers)})
        self.asked: list[NewTopic] = []
        self.error: KafkaError | None = None

    async def create_topics(self, requests: Sequence[NewTopic]) -> list[TopicCreation]:
        self.asked += requests
        await asyncio.sleep(0)
        if self.error is not None:
            return [TopicCreation(request.name, error=self.error) for request in requests]
        topic = Topic(requests[0].name, TopicId(b"t" * 16), ())
        self.image = ClusterImage(brokers=self.image.brokers, topics={topic.name: topic})
        return [TopicCreation(topic.name, topic)]

    def topics(self, **settings: Any) -> InternalTopics:
        config = BrokerConfig(**settings)
        return InternalTopics(cast("ControllerLink", self), lambda: self.image, lambda: config)


async def test_the_offsets_topic_is_compacted_and_has_fifty_partitions() -> None:
    controller = FakeController(brokers=3)
    await controller.topics().ensure(OFFSETS)
    (request,) = controller.asked
    assert (request.name, request.partitions, request.replication_factor) == (OFFSETS, 50, 3)
    assert request.config == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


async def test_one_broker_makes_it_with_one_replica_and_has_nothing_to_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = FakeController()
    topics = controller.topics(min_insync_replicas=2)
    await topics.ensure(OFFSETS)
    await topics.ensure(OFFSETS)
    (request,) = controller.asked
    assert request.replication_factor == 1
    assert "min.insync.replicas" not in request.config
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("brokers", "given"), [(2, {}), (1, {"offsets.topic.replication.factor": "3"})]
)
async def test_fewer_replicas_than_somebody_can_expect_are_said_once(
    brokers: int, given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    controller = FakeController(brokers)
    config = BrokerConfig.of(given)
    topics = InternalTopics(
        cast("ControllerLink", controller), lambda: controller.image, lambda: config
    )
    await topics.ensure(OFFSETS)
    await topics.ensure(OFFSETS)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert f"on each of the {brokers} broker(s) there are, not the 3 that" in caplog.text


async def test_fewer_replicas_are_not_said_of_a_topic_that_others_made_or_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = FakeController(brokers=2)
    controller.error = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS)
    await controller.topics().ensure(OFFSETS)  # who made it may know of more brokers
    controller.error = KafkaError(ErrorCode.NOT_CONTROLLER)
    for _ in range(3):
        with pytest.raises(KafkaError):
            await controller.topics().ensure(OFFSETS)
    assert caplog.text == ""


async def test_it_is_made_once_whoever_asks_at_the_same_time() -> None:
    controller = FakeController()
    topics = controller.topics()
    await asyncio.gather(*(topics.ensure(OFFSETS) for _ in range(5)))
    assert len(controller.asked) == 1


async def test_that_another_broker_made_it_is_no_failure_but_others_are() -> None:
    controller = FakeController()
    controller.error = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS)
    await controller.topics().ensure(OFFSETS)
    controller.error = KafkaError(ErrorCode.POLICY_VIOLATION)
    with pytest.raises(KafkaError) as caught:
        await controller.topics().ensure(OFFSETS)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


async def test_other_topics_are_not_its_business() -> None:
    with pytest.raises(KafkaError):
        await FakeController().topics().ensure("orders")
