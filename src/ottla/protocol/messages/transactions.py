"""Producer ids and their state: InitProducerId (22), DescribeProducers (61)."""

from __future__ import annotations

from ottla.protocol.schema import array, int16, int32, int64, message, string, struct


@message(api_key=22, kind="request", versions="0-5", flexible="2+")
class InitProducerIdRequest:
    """Asks for a producer id, fencing earlier users of the transactional id.

    2 flexible, 3 the producer's present id and epoch, to resume after an error.
    """

    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(versions="3+", default=-1)
    producer_epoch: int = int16(versions="3+", default=-1)


@message(api_key=22, kind="response", versions="0-5", flexible="2+")
class InitProducerIdResponse:
    """The producer id and epoch. 2 flexible."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


@struct
class TopicRequest:
    """Partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


@message(api_key=61, kind="request", versions="0", flexible="0+")
class DescribeProducersRequest:
    """Asks for the producers that a partition remembers (KIP-664)."""

    topics: list[TopicRequest] = array(TopicRequest)


@struct
class ProducerState:
    """One producer; -1 where it has no open transaction."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


@struct
class PartitionResponse:
    """The producers of one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState)


@struct
class TopicResponse:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


@message(api_key=61, kind="response", versions="0", flexible="0+")
class DescribeProducersResponse:
    """The producers per partition."""

    throttle_time_ms: int = int32(default=0)
    topics: list[TopicResponse] = array(TopicResponse)
