"""Who keeps the cluster's metadata: DescribeQuorum (55)."""

from __future__ import annotations

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import (
    array,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uint16,
    uuid,
)


@struct
class DescribeQuorumPartition:
    """A partition asked for."""

    partition_index: int = int32()


@struct
class DescribeQuorumTopic:
    """A topic asked for."""

    topic_name: str = string()
    partitions: list[DescribeQuorumPartition] = array(DescribeQuorumPartition)


@message(api_key=55, kind="request", versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """Asks who leads and who follows the metadata log."""

    topics: list[DescribeQuorumTopic] = array(DescribeQuorumTopic)


@struct
class QuorumReplica:
    """A voter or an observer, and how far it has come."""

    replica_id: int = int32()
    replica_directory_id: bytes = uuid(versions="2+", default=ZERO_UUID)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(versions="1+", ignorable=True, default=-1)
    last_caught_up_timestamp: int = int64(versions="1+", ignorable=True, default=-1)


@struct
class QuorumPartition:
    """One partition of the metadata log."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(versions="2+", nullable="2+", ignorable=True, default="")
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)
    high_watermark: int = int64(default=0)
    current_voters: list[QuorumReplica] = array(QuorumReplica)
    observers: list[QuorumReplica] = array(QuorumReplica)


@struct
class QuorumTopic:
    """The metadata log."""

    topic_name: str = string()
    partitions: list[QuorumPartition] = array(QuorumPartition)


@struct
class QuorumListener:
    """Where a controller listens."""

    name: str = string()
    host: str = string()
    port: int = uint16()


@struct
class QuorumNode:
    """A controller."""

    node_id: int = int32()
    listeners: list[QuorumListener] = array(QuorumListener)


@message(api_key=55, kind="response", versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """Leader, voters and observers. 1 times, 2 error messages, folders and nodes."""

    error_code: int = int16(default=0)
    error_message: str | None = string(versions="2+", nullable="2+", ignorable=True, default="")
    topics: list[QuorumTopic] = array(QuorumTopic)
    nodes: list[QuorumNode] = array(QuorumNode, versions="2+", factory=list)
