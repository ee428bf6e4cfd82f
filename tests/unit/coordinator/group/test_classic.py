"""The classic protocol's machine: who waits for whom, and what ends the waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.coordinator.group.classic import NEW_MEMBER_TIMEOUT_MS
from ottla.coordinator.group.classic_group import ClassicGroup, State
from ottla.coordinator.group.commands import CommitOffsets, DescribeGroup, Leave, Leaver
from ottla.coordinator.group.commands import PartitionCommit as Commit
from ottla.coordinator.group.shard import EXPIRE
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.shards import START_MS

DELAY_MS = 3_000
Client = Callable[..., Any]
Stable = Callable[..., list[Any]]


def group(runner: Any, name: str = "g") -> ClassicGroup:
    found = runner.shard.groups[name]
    assert isinstance(found, ClassicGroup)
    return found


def refused(call: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


class TestTheInitialDelay:
    def test_the_first_member_waits_for_others(self, runner: Any, client: Client) -> None:
        one = client()
        assert one.join() is None
        runner.advance(DELAY_MS - 1)
        assert not runner.is_answered(one.waiting)
        runner.advance(1)
        assert one.joined().generation == 1

    def test_it_is_prolonged_by_newcomers(self, runner: Any, client: Client) -> None:
        one, two = client("one"), client("two")
        one.join()
        runner.advance(DELAY_MS - 1)
        two.join()
        runner.advance(1)
        assert not runner.is_answered(one.waiting)
        runner.advance(DELAY_MS)
        assert len(one.joined().members) == 2
        assert two.joined().leader == one.id

    def test_but_not_beyond_the_rebalance_timeout(self, runner: Any, client: Client) -> None:
        members = [client(f"c{n}", rebalance_timeout_ms=7_000) for n in range(20)]
        for member in members:
            member.join()
            runner.advance(500)
        assert runner.ms == 10_000
        assert runner.is_answered(members[0].waiting)

    def test_it_is_read_when_it_is_needed(
        self, runner: Any, client: Client, settings: dict[str, Any]
    ) -> None:
        settings["group_initial_rebalance_delay_ms"] = 0
        one = client()
        assert one.join() is None
        runner.advance(0)
        assert one.joined().error is ErrorCode.NONE

    def test_a_group_that_is_left_during_it_is_empty(self, runner: Any, client: Client) -> None:
        one = client()
        one.join()
        (code,) = runner.run(Leave("g", (Leaver(one.id),)))
        assert code is ErrorCode.NONE
        assert one.joined().error is ErrorCode.UNKNOWN_MEMBER_ID
        runner.advance(DELAY_MS)
        assert (group(runner).state, group(runner).generation) == (State.EMPTY, 1)


class TestGenerations:
    def test_one_begins_when_everybody_has_joined(self, runner: Any, stable: Stable) -> None:
        leader, follower = stable(2)
        assert leader.join() is None
        assert refused(follower.heartbeat) is ErrorCode.REBALANCE_IN_PROGRESS
        assert follower.join().generation == 2
        assert len(leader.joined().members) == 2

    def test_it_waits_for_ids_that_were_given_out(
        self, runner: Any, stable: Stable, client: Client
    ) -> None:
        (leader,) = stable()
        new = client("new")
        reply = new._join({})
        new.id = reply.member_id
        assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
        assert leader.join() is None
        assert new.join().generation == 2
        assert leader.joined().generation == 2

    def test_an_unused_id_is_waited_for_no_longer_than_a_session(
        self, runner: Any, stable: Stable, client: Client
    ) -> None:
        (leader,) = stable(session_timeout_ms=30_000)
        client("new", session_timeout_ms=6_000)._join({})
        assert leader.join() is None
        runner.advance(6_000)
        assert leader.joined().generation == 2

    def test_whoever_has_not_joined_in_time_is_removed(self, runner: Any, stable: Stable) -> None:
        leader, late = stable(2, rebalance_timeout_ms=20_000)
        leader.join()
        for _ in range(4):
            runner.advance(5_000)
            if not runner.is_answered(leader.waiting):
                assert refused(late.heartbeat) is ErrorCode.REBALANCE_IN_PROGRESS
        assert [each.member_id for each in leader.joined().members] == [leader.id]
        assert refused(late.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_new_leader_is_chosen_from_those_who_joined(
        self, runner: Any, stable: Stable
    ) -> None:
        leader, follower = stable(2, rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
        follower.join(protocols=(("range", b"other"),))
        runner.advance(20_000)
        told = follower.joined()
        assert told.leader == follower.id
        assert refused(leader.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_static_members_are_waited_for_as_long_as_their_session(
        self, runner: Any, stable: Stable, client: Client
    ) -> None:
        stable(instance_id="i1", rebalance_timeout_ms=10_000, session_timeout_ms=45_000)
        two = client(
            "two", instance_id="i2", rebalance_timeout_ms=10_000, session_timeout_ms=45_000
        )
        assert two.join() is None
        runner.advance(10_000)
        told = two.joined()
        assert {each.instance_id for each in told.members} == {"i1", "i2"}
        assert told.leader == two.id
        runner.advance(36_000)
        assert "i1" not in group(runner).static_members

    def test_a_rebalance_that_nobody_joins_goes_on_until_sessions_end(
        self, runner: Any, stable: Stable, settings: dict[str, Any]
    ) -> None:
        one, two = stable(2, instance_id=None, session_timeout_ms=30_000)
        two.leave()
        assert group(runner).state is State.PREPARING
        runner.advance(30_000)
        assert group(runner).state is State.EMPTY
        assert refused(one.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_whoever_does_not_sync_is_removed(self, runner: Any, stable: Stable) -> None:
        leader, late = stable(2, rebalance_timeout_ms=20_000, session_timeout_ms=100_000)
        leader.join()
        late.join()
        leader.joined()
        assert leader.sync({}).assignment == b""
        runner.advance(20_000)
        assert refused(leader.heartbeat) is ErrorCode.REBALANCE_IN_PROGRESS
        assert refused(late.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID


class TestSessions:
    def test_heartbeats_keep_a_member_and_write_nothing(self, runner: Any, stable: Stable) -> None:
        (one,) = stable()
        before = len(runner.log)
        for _ in range(20):
            runner.advance(9_999)
            one.heartbeat()
        assert len(runner.log) == before

    def test_silence_removes_it(self, runner: Any, stable: Stable) -> None:
        (one,) = stable()
        runner.advance(9_999)
        assert group(runner).members
        runner.advance(1)
        assert group(runner).state is State.EMPTY
        assert refused(one.heartbeat) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_commit_is_a_sign_of_life(self, runner: Any, stable: Stable) -> None:
        (one,) = stable()
        runner.advance(9_000)
        runner.run(CommitOffsets("g", (Commit("t", 0, 1),), one.id, None, 1))
        runner.advance(9_000)
        one.heartbeat()

    def test_a_member_that_waits_for_us_may_be_silent(self, runner: Any, stable: Stable) -> None:
        leader, follower = stable(2, session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
        follower.join(protocols=(("range", b"other"),))
        for _ in range(5):
            runner.advance(8_000)
            assert refused(leader.heartbeat) is ErrorCode.REBALANCE_IN_PROGRESS
        assert follower.id in group(runner).members
        leader.join()
        follower.joined()
        runner.advance(9_999)
        assert follower.id in group(runner).members

    def test_a_new_member_waits_five_minutes_and_is_sent_away(
        self, runner: Any, stable: Stable, client: Client
    ) -> None:
        (leader,) = stable(rebalance_timeout_ms=NEW_MEMBER_TIMEOUT_MS * 2)
        new = client("new")
        new.join()
        while runner.ms < DELAY_MS + NEW_MEMBER_TIMEOUT_MS:
            assert not runner.is_answered(new.waiting)
            runner.advance(5_000)
            refused(leader.heartbeat)
        assert new.joined().error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_after_a_restart_a_member_has_a_session_to_be_heard_of(
        self, runner: Any, stable: Stable
    ) -> None:
        leader, follower = stable(2)
        runner.advance(9_000)
        runner.reload()
        runner.advance(9_999)
        leader.heartbeat()
        assert follower.sync().assignment == b"part 1"
        follower.heartbeat()
        assert group(runner).state is State.STABLE


class TestStaticMembers:
    def test_a_place_is_taken_back_with_one_record(self, runner: Any, stable: Stable) -> None:
        (one,) = stable(instance_id="i1")
        before = len(runner.log)
        back = type(one)(runner, "other", "g", instance_id="i1")
        told = back.join()
        assert (told.generation, told.skip_assignment, told.leader) == (1, True, told.member_id)
        assert len(runner.log) == before + 1
        assert back.sync().assignment == b"part 0"
        assert refused(one.heartbeat) is ErrorCode.FENCED_INSTANCE_ID
        runner.reload()
        back.heartbeat()

    def test_when_that_cannot_be_written_the_old_one_stays(
        self, runner: Any, stable: Stable
    ) -> None:
        (one,) = stable(instance_id="i1")
        runner.failures = 1
        told = type(one)(runner, "other", "g", instance_id="i1").join()
        assert told.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (told.generation, told.leader, told.member_id) == (1, one.id, "")
        one.heartbeat()

    def test_it_keeps_its_other_protocols(self, runner: Any, stable: Stable) -> None:
        offers = (("a", b"1"), ("b", b"2"))
        (one,) = stable(instance_id="i1", protocols=offers)
        back = type(one)(runner, "other", "g", instance_id="i1", protocols=offers)
        back.join()
        assert group(runner).members[back.id].protocols == offers
        assert group(runner).supported == {"a": 1, "b": 1}

    def test_in_the_middle_of_a_rebalance_it_takes_the_place_of_its_predecessor(
        self, runner: Any, stable: Stable, client: Client
    ) -> None:
        (leader,) = stable()
        first = client("first", instance_id="i1")
        assert first.join() is None
        second = client("second", instance_id="i1")
        assert second.join() is None
        assert first.joined().error is ErrorCode.FENCED_INSTANCE_ID
        leader.join()
        assert second.joined().error is ErrorCode.NONE
        assert len(group(runner).members) == 2

    def test_when_assignments_are_being_made_everybody_joins_again(
        self, runner: Any, stable: Stable, client: Client
    ) -> None:
        leader, static = stable(2, instance_id=None), None
        static = client("static", instance_id="i1")
        static.join()
        for member in leader:
            member.join()
        static.joined()
        waiting = static.sync()
        assert waiting is None
        again = client("again", instance_id="i1")
        assert again.join() is None
        assert refused(static.synced) is ErrorCode.FENCED_INSTANCE_ID
        assert group(runner).state is State.PREPARING


class TestSize:
    def test_a_full_group_takes_nobody(
        self, runner: Any, stable: Stable, client: Client, settings: dict[str, Any]
    ) -> None:
        settings["group_max_size"] = 2
        stable(2)
        assert client("third").join().error is ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_when_the_limit_is_lowered_the_last_to_join_are_turned_away(
        self, runner: Any, stable: Stable, settings: dict[str, Any]
    ) -> None:
        members = stable(3)
        settings["group_max_size"] = 2
        assert members[0].join() is None
        assert members[1].join() is None
        assert members[2].join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert len(members[0].joined().members) == 2

    def test_a_group_that_is_too_large_when_loaded_is_rebalanced(
        self, runner: Any, stable: Stable, settings: dict[str, Any]
    ) -> None:
        stable(3)
        settings["group_max_size"] = 2
        runner.reload()
        assert group(runner).state is State.PREPARING


class TestFailedAppends:
    def test_a_group_that_cannot_be_written_is_not_there(self, runner: Any, client: Client) -> None:
        runner.failures = 1
        told = client().join()
        assert told.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "g" not in runner.shard.groups

    def test_an_assignment_that_cannot_be_written_is_given_to_nobody(
        self, runner: Any, stable: Stable
    ) -> None:
        leader, follower = stable(2)
        leader.join()
        follower.join()
        leader.joined()
        assert follower.sync() is None
        runner.failures = 1
        assert (
            refused(lambda: leader.sync({leader.id: b"x"})) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        assert refused(follower.synced) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert group(runner).state is State.PREPARING

    def test_that_a_group_is_empty_need_not_be_written(self, runner: Any, stable: Stable) -> None:
        (one,) = stable()
        runner.failures = 1
        assert one.leave() is ErrorCode.NONE
        assert group(runner).state is State.EMPTY


class TestRecords:
    def test_a_group_is_the_same_after_a_restart(self, runner: Any, stable: Stable) -> None:
        stable(3)
        before = runner.run(DescribeGroup("g"))
        for compact in (False, True):
            runner.reload(compact=compact)
            assert runner.run(DescribeGroup("g")) == before

    def test_of_a_member_that_joined_again_the_newest_subscription_is_loaded(
        self, runner: Any, stable: Stable
    ) -> None:
        (one,) = stable(protocols=(("range", b"old"),))
        one.join(protocols=(("range", b"new"),), session_timeout_ms=20_000)
        one.sync({one.id: b"more"})
        runner.reload()
        (member,) = runner.run(DescribeGroup("g")).members
        assert (member.metadata, member.assignment) == (b"new", b"more")
        assert group(runner).members[one.id].session_timeout_ms == 20_000

    def test_a_generation_that_was_not_assigned_is_forgotten(
        self, runner: Any, stable: Stable
    ) -> None:
        (one,) = stable()
        one.join()
        assert group(runner).generation == 2
        runner.reload()
        assert (group(runner).generation, group(runner).state) == (1, State.STABLE)

    def test_an_empty_group_keeps_its_generation(self, runner: Any, stable: Stable) -> None:
        (one,) = stable()
        one.leave()
        runner.reload()
        assert (group(runner).generation, group(runner).state) == (2, State.EMPTY)
        assert group(runner).since_ms == START_MS + runner.ms
        assert group(runner).protocol_type == "consumer"

    def test_the_leader_of_a_loaded_group_may_start_a_rebalance(
        self, runner: Any, stable: Stable
    ) -> None:
        leader, follower = stable(2)
        runner.reload()
        assert leader.join() is None
        assert follower.join().generation == 2
        assert leader.joined().generation == 2


class TestUnloading:
    def test_those_who_wait_are_sent_elsewhere(
        self, runner: Any, stable: Stable, client: Client
    ) -> None:
        leader, follower = stable(2)
        leader.join()
        follower.join()
        leader.joined()
        follower.sync()
        other = client("other", group="h")
        other.join()
        answers = dict(runner.shard.unload(KafkaError(ErrorCode.NOT_COORDINATOR)))
        assert answers[other.waiting].error is ErrorCode.NOT_COORDINATOR
        assert answers[follower.waiting].code is ErrorCode.NOT_COORDINATOR
        assert runner.shard.due(runner.now._replace(ms=10**9)) == [EXPIRE]


def test_a_sync_given_up_and_sent_again_is_answered_once(runner: Any, stable: Stable) -> None:
    leader, follower = stable(2)
    leader.join()
    follower.join()
    leader.joined()
    assert follower.sync() is None
    first = follower.waiting
    assert follower.sync() is None
    with pytest.raises(KafkaError):
        runner.answer(first)
    leader.sync({follower.id: b"x"})
    assert follower.synced().assignment == b"x"


def test_those_who_leave_are_answered_even_if_nothing_can_be_written(
    runner: Any, stable: Stable, client: Client
) -> None:
    (one,) = stable()
    two = client("two")
    assert two.join() is None
    runner.failures = 1
    codes = runner.run(Leave("g", (Leaver(one.id), Leaver(two.id))))
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert two.joined().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_given_up_and_sent_again_is_answered_once(runner: Any, stable: Stable) -> None:
    leader, follower = stable(2)
    follower.join(protocols=(("range", b"other"),))
    first = follower.waiting
    follower.join(protocols=(("range", b"other"),))
    assert runner.answer(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    assert follower.joined().error is ErrorCode.NONE
