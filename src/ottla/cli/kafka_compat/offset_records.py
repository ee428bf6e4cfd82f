"""Records of `__consumer_offsets` in the JSON that Kafka's offsets decoder prints.

The coordinator's own reader takes them apart; here its entries get Kafka's field names. What
members of a classic group subscribe to and are assigned is opaque to a broker and written by
their client library: it is shown taken apart where it is the consumer protocol, else as base64.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct spells its exception so
from typing import Any

from ottla.coordinator.group import journal
from ottla.model.ids import topic_id_text

_PREFIX = _INT16 = Struct(">h")
_INT32 = Struct(">i")
_LEADER_EPOCH_FROM, _TOPIC_ID_FROM, _EXPIRY_ONLY = 3, 4, 1


def decode(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Key and value in words."""
    if key is None or len(key) < 2:
        return None, None
    kind = _PREFIX.unpack_from(key)[0]
    try:
        entry = journal.decode(key, value)
    except ValueError as error:
        return f"{b64encode(key).decode()} (damaged: {error})", None
    if entry is None:
        return f"unknown::type {kind}", None
    name, content = _key(entry), _value(entry, value)
    shown = _json({"type": str(kind), "data": name})
    if value is None:
        return shown, "<DELETE>"
    return shown, _json({"version": str(_PREFIX.unpack_from(value)[0]), "data": content})


def _key(entry: Any) -> dict[str, Any]:
    if isinstance(entry, journal.OffsetEntry):
        return {"group": entry.group_id, "topic": entry.topic, "partition": entry.partition}
    if isinstance(entry, journal.GroupEntry):
        return {"group": entry.group_id}
    fields = {"groupId": entry.group_id}
    if hasattr(entry, "member_id"):
        fields["memberId"] = entry.member_id
    if isinstance(entry, journal.RegexEntry):
        fields["regularExpression"] = entry.regex
    return fields


def _value(entry: Any, raw: bytes | None) -> dict[str, Any] | None:  # noqa: PLR0911 - one branch for each kind of entry
    if raw is None:
        return None
    version = _PREFIX.unpack_from(raw)[0]
    if isinstance(entry, journal.OffsetEntry) and entry.value is not None:
        return _offset(entry.value, version)
    if isinstance(entry, journal.GroupEntry) and entry.value is not None:
        return _group(entry.value)
    if isinstance(entry, journal.ConsumerGroupEntry):
        hashed = {"metadataHash": entry.metadata_hash} if entry.metadata_hash else {}
        return {"epoch": entry.epoch, **hashed}
    if isinstance(entry, journal.ConsumerMemberEntry) and entry.value is not None:
        return _member(entry.value)
    if isinstance(entry, journal.TargetEpochEntry):
        return {"assignmentEpoch": entry.epoch}
    if isinstance(entry, journal.TargetAssignmentEntry) and entry.value is not None:
        return {"topicPartitions": _partitions(entry.value)}
    if isinstance(entry, journal.CurrentAssignmentEntry) and entry.value is not None:
        current = entry.value
        return {
            "memberEpoch": current.member_epoch,
            "previousMemberEpoch": current.previous_member_epoch,
            "state": current.state,
            "assignedPartitions": _partitions(current.assigned),
            "partitionsPendingRevocation": _partitions(current.pending_revocation),
        }
    if isinstance(entry, journal.RegexEntry) and entry.value is not None:
        return {
            "topics": sorted(entry.value.topics),
            "version": entry.value.version,
            "timestamp": entry.value.timestamp_ms,
        }
    return {}


def _offset(value: Any, version: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": value.offset}
    if version >= _LEADER_EPOCH_FROM:
        fields["leaderEpoch"] = value.leader_epoch
    fields |= {"metadata": value.metadata, "commitTimestamp": value.commit_timestamp_ms}
    if version == _EXPIRY_ONLY:
        fields["expireTimestamp"] = value.expire_timestamp_ms
    if version >= _TOPIC_ID_FROM:
        fields["topicId"] = topic_id_text(value.topic_id)
    return fields


def _group(snapshot: journal.GroupSnapshot) -> dict[str, Any]:
    return {
        "protocolType": snapshot.protocol_type,
        "generation": snapshot.generation,
        "protocol": snapshot.protocol,
        "leader": snapshot.leader,
        "currentStateTimestamp": snapshot.since_ms,
        "members": [
            {
                "memberId": member.member_id,
                "groupInstanceId": member.instance_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "rebalanceTimeout": member.rebalance_timeout_ms,
                "sessionTimeout": member.session_timeout_ms,
                "subscription": _opaque(snapshot, member.subscription, _subscription),
                "assignment": _opaque(snapshot, member.assignment, _assignment),
            }
            for member in snapshot.members
        ],
    }


class _Reader:
    """Reads the fields of the consumer protocol one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return int(value)

    def data(self, layout: Struct) -> bytes | None:
        size = self.number(layout)
        if size < 0:
            return None
        start = self._position
        self._position += size
        if self._position > len(self._data):
            raise ValueError("a length beyond the end")
        return self._data[start : self._position]

    def text(self) -> str | None:
        raw = self.data(_INT16)
        return None if raw is None else raw.decode()

    def user_data(self) -> str | None:
        raw = self.data(_INT32)
        return None if raw is None else b64encode(raw).decode()

    def partitions(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": self.text(),
                "partitions": [self.number(_INT32) for _ in range(self.number(_INT32))],
            }
            for _ in range(self.number(_INT32))
        ]


def _opaque(
    snapshot: journal.GroupSnapshot, data: bytes, read: Callable[[_Reader], dict[str, Any]]
) -> Any:
    if snapshot.protocol_type == "consumer":
        try:
            return read(_Reader(data))
        except (ValueError, StructError):
            pass  # a library with a format of its own
    return b64encode(data).decode()


def _subscription(reader: _Reader) -> dict[str, Any]:
    version = reader.number(_INT16)
    fields: dict[str, Any] = {"topics": [reader.text() for _ in range(reader.number(_INT32))]}
    fields["userData"] = reader.user_data()
    if version >= 1:
        fields["ownedPartitions"] = reader.partitions()
    if version >= 2:
        fields["generationId"] = reader.number(_INT32)
    if version >= 3:
        fields["rackId"] = reader.text()
    return fields


def _assignment(reader: _Reader) -> dict[str, Any]:
    reader.number(_INT16)
    return {"assignedPartitions": reader.partitions(), "userData": reader.user_data()}


def _member(value: journal.ConsumerMemberSnapshot) -> dict[str, Any]:
    facet = value.classic
    return {
        "instanceId": value.instance_id,
        "rackId": value.rack_id,
        "clientId": value.client_id,
        "clientHost": value.client_host,
        "subscribedTopicNames": list(value.topics),
        "subscribedTopicRegex": value.regex,
        "rebalanceTimeoutMs": value.rebalance_timeout_ms,
        "serverAssignor": value.server_assignor,
        "classicMemberMetadata": None
        if facet is None
        else {
            "sessionTimeoutMs": facet.session_timeout_ms,
            "supportedProtocols": [
                {"name": name, "metadata": b64encode(metadata).decode()}
                for name, metadata in facet.protocols
            ],
        },
    }


def _partitions(partitions: journal.Partitions) -> list[dict[str, Any]]:
    return [
        {"topicId": topic_id_text(topic), "partitions": sorted(numbers)}
        for topic, numbers in partitions.items()
    ]


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
