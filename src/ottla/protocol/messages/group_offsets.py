"""What a group has consumed: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47)."""

from __future__ import annotations

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, uuid


@struct
class OffsetCommitRequestPartition:
    """The offset to commit for one partition."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="6+", ignorable=True, default=-1)
    committed_metadata: str | None = string(nullable="0+")


@struct
class OffsetCommitRequestTopic:
    """The partitions of one topic; the id replaces the name in 10."""

    name: str = string(versions="0-9", ignorable=True, default="")
    topic_id: bytes = uuid(versions="10+", ignorable=True, default=ZERO_UUID)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@message(api_key=8, kind="request", versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """Records how far a group has come.

    5 drops the retention time, 6 leader epoch, 7 static members, 8 flexible, 9 also for KIP-848
    groups, 10 topic ids.
    """

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(versions="7+", nullable="7+", default=None)
    retention_time_ms: int = int64(versions="2-4", ignorable=True, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@struct
class OffsetCommitResponsePartition:
    """What became of one commit."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class OffsetCommitResponseTopic:
    """The partitions of one topic; the id replaces the name in 10."""

    name: str = string(versions="0-9", ignorable=True, default="")
    topic_id: bytes = uuid(versions="10+", ignorable=True, default=ZERO_UUID)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@message(api_key=8, kind="response", versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """The outcome per partition. 3 throttle time, 8 flexible, 10 topic ids."""

    throttle_time_ms: int = int32(versions="3+", ignorable=True, default=0)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic, up to version 7."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic, from 8 on; the id replaces the name in 10."""

    name: str = string(versions="8-9", ignorable=True, default="")
    topic_id: bytes = uuid(versions="10+", ignorable=True, default=ZERO_UUID)
    partition_indexes: list[int] = array(int32)


@struct
class OffsetFetchRequestGroup:
    """One group; null topics for all it has committed."""

    group_id: str = string()
    member_id: str | None = string(versions="9+", nullable="9+", ignorable=True, default=None)
    member_epoch: int = int32(versions="9+", ignorable=True, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable="8+")


@message(api_key=9, kind="request", versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """Asks how far groups have come; null topics for everything.

    2 null topics, 6 flexible, 7 only stable offsets, 8 several groups in place of one, 9 member and
    epoch for KIP-848 groups, 10 topic ids.
    """

    group_id: str = string(versions="0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, versions="0-7", nullable="2-7", factory=list
    )
    groups: list[OffsetFetchRequestGroup] = array(
        OffsetFetchRequestGroup, versions="8+", factory=list
    )
    require_stable: bool = boolean(versions="7+", default=False)


@struct
class OffsetFetchResponsePartition:
    """A committed offset, up to version 7."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="5-7", ignorable=True, default=-1)
    metadata: str | None = string(nullable="0-7")
    error_code: int = int16(default=0)


@struct
class OffsetFetchResponseTopic:
    """Partitions of one topic, up to version 7."""

    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


@struct
class OffsetFetchResponsePartitions:
    """A committed offset, from 8 on."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable="8+")
    error_code: int = int16(default=0)


@struct
class OffsetFetchResponseTopics:
    """Partitions of one topic, from 8 on; the id replaces the name in 10."""

    name: str = string(versions="8-9", ignorable=True, default="")
    topic_id: bytes = uuid(versions="10+", ignorable=True, default=ZERO_UUID)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


@struct
class OffsetFetchResponseGroup:
    """The offsets of one group."""

    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16(default=0)


@message(api_key=9, kind="response", versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """The committed offsets; -1 where there is none.

    2 error of the whole, 3 throttle time, 5 leader epoch, 6 flexible, 8 several groups in place of
    one, 10 topic ids.
    """

    throttle_time_ms: int = int32(versions="3+", ignorable=True, default=0)
    topics: list[OffsetFetchResponseTopic] = array(
        OffsetFetchResponseTopic, versions="0-7", factory=list
    )
    error_code: int = int16(versions="2-7", ignorable=True, default=0)
    groups: list[OffsetFetchResponseGroup] = array(
        OffsetFetchResponseGroup, versions="8+", factory=list
    )


@struct
class OffsetDeleteRequestPartition:
    """One partition."""

    partition_index: int = int32()


@struct
class OffsetDeleteRequestTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@message(api_key=47, kind="request", versions="0", flexible="none")
class OffsetDeleteRequest:
    """Asks to forget committed offsets. Never became flexible."""

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@struct
class OffsetDeleteResponsePartition:
    """What became of one offset."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class OffsetDeleteResponseTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@message(api_key=47, kind="response", versions="0", flexible="none")
class OffsetDeleteResponse:
    """The forgotten offsets."""

    error_code: int = int16(default=0)
    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
