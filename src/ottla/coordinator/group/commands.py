"""What can be asked of a group, and what comes back: the vocabulary between handlers and machines.

One class per request, in the machines' words and free of wire versions: where a version of a
request changes what is to be done, the handler turns it into a flag. A command has the id of its
group, by which the service finds the shard; those without one are for every shard. What fails as a
whole is a raised KafkaError; JoinGroup's replies carry their error, because they tell the member
its id with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.group import NO_EPOCH, Client, CommittedOffset
from ottla.coordinator.shard import TransactionalProducer
from ottla.errors import ErrorCode
from ottla.model.ids import ZERO_TOPIC_ID

Protocols = tuple[tuple[str, bytes], ...]
"""Assignment strategies in the member's order of preference, each with its subscription."""


# --- the classic protocol -------------------------------------------------------------------------


class Join(NamedTuple):
    """JoinGroup. An empty member id asks for one."""

    group_id: str
    member_id: str
    instance_id: str | None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    id_required: bool = True
    """The client must come back with the id it is given before it counts (version 4, KIP-394)."""
    can_skip_assignment: bool = True
    """The client understands that a returning static leader need not assign (version 9)."""
    reason: str | None = None


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """The answer to Join."""

    member_id: str
    error: ErrorCode = ErrorCode.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class Sync(NamedTuple):
    """SyncGroup; the leader's brings the assignments."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Synced(NamedTuple):
    """The answer to Sync."""

    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class Heartbeat(NamedTuple):
    """Heartbeat. The answer is NONE or REBALANCE_IN_PROGRESS: an ErrorCode that is not raised, for
    this is how every member learns of every rebalance."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    """Somebody who leaves, or is made to."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup. The answer is one ErrorCode per leaver, in their order."""

    group_id: str
    members: tuple[Leaver, ...]


# --- the consumer protocol ------------------------------------------------------------------------


class ConsumerHeartbeat(NamedTuple):
    """ConsumerGroupHeartbeat: a member is there, and says what has changed; None: as before.

    Epoch 0 joins, -1 leaves, -2 leaves for a while. Who has no id (version 0) is given one.
    """

    group_id: str
    member_id: str
    epoch: int
    client: Client
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None


class ConsumerAlive(NamedTuple):
    """The answer: the member's epoch, and what it is to own when that has changed."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True)
class DescribeConsumerGroup:
    """ConsumerGroupDescribe, for one group. GROUP_ID_NOT_FOUND unless it is of this kind."""

    group_id: str


class NamedPartitions(NamedTuple):
    """Some partitions of one topic, which is named as long as it exists."""

    topic_id: bytes
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumer:
    """One member."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client: Client
    topics: tuple[str, ...]
    regex: str | None
    assignment: tuple[NamedPartitions, ...]
    target: tuple[NamedPartitions, ...]
    classic: bool


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """The answer to DescribeConsumerGroup."""

    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


@dataclass(frozen=True, slots=True)
class PatternsResolved:
    """The patterns of a group have been matched against the topics of an image."""

    group_id: str
    matches: Mapping[str, frozenset[str]]
    revision: int
    at_ms: int
    failure: Exception | None = None


# --- offsets --------------------------------------------------------------------------------------


class PartitionCommit(NamedTuple):
    """An offset to commit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: bytes = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """OffsetCommit, or with a producer TxnOffsetCommit. The answer is one ErrorCode per partition,
    in their order."""

    group_id: str
    partitions: tuple[PartitionCommit, ...]
    member_id: str = ""
    instance_id: str | None = None
    epoch: int = NO_EPOCH
    retention_ms: int = -1
    api_version: int = 9
    producer: TransactionalProducer | None = None


class FetchTopic(NamedTuple):
    """The partitions of one topic whose offsets are wanted."""

    topic: str
    partitions: tuple[int, ...]
    topic_id: bytes = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """OffsetFetch for one group; without topics, for all it has committed."""

    group_id: str
    topics: tuple[FetchTopic, ...] | None
    member_id: str | None = None
    epoch: int = NO_EPOCH
    require_stable: bool = False


class FetchedPartition(NamedTuple):
    """What is known of one partition; None where nothing is committed."""

    partition: int
    committed: CommittedOffset | None
    error: ErrorCode = ErrorCode.NONE


class FetchedTopic(NamedTuple):
    """The answer to FetchOffsets has one for each topic, in the order asked."""

    topic: str
    partitions: list[FetchedPartition]


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete. The answer is one ErrorCode per (topic, partition), in their order."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """Topics were deleted: so are the offsets of all groups in them."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ForgetTopicIds:
    """Offsets that belong to topics which no longer exist, found when a shard was loaded."""

    topic_ids: frozenset[bytes]


# --- groups as a whole ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListGroups:
    """The groups of a shard in one of these states and of one of these types; empty: any."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class ListedGroup(NamedTuple):
    """One group of the list that answers ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """DescribeGroups, for one group. GROUP_ID_NOT_FOUND unless it is a classic one."""

    group_id: str


class DescribedMember(NamedTuple):
    """A member; its metadata is told in a stable group only."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """The answer to DescribeGroup."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """DeleteGroups, for one group: it and its offsets. The answer is None."""

    group_id: str
