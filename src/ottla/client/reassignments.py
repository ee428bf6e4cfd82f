"""Moving partitions to other brokers: what is asked of the controller, for tools.

with DirectAdmin("127.0.0.1:9092") as admin:
    begin(admin.router, {TopicPartition("t", 0): [1, 2, 3]})
    while ongoing(admin.router):
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.router import Router, check, error_code
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)


class Ongoing(NamedTuple):
    """A reassignment in progress: all replicas, those on their way, those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def ongoing(
    router: Router, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Ongoing]:
    """The reassignments in progress, of these partitions or of all."""
    topics = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        topics = [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in by_topic.items()
        ]
    request = ListPartitionReassignmentsRequest(topics=topics)

    def ask() -> dict[TopicPartition, Ongoing]:
        answer = router.controller().ask(request)
        check(answer.error_code, answer.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): Ongoing(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in answer.topics
            for part in topic.partitions
        }

    return router.retried(ask)


def begin(
    router: Router, wanted: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, KafkaError]:
    """Move partitions to these replicas, or (None) cancel that; what went wrong with some."""
    by_topic: dict[str, list[ReassignablePartition]] = {}
    for tp, replicas in wanted.items():
        part = ReassignablePartition(
            partition_index=tp.partition, replicas=None if replicas is None else list(replicas)
        )
        by_topic.setdefault(tp.topic, []).append(part)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
    )

    def ask() -> dict[TopicPartition, KafkaError]:
        answer = router.controller().ask(request)
        check(answer.error_code, answer.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): KafkaError(
                error_code(part.error_code), part.error_message
            )
            for topic in answer.responses
            for part in topic.partitions
            if part.error_code
        }

    return router.retried(ask)
