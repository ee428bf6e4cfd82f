"""Transactions and producer ids: 22, 24-28, 61, 65, 66."""

from __future__ import annotations

from ottla.protocol.schema import array, boolean, int8, int16, int32, int64, message, string, struct


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
class AddPartitionsToTxnTopic:
    """Partitions of one topic to add to a transaction."""

    name: str = string()
    partitions: list[int] = array(int32)


@struct
class AddPartitionsToTxnTransaction:
    """One of the transactions that a broker asks about, from version 4 on."""

    transactional_id: str = string(versions="4+")
    producer_id: int = int64(versions="4+")
    producer_epoch: int = int16(versions="4+")
    verify_only: bool = boolean(versions="4+", default=False)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, versions="4+")


@message(api_key=24, kind="request", versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Adds partitions to a transaction, or asks whether it includes them.

    2 PRODUCER_FENCED, 3 flexible, 4 many transactions (brokers), 5 TRANSACTION_ABORTABLE.
    """

    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, versions="4+", factory=list
    )
    v3_and_below_transactional_id: str = string(versions="0-3", default="")
    v3_and_below_producer_id: int = int64(versions="0-3", default=-1)
    v3_and_below_producer_epoch: int = int16(versions="0-3", default=-1)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, versions="0-3", factory=list
    )


@struct
class AddPartitionsToTxnPartitionResult:
    """What became of one partition."""

    partition_index: int = int32()
    partition_error_code: int = int16(default=0)


@struct
class AddPartitionsToTxnTopicResult:
    """Partitions of one topic."""

    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult
    )


@struct
class AddPartitionsToTxnResult:
    """One transaction, from version 4 on."""

    transactional_id: str = string(versions="4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, versions="4+"
    )


@message(api_key=24, kind="response", versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """What became of each partition. 3 flexible, 4 many transactions."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(versions="4+", ignorable=True, default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, versions="4+", factory=list
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, versions="0-3", factory=list
    )


@message(api_key=25, kind="request", versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Adds a group's offsets to a transaction. 2 PRODUCER_FENCED, 3 flexible."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


@message(api_key=25, kind="response", versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """The outcome. 3 flexible."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)


@message(api_key=26, kind="request", versions="0-5", flexible="3+")
class EndTxnRequest:
    """Commits or aborts. 2 PRODUCER_FENCED, 3 flexible, 5 raises the epoch (KIP-890)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


@message(api_key=26, kind="response", versions="0-5", flexible="3+")
class EndTxnResponse:
    """The outcome. 3 flexible, 5 the identity for the next transaction."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    producer_id: int = int64(versions="5+", ignorable=True, default=-1)
    producer_epoch: int = int16(versions="5+", ignorable=True, default=-1)


@struct
class WritableTxnMarkerTopic:
    """Partitions of one topic that get a marker."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


@struct
class WritableTxnMarker:
    """The end of one producer's transaction, for some of its partitions."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(versions="2+", ignorable=True, default=0)


@message(api_key=27, kind="request", versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """Ends transactions in partitions. 2 the transaction version (KIP-1228)."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


@struct
class WritableTxnMarkerPartitionResult:
    """What became of the marker in one partition."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class WritableTxnMarkerTopicResult:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


@struct
class WritableTxnMarkerResult:
    """The partitions of one producer."""

    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


@message(api_key=27, kind="response", versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """What became of each marker."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


@struct
class TxnOffsetCommitRequestPartition:
    """The offset to commit for one partition."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="2+", ignorable=True, default=-1)
    committed_metadata: str | None = string(nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@message(api_key=28, kind="request", versions="0-5", flexible="3+")
class TxnOffsetCommitRequest:
    """Commits offsets of a group with a transaction.

    2 leader epoch, 3 flexible, and who the consumer is, 4 TRANSACTION_ABORTABLE, 5 without
    AddOffsetsToTxn before it (KIP-890).
    """

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(versions="3+", default=-1)
    member_id: str = string(versions="3+", default="")
    group_instance_id: str | None = string(versions="3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@struct
class TxnOffsetCommitResponsePartition:
    """What became of one commit."""

    partition_index: int = int32()
    error_code: int = int16(default=0)


@struct
class TxnOffsetCommitResponseTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@message(api_key=28, kind="response", versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    """The outcome per partition. 3 flexible."""

    throttle_time_ms: int = int32(default=0)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


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


@message(api_key=65, kind="request", versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """Asks for transactions, by transactional id (KIP-664)."""

    transactional_ids: list[str] = array(string)


@struct
class TopicData:
    """Partitions of one topic that are part of a transaction."""

    topic: str = string()
    partitions: list[int] = array(int32)


@struct
class TransactionState:
    """One transaction."""

    error_code: int = int16(default=0)
    transactional_id: str = string()
    transaction_state: str = string(default="")
    transaction_timeout_ms: int = int32(default=0)
    transaction_start_time_ms: int = int64(default=0)
    producer_id: int = int64(default=0)
    producer_epoch: int = int16(default=0)
    topics: list[TopicData] = array(TopicData, factory=list)


@message(api_key=65, kind="response", versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """The transactions."""

    throttle_time_ms: int = int32(default=0)
    transaction_states: list[TransactionState] = array(TransactionState)


@message(api_key=66, kind="request", versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """Asks for the transactions that a broker coordinates.

    1 those that are open for longer than so many milliseconds, 2 a pattern of ids.
    """

    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(versions="1+", default=-1)
    transactional_id_pattern: str | None = string(versions="2+", nullable="2+", default=None)


@struct
class ListedTransactionState:
    """One transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


@message(api_key=66, kind="response", versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactions, and the states that were asked for and do not exist."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    unknown_state_filters: list[str] = array(string, factory=list)
    transaction_states: list[ListedTransactionState] = array(ListedTransactionState, factory=list)
