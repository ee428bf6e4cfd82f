"""Groups whose partitions the broker assigns (KIP-848): 68 and 69.

Versions   ConsumerGroupHeartbeat 0-1, ConsumerGroupDescribe 0-1. Version 1 of the heartbeat adds
           subscription by pattern and leaves the member id to the client.
Behaviour  A pattern is in RE2's syntax and is matched after the heartbeat that brings it has been
           answered: what it finds comes with one of the next.
           Without `consumer` among `group.coordinator.rebalance.protocols` both are refused with
           UNSUPPORTED_VERSION. Clients have nothing to fall back to: they report it and stop.
Odd        A group that does not exist, or is a classic one, is GROUP_ID_NOT_FOUND; a classic group
           that may not be upgraded is so too.
Not done   Authorization: a pattern finds every topic.
See        KIP-848, KIP-1082, KIP-1099
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.commands import (
    ConsumerAlive,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    DescribedConsumer,
    DescribedConsumerGroup,
    NamedPartitions,
)
from ottla.coordinator.group.consumer_group import AWAY_EPOCH, LEFT_EPOCH
from ottla.coordinator.group.group import check_group_id, client_at
from ottla.coordinator.replies import attempt, gather, then
from ottla.dispatch.context import Request, Services
from ottla.dispatch.pieces import ListOf
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages import consumer_groups as wire
from ottla.runtime.waiters import Deferred

PROTOCOL = "consumer"
MOST_TOPICS = 1 << 15  # of a member: they are handled in one go
CLIENT_CHOOSES_ID_SINCE = 1

# What an anonymous client may do while there is no authorizer: bit n stands for ACL operation n.
NOT_ASKED = -(2**31)
GROUP_OPERATIONS = sum(1 << op for op in (3, 6, 8, 10, 11))

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


# --- ConsumerGroupHeartbeat -----------------------------------------------------------------------


def _heartbeat_failed(
    request: Request[wire.ConsumerGroupHeartbeatRequest], error: KafkaError
) -> wire.ConsumerGroupHeartbeatResponse:
    return wire.ConsumerGroupHeartbeatResponse(
        error_code=error.code,
        error_message=error.message or error.code.text,
        member_epoch=0,
        heartbeat_interval_ms=0,
    )


@handles(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=range(2),
    failure=_heartbeat_failed,
    most=1 << 17,
)
def consumer_group_heartbeat(
    request: Request[wire.ConsumerGroupHeartbeatRequest], services: Services
) -> wire.ConsumerGroupHeartbeatResponse | Deferred[wire.ConsumerGroupHeartbeatResponse]:
    body = request.body
    _check_enabled(services)
    _check(body, request.api_version, services.config.group_consumer_assignors)
    owned, topics = body.topic_partitions, body.subscribed_topic_names
    if len(owned or ()) > MOST_TOPICS or len(topics or ()) > MOST_TOPICS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {MOST_TOPICS} topics")
    command = ConsumerHeartbeat(
        body.group_id,
        body.member_id,
        body.member_epoch,
        client_at(request.client_id or "", request.connection.peer),
        body.instance_id,
        body.rack_id,
        body.rebalance_timeout_ms,
        None if topics is None else tuple(topics),
        body.subscribed_topic_regex,
        body.server_assignor,
        None if owned is None else _partitions(owned),
    )
    return then(services.groups.consumer_heartbeat(command), _alive)


def _check_enabled(services: Services) -> None:
    if PROTOCOL not in services.config.group_coordinator_rebalance_protocols:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The consumer protocol is switched off.")


def _check(
    body: wire.ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """What a heartbeat must and must not say, whoever sends it."""
    epoch = body.member_epoch
    if version >= CLIENT_CHOOSES_ID_SINCE or epoch > 0 or epoch == LEFT_EPOCH:
        _not_blank("MemberId", body.member_id)
    _not_blank("GroupId", body.group_id)
    _not_blank("InstanceId", body.instance_id)
    _not_blank("RackId", body.rack_id)
    if epoch == 0:
        if body.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if body.topic_partitions is None or body.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    elif epoch == AWAY_EPOCH:
        if body.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < AWAY_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if body.server_assignor is not None and body.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def _not_blank(name: str, value: str | None) -> None:
    if value is not None and not value.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _partitions(topics: Sequence[wire.TopicPartitions]) -> Partitions:
    owned: dict[TopicId, frozenset[int]] = {}
    for entry in topics:
        topic = TopicId(entry.topic_id)
        owned[topic] = owned.get(topic, frozenset()) | frozenset(entry.partitions)
    return owned


def _alive(reply: ConsumerAlive) -> wire.ConsumerGroupHeartbeatResponse:
    assignment = reply.assignment
    return wire.ConsumerGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=None
        if assignment is None
        else wire.Assignment(
            topic_partitions=[
                wire.TopicPartitions(topic_id=topic, partitions=sorted(assignment[topic]))
                for topic in assignment
            ]
        ),
    )


# --- ConsumerGroupDescribe ------------------------------------------------------------------------


@handles(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=range(2),
    pieces=ListOf("group_ids", "groups", answered_within="members", piece=32),
)
def consumer_group_describe(
    request: Request[wire.ConsumerGroupDescribeRequest], services: Services
) -> wire.ConsumerGroupDescribeResponse | Deferred[wire.ConsumerGroupDescribeResponse]:
    body = request.body

    def ask(group_id: str) -> DescribedConsumerGroup | Deferred[DescribedConsumerGroup]:
        _check_enabled(services)
        check_group_id(group_id)
        reply: DescribedConsumerGroup | Deferred[DescribedConsumerGroup] = services.groups.run(
            DescribeConsumerGroup(group_id)
        )
        return reply

    def described(
        replies: Sequence[DescribedConsumerGroup | KafkaError],
    ) -> wire.ConsumerGroupDescribeResponse:
        return wire.ConsumerGroupDescribeResponse(
            groups=[
                _undescribed(group_id, reply)
                if isinstance(reply, KafkaError)
                else _described(reply, body.include_authorized_operations)
                for group_id, reply in zip(body.group_ids, replies, strict=True)
            ]
        )

    return then(gather([attempt(partial(ask, group_id)) for group_id in body.group_ids]), described)


def _undescribed(group_id: str, error: KafkaError) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        error_code=error.code,
        error_message=error.message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _described(group: DescribedConsumerGroup, operations: bool) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(member) for member in group.members],
        authorized_operations=GROUP_OPERATIONS if operations else NOT_ASKED,
    )


def _member(member: DescribedConsumer) -> wire.Member:
    return wire.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client.id,
        client_host=member.client.host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(member.assignment),
        target_assignment=_assignment(member.target),
        member_type=CLASSIC_MEMBER if member.classic else CONSUMER_MEMBER,
    )


def _assignment(named: Sequence[NamedPartitions]) -> wire.DescribedAssignment:
    return wire.DescribedAssignment(
        topic_partitions=[
            wire.DescribedTopicPartitions(
                topic_id=topic.topic_id, topic_name=topic.topic, partitions=list(topic.partitions)
            )
            for topic in named
        ]
    )
