"""Consumer groups of the classic protocol, with the clients people use.

librdkafka, kafka-python and aiokafka with each of their assignment strategies: members share the
partitions, come and go, and go on where the group was. Every expectation was checked against
Apache Kafka 4.2 (with quick-groups.properties).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyPartitionAssignor as AioSticky,
)
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

PARTITIONS = 4
TIMEOUT = 120


# -- members, whichever library they are of ----------------------------------------------------


class Member:
    """A consumer that is polled in a thread of its own, as an application would."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.owned: set[int] = set()
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def _run(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self.failure is not None:
            raise AssertionError("a consumer failed") from self.failure

    def leave(self) -> None:
        """Close it properly: commit, leave the group."""
        self._stop.set()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        self.check()


class Confluent(Member):
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, **settings: Any):
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 30_000,
                **settings,
            }
        )
        self.consumer.subscribe([topic])
        super().__init__()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self.consumer.poll(0.1)
            if message is not None and not message.error():
                self.values.append(int(message.value()))
            self.owned = {each.partition for each in self.consumer.assignment()}
        self.consumer.close()
        self.owned = set()


class Python(Member):
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: type, **settings: Any):
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=[strategy],
            # it may lead before it knows the topic, and looks again only then
            metadata_max_age_ms=1_000,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=30_000,
            **settings,
        )
        super().__init__()

    def _run(self) -> None:
        while not self._stop.is_set():
            # long enough for a rebalance: it begins anew with every poll
            for records in self.consumer.poll(timeout_ms=500).values():
                self.values.extend(int(each.value) for each in records)
            self.owned = {each.partition for each in self.consumer.assignment()}
        self.consumer.close()
        self.owned = set()


class Aio(Member):
    def __init__(self, bootstrap: str, group: str, topic: str, strategy: type, **settings: Any):
        self.settings = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "partition_assignment_strategy": (strategy,),
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 300,
            "session_timeout_ms": 30_000,
            **settings,
        }
        self.topic = topic
        super().__init__()

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = AIOKafkaConsumer(self.topic, **self.settings)
        await consumer.start()
        while not self._stop.is_set():
            for records in (await consumer.getmany(timeout_ms=100)).values():
                self.values.extend(int(each.value) for each in records)
            self.owned = {each.partition for each in consumer.assignment()}
        await consumer.stop()
        self.owned = set()


KINDS: dict[str, tuple[type[Any], Any]] = {
    "librdkafka range": (Confluent, "range"),
    "librdkafka roundrobin": (Confluent, "roundrobin"),
    "librdkafka cooperative-sticky": (Confluent, "cooperative-sticky"),
    "kafka-python range": (Python, RangePartitionAssignor),
    "kafka-python roundrobin": (Python, RoundRobinPartitionAssignor),
    "kafka-python sticky": (Python, StickyPartitionAssignor),
    "kafka-python cooperative-sticky": (Python, CooperativeStickyAssignor),
    "aiokafka range": (Aio, AioRange),
    "aiokafka roundrobin": (Aio, AioRoundRobin),
    "aiokafka sticky": (Aio, AioSticky),
}


@pytest.fixture
def members(bootstrap) -> Iterator[Callable[..., Any]]:
    """`members(kind, group, topic)`: one more member."""
    started: list[Member] = []

    def start(kind: str, group: str, topic: str, **settings: Any) -> Any:
        made, strategy = KINDS[kind]
        started.append(made(bootstrap, group, topic, strategy, **settings))
        return started[-1]

    yield start
    for each in started:
        each._stop.set()
    for each in started:
        each._thread.join(TIMEOUT)


