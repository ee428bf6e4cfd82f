"""Who is there and who leads what.

Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75).
"""

from __future__ import annotations

from ottla.protocol.primitives import ZERO_UUID
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
class MetadataRequestTopic:
    """A topic asked for by name, or by id (12) with a null name."""

    topic_id: bytes = uuid(versions="10+", ignorable=True, default=ZERO_UUID)
    name: str | None = string(nullable="10+")


@message(api_key=3, kind="request", versions="0-13", flexible="9+")
class MetadataRequest:
    """Asks about topics: null for all of them, empty for none (in 0: empty for all).

    4 auto-creation, 8 authorized operations, 9 flexible, 10 topic ids (usable from 12).
    """

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean(versions="4+", default=True)
    include_cluster_authorized_operations: bool = boolean(versions="8-10", default=False)
    include_topic_authorized_operations: bool = boolean(versions="8+", default=False)


@struct
class MetadataResponseBroker:
    """Where one broker is reached."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(versions="1+", nullable="1+", ignorable=True, default=None)


@struct
class MetadataResponsePartition:
    """Leader, replicas and in-sync replicas of one partition."""

    error_code: int = int16(default=0)
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(versions="7+", ignorable=True, default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, versions="5+", ignorable=True, factory=list)


@struct
class MetadataResponseTopic:
    """One topic; the name is null when an unknown id was asked for."""

    error_code: int = int16(default=0)
    name: str | None = string(nullable="12+")
    topic_id: bytes = uuid(versions="10+", ignorable=True, default=ZERO_UUID)
    is_internal: bool = boolean(versions="1+", ignorable=True, default=False)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(versions="8+", default=-(1 << 31))


@message(api_key=3, kind="response", versions="0-13", flexible="9+")
class MetadataResponse:
    """The brokers, and the topics asked for.

    1 rack, controller and internal flag, 2 cluster id, 3 throttle time, 5 offline replicas,
    7 leader epoch, 8 authorized operations, 9 flexible, 10 topic ids, 13 error of the whole.
    """

    throttle_time_ms: int = int32(versions="3+", ignorable=True, default=0)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(versions="2+", nullable="2+", ignorable=True, default=None)
    controller_id: int = int32(versions="1+", ignorable=True, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(versions="8-10", default=-(1 << 31))
    error_code: int = int16(versions="13+", ignorable=True, default=0)


@message(api_key=60, kind="request", versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """Asks about brokers (or, 1+, controllers); 2 may include fenced ones."""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(versions="1+", default=1)
    include_fenced_brokers: bool = boolean(versions="2+", default=False)


@struct
class DescribeClusterBroker:
    """Where one broker is reached."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)
    is_fenced: bool = boolean(versions="2+", default=False)


@message(api_key=60, kind="response", versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The cluster's id, controller and brokers."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = int8(versions="1+", default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-(1 << 31))


@struct
class TopicRequest:
    """A topic asked for."""

    name: str = string()


@struct
class Cursor:
    """Where the next page begins."""

    topic_name: str = string()
    partition_index: int = int32()


@message(api_key=75, kind="request", versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    """Asks about topics, one page at a time (KIP-966)."""

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = nested(Cursor, nullable="0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    """One partition, with its eligible leader replicas."""

    error_code: int = int16(default=0)
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    eligible_leader_replicas: list[int] | None = array(int32, nullable="0+", default=None)
    last_known_elr: list[int] | None = array(int32, nullable="0+", default=None)
    offline_replicas: list[int] = array(int32)


@struct
class DescribeTopicPartitionsResponseTopic:
    """One topic."""

    error_code: int = int16(default=0)
    name: str | None = string(nullable="0+")
    topic_id: bytes = uuid()
    is_internal: bool = boolean(default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = int32(default=-(1 << 31))


@message(api_key=75, kind="response", versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    """One page of topics; the cursor is null on the last."""

    throttle_time_ms: int = int32(default=0)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = nested(Cursor, nullable="0+", default=None)
