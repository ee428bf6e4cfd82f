"""Static members: they go and come back, and get what they had."""

from __future__ import annotations

from ottla.coordinator.group.commands import (
    ConsumerAlive,
)
from ottla.errors import ErrorCode
from ottla.testing.groups import GroupWorld, count, refused, some

# -- static members ----------------------------------------------------------------------------


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance() -> None:
    w = GroupWorld()
    w.topics(a=4)
    one, two = w.consumer("one", "a", instance_id="i"), w.consumer("two", "a")
    one.join()
    two.join()
    w.settle(one, two)
    epoch, had = w.group.epoch, one.owned
    assert one.leave(-2) == ConsumerAlive("one", -2)
    assert two.beat().assignment is None
    again = w.consumer("again", "a", instance_id="i")
    assert again.join() == ConsumerAlive("again", epoch, 5000, had)
    assert w.group.epoch == epoch
    assert set(w.group.members) == {"again", "two"}
    w.settle(again, two)


def test_an_instance_id_in_use_is_not_given_away() -> None:
    w = GroupWorld()
    w.topics(a=1)
    w.consumer("one", "a", instance_id="i").join()
    with refused(ErrorCode.UNRELEASED_INSTANCE_ID):
        w.consumer("two", "a", instance_id="i").join()


def test_whoever_was_replaced_is_fenced() -> None:
    w = GroupWorld()
    w.topics(a=1)
    one = w.consumer("one", "a", instance_id="i")
    one.join()
    one.leave(-2)
    w.consumer("two", "a", instance_id="i").join()
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        one.beat()
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        one.leave()
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        w.consumer("one", "a", instance_id="j").send(1)


def test_a_static_member_that_is_away_cannot_go_on_as_before() -> None:
    w = GroupWorld()
    w.topics(a=1)
    one = w.consumer("one", "a", instance_id="i")
    one.join()
    one.leave(-2)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        one.beat()
    assert one.join().assignment == some("a", 0)


def test_a_static_member_that_leaves_twice_is_away() -> None:
    w = GroupWorld()
    w.topics(a=1)
    one = w.consumer("one", "a", instance_id="i")
    one.join()
    one.beat()
    one.leave(-2)
    assert one.leave(-2) == ConsumerAlive("one", -2)
    assert w.group.members["one"].epoch == -2
    assert w.consumer("again", "a", instance_id="i").join().assignment == some("a", 0)


def test_a_static_member_that_stays_away_loses_its_partitions() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a", instance_id="i"), w.consumer("two", "a")
    one.join()
    two.join()
    w.settle(one, two)
    one.leave(-2)
    w.runner.advance(30_000)
    two.beat()
    assert count(two.owned) == 1
    w.runner.advance(15_000)
    w.settle(two)
    assert two.owned == some("a", 0, 1)


def test_leaving_for_a_while_frees_what_was_to_be_given_up_anyway() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a", instance_id="i"), w.consumer("two", "a")
    one.join()
    two.join()
    one.beat()
    one.leave(-2)
    w.settle(two)
    assert count(two.owned) == 1
    w.runner.advance(60_000)
    assert "one" not in w.group.members


def test_the_assignor_that_a_static_member_wants_counts_when_it_is_back_under_its_id() -> None:
    w = GroupWorld()
    w.topics(a=1, b=1)
    other = w.consumer("other", "c")
    other.join()
    static = w.consumer("static", "a", instance_id="i", server_assignor="range")
    static.join()
    w.settle(other, static)
    static.leave(-2)
    other.beat(topics=("a", "b"))
    w.settle(other)
    static.topics = ("a", "b")
    static.join()
    w.settle(other, static)
    assert {count(static.owned), count(other.owned)} == {0, 2}, "as ranges are"


def test_a_static_member_may_leave_for_good() -> None:
    w = GroupWorld()
    w.topics(a=1)
    one = w.consumer("one", "a", instance_id="i")
    one.join()
    one.leave(-1)
    assert not w.group.members
    assert not w.group.static
    w.consumer("two", "a", instance_id="i").join()
