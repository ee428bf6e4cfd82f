"""What consumers of the classic protocol say to one another through the coordinator.

The coordinator carries these as opaque bytes. It looks inside for two purposes: which topics a
group is subscribed to (whose offsets must not expire), and to move a group between the classic and
the consumer protocol. Both are preceded by two bytes with the version.
"""

from __future__ import annotations

from ottla.protocol.schema import array, binary, int32, message, string, struct


@struct
class TopicPartition:
    """Some partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


@message(kind="data", versions="0-3", flexible="none")
class ConsumerProtocolSubscription:
    """What a consumer wants. 1 owned partitions, 2 their generation, 3 rack."""

    topics: list[str] = array(string)
    user_data: bytes | None = binary(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(
        TopicPartition, versions="1+", ignorable=True, factory=list
    )
    generation_id: int = int32(versions="2+", ignorable=True, default=-1)
    rack_id: str | None = string(versions="3+", nullable="3+", ignorable=True, default=None)


@message(kind="data", versions="0-3", flexible="none")
class ConsumerProtocolAssignment:
    """What a consumer gets."""

    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = binary(nullable="0+", default=None)
