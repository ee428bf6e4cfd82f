"""Assignors against every group Hypothesis can think of: one owner each, balance, few moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordinator.group.assignors import (
    ASSIGNORS,
    AssignableTopic,
    Partitions,
    Subscriber,
)
from ottla.model.ids import TopicId

TOPICS = [TopicId(bytes([number]) * 16) for number in range(1, 6)]
RACKS = ["x", "y", "z"]

Members = dict[str, Subscriber]
Topics = dict[TopicId, AssignableTopic]


@st.composite
def topics_of_a_cluster(draw: st.DrawFn) -> Topics:
    topics = {}
    for topic in draw(st.lists(st.sampled_from(TOPICS), unique=True)):
        count = draw(st.integers(1, 9))
        layout = st.tuples(*[st.frozensets(st.sampled_from(RACKS), min_size=1)] * count)
        topics[topic] = AssignableTopic(count, draw(st.one_of(st.just(()), layout)))
    return topics


@st.composite
def members_of_a_group(draw: st.DrawFn, topics: Topics, *, alike: bool) -> Members:
    some = st.frozensets(st.sampled_from(sorted(topics))) if topics else st.just(frozenset())
    shared = draw(some)
    members = {}
    for name in draw(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)):
        wanted = shared if alike else draw(some)
        rack = draw(st.one_of(st.none(), st.sampled_from(RACKS)))
        instance = draw(st.one_of(st.none(), st.just(f"instance-of-{name}")))
        members[name] = Subscriber(wanted, {}, instance, rack)
    return members


@st.composite
def groups_through_changes(draw: st.DrawFn, *, alike: bool) -> list[tuple[Members, Topics]]:
    """One group at several moments: members and topics come and go; nobody owns anything yet."""
    moments = []
    for _ in range(draw(st.integers(1, 4))):
        topics = draw(topics_of_a_cluster())
        moments.append((draw(members_of_a_group(topics, alike=alike)), topics))
    return moments


def loads(assignment: Mapping[str, Partitions]) -> dict[str, int]:
    return {name: sum(map(len, share.values())) for name, share in assignment.items()}


def check_owners(members: Members, topics: Topics, assignment: Mapping[str, Partitions]) -> None:
    """One owner for each partition of each subscribed topic, who subscribes to it."""
    assert set(assignment) == set(members)
    owners: Counter[tuple[TopicId, int]] = Counter()
    for name, share in assignment.items():
        assert set(share) <= members[name].topics
        assert all(share.values()), "a topic without partitions"
        owners.update((topic, each) for topic, partitions in share.items() for each in partitions)
    wanted = {topic for each in members.values() for topic in each.topics}
    assert owners == Counter(
        (topic, each) for topic in wanted for each in range(topics[topic].partitions)
    )


def owning(members: Members, assignment: Mapping[str, Partitions]) -> Members:
    return {
        name: Subscriber(each.topics, assignment.get(name, {}), each.instance_id, each.rack)
        for name, each in members.items()
    }


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("alike", [True, False])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_partition_has_one_owner_through_all_changes(
    name: str, alike: bool, data: st.DataObject
) -> None:
    assignment: Mapping[str, Partitions] = {}
    for members, topics in data.draw(groups_through_changes(alike=alike)):
        now = owning(members, assignment)
        assignment = ASSIGNORS[name].assign(now, topics)
        check_owners(now, topics, assignment)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_an_assignment_stays_when_nothing_has_changed(name: str, data: st.DataObject) -> None:
    topics = data.draw(topics_of_a_cluster())
    members = data.draw(members_of_a_group(topics, alike=data.draw(st.booleans())))
    first = ASSIGNORS[name].assign(members, topics)
    second = ASSIGNORS[name].assign(owning(members, first), topics)
    assert all(second[member] is first[member] for member in members)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_uniform_differs_by_one_at_most_and_moves_no_more_than_it_must(
    data: st.DataObject,
) -> None:
    before: Mapping[str, Partitions] = {}
    for members, topics in data.draw(groups_through_changes(alike=True)):
        now = owning(members, before)
        after = ASSIGNORS["uniform"].assign(now, topics)
        assert max(loads(after).values()) - min(loads(after).values()) <= 1
        least, extra = divmod(sum(loads(after).values()), len(members))
        for name, each in now.items():
            may_stay = sum(
                len({p for p in partitions if p < topics[topic].partitions})
                for topic, partitions in each.owned.items()
                if topic in each.topics
            )
            stayed = sum(
                len(partitions & after[name].get(topic, frozenset()))
                for topic, partitions in each.owned.items()
            )
            assert stayed >= min(may_stay, least)
        kept_extra = sum(
            1
            for name, each in now.items()
            if sum(len(each.owned[t] & after[name].get(t, frozenset())) for t in each.owned) > least
        )
        had_extra = sum(
            1
            for each in now.values()
            if sum(
                len({p for p in each.owned[t] if p < topics[t].partitions})
                for t in each.owned
                if t in each.topics
            )
            > least
        )
        assert kept_extra == min(had_extra, extra)
        before = after


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_uniform_leaves_no_move_that_would_even_out_two_members(data: st.DataObject) -> None:
    before: Mapping[str, Partitions] = {}
    for members, topics in data.draw(groups_through_changes(alike=False)):
        now = owning(members, before)
        before = after = ASSIGNORS["uniform"].assign(now, topics)
        load = loads(after)
        for giver, share in after.items():
            for topic in share:
                for taker, each in now.items():
                    if topic in each.topics:
                        assert load[giver] - load[taker] < 2


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_range_gives_joined_topics_alike(data: st.DataObject) -> None:
    topics = data.draw(topics_of_a_cluster())
    members = data.draw(members_of_a_group(topics, alike=False))
    assignment = ASSIGNORS["range"].assign(members, topics)
    readers = {t: {m for m, each in members.items() if t in each.topics} for t in topics}
    for one in topics:
        for other in topics:
            if (
                readers[one] == readers[other]
                and topics[one].partitions == topics[other].partitions
            ):
                assert all(each.get(one) == each.get(other) for each in assignment.values())
