"""Groups whose assignment the broker computes (KIP-848): ConsumerGroupHeartbeat (68),
ConsumerGroupDescribe (69).
"""

from __future__ import annotations

from ottla.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    nested,
    string,
    struct,
    uuid,
)


@struct
class TopicPartitions:
    """Some partitions of one topic."""

    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


@message(api_key=68, kind="request", versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """A member is alive, and says what has changed: null means "as before".

    Epoch 0 joins, -1 leaves, -2 leaves for a while (a static member). 1 adds subscription by
    pattern and lets the client choose its member id.
    """

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string(versions="1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable="0+", default=None
    )


@struct
class Assignment:
    """The partitions a member owns."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


@message(api_key=68, kind="response", versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment when it has changed."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nested(Assignment, nullable="0+", default=None)


@message(api_key=69, kind="request", versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """Asks about groups."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


@struct
class DescribedTopicPartitions:
    """Some partitions of one topic, with its name."""

    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


@struct
class DescribedAssignment:
    """The partitions a member owns, or shall own."""

    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


@struct
class Member:
    """One member. Types (1): -1 unknown, 0 classic, 1 consumer."""

    member_id: str = string()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    assignment: DescribedAssignment = nested(DescribedAssignment)
    target_assignment: DescribedAssignment = nested(DescribedAssignment)
    member_type: int = int8(versions="1+", ignorable=True, default=-1)


@struct
class DescribedGroup:
    """One group."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(default=-(1 << 31))


@message(api_key=69, kind="response", versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """The groups. 1 the type of each member."""

    throttle_time_ms: int = int32(default=0)
    groups: list[DescribedGroup] = array(DescribedGroup)
