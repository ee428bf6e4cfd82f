"""Replicas: every partition this broker holds, found by topic name or id.

It follows the cluster image: `apply` is called with every change of it and creates, changes and
removes partitions accordingly, and makes this broker their leader or follower. Requests look
partitions up here and nowhere else, so that "unknown", "not mine" and "its disk has failed" are
told apart in one place.

A broker leads only while the controller counts on it: without its registration, or before it was
admitted under it, it leads nothing, whatever the partitions' states still say.

The files of a new partition are made when it is first asked for, or else one after the other when
the loop has nothing better to do: a topic of two thousand partitions is ready at once, and its ten
thousand files hold up nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ottla.cluster.registry import ImageChange
from ottla.config.setting import ConfigError
from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionState, Topic
from ottla.replication.cluster_view import ClusterView
from ottla.replication.flushes import Durability
from ottla.replication.isr import Rules
from ottla.replication.partition import Partition
from ottla.replication.traffic import Traffic
from ottla.storage.directory import LogDirectories
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import Log

logger = logging.getLogger(__name__)

# Making files takes a fifth of the loop's time at the most.
MAKE_PAUSE = 4
# How long to wait for a free descriptor.
SHORTAGE_PAUSE = 0.5


class Cluster(ClusterView, Protocol):
    """What the partition table asks of the part that talks to other brokers."""

    @property
    def broker_epoch(self) -> int:
        """Of this broker's newest registration; -1 without one."""
        ...

    def start_following(self, partition: Partition) -> None:
        """Fetch from the leader that the partition's state names; again whenever it changes."""
        ...

    def stop_following(self, partition: Partition) -> None: ...


