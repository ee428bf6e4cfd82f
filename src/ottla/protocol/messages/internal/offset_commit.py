"""Committed offsets, as `__consumer_offsets` keeps them: record types 0 and 1."""

from __future__ import annotations

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import int32, int64, message, string, uuid


@message(api_key=1, kind="data", versions="0", flexible="none")
class OffsetCommitKey:
    """Whose offset it is. Type 0, of Kafka before 0.9, has the same form."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


@message(api_key=1, kind="data", versions="0-4", flexible="4+")
class OffsetCommitValue:
    """A committed offset.

    1 (only) has a time of expiry, 3 the leader epoch, 4 flexible and the topic's id.
    """

    offset: int = int64()
    leader_epoch: int = int32(versions="3+", ignorable=True, default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(versions="1", ignorable=True, default=-1)
    topic_id: bytes = uuid(versions="4+", tag=0, ignorable=True, default=ZERO_UUID)
