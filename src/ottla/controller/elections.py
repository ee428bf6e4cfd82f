"""What becomes of requests to elect leaders. No I/O: an image in, changes and outcomes out.

The rules and their order are those of Kafka 4.2's controller: a preferred election gives the
partition to the first of its replicas, an unclean one to somebody who is there, and neither touches
a partition that has what is asked for. Kafka's unclean election takes the first replica that is
there; here it is the one that has most, by what all of them report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ottla.controller.election import LogEnd
from ottla.controller.machine import RulesOf, plan_forced, plan_preferred
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionChange, PartitionState

Refused = dict[TopicPartition, KafkaError]
Reports = Mapping[TopicPartition, Mapping[int, LogEnd]]


class Elections(NamedTuple):
    """The partitions to change, and what is wrong with others."""

    changes: dict[TopicPartition, PartitionChange]
    refused: Refused


def to_elect(
    image: ClusterImage, wanted: Iterable[TopicPartition] | None, *, unclean: bool
) -> tuple[list[TopicPartition], Refused]:
    """Which of the `wanted` partitions, or of all, need an election; what is wrong with others.

    Of all partitions, those that need none are left out of the answer, as in Kafka.
    """
    left: list[TopicPartition] = []
    refused: Refused = {}
    for partition in _all_partitions(image) if wanted is None else wanted:
        error = _refusal(image, partition, unclean)
        if error is None:
            left.append(partition)
        elif wanted is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
            refused[partition] = error
    return left, refused


def plan_preferred_elections(
    image: ClusterImage, partitions: Collection[TopicPartition]
) -> Elections:
    """These partitions led by the first of their replicas."""
    plan = Elections({}, {})
    for change in plan_preferred(image, frozenset(partitions)):
        name = image.topic_names[change.topic_id]
        plan.changes[TopicPartition(name, change.partition)] = change
    for partition in partitions:
        if partition not in plan.changes:
            plan.refused[partition] = KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
            )
    return plan


def plan_forced_elections(
    image: ClusterImage, partitions: Collection[TopicPartition], reports: Reports, rules_of: RulesOf
) -> Elections:
    """These partitions led by those who have most of them, of all who have reported."""
    plan = Elections({}, {})
    topics = {partition.topic for partition in partitions}
    rules = {name: rules_of(image.topics[name]) for name in topics}
    for partition in partitions:
        change = plan_forced(image, partition, reports.get(partition, {}), rules[partition.topic])
        if change is None:
            plan.refused[partition] = KafkaError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                "Eligible topic partition leaders are not available.",
            )
        else:
            plan.changes[partition] = change
    return plan


def _all_partitions(image: ClusterImage) -> Iterable[TopicPartition]:
    for topic in image.topics.values():
        for index in range(len(topic.partitions)):
            yield TopicPartition(topic.name, index)


def _refusal(image: ClusterImage, partition: TopicPartition, unclean: bool) -> KafkaError | None:
    topic = image.topics.get(partition.topic)
    if topic is None:
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {partition.topic}"
        )
    if not 0 <= partition.partition < len(topic.partitions):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {partition}")
    if _has_leader(topic.partitions[partition.partition], unclean):
        return KafkaError(
            ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        )
    return None


def _has_leader(state: PartitionState, unclean: bool) -> bool:
    """Whether the partition has what such an election would give it."""
    return state.leader != NO_LEADER if unclean else state.leader == state.replicas[0]
