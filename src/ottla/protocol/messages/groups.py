"""Groups of the classic protocol, and where their coordinator is.

FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14),
DescribeGroups (15), ListGroups (16), DeleteGroups (42).
"""

from __future__ import annotations

from ottla.protocol.schema import (
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@message(api_key=10, kind="request", versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Asks who coordinates a group (0), a transactional id (1) or a share (2).

    1 key type, 3 flexible, 4 several keys at once in place of one (KIP-699).
    """

    key: str = string(versions="0-3", default="")
    key_type: int = int8(versions="1+", default=0)
    coordinator_keys: list[str] = array(string, versions="4+", factory=list)


@struct
class Coordinator:
    """Who coordinates one key."""

    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="4+", default=None)


@message(api_key=10, kind="response", versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators. 1 throttle time and message, 3 flexible, 4 several."""

    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    error_code: int = int16(versions="0-3", default=0)
    error_message: str | None = string(versions="1-3", nullable="1-3", ignorable=True, default=None)
    node_id: int = int32(versions="0-3", default=0)
    host: str = string(versions="0-3", default="")
    port: int = int32(versions="0-3", default=0)
    coordinators: list[Coordinator] = array(Coordinator, versions="4+", factory=list)


@struct
class JoinGroupRequestProtocol:
    """An assignment strategy the member offers, with its subscription."""

    name: str = string()
    metadata: bytes = binary()


@message(api_key=11, kind="request", versions="0-9", flexible="6+")
class JoinGroupRequest:
    """A member enters a rebalance.

    1 rebalance timeout (before, the session timeout serves), 4 a first request without id is sent
    back with one, 5 static members, 6 flexible, 8 reason.
    """

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(versions="1+", ignorable=True, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(versions="5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(versions="8+", nullable="8+", ignorable=True, default=None)


@struct
class JoinGroupResponseMember:
    """A member as the leader sees it."""

    member_id: str = string()
    group_instance_id: str | None = string(
        versions="5+", nullable="5+", ignorable=True, default=None
    )
    metadata: bytes = binary()


@message(api_key=11, kind="response", versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The generation that was formed; only the leader gets the members.

    2 throttle time, 5 static members, 6 flexible, 7 protocol type and nullable name, 9 the leader
    may be told to keep the old assignment.
    """

    throttle_time_ms: int = int32(versions="2+", ignorable=True, default=0)
    error_code: int = int16(default=0)
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(versions="7+", nullable="7+", ignorable=True, default=None)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean(versions="9+", default=False)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


@struct
class SyncGroupRequestAssignment:
    """What the leader gives one member."""

    member_id: str = string()
    assignment: bytes = binary()


@message(api_key=14, kind="request", versions="0-5", flexible="4+")
class SyncGroupRequest:
    """A member asks for its assignment; the leader brings everybody's.

    3 static members, 4 flexible, 5 protocol type and name for checking.
    """

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+", default=None)
    protocol_type: str | None = string(versions="5+", nullable="5+", ignorable=True, default=None)
    protocol_name: str | None = string(versions="5+", nullable="5+", ignorable=True, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@message(api_key=14, kind="response", versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The member's assignment. 1 throttle time, 4 flexible, 5 protocol."""

    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    error_code: int = int16(default=0)
    protocol_type: str | None = string(versions="5+", nullable="5+", ignorable=True, default=None)
    protocol_name: str | None = string(versions="5+", nullable="5+", ignorable=True, default=None)
    assignment: bytes = binary()


@message(api_key=12, kind="request", versions="0-4", flexible="4+")
class HeartbeatRequest:
    """A member is alive. 3 static members, 4 flexible."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+", default=None)


@message(api_key=12, kind="response", versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Whether a rebalance has begun. 1 throttle time, 4 flexible."""

    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    error_code: int = int16(default=0)


@struct
class MemberIdentity:
    """A member that leaves."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable="3+", default=None)
    reason: str | None = string(versions="5+", nullable="5+", ignorable=True, default=None)


@message(api_key=13, kind="request", versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Members leave: one, or from 3 on several. 4 flexible, 5 reason."""

    group_id: str = string()
    member_id: str = string(versions="0-2", default="")
    members: list[MemberIdentity] = array(MemberIdentity, versions="3+", factory=list)


@struct
class MemberResponse:
    """What became of one member."""

    member_id: str = string()
    group_instance_id: str | None = string(nullable="3+")
    error_code: int = int16(default=0)


@message(api_key=13, kind="response", versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """The members that left. 1 throttle time, 3 one entry per member, 4 flexible."""

    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    error_code: int = int16(default=0)
    members: list[MemberResponse] = array(MemberResponse, versions="3+", factory=list)


@message(api_key=15, kind="request", versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """Asks about groups. 3 authorized operations, 5 flexible."""

    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(versions="3+", default=False)


@struct
class DescribedGroupMember:
    """One member; metadata and assignment are filled in a stable group only."""

    member_id: str = string()
    group_instance_id: str | None = string(
        versions="4+", nullable="4+", ignorable=True, default=None
    )
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = binary()
    member_assignment: bytes = binary()


@struct
class DescribedGroup:
    """One group."""

    error_code: int = int16(default=0)
    error_message: str | None = string(versions="6+", nullable="6+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(versions="3+", default=-(1 << 31))


@message(api_key=15, kind="response", versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """The groups.

    1 throttle time, 3 authorized operations, 4 static members, 5 flexible, 6 an unknown group is
    an error with a message.
    """

    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    groups: list[DescribedGroup] = array(DescribedGroup)


@message(api_key=16, kind="request", versions="0-5", flexible="3+")
class ListGroupsRequest:
    """Asks which groups there are. 3 flexible, 4 filter by state, 5 by type."""

    states_filter: list[str] = array(string, versions="4+", factory=list)
    types_filter: list[str] = array(string, versions="5+", factory=list)


@struct
class ListedGroup:
    """One group."""

    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(versions="4+", ignorable=True, default="")
    group_type: str = string(versions="5+", ignorable=True, default="")


@message(api_key=16, kind="response", versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups. 1 throttle time, 3 flexible, 4 state, 5 type."""

    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    error_code: int = int16(default=0)
    groups: list[ListedGroup] = array(ListedGroup)


@message(api_key=42, kind="request", versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    """Asks to delete groups. 2 flexible."""

    groups_names: list[str] = array(string)


@struct
class DeletableGroupResult:
    """What became of one group."""

    group_id: str = string()
    error_code: int = int16(default=0)


@message(api_key=42, kind="response", versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    """The deleted groups. 2 flexible."""

    throttle_time_ms: int = int32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
