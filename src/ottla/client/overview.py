"""A cluster at a glance: what is in each topic at one moment, and how fast it grows.

before = look(groups)
...
after = look(groups)
for topic in after.topics.values():
    print(topic.name, growth(before, after, topic.name).records)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.client.groups import EARLIEST, LATEST, Groups
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.replicas import DescribeLogDirsRequest


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One topic: its partitions, how many of them nobody leads, and what is in them."""

    name: str
    partitions: int
    leaderless: int
    lagging: int  # partitions with a replica that has not caught up
    records: int  # between the first offset and the last
    written: int  # ends of all partitions: grows with every record
    size: int | None  # bytes on the disks of leaders; None when brokers do not say


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment."""

    moment: float
    cluster: str
    brokers: int
    topics: Mapping[str, TopicFigures]


@dataclass(frozen=True, slots=True)
class Growth:
    """A second's worth of a topic."""

    records: float
    bytes: float | None


def look(groups: Groups, *, internal: bool = False) -> Look:
    """All topics, without Kafka's own unless asked for."""
    answer = groups.router.metadata(None)
    chosen = [
        topic
        for topic in answer.topics
        if topic.error_code == 0 and topic.name and (internal or not topic.is_internal)
    ]
    places = [
        TopicPartition(topic.name or "", each.partition_index)
        for topic in chosen
        for each in topic.partitions
    ]
    leaders = {
        TopicPartition(topic.name or "", each.partition_index): each.leader_id
        for topic in chosen
        for each in topic.partitions
    }
    first = groups.log_offsets(dict.fromkeys(places, EARLIEST))
    last = groups.log_offsets(dict.fromkeys(places, LATEST))
    moment = time.monotonic()
    sizes = _sizes(groups, leaders)
    topics: dict[str, TopicFigures] = {}
    for topic in sorted(chosen, key=lambda each: each.name or ""):
        name = topic.name or ""
        own = [TopicPartition(name, each.partition_index) for each in topic.partitions]
        topics[name] = TopicFigures(
            name,
            len(own),
            sum(each.leader_id < 0 for each in topic.partitions),
            sum(len(each.isr_nodes) < len(each.replica_nodes) for each in topic.partitions),
            sum(last[tp].offset - first[tp].offset for tp in own if tp in last and tp in first),
            sum(last[tp].offset for tp in own if tp in last),
            None if sizes is None else sum(sizes.get(tp, 0) for tp in own),
        )
    return Look(moment, answer.cluster_id or "", len(answer.brokers), topics)


def growth(before: Look, after: Look, topic: str) -> Growth | None:
    """How fast a topic grew between two looks; None when it was not there at the first."""
    old, new = before.topics.get(topic), after.topics.get(topic)
    seconds = after.moment - before.moment
    if old is None or new is None or seconds <= 0:
        return None
    grown = None
    if old.size is not None and new.size is not None:
        # Retention makes a topic smaller, which is no negative growth.
        grown = max(0, new.size - old.size) / seconds
    return Growth(max(0, new.written - old.written) / seconds, grown)


def _sizes(
    groups: Groups, leaders: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int] | None:
    """Bytes of each partition on its leader's disk."""
    sizes: dict[TopicPartition, int] = {}
    try:
        for node in groups.router.nodes():
            answer = groups.router.node(node.id).ask(DescribeLogDirsRequest(topics=None))
            for folder in answer.results:
                for topic in folder.topics:
                    for each in topic.partitions:
                        tp = TopicPartition(topic.name, each.partition_index)
                        if leaders.get(tp) == node.id:
                            sizes[tp] = each.partition_size
    except KafkaError:
        return None
    return sizes
