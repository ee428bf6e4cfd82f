"""The records of `__consumer_offsets`: Kafka's own formats, byte for byte.

Every function that makes a record returns `(key, value)`, with None as value for a tombstone;
`decode` gives back what a record says as one of the entries below, with None in place of what a
tombstone deletes. A key begins with two bytes that tell the kinds of record apart, a value with two
bytes that are its version. The versions written are those Kafka 4.2 writes; all that it reads are
read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from struct import Struct, pack
from typing import Any, NamedTuple

from ottla.coordinator.group.group import CommittedOffset
from ottla.coordinator.shard import Record, Written
from ottla.model.ids import ZERO_TOPIC_ID, TopicId
from ottla.protocol.compiler import Codec, codec
from ottla.protocol.messages.internal import consumer_group as wire
from ottla.protocol.messages.internal.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from ottla.protocol.messages.internal.offset_commit import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.primitives import DecodeError, uvarint

Partitions = Mapping[TopicId, frozenset[int]]
"""Partition numbers by topic id."""

# --- entries --------------------------------------------------------------------------------------


class OffsetEntry(NamedTuple):
    """Types 0 and 1: an offset was committed, or deleted."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


class MemberSnapshot(NamedTuple):
    """A member of a classic group's generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupSnapshot(NamedTuple):
    """A classic group's generation, as it was when its leader had assigned the partitions."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[MemberSnapshot, ...] = ()


class GroupEntry(NamedTuple):
    """Type 2: a generation of a classic group, or its end."""

    group_id: str
    value: GroupSnapshot | None


class ConsumerGroupEntry(NamedTuple):
    """Type 3: the epoch of a consumer group, or its end."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerTopicsEntry:
    """Type 4, written by Kafka up to 4.0: the subscribed topics. Only its tombstone is written."""

    group_id: str
    present: bool


@dataclass(frozen=True, slots=True)
class ClassicFacet:
    """What a member that speaks the classic protocol brought into a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberSnapshot(NamedTuple):
    """A member of a consumer group: who it is and what it wants."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicFacet | None = None


class ConsumerMemberEntry(NamedTuple):
    """Type 5: a member of a consumer group, or its end."""

    group_id: str
    member_id: str
    value: ConsumerMemberSnapshot | None


class TargetEpochEntry(NamedTuple):
    """Type 6: the epoch of a consumer group's target assignment."""

    group_id: str
    epoch: int | None


class TargetAssignmentEntry(NamedTuple):
    """Type 7: what a member is to own."""

    group_id: str
    member_id: str
    value: Partitions | None


class CurrentAssignment(NamedTuple):
    """What a member owns and what it has to give up; `state` is Kafka's number."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned: Partitions
    pending_revocation: Partitions


class CurrentAssignmentEntry(NamedTuple):
    """Type 8: what a member owns."""

    group_id: str
    member_id: str
    value: CurrentAssignment | None


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that an expression matched, at which version of the metadata, and when."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RegexEntry:
    """Type 16: a resolved regular expression."""

    group_id: str
    regex: str
    value: ResolvedRegex | None


Entry = (
    OffsetEntry
    | GroupEntry
    | ConsumerGroupEntry
    | ConsumerTopicsEntry
    | ConsumerMemberEntry
    | TargetEpochEntry
    | TargetAssignmentEntry
    | CurrentAssignmentEntry
    | RegexEntry
)

# --- framing --------------------------------------------------------------------------------------

_PREFIX = Struct(">h")
_LEGACY_OFFSET = 0

OFFSET_VERSION = 4
OFFSET_WITH_EXPIRY_VERSION = 1
GROUP_VERSION = 3
CONSUMER_VERSION = 0


def _key(message: Any) -> bytes:
    parts: list[Any] = [_PREFIX.pack(message.__schema__.api_key)]
    codec(type(message), 0).encode(message, parts)
    return b"".join(parts)


# The keys of records about a member of a consumer group differ in their first two bytes only.
_MEMBER = _PREFIX.pack(5)
_TARGET = _PREFIX.pack(7)
_CURRENT = _PREFIX.pack(8)


@functools.lru_cache(maxsize=16_384)
def _member_ids(group_id: str, member_id: str) -> bytes:
    """The rest of such a key; the same ones are written again and again."""
    key = wire.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return _key(key)[len(_MEMBER) :]


def _value(message: Any, version: int) -> bytes:
    parts: list[Any] = [_PREFIX.pack(version)]
    codec(type(message), version).encode(message, parts)
    return b"".join(parts)


# --- offsets --------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16_384)
def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The same ones are written again and again."""
    return _key(OffsetCommitKey(group=group_id, topic=topic, partition=partition))


