"""Replicas: every partition this broker holds, found by topic name or id.

It follows the cluster image: `apply` is called with every change of it and creates, changes and
removes partitions accordingly. Requests look partitions up here and nowhere else, so that
"unknown", "not mine" and "its disk has failed" are told apart in one place.

The files of a new partition are made when it is first asked for, or else one after the other when
the loop has nothing better to do: a topic of two thousand partitions is ready at once, and its ten
thousand files hold up nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from ottla.cluster.registry import ImageChange
from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import Topic
from ottla.replication.partition import Durability, Partition
from ottla.storage.directory import LogDirectories
from ottla.storage.faults import OutOfDescriptors

logger = logging.getLogger(__name__)

# Making files takes a fifth of the loop's time at the most.
MAKE_PAUSE = 4
# How long to wait for a free descriptor.
SHORTAGE_PAUSE = 0.5


class Replicas:
    """The partition table of one broker."""

    def __init__(
        self,
        node_id: int,
        logs: LogDirectories,
        durability: Durability,
        config_of: Callable[[Topic], TopicConfig],
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._durability = durability
        self._config_of = config_of
        self._image = ClusterImage()
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}
        # The settings in force, one value for all partitions of a topic.
        self._configs: dict[str, TopicConfig] = {}
        self._following = False  # after the first image: what is new in the next ones is new
        # New partitions without files yet.
        self._waiting: dict[TopicPartition, bool] = {}
        self._maker: asyncio.Handle | None = None

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def by_name(self, topic: str, index: int) -> Partition:
        """The partition, if this broker holds it. Raises KafkaError."""
        try:
            return self._by_name[topic][index]
        except KeyError:
            return self._make_or_raise(self._image.topics.get(topic), index, False)

    def by_id(self, topic_id: bytes, index: int) -> Partition:
        try:
            return self._by_id[topic_id][index]
        except KeyError:
            name = self._image.topic_names.get(TopicId(topic_id))
            topic = None if name is None else self._image.topics.get(name)
            return self._make_or_raise(topic, index, True)

    def offline(self, topic: str, index: int) -> str | None:
        """Why a partition of ours cannot be served, if so."""
        return self._logs.offline_partitions.get(TopicPartition(topic, index))

    def config_of(self, topic: Topic) -> TopicConfig:
        """The settings in force for a topic."""
        return self._config_of(topic)

    def _make_or_raise(self, topic: Topic | None, index: int, by_id: bool) -> Partition:
        if topic is not None and self._waiting:
            tp = TopicPartition(topic.name, index)
            if tp in self._waiting:
                made = self._make(topic, tp, is_new=self._waiting.pop(tp))
                if made is not None:
                    return made
                if tp in self._waiting:
                    raise OutOfDescriptors(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"no descriptor was free to make {tp}; it will be tried again",
                    )
        raise self._absent(topic, index, by_id)

    def _absent(self, topic: Topic | None, index: int, by_id: bool) -> KafkaError:
        if topic is None:
            return KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        if not 0 <= index < len(topic.partitions):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        reason = self.offline(topic.name, index)
        if reason is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # ------------------------------------------------------------------ following the image

    def apply(self, change: ImageChange) -> None:
        """Make the partitions what the new image says they are."""
        self._image = change.new
        for name in change.topics:
            before, after = change.old.topics.get(name), change.new.topics.get(name)
            if before is not None and (after is None or after.id != before.id):
                self._remove(before)
            if after is not None:
                self._update(after, 0 if before is None else len(before.partitions))
        self._following = True

    def reconfigure(self) -> None:
        """Broker defaults changed: every topic's effective settings are worked out anew."""
        for name, partitions in self._by_name.items():
            topic = self._image.topics.get(name)
            if topic is not None:
                config = self._configs[name] = self._config_of(topic)
                for partition in partitions.values():
                    partition.log.config = config

    def _update(self, topic: Topic, known: int) -> None:
        """Follow a topic of which the first `known` partitions existed before."""
        config = self._configs[topic.name] = self._config_of(topic)
        partitions = self._by_name.setdefault(topic.name, {})
        self._by_id[topic.id] = partitions
        for index, state in enumerate(topic.partitions):
            if self._node_id not in state.replicas:
                continue
            partition = partitions.get(index)
            if partition is not None:
                partition.log.config = config
                if state.leader == self._node_id:
                    partition.lead(state)
                continue
            tp = TopicPartition(topic.name, index)
            is_new = self._following and index >= known
            if tp in self._logs.logs:
                self._make(topic, tp, is_new=False)
            elif tp not in self._logs.offline_partitions:
                self._waiting[tp] = is_new
        if self._waiting and self._maker is None:
            self._maker = asyncio.get_running_loop().call_soon(self._make_next)

    def _make(self, topic: Topic, tp: TopicPartition, *, is_new: bool) -> Partition | None:
        """The partition over its log, which is created if there is none. None: it is offline."""
        try:
            log = self._logs.create(tp, topic.id, self._configs[topic.name], is_new=is_new)
        except OutOfDescriptors:
            self._waiting[tp] = is_new
            self._make_later(SHORTAGE_PAUSE)
            return None
        except KafkaError as error:
            self._logs.offline_partitions[tp] = error.message or str(error)
            logger.error("%s cannot be opened: %s", tp, error.message or error)
            return None
        state = topic.partitions[tp.partition]
        partition = Partition(tp, topic.id, log, state, self._durability)
        if state.leader == self._node_id:
            partition.lead(state)
        self._by_name[topic.name][tp.partition] = partition
        return partition

    def _make_next(self) -> None:
        """Make one partition's files, then leave the loop to others for a multiple of the time."""
        self._maker = None
        loop = asyncio.get_running_loop()
        started = loop.time()
        for tp in self._waiting:
            is_new = self._waiting.pop(tp)
            topic = self._image.topics.get(tp.topic)
            if topic is not None:
                self._make(topic, tp, is_new=is_new)
            break
        if self._waiting:
            self._make_later(max(MAKE_PAUSE * (loop.time() - started), 0.0005))

    def _make_later(self, pause: float) -> None:
        if self._maker is None:
            self._maker = asyncio.get_running_loop().call_later(pause, self._make_next)

    def stop_making(self) -> None:
        """The broker ends: what has no files yet gets them at the next start."""
        if self._maker is not None:
            self._maker.cancel()
            self._maker = None

    def _remove(self, topic: Topic) -> None:
        partitions = self._by_name.pop(topic.name, {})
        self._by_id.pop(topic.id, None)
        self._configs.pop(topic.name, None)
        for index in range(len(topic.partitions)):
            tp = TopicPartition(topic.name, index)
            self._waiting.pop(tp, None)
            if tp in self._logs.offline_partitions:
                # Not deleted: whoever deletes a topic because of its damage may yet want the data.
                logger.warning(
                    "%s was offline; its data was kept in %s", tp, self._logs.set_aside(tp)
                )
        for partition in partitions.values():
            try:
                self._logs.delete(partition.id)
            except KafkaError as error:
                # Its folder has failed, which was logged. The others' are deleted all the same.
                self._logs.offline_partitions[partition.id] = error.message or str(error)
            partition.retire()

    def take_offline(self, lost: Iterable[TopicPartition]) -> None:
        """The disk of these partitions failed: they answer with an error from now on."""
        for tp in lost:
            partition = self._by_name.get(tp.topic, {}).pop(tp.partition, None)
            if partition is not None:
                partition.retire()
