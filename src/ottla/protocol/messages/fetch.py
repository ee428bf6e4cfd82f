"""Fetch (1): record batches on their way to consumers and followers.

From 7 on a request may be incremental (KIP-227), from 13 on topics are named by id.
"""

from __future__ import annotations

from collections.abc import Sized

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import (
    array,
    batches,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    string,
    struct,
    uuid,
)


@struct
class ReplicaState:
    """The follower that asks, and its broker epoch; -1 for a consumer."""

    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


@struct
class FetchPartition:
    """From where to read one partition, and how much.

    The directory id (17) and the high watermark (18, KIP-1166) are for KRaft's own log.
    """

    partition: int = int32()
    current_leader_epoch: int = int32(versions="9+", ignorable=True, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(versions="12+", default=-1)
    log_start_offset: int = int64(versions="5+", ignorable=True, default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(versions="17+", tag=0, ignorable=True, default=ZERO_UUID)
    high_watermark: int = int64(versions="18+", tag=1, ignorable=True, default=(1 << 63) - 1)


@struct
class FetchTopic:
    """The partitions of one topic; the id replaces the name in 13."""

    topic: str = string(versions="0-12", ignorable=True, default="")
    topic_id: bytes = uuid(versions="13+", ignorable=True, default=ZERO_UUID)
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    """Partitions to drop from the fetch session."""

    topic: str = string(versions="7-12", ignorable=True, default="")
    topic_id: bytes = uuid(versions="13+", ignorable=True, default=ZERO_UUID)
    partitions: list[int] = array(int32)


@message(api_key=1, kind="request", versions="4-18", flexible="12+")
class FetchRequest:
    """What to read, complete or as a change to a fetch session.

    5 log start offset, 7 sessions, 9 leader epoch, 11 rack, 12 flexible and last fetched epoch,
    13 topic ids, 15 replica state in place of the replica id.
    """

    cluster_id: str | None = string(
        versions="12+", nullable="12+", tag=0, ignorable=True, default=None
    )
    replica_id: int = int32(versions="0-14", default=-1)
    replica_state: ReplicaState | None = nested(ReplicaState, versions="15+", tag=1, default=None)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    isolation_level: int = int8(default=0)
    session_id: int = int32(versions="7+", ignorable=True, default=0)
    session_epoch: int = int32(versions="7+", ignorable=True, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, versions="7+", factory=list)
    rack_id: str = string(versions="11+", ignorable=True, default="")


@struct
class EpochEndOffset:
    """An epoch and the offset at which it ended."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@struct
class LeaderIdAndEpoch:
    """Who leads now; -1 when unknown."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class SnapshotId:
    """The snapshot a KRaft replica should fetch instead."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@struct
class AbortedTransaction:
    """A transaction whose records a read_committed consumer must drop."""

    producer_id: int = int64()
    first_offset: int = int64()


@struct
class PartitionData:
    """What was read from one partition.

    `records` may be a region of a file: encoding hands the object on untouched. Decoding gives a
    memoryview. Null aborted transactions mean that the reader is not read_committed.
    """

    partition_index: int = int32()
    error_code: int = int16(default=0)
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", ignorable=True, default=-1)
    diverging_epoch: EpochEndOffset | None = nested(
        EpochEndOffset, versions="12+", tag=0, default=None
    )
    current_leader: LeaderIdAndEpoch | None = nested(
        LeaderIdAndEpoch, versions="12+", tag=1, default=None
    )
    snapshot_id: SnapshotId | None = nested(SnapshotId, versions="12+", tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, nullable="4+", default=None
    )
    preferred_read_replica: int = int32(versions="11+", default=-1)
    records: Sized | None = batches(nullable="0+")


@struct
class FetchableTopicResponse:
    """The partitions of one topic; the id replaces the name in 13."""

    topic: str = string(versions="0-12", ignorable=True, default="")
    topic_id: bytes = uuid(versions="13+", ignorable=True, default=ZERO_UUID)
    partitions: list[PartitionData] = array(PartitionData)


@struct
class NodeEndpoint:
    """Where a new leader named in this response can be reached."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="16+", default=None)


@message(api_key=1, kind="response", versions="4-18", flexible="12+")
class FetchResponse:
    """Batches, per partition.

    5 log start offset, 7 sessions, 11 preferred replica, 12 flexible and diverging epoch, 13 topic
    ids, 16 where new leaders are (KIP-951).
    """

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(versions="7+", ignorable=True, default=0)
    session_id: int = int32(versions="7+", default=0)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="16+", tag=0, factory=list)
