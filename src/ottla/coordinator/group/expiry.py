"""Which committed offsets are too old to keep.

Kafka's rules (KIP-211). The retention counts from the moment a group became empty, or from the last
commit where there is no such moment: for a group that never had members, and for topics that the
members of a stable group do not subscribe to. While a group has members nothing of a subscribed
topic expires. An offset committed with a retention time of its own (OffsetCommit 2 to 4) keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.coordinator.group.group import CommittedOffset, ExpiryBase, Group

OffsetsByTopic = Mapping[str, Mapping[int, CommittedOffset]]


def is_expired(
    offset: CommittedOffset, base: ExpiryBase, *, now_ms: int, retention_ms: int
) -> bool:
    if offset.expire_timestamp_ms >= 0:
        return now_ms >= offset.expire_timestamp_ms
    return now_ms - base(offset) >= retention_ms


def expired(
    group: Group, offsets: OffsetsByTopic, *, now_ms: int, retention_ms: int
) -> Iterator[tuple[str, int]]:
    """The partitions whose offset may go."""
    base = group.expiry_base()
    if base is None:
        return
    for topic, partitions in offsets.items():
        if group.is_subscribed(topic):
            continue
        for partition, offset in partitions.items():
            if is_expired(offset, base, now_ms=now_ms, retention_ms=retention_ms):
                yield topic, partition
