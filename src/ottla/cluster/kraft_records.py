"""The records of Kafka's own metadata log, as far as an import needs them.

A record's value is a frame: frame version 1, the type's number and its version as unsigned varints,
then the fields in Kafka's flexible encoding (lengths as varints plus one, tagged fields last).
Types that only matter to a running Kafka cluster decode to `Irrelevant`; types that hold something
which Ottla does not keep yet decode to `Foreign`, so that an import can say what it left out. A
type or version that is not known here is an error: skipping it could lose anything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ottla.model.ids import TopicId
from ottla.records.errors import InvalidBatch
from ottla.records.varint import decode_unsigned

_FRAME_VERSION = 1


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
        frame = _Fields(value)
        frame_version = frame.unsigned()
        if frame_version != _FRAME_VERSION:
            raise UnknownRecord(f"frame version {frame_version}")
        kind, version = frame.unsigned(), frame.unsigned()
        if kind not in _KINDS:
            raise UnknownRecord(f"record type {kind}")
        decode, newest = _KINDS[kind]
        if version > newest:
            raise UnknownRecord(f"version {version} of record type {kind}")
        record = decode(frame, version)
        if not isinstance(record, Irrelevant | Foreign | BrokerSeen) and frame.left:
            raise UnknownRecord(f"{frame.left} bytes left over in a record of type {kind}")
    except (InvalidBatch, UnicodeDecodeError) as error:
        raise UnknownRecord(f"malformed metadata record: {error}") from None
    return record


class _Fields:
    """A cursor over flexible fields."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def raw(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise UnknownRecord(f"{size} bytes announced, {self.left} left")
        self._position += size
        return self._data[self._position - size : self._position]

    def unsigned(self) -> int:
        value, self._position = decode_unsigned(self._data, self._position)
        return value

    def int8(self) -> int:
        return int.from_bytes(self.raw(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self.raw(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.raw(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.raw(8), "big", signed=True)

    def topic_id(self) -> TopicId:
        return TopicId(self.raw(16))

    def nullable_string(self) -> str | None:
        length = self.unsigned()
        return None if length == 0 else self.raw(length - 1).decode()

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise UnknownRecord("a null string where none may be")
        return value

    def count(self) -> int:
        """The length of an array, null counting as empty."""
        count = max(0, self.unsigned() - 1)
        if count > self.left:
            raise UnknownRecord(f"an array of {count} elements in {self.left} bytes")
        return count

    def int32s(self) -> tuple[int, ...]:
        return tuple(self.int32() for _ in range(self.count()))

    def strings(self) -> tuple[str, ...]:
        return tuple(self.string() for _ in range(self.count()))

    def tags(self) -> dict[int, _Fields]:
        fields = {}
        for _ in range(self.unsigned()):
            tag, size = self.unsigned(), self.unsigned()
            fields[tag] = _Fields(self.raw(size))
        return fields


def _topic(fields: _Fields, version: int) -> MetadataRecord:
    record = TopicCreated(fields.string(), fields.topic_id())
    fields.tags()
    return record


def _remove_topic(fields: _Fields, version: int) -> MetadataRecord:
    record = TopicRemoved(fields.topic_id())
    fields.tags()
    return record


def _partition(fields: _Fields, version: int) -> MetadataRecord:
    partition, topic_id = fields.int32(), fields.topic_id()
    replicas = fields.int32s()
    fields.int32s()  # in-sync replicas: of a single replica there is only one possibility
    fields.int32s()  # replicas being removed
    fields.int32s()  # replicas being added
    leader, leader_epoch, partition_epoch = fields.int32(), fields.int32(), fields.int32()
    if version >= 1:
        fields.raw(16 * fields.count())  # the ids of the log directories
    fields.tags()
    return PartitionSet(topic_id, partition, replicas, leader, leader_epoch, partition_epoch)


def _partition_change(fields: _Fields, version: int) -> MetadataRecord:
    partition, topic_id = fields.int32(), fields.topic_id()
    changed = fields.tags()
    leader = changed[1].int32() if 1 in changed else -2
    return PartitionChanged(
        topic_id,
        partition,
        replicas=changed[2].int32s() if 2 in changed else None,
        leader=None if leader == -2 else leader,
    )


def _config(fields: _Fields, version: int) -> MetadataRecord:
    record = ConfigSet(fields.int8(), fields.string(), fields.string(), fields.nullable_string())
    fields.tags()
    return record


def _producer_ids(fields: _Fields, version: int) -> MetadataRecord:
    fields.int32()  # the broker that asked
    fields.int64()  # and its epoch
    record = ProducerIdsTaken(fields.int64())
    fields.tags()
    return record


def _feature(fields: _Fields, version: int) -> MetadataRecord:
    record = FeatureSet(fields.string(), fields.int16())
    fields.tags()
    return record


def _register_broker(fields: _Fields, version: int) -> MetadataRecord:
    return BrokerSeen(fields.int32(), present=True)


def _unregister_broker(fields: _Fields, version: int) -> MetadataRecord:
    return BrokerSeen(fields.int32(), present=False)


def _acl(fields: _Fields, version: int) -> MetadataRecord:
    return Foreign("ACLs", fields.raw(16), present=True)


def _remove_acl(fields: _Fields, version: int) -> MetadataRecord:
    return Foreign("ACLs", fields.raw(16), present=False)


def _scram(fields: _Fields, version: int) -> MetadataRecord:
    return Foreign("SCRAM credentials", (fields.string(), fields.int8()), present=True)


def _remove_scram(fields: _Fields, version: int) -> MetadataRecord:
    return Foreign("SCRAM credentials", (fields.string(), fields.int8()), present=False)


def _token(fields: _Fields, version: int) -> MetadataRecord:
    fields.string()  # owner
    fields.string()  # requester
    fields.strings()  # renewers
    fields.raw(3 * 8)  # issued, at most until, expires
    return Foreign("delegation tokens", fields.string(), present=True)


def _remove_token(fields: _Fields, version: int) -> MetadataRecord:
    return Foreign("delegation tokens", fields.string(), present=False)


def _quota(fields: _Fields, version: int) -> MetadataRecord:
    entity = []
    for _ in range(fields.count()):
        entity.append((fields.string(), fields.nullable_string()))
        fields.tags()
    key = fields.string()
    fields.raw(8)  # the quota itself, a double
    removed = fields.int8() != 0
    return Foreign("client quotas", (frozenset(entity), key), present=not removed)


def _transaction(step: str) -> Callable[[_Fields, int], MetadataRecord]:
    def decode(fields: _Fields, version: int) -> MetadataRecord:
        fields.tags()
        return TransactionStep(step)

    return decode


def _irrelevant(fields: _Fields, version: int) -> MetadataRecord:
    return Irrelevant()


# The type's number in Kafka: how to read it, and the newest version that Kafka 4.2 writes.
_KINDS: dict[int, tuple[Callable[[_Fields, int], MetadataRecord], int]] = {
    0: (_register_broker, 3),
    1: (_unregister_broker, 0),
    2: (_topic, 0),
    3: (_partition, 2),
    4: (_config, 0),
    5: (_partition_change, 2),
    7: (_irrelevant, 0),  # fence broker
    8: (_irrelevant, 0),  # unfence broker
    9: (_remove_topic, 0),
    10: (_token, 0),
    11: (_scram, 0),
    12: (_feature, 0),
    14: (_quota, 0),
    15: (_producer_ids, 0),
    17: (_irrelevant, 2),  # broker registration change
    18: (_acl, 0),
    19: (_remove_acl, 0),
    20: (_irrelevant, 0),  # no-op
    21: (_irrelevant, 0),  # ZooKeeper migration state
    22: (_remove_scram, 0),
    23: (_transaction("begin"), 0),
    24: (_transaction("end"), 0),
    25: (_transaction("abort"), 0),
    26: (_remove_token, 0),
    27: (_irrelevant, 0),  # register controller
    28: (_irrelevant, 0),  # clear eligible leader replicas
}