_pack_offset = Struct(">hqiB").pack
_pack_offset_end = Struct(">qBBB16s").pack
_SHORT_NOTE = 127


def _offset_value(committed: CommittedOffset) -> bytes:
    note = committed.metadata.encode()
    size = len(note)
    if (
        size < _SHORT_NOTE
        and committed.expire_timestamp_ms < 0
        and committed.topic_id != ZERO_TOPIC_ID
    ):
        # What the codec writes for nearly every commit, in a fifth of its time: the id of the topic
        # is the one tagged field (number 0, 16 bytes).
        return (
            _pack_offset(OFFSET_VERSION, committed.offset, committed.leader_epoch, size + 1)
            + note
            + _pack_offset_end(committed.commit_timestamp_ms, 1, 0, 16, committed.topic_id)
        )
    return _value(
        OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            expire_timestamp=committed.expire_timestamp_ms,
            topic_id=committed.topic_id,
        ),
        OFFSET_VERSION if committed.expire_timestamp_ms < 0 else OFFSET_WITH_EXPIRY_VERSION,
    )


def offset(group_id: str, topic: str, partition: int, value: CommittedOffset) -> Record:
    record = (_offset_key(group_id, topic, partition), _offset_value(value))
    if value.expire_timestamp_ms >= 0:
        return record  # the version that has the time of expiry lacks other things
    return Written.of(record, OffsetEntry(group_id, topic, partition, value))


def offset_tombstone(group_id: str, topic: str, partition: int) -> Record:
    return _offset_key(group_id, topic, partition), None


# --- classic groups -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16_384)
def _group_key(kind: Callable[..., Any], group_id: str) -> bytes:
    """Of a record about one group of the consumer protocol."""
    return _key(kind(group_id=group_id))


@functools.lru_cache(maxsize=16_384)
def _classic_key(group_id: str) -> bytes:
    return _key(GroupMetadataKey(group=group_id))


def group(group_id: str, snapshot: GroupSnapshot) -> Record:
    record = (
        _classic_key(group_id),
        _value(
            GroupMetadataValue(
                protocol_type=snapshot.protocol_type,
                generation=snapshot.generation,
                protocol=snapshot.protocol,
                leader=snapshot.leader,
                current_state_timestamp=snapshot.since_ms,
                members=[
                    MemberMetadata(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        rebalance_timeout=member.rebalance_timeout_ms,
                        session_timeout=member.session_timeout_ms,
                        subscription=member.subscription,
                        assignment=member.assignment,
                    )
                    for member in snapshot.members
                ],
            ),
            GROUP_VERSION,
        ),
    )
    if not all(member.rebalance_timeout_ms for member in snapshot.members):
        return record  # whoever reads that puts the session's length in its place
    return Written.of(record, GroupEntry(group_id, snapshot))


def group_tombstone(group_id: str) -> Record:
    return _classic_key(group_id), None


# --- consumer groups ------------------------------------------------------------------------------

# A rebalance writes many of these: they are packed by hand, as the codec does it.
_pack_epoch = Struct(">hix").pack
_pack_hashed = Struct(">hiBBBq").pack  # the hash is the one tagged field (number 0, 8 bytes)
_pack_epochs = Struct(">hiib").pack


def consumer_group(group_id: str, epoch: int, metadata_hash: int) -> Record:
    return (
        _group_key(wire.ConsumerGroupMetadataKey, group_id),
        _pack_hashed(CONSUMER_VERSION, epoch, 1, 0, 8, metadata_hash)
        if metadata_hash
        else _pack_epoch(CONSUMER_VERSION, epoch),
    )


def consumer_group_tombstone(group_id: str) -> Record:
    return _group_key(wire.ConsumerGroupMetadataKey, group_id), None


def consumer_topics_tombstone(group_id: str) -> Record:
    return _group_key(wire.ConsumerGroupPartitionMetadataKey, group_id), None


