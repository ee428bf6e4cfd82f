from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.placement import place
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker


class Loaded:
    """Random that always show 0 and never shuffle."""

    def randrange(self, start: int, /) -> int:
        return 0

    def shuffle(self, x: list[Any], /) -> None:
        pass


def brokers(*racks: str | None) -> list[Broker]:
    return [Broker(number, 0, {}, rack) for number, rack in enumerate(racks)]


def test_without_racks_partitions_go_round() -> None:
    assert place(brokers(None, None, None), 3, 2, Loaded()) == [(0, 1), (1, 2), (2, 0)]


def test_racks_take_turns_and_so_do_the_brokers_in_them() -> None:
    three = brokers("A", "A", "A", "B", "B", "B", "C", "C", "C")
    assert place(three, 3, 3, Loaded()) == [(0, 3, 6), (4, 7, 1), (8, 2, 5)]


def test_the_dice_choose_where_to_begin() -> None:
    class One(Loaded):
        def randrange(self, start: int, /) -> int:
            return min(1, start - 1)

    assert place(brokers(None, None, None), 2, 1, One()) == [(1,), (2,)]
    assert place(brokers("A", "B"), 1, 1, One()) == [(1,)]


@pytest.mark.parametrize(
    ("count", "factor", "message"),
    [
        (1, 0, "Invalid replication factor 0: the replication factor must be positive."),
        (0, 1, "All brokers are currently fenced."),
        (
            2,
            3,
            "The target replication factor of 3 cannot be reached because only 2 broker(s) are "
            "registered.",
        ),
    ],
)
def test_too_few_brokers_are_told_in_kafkas_words(count: int, factor: int, message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        place(brokers(*[None] * count), 1, factor, Loaded())
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert caught.value.message == message


@given(
    racks=st.lists(st.sampled_from([None, "A", "B", "C"]), min_size=1, max_size=9),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_replicas_are_distinct_and_in_as_many_racks_as_there_can_be(
    racks: list[str | None], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    rng = Random(data.draw(st.integers(0, 1000)))
    placed = place(brokers(*racks), partitions, factor, rng)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, len(set(racks)))


@given(
    per_rack=st.integers(1, 4),
    racks=st.integers(1, 4),
    rounds=st.integers(1, 5),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_leaders_are_spread_evenly_over_equal_racks(
    per_rack: int, racks: int, rounds: int, seed: int, data: st.DataObject
) -> None:
    total = per_rack * racks
    factor = data.draw(st.integers(1, total))
    all_brokers = brokers(*(f"rack{number % racks}" for number in range(total)))
    placed = place(all_brokers, total * rounds, factor, Random(seed))
    leading_racks = Counter(replicas[0] % racks for replicas in placed)
    assert set(leading_racks.values()) == {per_rack * rounds}
    if factor == 1:
        leaders = Counter(replicas[0] for replicas in placed)
        assert set(leaders.values()) == {rounds}, "once in each round"


def test_large_topics_do_not_repeat_the_same_sets_of_brokers() -> None:
    nine = brokers(*[None] * 9)
    placed = place(nine, 90, 3, Random(1))
    assert len({frozenset(replicas) for replicas in placed}) > 30
    leaders = Counter(replicas[0] for replicas in placed)
    assert set(leaders.values()) == {10}
