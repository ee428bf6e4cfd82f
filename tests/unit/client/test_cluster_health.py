"""The health of a cluster, as it follows from what brokers answer."""

from __future__ import annotations

from dataclasses import replace

from ottla.client.cluster_health import ClusterHealth, Known, Remembered, assess
from ottla.client.descriptions import (
    ClusterDescription,
    Node,
    PartitionDescription,
    TopicDescription,
)
from ottla.model.ids import TopicPartition

NODES = {number: Node(number, "127.0.0.1", 9091 + number, f"r{number}") for number in (1, 2, 3)}


def health(
    *partitions: PartitionDescription,
    up: tuple[int, ...] = (1, 2, 3),
    fenced: tuple[int, ...] = (),
    least: int | None = 2,
) -> ClusterHealth:
    cluster = ClusterDescription("abc", 1, tuple(NODES[number] for number in up))
    topics = [TopicDescription("t", "id", False, partitions)]
    return assess(cluster, fenced, topics, {} if least is None else {"t": least})


WHOLE = PartitionDescription(0, 1, (1, 2, 3), (1, 2, 3), (), ())


def test_a_cluster_in_order() -> None:
    found = health(WHOLE, PartitionDescription(1, 2, (2, 3), (2, 3), (), ()))
    assert found.partitions == 2
    assert found.troubled == ()
    assert [(each.id, each.leads, each.replicas, each.in_sync) for each in found.brokers] == [
        (1, 1, 1, 1),
        (2, 1, 2, 2),
        (3, 0, 2, 2),
    ]
    assert found.brokers[0].address == "127.0.0.1:9092"
    assert [each.rack for each in found.brokers] == ["r1", "r2", "r3"]
    assert {each.state for each in found.brokers} == {"up"}


def test_a_broker_that_partitions_name_and_nobody_sees_is_missing() -> None:
    found = health(WHOLE, up=(1, 2))
    assert [each.state for each in found.brokers] == ["up", "up", "missing"]
    assert found.brokers[2].address is None
    assert found.live == {1, 2}


def test_a_broker_that_is_shut_out_is_not_counted_on() -> None:
    found = health(WHOLE, fenced=(3,))
    assert found.brokers[2].state == "fenced"
    assert found.live == {1, 2}


def test_the_worst_comes_first_and_each_kind_is_counted() -> None:
    found = health(
        PartitionDescription(0, 1, (1, 2, 3), (1, 2), (), ()),
        PartitionDescription(1, 1, (1, 2, 3), (1,), (2,), ()),
        PartitionDescription(2, None, (1, 2, 3), (), (2,), ()),
        up=(1,),
    )
    assert [(each.name, each.state) for each in found.troubled] == [
        ("t-2", "offline"),
        ("t-1", "under min.insync"),
        ("t-0", "under-replicated"),
    ]
    assert (found.offline, found.under_min_insync, found.under_replicated) == (1, 2, 3)


def test_the_minimum_counts_up_to_the_number_of_replicas() -> None:
    found = health(PartitionDescription(0, 1, (1, 2), (1,), (), ()), least=3)
    assert found.under_min_insync == 1
    found = health(PartitionDescription(0, None, (1,), (), (), ()), least=3)
    assert found.under_min_insync == 1


def test_without_a_known_minimum_nothing_is_below_it() -> None:
    found = health(PartitionDescription(0, 1, (1, 2), (1,), (), ()), least=None)
    assert found.under_min_insync == 0


def waits(part: PartitionDescription, *up: int) -> tuple[tuple[int, ...], bool]:
    found = health(part, up=up)
    return found.troubled[0].waits_for(found.live)


def test_an_offline_partition_waits_for_any_that_is_eligible() -> None:
    part = PartitionDescription(0, None, (1, 2, 3), (), (2, 3), (1,))
    assert waits(part, 1) == ((2, 3), False)


def test_where_only_the_in_sync_are_known_it_waits_for_any_of_them() -> None:
    # As Apache Kafka without eligible replicas leaves the last member in the set.
    part = PartitionDescription(0, None, (1, 2, 3), (2,), (), ())
    assert waits(part, 1, 3) == ((2,), False)


def test_with_nobody_eligible_it_waits_for_all_who_were_last_known_to_be() -> None:
    part = PartitionDescription(0, None, (1, 2, 3), (), (), (1, 2))
    assert waits(part, 1, 3) == ((2,), True)
    assert waits(part, 3) == ((1, 2), True)
    assert waits(part, 1, 2) == ((1, 2), True), "until they have reported what they have"


def test_with_nothing_known_it_waits_for_all_replicas() -> None:
    part = PartitionDescription(0, None, (2, 3), (), None, None)
    assert waits(part, 1) == ((2, 3), True)


def test_a_partition_with_a_leader_waits_for_who_has_not_caught_up() -> None:
    assert waits(PartitionDescription(0, 1, (1, 2), (1,), (), ()), 1, 2) == ((2,), True)


def test_a_leader_whose_log_cannot_be_served_leads_in_name_only() -> None:
    known = Known(offline_logs={TopicPartition("t", 0): frozenset({1})})
    cluster = ClusterDescription("abc", 1, tuple(NODES.values()))
    topics = [TopicDescription("t", "id", False, (WHOLE,))]
    found = assess(cluster, (), topics, {}, known)
    [part] = found.troubled
    assert part.offline
    assert part.broken == (1,)
    alone = replace(part, isr=(1,), elr=())
    assert alone.waits_for(found.live) == ((1,), False)
    assert found.brokers[0].leads == 0


def test_what_is_remembered_of_brokers_is_told() -> None:
    known = Known(
        brokers={2: Remembered("machine", "stopping", 17), 3: Remembered("other", "missing", 18)}
    )
    cluster = ClusterDescription("abc", 1, (NODES[1], NODES[2]))
    topics = [TopicDescription("t", "id", False, (WHOLE,))]
    found = assess(cluster, (), topics, {}, known)
    assert [(each.state, each.host, each.since_ms) for each in found.brokers] == [
        ("up", None, None),
        ("stopping", "machine", 17),
        ("missing", "other", 18),
    ]


def test_a_broker_that_holds_nothing_is_missing_until_the_cluster_forgets_it() -> None:
    known = Known(brokers={4: Remembered("machine", "missing", 17)})
    cluster = ClusterDescription("abc", 1, tuple(NODES.values()))
    found = assess(cluster, (), [TopicDescription("t", "id", False, (WHOLE,))], {}, known)
    assert [(each.id, each.state, each.since_ms) for each in found.brokers][3:] == [
        (4, "missing", 17)
    ]
    assert found.live == {1, 2, 3}


def test_a_broker_that_has_stopped_since_the_cluster_was_described_is_not_up() -> None:
    known = Known(brokers={3: Remembered("machine", "missing", 17)})
    cluster = ClusterDescription("abc", 1, tuple(NODES.values()))
    found = assess(cluster, (), [], {}, known)
    assert [each.state for each in found.brokers] == ["up", "up", "missing"]


def test_the_topics_of_people_come_before_those_of_brokers() -> None:
    lacking = PartitionDescription(0, 1, (1, 2, 3), (1, 2), (), ())
    topics = [
        TopicDescription("__consumer_offsets", "id", True, (lacking,)),
        TopicDescription("t", "id", False, (lacking,)),
    ]
    cluster = ClusterDescription("abc", 1, tuple(NODES.values()))
    found = assess(cluster, (), topics, {})
    assert [each.topic for each in found.troubled] == ["t", "__consumer_offsets"]
