"""What a consumer asks brokers without reading: which partitions there are, and offsets in them.

Every question may take as long as the consumer's `timeout=` says, and nobody waits for its answer
in silence (`contact.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import confluent_kafka as rd

from ottla.client import positions
from ottla.client.errors import ClientError, translate, translated
from ottla.client.inbox import Inbox
from ottla.client.lookout import Outside
from ottla.client.positions import Position, check_partition, check_position
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition

T = TypeVar("T")

Partitions = str | Iterable["TopicPartition | tuple[str, int]"]
"""A topic's name for all of its partitions, or (topic, partition) pairs."""

# What librdkafka and brokers say of a partition without a leader.
_NOBODY_LEADS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)


class Lookups:
    """The questions of one consumer. `outside` asks without librdkafka."""

    def __init__(self, inbox: Inbox, outside: Outside, timeout: float) -> None:
        self._inbox = inbox
        self._outside = outside
        self._timeout = timeout
        self._leaderless: list[TopicPartition] = []

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """All partitions of a topic; KafkaError when there is no such topic."""

        def look(timeout: float) -> Any:
            with translated():
                return self._inbox.client.list_topics(topic, timeout=timeout).topics[topic]

        described = self._ask(look)
        if described.error is not None:
            error = translate(described.error)
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise ClientError(error.code, f"there is no topic {topic!r}")
            raise error
        found = tuple(TopicPartition(topic, number) for number in sorted(described.partitions))
        self._leaderless = [tp for tp in found if described.partitions[tp.partition].leader < 0]
        return found

    def expand(self, partitions: Partitions) -> tuple[TopicPartition, ...]:
        """The partitions that are meant."""
        if isinstance(partitions, str):
            return self.partitions(partitions)
        return tuple(check_partition(tp) for tp in partitions)

    def starts(
        self, partitions: Partitions | Mapping[TopicPartition, Position], start: Position
    ) -> dict[TopicPartition, int]:
        """The offset to start at in each partition, for what `assign` is given."""
        wanted: dict[TopicPartition, Position]
        if isinstance(partitions, Mapping):
            wanted = {check_partition(tp): check_position(at) for tp, at in partitions.items()}
        else:
            wanted = dict.fromkeys(self.expand(partitions), check_position(start))
        return self.resolve(wanted)

    def resolve(self, wanted: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
        """The offset that each position is."""
        with self._explained(wanted):
            return self._ask(lambda timeout: positions.resolve(self._inbox.client, wanted, timeout))

    def for_times(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose timestamp is not before a moment; None when there is none."""
        with self._explained(asked):
            found = self._ask(lambda timeout: positions.look_up(self._inbox.client, asked, timeout))
        return {tp: offset if offset >= 0 else None for tp, offset in found.items()}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """What the consumer's group has committed; None where it has nothing."""
        asked = [rd.TopicPartition(*tp) for tp in partitions]

        def look(timeout: float) -> list[rd.TopicPartition]:
            with translated():
                return self._inbox.client.committed(asked, timeout=timeout)

        answers = self._ask(look)
        for answer in answers:
            if answer.error is not None:
                raise translate(answer.error)
        return {
            TopicPartition(answer.topic, answer.partition): answer.offset
            if answer.offset >= 0
            else None
            for answer in answers
        }

    def say_offline(self) -> None:
        """Warn, in the background, if partitions of the topic looked up last are offline:
        the others are read."""
        if self._leaderless:
            self._inbox.look_at(self._leaderless)
            self._leaderless = []

    def _ask(self, question: Callable[[float], T]) -> T:
        return self._inbox.contact.ask(question, self._timeout)

    @contextmanager
    def _explained(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Ask partitions; for one that nobody leads librdkafka has only misleading words."""
        try:
            yield
        except ClientError as error:
            if error.code in _NOBODY_LEADS:
                found = self._outside.problems(partitions)
                raise next(iter(found.values()), error) from None
            raise