class Replicas:
    """The partition table of one broker."""

    def __init__(
        self,
        node_id: int,
        logs: LogDirectories,
        durability: Durability,
        config_of: Callable[[Topic], TopicConfig],
        cluster: Cluster | None = None,
    ) -> None:
        self._node_id = node_id
        self._logs = logs
        self._durability = durability
        self._config_of = config_of
        self._cluster = cluster
        self._image = ClusterImage()
        # Those that this broker leads: what nearly every request is about.
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}
        self._held: dict[TopicPartition, Partition] = {}  # these and those that it follows
        self._admitted = cluster is None
        # The settings in force, one value for all partitions of a topic.
        self._configs: dict[str, TopicConfig] = {}
        self.traffic = Traffic()
        self._unfinished: set[str] = set()  # topics that could not be followed to the end
        self._following = False  # after the first image: what is new in the next ones is new
        # New partitions without files yet.
        self._waiting: dict[TopicPartition, bool] = {}
        self._maker: asyncio.Handle | None = None
        self._ending = False

    def __iter__(self) -> Iterator[Partition]:
        """Every partition that is held here, led or followed."""
        return iter(self._held.values())

    def led(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def held(self, topic: str, index: int) -> Partition | None:
        """The partition, if there is one here, led or followed; its files are not made for that."""
        return self._held.get(TopicPartition(topic, index))

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

    def leads(self, topic: str, index: int) -> bool:
        """Whether this broker leads the partition now."""
        return index in self._by_name.get(topic, ())

    def led_in(self, epoch: int, topic: str, index: int) -> Partition:
        """The partition, for who takes `epoch` for that of its leader (-1: for who does not say).

        As in Kafka the epoch is judged first, by a follower too: FENCED_LEADER_EPOCH tells the
        client to look for the leader anew, UNKNOWN_LEADER_EPOCH to wait for this broker.
        """
        try:
            partition = self.by_name(topic, index)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                held = self._held.get(TopicPartition(topic, index))
                if held is not None:
                    held.check_epoch(epoch)
            raise
        partition.check_epoch(epoch)
        return partition

    def replica_by_name(self, topic: str, index: int) -> Partition:
        """The partition, led or followed by this broker. Raises KafkaError."""
        return self._replica(self._image.topics.get(topic), index, False)

    def replica_by_id(self, topic_id: bytes, index: int) -> Partition:
        name = self._image.topic_names.get(TopicId(topic_id))
        return self._replica(None if name is None else self._image.topics.get(name), index, True)

    def _replica(self, topic: Topic | None, index: int, by_id: bool) -> Partition:
        if topic is not None:
            partition = self._held.get(TopicPartition(topic.name, index))
            if partition is not None and partition.topic_id == topic.id:
                return partition
        return self._make_or_raise(topic, index, by_id, led=False)

    def offline(self, topic: str, index: int) -> str | None:
        """Why a partition of ours cannot be served, if so."""
        return self._logs.offline_partitions.get(TopicPartition(topic, index))

    def config_of(self, topic: Topic) -> TopicConfig:
        """The settings in force for a topic."""
        return self._config_of(topic)

    def _make_or_raise(
        self, topic: Topic | None, index: int, by_id: bool, *, led: bool = True
    ) -> Partition:
        if topic is not None and self._waiting:
            tp = TopicPartition(topic.name, index)
            if tp in self._waiting:
                made = self._make(topic, tp, is_new=self._waiting.pop(tp))
                if made is not None and (made.leading or not led):
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
        if self._cluster is not None and self._node_id in change.brokers:
            self.take_note_of_admission()
        failure: Exception | None = None
        for name in change.topics:
            # Nobody tells of the other topics once more: they must not go by the board with it.
            try:
                self._apply_topic(change.old.topics.get(name), change.new.topics.get(name))
            except (KafkaError, ConfigError) as error:
                # A disk has failed, or a newer broker has left a setting that is unknown here.
                logger.error("topic %s cannot be followed: %s", name, error)
            except Exception as error:
                logger.exception("topic %s cannot be followed", name)
                failure = failure or error
        if change.brokers and self._cluster is not None:
            # Whoever was waited for, because it had caught up, may have died.
            for partition in list(self.led()):  # a disk may fail meanwhile, and take some away
                partition.recount()
        self._following = True
        if failure is not None:
            raise failure

    def _apply_topic(self, before: Topic | None, after: Topic | None) -> None:
        if before is not None and (after is None or after.id != before.id):
            self._remove(before)
            before = None
        if after is not None:
            followed = () if after.name in self._unfinished else _followed(before, after)
            self._unfinished.add(after.name)
            self._update(after, () if before is None else before.partitions, followed)
            self._unfinished.discard(after.name)

    def take_note_of_admission(self) -> None:
        """Lead from now on, or lead nothing any more, as the image and the registration say."""
        assert self._cluster is not None
        broker = self._image.brokers.get(self._node_id)
        admitted = broker is not None and broker.epoch == self._cluster.broker_epoch
        if admitted != self._admitted:
            self._admitted = admitted
            for tp, partition in list(self._held.items()):
                topic = self._image.topics.get(tp.topic)
                if topic is not None and tp.partition < len(topic.partitions):
                    self._assign_role(topic, tp, partition)

    def reconfigure(self) -> None:
        """Broker defaults changed: every topic's effective settings are worked out anew."""
        for tp, partition in list(self._held.items()):
            topic = self._image.topics.get(tp.topic)
            if topic is not None:
                config = self._configs[tp.topic] = self._config_of(topic)
                partition.log.config = config
                self._assign_role(topic, tp, partition)

    def _update(
        self,
        topic: Topic,
        known: Sequence[PartitionState],
        followed: Sequence[PartitionState] = (),
    ) -> None:
        """Follow a topic whose first partitions were in the `known` states before. Those that are
        `followed` as they are need no look: a change concerns a few of perhaps thousands."""
        if not followed:
            self._configs[topic.name] = self._config_of(topic)
        config = self._configs[topic.name]
        self._by_id[topic.id] = self._by_name.setdefault(topic.name, {})
        for index, state in enumerate(topic.partitions):
            if index < len(followed) and followed[index] is state:
                continue
            tp = TopicPartition(topic.name, index)
            if self._node_id not in state.replicas:
                if index < len(known) and self._node_id in known[index].replicas:
                    self._give_away(tp, state)
                continue
            partition = self._held.get(tp)
            if partition is not None:
                partition.log.config = config
                self._assign_role(topic, tp, partition)
                continue
            # Whoever had no replica before has nothing of it in a folder that has failed.
            is_new = self._following and (
                index >= len(known) or self._node_id not in known[index].replicas
            )
            if tp in self._logs.logs:
                self._make(topic, tp, is_new=False)
            elif tp not in self._logs.offline_partitions:
                self._waiting[tp] = is_new
        if self._waiting and self._maker is None and not self._ending:
            self._maker = asyncio.get_running_loop().call_soon(self._make_next)

    def _assign_role(self, topic: Topic, tp: TopicPartition, partition: Partition) -> None:
        """Lead the partition or follow it, as its state says."""
        state = topic.partitions[tp.partition]
        led = self._by_name[topic.name]
        if self._admitted and state.leader == self._node_id:
            if self._cluster is not None and len(state.replicas) > 1:
                self._cluster.stop_following(partition)
            config = partition.log.config
            partition.lead(
                state, Rules(config.min_insync_replicas, config.unclean_leader_election_enable)
            )
            led[tp.partition] = partition
            return
        led.pop(tp.partition, None)
        partition.follow(state)
        if self._cluster is not None:
            if self._admitted and state.leader != NO_LEADER:
                self._cluster.start_following(partition)
            else:
                self._cluster.stop_following(partition)

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
        partition = Partition(
            tp,
            topic.id,
            log,
            topic.partitions[tp.partition],
            self._durability,
            self._cluster,
            self._logs.high_watermarks.get(tp, -1),
        )
        partition.traffic = self.traffic.of(tp.topic)
        self._held[tp] = partition
        self._assign_role(topic, tp, partition)
        return partition

    def begin_anew(self, tp: TopicPartition) -> None:
        """The log of a partition was set aside: it goes on with an empty one."""
        topic = self._image.topics.get(tp.topic)
        if topic is not None and tp.partition < len(topic.partitions) and tp not in self._held:
            self._make(topic, tp, is_new=True)

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
        if self._maker is None and not self._ending:
            self._maker = asyncio.get_running_loop().call_later(pause, self._make_next)

    def stop_making(self) -> None:
        """The broker ends: what has no files yet gets them at the next start."""
        self._ending = True
        if self._maker is not None:
            self._maker.cancel()
            self._maker = None

    def _remove(self, topic: Topic) -> None:
        self._by_name.pop(topic.name, None)
        self._by_id.pop(topic.id, None)
        self._configs.pop(topic.name, None)
        self.traffic.forget(topic.name)
        self._unfinished.discard(topic.name)
        partitions = []
        for index in range(len(topic.partitions)):
            tp = TopicPartition(topic.name, index)
            self._waiting.pop(tp, None)
            partition = self._held.pop(tp, None)
            if partition is not None:
                partitions.append(partition)
            if tp in self._logs.offline_partitions:
                # Not deleted: whoever deletes a topic because of its damage may yet want the data.
                kept = self._logs.set_aside(tp)
                if kept is None:
                    self._logs.forget(tp)
                    kept = "its offline data folder, to be set aside when that is used again"
                logger.warning("%s was offline; its data was kept in %s", tp, kept)
        for partition in partitions:
            if self._cluster is not None:
                self._cluster.stop_following(partition)
            try:
                self._logs.delete(partition.id)
            except KafkaError:
                # Its folder has failed, which was logged. The others' are deleted all the same.
                self._logs.forget(partition.id)
            partition.retire()

    def _give_away(self, tp: TopicPartition, state: PartitionState) -> None:
        """The partition was moved to others, all of which have it: what is here is deleted."""
        self._waiting.pop(tp, None)
        self._by_name.get(tp.topic, {}).pop(tp.partition, None)
        partition = self._held.pop(tp, None)
        if partition is not None:
            if self._cluster is not None:
                self._cluster.stop_following(partition)
            partition.follow(state)
        if tp in self._logs.offline_partitions:
            if self._logs.set_aside(tp) is None:
                self._logs.forget(tp)
        else:
            try:
                self._logs.delete(tp)
            except KafkaError:
                self._logs.forget(tp)  # its folder has failed, which was logged
        if partition is not None:
            partition.retire()
        logger.info("%s was moved to other brokers, its log is deleted here", tp)

    # ------------------------------------------------------------------ moves between folders

    def may_replace(self, partition: TopicPartition) -> bool:
        held = self._held.get(partition)
        return held is None or not held.truncating

    def replaced(self, partition: TopicPartition, log: Log) -> None:
        """The log goes on in another data folder."""
        held = self._held.get(partition)
        if held is not None:
            held.log = log

    def take_offline(self, lost: Iterable[TopicPartition]) -> None:
        """The disk of these partitions failed: they answer with an error from now on."""
        for tp in lost:
            self._by_name.get(tp.topic, {}).pop(tp.partition, None)
            partition = self._held.pop(tp, None)
            if partition is not None:
                if self._cluster is not None:
                    self._cluster.stop_following(partition)
                partition.retire()


def _followed(before: Topic | None, after: Topic) -> tuple[PartitionState, ...]:
    """The states of a topic that are followed already: none if its settings are others by now."""
    if before is None or before.id != after.id or before.config != after.config:
        return ()
    return before.partitions
