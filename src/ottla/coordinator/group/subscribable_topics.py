"""What groups can subscribe to: topics as assignors see them, and a hash to notice changes by.

A group's journal keeps one number for the state of all topics it subscribes to (which exist, with
which id, how many partitions, replicas in which racks). When the number for the current image is
another one, the group needs a new assignment. The hash need not be Kafka's: a group taken over from
Apache Kafka gets one new assignment, for the same members.

Each shard has one `SubscribableTopics`. An image shares what has not changed with
the one before, so what was worked out for a topic holds as long as the topic is the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from ottla.coordinator.group.assignors import AssignableTopic
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import Topic

T = TypeVar("T")

NOTHING_SUBSCRIBED = 0
ROOM = 1 << 24
"""Bytes of names, roughly, of which it is remembered what follows from them: members can subscribe
to what they like, and to something else with every heartbeat."""
NAME_OVERHEAD = 100


@dataclass(frozen=True, slots=True)
class _Described:
    """A topic, and what follows from it."""

    topic: Topic
    assignable: AssignableTopic
    digest: bytes


class _Remembered(dict[frozenset[str], T]):
    """What follows from sets of names, for as many as there is room for."""

    _size = 0

    def keep(self, names: frozenset[str], value: T) -> None:
        size = sum(map(len, names)) + NAME_OVERHEAD * (1 + len(names))
        if self._size + size > ROOM:
            self.clear()
        if size <= ROOM:
            self._size += size
            self[names] = value

    def clear(self) -> None:
        super().clear()
        self._size = 0


class SubscribableTopics:
    """The topics of the newest image."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        # The revision that last brought topics into being: older matches of patterns are stale.
        self.newest_topic_revision = image.revision
        self._racks = _racks(image)
        self._described: dict[str, _Described] = {}
        self._ids: _Remembered[frozenset[TopicId]] = _Remembered()
        self._hashes: _Remembered[int] = _Remembered()

    def follow(self, image: ClusterImage) -> None:
        """Go on with a newer image."""
        if image is self.image:
            return
        if image.topics is not self.image.topics:
            if image.topic_names.keys() - self.image.topic_names.keys():
                self.newest_topic_revision = image.revision
            for name in self._described.keys() - image.topics.keys():
                del self._described[name]
            self._ids.clear()
            self._hashes.clear()
        if image.brokers is not self.image.brokers:
            racks = _racks(image)
            if racks != self._racks:
                self._racks = racks
                self._described.clear()
                self._hashes.clear()
        self.image = image

    def name(self, topic_id: TopicId) -> str | None:
        return self.image.topic_names.get(topic_id)

    def ids(self, names: frozenset[str]) -> frozenset[TopicId]:
        """The ids of those that exist."""
        ids = self._ids.get(names)
        if ids is None:
            topics = self.image.topics
            ids = frozenset(topics[name].id for name in names if name in topics)
            self._ids.keep(names, ids)
        return ids

    def assignable(self, ids: Iterable[TopicId]) -> dict[TopicId, AssignableTopic]:
        """What an assignor has to know about topics that exist."""
        names = self.image.topic_names
        return {
            topic_id: self._describe(self.image.topics[names[topic_id]]).assignable
            for topic_id in ids
        }

    def hash(self, names: Iterable[str]) -> int:
        """The number that stands for the state of these topics."""
        known = frozenset(names)
        number = self._hashes.get(known)
        if number is None:
            number = self._hash(known)
            self._hashes.keep(known, number)
        return number

    def _hash(self, names: Iterable[str]) -> int:
        topics = self.image.topics
        digests = [self._describe(topics[name]).digest for name in sorted(names) if name in topics]
        if not digests:
            return NOTHING_SUBSCRIBED
        digest = blake2b(b"".join(digests), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _describe(self, topic: Topic) -> _Described:
        known = self._described.get(topic.name)
        if known is not None and known.topic is topic:
            return known
        racks: tuple[frozenset[str], ...] = ()
        if self._racks:
            racks = tuple(
                frozenset(
                    self._racks[broker_id]
                    for broker_id in partition.replicas
                    if broker_id in self._racks
                )
                for partition in topic.partitions
            )
            if not any(racks):
                racks = ()
        assignable = AssignableTopic(len(topic.partitions), racks)
        digest = blake2b(topic.id, digest_size=16)
        digest.update(topic.name.encode())
        digest.update(len(topic.partitions).to_bytes(4, "big"))
        for index, there in enumerate(racks):
            digest.update(f"\0{index}\0{chr(0).join(sorted(there))}".encode())
        described = _Described(topic, assignable, digest.digest())
        self._described[topic.name] = described
        return described


def _racks(image: ClusterImage) -> Mapping[int, str]:
    return {broker.id: broker.rack for broker in image.brokers.values() if broker.rack}
