"""Groups that change their protocol while they work, and classic members of a consumer group."""

from __future__ import annotations

import struct

import pytest

from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.classic_group import ClassicGroup, State
from ottla.coordinator.group.commands import (
    ConsumerAlive,
    DescribeConsumerGroup,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    Sync,
)
from ottla.coordinator.group.consumer_group import ConsumerGroup, MemberState
from ottla.coordinator.group.consumer_protocol import write_assignment
from ottla.coordinator.shard import Parked
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.classic_consumers import ClassicConsumer, subscription
from ottla.testing.groups import CLIENT, GROUP, Consumer, GroupWorld, refused, some


def classic_group(w: GroupWorld) -> ClassicGroup:
    group = w.runner.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    return group


def a_world(**settings: object) -> GroupWorld:
    return GroupWorld(group_initial_rebalance_delay_ms=0, **settings)


def settle(w: GroupWorld, *everybody: ClassicConsumer | Consumer) -> None:
    """Everybody goes on until the group is at rest."""
    for _ in range(30):
        w.runner.advance(100)
        before = len(w.runner.log), repr(everybody)
        for each in everybody:
            if isinstance(each, ClassicConsumer):
                each.step()
            else:
                each.beat()
        resting = all(each.is_stable for each in everybody if isinstance(each, ClassicConsumer))
        if resting and before == (len(w.runner.log), repr(everybody)):
            return
    raise AssertionError(f"not at rest: {everybody}")


def names(partitions: Partitions) -> set[tuple[str, int]]:
    return {(t.rstrip(b".").decode(), p) for t, held in partitions.items() for p in held}


def owned_by_all(*everybody: ClassicConsumer | Consumer) -> list[tuple[str, int]]:
    return sorted(
        one
        for each in everybody
        for one in (each.owned if isinstance(each, ClassicConsumer) else names(each.owned))
    )


# -- classic to consumer ---------------------------------------------------------------------


def test_a_classic_group_becomes_a_consumer_group_when_a_new_member_joins() -> None:
    w = a_world()
    w.topics(a=4)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    generation = old.generation
    new = w.consumer("new", "a")
    assert new.join() == ConsumerAlive("new", generation + 1, 5000, {})
    assert w.group.members[old.member_id].classic is not None
    assert w.group.members[old.member_id].assigned == some("a", 0, 1, 2, 3)
    settle(w, old, new)
    assert owned_by_all(old, new) == [("a", each) for each in range(4)]
    assert len(old.owned) == 2


@pytest.mark.parametrize("cooperative", [True, False])
def test_classic_and_new_members_share_a_group(cooperative: bool) -> None:
    w = a_world()
    w.topics(a=6)
    old = [ClassicConsumer(w, "a", cooperative=cooperative) for _ in range(2)]
    settle(w, *old)
    new = w.consumer("new", "a")
    new.join()
    settle(w, *old, new)
    assert owned_by_all(*old, new) == [("a", each) for each in range(6)]
    late = ClassicConsumer(w, "a", cooperative=cooperative)
    settle(w, *old, new, late)
    assert owned_by_all(*old, new, late) == [("a", each) for each in range(6)]
    assert {len(each.owned) for each in (*old, late)} <= {1, 2}
    described = w.runner.run(DescribeConsumerGroup(GROUP))
    assert sorted(each.classic for each in described.members) == [False, True, True, True]


