from __future__ import annotations

from collections import Counter

from ottla.controller.internal_replicas import plan_more_replicas
from ottla.model.broker import Broker, BrokerState
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic

NAME = "__consumer_offsets"


def image(
    brokers: dict[int, str | None], replicas: list[tuple[int, ...]], *, leader: int = 1
) -> ClusterImage:
    topic = Topic(
        NAME,
        TopicId(b"t" * 16),
        tuple(PartitionState(leader, 4, 7, each, each) for each in replicas),
    )
    return ClusterImage(
        brokers={number: Broker(number, 1, {}, rack) for number, rack in brokers.items()},
        topics={NAME: topic},
    )


def test_nothing_is_changed_where_there_are_enough_replicas_or_no_brokers() -> None:
    assert plan_more_replicas(image({1: None}, [(1,)]), {NAME: 3}) == []
    full = image({1: None, 2: None, 3: None, 4: None}, [(1, 2, 3)])
    assert plan_more_replicas(full, {NAME: 3}) == []
    assert plan_more_replicas(full, {"__transaction_state": 3}) == []


def test_replicas_are_added_and_preferred_leaders_shared() -> None:
    before = image({1: None, 2: None, 3: None, 4: None}, [(1,)] * 8)
    changes = plan_more_replicas(before, {NAME: 3})
    assert len(changes) == 8
    for change in changes:
        assert change.after.replicas.count(1) == 1
        assert len(set(change.after.replicas)) == 3
        # Who leads and who is in sync is not touched: those who are new have to catch up.
        assert (change.after.leader, change.after.leader_epoch, change.after.isr) == (1, 4, (1,))
        assert change.after.partition_epoch == 8
    held = Counter(each for change in changes for each in change.after.replicas)
    assert held == {1: 8, 2: 6, 3: 5, 4: 5}
    assert set(Counter(change.after.replicas[0] for change in changes).values()) == {2}


def test_another_rack_comes_first() -> None:
    before = image({1: "a", 2: "a", 3: "b", 4: "c"}, [(1,)])
    (change,) = plan_more_replicas(before, {NAME: 3})
    assert set(change.after.replicas) == {1, 3, 4}


def test_a_partition_without_a_leader_waits_and_so_does_a_broker_that_stops() -> None:
    assert plan_more_replicas(image({2: None}, [(1,)], leader=-1), {NAME: 2}) == []
    stopping = image({1: None, 2: None}, [(1,)])
    states = {2: BrokerState(1, fenced=False, stopping=True)}
    before = ClusterImage(brokers=stopping.brokers, broker_states=states, topics=stopping.topics)
    assert plan_more_replicas(before, {NAME: 2}) == []
