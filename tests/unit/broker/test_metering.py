"""How the numbers are read: with turns for others in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.metering import TURN, Sources
from ottla.coordinator.group.group import GroupType
from ottla.model.broker import Broker, BrokerState
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionState, Topic

LED = PartitionState(1, 0, 0, (1, 2), (1, 2))


def sources(*states: PartitionState, controls: bool = True) -> Sources:
    config = SimpleNamespace(min_insync_replicas=2)
    led = [
        SimpleNamespace(state=state, log=SimpleNamespace(config=config))
        for state in states
        if state.leader == 1
    ]
    topic = Topic("t", TopicId(bytes(16)), states, {})
    brokers = {each: cast("Broker", SimpleNamespace(epoch=1)) for each in (1, 2)}
    known = {each: cast("BrokerState", SimpleNamespace(stopping=False)) for each in (1, 2)}
    image = ClusterImage(topics={"t": topic}, brokers=brokers, broker_states=known)
    services = SimpleNamespace(
        replicas=SimpleNamespace(led=lambda: iter(led)),
        image=image,
        controller=SimpleNamespace(active=controls),
    )
    return Sources(cast("Any", services), cast("Any", None))


def test_partitions_are_counted_by_what_they_lack() -> None:
    counted = sources(
        LED,
        PartitionState(1, 0, 0, (1, 2, 3), (1, 2)),  # under-replicated, at the minimum
        PartitionState(1, 0, 0, (1, 2), (1,)),  # below it
        PartitionState(1, 0, 0, (1,), (1,)),  # as many as there are replicas suffice
        PartitionState(NO_LEADER, 0, 0, (3,), (3,)),
        PartitionState(2, 0, 0, (1, 2), (1, 2)),  # which the first one could lead
    )
    list(counted.count_partitions())
    led = counted.replicated
    assert (led.led, led.under_replicated, led.under_min_isr, led.at_min_isr) == (4, 2, 1, 3)
    assert (counted.partitions_of_all, counted.offline_partitions) == (6, 1)
    assert counted.not_preferred == 1


def test_replicas_that_a_reassignment_brings_are_not_missing() -> None:
    counted = sources(
        PartitionState(1, 0, 0, (1, 2, 3, 4), (1, 2), adding=(3, 4), removing=(1, 2)),
        PartitionState(1, 0, 0, (1, 2, 3), (1,), adding=(2, 3)),  # from one replica to three
        PartitionState(1, 0, 0, (1, 2, 3), (1,), adding=(3,)),  # one was missing before
    )
    list(counted.count_partitions())
    led = counted.replicated
    assert (led.under_replicated, led.under_min_isr, led.at_min_isr) == (1, 1, 2)


def test_only_the_controller_counts_for_all() -> None:
    counted = sources(LED, controls=False)
    list(counted.count_partitions())
    assert (counted.replicated.led, counted.partitions_of_all) == (1, 0)


def test_many_partitions_are_counted_in_turns() -> None:
    counted = sources(*([LED] * (3 * TURN)))
    assert len(list(counted.count_partitions())) == 6


def test_groups_are_counted_once_and_in_turns() -> None:
    stable = SimpleNamespace(type=GroupType.CLASSIC, state_name="Stable")
    empty = SimpleNamespace(type=GroupType.CONSUMER, state_name="Empty")
    groups = SimpleNamespace(held=lambda: [*([stable] * 3 * TURN), empty])
    counted = Sources(cast("Any", SimpleNamespace(groups=groups)), cast("Any", None))
    assert len(list(counted.count_groups())) == 3
    assert counted.groups[GroupType.CLASSIC, "Stable"] == 3 * TURN
    assert counted.groups[GroupType.CONSUMER, "Empty"] == 1
    assert counted.groups[GroupType.CONSUMER, "Stable"] == 0