def consumer_member(group_id: str, member_id: str, member: ConsumerMemberSnapshot) -> Record:
    facet = member.classic
    value = _value(
        wire.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=None
            if facet is None
            else wire.ClassicMemberMetadata(
                session_timeout_ms=facet.session_timeout_ms,
                supported_protocols=[
                    wire.ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in facet.protocols
                ],
            ),
        ),
        CONSUMER_VERSION,
    )
    return _MEMBER + _member_ids(group_id, member_id), value


def consumer_member_tombstone(group_id: str, member_id: str) -> Record:
    return _MEMBER + _member_ids(group_id, member_id), None


def target_epoch(group_id: str, epoch: int) -> Record:
    return (
        _group_key(wire.ConsumerGroupTargetAssignmentMetadataKey, group_id),
        _pack_epoch(CONSUMER_VERSION, epoch),
    )


def target_epoch_tombstone(group_id: str) -> Record:
    return _group_key(wire.ConsumerGroupTargetAssignmentMetadataKey, group_id), None


def target_assignment(group_id: str, member_id: str, partitions: Partitions) -> Record:
    return (
        _TARGET + _member_ids(group_id, member_id),
        b"\0\0%b\0" % _packed(partitions),
    )


def target_assignment_tombstone(group_id: str, member_id: str) -> Record:
    return _TARGET + _member_ids(group_id, member_id), None


def current_assignment(group_id: str, member_id: str, value: CurrentAssignment) -> Record:
    epoch, previous_epoch, state, assigned, revoking = value
    return (
        _CURRENT + _member_ids(group_id, member_id),
        b"%b%b%b\0"
        % (
            _pack_epochs(CONSUMER_VERSION, epoch, previous_epoch, state),
            _packed(assigned),
            _packed(revoking),
        ),
    )


def current_assignment_tombstone(group_id: str, member_id: str) -> Record:
    return _CURRENT + _member_ids(group_id, member_id), None


def regex(group_id: str, expression: str, value: ResolvedRegex) -> Record:
    key = wire.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    return _key(key), _value(
        wire.ConsumerGroupRegularExpressionValue(
            topics=sorted(value.topics), version=value.version, timestamp=value.timestamp_ms
        ),
        CONSUMER_VERSION,
    )


def regex_tombstone(group_id: str, expression: str) -> Record:
    key = wire.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    return _key(key), None


def _packed(partitions: Partitions) -> bytes:
    """What the codec writes for a list of `TopicPartitions`, in a fraction of its time."""
    if not partitions:
        return b"\1"
    parts = [uvarint(len(partitions) + 1)]
    for topic_id, numbers in partitions.items():
        count = len(numbers)
        parts += (topic_id, uvarint(count + 1), pack(f">{count}ix", *sorted(numbers)))
    return b"".join(parts)


# --- reading --------------------------------------------------------------------------------------


def decode(key: bytes, value: bytes | None) -> Entry | None:
    """What a record says; None for a kind that nobody here reads. ValueError if it is damaged."""
    view = memoryview(key)
    if len(view) < 2:
        raise DecodeError("a key without a type")
    reader = _READERS.get(_PREFIX.unpack_from(view)[0])
    if reader is None:
        return None
    key_class, value_class, entry = reader
    decoded_key: Any
    decoded_key, _ = codec(key_class, 0).decode(view, 2)
    if value is None:
        return entry(decoded_key, None)
    content = memoryview(value)
    if len(content) < 2:
        raise DecodeError("a value without a version")
    version = _PREFIX.unpack_from(content)[0]
    try:
        reading: Codec[Any] = codec(value_class, version)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    decoded, _ = reading.decode(content, 2)
    return entry(decoded_key, decoded)


def _offset_entry(key: OffsetCommitKey, value: OffsetCommitValue | None) -> OffsetEntry:
    if value is None:
        return OffsetEntry(key.group, key.topic, key.partition, None)
    committed = CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )
    return OffsetEntry(key.group, key.topic, key.partition, committed)


