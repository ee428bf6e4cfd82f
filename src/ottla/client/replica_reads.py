"""What single replicas have, leaders or not: each is asked as by a consumer that may read there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.model.ids import TopicId, TopicPartition
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.records.batch import BatchHeader, batches

if TYPE_CHECKING:
    from ottla.client.direct import DirectAdmin


_MOST_BYTES = 50 << 20
"""Of one answer, as consumers ask for by default; however many partitions it is about."""


class Answer(NamedTuple):
    """What one replica has from an offset on."""

    high_watermark: int
    batches: tuple[BatchHeader, ...]


def read_replicas(
    admin: DirectAdmin,
    broker: int,
    offsets: Mapping[TopicPartition, int],
    ids: Mapping[str, TopicId],
    *,
    most_bytes: int,
    max_wait_ms: int,
) -> Iterator[tuple[TopicPartition, Answer]]:
    """What this broker has of partitions, each from its offset on and up to `most_bytes`; those
    that it refuses are left out. Where there is more than fits into one answer the first ones have
    records in it. Raises KafkaError."""
    by_topic: dict[str, list[FetchPartition]] = {}
    for tp, offset in offsets.items():
        wanted = FetchPartition(
            partition=tp.partition, fetch_offset=offset, partition_max_bytes=most_bytes
        )
        by_topic.setdefault(tp.topic, []).append(wanted)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max(most_bytes, min(most_bytes * len(offsets), _MOST_BYTES)),
        topics=[
            FetchTopic(topic=name, topic_id=ids[name], partitions=parts)
            for name, parts in by_topic.items()
        ],
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    for topic in admin.router.node(broker).ask(request).responses:
        name = topic.topic or names[topic.topic_id]
        for part in topic.partitions:
            if not part.error_code:
                headers = tuple(header for _, header in batches(part.records or b""))
                tp = TopicPartition(name, part.partition_index)
                yield tp, Answer(part.high_watermark, headers)
