"""Values and interfaces that both kinds of group share.

A shard maps group ids to `ClassicGroup` (classic_group.py) or `ConsumerGroup` (consumer_group.py).
What the rest of the coordinator needs of a group, whichever kind it is, is the `Group` protocol:
offsets, listing, deletion and expiry are written once over it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import Deadlines, Record
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_TOPIC_ID
from ottla.model.image import ClusterImage

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members are consumers (and not, say, Connect workers)."""

NO_EPOCH = -1
"""In place of a generation or member epoch: a commit from outside of any generation."""


class Timer(NamedTuple):
    """A deadline of a group or of one of its members: its name, and the command when it comes."""

    kind: str
    group_id: str
    member_id: str = ""


class GroupType(Enum):
    """Which protocol a group speaks, as ListGroups prints it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Client(NamedTuple):
    """Who sent a command."""

    id: str
    host: str
    """As Kafka prints addresses: with a leading slash."""


def client_at(client_id: str, peer: str) -> Client:
    """The client with this id at the other end of a connection (`address:port`)."""
    return Client(client_id, _host(peer))


@functools.lru_cache(maxsize=16_384)
def _host(peer: str) -> str:
    return f"/{peer.rpartition(':')[0].strip('[]')}"


class CommittedOffset(NamedTuple):
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    """Set by clients that chose a retention time themselves (OffsetCommit 2 to 4), else -1."""
    topic_id: bytes = ZERO_TOPIC_ID


ExpiryBase = Callable[[CommittedOffset], int]
"""The time from which the retention of an offset is counted."""


class Group(Protocol):
    """What the coordinator asks of any group."""

    @property
    def id(self) -> str: ...

    @property
    def type(self) -> GroupType: ...

    @property
    def protocol_type(self) -> str:
        """As ListGroups shows it; empty for a group that only keeps offsets."""
        ...

    @property
    def state_name(self) -> str:
        """Kafka's name of the state: `Stable`, `Empty`, `PreparingRebalance`, `Assigning` …"""
        ...

    def is_empty(self) -> bool:
        """Whether it has no members."""
        ...

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        api_version: int,
        transactional: bool = False,
    ) -> None:
        """Raise KafkaError unless this member may commit offsets now."""
        ...

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise KafkaError unless this member may read offsets now."""
        ...

    def check_offset_delete(self) -> None:
        """Raise KafkaError unless offsets of unsubscribed topics may be deleted now."""
        ...

    def check_delete(self) -> None:
        """Raise KafkaError (NON_EMPTY_GROUP …) unless the group may be deleted."""
        ...

    def is_subscribed(self, topic: str) -> bool:
        """Whether the group reads the topic; its offsets neither expire nor can be deleted."""
        ...

    def expiry_base(self) -> ExpiryBase | None:
        """From when offsets count as old; None while none of them may expire."""
        ...

    def should_expire(self) -> bool:
        """Whether the group goes away with its last offset."""
        ...

    def tombstones(self) -> list[Record]:
        """The records that make it gone."""
        ...

    def validate(self) -> None:
        """Assert the invariants; for tests, after every step."""
        ...


@dataclass(slots=True)
class Counts:
    """What has happened to the groups of this broker since it was started, for its metrics."""

    offsets_committed: int = 0
    offsets_expired: int = 0
    offsets_deleted: int = 0
    classic_rebalances: int = 0
    consumer_rebalances: int = 0


@dataclass(slots=True)
class ShardState:
    """What the machines of one shard share; each has its own part of it."""

    config: Callable[[], BrokerConfig]
    """The settings now in force."""
    new_id: Callable[[], str]
    """A random uuid, as text."""
    image: ClusterImage = field(default_factory=ClusterImage)
    """The newest state of the cluster."""
    groups: dict[str, Group] = field(default_factory=dict)
    deadlines: Deadlines[Timer] = field(default_factory=Deadlines)
    counts: Counts = field(default_factory=Counts)
    """Shared by all shards."""


def check_group_id(group_id: str, *, empty_allowed: bool = False) -> None:
    """INVALID_GROUP_ID unless the id can name a group."""
    if not group_id and not empty_allowed:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