def _group_entry(key: GroupMetadataKey, value: GroupMetadataValue | None) -> GroupEntry:
    if value is None:
        return GroupEntry(key.group, None)
    members = tuple(
        MemberSnapshot(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            # Version 0 has none; then as now the session's length serves.
            member.rebalance_timeout or member.session_timeout,
            member.session_timeout,
            member.subscription,
            member.assignment,
        )
        for member in value.members
    )
    return GroupEntry(
        key.group,
        GroupSnapshot(
            value.protocol_type,
            value.generation,
            value.protocol,
            value.leader,
            value.current_state_timestamp,
            members,
        ),
    )


def _consumer_member_entry(
    key: wire.ConsumerGroupMemberMetadataKey, value: wire.ConsumerGroupMemberMetadataValue | None
) -> ConsumerMemberEntry:
    if value is None:
        return ConsumerMemberEntry(key.group_id, key.member_id, None)
    facet = value.classic_member_metadata
    snapshot = ConsumerMemberSnapshot(
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(value.subscribed_topic_names),
        value.subscribed_topic_regex,
        value.rebalance_timeout_ms,
        value.server_assignor,
        # Kafka 3.7 did not know the facet and left it out, which reads as an empty one.
        None
        if facet is None or not facet.supported_protocols
        else ClassicFacet(
            facet.session_timeout_ms,
            tuple((protocol.name, protocol.metadata) for protocol in facet.supported_protocols),
        ),
    )
    return ConsumerMemberEntry(key.group_id, key.member_id, snapshot)


def _current_assignment_entry(
    key: wire.ConsumerGroupCurrentMemberAssignmentKey,
    value: wire.ConsumerGroupCurrentMemberAssignmentValue | None,
) -> CurrentAssignmentEntry:
    if value is None:
        return CurrentAssignmentEntry(key.group_id, key.member_id, None)
    current = CurrentAssignment(
        value.member_epoch,
        value.previous_member_epoch,
        value.state,
        _to_partitions(value.assigned_partitions),
        _to_partitions(value.partitions_pending_revocation),
    )
    return CurrentAssignmentEntry(key.group_id, key.member_id, current)


def _to_partitions(topics: Iterable[wire.TopicPartitions]) -> Partitions:
    return {TopicId(topic.topic_id): frozenset(topic.partitions) for topic in topics}


_Reader = tuple[type, type, Callable[[Any, Any], Entry]]
_READERS: dict[int, _Reader] = {
    _LEGACY_OFFSET: (OffsetCommitKey, OffsetCommitValue, _offset_entry),
    1: (OffsetCommitKey, OffsetCommitValue, _offset_entry),
    2: (GroupMetadataKey, GroupMetadataValue, _group_entry),
    3: (
        wire.ConsumerGroupMetadataKey,
        wire.ConsumerGroupMetadataValue,
        lambda key, value: (
            ConsumerGroupEntry(key.group_id, None)
            if value is None
            else ConsumerGroupEntry(key.group_id, value.epoch, value.metadata_hash)
        ),
    ),
    4: (
        wire.ConsumerGroupPartitionMetadataKey,
        wire.ConsumerGroupPartitionMetadataValue,
        lambda key, value: ConsumerTopicsEntry(key.group_id, value is not None),
    ),
    5: (
        wire.ConsumerGroupMemberMetadataKey,
        wire.ConsumerGroupMemberMetadataValue,
        _consumer_member_entry,
    ),
    6: (
        wire.ConsumerGroupTargetAssignmentMetadataKey,
        wire.ConsumerGroupTargetAssignmentMetadataValue,
        lambda key, value: TargetEpochEntry(key.group_id, value and value.assignment_epoch),
    ),
    7: (
        wire.ConsumerGroupTargetAssignmentMemberKey,
        wire.ConsumerGroupTargetAssignmentMemberValue,
        lambda key, value: TargetAssignmentEntry(
            key.group_id, key.member_id, value and _to_partitions(value.topic_partitions)
        ),
    ),
    8: (
        wire.ConsumerGroupCurrentMemberAssignmentKey,
        wire.ConsumerGroupCurrentMemberAssignmentValue,
        _current_assignment_entry,
    ),
    16: (
        wire.ConsumerGroupRegularExpressionKey,
        wire.ConsumerGroupRegularExpressionValue,
        lambda key, value: RegexEntry(
            key.group_id,
            key.regular_expression,
            value and ResolvedRegex(frozenset(value.topics), value.version, value.timestamp),
        ),
    ),
}
