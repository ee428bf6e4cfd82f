"""Groups: the group coordinator as handlers see it.

It finds the shard of a group (which belongs to the partition of `__consumer_offsets` that the hash
of its id names), runs the command there and gives the reply, or a Deferred of it. What Kafka checks
before it looks for a shard is checked here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from ottla.cluster.registry import ImageChange
from ottla.config.broker import BrokerConfig
from ottla.coordinator.group.classic import ClassicMachine
from ottla.coordinator.group.commands import (
    CommitOffsets,
    ConsumerAlive,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DescribedGroup,
    DescribeGroup,
    FetchedTopic,
    FetchOffsets,
    ForgetTopics,
    Heartbeat,
    Join,
    Joined,
    Leave,
    ListedGroup,
    ListGroups,
    Sync,
    Synced,
)
from ottla.coordinator.group.consumer import ConsumerMachine
from ottla.coordinator.group.group import Counts, Group, ShardState, check_group_id
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.host import Host, Partitions
from ottla.coordinator.key_hash import key_hash
from ottla.coordinator.replies import attempt, gather, then
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.records.compression import Compression
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers

OFFSETS_TOPIC = "__consumer_offsets"
_COMPRESSION = {int(codec): codec for codec in Compression}

T = TypeVar("T")
Reply: TypeAlias = T | Deferred[T]


class _Settings:
    """What the host reads of the broker's settings, always the newest."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config

    @property
    def load_buffer_bytes(self) -> int:
        return self._config().offsets_load_buffer_size

    @property
    def compression(self) -> Compression:
        return _COMPRESSION[self._config().offsets_topic_compression_codec]

    @property
    def commit_timeout_ms(self) -> int:
        return self._config().offsets_commit_timeout_ms


