"""What the two server-side assignors promise, case by case; the property tests have the rest."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ottla.coordinator.group.assignors import (
    ASSIGNORS,
    AssignableTopic,
    Partitions,
    Subscriber,
)
from ottla.model.ids import TopicId

ONE, TWO, THREE = (TopicId(bytes([number]) * 16) for number in (1, 2, 3))
UNIFORM = ASSIGNORS["uniform"]
RANGE = ASSIGNORS["range"]

Given = Mapping[str, Subscriber]


def subscriber(*topics: TopicId, owned: Partitions | None = None, **more: str) -> Subscriber:
    return Subscriber(frozenset(topics), owned or {}, **more)


def counts(assignment: Mapping[str, Partitions]) -> dict[str, int]:
    return {member: sum(map(len, share.values())) for member, share in assignment.items()}


def again(members: Given, assignment: Mapping[str, Partitions]) -> dict[str, Subscriber]:
    return {
        name: Subscriber(each.topics, assignment.get(name, {}), each.instance_id, each.rack)
        for name, each in members.items()
    }


def moved(before: Mapping[str, Partitions], after: Mapping[str, Partitions]) -> int:
    """How many partitions some member had and has no more."""
    return sum(
        len(partitions - after.get(member, {}).get(topic, frozenset()))
        for member, share in before.items()
        for topic, partitions in share.items()
    )


# -- uniform ---------------------------------------------------------------------------------


def test_uniform_gives_everybody_the_same_number_or_one_more() -> None:
    topics = {ONE: AssignableTopic(5), TWO: AssignableTopic(3)}
    members = {name: subscriber(ONE, TWO) for name in "abc"}
    assert sorted(counts(UNIFORM.assign(members, topics)).values()) == [2, 3, 3]


def test_uniform_leaves_members_without_partitions_when_there_are_too_few() -> None:
    members = {name: subscriber(ONE) for name in "abc"}
    assignment = UNIFORM.assign(members, {ONE: AssignableTopic(2)})
    assert sorted(counts(assignment).values()) == [0, 1, 1]
    assert set(assignment) == {"a", "b", "c"}


def test_uniform_takes_from_a_full_group_only_what_a_newcomer_must_have() -> None:
    topics = {ONE: AssignableTopic(12)}
    members = {name: subscriber(ONE) for name in "abc"}
    before = UNIFORM.assign(members, topics)
    after = UNIFORM.assign(again(members, before) | {"d": subscriber(ONE)}, topics)
    assert counts(after) == {"a": 3, "b": 3, "c": 3, "d": 3}
    assert moved(before, after) == 3


def test_uniform_moves_nothing_of_those_who_stay_when_one_leaves() -> None:
    topics = {ONE: AssignableTopic(7)}
    members = {name: subscriber(ONE) for name in "abc"}
    before = UNIFORM.assign(members, topics)
    rest = {name: each for name, each in again(members, before).items() if name != "b"}
    after = UNIFORM.assign(rest, topics)
    assert sorted(counts(after).values()) == [3, 4]
    assert moved({name: before[name] for name in rest}, after) == 0


def test_uniform_lets_the_member_with_the_extra_partition_keep_it_whatever_its_name() -> None:
    owned = {ONE: frozenset({0, 1, 2})}
    members = {
        "a": subscriber(ONE, owned={ONE: frozenset({3, 4})}),
        "z": subscriber(ONE, owned=owned),
    }
    assert UNIFORM.assign(members, {ONE: AssignableTopic(5)})["z"] is owned


def test_uniform_returns_the_very_objects_of_those_whose_share_is_as_before() -> None:
    topics = {ONE: AssignableTopic(6)}
    members = {name: subscriber(ONE) for name in "ab"}
    before = UNIFORM.assign(members, topics)
    after = UNIFORM.assign(again(members, before), topics)
    assert all(after[name] is before[name] for name in members)


def test_uniform_hands_out_the_new_partitions_of_a_grown_topic() -> None:
    members = {name: subscriber(ONE) for name in "ab"}
    before = UNIFORM.assign(members, {ONE: AssignableTopic(4)})
    after = UNIFORM.assign(again(members, before), {ONE: AssignableTopic(8)})
    assert counts(after) == {"a": 4, "b": 4}
    assert moved(before, after) == 0


def test_uniform_forgets_topics_that_are_gone() -> None:
    owned = {ONE: frozenset({0}), TWO: frozenset({0})}
    assert UNIFORM.assign({"a": subscriber(ONE, owned=owned)}, {ONE: AssignableTopic(1)}) == {
        "a": {ONE: frozenset({0})}
    }


def test_uniform_gives_a_partition_that_two_members_had_to_one_of_them() -> None:
    both = {ONE: frozenset({0, 1})}
    members = {name: subscriber(ONE, owned=both) for name in "ab"}
    assert counts(UNIFORM.assign(members, {ONE: AssignableTopic(2)})) == {"a": 1, "b": 1}


def test_uniform_balances_members_with_different_subscriptions() -> None:
    topics = {ONE: AssignableTopic(4), TWO: AssignableTopic(4)}
    members = {"a": subscriber(ONE), "b": subscriber(ONE, TWO), "c": subscriber(TWO)}
    assignment = UNIFORM.assign(members, topics)
    assert sorted(counts(assignment).values()) == [2, 3, 3]
    assert set(assignment["a"]) <= {ONE}
    assert set(assignment["c"]) <= {TWO}


def test_uniform_relieves_a_loaded_member_when_others_subscribe_to_its_topic() -> None:
    topics = {ONE: AssignableTopic(6), TWO: AssignableTopic(2)}
    everything = {ONE: frozenset(range(6)), TWO: frozenset(range(2))}
    members = {
        "a": subscriber(ONE, TWO, owned=everything),
        "b": subscriber(ONE),
        "c": subscriber(TWO),
    }
    assignment = UNIFORM.assign(members, topics)
    assert counts(assignment) == {"a": 3, "b": 3, "c": 2}
    # Nobody but b gained anything of the first topic, so a gave up no more than it had to.
    assert moved({"a": everything}, assignment) == 5


def test_uniform_gives_nothing_to_members_without_topics() -> None:
    members = {"a": subscriber(), "b": subscriber(ONE)}
    assert UNIFORM.assign(members, {ONE: AssignableTopic(2)}) == {
        "a": {},
        "b": {ONE: frozenset({0, 1})},
    }
    assert UNIFORM.assign({"a": subscriber()}, {}) == {"a": {}}
    assert UNIFORM.assign({}, {}) == {}


def racks(*names: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(name) for name in names)


def test_uniform_prefers_the_members_rack() -> None:
    topics = {ONE: AssignableTopic(4, racks("y", "x", "y", "x"))}
    members = {"a": subscriber(ONE, rack="x"), "b": subscriber(ONE, rack="y")}
    assert UNIFORM.assign(members, topics) == {
        "a": {ONE: frozenset({1, 3})},
        "b": {ONE: frozenset({0, 2})},
    }


def test_uniform_serves_the_partition_with_one_rack_before_one_with_a_choice() -> None:
    topics = {ONE: AssignableTopic(2, racks("xy", "x"))}
    members = {"a": subscriber(ONE, rack="x"), "b": subscriber(ONE, rack="y")}
    assert UNIFORM.assign(members, topics) == {
        "a": {ONE: frozenset({1})},
        "b": {ONE: frozenset({0})},
    }


def test_uniform_gives_up_far_partitions_first() -> None:
    topics = {ONE: AssignableTopic(4, racks("y", "x", "y", "x"))}
    members = {
        "a": subscriber(ONE, rack="x", owned={ONE: frozenset(range(4))}),
        "b": subscriber(ONE),
    }
    assert UNIFORM.assign(members, topics)["a"] == {ONE: frozenset({1, 3})}


def test_uniform_puts_balance_above_racks() -> None:
    topics = {ONE: AssignableTopic(4, racks("x", "x", "x", "y"))}
    members = {"a": subscriber(ONE, rack="x"), "b": subscriber(ONE, rack="y")}
    assignment = UNIFORM.assign(members, topics)
    assert counts(assignment) == {"a": 2, "b": 2}
    assert 3 in assignment["b"][ONE]


def test_uniform_does_not_move_a_partition_for_its_rack_alone() -> None:
    topics = {ONE: AssignableTopic(2, racks("x", "y"))}
    members = {
        "a": subscriber(ONE, rack="x", owned={ONE: frozenset({1})}),
        "b": subscriber(ONE, rack="y", owned={ONE: frozenset({0})}),
    }
    assert (
        moved({name: each.owned for name, each in members.items()}, UNIFORM.assign(members, topics))
        == 0
    )


def test_uniform_prefers_racks_where_subscriptions_differ_too() -> None:
    topics = {ONE: AssignableTopic(4, racks("y", "x", "y", "x")), TWO: AssignableTopic(1)}
    members = {
        "a": subscriber(ONE, rack="x"),
        "b": subscriber(ONE, rack="y"),
        "c": subscriber(TWO),
    }
    assert UNIFORM.assign(members, topics) == {
        "a": {ONE: frozenset({1, 3})},
        "b": {ONE: frozenset({0, 2})},
        "c": {TWO: frozenset({0})},
    }


# -- range -----------------------------------------------------------------------------------


def test_range_gives_consecutive_partitions_in_the_order_of_member_ids() -> None:
    members = {name: subscriber(ONE) for name in ("c", "a", "b")}
    assert RANGE.assign(members, {ONE: AssignableTopic(7)}) == {
        "a": {ONE: frozenset({0, 1, 2})},
        "b": {ONE: frozenset({3, 4})},
        "c": {ONE: frozenset({5, 6})},
    }


def test_range_gives_the_same_partitions_of_topics_that_may_be_joined() -> None:
    topics = {ONE: AssignableTopic(5), TWO: AssignableTopic(5), THREE: AssignableTopic(2)}
    members = {name: subscriber(ONE, TWO, THREE) for name in "ab"}
    for share in RANGE.assign(members, topics).values():
        assert share[ONE] == share[TWO]


def test_range_puts_static_members_first_by_instance_id() -> None:
    members = {
        "a": subscriber(ONE),
        "z1": subscriber(ONE, instance_id="second"),
        "z2": subscriber(ONE, instance_id="first"),
    }
    assert RANGE.assign(members, {ONE: AssignableTopic(3)}) == {
        "z2": {ONE: frozenset({0})},
        "z1": {ONE: frozenset({1})},
        "a": {ONE: frozenset({2})},
    }


def test_range_leaves_the_last_members_without_partitions() -> None:
    members = {name: subscriber(ONE) for name in "abc"}
    assert counts(RANGE.assign(members, {ONE: AssignableTopic(2)})) == {"a": 1, "b": 1, "c": 0}


def test_range_counts_only_the_subscribers_of_a_topic() -> None:
    topics = {ONE: AssignableTopic(2), TWO: AssignableTopic(2)}
    members = {"a": subscriber(ONE, TWO), "b": subscriber(TWO), "c": subscriber()}
    assert RANGE.assign(members, topics) == {
        "a": {ONE: frozenset({0, 1}), TWO: frozenset({0})},
        "b": {TWO: frozenset({1})},
        "c": {},
    }


def test_range_prefers_racks_and_still_joins() -> None:
    layout = racks("y", "x", "y", "x")
    topics = {ONE: AssignableTopic(4, layout), TWO: AssignableTopic(4, layout)}
    members = {"a": subscriber(ONE, TWO, rack="x"), "b": subscriber(ONE, TWO, rack="y")}
    assert RANGE.assign(members, topics) == {
        "a": {ONE: frozenset({1, 3}), TWO: frozenset({1, 3})},
        "b": {ONE: frozenset({0, 2}), TWO: frozenset({0, 2})},
    }


def test_range_gives_up_racks_where_joined_topics_lie_differently() -> None:
    topics = {
        ONE: AssignableTopic(4, racks("y", "x", "y", "x")),
        TWO: AssignableTopic(4, racks("x", "x", "y", "y")),
    }
    members = {"a": subscriber(ONE, TWO, rack="x"), "b": subscriber(ONE, TWO, rack="y")}
    for share in RANGE.assign(members, topics).values():
        assert share[ONE] == share[TWO]


@pytest.mark.parametrize("layout", [racks("xy", "xy"), racks("z", "z"), ()])
def test_range_stays_a_range_where_racks_make_no_difference(
    layout: tuple[frozenset[str], ...],
) -> None:
    members = {"b": subscriber(ONE, rack="x"), "a": subscriber(ONE, rack="y")}
    assert RANGE.assign(members, {ONE: AssignableTopic(2, layout)}) == {
        "a": {ONE: frozenset({0})},
        "b": {ONE: frozenset({1})},
    }
