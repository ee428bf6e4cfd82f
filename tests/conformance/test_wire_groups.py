"""Groups of the classic protocol on the wire: 10 to 16 and 42, spoken by hand.

The broker has no initial rebalance delay and allows short sessions (quick-groups.properties), as
Apache Kafka's must when it is the one tested.
"""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest

NONE = 0
COORDINATOR_NOT_AVAILABLE, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL = 15, 22, 23
INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, INVALID_SESSION_TIMEOUT = 24, 25, 26
REBALANCE_IN_PROGRESS, INVALID_REQUEST, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 27, 42, 68, 69
MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 79, 82
SHORT = 6_000  # milliseconds: waited for, but enough to form a group on a busy machine


@pytest.fixture(scope="module")
def bootstrap(bootstrap_quick_groups: str) -> str:
    return bootstrap_quick_groups


def subscription(*topics: str, tail: bytes = b"\xff\xff\xff\xff") -> bytes:
    """A consumer's subscription, version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + tail


class Member:
    """One member with a connection of its own, doing nothing by itself."""

    def __init__(self, connection: Any, group: str, version: int = 9, **fields: Any) -> None:
        self.connection = connection
        self.group = group
        self.version = version
        self.id = fields.pop("member_id", "")
        self.instance = fields.pop("instance", None)
        self.generation = -1
        self.protocol = None
        self.fields = {
            "session_timeout": 30_000,
            "rebalance_timeout": 60_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription("t")}],
        } | fields

    def send_join(self, **fields: Any) -> None:
        self.connection.send(
            "join_group",
            self.version,
            group_id=self.group,
            member_id=self.id,
            group_instance_id=self.instance,
            **(self.fields | fields),
        )

    def receive_join(self) -> Any:
        answer = self.connection.receive()
        if answer.member_id:
            self.id = answer.member_id
        if answer.error_code == NONE:
            self.generation = answer.generation_id
            self.protocol = answer.protocol_name
        return answer

    def join(self, **fields: Any) -> Any:
        """Join, at the second try where the broker first gives out an id."""
        self.send_join(**fields)
        answer = self.receive_join()
        if answer.error_code == MEMBER_ID_REQUIRED:
            self.send_join(**fields)
            answer = self.receive_join()
        return answer

    def send_sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> None:
        self.connection.send(
            "sync_group",
            5,
            **{
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.id,
                "group_instance_id": self.instance,
                "protocol_type": "consumer",
                "protocol_name": self.protocol,
                "assignments": [
                    {"member_id": member, "assignment": data}
                    for member, data in (assignments or {}).items()
                ],
            }
            | fields,
        )

    def sync(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        self.send_sync(assignments, **fields)
        return self.connection.receive()

    def heartbeat(self, **fields: Any) -> int:
        asked = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }
        return self.connection.ask("heartbeat", 4, **(asked | fields)).error_code

    def wait_rebalance(self) -> None:
        """Until the coordinator has begun one: what others sent may still be on its way."""
        deadline = time.monotonic() + 120
        while (code := self.heartbeat()) != REBALANCE_IN_PROGRESS:
            assert code == NONE
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def leave(self) -> Any:
        leaver = {"member_id": self.id, "group_instance_id": self.instance}
        return self.connection.ask("leave_group", 5, group_id=self.group, members=[leaver])


@pytest.fixture
def member(wire, group):
    """`member(...)`: one that has not joined yet."""

    def make(version: int = 9, **fields: Any) -> Member:
        return Member(wire(), fields.pop("group", group), version, **fields)

    return make


@pytest.fixture
def stable(member):
    """`stable(2)`: the members of a group that has formed, the leader first."""

    def form(count: int = 1, **fields: Any) -> list[Member]:
        members = [member(**fields) for _ in range(count)]
        first = members[0]
        assert first.join().error_code == NONE
        assert first.sync({first.id: b"all"}).error_code == NONE
        for one in members[1:]:
            one.send_join()
            assert one.receive_join().error_code == MEMBER_ID_REQUIRED
            one.send_join()
        if count > 1:
            first.wait_rebalance()
            first.send_join()
            for one in members:
                assert one.receive_join().error_code == NONE
            for one in members[1:]:
                one.send_sync()
            first.send_sync({one.id: b"part %d" % i for i, one in enumerate(members)})
            for one in members:
                assert one.connection.receive().error_code == NONE
        return members

    return form


def state(connection: Any, group: str) -> str:
    (described,) = connection.ask("describe_groups", 5, groups=[group]).groups
    return described.group_state


# -- FindCoordinator ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_coordinator_is_a_broker_with_an_address(version, wire, group, bootstrap):
    found = wire().ask("find_coordinator", version, key=group, key_type=0)
    assert found.error_code == NONE
    assert f"{found.host}:{found.port}" == bootstrap
    assert found.node_id >= 0


@pytest.mark.parametrize("version", [4, 5, 6])
def test_several_coordinators_are_found_at_once(version, wire, group, bootstrap):
    found = wire().ask("find_coordinator", version, key_type=0, coordinator_keys=[group, "", "ö"])
    assert [each.key for each in found.coordinators] == [group, "", "ö"]
    assert {f"{each.host}:{each.port}" for each in found.coordinators} == {bootstrap}
    assert {each.error_code for each in found.coordinators} == {NONE}


# -- joining -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5, 6, 7, 8, 9])
def test_a_new_member_is_given_an_id_and_must_come_back_with_it(version, member):
    new = member(version)
    new.send_join()
    answer = new.receive_join()
    assert answer.error_code == MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("ottla-tests-")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", ())
    assert new.join().error_code == NONE


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_old_client_joins_at_once(version, member):
    new = member(version)
    new.send_join()
    answer = new.receive_join()
    assert answer.error_code == NONE
    assert (answer.generation_id, answer.protocol_name) == (1, "range")
    assert answer.leader == answer.member_id == answer.members[0].member_id
    assert answer.members[0].metadata == subscription("t")


def test_the_leader_sees_everybody_and_the_others_nobody(member, stable):
    leader, follower = stable(2)
    other = [{"name": "range", "metadata": subscription("other")}]
    leader.send_join(protocols=other)
    follower.wait_rebalance()
    follower.send_join(protocols=other)
    told = leader.receive_join()
    assert {each.member_id for each in told.members} == {leader.id, follower.id}
    assert {each.metadata for each in told.members} == {subscription("other")}
    assert follower.receive_join().members == ()
    assert (told.leader, told.protocol_type, told.protocol_name) == (leader.id, "consumer", "range")
    assert leader.generation == follower.generation == 3


def test_the_protocol_is_what_most_prefer_of_what_all_support(member, stable):
    def offer(*names: str) -> dict[str, Any]:
        return {"protocols": [{"name": name, "metadata": b"\0\0"} for name in names]}

    one = member(**offer("a", "b", "c"))
    assert one.join().protocol_name == "a"
    one.sync({one.id: b""})
    two, three = member(**offer("c", "b")), member(**offer("b", "c"))
    for each in (two, three):
        each.send_join()
        each.receive_join()
        each.send_join()
    one.wait_rebalance()
    one.send_join(**offer("a", "b", "c"))
    assert one.receive_join().protocol_name == "b"


def test_a_member_without_a_common_protocol_is_refused(member, stable):
    stable()
    stranger = member(protocols=[{"name": "roundrobin", "metadata": b""}])
    stranger.send_join()
    assert stranger.receive_join().error_code == INCONSISTENT_GROUP_PROTOCOL
    worker = member(protocol_type="connect")
    worker.send_join()
    assert worker.receive_join().error_code == INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, INVALID_GROUP_ID),
        ({"session_timeout": 99}, INVALID_SESSION_TIMEOUT),
        ({"session_timeout": 1_800_001}, INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "never-seen"}, UNKNOWN_MEMBER_ID),
    ],
)
def test_what_cannot_join(fields, code, wire, group):
    asked = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    answer = wire().ask("join_group", 9, **(asked | fields))
    assert answer.error_code == code
    assert (answer.generation_id, answer.protocol_name, answer.leader) == (-1, None, "")
    assert answer.member_id == fields.get("member_id", "")


def test_a_follower_that_joins_again_unchanged_gets_the_generation_it_is_in(stable):
    leader, follower = stable(2)
    again = follower.join()
    assert (again.error_code, again.generation_id, again.leader) == (NONE, 2, leader.id)
    assert leader.heartbeat() == NONE


def test_a_leader_that_joins_again_starts_a_rebalance(stable):
    leader, follower = stable(2)
    leader.send_join()
    follower.wait_rebalance()
    follower.send_join()
    assert leader.receive_join().generation_id == 3
    assert follower.receive_join().generation_id == 3


# -- syncing -----------------------------------------------------------------------------------


def test_everybody_gets_what_the_leader_gave_and_gets_it_again(stable):
    members = stable(3)
    for number, one in enumerate(members):
        answer = one.sync()
        assert (answer.error_code, answer.assignment) == (NONE, b"part %d" % number)
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(6))
def test_syncing_at_every_version(version, stable, group):
    (one,) = stable()
    answer = one.connection.ask(
        "sync_group",
        version,
        group_id=group,
        generation_id=one.generation,
        member_id=one.id,
        protocol_type="consumer",
        protocol_name=one.protocol,
    )
    assert (answer.error_code, answer.assignment) == (NONE, b"all")


def test_a_member_that_the_leader_forgot_gets_nothing_but_no_error(member):
    one = member()
    one.join()
    answer = one.sync({"somebody-else": b"mine?"})
    assert (answer.error_code, answer.assignment) == (NONE, b"")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, INVALID_GROUP_ID),
        ({"group_id": "no-such-group-here"}, UNKNOWN_MEMBER_ID),
        ({"member_id": "never-seen"}, UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ILLEGAL_GENERATION),
        ({"generation_id": 2}, ILLEGAL_GENERATION),
        ({"protocol_name": "sticky"}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "unknown"}, UNKNOWN_MEMBER_ID),
    ],
)
def test_who_cannot_sync(fields, code, stable):
    (one,) = stable()
    answer = one.sync(**fields)
    assert (answer.error_code, answer.assignment) == (code, b"")


def test_those_who_wait_for_an_assignment_are_told_of_the_next_rebalance(stable, member):
    leader, follower = stable(2)
    leader.send_join()
    follower.wait_rebalance()
    follower.send_join()
    leader.receive_join()
    follower.receive_join()
    follower.send_sync()
    late = member()
    late.send_join()
    late.receive_join()
    late.send_join()
    assert follower.connection.receive().error_code == REBALANCE_IN_PROGRESS
    assert leader.sync({}).error_code == REBALANCE_IN_PROGRESS


# -- heartbeats and sessions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, NONE),
        ({"group_id": ""}, INVALID_GROUP_ID),
        ({"group_id": "no-such-group-here"}, UNKNOWN_MEMBER_ID),
        ({"member_id": "never-seen"}, UNKNOWN_MEMBER_ID),
        ({"generation_id": 7}, ILLEGAL_GENERATION),
        ({"group_instance_id": "unknown"}, UNKNOWN_MEMBER_ID),
    ],
)
def test_heartbeats(fields, code, stable):
    (one,) = stable()
    assert one.heartbeat(**fields) == code


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_at_every_version(version, stable, group):
    (one,) = stable()
    asked = {"group_id": group, "generation_id": one.generation, "member_id": one.id}
    assert one.connection.ask("heartbeat", version, **asked).error_code == NONE


def test_a_silent_member_is_removed_and_the_others_rebalance(stable, eventually):
    leader, silent = stable(2, session_timeout=SHORT)
    leader.wait_rebalance()
    told = leader.join()
    assert [each.member_id for each in told.members] == [leader.id]
    assert silent.heartbeat() == UNKNOWN_MEMBER_ID


def test_an_id_that_is_not_used_is_forgotten(member, unique):
    code, seconds = NONE, 0.2
    # A broker that is short of time forgets a little later: then once more, with more patience.
    while code == NONE and seconds < 20:
        new = member(group=unique("group"), session_timeout=100)
        new.send_join()
        assert new.receive_join().error_code == MEMBER_ID_REQUIRED
        time.sleep(seconds)
        new.send_join()
        code, seconds = new.receive_join().error_code, seconds * 2
    assert code == UNKNOWN_MEMBER_ID


def test_whoever_does_not_join_in_time_is_left_out(stable):
    leader, late = stable(2, rebalance_timeout=SHORT)
    leader.send_join()
    told = leader.receive_join()
    assert [each.member_id for each in told.members] == [leader.id]
    assert late.heartbeat() == UNKNOWN_MEMBER_ID


def test_whoever_does_not_sync_in_time_is_left_out(stable, eventually):
    leader, late = stable(2, rebalance_timeout=SHORT)
    leader.send_join()
    late.wait_rebalance()
    late.send_join()
    leader.receive_join()
    late.receive_join()
    assert leader.sync({leader.id: b"x"}).error_code == NONE
    eventually(lambda: leader.heartbeat() == REBALANCE_IN_PROGRESS)
    assert late.heartbeat() == UNKNOWN_MEMBER_ID


# -- leaving -----------------------------------------------------------------------------------


def test_a_member_that_leaves_is_gone_and_the_last_leaves_the_group_empty(stable, wire, group):
    leader, follower = stable(2)
    (left,) = follower.leave().members
    assert (left.member_id, left.error_code) == (follower.id, NONE)
    assert follower.heartbeat() == UNKNOWN_MEMBER_ID
    assert leader.heartbeat() == REBALANCE_IN_PROGRESS
    assert leader.join().generation_id == 3
    leader.leave()
    assert state(wire(), group) == "Empty"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_leaving_in_the_old_way(version, stable, wire, group):
    (one,) = stable()
    connection = wire()

    def leave(**fields: str) -> int:
        return connection.ask("leave_group", version, **fields).error_code

    assert leave(group_id=group, member_id="never-seen") == UNKNOWN_MEMBER_ID
    assert leave(group_id="", member_id=one.id) == INVALID_GROUP_ID
    assert leave(group_id="no-such-group-here", member_id=one.id) == UNKNOWN_MEMBER_ID
    assert leave(group_id=group, member_id=one.id) == NONE
    assert leave(group_id=group, member_id=one.id) == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [3, 4, 5])
def test_leaving_by_list(version, stable, wire, group):
    (one,) = stable()
    leavers = [{"member_id": one.id}, {"member_id": "never-seen"}]
    answer = wire().ask("leave_group", version, group_id=group, members=leavers)
    assert [each.error_code for each in answer.members] == [NONE, UNKNOWN_MEMBER_ID]


def test_several_members_leave_at_once(stable, wire, group):
    members = stable(3)
    leavers = [
        {"member_id": members[0].id, "group_instance_id": None},
        {"member_id": "never-seen", "group_instance_id": None},
        {"member_id": "", "group_instance_id": "unknown"},
        {"member_id": members[2].id, "group_instance_id": None, "reason": "tired"},
    ]
    answer = wire().ask("leave_group", 5, group_id=group, members=leavers)
    assert answer.error_code == NONE
    assert [each.error_code for each in answer.members] == [
        NONE,
        UNKNOWN_MEMBER_ID,
        UNKNOWN_MEMBER_ID,
        NONE,
    ]
    told = members[1].join()
    assert (told.leader, len(told.members)) == (members[1].id, 1)


# -- static members ----------------------------------------------------------------------------


def test_a_static_member_is_given_its_place_back_without_a_rebalance(member, stable):
    (one,) = stable(instance="i1")
    two = member(instance="i2")
    two.send_join()
    one.wait_rebalance()
    one.send_join()
    one.receive_join()
    two.receive_join()
    two.send_sync()
    one.sync({one.id: b"first", two.id: b"second"})
    two.connection.receive()
    assert (one.generation, two.generation) == (2, 2)

    back = member(instance="i2")
    answer = back.join()
    assert (answer.error_code, answer.generation_id, answer.leader) == (NONE, 2, one.id)
    assert answer.member_id.startswith("i2-")
    assert answer.member_id != two.id
    assert back.sync().assignment == b"second"
    assert two.heartbeat() == FENCED_INSTANCE_ID
    assert two.sync().error_code == FENCED_INSTANCE_ID
    assert two.leave().members[0].error_code == FENCED_INSTANCE_ID
    assert one.heartbeat() == NONE


@pytest.mark.parametrize(("version", "skips"), [(5, None), (8, None), (9, True)])
def test_a_static_leader_that_is_back_need_not_assign(version, skips, member, stable):
    (one,) = stable(instance="i1")
    back = member(version, instance="i1")
    answer = back.join()
    assert (answer.error_code, answer.generation_id) == (NONE, 1)
    if skips:
        assert answer.skip_assignment is True
        assert answer.leader == answer.member_id == answer.members[0].member_id
    else:
        # told of the leader that was, so that it does not take itself for it
        assert answer.leader == one.id
        assert answer.members == ()
    assert back.sync().assignment == b"all"


def test_a_static_member_that_comes_back_changed_starts_a_rebalance(member, stable):
    stable(
        instance="i1",
        protocols=[{"name": "a", "metadata": b""}, {"name": "b", "metadata": b""}],
    )
    back = member(instance="i1", protocols=[{"name": "b", "metadata": b""}])
    answer = back.join()
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (NONE, 2, "b")


def test_a_waiting_static_member_is_fenced_by_its_successor(member, stable):
    leader, _ = stable(2)
    first = member(instance="i1")
    first.send_join()
    leader.wait_rebalance()
    second = member(instance="i1")
    second.send_join()
    assert first.receive_join().error_code == FENCED_INSTANCE_ID


def test_a_tool_removes_a_static_member_by_its_instance(stable, wire, group):
    (one,) = stable(instance="i1")
    leaver = {"member_id": "", "group_instance_id": "i1"}
    (left,) = wire().ask("leave_group", 5, group_id=group, members=[leaver]).members
    assert (left.error_code, left.member_id, left.group_instance_id) == (NONE, "", "i1")
    assert one.heartbeat() == UNKNOWN_MEMBER_ID
    assert state(wire(), group) == "Empty"


# -- groups as a whole -------------------------------------------------------------------------


def test_a_stable_group_is_described_with_what_its_members_said(stable, wire, group):
    (one,) = stable(instance="i1")
    (each,) = wire().ask("describe_groups", 5, groups=[group]).groups
    assert (each.error_code, each.group_state) == (NONE, "Stable")
    assert (each.protocol_type, each.protocol_data) == ("consumer", "range")
    assert each.authorized_operations == -(2**31)
    (described,) = each.members
    assert (described.member_id, described.group_instance_id) == (one.id, "i1")
    assert (described.client_id, described.client_host) == ("ottla-tests", "/127.0.0.1")
    assert described.member_metadata == subscription("t")
    assert described.member_assignment == b"all"


def test_an_unstable_group_is_described_without(member, wire, group):
    one = member()
    one.join()
    (each,) = wire().ask("describe_groups", 5, groups=[group]).groups
    assert (each.group_state, each.protocol_data) == ("CompletingRebalance", "")
    (described,) = each.members
    assert (described.member_metadata, described.member_assignment) == (b"", b"")


def test_what_one_may_do_with_a_group_is_told_on_request(stable, wire, group):
    stable()
    (each,) = (
        wire().ask("describe_groups", 6, groups=[group], include_authorized_operations=True).groups
    )
    operations = {bit for bit in range(32) if each.authorized_operations & (1 << bit)}
    assert operations == {3, 6, 8, 10, 11}


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_does_not_exist_is_dead(version, wire, group):
    (each,) = wire().ask("describe_groups", version, groups=[group]).groups
    assert (each.group_id, each.group_state, each.members) == (group, "Dead", ())
    assert each.error_code == (NONE if version < 6 else GROUP_ID_NOT_FOUND)
    if version == 6:
        assert each.error_message == f"Group {group} not found."


def test_groups_are_listed_by_state_and_type(stable, wire, group):
    stable()
    connection = wire()

    def listed(version: int = 5, **filters: list[str]) -> Any:
        answer = connection.ask("list_groups", version, **filters)
        assert answer.error_code == NONE
        return next((each for each in answer.groups if each.group_id == group), None)

    assert all(listed(version).protocol_type == "consumer" for version in range(6))
    assert listed(4).group_state == "Stable"
    assert listed(5).group_type == "classic"
    assert listed(states_filter=["stable", "Empty"])
    assert listed(states_filter=[" STABLE "])
    assert not listed(states_filter=["Empty"])
    assert not listed(states_filter=["nonsense"])
    assert listed(types_filter=["Classic"])
    assert not listed(types_filter=["consumer"])
    assert not listed(types_filter=["nonsense"])
    assert not listed(states_filter=["stable"], types_filter=["consumer"])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_only_an_empty_group_can_be_deleted(version, stable, wire, group):
    (one,) = stable()
    connection = wire()

    def delete() -> int:
        (deleted,) = connection.ask("delete_groups", version, groups_names=[group]).results
        assert deleted.group_id == group
        return deleted.error_code

    assert delete() == NON_EMPTY_GROUP
    one.leave()
    assert delete() == NONE
    assert state(connection, group) == "Dead"
    assert delete() == GROUP_ID_NOT_FOUND


def test_a_look_at_the_offsets_topic_makes_it_as_the_broker_would(start_broker, wire):
    connection = wire(start_broker().bootstrap)
    (topic,) = connection.ask(
        "metadata", 12, topics=[{"name": "__consumer_offsets"}], allow_auto_topic_creation=True
    ).topics
    assert topic.is_internal
    assert len(topic.partitions) == 50
