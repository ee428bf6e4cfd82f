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

from ottla.client.ages import record_times
from ottla.client.groups import Groups
from ottla.client.router import check
from ottla.client.topic_offsets import EARLIEST, LATEST
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.replicas import DescribeLogDirsRequest

Times = dict[tuple[TopicPartition, int], int]
"""When the record at an offset was written, in milliseconds since 1970."""


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
    first = groups.topics.offsets(dict.fromkeys(places, EARLIEST))
    last = groups.topics.offsets(dict.fromkeys(places, LATEST))
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


def look_at_groups(
    groups: Groups, names: Collection[str] = (), times: Times | None = None
) -> dict[str, GroupFigures]:
    """These groups of consumers, or all; GROUP_ID_NOT_FOUND when one of these is not there.

    A few requests to each broker, and one for each record whose age is not known: `times`, where
    the caller keeps it from look to look, spares those of groups that stand still.
    """
    survey = groups.survey(names)
    moment = time.monotonic()
    places: dict[str, set[TopicPartition]] = {}
    for name, (described, committed) in survey.items():
        assigned = (tp for member in described.members for tp in member.assignment)
        places[name] = {*committed, *assigned}
    ends = groups.topics.ends({tp for own in places.values() for tp in own})
    lags: dict[str, dict[TopicPartition, int]] = {}
    late: set[tuple[TopicPartition, int]] = set()
    for name, (_, committed) in survey.items():
        lags[name] = {tp: ends[tp] - at.offset for tp, at in committed.items() if tp in ends}
        late |= {(tp, committed[tp].offset) for tp, lag in lags[name].items() if lag > 0}
    known = _times(groups, late, {} if times is None else times)
    now = time.time_ns() // 1_000_000
    found: dict[str, GroupFigures] = {}
    for name, (described, committed) in survey.items():
        ages = {tp: 0.0 for tp, lag in lags[name].items() if lag == 0}
        for tp, at in committed.items():
            written = known.get((tp, at.offset))
            if written is not None and lags[name].get(tp, 0) > 0:
                ages[tp] = max(0.0, (now - written) / 1000)
        found[name] = GroupFigures(
            moment,
            name,
            described.state,
            len(described.members),
            len(places[name]),
            {tp: at.offset for tp, at in committed.items()},
            lags[name],
            ages,
        )
    return found


def _times(groups: Groups, places: set[tuple[TopicPartition, int]], times: Times) -> Times:
    """When the records at these offsets were written; what is known already is not asked for."""
    for forgotten in times.keys() - places:
        del times[forgotten]
    missing = places - times.keys()
    while missing:
        # One offset of each partition at a time, since a request cannot name a partition twice.
        asked = dict(sorted(missing))
        for tp, written in record_times(groups.router, asked).items():
            times[tp, asked[tp]] = written
        missing -= set(asked.items())
    return times


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
            check(answer.error_code)
            for folder in answer.results:
                for topic in folder.topics:
                    for each in topic.partitions:
                        tp = TopicPartition(topic.name, each.partition_index)
                        # A copy on its way to another folder is smaller than what it will replace.
                        if leaders.get(tp) == node.id and not each.is_future_key:
                            sizes[tp] = each.partition_size
    except KafkaError:
        return None
    return sizes
