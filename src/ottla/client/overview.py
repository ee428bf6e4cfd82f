"""A cluster at a glance: what is in each topic, how far each group is, and how fast both go on.

before = look(groups)
...
after = look(groups)
for topic in after.topics.values():
    print(topic.name, growth(before, after, topic.name).records)
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ottla.client.ages import lag_seconds
from ottla.client.groups import EARLIEST, LATEST, Groups
from ottla.errors import ErrorCode, KafkaError
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


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group at one moment, by partition where that is known."""

    moment: float
    name: str
    state: str
    members: int
    partitions: int
    committed: Mapping[TopicPartition, int]
    lag: Mapping[TopicPartition, int]  # records
    late: Mapping[TopicPartition, float]  # seconds: the age of the next record


def look(groups: Groups, *, internal: bool = False, topics: bool = True) -> Look:
    """All topics, without Kafka's own unless asked for; or, without topics, only the brokers."""
    answer = groups.router.metadata(None if topics else ())
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
    sizes = _sizes(groups, leaders) if places else None
    found: dict[str, TopicFigures] = {}
    for topic in sorted(chosen, key=lambda each: each.name or ""):
        name = topic.name or ""
        own = [TopicPartition(name, each.partition_index) for each in topic.partitions]
        found[name] = TopicFigures(
            name,
            len(own),
            sum(each.leader_id < 0 for each in topic.partitions),
            sum(len(each.isr_nodes) < len(each.replica_nodes) for each in topic.partitions),
            sum(last[tp].offset - first[tp].offset for tp in own if tp in last and tp in first),
            sum(last[tp].offset for tp in own if tp in last),
            None if sizes is None else sum(sizes.get(tp, 0) for tp in own),
        )
    return Look(moment, answer.cluster_id or "", len(answer.brokers), found)


def look_at_groups(groups: Groups, names: Collection[str] = ()) -> dict[str, GroupFigures]:
    """These groups of consumers, or all; GROUP_ID_NOT_FOUND when one of these is not there."""
    found: dict[str, GroupFigures] = {}
    for name in names or sorted(
        each.name for each in groups.list_groups() if each.type in ("Classic", "Consumer")
    ):
        try:
            described = groups.describe(name)[name]
            rows = groups.lag(name, described)
        except KafkaError as error:
            if names or error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            continue  # deleted since the list was made
        moment = time.monotonic()
        found[name] = GroupFigures(
            moment,
            name,
            described.state,
            len(described.members),
            len(rows),
            {row.partition: row.committed for row in rows if row.committed is not None},
            {row.partition: row.lag for row in rows if row.lag is not None},
            lag_seconds(groups, rows, time.time_ns() // 1_000_000),
        )
    return found


def reading(before: GroupFigures, after: GroupFigures) -> dict[str, float]:
    """How many records a second a group committed between two looks, by topic.

    Partitions that it had not committed before do not count, nor does being reset.
    """
    seconds = after.moment - before.moment
    if seconds <= 0:
        return {}
    rates: dict[str, float] = {}
    for tp, offset in after.committed.items():
        moved = max(0, offset - before.committed.get(tp, offset))
        rates[tp.topic] = rates.get(tp.topic, 0.0) + moved / seconds
    return rates


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
