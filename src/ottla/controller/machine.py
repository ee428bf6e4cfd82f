"""What the controller has to change in the cluster. No I/O: an image in, a plan out.

A plan is made from the whole state and not from what happened, so it does not matter which changes
were seen one by one, which together, or by a controller before this one: what is as it should be
needs nothing, and a plan that was carried out in part is made again for the rest. The order within
a plan matters:

    departures   brokers that are not there any more are fenced,
    partitions   then leaders and in-sync sets follow,
    arrivals     and only when nothing counts on what a broker may have lost is that one admitted.

A partition may name a broker as leader before that one is admitted; a broker acts on what the
image says of it only from its admission on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.controller.election import LogEnd, prefer, recover, settle
from ottla.model.broker import BrokerState, LostPartition
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionChange, PartitionState, Topic
from ottla.replication.isr import Rules


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
    # Those of the partitions whose new leader may lack records, to be reported.
    unclean: list[PartitionChange] = field(default_factory=list)
    # Brokers that lead or are in sync in what `partitions` says: it holds only while they are what
    # they were. Who has registered anew meanwhile may have lost records.
    relied_on: dict[int, BrokerState] = field(default_factory=dict)
    # Partitions without a leader that wait to learn what these replicas have.
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
) -> Plan:
    """What is to be done now.

    While `patient`, brokers that are not there are not taken for dead: all sessions may have ended
    with the store, and they will be back. `topics` limits the look at partitions to these, for a
    change that concerns no broker.
    """
    result = Plan()
    live = set(image.brokers)
    lost: set[int] = set()
    lost_here: dict[LostPartition, set[int]] = {}
    for broker, state in image.broker_states.items():
        registration = image.registrations.get(broker)
        if registration is None or registration.epoch != state.epoch:
            if not state.fenced:
                if patient:
                    live.add(broker)
                else:
                    result.departures.append(BrokerChange(broker, state.epoch))
        elif state.fenced:
            result.arrivals.append(BrokerChange(broker, state.epoch))
            live.add(broker)
            if state.lost:
                lost.add(broker)
            for partition in state.lost_partitions:
                lost_here.setdefault(partition, set()).add(broker)
        elif state.stopping:
            live.discard(broker)
    for topic in _topics(image, None if result else topics):
        _plan_topic(result, topic, live, Losses(lost, lost_here), rules_of(topic))
    relied_on = {broker for change in result.partitions for broker in change.after.isr}
    result.relied_on = {each: image.broker_states[each] for each in sorted(relied_on)}
    return result


class Losses(NamedTuple):
    """Who may have lost records: brokers of all partitions, and of single ones."""

    everywhere: Collection[int]
    of_partitions: Mapping[LostPartition, Collection[int]]

    def of(self, topic: Topic, index: int) -> Collection[int]:
        if not self.of_partitions:
            return self.everywhere
        more = self.of_partitions.get(LostPartition(topic.id, index))
        return {*self.everywhere, *more} if more else self.everywhere


def _plan_topic(
    result: Plan, topic: Topic, live: Collection[int], losses: Losses, rules: Rules
) -> None:
    for index, before in enumerate(topic.partitions):
        lost = losses.of(topic, index)
        # Nearly every partition of nearly every plan: led, and by live replicas.
        if before.leader in live and not lost and all(each in live for each in before.isr):
            continue
        after = settle(before, live, rules, lost=lost)
        if after.leader == NO_LEADER and not after.elr:
            candidates = after.last_known_elr or after.replicas
            if len(candidates) == 1 and candidates[0] in live:
                # Nobody else can have more.
                after = recover(after, {candidates[0]: LogEnd(0, 0)})
            elif all(each in live for each in candidates):
                result.to_ask[TopicPartition(topic.name, index)] = candidates
        if after is not before:
            change = PartitionChange(topic.id, index, before, after)
            result.partitions.append(change)
            if _is_unclean(change, lost):
                result.unclean.append(change)


def _is_unclean(change: PartitionChange, lost: Collection[int]) -> bool:
    """Whether another replica may have had records that the new leader lacks."""
    before, after = change.before, change.after
    if after.leader == NO_LEADER or after.leader_epoch == before.leader_epoch:
        return False
    if len(after.replicas) == 1:
        return False  # there is no other one
    return after.leader in lost or after.leader not in (*before.isr, *before.elr)


def plan_recovery(
    image: ClusterImage,
    partition: TopicPartition,
    reports: dict[int, LogEnd],
    *,
    force: bool = False,
) -> PartitionChange | None:
    """The partition led by who has most of it, if that can be said already."""
    found = _find(image, partition)
    if found is None:
        return None
    topic, before = found
    after = recover(before, reports, force=force)
    if after is before:
        return None
    return PartitionChange(topic.id, partition.partition, before, after)


def plan_preferred(
    image: ClusterImage, partitions: Collection[TopicPartition] | None = None
) -> list[PartitionChange]:
    """Every partition, or the given ones, led by its first replica where that can lead."""
    able = {
        broker
        for broker in image.brokers
        if not (state := image.broker_states.get(broker)) or not state.stopping
    }
    changes = []
    for topic in _topics(image, None):
        for index, before in enumerate(topic.partitions):
            if partitions is not None and TopicPartition(topic.name, index) not in partitions:
                continue
            after = prefer(before, able)
            if after is not before:
                changes.append(PartitionChange(topic.id, index, before, after))
    return changes


def plan_unclean(
    image: ClusterImage, partition: TopicPartition, rules: Rules
) -> PartitionChange | None:
    """The partition led by a live replica, whatever that one may lack; None if it has a leader or
    nobody is there."""
    found = _find(image, partition)
    if found is None or found[1].leader != NO_LEADER:
        return None
    topic, before = found
    after = settle(before, set(image.brokers), rules._replace(unclean=True))
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
