"""The records of `__transaction_state`: Kafka's own formats, byte for byte.

One record for each transactional id and change: the key is the id behind its version, the value the
whole transaction behind its version, and a tombstone forgets the id. Version 1 of the value, which
has room for what transaction version 2 needs, is written once the cluster has agreed on a
transaction version (`transaction.version` 1 or 2), and for producers that speak version 2 in any
case; brokers before Kafka 4.0 read version 0 only.
"""

from __future__ import annotations

import functools
from struct import Struct
from typing import Any

from ottla.coordinator.shard import Record
from ottla.coordinator.transaction.state import State, Transaction
from ottla.model.ids import TopicPartition
from ottla.protocol.compiler import codec
from ottla.protocol.messages.internal.transaction_log import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from ottla.protocol.primitives import DecodeError

_PREFIX = Struct(">h")
_KEY_VERSION = 0


@functools.lru_cache(maxsize=16_384)
def _key(transactional_id: str) -> bytes:
    parts: list[Any] = [_PREFIX.pack(_KEY_VERSION)]
    key = TransactionLogKey(transactional_id=transactional_id)
    codec(TransactionLogKey, _KEY_VERSION).encode(key, parts)
    return b"".join(parts)


def transaction(value: Transaction, transaction_version: int) -> Record:
    """The record that says what a transaction is now."""
    version = 1 if transaction_version or value.raises_epoch else 0
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        by_topic.setdefault(topic, []).append(partition)
    message = TransactionLogValue(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=value.state,
        transaction_partitions=None
        if value.state is State.EMPTY
        else [
            PartitionsSchema(topic=topic, partition_ids=partitions)
            for topic, partitions in by_topic.items()
        ],
        transaction_last_update_timestamp_ms=value.updated_ms,
        transaction_start_timestamp_ms=value.started_ms,
        client_transaction_version=value.client_version,
    )
    parts: list[Any] = [_PREFIX.pack(version)]
    codec(TransactionLogValue, version).encode(message, parts)
    return _key(value.transactional_id), b"".join(parts)


def tombstone(transactional_id: str) -> Record:
    return _key(transactional_id), None


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for a kind of record that nobody here reads."""
    view = memoryview(key)
    if len(view) < _PREFIX.size:
        raise DecodeError("a key without a version")
    if _PREFIX.unpack_from(view)[0] != _KEY_VERSION:
        return None
    decoded, _ = codec(TransactionLogKey, _KEY_VERSION).decode(view, _PREFIX.size)
    return decoded.transactional_id


def read_value(value: bytes) -> tuple[int, TransactionLogValue]:
    """The version of a value and its fields. ValueError if it is damaged."""
    view = memoryview(value)
    if len(view) < _PREFIX.size:
        raise DecodeError("a value without a version")
    version: int = _PREFIX.unpack_from(view)[0]
    decoded, _ = codec(TransactionLogValue, version).decode(view, _PREFIX.size)
    return version, decoded


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """What a record says. ValueError if it is damaged."""
    _, decoded = read_value(value)
    return Transaction(
        transactional_id,
        decoded.producer_id,
        decoded.producer_epoch,
        decoded.transaction_timeout_ms,
        State(decoded.transaction_status),
        frozenset(
            TopicPartition(topic.topic, partition)
            for topic in decoded.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        decoded.transaction_start_timestamp_ms,
        decoded.transaction_last_update_timestamp_ms,
        decoded.previous_producer_id,
        decoded.next_producer_id,
        decoded.client_transaction_version,
    )
