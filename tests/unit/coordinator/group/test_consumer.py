"""The consumer protocol, command by command; the group is validated after every step."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group.commands import (
    ConsumerAlive,
    DescribeConsumerGroup,
    DescribedConsumerGroup,
)
from ottla.coordinator.group.consumer_group import ConsumerGroup, MemberState
from ottla.coordinator.group.journal import CurrentAssignment, CurrentAssignmentEntry
from ottla.errors import ErrorCode
from ottla.testing.groups import CLIENT, GROUP, GroupWorld, count, refused, some, topic_id

# -- joining and reconciling -------------------------------------------------------------------


def test_the_first_member_gets_everything_at_epoch_one() -> None:
    w = GroupWorld()
    w.topics(a=3)
    reply = w.consumer("m", "a").join()
    assert reply == ConsumerAlive("m", 1, 5000, some("a", 0, 1, 2))
    assert w.group.state_name == "Stable"


def test_a_heartbeat_without_news_writes_nothing_and_tells_nothing() -> None:
    w = GroupWorld()
    w.topics(a=3)
    m = w.consumer("m", "a")
    m.join()
    m.beat()
    written = len(w.runner.log)
    assert m.send(1) == ConsumerAlive("m", 1, 5000, None)
    assert m.send(1, owned=m.owned) == ConsumerAlive("m", 1, 5000, None)
    assert len(w.runner.log) == written


def test_a_heartbeat_that_tells_everything_is_told_everything() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    full = m.send(1, rebalance_timeout_ms=60_000, topics=("a",), owned=m.owned)
    assert full.assignment == some("a", 0)


def test_a_partition_changes_hands_only_after_its_owner_has_let_go() -> None:
    w = GroupWorld()
    w.topics(a=4)
    one, two = w.consumer("one", "a"), w.consumer("two", "a")
    one.join()
    assert two.join() == ConsumerAlive("two", 2, 5000, {})
    assert w.group.state_name == "Reconciling"
    # The first is told to give up two, stays at its epoch, and keeps them until it says so.
    told = one.beat()
    assert told.epoch == 1
    assert told.assignment is not None
    assert count(told.assignment) == 2
    assert w.group.members["one"].state is MemberState.UNREVOKED
    assert two.beat().assignment is None
    assert w.group.members["two"].state is MemberState.UNRELEASED
    # It says so: both reach the new epoch.
    assert one.beat().epoch == 2
    got = two.beat().assignment
    assert got is not None
    assert count(got) == 2
    assert w.group.state_name == "Stable"


def test_silence_about_what_it_owns_does_not_free_partitions() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a"), w.consumer("two", "a")
    one.join()
    two.join()
    one.beat()
    assert one.beat(owned=None).epoch == 1
    assert two.beat().assignment is None


def test_a_member_gets_back_what_it_had_to_give_up_but_had_not_yet() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a"), w.consumer("two", "a")
    one.join()
    two.join()
    one.beat()
    two.leave()
    # Its target has everything again, which nobody else has taken meanwhile.
    one.beat()
    w.settle(one)
    assert one.owned == some("a", 0, 1)


def test_members_beyond_the_partitions_own_nothing() -> None:
    w = GroupWorld()
    w.topics(a=1)
    everybody = [w.consumer(name, "a") for name in "xyz"]
    for each in everybody:
        each.join()
    w.settle(*everybody)
    assert sorted(count(each.owned) for each in everybody) == [0, 0, 1]
    assert w.group.state_name == "Stable"


def test_a_member_that_keeps_what_it_has_follows_with_one_record() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two, three = (w.consumer(name, "a") for name in ("one", "two", "three"))
    one.join()
    two.join()
    w.settle(one, two)
    assert one.epoch == 2
    three.join()
    written = len(w.runner.log)
    assert one.send(2) == ConsumerAlive("one", 3, 5000, None)
    assert len(w.runner.log) == written + 1
    member = w.group.members["one"]
    assert (member.epoch, member.previous_epoch, member.assigned) == (3, 2, one.owned)
    # Suppose the answer is lost: it asks again as it was, and is told again.
    assert one.send(2, owned=one.owned).epoch == 3


def test_the_state_is_assigning_between_a_departure_and_the_next_heartbeat() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a"), w.consumer("two", "a")
    one.join()
    two.join()
    w.settle(one, two)
    two.leave()
    assert w.group.state_name == "Assigning"
    w.settle(one)
    assert one.owned == some("a", 0, 1)


def test_an_empty_group_keeps_its_epoch_and_goes_on_from_it() -> None:
    w = GroupWorld()
    w.topics(a=1)
    w.consumer("one", "a").join()
    assert w.consumer("one", "a").leave() == ConsumerAlive("one", -1)
    assert w.group.state_name == "Empty"
    assert w.consumer("two", "a").join().epoch == 3


def test_joining_again_with_the_same_id_gives_the_same_partitions() -> None:
    w = GroupWorld()
    w.topics(a=2)
    m = w.consumer("m", "a")
    m.join()
    assert m.join() == ConsumerAlive("m", 1, 5000, some("a", 0, 1))


# -- fencing -----------------------------------------------------------------------------------


def test_strangers_are_told_so() -> None:
    w = GroupWorld()
    w.topics(a=1)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        w.consumer("m", "a").send(1)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        w.consumer("m", "a").leave()
    w.consumer("m", "a").join()
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        w.consumer("x", "a").send(1)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        w.consumer("x", "a").leave()


def test_an_epoch_we_never_gave_is_fenced() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        m.send(2)


def test_one_step_behind_is_forgiven_to_a_member_that_owns_nothing_it_has_not_got() -> None:
    w = GroupWorld()
    w.topics(a=2, b=1)
    m = w.consumer("m", "a")
    m.join()
    m.beat(topics=("a", "b"))  # to epoch 2, and suppose the answer is lost
    assert m.epoch == 2
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        m.send(1)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        m.send(1, owned=some("c", 0))
    assert m.send(1, owned=some("a", 0, 1)).epoch == 2


def test_two_steps_behind_is_fenced() -> None:
    w = GroupWorld()
    w.topics(a=1, b=1)
    m = w.consumer("m", "a")
    m.join()
    m.beat(topics=("a", "b"))
    m.beat(topics=("b",))
    w.settle(m)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        m.send(1, owned={})


def test_the_group_takes_no_more_members_than_allowed() -> None:
    w = GroupWorld(group_consumer_max_size=1)
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        w.consumer("x", "a").join()
    assert m.join().epoch == 1


# -- time --------------------------------------------------------------------------------------


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a"), w.consumer("two", "a")
    one.join()
    two.join()
    w.settle(one, two)
    w.runner.advance(40_000)
    one.beat()
    w.runner.advance(4_999)
    assert set(w.group.members) == {"one", "two"}
    w.runner.advance(1)
    assert set(w.group.members) == {"one"}
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        two.beat()
    w.settle(one)
    assert one.owned == some("a", 0, 1)


def test_a_member_that_does_not_let_go_in_time_is_removed() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a", rebalance_timeout_ms=10_000), w.consumer("two", "a")
    one.join()
    two.join()
    one.beat()
    kept = some("a", 0, 1)
    w.runner.advance(9_999)
    one.send(1, owned=kept)
    assert "one" in w.group.members
    w.runner.advance(1)
    assert set(w.group.members) == {"two"}
    w.settle(two)
    assert two.owned == kept


def test_letting_go_stops_the_clock() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a", rebalance_timeout_ms=10_000), w.consumer("two", "a")
    one.join()
    two.join()
    w.settle(one, two)
    w.runner.advance(20_000)
    assert set(w.group.members) == {"one", "two"}


def test_letting_go_that_could_not_be_written_leaves_the_clock_running() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a", rebalance_timeout_ms=10_000), w.consumer("two", "a")
    one.join()
    two.join()
    one.beat()
    w.runner.failures = 1
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        one.beat()
    w.runner.advance(10_000)
    assert set(w.group.members) == {"two"}


def test_a_member_of_an_unknown_state_is_not_kept_by_its_heartbeats() -> None:
    w = GroupWorld()
    w.topics(a=1)
    one = w.consumer("one", "a")
    one.join()
    one.beat()
    held = CurrentAssignment(1, 1, 99, some("a", 0), {})
    w.group.apply(CurrentAssignmentEntry(GROUP, "one", held))
    w.runner.advance(30_000)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        one.beat()
    w.runner.advance(15_000)
    assert not w.group.members


def test_a_group_can_have_a_session_and_an_interval_of_its_own() -> None:
    own = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}
    w = GroupWorld({GROUP: own})
    w.topics(a=1)
    assert w.consumer("m", "a").join().heartbeat_interval_ms == 7000
    w.runner.advance(49_999)
    assert w.group.members
    w.runner.advance(1)
    assert not w.group.members


def test_a_change_of_the_brokers_settings_counts_from_the_next_heartbeat_on() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    w.config = BrokerConfig(group_consumer_heartbeat_interval_ms=9000)
    assert m.send(1).heartbeat_interval_ms == 9000


# -- what the rest of the coordinator asks -----------------------------------------------------


def test_offsets_are_committed_at_the_members_epoch_only() -> None:
    w = GroupWorld()
    w.topics(a=1)
    w.consumer("m", "a").join()
    check = w.group.check_offset_commit
    check("m", None, 1, api_version=9)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        check("m", None, 0, api_version=9)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        check("x", None, 1, api_version=9)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        check("", None, -1, api_version=9)
    with refused(ErrorCode.UNSUPPORTED_VERSION):
        check("m", None, 1, api_version=8)
    check("", None, -1, api_version=9, transactional=True)
    w.group.check_offset_fetch(None, -1)
    w.group.check_offset_fetch("m", 1)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        w.group.check_offset_fetch("m", 2)
    with refused(ErrorCode.NON_EMPTY_GROUP):
        w.group.check_delete()
    w.consumer("m", "a").leave()
    check("", None, -1, api_version=2)
    w.group.check_delete()


def test_a_description_has_what_members_own_and_shall_own() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a", rack_id="r"), w.consumer("two", "a")
    one.join()
    two.join()
    described: DescribedConsumerGroup = w.runner.run(DescribeConsumerGroup(GROUP))
    assert (described.state, described.epoch, described.target_epoch, described.assignor) == (
        "Reconciling",
        2,
        2,
        "uniform",
    )
    first, second = described.members
    assert (first.member_id, first.epoch, first.rack_id, first.classic) == ("one", 1, "r", False)
    assert first.client == CLIENT
    assert first.topics == ("a",)
    assert [each.partitions for each in first.assignment] == [(0, 1)]
    assert [each.topic for each in first.target] == ["a"]
    assert sorted(first.target[0].partitions + second.target[0].partitions) == [0, 1]
    assert second.assignment == ()
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        w.runner.run(DescribeConsumerGroup("other"))


# -- what survives -----------------------------------------------------------------------------


def test_nothing_has_happened_when_it_could_not_be_written() -> None:
    w = GroupWorld()
    w.topics(a=2)
    one, two = w.consumer("one", "a"), w.consumer("two", "a")
    one.join()
    w.runner.failures = 1
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        two.join()
    assert set(w.group.members) == {"one"}
    assert w.group.epoch == 1
    assert one.send(1) == ConsumerAlive("one", 1, 5000, None)
    two.join()
    w.settle(one, two)
    assert w.group.epoch == 2


def test_a_change_of_topics_that_could_not_be_written_is_not_forgotten() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    w.topics(a=2)
    w.runner.failures = 1
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        m.send(1)
    assert m.send(1).assignment == some("a", 0, 1)


@pytest.mark.parametrize("compact", [False, True])
def test_a_group_is_the_same_after_it_was_loaded_from_its_records(compact: bool) -> None:
    w = GroupWorld()
    w.topics(a=4, b=2)
    one = w.consumer("one", "a", instance_id="i", server_assignor="uniform")
    two = w.consumer("two", regex="[ab]")
    three = w.consumer("three", "b")
    for each in (one, two, three):
        each.join()
        w.settle(*(x for x in (one, two, three) if x.epoch))
    three.leave()
    one.leave(-2)
    one = w.consumer("again", "a", instance_id="i")
    one.join()
    two.beat()
    before = w.group
    w.runner.reload(compact=compact)
    after = w.group
    assert after is not before
    for name in ("epoch", "target_epoch", "members", "targets", "resolved", "static", "owners"):
        assert getattr(after, name) == getattr(before, name), name
    # Clocks run anew, and everybody goes on as before.
    w.runner.advance(40_000)
    w.settle(one, two)
    w.runner.advance(44_000)
    one.beat()
    w.runner.advance(2_000)
    assert set(w.group.members) == {"again"}


def test_a_deleted_group_leaves_nothing() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", regex="a")
    m.join()
    w.settle(m)
    m.leave()
    for key, value in w.group.tombstones():
        w.runner.shard.replay(key, value)
        w.runner.log.append((key, value))
    assert not w.runner.shard.groups
    assert not w.runner.reload(compact=True).groups


def test_a_member_whose_removal_could_not_be_written_is_removed_a_little_later() -> None:
    w = GroupWorld()
    w.topics(a=1)
    w.consumer("m", "a").join()
    w.runner.failures = 1
    w.runner.advance(45_000)
    assert set(w.group.members) == {"m"}
    w.runner.advance(500)
    assert not w.group.members


def test_of_two_records_that_claim_a_partition_the_later_counts() -> None:
    def holding(member: str, *partitions: int) -> CurrentAssignmentEntry:
        held = some("a", *partitions) if partitions else {}
        return CurrentAssignmentEntry(GROUP, member, CurrentAssignment(1, 0, 0, held, {}))

    group = ConsumerGroup(GROUP)
    for entry in (holding("one", 0), holding("two", 0), holding("one")):
        group.apply(entry)
    assert group.owner(topic_id("a"), 0) == "two"
    group.apply(CurrentAssignmentEntry(GROUP, "two", None))
    assert group.owner(topic_id("a"), 0) is None


def test_a_state_that_only_a_newer_coordinator_knows_makes_the_member_begin_anew() -> None:
    w = GroupWorld()
    w.topics(a=1)
    m = w.consumer("m", "a")
    m.join()
    odd = CurrentAssignment(1, 0, 99, some("a", 0), {})
    w.group.apply(CurrentAssignmentEntry(GROUP, "m", odd))
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        m.beat()
    m.join()
    assert m.owned == some("a", 0)
    assert w.group.members["m"].state is MemberState.STABLE
