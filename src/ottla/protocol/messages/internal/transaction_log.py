"""Transactions, as `__transaction_state` keeps them: one record for each transactional id."""

from __future__ import annotations

from ottla.protocol.schema import array, int8, int16, int32, int64, message, string, struct


@message(api_key=0, kind="data", versions="0", flexible="none")
class TransactionLogKey:
    """Whose transaction it is."""

    transactional_id: str = string()


@struct
class PartitionsSchema:
    """Partitions of one topic."""

    topic: str = string()
    partition_ids: list[int] = array(int32)


@message(api_key=0, kind="data", versions="0-1", flexible="1+")
class TransactionLogValue:
    """The transaction, as it was last. 1 flexible, with what transaction version 2 keeps."""

    producer_id: int = int64()
    previous_producer_id: int = int64(versions="1+", tag=0, default=-1)
    next_producer_id: int = int64(versions="1+", tag=1, default=-1)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, nullable="0+", default=None
    )
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(versions="1+", tag=2, default=0)