def shared(*members: Member) -> bool:
    """Every partition has exactly one owner among these."""
    for each in members:
        each.check()
    owned = [partition for each in members for partition in each.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(each.owned for each in members)


@pytest.mark.parametrize("kind", KINDS)
def test_members_share_the_partitions_as_they_come_and_go(
    kind, members, topic, produce, unique, eventually
):
    group = unique("group")
    produce(topic, 40)
    first = members(kind, group, topic)
    eventually(lambda: shared(first) and len(first.values) == 40, timeout=TIMEOUT)
    assert sorted(first.values) == list(range(40))
    second = members(kind, group, topic)
    eventually(lambda: shared(first, second), timeout=TIMEOUT)
    produce(topic, 40)
    eventually(lambda: set(first.values) | set(second.values) == set(range(80)), timeout=TIMEOUT)
    assert second.values
    first.leave()
    eventually(lambda: shared(second), timeout=TIMEOUT)
    second.leave()
    third = members(kind, group, topic)
    eventually(lambda: shared(third), timeout=TIMEOUT)
    produce(topic, 4)
    eventually(lambda: set(range(80, 84)) <= set(third.values), timeout=TIMEOUT)
    assert set(third.values) == set(range(80, 84)), "it went on where the group was"


def test_libraries_share_a_group(members, topic, produce, unique, eventually):
    group = unique("group")
    one = members("librdkafka range", group, topic)
    eventually(lambda: shared(one), timeout=TIMEOUT)
    two = members("kafka-python range", group, topic)
    eventually(lambda: shared(one, two), timeout=TIMEOUT)
    produce(topic, 40)
    eventually(lambda: {*one.values, *two.values} == set(range(40)), timeout=TIMEOUT)
    assert not set(one.values) & set(two.values)


def test_more_members_than_partitions_wait_their_turn(members, topic, unique, eventually):
    group = unique("group")
    everybody = [members("librdkafka range", group, topic) for _ in range(PARTITIONS + 1)]

    def settled() -> bool:
        owned = sorted(len(each.owned) for each in everybody)
        return owned == [0, *[1] * PARTITIONS]

    eventually(settled, timeout=TIMEOUT)
    worker = next(each for each in everybody if each.owned)
    worker.leave()
    everybody.remove(worker)
    eventually(lambda: shared(*everybody), timeout=TIMEOUT)


def test_groups_do_not_disturb_each_other(members, topic, produce, unique, eventually):
    produce(topic, 20)
    readers = [members("librdkafka range", unique("group"), topic) for _ in range(2)]
    eventually(
        lambda: all(sorted(each.values) == list(range(20)) for each in readers), timeout=TIMEOUT
    )


def test_a_silent_member_is_replaced(bootstrap, members, topic, unique, eventually):
    group = unique("group")
    # its heartbeats stop with the application's polls
    dead = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "session.timeout.ms": 6_000,
            "max.poll.interval.ms": 6_000,
            "heartbeat.interval.ms": 300,
        }
    )
    dead.subscribe([topic])
    eventually(lambda: dead.poll(0.1) is not None or len(dead.assignment()) == PARTITIONS)
    living = members("librdkafka range", group, topic)
    eventually(lambda: shared(living), timeout=TIMEOUT)
    dead.close()


@pytest.mark.parametrize("kind", ["librdkafka range", "kafka-python range", "aiokafka range"])
def test_a_static_member_comes_back_to_what_it_had(
    kind, bootstrap, members, topic, unique, eventually
):
    group, admin = unique("group"), AdminClient({"bootstrap.servers": bootstrap})
    key = "group.instance.id" if kind.startswith("librdkafka") else "group_instance_id"
    one = members(kind, group, topic, **{key: "one"})
    two = members(kind, group, topic, **{key: "two"})
    eventually(lambda: shared(one, two), timeout=TIMEOUT)
    before = set(two.owned)
    two.leave()  # a static member does not tell the coordinator
    assert one.owned == set(range(PARTITIONS)) - before
    again = members(kind, group, topic, **{key: "two"})
    eventually(lambda: shared(one, again), timeout=TIMEOUT)
    assert again.owned == before
    described = admin.describe_consumer_groups([group])[group].result()
    assert {each.group_instance_id for each in described.members} == {"one", "two"}


# -- administration ----------------------------------------------------------------------------


@pytest.fixture
def admin(bootstrap) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def offsets_of(admin: AdminClient, group: str) -> dict[int, int]:
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result()
    return {each.partition: each.offset for each in found.topic_partitions}


def test_a_group_is_listed_described_reset_and_deleted(
    admin, members, topic, produce, unique, eventually
):
    group = unique("group")
    produce(topic, 40)
    one = members("librdkafka range", group, topic, **{"client.id": "somebody"})
    eventually(lambda: len(one.values) == 40, timeout=TIMEOUT)

    listed = {each.group_id: each for each in admin.list_consumer_groups().result().valid}
    assert listed[group].state is ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group])[group].result()
    (each,) = described.members
    assert (each.client_id, each.host) == ("somebody", "/127.0.0.1")
    assert {p.partition for p in each.assignment.topic_partitions} == set(range(PARTITIONS))
    assert described.partition_assignor == "range"
    reset = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])]
    (refused,) = admin.alter_consumer_group_offsets(reset)[group].result().topic_partitions
    assert refused.error.code() == 25
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result()
    assert caught.value.args[0].code() == 68

    one.leave()
    eventually(lambda: offsets_of(admin, group) == dict.fromkeys(range(PARTITIONS), 10))
    admin.alter_consumer_group_offsets(reset)[group].result()
    assert offsets_of(admin, group)[0] == 3
    again = members("librdkafka range", group, topic)
    eventually(lambda: len(again.values) == 7, timeout=TIMEOUT)
    again.leave()
    admin.delete_consumer_groups([group])[group].result()
    assert offsets_of(admin, group) == {}
    assert group not in {each.group_id for each in admin.list_consumer_groups().result().valid}


def test_offsets_are_kept_for_consumers_that_assign_themselves(
    bootstrap, topic, unique, produce, admin
):
    group = unique("group")
    produce(topic, 40)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 1)])
    deadline = time.monotonic() + TIMEOUT
    got = 0
    while got < 4:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        got += message is not None and not message.error()
    consumer.commit(offsets=[TopicPartition(topic, 1, 4, metadata="half way")], asynchronous=False)
    (found,) = consumer.committed([TopicPartition(topic, 1)], timeout=TIMEOUT)
    assert (found.offset, found.metadata) == (4, "half way")
    consumer.close()
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 1)])
    while (message := consumer.poll(1)) is None or message.error():
        assert time.monotonic() < deadline
    assert message.offset() == 4
    consumer.close()
    assert offsets_of(admin, group) == {1: 4}
