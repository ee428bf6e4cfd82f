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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.controller.election import LogEnd, is_unclean, prefer, recover, settle
from ottla.model.broker import BrokerState, LostPartition
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
    # Brokers that lead or are in sync in what `partitions` says: it holds only while they are what
    # they were. Who has registered anew meanwhile may have lost records.
    relied_on: dict[int, BrokerState] = field(default_factory=dict)
    # Those of `partitions` that get a leader which may lack records.
    unclean: set[PartitionChange] = field(default_factory=set)
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
    brokers = _judge_brokers(image, result, patient)
    for topic in _topics(image, None if result else topics):
        _plan_topic(result, topic, brokers, rules_of(topic))
    result.relied_on = relied_on(image, result.partitions)
    return result


def relied_on(image: ClusterImage, changes: Iterable[PartitionChange]) -> dict[int, BrokerState]:
    """The brokers that lead or are in sync after these changes, as they are now."""
    brokers = {broker for change in changes for broker in change.after.isr}
    return {each: image.broker_states[each] for each in sorted(brokers)}


class Losses(NamedTuple):
    """Who may have lost records: brokers of all partitions, and of single ones."""

    everywhere: Collection[int]
    of_partitions: Mapping[LostPartition, Collection[int]]

    def of(self, topic: Topic, index: int) -> Collection[int]:
        if not self.of_partitions:
            return self.everywhere
        more = self.of_partitions.get(LostPartition(topic.id, index))
        return {*self.everywhere, *more} if more else self.everywhere


class _Brokers(NamedTuple):
    """Brokers by what can be expected of them."""

    live: Collection[int]
    losses: Losses
    absent: Collection[int]


def _judge_brokers(image: ClusterImage, result: Plan, patient: bool) -> _Brokers:
    """What can be expected of whom; who has come and who has gone is noted in the plan."""
    live = set(image.brokers)
    lost: set[int] = set()
    lost_here: dict[LostPartition, set[int]] = {}
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
        elif state.fenced:
            result.arrivals.append(BrokerChange(broker, state.epoch))
            if not state.seen_dead:  # else others cannot reach it, and lead in its place
                live.add(broker)
            if state.lost:
                lost.add(broker)
            for partition in state.lost_partitions:
                lost_here.setdefault(partition, set()).add(broker)
        elif state.stopping:
            live.discard(broker)
    return _Brokers(live, Losses(lost, lost_here), absent)


def _plan_topic(result: Plan, topic: Topic, brokers: _Brokers, rules: Rules) -> None:
    live, losses, absent = brokers
    for index, before in enumerate(topic.partitions):
        lost = losses.of(topic, index)
        # Nearly every partition of nearly every plan: led, and by live replicas.
        if before.leader in live and not lost and all(each in live for each in before.isr):
            continue
        # Nobody has more than the only replica, whatever that one has lost. It has begun a new
        # leader epoch by itself, so that clients notice (`broker/loaded_logs.py`).
        untrusted = lost if len(before.replicas) > 1 else NOBODY
        after = settle(before, live, rules, lost=untrusted, absent=absent)
        if after.leader == NO_LEADER and not after.elr:
            there = tuple(each for each in after.replicas if each in live and each not in absent)
            if not all(each in there for each in after.last_known_elr or after.replicas):
                pass  # somebody is waited for
            elif len(there) == 1:
                # Nobody else can tell of more.
                after = recover(after, {there[0]: LogEnd(0, 0)})
            else:
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
