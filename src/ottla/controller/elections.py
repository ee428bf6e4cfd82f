"""What becomes of requests to elect leaders. No I/O: an image in, changes and outcomes out.

The rules and their order are those of Kafka 4.2's controller: a preferred election gives the
partition to the first of its replicas, an unclean one to anybody who is there, and neither touches
a partition that has what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.controller.machine import RulesOf, plan_preferred, plan_unclean
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionChange, PartitionState


class Elections(NamedTuple):
    """The partitions to change, and what is wrong with others; those without either are fine."""

    changes: dict[TopicPartition, PartitionChange]
    refused: dict[TopicPartition, KafkaError]


def plan_elections(
    image: ClusterImage,
    wanted: Iterable[TopicPartition] | None,
    rules_of: RulesOf,
    *,
    unclean: bool,
) -> Elections:
    """Elections in the partitions that are `wanted`, or in all of them.

    Of all partitions, those that need none are left out of the answer, as in Kafka.
    """
    plan = Elections({}, {})
    candidates: list[TopicPartition] = []
    for partition in _all_partitions(image) if wanted is None else wanted:
        error = _refusal(image, partition, unclean)
        if error is None:
            candidates.append(partition)
        elif wanted is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
            plan.refused[partition] = error
    if unclean:
        for partition in candidates:
            rules = rules_of(image.topics[partition.topic])
            change = plan_unclean(image, partition, rules)
            if change is None:
                plan.refused[partition] = KafkaError(
                    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                    "Eligible topic partition leaders are not available.",
                )
            else:
                plan.changes[partition] = change
        return plan
    for change in plan_preferred(image, frozenset(candidates)):
        name = image.topic_names[change.topic_id]
        plan.changes[TopicPartition(name, change.partition)] = change
    for partition in candidates:
        if partition not in plan.changes:
            plan.refused[partition] = KafkaError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
            )
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
