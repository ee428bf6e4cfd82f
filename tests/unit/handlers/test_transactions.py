"""AddOffsetsToTxn: what is added to a transaction is known when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.transaction.state import AddPartitions, VerifyPartitions
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.transactions import add_offsets_to_txn
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.transactions import AddOffsetsToTxnRequest


class Coordinator:
    """A broker that coordinates transactions, whose image may lag behind the store."""

    def __init__(self, *topics: str) -> None:
        self.image = SimpleNamespace(topics=set(topics))
        self.seen = True  # at once, what has been made
        self.failure: KafkaError | None = None
        self.added: list[AddPartitions] = []
        self.groups = SimpleNamespace(partition_for=lambda group_id: 3)
        self.replaced = False
        self.transactions = SimpleNamespace(add=self.added.append, run_certainly=self.verify)
        self.internal_topics = self

    def verify(self, command: VerifyPartitions) -> None:
        if self.replaced:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    async def ensure(self, name: str) -> None:
        if self.failure is not None:
            raise self.failure
        if self.seen:
            self.image.topics.add(name)

    def ask(self) -> Any:
        body = AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=7, producer_epoch=0, group_id="g"
        )
        request: Any = SimpleNamespace(api_version=3, body=body)
        services: Any = self
        return add_offsets_to_txn(request, services)


async def test_offsets_are_added_when_there_is_a_topic_for_them() -> None:
    """At the end of a transaction, partitions that the coordinator does not know count as deleted:
    no marker would end what is written there."""
    coordinator = Coordinator()
    assert (await coordinator.ask()).error_code == 0
    assert coordinator.ask().error_code == 0
    partitions = [each.partitions for each in coordinator.added]
    assert partitions == [frozenset({TopicPartition(OFFSETS_TOPIC, 3)})] * 2


async def test_offsets_are_not_added_before_the_topic_is_seen() -> None:
    coordinator = Coordinator()
    coordinator.seen = False
    for failure in (None, KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR)):
        coordinator.failure = failure
        with pytest.raises(KafkaError) as caught:
            await coordinator.ask()
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.added == []


async def test_a_replaced_coordinator_says_so_though_it_cannot_make_the_topic() -> None:
    coordinator = Coordinator()
    coordinator.replaced = True
    coordinator.failure = KafkaError(ErrorCode.NOT_CONTROLLER)
    with pytest.raises(KafkaError) as caught:
        await coordinator.ask()
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
