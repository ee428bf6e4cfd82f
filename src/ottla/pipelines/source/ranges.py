"""What one task reads: a stretch of one partition."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.model.ids import NO_LEADER_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets `start` up to and without `end` of a partition.

    `topic_id` and `epoch` say which topic of that name is meant and under which leader its
    offsets were seen. A checkpoint of Spark's own connector knows neither: then they are
    `ZERO_TOPIC_ID` and -1, and whatever has the name is read.
    """

    topic: str
    topic_id: bytes
    partition: int
    start: int
    end: int
    epoch: int = NO_LEADER_EPOCH

    @property
    def size(self) -> int:
        """How many offsets; compaction and transaction markers make the records fewer."""
        return self.end - self.start

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"
