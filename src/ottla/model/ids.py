"""Names and numbers that identify things.

A topic id is 16 raw bytes, not a `uuid.UUID`: it is a dictionary key on the request path,
and bytes cost nothing to make from the wire.
"""

from __future__ import annotations

import base64
from typing import NamedTuple, NewType

TopicId = NewType("TopicId", bytes)

ZERO_TOPIC_ID = TopicId(bytes(16))
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """One partition of one topic; printed the way its folder is named."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Replica(NamedTuple):
    """One broker's replica of a partition; printed as Kafka's tools do."""

    broker: int
    partition: TopicPartition

    def __str__(self) -> str:
        return f"{self.partition}-{self.broker}"


def topic_id_text(topic_id: bytes) -> str:
    """Kafka's spelling of an id: url-safe base64, unpadded, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def parse_topic_id(text: str) -> TopicId:
    """Read what `topic_id_text` writes; a wrong length is a ValueError."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"a topic id has 16 bytes, {text!r} has {len(raw)}")
    return TopicId(raw)
