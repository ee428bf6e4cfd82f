"""What members subscribe to: names, patterns, topics that come, grow and go."""

from __future__ import annotations

import weakref

import pytest

from ottla.coordinator.group.commands import (
    ConsumerAlive,
    DescribeConsumerGroup,
)
from ottla.coordinator.group.subscribable_topics import ROOM, SubscribableTopics
from ottla.errors import ErrorCode, KafkaError
from ottla.model.image import ClusterImage
from ottla.testing.groups import GROUP, GroupWorld, count, some, topic_id

# -- subscriptions -----------------------------------------------------------------------------


def test_what_a_member_no_longer_wants_is_taken_from_it_at_once() -> None:
    w = GroupWorld()
    w.topics(a=1, b=1)
    m = w.consumer("m", "a", "b")
    m.join()
    reply = m.beat(topics=("a",))
    assert reply.assignment == some("a", 0)
    w.settle(m)
    assert m.epoch == w.group.epoch == 2
    assert not w.group.is_subscribed("b")


def test_subscriptions_that_nobody_has_any_more_are_not_remembered_for_ever() -> None:
    topics = SubscribableTopics(ClusterImage())
    seen: list[weakref.ref[frozenset[str]]] = []
    for number in range(20):
        names = frozenset(f"{number}-{name}" + "x" * (ROOM // 5000) for name in range(1000))
        topics.ids(names)
        topics.hash(names)
        seen.append(weakref.ref(names))
    del names
    assert sum(each() is not None for each in seen) < 6


def test_members_may_subscribe_to_different_topics() -> None:
    w = GroupWorld()
    w.topics(a=2, b=2)
    one, two = w.consumer("one", "a"), w.consumer("two", "b")
    one.join()
    two.join()
    w.settle(one, two)
    assert (one.owned, two.owned) == (some("a", 0, 1), some("b", 0, 1))


def test_a_topic_that_does_not_exist_yet_is_assigned_when_it_does() -> None:
    w = GroupWorld()
    m = w.consumer("m", "a")
    assert m.join().assignment == {}
    w.topics(a=2)
    reply = m.send(1)
    assert (reply.epoch, reply.assignment) == (2, some("a", 0, 1))


def test_new_partitions_are_assigned() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    w.topics(a=3)
    assert m.send(1) == ConsumerAlive("m", 2, 5000, some("a", 0, 1, 2))


def test_a_deleted_topic_is_taken_away() -> None:
    w = GroupWorld()
    w.topics(a=1, b=1)
    m = w.consumer("m", "a", "b")
    m.join()
    w.topics(a=1)
    assert m.beat().assignment == some("a", 0)
    w.settle(m)
    assert m.epoch == 2


def test_changes_of_other_topics_are_nobodys_business() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    written = len(w.runner.log)
    w.topics(a=1, x=5)
    assert m.send(1) == ConsumerAlive("m", 1, 5000, None)
    assert len(w.runner.log) == written


def test_replicas_in_another_rack_call_for_a_new_assignment() -> None:
    w = GroupWorld()
    w.topics(racks={0: "x", 1: "y"}, a=2)
    near, far = w.consumer("n", "a", rack_id="y"), w.consumer("f", "a", rack_id="x")
    near.join()
    far.join()
    w.settle(near, far)
    assert (far.owned, near.owned) == (some("a", 0), some("a", 1))
    epoch = w.group.epoch
    w.topics(racks={0: "y", 1: "x"}, a=2)
    near.beat()
    assert w.group.epoch == epoch + 1


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    w = GroupWorld()
    w.topics(a=2, b=2)
    one = w.consumer("one", "a", "b")
    two = w.consumer("two", "a", "b", server_assignor="range")
    one.join()
    two.join()
    w.settle(one, two)
    assert one.owned == {topic_id("a"): frozenset({0}), topic_id("b"): frozenset({0})}
    described = w.runner.run(DescribeConsumerGroup(GROUP))
    assert described.assignor == "range"


def test_without_a_wish_the_first_configured_assignor_is_used() -> None:
    w = GroupWorld(group_consumer_assignors=("range", "uniform"))
    w.topics(a=2, b=2)
    one, two = w.consumer("one", "a", "b"), w.consumer("two", "a", "b")
    one.join()
    two.join()
    w.settle(one, two)
    assert one.owned == {topic_id("a"): frozenset({0}), topic_id("b"): frozenset({0})}


# -- patterns ----------------------------------------------------------------------------------


def test_a_pattern_is_matched_off_the_loop_and_assigned_with_the_next_heartbeat() -> None:
    w = GroupWorld()
    w.topics(a1=1, a2=1, b=1)
    m = w.consumer("m", regex="a.*")
    assert m.join() == ConsumerAlive("m", 1, 5000, {})
    assert w.runner.do_work() == 1
    reply = m.send(1)
    assert (reply.epoch, reply.assignment) == (2, {**some("a1", 0), **some("a2", 0)})
    assert w.group.is_subscribed("a1")
    assert not w.group.is_subscribed("b")
    written = len(w.runner.log)
    m.beat()
    assert len(w.runner.log) == written
    assert not w.runner.work


def test_a_pattern_that_is_none_is_refused() -> None:
    w = GroupWorld()
    m = w.consumer("m", regex="(a")
    with pytest.raises(KafkaError, match=r"`\(a` is not a valid regular expression") as refusal:
        m.join()
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not w.runner.log


def test_names_and_pattern_add_up() -> None:
    w = GroupWorld()
    w.topics(a1=1, b=1)
    m = w.consumer("m", "b", regex="a.*")
    assert m.join().assignment == some("b", 0)
    w.settle(m)
    assert m.owned == {**some("a1", 0), **some("b", 0)}


def test_a_second_member_with_the_same_pattern_needs_no_matching() -> None:
    w = GroupWorld()
    w.topics(a1=2)
    one = w.consumer("one", regex="a.*")
    two = w.consumer("two", regex="a.*")
    one.join()
    w.settle(one)
    two.join()
    assert not w.runner.work
    w.settle(one, two)
    assert (count(one.owned), count(two.owned)) == (1, 1)


def test_a_new_topic_is_matched_though_not_more_often_than_every_ten_seconds() -> None:
    w = GroupWorld()
    w.topics(a1=1)
    m = w.consumer("m", regex="a.*")
    m.join()
    w.settle(m)
    w.topics(a1=1, a2=1)
    m.beat()
    assert not w.runner.work
    w.runner.advance(10_001)
    m.beat()
    w.settle(m)
    assert m.owned == {**some("a1", 0), **some("a2", 0)}


def test_patterns_are_matched_again_now_and_then() -> None:
    w = GroupWorld(group_consumer_regex_refresh_interval_ms=20_000)
    w.topics(a1=1)
    m = w.consumer("m", regex="a.*")
    m.join()
    w.settle(m)
    epoch = w.group.epoch
    w.runner.advance(20_001)
    m.beat()
    assert w.runner.do_work() == 1
    assert w.group.epoch == epoch


def test_a_pattern_that_nobody_has_any_more_is_forgotten() -> None:
    w = GroupWorld()
    w.topics(a1=1, b1=1)
    m = w.consumer("m", regex="a.*")
    m.join()
    w.settle(m)
    m.beat(regex="b.*")
    w.settle(m)
    assert m.owned == some("b1", 0)
    assert set(w.group.resolved) == {"b.*"}
    m.beat(regex="", topics=("a1",))
    w.settle(m)
    assert m.owned == some("a1", 0)
    assert not w.group.resolved
    m.beat(regex="b.*", topics=())
    w.settle(m)
    m.leave()
    assert not w.group.resolved


def test_a_match_that_comes_too_late_is_thrown_away() -> None:
    w = GroupWorld()
    w.topics(a1=1)
    m = w.consumer("m", regex="a.*")
    m.join()
    m.beat(regex="", topics=("a1",))
    assert w.runner.do_work() == 1
    assert not w.group.resolved
    m.leave()
