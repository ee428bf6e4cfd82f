"""Groups of the classic protocol: 10-16 and 42.

Versions   FindCoordinator 0-6, JoinGroup 0-9, Heartbeat 0-4, LeaveGroup 0-5, SyncGroup 0-5,
           DescribeGroups 0-6, ListGroups 0-5, DeleteGroups 0-2.
Behaviour  FindCoordinator makes the offsets topic, or that of transactions, when it is asked for
           the first time. Kafka answers that COORDINATOR_NOT_AVAILABLE and makes it meanwhile; we
           make it and answer, which spares the client a retry.
           JoinGroup and SyncGroup are answered when all members have joined, and when the leader
           has sent its assignment. Other requests on the
           same connection are handled meanwhile; their answers wait their turn.
           What is refused with a member's id in hand (MEMBER_ID_REQUIRED) says it in the answer.
Odd        DescribeGroups knows classic groups only. Up to version 5 an unknown group is no error
           but `Dead`; from 6 on it is GROUP_ID_NOT_FOUND.
           Up to version 2 LeaveGroup is for one member, whose error is the answer's.
See        KIP-62, KIP-345, KIP-394, KIP-430, KIP-518, KIP-559, KIP-699, KIP-800, KIP-814, KIP-848,
           KIP-1043
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from ottla.coordinator.group.commands import (
    DescribedGroup,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    ListedGroup,
    ListGroups,
    Sync,
    Synced,
)
from ottla.coordinator.group.group import client_at
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.replies import then
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.features import TRANSACTIONS, allows
from ottla.protocol.apis import ApiKey
from ottla.protocol.decoder import FEW_ELEMENTS
from ottla.protocol.messages import groups as wire
from ottla.runtime.waiters import Deferred

MANY_KEYS = 4
GROUP_KEY, TRANSACTION_KEY = 0, 1
TOPICS = {GROUP_KEY: OFFSETS_TOPIC, TRANSACTION_KEY: TRANSACTIONS_TOPIC}

REBALANCE_TIMEOUT_SINCE = 1
ID_REQUIRED_SINCE = 4
NULLABLE_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9
PROTOCOL_REQUIRED_SINCE = 5
MANY_LEAVERS_SINCE = 3
NOT_FOUND_SINCE = 6

DEAD = "Dead"
NOT_FINALIZED = (
    "There are transactions when the upgrade of this cluster is finalized: "
    "`ottla cluster upgrade --finalize`"
)
# What an anonymous client may do while there is no authorizer: bit n stands for ACL operation n.
NOT_ASKED = -(2**31)
GROUP_OPERATIONS = sum(1 << op for op in (3, 6, 8, 10, 11))


# --- FindCoordinator ------------------------------------------------------------------------------

_Place = tuple[ErrorCode, str | None, int, str, int]
"""Error, message, node id, host, port."""


@handles(
    ApiKey.FIND_COORDINATOR,
    versions=range(7),
    pieces=ListOf("coordinator_keys", "coordinators", piece=64),
)
def find_coordinator(
    request: Request[wire.FindCoordinatorRequest], services: Services
) -> wire.FindCoordinatorResponse | Coroutine[Any, Any, wire.FindCoordinatorResponse]:
    topic = TOPICS.get(request.body.key_type)
    if topic is not None and topic not in services.image.topics and not _is_off(request, services):
        return _create_and_find(request, services, topic)
    return _found(request, services)


def _is_off(request: Request[wire.FindCoordinatorRequest], services: Services) -> bool:
    """Whether transactions are asked for that some brokers may not know."""
    if request.body.key_type == GROUP_KEY:
        return False
    return not allows(services.registry.features, TRANSACTIONS, 0)


async def _create_and_find(
    request: Request[wire.FindCoordinatorRequest], services: Services, topic: str
) -> wire.FindCoordinatorResponse:
    try:
        await services.internal_topics.ensure(topic)
    except KafkaError:
        return _found(request, services)  # it is not there: not available, as it stands
    await services.groups.wait_loaded()
    await services.transactions.wait_loaded()
    return _found(request, services)


def _found(
    request: Request[wire.FindCoordinatorRequest], services: Services
) -> wire.FindCoordinatorResponse:
    body = request.body
    if request.api_version < MANY_KEYS:
        code, message, node_id, host, port = _place(request, services, body.key)
        return wire.FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=node_id, host=host, port=port
        )
    answers = []
    for key in body.coordinator_keys:
        code, message, node_id, host, port = _place(request, services, key)
        answers.append(
            wire.Coordinator(
                key=key,
                node_id=node_id,
                host=host,
                port=port,
                error_code=code,
                error_message=message,
            )
        )
    return wire.FindCoordinatorResponse(coordinators=answers)


def _place(request: Request[wire.FindCoordinatorRequest], services: Services, key: str) -> _Place:
    kind = request.body.key_type
    if kind not in TOPICS:
        return ErrorCode.INVALID_REQUEST, f"unknown coordinator type {kind}", -1, "", -1
    if _is_off(request, services):
        return ErrorCode.UNSUPPORTED_VERSION, NOT_FINALIZED, -1, "", -1
    image = services.image
    topic = image.topics.get(TOPICS[kind])
    if topic is not None:
        coordinator = services.groups if kind == GROUP_KEY else services.transactions
        leader = topic.partitions[coordinator.partition_for(key)].leader
        broker = image.brokers.get(leader)
        endpoint = None if broker is None else broker.endpoints.get(request.listener)
        if endpoint is not None:
            return ErrorCode.NONE, None, leader, endpoint.host, endpoint.port
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.", -1, "", -1


# --- JoinGroup ------------------------------------------------------------------------------------


def _join_failed(
    request: Request[wire.JoinGroupRequest], error: KafkaError
) -> wire.JoinGroupResponse:
    return _joined(request, Joined(request.body.member_id, error.code))


@handles(ApiKey.JOIN_GROUP, versions=range(10), failure=_join_failed, most=FEW_ELEMENTS)
def join_group(
    request: Request[wire.JoinGroupRequest], services: Services
) -> wire.JoinGroupResponse | Deferred[wire.JoinGroupResponse]:
    body = request.body
    version = request.api_version
    has_timeout = version >= REBALANCE_TIMEOUT_SINCE
    command = Join(
        body.group_id,
        body.member_id,
        body.group_instance_id,
        client_at(request.client_id or "", request.connection.peer),
        body.session_timeout_ms,
        body.rebalance_timeout_ms if has_timeout else body.session_timeout_ms,
        body.protocol_type,
        tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        id_required=version >= ID_REQUIRED_SINCE,
        can_skip_assignment=version >= SKIP_ASSIGNMENT_SINCE,
        reason=body.reason,
    )
    return then(services.groups.join(command), lambda reply: _joined(request, reply))


def _joined(request: Request[wire.JoinGroupRequest], reply: Joined) -> wire.JoinGroupResponse:
    name = reply.protocol_name
    if name is None and request.api_version < NULLABLE_PROTOCOL_SINCE:
        name = ""
    return wire.JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            wire.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in reply.members
        ],
    )


# --- SyncGroup ------------------------------------------------------------------------------------


def _sync_failed(
    request: Request[wire.SyncGroupRequest], error: KafkaError
) -> wire.SyncGroupResponse:
    return wire.SyncGroupResponse(error_code=error.code, assignment=b"")


@handles(ApiKey.SYNC_GROUP, versions=range(6), failure=_sync_failed)
def sync_group(
    request: Request[wire.SyncGroupRequest], services: Services
) -> wire.SyncGroupResponse | Deferred[wire.SyncGroupResponse]:
    body = request.body
    if request.api_version >= PROTOCOL_REQUIRED_SINCE and (
        body.protocol_type is None or body.protocol_name is None
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    command = Sync(
        body.group_id,
        body.member_id,
        body.group_instance_id,
        body.generation_id,
        body.protocol_type,
        body.protocol_name,
        tuple((member.member_id, member.assignment) for member in body.assignments),
    )
    return then(services.groups.sync(command), _synced)


def _synced(reply: Synced) -> wire.SyncGroupResponse:
    return wire.SyncGroupResponse(
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


# --- Heartbeat, LeaveGroup ------------------------------------------------------------------------


def _heartbeat_failed(
    request: Request[wire.HeartbeatRequest], error: KafkaError
) -> wire.HeartbeatResponse:
    return wire.HeartbeatResponse(error_code=error.code)


@handles(ApiKey.HEARTBEAT, versions=range(5), failure=_heartbeat_failed)
def heartbeat(
    request: Request[wire.HeartbeatRequest], services: Services
) -> wire.HeartbeatResponse | Deferred[wire.HeartbeatResponse]:
    body = request.body
    try:
        reply = services.groups.heartbeat(
            Heartbeat(body.group_id, body.member_id, body.group_instance_id, body.generation_id)
        )
    except KafkaError as error:
        # How a member learns that it is a member no longer: not counted as a failure.
        return wire.HeartbeatResponse(error_code=error.code)
    return then(reply, _alive)


def _alive(code: ErrorCode) -> wire.HeartbeatResponse:
    return wire.HeartbeatResponse(error_code=code)


def _leave_failed(
    request: Request[wire.LeaveGroupRequest], error: KafkaError
) -> wire.LeaveGroupResponse:
    return wire.LeaveGroupResponse(error_code=error.code)


@handles(
    ApiKey.LEAVE_GROUP,
    versions=range(6),
    failure=_leave_failed,
    pieces=ListOf("members", "members", changes=True),
)
def leave_group(
    request: Request[wire.LeaveGroupRequest], services: Services
) -> wire.LeaveGroupResponse | Deferred[wire.LeaveGroupResponse]:
    body = request.body
    many = request.api_version >= MANY_LEAVERS_SINCE
    leavers = (
        tuple(
            Leaver(leaver.member_id, leaver.group_instance_id, leaver.reason)
            for leaver in body.members
        )
        if many
        else (Leaver(body.member_id),)
    )

    def left(codes: Sequence[ErrorCode]) -> wire.LeaveGroupResponse:
        if not many:
            return wire.LeaveGroupResponse(error_code=codes[0])
        return wire.LeaveGroupResponse(
            members=[
                wire.MemberResponse(
                    member_id=leaver.member_id,
                    group_instance_id=leaver.instance_id,
                    error_code=code,
                )
                for leaver, code in zip(leavers, codes, strict=True)
            ]
        )

    return then(services.groups.leave(Leave(body.group_id, leavers)), left)


# --- DescribeGroups -------------------------------------------------------------------------------


@handles(
    ApiKey.DESCRIBE_GROUPS,
    versions=range(7),
    pieces=ListOf("groups", "groups", answered_within="members", piece=32),
)
def describe_groups(
    request: Request[wire.DescribeGroupsRequest], services: Services
) -> wire.DescribeGroupsResponse | Deferred[wire.DescribeGroupsResponse]:
    group_ids = request.body.groups

    def described(
        replies: Sequence[DescribedGroup | KafkaError],
    ) -> wire.DescribeGroupsResponse:
        return wire.DescribeGroupsResponse(
            groups=[
                _undescribed(request, group_id, reply)
                if isinstance(reply, KafkaError)
                else _described(request, reply)
                for group_id, reply in zip(group_ids, replies, strict=True)
            ]
        )

    return then(services.groups.describe_groups(group_ids), described)


def _undescribed(
    request: Request[wire.DescribeGroupsRequest], group_id: str, error: KafkaError
) -> wire.DescribedGroup:
    code, message, state = error.code, error.message, ""
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        state = DEAD
        if request.api_version < NOT_FOUND_SINCE:
            code, message = ErrorCode.NONE, None
    return wire.DescribedGroup(
        error_code=code,
        error_message=message if request.api_version >= NOT_FOUND_SINCE else None,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=_operations(request) if code is ErrorCode.NONE else NOT_ASKED,
    )


def _described(
    request: Request[wire.DescribeGroupsRequest], group: DescribedGroup
) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            wire.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=_operations(request),
    )


def _operations(request: Request[wire.DescribeGroupsRequest]) -> int:
    return GROUP_OPERATIONS if request.body.include_authorized_operations else NOT_ASKED


# --- ListGroups, DeleteGroups ---------------------------------------------------------------------


def _list_failed(
    request: Request[wire.ListGroupsRequest], error: KafkaError
) -> wire.ListGroupsResponse:
    return wire.ListGroupsResponse(error_code=error.code, groups=[])


@handles(ApiKey.LIST_GROUPS, versions=range(6), failure=_list_failed)
def list_groups(
    request: Request[wire.ListGroupsRequest], services: Services
) -> wire.ListGroupsResponse | Deferred[wire.ListGroupsResponse]:
    body = request.body
    command = ListGroups(
        frozenset(state.strip().lower() for state in body.states_filter),
        frozenset(kind.lower() for kind in body.types_filter),
    )
    return then(services.groups.list_groups(command), _listed)


def _listed(groups: Sequence[ListedGroup]) -> wire.ListGroupsResponse:
    return wire.ListGroupsResponse(
        groups=[
            wire.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.type,
            )
            for group in groups
        ]
    )


@handles(
    ApiKey.DELETE_GROUPS,
    versions=range(3),
    pieces=ListOf("groups_names", "results", changes=True),
)
def delete_groups(
    request: Request[wire.DeleteGroupsRequest], services: Services
) -> wire.DeleteGroupsResponse | Deferred[wire.DeleteGroupsResponse]:
    group_ids = request.body.groups_names

    def deleted(replies: Sequence[KafkaError | None]) -> wire.DeleteGroupsResponse:
        return wire.DeleteGroupsResponse(
            results=[
                wire.DeletableGroupResult(
                    group_id=group_id,
                    error_code=ErrorCode.NONE if reply is None else reply.code,
                )
                for group_id, reply in zip(group_ids, replies, strict=True)
            ]
        )

    return then(services.groups.delete_groups(group_ids), deleted)
