"""Produce (0): record batches on their way to partition leaders.

Kafka 4 answers versions 0 to 2 with an error; their layouts are here so that the error can be
written. From 13 on, topics are named by id.
"""

from __future__ import annotations

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import (
    array,
    batches,
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
class PartitionProduceData:
    """The batches for one partition."""

    index: int = int32()
    records: memoryview | None = batches(nullable="0+")


@struct
class TopicProduceData:
    """The partitions of one topic; the id replaces the name in 13."""

    name: str = string(versions="0-12", ignorable=True, default="")
    topic_id: bytes = uuid(versions="13+", ignorable=True, default=ZERO_UUID)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@message(api_key=0, kind="request", versions="0-13", flexible="9+")
class ProduceRequest:
    """Batches to append.

    3 transactional id and batch format 2, 7 zstd, 9 flexible, 12 implies AddPartitionsToTxn once
    transaction.version 2 is finalized, 13 topic ids. `acks` is 0, 1 or -1.
    """

    transactional_id: str | None = string(versions="3+", nullable="3+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@struct
class BatchIndexAndErrorMessage:
    """A record that made its batch unacceptable, and why."""

    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable="8+", default=None)


@struct
class LeaderIdAndEpoch:
    """Who leads now; -1 when unknown."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


@struct
class PartitionProduceResponse:
    """What became of one partition's batches."""

    index: int = int32()
    error_code: int = int16(default=0)
    base_offset: int = int64()
    log_append_time_ms: int = int64(versions="2+", ignorable=True, default=-1)
    log_start_offset: int = int64(versions="5+", ignorable=True, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, versions="8+", ignorable=True, factory=list
    )
    error_message: str | None = string(versions="8+", nullable="8+", ignorable=True, default=None)
    current_leader: LeaderIdAndEpoch | None = nested(
        LeaderIdAndEpoch, versions="10+", tag=0, default=None
    )


@struct
class TopicProduceResponse:
    """The partitions of one topic; the id replaces the name in 13."""

    name: str = string(versions="0-12", ignorable=True, default="")
    topic_id: bytes = uuid(versions="13+", ignorable=True, default=ZERO_UUID)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@struct
class NodeEndpoint:
    """Where a new leader named in this response can be reached."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="10+", default=None)


@message(api_key=0, kind="response", versions="0-13", flexible="9+")
class ProduceResponse:
    """The outcome per partition.

    1 throttle time, 2 append time, 5 log start offset, 8 record errors, 9 flexible, 10 new leaders
    (KIP-951), 13 topic ids. Not sent at all for acks=0.
    """

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="10+", tag=0, factory=list)
