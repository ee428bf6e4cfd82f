"""What the controller has to change in the cluster. No I/O: an image in, a plan out.

A plan is made from the whole state and not from what happened, so it does not matter which changes
were seen one by one, which together, or by a controller before this one: what is as it should be
needs nothing, and a plan that was carried out in part is made again for the rest. The order within
a plan matters:

    departures   brokers that are not there any more are fenced,
    partitions   then leaders and in-sync sets follow, and reassignments are done that can be,
    arrivals     and only when nothing counts on what a broker may have lost is that one admitted.

A broker that cannot read what the cluster has finalized is not admitted, and counts for nothing.

A partition may name a broker as leader before that one is admitted; a broker acts on what the
image says of it only from its admission on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ottla.controller.election import LogEnd, is_unclean, prefer, recover, settle
from ottla.controller.reassignment import complete
from ottla.model.broker import BrokerState, LostPartition
from ottla.model.features import shut_out
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionChange, PartitionState, Topic
from ottla.replication.isr import NOBODY, Rules


class BrokerChange(NamedTuple):
    """A broker that is fenced or admitted, under the epoch of its registration."""

    broker: int
    epoch: int


@dataclass(slots=True)
class Plan:
    """What is to be done, in this order."""

    departures: list[BrokerChange] = field(default_factory=list)
    partitions: list[PartitionChange] = field(default_factory=list)
    arrivals: list[BrokerChange] = field(default_factory=list)
    # Who is not admitted, and why.
    shut_out: dict[BrokerChange, str] = field(default_factory=dict)
    # Brokers that lead or are in sync in what `partitions` says: it holds only while they are what
    # they were. Who has registered anew meanwhile may have lost records.
    relied_on: dict[int, BrokerState] = field(default_factory=dict)
    # Those of `partitions` that get a leader which may lack records.
    unclean: set[PartitionChange] = field(default_factory=set)
    # Partitions without a leader that wait to learn what these replicas have: all who are there,
    # among them everybody who was last known to be eligible.
    to_ask: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.departures or self.partitions or self.arrivals)


RulesOf = Callable[[Topic], Rules]


def plan(
    image: ClusterImage,
    rules_of: RulesOf,
    *,
    patient: bool = False,
    topics: Collection[str] | None = None,
    levels: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """What is to be done now, in a cluster that has finalized these `levels` of features.

    While `patient`, brokers that are not there are not taken for dead: all sessions may have ended
    with the store, and they will be back. `topics` limits the look at partitions to these, for a
    change that concerns no broker.
    """
    result = Plan()
    brokers = _judge_brokers(image, result, patient, levels)
    for topic in _topics(image, None if result else topics):
        _plan_topic(result, topic, brokers, rules_of(topic))
    result.relied_on = relied_on(image, result.partitions)
    return result


def relied_on(image: ClusterImage, changes: Iterable[PartitionChange]) -> dict[int, BrokerState]:
    """The brokers that lead or are in sync after these changes, as they are now."""
    brokers = {broker for change in changes for broker in change.after.isr}
    return {each: image.broker_states[each] for each in sorted(brokers)}


class Losses(NamedTuple):
    """Who may have lost records: brokers of all partitions, and of single ones; and of the former
    those that may have lost everything."""

    everywhere: Collection[int]
    of_partitions: Mapping[LostPartition, Collection[int]]
    emptied: Collection[int]

    def of(self, topic: Topic, index: int) -> Collection[int]:
        if not self.of_partitions:
            return self.everywhere
        more = self.of_partitions.get(LostPartition(topic.id, index))
        return {*self.everywhere, *more} if more else self.everywhere


class _Brokers(NamedTuple):
    """Brokers by what can be expected of them."""

    live: Set[int]
    losses: Losses
    absent: Set[int]


def _judge_brokers(
    image: ClusterImage, result: Plan, patient: bool, levels: Mapping[str, int]
) -> _Brokers:
    """What can be expected of whom; who has come and who has gone is noted in the plan."""
    live = set(image.brokers)
    absent: set[int] = set()  # not there, and not taken for dead
    for broker, state in image.broker_states.items():
        registration = image.registrations.get(broker)
        if registration is None or registration.epoch != state.epoch:
            if not state.fenced:
                if patient:
                    live.add(broker)
                    absent.add(broker)
                else:
                    result.departures.append(BrokerChange(broker, state.epoch))
        elif state.fenced and (why := shut_out(levels, registration.features)) is not None:
            result.shut_out[BrokerChange(broker, state.epoch)] = why
        elif state.fenced:
            result.arrivals.append(BrokerChange(broker, state.epoch))
            if not state.seen_dead:  # else others cannot reach it, and lead in its place
                live.add(broker)
        elif state.stopping:
            live.discard(broker)
    return _Brokers(live, _losses_of(image, result.arrivals), absent)


def _losses_of(image: ClusterImage, arrivals: Iterable[BrokerChange]) -> Losses:
    """What those who come may have lost."""
    states = {broker: image.broker_states[broker] for broker, _ in arrivals}
    lost = {broker for broker, state in states.items() if state.lost}
    lost_here: dict[LostPartition, set[int]] = {}
    for broker, state in states.items():
        for partition in state.lost_partitions:
            lost_here.setdefault(partition, set()).add(broker)
    emptied = {broker for broker in lost if states[broker].emptied}
    return Losses(lost, lost_here, emptied)


def _plan_topic(result: Plan, topic: Topic, brokers: _Brokers, rules: Rules) -> None:
    live, losses, absent = brokers
    for index, before in enumerate(topic.partitions):
        lost = losses.of(topic, index)
        # Nearly every partition of nearly every plan: led, and by live replicas.
        if (
            before.leader in live
            and not lost
            and all(each in live for each in before.isr)
            and not before.reassigning
        ):
            continue
        # Nobody has more than the only replica, whatever that one has lost. It has begun a new
        # leader epoch by itself, so that clients notice (`broker/loaded_logs.py`).
        untrusted = lost if len(before.replicas) > 1 else NOBODY
        emptied = losses.emptied if untrusted else NOBODY
        after = settle(before, live, rules, lost=untrusted, absent=absent, emptied=emptied)
        if after.reassigning:
            after = complete(after, live - absent)
        if after.leader == NO_LEADER and not after.elr:
            there = tuple(each for each in after.replicas if each in live and each not in absent)
            if all(each in there for each in after.last_known_elr or after.replicas):
                result.to_ask[TopicPartition(topic.name, index)] = there
        if after is not before:
            change = PartitionChange(topic.id, index, before, after)
            result.partitions.append(change)
            if is_unclean(before, after, untrusted):
                result.unclean.add(change)


def plan_recovery(
    image: ClusterImage,
    partition: TopicPartition,
    reports: Mapping[int, LogEnd],
) -> PartitionChange | None:
    """The partition led by who has most of it, if that can be said already."""
    found = _find(image, partition)
    if found is None:
        return None
    topic, before = found
    after = recover(before, reports)
    if after is before:
        return None
    return PartitionChange(topic.id, partition.partition, before, after)


def plan_preferred(
    image: ClusterImage, partitions: Collection[TopicPartition] | None = None
) -> list[PartitionChange]:
    """Every partition, or the given ones, led by its first replica where that can lead."""
    able = electable(image)
    changes = []
    names = None if partitions is None else sorted({each.topic for each in partitions})
    for topic in _topics(image, names):
        for index, before in enumerate(topic.partitions):
            if partitions is not None and TopicPartition(topic.name, index) not in partitions:
                continue
            after = prefer(before, able)
            if after is not before:
                changes.append(PartitionChange(topic.id, index, before, after))
    return changes


def electable(image: ClusterImage) -> set[int]:
    """The brokers that may lead: those that are there, and stay."""
    return {
        broker
        for broker in image.brokers
        if not (state := image.broker_states.get(broker)) or not state.stopping
    }


def plan_forced(
    image: ClusterImage, partition: TopicPartition, reports: Mapping[int, LogEnd], rules: Rules
) -> PartitionChange | None:
    """The partition led by who has most of it, of the live replicas that have reported; None if it
    has a leader or nobody has reported. Whoever is eligible comes first: it has everything."""
    found = _find(image, partition)
    if found is None or found[1].leader != NO_LEADER:
        return None
    topic, before = found
    there = {each: end for each, end in reports.items() if each in image.brokers}
    after = settle(before, there, rules._replace(unclean=False))
    if after.leader == NO_LEADER:
        after = recover(before, there, force=True)
    if after.leader == NO_LEADER:
        return None
    return PartitionChange(topic.id, partition.partition, before, after)


def _find(image: ClusterImage, partition: TopicPartition) -> tuple[Topic, PartitionState] | None:
    topic = image.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return None
    return topic, topic.partitions[partition.partition]


def _topics(image: ClusterImage, names: Collection[str] | None) -> Iterator[Topic]:
    if names is None:
        yield from image.topics.values()
    else:
        for name in names:
            if (topic := image.topics.get(name)) is not None:
                yield topic
