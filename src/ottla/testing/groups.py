"""A group coordinator's shard with a cluster around it, and consumers that do as they are told.

For tests of the group machines: no broker, no socket, no time but what is `advance`d. `GroupWorld`
holds the shard and the topics it sees; a `Consumer` speaks the consumer protocol to it, remembers
what it was told and reports it as a client would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.coordinator.group.assignors import Partitions
from ottla.coordinator.group.commands import ConsumerAlive, ConsumerHeartbeat
from ottla.coordinator.group.consumer import ConsumerMachine
from ottla.coordinator.group.consumer_group import ConsumerGroup
from ottla.coordinator.group.group import Client, ShardState
from ottla.coordinator.group.shard import GroupShard
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Broker
from ottla.model.ids import TopicId
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.testing.shards import ShardRunner

GROUP = "group"
CLIENT = Client("client", "/127.0.0.1")


def topic_id(name: str) -> TopicId:
    """The id that a topic of that name has here."""
    return TopicId(name.encode().ljust(16, b"."))


def some(name: str, *partitions: int) -> Partitions:
    """These partitions of that topic."""
    return {topic_id(name): frozenset(partitions)}


class GroupWorld:
    """A shard, the cluster it sees, and the consumers of one group."""

    def __init__(self, own: Mapping[str, Mapping[str, str]] | None = None, **settings: Any) -> None:
        """`own` are settings of single groups, `settings` the broker's."""
        self.config = BrokerConfig(**settings)
        self.image = ClusterImage(revision=1)
        self._ids = iter(range(1_000_000))
        self._overrides = own or {}
        self.runner = ShardRunner(self._make, GroupShard.validate)

    def _make(self) -> GroupShard:
        state = ShardState(
            config=lambda: self.config, new_id=lambda: f"id-{next(self._ids)}", image=self.image
        )
        return GroupShard(
            state, lambda state, classic: ConsumerMachine(state, classic, self._own_settings)
        )

    def _own_settings(self, group_id: str) -> Mapping[str, str]:
        return self._overrides.get(group_id, {})

    def topics(self, racks: Mapping[int, str] | None = None, **partitions: int) -> None:
        """The cluster has exactly these topics, with so many partitions, from now on."""
        brokers = {
            broker_id: Broker(broker_id, 0, {}, rack) for broker_id, rack in (racks or {}).items()
        }
        made = {}
        for name, count in partitions.items():
            states = tuple(
                PartitionState(0, 0, 0, (p % len(brokers) if brokers else 0,), (0,))
                for p in range(count)
            )
            old = self.image.topics.get(name)
            new = Topic(name, topic_id(name), states)
            made[name] = old if old == new and old is not None else new
        self.image = ClusterImage(
            revision=self.image.revision + 1,
            brokers=brokers,
            topics=made,
            topic_names={topic.id: topic.name for topic in made.values()},
        )
        self.runner.shard.state.image = self.image

    @property
    def group(self) -> ConsumerGroup:
        group = self.runner.shard.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group

    def consumer(self, name: str, *topics: str, **more: Any) -> Consumer:
        return Consumer(self, name, topics, **more)

    def settle(self, *consumers: Consumer, rounds: int = 8) -> None:
        """Heartbeats of everybody until nothing changes any more."""
        for _ in range(rounds):
            self.runner.do_work()
            before = len(self.runner.log)
            for consumer in consumers:
                consumer.beat()
            if len(self.runner.log) == before and not self.runner.work:
                return
        raise AssertionError("the group does not come to rest")


class Consumer:
    """A client of the consumer protocol that does as it is told."""

    def __init__(self, world: GroupWorld, name: str, topics: tuple[str, ...], **more: Any) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.more = more
        self.epoch = 0
        self.owned: Partitions = {}

    def join(self, **fields: Any) -> ConsumerAlive:
        self.owned = {}
        asked = {"rebalance_timeout_ms": 60_000, "topics": self.topics, "owned": {}}
        return self._take(self.send(0, **{**asked, **self.more, **fields}))

    def beat(self, **fields: Any) -> ConsumerAlive:
        """Say what it owns, as clients do while they follow a change."""
        return self._take(self.send(self.epoch, **{"owned": self.owned, **fields}))

    def leave(self, epoch: int = -1) -> ConsumerAlive:
        return self.send(epoch)

    def send(self, epoch: int, **fields: Any) -> ConsumerAlive:
        fields.setdefault("instance_id", self.more.get("instance_id"))
        command = ConsumerHeartbeat(GROUP, self.name, epoch, CLIENT, **fields)
        reply: ConsumerAlive = self.world.runner.run(command)
        return reply

    def _take(self, reply: ConsumerAlive) -> ConsumerAlive:
        self.epoch = reply.epoch
        if reply.assignment is not None:
            self.owned = reply.assignment
        return reply


def count(partitions: Partitions) -> int:
    """How many they are."""
    return sum(map(len, partitions.values()))


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """What happens inside must be refused, with this code."""
    raised: KafkaError | None = None
    try:
        yield
    except KafkaError as error:
        raised = error
    if raised is None or raised.code is not code:
        raise AssertionError(f"refused with {raised!r} instead of {code.name}")