def test_a_cooperative_member_goes_on_with_what_it_keeps() -> None:
    w = a_world()
    w.topics(a=4)
    old = ClassicConsumer(w, "a", cooperative=True)
    settle(w, old)
    new = w.consumer("new", "a")
    new.join()
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        old.heartbeat()
    # It joins with all it owns, is told what it keeps, and only then gives up the rest.
    old.refused(ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(old.owned) == 4
    assert new.beat().assignment is None
    old.step()
    assert len(old.owned) == 2
    assert new.beat().assignment is not None


def test_members_who_wait_for_the_classic_rebalance_are_told_to_join_anew() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    late = ClassicConsumer(w, "a")
    parked = late.join()
    assert isinstance(parked, (Parked, Joined))
    assert classic_group(w).state is State.PREPARING
    new = w.consumer("new", "a")
    new.join()
    late.step()
    assert not late.is_stable
    settle(w, old, late, new)
    assert owned_by_all(old, late, new) == [("a", 0), ("a", 1)]


def test_nobody_waits_for_ever_when_the_upgrade_could_not_be_written() -> None:
    w = a_world()
    w.topics(a=2)
    old, late = ClassicConsumer(w, "a"), ClassicConsumer(w, "a")
    settle(w, old)
    late.join()
    w.runner.failures = 1
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        w.consumer("new", "a").join()
    settle(w, old, late)
    assert owned_by_all(old, late) == [("a", 0), ("a", 1)]
    assert classic_group(w).state is State.STABLE


def test_an_empty_classic_group_gives_way() -> None:
    w = a_world()
    w.topics(a=1)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    old.leave()
    assert classic_group(w).state is State.EMPTY
    assert w.consumer("new", "a").join().epoch == 1


def test_an_empty_consumer_group_gives_way_too() -> None:
    w = a_world()
    w.topics(a=1)
    w.consumer("new", "a").join()
    w.consumer("new", "a").leave()
    old = ClassicConsumer(w, "a")
    settle(w, old)
    assert classic_group(w).state is State.STABLE
    assert old.owned == {("a", 0)}


@pytest.mark.parametrize("policy", ["DISABLED", "downgrade"])
def test_the_policy_may_forbid_the_upgrade(policy: str) -> None:
    w = a_world(group_consumer_migration_policy=policy)
    w.topics(a=1)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    with pytest.raises(KafkaError, match="online upgrade is disabled") as refusal:
        w.consumer("new", "a").join()
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    old.heartbeat()


def test_a_group_of_something_else_than_consumers_is_not_upgraded() -> None:
    w = a_world()
    w.topics(a=1)
    join = Join(GROUP, "", None, CLIENT, 30_000, 60_000, "connect", (("x", b"?"),), False)
    assert isinstance(w.runner.run(join), Parked)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        w.consumer("new", "a").join()


def test_a_group_that_is_too_large_is_not_upgraded() -> None:
    w = a_world(group_consumer_max_size=1)
    w.topics(a=1)
    old = [ClassicConsumer(w, "a") for _ in range(2)]
    settle(w, *old)
    with pytest.raises(KafkaError, match="exceeds the consumer group maximum size"):
        w.consumer("new", "a").join()


def test_what_a_custom_assignor_told_its_clients_would_be_lost() -> None:
    w = a_world()
    w.topics(a=1)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    plain = write_assignment({"a": [0]}, 1)
    member = classic_group(w).members[old.member_id]
    member.assignment = plain[:-4] + struct.pack(">i", 3) + b"abc"
    with pytest.raises(KafkaError, match="custom assignor"):
        w.consumer("new", "a").join()
    member.assignment = b"\0"
    with pytest.raises(KafkaError, match="malformed"):
        w.consumer("new", "a").join()


def test_a_partition_that_clients_gave_to_two_members_has_one_owner_afterwards() -> None:
    w = a_world()
    w.topics(a=2)
    old = [ClassicConsumer(w, "a") for _ in range(2)]
    settle(w, *old)
    for each in classic_group(w).members.values():
        each.assignment = write_assignment({"a": [0, 1, 7], "gone": [0]}, 1)
    new = w.consumer("new", "a")
    new.join()
    settle(w, *old, new)
    assert owned_by_all(*old, new) == [("a", 0), ("a", 1)]


def test_a_static_member_comes_back_with_the_new_protocol() -> None:
    w = a_world()
    w.topics(a=2)
    old, other = ClassicConsumer(w, "a", instance_id="i"), ClassicConsumer(w, "a")
    settle(w, old, other)
    had = old.owned
    new = w.consumer("new", "a", instance_id="i")
    reply = new.join()
    assert reply.assignment is not None
    assert names(reply.assignment) == had
    assert old.member_id not in w.group.members
    settle(w, other, new)
    w.runner.advance(29_000)
    new.beat()
    other.step()
    w.runner.advance(29_000)
    assert len(w.group.members) == 2


def test_a_static_member_comes_back_before_the_classic_leader_has_assigned() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a", instance_id="i")
    old.join()
    w.runner.advance(0)
    assert classic_group(w).state is State.COMPLETING
    new = w.consumer("new", "a", instance_id="i")
    new.join()
    settle(w, new)
    assert owned_by_all(new) == [("a", 0), ("a", 1)]


def test_a_static_member_comes_back_while_the_share_of_another_is_free() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a", instance_id="i")
    other = ClassicConsumer(w, "a")
    settle(w, old, other)
    other.leave()
    assert classic_group(w).state is State.PREPARING
    new = w.consumer("new", "a", instance_id="i")
    new.join()
    settle(w, new)
    assert owned_by_all(new) == [("a", 0), ("a", 1)]


def test_the_classic_leader_comes_back_before_it_has_seen_new_partitions() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a", instance_id="i")
    settle(w, old)
    w.topics(a=3)
    new = w.consumer("new", "a", instance_id="i")
    new.join()
    settle(w, new)
    assert owned_by_all(new) == [("a", 0), ("a", 1), ("a", 2)]


def test_what_members_own_is_nobody_elses_when_the_group_is_upgraded_in_a_rebalance() -> None:
    """A cooperative member keeps what it owns; the leader's assignment could not be written."""
    w = a_world()
    w.topics(a=3)
    old = ClassicConsumer(w, "a", cooperative=True)
    settle(w, old)
    another = ClassicConsumer(w, "a", cooperative=True)
    another.step()
    assert classic_group(w).state is State.PREPARING
    w.runner.failures = 1
    old.step()
    old.step()
    old.step()
    assert classic_group(w).state is State.PREPARING
    assert owned_by_all(old) == [("a", each) for each in range(3)]
    new = w.consumer("new", "a")
    new.join()
    assert not names(new.owned)
    settle(w, old, another, new)
    assert owned_by_all(old, another, new) == [("a", each) for each in range(3)]


def test_what_members_own_is_nobody_elses_when_the_group_changes_there_and_back() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a", cooperative=True)
    settle(w, old)
    first = w.consumer("first", "a")
    first.join()
    first.leave()
    assert classic_group(w).state is State.PREPARING
    assert owned_by_all(old) == [("a", 0), ("a", 1)]
    second = w.consumer("second", "a")
    second.join()
    assert not names(second.owned)
    settle(w, old, second)
    assert owned_by_all(old, second) == [("a", 0), ("a", 1)]


# -- consumer to classic ---------------------------------------------------------------------


def test_the_group_is_classic_again_when_the_last_new_member_has_left() -> None:
    w = a_world()
    w.topics(a=4)
    old = [ClassicConsumer(w, "a", cooperative=True) for _ in range(2)]
    settle(w, *old)
    new = w.consumer("new", "a")
    new.join()
    settle(w, *old, new)
    epoch = w.group.epoch
    assert new.leave() == ConsumerAlive("new", -1)
    assert classic_group(w).generation == epoch
    assert classic_group(w).state is State.PREPARING
    settle(w, *old)
    assert owned_by_all(*old) == [("a", each) for each in range(4)]
    w.runner.reload(compact=True)
    assert classic_group(w).state is State.STABLE
    settle(w, *old)


def test_so_it_is_when_its_session_ends() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    new = w.consumer("new", "a")
    new.join()
    settle(w, old, new)
    for _ in range(10):
        w.runner.advance(5_000)
        old.step()
    assert isinstance(w.runner.shard.groups[GROUP], ClassicGroup)
    settle(w, old)
    assert owned_by_all(old) == [("a", 0), ("a", 1)]


def test_the_next_coordinator_goes_on_with_the_rebalance_of_a_downgrade() -> None:
    w = a_world()
    w.topics(a=2)
    new = w.consumer("new", "a")
    new.join()
    old = ClassicConsumer(w, "a")
    old.join()
    assert not old.owned, "it waits for its share"
    new.leave()
    w.runner.reload()
    assert classic_group(w).state is State.PREPARING
    settle(w, old)
    assert owned_by_all(old) == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("policy", ["disabled", "UPGRADE"])
def test_the_policy_may_forbid_the_downgrade(policy: str) -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    new = w.consumer("new", "a")
    new.join()
    settle(w, old, new)
    w.config = type(w.config)(group_consumer_migration_policy=policy)
    new.leave()
    assert isinstance(w.runner.shard.groups[GROUP], ConsumerGroup)
    settle(w, old)
    assert owned_by_all(old) == [("a", 0), ("a", 1)]


def test_the_last_new_member_comes_back_with_the_classic_protocol() -> None:
    w = a_world()
    w.topics(a=4)
    old = ClassicConsumer(w, "a", cooperative=True)
    settle(w, old)
    new = w.consumer("new", "a", instance_id="i")
    new.join()
    settle(w, old, new)
    had = names(new.owned)
    new.leave(-2)
    back = ClassicConsumer(w, "a", instance_id="i")
    back.join()
    assert classic_group(w).state is State.STABLE
    assert back.owned == had
    settle(w, old, back)
    assert owned_by_all(old, back) == [("a", each) for each in range(4)]


def test_it_may_want_other_topics_by_then() -> None:
    w = a_world()
    w.topics(a=2, b=2)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    new = w.consumer("new", "a", instance_id="i")
    new.join()
    settle(w, old, new)
    new.leave(-2)
    back = ClassicConsumer(w, "b", instance_id="i")
    settle(w, old, back)
    assert classic_group(w).state is State.STABLE
    assert (sorted(old.owned), sorted(back.owned)) == (
        [("a", 0), ("a", 1)],
        [("b", 0), ("b", 1)],
    )


def test_somebody_waits_for_a_share_when_the_last_new_member_comes_back_as_a_classic_one() -> None:
    w = a_world()
    w.topics(a=2)
    new = w.consumer("new", "a", instance_id="i")
    new.join()
    old = ClassicConsumer(w, "a")
    old.join()
    assert not old.owned
    assert w.group.members[old.member_id].state is MemberState.UNRELEASED
    new.leave(-2)
    back = ClassicConsumer(w, "a", instance_id="i")
    settle(w, back, old)
    assert classic_group(w).state is State.STABLE
    assert owned_by_all(old, back) == [("a", 0), ("a", 1)]


def test_the_last_new_member_comes_back_before_anybody_has_seen_new_partitions() -> None:
    w, old, new = mixed_with_static()
    new.leave(-2)
    w.topics(a=3)
    back = ClassicConsumer(w, "a", instance_id="i")
    settle(w, back, old)
    assert classic_group(w).state is State.STABLE
    assert owned_by_all(old, back) == [("a", 0), ("a", 1), ("a", 2)]


def test_a_classic_group_has_a_leader_who_knows_it() -> None:
    w, old, new = mixed_with_static()
    new.leave(-2)
    back = ClassicConsumer(w, "a", instance_id="i")
    joined = back.join()
    assert (joined.leader, joined.skip_assignment) == (back.member_id, True)
    assert {each.member_id for each in joined.members} == {old.member_id, back.member_id}
    settle(w, back, old)
    w.topics(a=3)
    back.join()  # as a leader does that sees the new partition
    settle(w, back, old)
    assert owned_by_all(old, back) == [("a", 0), ("a", 1), ("a", 2)]


def test_a_client_that_cannot_lead_without_assigning_has_the_group_rebalanced() -> None:
    w, _, new = mixed_with_static()
    new.leave(-2)
    protocols = (("range", subscription(["a"])),)
    join = Join(GROUP, "", "i", CLIENT, 30_000, 60_000, "consumer", protocols)
    w.runner.run(join._replace(can_skip_assignment=False))
    assert classic_group(w).state is State.PREPARING


def test_nothing_has_happened_when_the_downgrade_could_not_be_written() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    new = w.consumer("new", "a")
    new.join()
    settle(w, old, new)
    w.runner.failures = 1
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        new.leave()
    assert "new" in w.group.members
    settle(w, old, new)


def mixed_with_static() -> tuple[GroupWorld, ClassicConsumer, Consumer]:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    new = w.consumer("new", "a", instance_id="i")
    new.join()
    settle(w, old, new)
    return w, old, new


# -- classic members of a consumer group -----------------------------------------------------


def mixed() -> tuple[GroupWorld, ClassicConsumer, Consumer]:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a")
    settle(w, old)
    new = w.consumer("new", "a")
    new.join()
    settle(w, old, new)
    return w, old, new


def test_classic_requests_of_strangers_and_latecomers_are_refused() -> None:
    w, old, new = mixed()
    run, member, generation = w.runner.run, old.member_id, old.generation
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        run(Heartbeat(GROUP, "x", None, generation))
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        run(Heartbeat(GROUP, new.name, None, new.epoch))
    with refused(ErrorCode.ILLEGAL_GENERATION):
        run(Heartbeat(GROUP, member, None, generation - 1))
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        run(Heartbeat(GROUP, member, "instance", generation))
    with refused(ErrorCode.ILLEGAL_GENERATION):
        run(Sync(GROUP, member, None, generation + 1, "consumer", "range"))
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        run(Sync(GROUP, member, None, generation, "connect", "range"))
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        run(Sync(GROUP, member, None, generation, "consumer", "sticky"))
    assert run(Heartbeat(GROUP, member, None, generation)) is ErrorCode.NONE


def test_a_classic_newcomer_is_given_an_id_first_and_must_speak_a_common_protocol() -> None:
    w, _, _ = mixed()
    range_only = (("range", subscription(["a"])),)
    join = Join(GROUP, "", None, CLIENT, 30_000, 60_000, "consumer", range_only)
    reply = w.runner.run(join)
    assert (reply.error, bool(reply.member_id)) == (ErrorCode.MEMBER_ID_REQUIRED, True)
    for kind, protocols in (
        ("connect", range_only),
        ("consumer", (("sticky", subscription(["a"])),)),
        ("consumer", (("range", b"?"),)),
    ):
        odd = join._replace(member_id="x", protocol_type=kind, protocols=protocols)
        assert w.runner.run(odd).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    full = join._replace(member_id="x")
    w.config = type(w.config)(group_consumer_max_size=2)
    assert w.runner.run(full).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_classic_static_member_is_replaced_and_fenced() -> None:
    w = a_world()
    w.topics(a=2)
    w.consumer("new", "a").join()
    old, again = (ClassicConsumer(w, "a", instance_id="i") for _ in range(2))
    old.join()
    first = old.member_id
    again.join()
    assert first not in w.group.members
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        old.heartbeat()
    wrong = ClassicConsumer(w, "a", instance_id="i")
    wrong.member_id = first
    with refused(ErrorCode.FENCED_INSTANCE_ID):
        wrong.join()


def test_classic_members_leave_one_by_one_or_together() -> None:
    w, old, new = mixed()
    static = ClassicConsumer(w, "a", instance_id="i")
    settle(w, old, new, static)
    leavers = (Leaver("x"), Leaver(old.member_id), Leaver("", "i"), Leaver("", "j"))
    assert w.runner.run(Leave(GROUP, leavers)) == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(w.group.members) == {"new"}
    settle(w, new)
    assert names(new.owned) == {("a", 0), ("a", 1)}
    assert w.runner.run(Leave(GROUP, (Leaver("y"),))) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_classic_member_that_does_not_sync_is_removed() -> None:
    w, old, new = mixed()
    late = ClassicConsumer(w, "a", rebalance_timeout_ms=5_000)
    join = Join(GROUP, "late", None, CLIENT, 30_000, 5_000, "consumer", late.protocols)
    w.runner.run(join)
    w.runner.advance(4_999)
    assert "late" in w.group.members
    w.runner.advance(1)
    assert "late" not in w.group.members
    settle(w, old, new)


def test_a_classic_member_that_does_not_join_again_is_removed() -> None:
    w = a_world()
    w.topics(a=2)
    old = ClassicConsumer(w, "a", rebalance_timeout_ms=5_000)
    settle(w, old)
    new = w.consumer("new", "a")
    new.join()
    for _ in range(4):
        with refused(ErrorCode.REBALANCE_IN_PROGRESS):
            old.heartbeat()
        w.runner.advance(1_250)
    assert set(w.group.members) == {"new"}


def test_a_classic_member_waits_quietly_for_partitions_that_are_not_free_yet() -> None:
    w = a_world()
    w.topics(a=2)
    new = w.consumer("new", "a")
    new.join()
    old = ClassicConsumer(w, "a")
    old.join()
    assert old.is_stable
    assert old.owned == frozenset()
    assert w.group.members[old.member_id].state is MemberState.UNRELEASED
    old.heartbeat()
    new.beat()
    old.heartbeat()
    new.beat()
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        old.heartbeat()
    old.refused(ErrorCode.REBALANCE_IN_PROGRESS)
    settle(w, old, new)
    assert len(old.owned) == 1


def test_a_classic_members_commit_is_of_its_generation() -> None:
    w, old, _ = mixed()
    check = w.group.check_offset_commit
    check(old.member_id, None, old.generation, api_version=5)
    with refused(ErrorCode.ILLEGAL_GENERATION):
        check(old.member_id, None, old.generation - 1, api_version=5)


def test_sessions_of_classic_members_go_on_when_the_group_is_classic_again() -> None:
    w, old, new = mixed()
    other = ClassicConsumer(w, "a")
    settle(w, old, other, new)
    new.leave()
    settle(w, old, other)
    for _ in range(4):
        w.runner.advance(10_000)
        old.step()
    settle(w, old)
    assert set(classic_group(w).members) == {old.member_id}
    assert old.owned == {("a", 0), ("a", 1)}


def test_so_they_do_for_members_who_never_come_to_the_rebalance_of_the_downgrade() -> None:
    w, old, new = mixed()
    new.leave()
    assert classic_group(w).state is State.PREPARING
    w.runner.advance(60_000)
    assert classic_group(w).state is State.EMPTY
    assert old.member_id not in classic_group(w).members
