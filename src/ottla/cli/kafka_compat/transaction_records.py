"""Records of `__transaction_state` in the JSON that Kafka's transaction log decoder prints.

A field that only newer versions have is left out where it has its default, as Kafka does.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any

from ottla.protocol.compiler import codec
from ottla.protocol.messages.internal.transaction_log import TransactionLogKey, TransactionLogValue
from ottla.protocol.primitives import DecodeError

_PREFIX = Struct(">h")
_KEY_VERSION = 0
_NEWEST_VALUE = 1
_NO_ID = -1


def decode(key: bytes | None, value: bytes | None, offset: int) -> tuple[str | None, str | None]:
    """Key and value in words; what cannot be read is said in place of the key."""
    if key is None:
        return (
            f"Failed to decode message at offset {offset} using the specified decoder (message had "
            f"a missing key)"
        ), None
    try:
        kind = _version(key)
        if kind != _KEY_VERSION:
            return f"Unknown record type {kind} at offset {offset}, skipping.", None
        name, _ = codec(TransactionLogKey, kind).decode(memoryview(key), _PREFIX.size)
        shown = _json({"type": str(kind), "data": {"transactionalId": name.transactional_id}})
        return shown, "<DELETE>" if value is None else _value(value)
    except ValueError as error:
        return f"Error at offset {offset}, skipping. {error}", None


def _version(data: bytes) -> int:
    if len(data) < _PREFIX.size:
        raise DecodeError("it has no version")
    version: int = _PREFIX.unpack_from(data)[0]
    return version


def _value(raw: bytes) -> str:
    version = _version(raw)
    if not 0 <= version <= _NEWEST_VALUE:
        raise DecodeError(f"version {version} of the value is not known")
    found, _ = codec(TransactionLogValue, version).decode(memoryview(raw), _PREFIX.size)
    fields: dict[str, Any] = {"producerId": found.producer_id}
    if found.previous_producer_id != _NO_ID:
        fields["previousProducerId"] = found.previous_producer_id
    if found.next_producer_id != _NO_ID:
        fields["nextProducerId"] = found.next_producer_id
    partitions = found.transaction_partitions
    fields |= {
        "producerEpoch": found.producer_epoch,
        "transactionTimeoutMs": found.transaction_timeout_ms,
        "transactionStatus": found.transaction_status,
        "transactionPartitions": None
        if partitions is None
        else [{"topic": each.topic, "partitionIds": each.partition_ids} for each in partitions],
        "transactionLastUpdateTimestampMs": found.transaction_last_update_timestamp_ms,
        "transactionStartTimestampMs": found.transaction_start_timestamp_ms,
    }
    if found.client_transaction_version:
        fields["clientTransactionVersion"] = found.client_transaction_version
    return _json({"version": str(version), "data": fields})


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
