"""Where replicas should be."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ottla.client.rebalancing import (
    Cluster,
    Move,
    TooFewBrokers,
    fewer_racks,
    plan_drain,
    plan_rebalance,
    plan_replication,
)
from ottla.model.ids import TopicPartition


def cluster(
    placement: dict[int, tuple[int, ...]], brokers: int, *racks: str, **sizes: int
) -> Cluster:
    return Cluster(
        {each: racks[each - 1] if racks else None for each in range(1, brokers + 1)},
        {TopicPartition("t", index): replicas for index, replicas in placement.items()},
        {TopicPartition("t", int(name[1:])): size for name, size in sizes.items()},
    )


def after(moves: list[Move]) -> dict[int, tuple[int, ...]]:
    return {move.partition.partition: move.after for move in moves}


def test_a_drained_broker_holds_nothing_and_others_keep_their_places() -> None:
    moves = plan_drain(cluster({0: (1, 2), 1: (2, 3), 2: (3, 1)}, 4, p0=10), 1)
    assert after(moves) == {0: (4, 2), 2: (3, 4)}
    assert [move.copied for move in moves] == [10, 0]


def test_partitions_that_a_drain_leaves_in_fewer_racks_are_told() -> None:
    given = cluster({0: (1, 3), 1: (2, 1), 2: (3, 2)}, 3, "a", "a", "b")
    moves = plan_drain(given, 3)
    assert [tp.partition for tp in fewer_racks(given, moves)] == [0, 2]
    another = cluster({0: (1, 3), 1: (2, 1), 2: (3, 2)}, 4, "a", "a", "b", "b")
    assert fewer_racks(another, plan_drain(another, 3)) == []
    assert fewer_racks(given, plan_replication(given, ["t"], 1)) == [], "as was asked for"
    without = cluster({0: (1, 3)}, 3)
    assert fewer_racks(without, plan_drain(without, 3)) == []


def test_a_drain_copies_evenly() -> None:
    moves = plan_drain(cluster(dict.fromkeys(range(4), (1, 2)), 4, p0=9, p1=1, p2=1, p3=9), 1)
    copied: Counter[int] = Counter()
    for move in moves:
        copied[move.after[0]] += move.copied
    assert copied == {3: 10, 4: 10}


def test_partitions_that_are_empty_are_drained_evenly_too() -> None:
    placement = {
        TopicPartition(topic, index): tuple((index + each) % 5 for each in range(3))
        for topic in ("empty", "full")
        for index in range(20)
    }
    sizes = {tp: 1000 + tp.partition for tp in placement if tp.topic == "full"}
    given = Cluster(dict.fromkeys(range(5)), placement, sizes)
    for drained in range(5):
        held: dict[str, Counter[int]] = {"empty": Counter(), "full": Counter()}
        plan = {move.partition: move.after for move in plan_drain(given, drained)}
        for tp, replicas in (placement | plan).items():
            held[tp.topic].update(replicas)
        for counts in held.values():
            assert set(counts) == {*range(5)} - {drained}
            assert max(counts.values()) - min(counts.values()) <= 2


def test_more_replicas_of_empty_partitions_are_spread_evenly_too() -> None:
    placement = {TopicPartition("t", index): (1,) for index in range(12)}
    sizes = {TopicPartition("t", index): 10 + index for index in range(4)}
    moves = plan_replication(Cluster(dict.fromkeys(range(1, 5)), placement, sizes), ["t"], 2)
    assert Counter(move.after[1] for move in moves) == {2: 4, 3: 4, 4: 4}


def test_a_drain_goes_to_another_rack_where_it_can() -> None:
    moves = plan_drain(cluster({0: (1, 2)}, 4, "a", "b", "b", "a"), 1)
    assert after(moves) == {0: (4, 2)}


def test_a_drain_that_would_leave_too_few_replicas_is_refused() -> None:
    with pytest.raises(TooFewBrokers, match="there are 2 brokers, and t-1 has 3 replicas"):
        plan_drain(cluster({0: (1, 2), 1: (1, 2, 3)}, 3), 1)
    with pytest.raises(
        TooFewBrokers, match="are 0 brokers, and t-0 has 1 replica: add a broker f"
    ) as refused:
        plan_drain(cluster({0: (1,)}, 1), 1)
    assert "fewer" not in str(refused.value)


def test_an_even_cluster_stays_as_it_is() -> None:
    assert plan_rebalance(cluster({0: (1, 2), 1: (2, 3), 2: (3, 1)}, 3)) == []


def test_a_new_broker_gets_its_share_small_ones_first() -> None:
    before = {0: (1, 2), 1: (2, 1), 2: (1, 2), 3: (2, 1)}
    moves = plan_rebalance(cluster(before, 3, p0=100, p1=1, p2=1, p3=100))
    assert {move.partition.partition for move in moves if move.copied} == {1, 2}
    assert sum(move.copied for move in moves) == 2


def test_one_more_broker_of_a_hundred_gets_its_share_and_nothing_else_moves() -> None:
    before = {each: (each % 99 + 1, (each + 1) % 99 + 1, (each + 2) % 99 + 1)
              for each in range(9_900)}  # fmt: skip
    moves = plan_rebalance(cluster(before, 100))
    copied = [move for move in moves if {*move.after} != {*move.before}]
    assert len(copied) == 3 * 9_900 // 100
    assert all({*move.after} - {*move.before} == {100} for move in copied)


def test_leaders_are_shared_out_without_copies() -> None:
    moves = plan_rebalance(cluster({0: (1, 2), 1: (1, 2), 2: (1, 2), 3: (1, 2)}, 2))
    assert [move.copied for move in moves] == [0, 0]
    assert {move.after for move in moves} == {(2, 1)}


def test_racks_stay_apart() -> None:
    moves = plan_rebalance(cluster({0: (1, 2), 1: (1, 2), 2: (1, 2)}, 3, "a", "b", "a"))
    for move in moves:
        assert not {1, 3} <= {*move.after}


@pytest.mark.parametrize("seed", range(30))
def test_any_cluster_becomes_even_and_nothing_is_put_twice_on_a_broker(seed: int) -> None:
    rng = random.Random(seed)
    brokers = rng.randrange(2, 7)
    factor = rng.randrange(1, brokers + 1)
    count = rng.randrange(1, 40)
    before = {
        each: tuple(rng.sample(range(1, 1 + rng.randrange(factor, brokers + 1)), factor))
        for each in range(count)
    }
    given = cluster(before, brokers)
    placed = dict(given.placement) | {move.partition: move.after for move in plan_rebalance(given)}
    held = Counter(dict.fromkeys(given.racks, 0))
    held.update(each for replicas in placed.values() for each in replicas)
    assert max(held.values()) - min(held.values()) <= 1
    assert all(len({*replicas}) == factor for replicas in placed.values())


def replicas_by_topic(placement: dict[TopicPartition, tuple[int, ...]]) -> dict[str, Counter[int]]:
    held: dict[str, Counter[int]] = {}
    for tp, replicas in placement.items():
        held.setdefault(tp.topic, Counter()).update(replicas)
    return held


def test_a_new_broker_gets_its_share_of_every_topic() -> None:
    """Else it would get the many small ones alone, of `__consumer_offsets`."""
    sizes = {"__consumer_offsets": (50, 0), "orders": (6, 10**9), "small": (3, 10)}
    placement = {
        TopicPartition(topic, index): tuple((index + step) % 3 + 1 for step in range(3))
        for topic, (count, _) in sizes.items()
        for index in range(count)
    }
    weights = {tp: sizes[tp.topic][1] for tp in placement}
    moves = plan_rebalance(Cluster(dict.fromkeys(range(1, 5)), placement, weights))
    moved = placement | {move.partition: move.after for move in moves}
    for topic, held in replicas_by_topic(moved).items():
        counts = [held[each] for each in range(1, 5)]
        assert max(counts) - min(counts) <= 1, (topic, held)
        leads = Counter(replicas[0] for tp, replicas in moved.items() if tp.topic == topic)
        counts = [leads[each] for each in range(1, 5)]
        assert max(counts) - min(counts) <= 1, (topic, leads)
    in_all = Counter(each for replicas in moved.values() for each in replicas)
    assert max(in_all.values()) - min(in_all.values()) <= 1
    again = plan_rebalance(Cluster(dict.fromkeys(range(1, 5)), moved, weights))
    assert again == []


@pytest.mark.parametrize("seed", range(20))
def test_any_topic_becomes_even(seed: int) -> None:
    chance = random.Random(seed)
    brokers = range(1, chance.randint(3, 7))
    placement = {
        TopicPartition(f"topic-{topic}", index): tuple(
            chance.sample(list(brokers), chance.randint(1, min(3, len(brokers))))
        )
        for topic in range(chance.randint(1, 6))
        for index in range(chance.randint(1, 20))
    }
    plan = Cluster(dict.fromkeys(brokers), placement, {})
    moved = placement | {move.partition: move.after for move in plan_rebalance(plan)}
    for held in replicas_by_topic(moved).values():
        counts = [held[each] for each in brokers]
        assert max(counts) - min(counts) <= 1
    assert plan_rebalance(plan._replace(placement=moved)) == []


def test_more_replicas_go_to_other_racks_and_are_copied_evenly() -> None:
    given = cluster({0: (1,), 1: (1,), 2: (1,)}, 5, "a", "a", "b", "b", "b", p0=5, p1=5, p2=5)
    moves = plan_replication(given, ["t"], 2)
    assert after(moves) == {0: (1, 3), 1: (1, 4), 2: (1, 5)}
    assert plan_replication(given, ["another"], 2) == []
    with pytest.raises(TooFewBrokers, match="6 replicas need as many brokers, and there are 5"):
        plan_replication(given, ["t"], 6)


def test_fewer_replicas_leave_the_leader_and_as_many_racks() -> None:
    moves = plan_replication(cluster({0: (2, 1, 3)}, 3, "a", "a", "b"), ["t"], 2)
    assert after(moves) == {0: (2, 3)}
    moves = plan_replication(cluster({0: (9, 1, 2)}, 2), ["t"], 2)
    assert after(moves) == {0: (1, 2)}, "the dead one is given up first"
    moves = plan_replication(cluster({0: (1, 2), 1: (1, 2), 2: (2, 3)}, 3), ["t"], 1)
    assert after(moves) == {0: (1,), 1: (1,), 2: (2,)}
