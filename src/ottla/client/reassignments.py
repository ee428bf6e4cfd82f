"""Moving partitions to other brokers: what is asked of the controller, for tools.

with DirectAdmin("127.0.0.1:9092") as admin:
    begin(admin.router, {TopicPartition("t", 0): [1, 2, 3]})
    while ongoing(admin.router):
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.direct import BROKER, DELETE, SET, TOPIC, DirectAdmin
from ottla.client.router import Router, check, error_code
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
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


# -- sparing the network (KIP-73)

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
FOLDER_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

_AT_ONCE = 500  # topics in a request

Movements = Mapping[TopicPartition, tuple[set[int], set[int]]]
"""From which brokers to which others partitions are copied."""


def movements(
    active: Mapping[TopicPartition, Ongoing],
    wanted: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> dict[TopicPartition, tuple[set[int], set[int]]]:
    """From where to where each partition that moves, or is to, is copied."""
    moved = {tp: ({*each.replicas} - {*each.adding}, {*each.adding}) for tp, each in active.items()}
    for tp, replicas in wanted.items():
        sources = moved[tp][0] if tp in moved else {*current[tp]}
        moved[tp] = sources, {*replicas} - sources
    return moved


def limit_copies(admin: DirectAdmin, moved: Movements, rate: int) -> None:
    """Let these copies take so many bytes a second at most, of each broker."""
    for topic in sorted({tp.topic for tp in moved}):
        mine = {tp.partition: each for tp, each in moved.items() if tp.topic == topic}
        sources, targets = (
            ",".join(sorted(f"{index}:{broker}" for index in mine for broker in mine[index][side]))
            for side in (0, 1)
        )
        admin.alter_configs(
            TOPIC, topic, [(LEADER_REPLICAS, SET, sources), (FOLLOWER_REPLICAS, SET, targets)]
        )
    for broker in sorted({each for pair in moved.values() for side in pair for each in side}):
        rates = [(LEADER_RATE, SET, str(rate)), (FOLLOWER_RATE, SET, str(rate))]
        admin.alter_configs(BROKER, str(broker), rates)


def lift_broker_limits(
    admin: DirectAdmin,
    brokers: Iterable[int],
    names: Iterable[str] = (LEADER_RATE, FOLLOWER_RATE, FOLDER_RATE),
) -> None:
    """Lift these limits; all of them, as Kafka's tool does, if nobody says which."""
    rates = [(name, DELETE, None) for name in names]
    for broker in brokers:
        admin.alter_configs(BROKER, str(broker), rates)


def limited_topics(admin: DirectAdmin) -> list[str]:
    """Topics that name copies which are limited; not those where all are, for good ("*")."""
    found: list[str] = []
    wanted = sorted(admin.topics())
    for first in range(0, len(wanted), _AT_ONCE):
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC,
                    resource_name=name,
                    configuration_keys=[LEADER_REPLICAS, FOLLOWER_REPLICAS],
                )
                for name in wanted[first : first + _AT_ONCE]
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        found += [
            result.resource_name
            for result in admin.router.ask_any(request).results
            if any(entry.value not in (None, "", "*") for entry in result.configs)
        ]
    return found


def lift_topic_limits(admin: DirectAdmin, topics: Iterable[str]) -> None:
    replicas = [(name, DELETE, None) for name in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
    for topic in topics:
        admin.alter_configs(TOPIC, topic, replicas)
