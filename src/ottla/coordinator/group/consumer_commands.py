"""What can be asked of a consumer group, and what comes back; the companion of `commands`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.members import Client


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
    """The answer: the member's epoch, and what it shall own when that has changed."""

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
