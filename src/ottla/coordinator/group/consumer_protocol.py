"""The structures that consumers of the classic protocol embed in JoinGroup and SyncGroup.

To the coordinator they are opaque, with two exceptions: it must know a group's topics (whose
offsets do not expire), and a group can change between the classic and the consumer protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any

from ottla.protocol.compiler import codec
from ottla.protocol.messages.internal.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from ottla.protocol.primitives import DecodeError

_VERSION = Struct(">h")
NEWEST = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer wants, owns, and where it is."""

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    generation: int = -1
    rack_id: str | None = None


def read_version(data: bytes) -> int:
    """The version of an embedded structure. Raises DecodeError."""
    if len(data) < 2:
        raise DecodeError("an embedded consumer structure without a version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise DecodeError(f"an embedded consumer structure of version {version}")
    return version


def read_topics(data: bytes) -> list[str]:
    """The topics of a subscription of any version, also of one not invented yet: every version
    begins like the first. Raises DecodeError."""
    read_version(data)
    decoded, _ = codec(ConsumerProtocolSubscription, 0).decode(memoryview(data), 2)
    return decoded.topics


def read_subscription(data: bytes) -> Subscription:
    """A whole subscription; of a newer version, as much as is known. Raises DecodeError."""
    version = min(read_version(data), NEWEST)
    read, _ = codec(ConsumerProtocolSubscription, version).decode(memoryview(data), 2)
    return Subscription(
        version,
        tuple(read.topics),
        read.user_data,
        tuple((owned.topic, tuple(owned.partitions)) for owned in read.owned_partitions),
        read.generation_id,
        read.rack_id,
    )


def write_assignment(partitions: Mapping[str, list[int]], version: int) -> bytes:
    """What SyncGroup gives a consumer: its partitions by topic name."""
    version = min(version, NEWEST)
    parts: list[Any] = [_VERSION.pack(version)]
    codec(ConsumerProtocolAssignment, version).encode(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in partitions.items()
            ]
        ),
        parts,
    )
    return b"".join(parts)


def read_assignment(data: bytes) -> dict[str, list[int]]:
    """The partitions of an assignment, by topic name. Raises DecodeError."""
    return {topic.topic: topic.partitions for topic in _decode_assignment(data).assigned_partitions}


def read_assignment_user_data(data: bytes) -> bytes | None:
    """What the assigning client added for its own kind. Raises DecodeError."""
    return _decode_assignment(data).user_data


def _decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    version = min(read_version(data), NEWEST)
    return codec(ConsumerProtocolAssignment, version).decode(memoryview(data), 2)[0]
