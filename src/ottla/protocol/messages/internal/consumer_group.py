"""Groups of the consumer protocol (KIP-848), as `__consumer_offsets` keeps them.

Record types 3 to 8 and 16. Type 4 is no longer written (Kafka 4.1 keeps a hash in type 3 instead),
only deleted where an older broker left it.
"""

from __future__ import annotations

from ottla.protocol.schema import (
    array,
    binary,
    int8,
    int32,
    int64,
    message,
    nested,
    string,
    struct,
    uuid,
)


@message(api_key=3, kind="data", versions="0", flexible="none")
class ConsumerGroupMetadataKey:
    """Which group."""

    group_id: str = string()


@message(api_key=3, kind="data", versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The group's epoch, and a hash of the metadata of the topics it is subscribed to."""

    epoch: int = int32()
    metadata_hash: int = int64(tag=0, default=0)


@message(api_key=4, kind="data", versions="0", flexible="none")
class ConsumerGroupPartitionMetadataKey:
    """Which group."""

    group_id: str = string()


@struct
class PartitionMetadata:
    """The racks of one partition."""

    partition: int = int32()
    racks: list[str] = array(string)


@struct
class TopicMetadata:
    """One subscribed topic."""

    topic_id: bytes = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


@message(api_key=4, kind="data", versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    """The topics a group is subscribed to, up to Kafka 4.0."""

    topics: list[TopicMetadata] = array(TopicMetadata)


@message(api_key=5, kind="data", versions="0", flexible="none")
class ConsumerGroupMemberMetadataKey:
    """Which member."""

    group_id: str = string()
    member_id: str = string()


@struct
class ClassicProtocol:
    """An assignment strategy, with the subscription."""

    name: str = string()
    metadata: bytes = binary()


@struct
class ClassicMemberMetadata:
    """What a member that speaks the classic protocol brought."""

    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


@message(api_key=5, kind="data", versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """A member and its subscription.

    Null in the last field, for a member of the consumer protocol, is written out: left out, the
    field is an empty structure, and to Kafka that is a member of the classic protocol.
    """

    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = nested(
        ClassicMemberMetadata, nullable="0+", tag=0
    )


@message(api_key=6, kind="data", versions="0", flexible="none")
class ConsumerGroupTargetAssignmentMetadataKey:
    """Which group."""

    group_id: str = string()


@message(api_key=6, kind="data", versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of the target assignment."""

    assignment_epoch: int = int32()


@message(api_key=7, kind="data", versions="0", flexible="none")
class ConsumerGroupTargetAssignmentMemberKey:
    """Which member."""

    group_id: str = string()
    member_id: str = string()


@struct
class TopicPartitions:
    """Some partitions of one topic."""

    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


@message(api_key=7, kind="data", versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """What a member shall own."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


@message(api_key=8, kind="data", versions="0", flexible="none")
class ConsumerGroupCurrentMemberAssignmentKey:
    """Which member."""

    group_id: str = string()
    member_id: str = string()


@message(api_key=8, kind="data", versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """What a member owns, and what it still has to give up."""

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


@message(api_key=16, kind="data", versions="0", flexible="none")
class ConsumerGroupRegularExpressionKey:
    """Which expression of which group."""

    group_id: str = string()
    regular_expression: str = string()


@message(api_key=16, kind="data", versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """The topics an expression matched, in which version of the cluster's metadata and when."""

    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()
