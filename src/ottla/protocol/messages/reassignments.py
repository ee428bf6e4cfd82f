"""Moving partitions to other replicas: Alter- (45) and ListPartitionReassignments (46)."""

from __future__ import annotations

from ottla.protocol.schema import array, boolean, int16, int32, message, string, struct


@struct
class ReassignablePartition:
    """Where a partition is to be; null ends what is in progress."""

    partition_index: int = int32()
    replicas: list[int] | None = array(int32, nullable="0+", default=None)


@struct
class ReassignableTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@message(api_key=45, kind="request", versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """Asks for other replicas. 1 whether their number may change (KIP-860)."""

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean(versions="1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@struct
class ReassignablePartitionResponse:
    """What became of one partition's reassignment."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


@struct
class ReassignableTopicResponse:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


@message(api_key=45, kind="response", versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """The outcome per partition. 1 as the request."""

    throttle_time_ms: int = int32(default=0)
    allow_replication_factor_change: bool = boolean(versions="1+", default=True)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


@struct
class ListPartitionReassignmentsTopics:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


@message(api_key=46, kind="request", versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """Asks what is being moved; null for everything."""

    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", default=None
    )


@struct
class OngoingPartitionReassignment:
    """One that is on its way."""

    partition_index: int = int32()
    replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)


@struct
class OngoingTopicReassignment:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@message(api_key=46, kind="response", versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """What is being moved."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
