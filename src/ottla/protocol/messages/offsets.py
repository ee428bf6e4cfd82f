"""Positions in a log: ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23)."""

from __future__ import annotations

from ottla.protocol.schema import array, int8, int16, int32, int64, message, string, struct


@struct
class ListOffsetsPartition:
    """One partition and the timestamp to look up.

    Special timestamps: -1 latest, -2 earliest, -3 greatest timestamp (7), -4 earliest local (8),
    -5 latest tiered (9), -6 earliest pending upload (11).
    """

    partition_index: int = int32()
    current_leader_epoch: int = int32(versions="4+", ignorable=True, default=-1)
    timestamp: int = int64()


@struct
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@message(api_key=2, kind="request", versions="1-11", flexible="6+")
class ListOffsetsRequest:
    """Asks for the offsets that belong to timestamps.

    2 isolation level, 4 leader epoch, 6 flexible, 10 a timeout for tiered look-ups.
    """

    replica_id: int = int32()
    isolation_level: int = int8(versions="2+", default=0)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(versions="10+", ignorable=True, default=0)


@struct
class ListOffsetsPartitionResponse:
    """The offset found, -1 when there is none."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(versions="4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@message(api_key=2, kind="response", versions="1-11", flexible="6+")
class ListOffsetsResponse:
    """The offsets found. 2 throttle time, 4 leader epoch, 6 flexible."""

    throttle_time_ms: int = int32(versions="2+", ignorable=True, default=0)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


@struct
class DeleteRecordsPartition:
    """Up to which offset to delete; -1 for the high watermark."""

    partition_index: int = int32()
    offset: int = int64()


@struct
class DeleteRecordsTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@message(api_key=21, kind="request", versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Asks to delete the beginning of logs. 2 flexible."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


@struct
class DeleteRecordsPartitionResult:
    """The new start of one log."""

    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16(default=0)


@struct
class DeleteRecordsTopicResult:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@message(api_key=21, kind="response", versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """The new starts of the logs. 2 flexible."""

    throttle_time_ms: int = int32(default=0)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


@struct
class OffsetForLeaderPartition:
    """One partition and the epoch asked about."""

    partition: int = int32()
    current_leader_epoch: int = int32(default=-1)
    leader_epoch: int = int32()


@struct
class OffsetForLeaderTopic:
    """The partitions of one topic."""

    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@message(api_key=23, kind="request", versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    """Asks where leader epochs ended.

    3 says which replica asks: -1 a consumer, -2 one that may look beyond the high watermark.
    4 flexible.
    """

    replica_id: int = int32(versions="3+", ignorable=True, default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@struct
class EpochEndOffset:
    """An epoch and the offset at which it ended."""

    error_code: int = int16(default=0)
    partition: int = int32()
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@struct
class OffsetForLeaderTopicResult:
    """The partitions of one topic."""

    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


@message(api_key=23, kind="response", versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    """Where the epochs ended. 4 flexible."""

    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