class Groups:
    """The group coordinator of this broker."""

    def __init__(  # noqa: PLR0913 - handed in once, by name, by the composition root
        self,
        node_id: int,
        *,
        partitions: Partitions,
        clock: Clock,
        workers: Workers,
        tasks: Tasks | None = None,
        config: Callable[[], BrokerConfig],
        new_id: Callable[[], str],
        consumer: Callable[[ShardState, ClassicMachine], ConsumerMachine] | None = None,
        on_loaded: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.counts = Counts()
        self._config = config
        self._new_id = new_id
        self._consumer = consumer
        self.host = Host(
            OFFSETS_TOPIC,
            node_id,
            partitions=partitions,
            clock=clock,
            workers=workers,
            tasks=tasks,
            settings=_Settings(config),
            make_shard=self._make_shard,
            on_loaded=on_loaded,
        )

    def _make_shard(self, index: int, image: ClusterImage) -> GroupShard:
        state = ShardState(
            config=self._config, new_id=self._new_id, image=image, counts=self.counts
        )
        return GroupShard(state, self._consumer)

    # ------------------------------------------------------------------ where

    def partition_for(self, group_id: str) -> int:
        """The partition of the offsets topic that keeps this group."""
        topic = self.host.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return key_hash(group_id) % self._config().offsets_topic_num_partitions
        return key_hash(group_id) % len(topic.partitions)

    def apply(self, change: ImageChange) -> None:
        """Follow the cluster; after the partitions have."""
        self.host.apply(change)
        for slot in self.host:
            # Those that are being loaded too: the commands reach them afterwards, but they must not
            # begin with an old image.
            assert isinstance(slot.shard, GroupShard)
            slot.shard.state.image = change.new
        gone = frozenset(
            name
            for name in change.topics
            if name in change.old.topics
            and (name not in change.new.topics or _id(change.old, name) != _id(change.new, name))
        )
        self.host.notify(change)
        if gone:
            self.host.notify(ForgetTopics(gone))

    def held(self) -> list[Group]:
        """Every group that is coordinated here, as it is in memory: for metrics."""
        return [
            group
            for slot in self.host
            if isinstance(slot.shard, GroupShard)
            for group in slot.shard.groups.values()
        ]

    def count_partitions(self, *, active: bool) -> int:
        """How many partitions of the offsets topic are in service here, or still being loaded."""
        return sum(slot.active is active for slot in self.host)

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """The disk of these partitions has failed."""
        for partition in partitions:
            if partition.topic == OFFSETS_TOPIC:
                self.host.unload(partition.partition)

    async def wait_loaded(self) -> None:
        await self.host.wait_loaded()

    async def close(self) -> None:
        await self.host.close()

    def run(self, command: Any) -> Any:
        """Any command that has a `group_id`: its reply, or a Deferred of it. Raises KafkaError."""
        return self.host.run(self.partition_for(command.group_id), command)

    def consumer_heartbeat(self, command: ConsumerHeartbeat) -> Reply[ConsumerAlive]:
        """The one request of the consumer protocol."""
        reply: Reply[ConsumerAlive] = self._confirm(command)
        return reply

    def _confirm(self, command: Heartbeat | ConsumerHeartbeat | CommitOffsets) -> Any:
        """Somebody says that he is a member; who was replaced neither confirms nor refuses it."""
        return self.host.run_and_confirm(self.partition_for(command.group_id), command)

    # ------------------------------------------------------------------ the classic protocol

    def join(self, command: Join) -> Reply[Joined]:
        check_group_id(command.group_id)
        config = self._config()
        low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not low <= command.session_timeout_ms <= high:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        index = self.partition_for(command.group_id)
        reply: Reply[Joined]
        if command.member_id or command.instance_id is not None:
            reply = self.host.run_together(index, command)
        else:
            # A new member has nothing yet that could be another's, and comes as another one next
            # time: so it is not sent away. But a refusal may end it.
            reply = self.host.run_and_confirm(index, command, _takes_in)
        return reply

    def sync(self, command: Sync) -> Reply[Synced]:
        check_group_id(command.group_id)
        # It may wait for the leader's assignments, and keep what it has meanwhile.
        reply: Reply[Synced] = self.host.run_together(self.partition_for(command.group_id), command)
        return reply

    def heartbeat(self, command: Heartbeat) -> Reply[ErrorCode]:
        """While the group is being loaded any heartbeat is right: nobody can know better."""
        check_group_id(command.group_id)
        try:
            reply: Reply[ErrorCode] = self._confirm(command)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return ErrorCode.NONE
            raise
        return reply

    def leave(self, command: Leave) -> Reply[list[ErrorCode]]:
        check_group_id(command.group_id)
        reply: Reply[list[ErrorCode]] = self.run(command)
        return reply

    # ------------------------------------------------------------------ offsets

    def commit_offsets(self, command: CommitOffsets) -> Reply[list[ErrorCode]]:
        reply: Reply[list[ErrorCode]] = self._confirm(command)
        return reply

    def commit_in_transaction(self, command: CommitOffsets) -> Reply[list[ErrorCode]]:
        check_group_id(command.group_id)
        return self.commit_offsets(command)

    def fetch_offsets(
        self, commands: Sequence[FetchOffsets]
    ) -> Reply[list[list[FetchedTopic] | KafkaError]]:
        """Only while no other coordinator can have acknowledged a newer commit. Consumers of Java
        before 3.9 try again after NOT_COORDINATOR, not after COORDINATOR_NOT_AVAILABLE."""
        replies = [attempt(functools.partial(self._fetch_offsets, each)) for each in commands]
        return then(gather(replies), _as_fetch_errors)

    def _fetch_offsets(self, command: FetchOffsets) -> Reply[list[FetchedTopic]]:
        index = self.partition_for(command.group_id)
        reply: Reply[list[FetchedTopic]] = self.host.run_certainly(index, command)
        return reply

    def delete_offsets(self, command: DeleteOffsets) -> Reply[list[ErrorCode]]:
        check_group_id(command.group_id)
        reply: Reply[list[ErrorCode]] = self.run(command)
        return reply

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """The offset a group will read next in a partition, for retention that waits for it; None
        when it has committed none, or when its shard is being loaded or elsewhere."""
        slot = self.host.slot(self.partition_for(group))
        if slot is None or not slot.active or not isinstance(slot.shard, GroupShard):
            return None
        return slot.shard.offsets.committed(group, partition.topic, partition.partition)

    def committed_in(self, topic: str) -> list[tuple[str, int, int]]:
        """Group, partition and offset of everything committed in a topic, by the groups of all
        shards on this broker that are in service."""
        return [
            committed
            for slot in self.host
            if slot.active and isinstance(slot.shard, GroupShard)
            for committed in slot.shard.offsets.committed_in(topic)
        ]

    # ------------------------------------------------------------------ groups as a whole

    def all_committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of everything committed by the groups of this broker
        that are in service. Offsets may be committed between two steps."""
        for slot in list(self.host):
            if slot.active and isinstance(slot.shard, GroupShard):
                yield from slot.shard.offsets.all_committed()

    def list_groups(self, command: ListGroups) -> Reply[list[ListedGroup]]:
        """The groups of all shards on this broker."""
        replies: list[Reply[list[ListedGroup]]] = self.host.run_everywhere(lambda: command)
        return then(gather(replies), _joined)

    def describe_groups(self, group_ids: Sequence[str]) -> Reply[list[DescribedGroup | KafkaError]]:
        return gather(
            [
                attempt(functools.partial(self.run, DescribeGroup(group_id)))
                for group_id in group_ids
            ]
        )

    def delete_groups(self, group_ids: Sequence[str]) -> Reply[list[KafkaError | None]]:
        return gather(
            [attempt(functools.partial(self.run, DeleteGroup(group_id))) for group_id in group_ids]
        )


def _takes_in(joined: Joined) -> bool:
    return joined.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)


def _id(image: ClusterImage, name: str) -> bytes:
    return image.topics[name].id


def _as_fetch_errors(
    replies: list[list[FetchedTopic] | KafkaError],
) -> list[list[FetchedTopic] | KafkaError]:
    for at, reply in enumerate(replies):
        if isinstance(reply, KafkaError) and reply.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            replies[at] = KafkaError(ErrorCode.NOT_COORDINATOR, reply.message)
    return replies


def _joined(lists: Sequence[list[ListedGroup] | KafkaError]) -> list[ListedGroup]:
    groups = []
    for reply in lists:
        if isinstance(reply, KafkaError):
            if reply.code is ErrorCode.NOT_COORDINATOR:
                continue  # the shard went elsewhere meanwhile, and is listed there
            raise reply
        groups += reply
    return groups
