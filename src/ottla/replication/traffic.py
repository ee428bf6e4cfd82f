"""What goes in and out of each topic, counted in plain integers.

All partitions of a topic on this broker add to one object, which lives as long as the topic does
here: so a sum never falls because one of the partitions has moved away.

Anybody may be able to create topics, so only `MOST` of them are counted each for itself; those that
come later share one object, under a name that no topic can have.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST = 1_000
OTHERS = "(others)"


class TopicTraffic:
    """Records and bytes of one topic since it was first seen here."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "replicated_in", "replicated_out")

    def __init__(self) -> None:
        # of producers and consumers
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # of other brokers
        self.replicated_in = 0
        self.replicated_out = 0


class Traffic:
    """The traffic of all topics of a broker."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._topics: dict[str, TopicTraffic] = {}
        self._others: TopicTraffic | None = None

    def of(self, topic: str) -> TopicTraffic:
        """Where a topic is counted."""
        found = self._topics.get(topic)
        if found is not None:
            return found
        if len(self._topics) < self._most:
            found = self._topics[topic] = TopicTraffic()
            return found
        if self._others is None:
            self._others = TopicTraffic()
        return self._others

    def label(self, topic: str) -> str:
        """The name under which a topic is counted."""
        return topic if topic in self._topics else OTHERS

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        self._topics.pop(topic, None)

    def __iter__(self) -> Iterator[tuple[str, TopicTraffic]]:
        yield from list(self._topics.items())
        if self._others is not None:
            yield OTHERS, self._others
