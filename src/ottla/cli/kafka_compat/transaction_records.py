"""Records of `__transaction_state` in the JSON that Kafka's transaction log decoder prints.

A field that only newer versions have is left out where it has its default, as Kafka does.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any

from ottla.coordinator.transaction import journal

_PREFIX = Struct(">h")
_NO_ID = -1


def decode(key: bytes | None, value: bytes | None, offset: int) -> tuple[str | None, str | None]:
    """Key and value in words; what cannot be read is said in place of the key."""
    if key is None:
        return (
            f"Failed to decode message at offset {offset} using the specified decoder (message had "
            f"a missing key)"
        ), None
    try:
        name = journal.decode_key(key)
        kind = _PREFIX.unpack_from(key)[0]
        if name is None:
            return f"Unknown record type {kind} at offset {offset}, skipping.", None
        shown = _json({"type": str(kind), "data": {"transactionalId": name}})
        return shown, "<DELETE>" if value is None else _value(value)
    except ValueError as error:
        return f"Error at offset {offset}, skipping. {error}", None


def _value(raw: bytes) -> str:
    version, found = journal.read_value(raw)
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
