"""The records of Kafka's own metadata log, as far as an import needs them.

`protocol.messages.internal.metadata_log` declares what is on disk; this module says what it means.
Types that only matter to a running Kafka cluster decode to `Irrelevant`; types that hold something
which Ottla does not keep yet decode to `Foreign`, so that an import can say what it left out. A
type or version that is not known here is an error: skipping it could lose anything.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from ottla.model.ids import TopicId
from ottla.protocol.compiler import codec
from ottla.protocol.messages.internal import metadata_log as wire
from ottla.protocol.primitives import DecodeError
from ottla.protocol.schema import schema_of
from ottla.records.errors import InvalidBatch
from ottla.records.varint import decode_unsigned

_FRAME_VERSION = 1
_SAME_LEADER = -2


class UnknownRecord(ValueError):
    """A record of a kind, or in a shape, that this importer does not know."""


@dataclass(frozen=True, slots=True)
class TopicCreated:
    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class PartitionSet:
    """The whole state of a partition: a new one, or one in a snapshot."""

    topic_id: TopicId
    partition: int
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A step of a partition: None is "as before". A new leader, even none, begins a new epoch."""

    topic_id: TopicId
    partition: int
    replicas: tuple[int, ...] | None
    leader: int | None


@dataclass(frozen=True, slots=True)
class ConfigSet:
    """One setting; a value of None removes it."""

    resource_type: int
    resource: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsTaken:
    """Ids below `following` may have been given to producers."""

    following: int


@dataclass(frozen=True, slots=True)
class FeatureSet:
    name: str
    level: int


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A broker registered, or left for good."""

    broker: int
    present: bool


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """Metadata records between `begin` and `end` count together; after `abort`, not at all."""

    step: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """Something an import cannot take over; `identity` tells one such thing from another."""

    what: str
    identity: Hashable
    present: bool


@dataclass(frozen=True, slots=True)
class Irrelevant:
    """Of meaning only inside a running Kafka cluster."""


MetadataRecord = (
    TopicCreated
    | TopicRemoved
    | PartitionSet
    | PartitionChanged
    | ConfigSet
    | ProducerIdsTaken
    | FeatureSet
    | BrokerSeen
    | TransactionStep
    | Foreign
    | Irrelevant
)


def decode_record(value: bytes) -> MetadataRecord:
    """The record in a frame, or UnknownRecord."""
    try:
        frame_version, position = decode_unsigned(value, 0)
        if frame_version != _FRAME_VERSION:
            raise UnknownRecord(f"frame version {frame_version}")
        kind, position = decode_unsigned(value, position)
        version, position = decode_unsigned(value, position)
        declared = _DECLARED.get(kind)
        if declared is None and kind not in _IRRELEVANT:
            raise UnknownRecord(f"record type {kind}")
        newest = schema_of(declared).versions.high if declared else _IRRELEVANT[kind]
        if version > newest:
            raise UnknownRecord(f"version {version} of record type {kind}")
        if declared is None:
            return Irrelevant()
        record: Any
        record, end = codec(declared, version).decode(memoryview(value), position)
    except (InvalidBatch, DecodeError) as error:
        raise UnknownRecord(f"malformed metadata record: {error}") from None
    if end < len(value):
        raise UnknownRecord(f"{len(value) - end} bytes left over in a record of type {kind}")
    return _meaning(record)


def _meaning(record: Any) -> MetadataRecord:  # noqa: C901, PLR0911, PLR0912 - one branch for each kind of record
    """What a record says, as far as it concerns an import."""
    match record:
        case wire.RegisterBrokerRecord():
            return BrokerSeen(record.broker_id, present=True)
        case wire.UnregisterBrokerRecord():
            return BrokerSeen(record.broker_id, present=False)
        case wire.TopicRecord():
            return TopicCreated(record.name, TopicId(record.topic_id))
        case wire.RemoveTopicRecord():
            return TopicRemoved(TopicId(record.topic_id))
        case wire.PartitionRecord():
            return PartitionSet(
                TopicId(record.topic_id),
                record.partition_id,
                tuple(record.replicas),
                record.leader,
                record.leader_epoch,
                record.partition_epoch,
            )
        case wire.PartitionChangeRecord():
            return PartitionChanged(
                TopicId(record.topic_id),
                record.partition_id,
                replicas=None if record.replicas is None else tuple(record.replicas),
                leader=None if record.leader == _SAME_LEADER else record.leader,
            )
        case wire.ConfigRecord():
            return ConfigSet(record.resource_type, record.resource_name, record.name, record.value)
        case wire.ProducerIdsRecord():
            return ProducerIdsTaken(record.next_producer_id)
        case wire.FeatureLevelRecord():
            return FeatureSet(record.name, record.feature_level)
        case wire.BeginTransactionRecord():
            return TransactionStep("begin")
        case wire.EndTransactionRecord():
            return TransactionStep("end")
        case wire.AbortTransactionRecord():
            return TransactionStep("abort")
        case _:
            return _foreign(record)


def _foreign(record: Any) -> Foreign:  # noqa: PLR0911 - one branch for each kind of record
    """What Ottla does not keep yet."""
    match record:
        case wire.AccessControlEntryRecord():
            return Foreign("ACLs", record.id, present=True)
        case wire.RemoveAccessControlEntryRecord():
            return Foreign("ACLs", record.id, present=False)
        case wire.UserScramCredentialRecord():
            return Foreign("SCRAM credentials", (record.name, record.mechanism), present=True)
        case wire.RemoveUserScramCredentialRecord():
            return Foreign("SCRAM credentials", (record.name, record.mechanism), present=False)
        case wire.DelegationTokenRecord():
            return Foreign("delegation tokens", record.token_id, present=True)
        case wire.RemoveDelegationTokenRecord():
            return Foreign("delegation tokens", record.token_id, present=False)
        case wire.ClientQuotaRecord():
            entity = frozenset((part.entity_type, part.entity_name) for part in record.entity)
            return Foreign("client quotas", (entity, record.key), present=not record.remove)
        case _:
            raise UnknownRecord(f"a {type(record).__name__}, which has no meaning here")


_DECLARED: dict[int | None, type[Any]] = {
    schema_of(declared).api_key: declared
    for declared in (
        wire.RegisterBrokerRecord,
        wire.UnregisterBrokerRecord,
        wire.TopicRecord,
        wire.PartitionRecord,
        wire.ConfigRecord,
        wire.PartitionChangeRecord,
        wire.RemoveTopicRecord,
        wire.DelegationTokenRecord,
        wire.UserScramCredentialRecord,
        wire.FeatureLevelRecord,
        wire.ClientQuotaRecord,
        wire.ProducerIdsRecord,
        wire.AccessControlEntryRecord,
        wire.RemoveAccessControlEntryRecord,
        wire.RemoveUserScramCredentialRecord,
        wire.BeginTransactionRecord,
        wire.EndTransactionRecord,
        wire.AbortTransactionRecord,
        wire.RemoveDelegationTokenRecord,
    )
}

# Types of which nothing is read, and the newest version of each that Kafka 4.2 writes.
_IRRELEVANT = {
    7: 0,  # fence broker
    8: 0,  # unfence broker
    17: 2,  # broker registration change
    20: 0,  # no-op
    21: 0,  # ZooKeeper migration state
    27: 0,  # register controller
    28: 0,  # clear eligible leader replicas
}
