from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.membership import Host, Membership
from ottla.cluster.registry import Registry
from ottla.cluster.store import Check, Delete, Loss, Term, holder_key
from ottla.config.setting import ConfigError
from ottla.controller.election import LogEnd
from ottla.controller.keeper import AskLogEnds
from ottla.controller.service import (
    ConfigChange,
    Controller,
    ResourceKind,
)
from ottla.controller.topics import DeleteTopic, GrowTopic, NewTopic, TopicDefaults
from ottla.errors import ErrorCode, KafkaError
from ottla.model.features import FORMATS
from ottla.model.ids import TopicPartition
from ottla.model.topic import PartitionState, Topic
from ottla.replication.isr import Rules
from ottla.testing.files import MemoryFileSystem


def nothing_wrong(config: Mapping[str, str]) -> None:
    pass


async def nobody_answers(partition: TopicPartition, replicas: object) -> dict[int, LogEnd]:
    return {}


class Node:
    """A broker as far as the controller is concerned."""

    def __init__(
        self,
        store: EmbeddedStore,
        broker_id: int,
        registry: Registry | None = None,
        ask: AskLogEnds = nobody_answers,
    ) -> None:
        self.registry = registry or Registry(store)
        self.controller = Controller(
            self.registry,
            broker_id,
            defaults=lambda: TopicDefaults(2, 1),
            check_topic_config=nothing_wrong,
            rng=Random(broker_id),
            rules_of=lambda topic: Rules(min_insync=1),
            ask_log_ends=ask,
        )
        self.id = broker_id
        self.running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.registry.load()
        await Membership(self.registry).register(self.id, Host())
        self.running = asyncio.ensure_future(self.controller.run())

    async def admitted(self, broker_id: int) -> None:
        """Wait until this node knows the broker as a live one."""
        while broker_id not in self.registry.image.brokers:
            await self.registry.load()
            await asyncio.sleep(0)

    async def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
async def store(files: MemoryFileSystem) -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(files, "/data/metadata")
    yield store
    await store.close()


@pytest.fixture
async def node(store: EmbeddedStore) -> AsyncIterator[Node]:
    node = Node(store, 1)
    await node.start()
    await asyncio.wait_for(node.admitted(node.id), 60)
    yield node
    await node.stop()


async def test_a_topic_is_created_grown_and_deleted(node: Node) -> None:
    (created,) = await node.controller.create_topics([NewTopic("t", 3, config={"a": "1"})])
    assert created.error is None
    assert node.registry.image.topics["t"] == created.topic
    (grown,) = await node.controller.create_partitions([GrowTopic("t", 5)])
    assert grown.error is None
    assert len(node.registry.image.topics["t"].partitions) == 5
    (deleted,) = await node.controller.delete_topics([DeleteTopic("t")])
    assert deleted.error is None
    assert deleted.id == created.topic.id if created.topic else False
    assert node.registry.image.topics == {}


async def test_levels_of_features_are_judged_in_the_newest_state(
    store: EmbeddedStore, node: Node
) -> None:
    """A broker may have come since the request was read, or a level have been taken back."""
    others = Registry(store)
    await others.load()
    await Membership(others).register(2, Host())
    seen: list[set[int]] = []

    def judge() -> dict[str, int]:
        seen.append({*node.registry.image.registrations})
        return {}

    await node.controller.change_features(judge)
    assert seen == [{1, 2}]
    await node.controller.create_topics([NewTopic("t", 1)])
    await others.load()
    await others.set_features({**others.features, FORMATS: 0})
    with pytest.raises(KafkaError, match="when the upgrade of this cluster is finalized"):
        await node.controller.reassign({TopicPartition("t", 0): [1, 2]})


async def test_good_and_bad_topics_of_a_request_go_their_own_ways(node: Node) -> None:
    outcomes = await node.controller.create_topics(
        [NewTopic("a"), NewTopic("."), NewTopic("b"), NewTopic("a", 5)]
    )
    assert {outcome.name: outcome.error is None for outcome in outcomes} == {
        "a": False, ".": False, "b": True,
    }  # fmt: skip
    assert sorted(node.registry.image.topics) == ["b"]
    assert len(node.registry.image.topics["b"].partitions) == 2, "the default"
    deletions = await node.controller.delete_topics([DeleteTopic("nope"), DeleteTopic("b")])
    assert [deletion.error is None for deletion in deletions] == [False, True]
    assert node.registry.image.topics == {}


async def test_plans_are_made_on_the_newest_state(store: EmbeddedStore, node: Node) -> None:
    # Nobody follows the store for this node; it must look for itself.
    await Membership(Registry(store)).register(2, Host())
    await asyncio.wait_for(node.admitted(2), 60)
    (outcome,) = await node.controller.create_topics([NewTopic("t", 1, replication_factor=2)])
    assert outcome.error is None
    assert {*node.registry.image.topics["t"].partitions[0].replicas} == {1, 2}


async def test_validating_only_changes_nothing(node: Node) -> None:
    await node.controller.create_topics([NewTopic("t")])
    before = node.registry.image
    controller = node.controller
    (created,) = await controller.create_topics([NewTopic("u", 3)], validate_only=True)
    assert created.topic is not None
    assert len(created.topic.partitions) == 3
    (grown,) = await controller.create_partitions([GrowTopic("t", 9)], validate_only=True)
    assert len(grown.partitions) == 7
    change = ConfigChange(ResourceKind.TOPIC, "t", lambda old: {"a": "1"})
    assert (await controller.alter_configs([change], validate_only=True))[0].error is None
    await node.registry.load()
    assert node.registry.image == before


async def test_settings_are_edited_from_what_is_in_force(node: Node) -> None:
    await node.controller.create_topics([NewTopic("t", config={"a": "1"})])

    def add(name: str, value: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
        return lambda old: {**old, name: value}

    outcomes = await node.controller.alter_configs(
        [
            ConfigChange(ResourceKind.TOPIC, "t", add("b", "2")),
            ConfigChange(ResourceKind.BROKER, "", add("c", "3")),
            ConfigChange(ResourceKind.BROKER, "", add("d", "4")),
            ConfigChange(ResourceKind.BROKER, "1", add("e", "5")),
            ConfigChange(ResourceKind.GROUP, "never seen", add("f", "6")),
            ConfigChange(ResourceKind.GROUP, "never seen", add("g", "7")),
        ]
    )
    assert [outcome.error for outcome in outcomes] == [None] * 6
    assert node.registry.image.topics["t"].config == {"a": "1", "b": "2"}
    assert node.registry.image.broker_configs == {"": {"c": "3", "d": "4"}, "1": {"e": "5"}}
    assert node.registry.image.group_configs == {"never seen": {"f": "6", "g": "7"}}


async def test_brokers_have_one_minimum_of_replicas_in_sync(node: Node) -> None:
    def edit(config: Mapping[str, str]) -> Mapping[str, str]:
        return {**config, "min.insync.replicas": "2"}

    single, all_of_them = await node.controller.alter_configs(
        [ConfigChange(ResourceKind.BROKER, name, edit) for name in ("1", "")]
    )
    assert single.error is not None
    assert single.error.code is ErrorCode.INVALID_CONFIG
    assert all_of_them.error is None
    assert node.registry.image.broker_configs == {"": {"min.insync.replicas": "2"}}


async def test_what_does_not_exist_has_no_settings(node: Node) -> None:
    def keep(old: Mapping[str, str]) -> Mapping[str, str]:
        assert old == {}
        return {"a": "1"}

    def refuse(old: Mapping[str, str]) -> Mapping[str, str]:
        raise ConfigError("a", "bad value")

    outcomes = await node.controller.alter_configs(
        [
            ConfigChange(ResourceKind.TOPIC, "nope", keep),
            ConfigChange(ResourceKind.BROKER, "9", keep),
            ConfigChange(ResourceKind.BROKER, "x", keep),
            ConfigChange(ResourceKind.BROKER, "01", keep),
            ConfigChange(ResourceKind.TOPIC, "nope", refuse),
            ConfigChange(ResourceKind.BROKER, "1", keep),
        ]
    )
    errors = [outcome.error for outcome in outcomes]
    assert [error and (error.code, error.message) for error in errors] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'nope' does not exist."),
        (ErrorCode.BROKER_ID_NOT_REGISTERED, "No node with id 9 found."),
        (ErrorCode.INVALID_REQUEST, "Invalid broker name x"),
        (ErrorCode.INVALID_REQUEST, "Invalid broker name 01"),
        (ErrorCode.INVALID_CONFIG, "bad value"),
        None,
    ]  # fmt: skip
    assert node.registry.image.broker_configs == {"1": {"a": "1"}}


async def test_a_broker_that_is_away_has_settings(store: EmbeddedStore, node: Node) -> None:
    members = Membership(Registry(store))
    registered = await members.register(2, Host())
    await asyncio.wait_for(node.admitted(2), 60)
    await registered.session.release()
    async with asyncio.timeout(60):
        while 2 in node.registry.image.brokers:
            await node.registry.load()
            await asyncio.sleep(0)
    [outcome] = await node.controller.alter_configs(
        [ConfigChange(ResourceKind.BROKER, "2", lambda old: {**old, "a": "1"})]
    )
    assert outcome.error is None
    assert node.registry.image.broker_configs["2"] == {"a": "1"}


async def test_concurrent_creations_of_colliding_names_do_not_both_succeed(node: Node) -> None:
    names = ["a.b", "a_b", "a.b"]
    outcomes = await asyncio.gather(
        *(node.controller.create_topics([NewTopic(name)]) for name in names)
    )
    assert [outcome.error is None for (outcome,) in outcomes] == [True, False, False]
    assert sorted(node.registry.image.topics) == ["a.b"]


async def test_only_the_elected_broker_decides(store: EmbeddedStore, node: Node) -> None:
    other = Node(store, 2)
    await other.start()
    assert node.controller.active
    assert not other.controller.active
    assert (node.controller.epoch, other.controller.epoch) == (1, -1)
    for attempt in (
        other.controller.create_topics([NewTopic("t")]),
        other.controller.delete_topics([]),
        other.controller.create_partitions([]),
        other.controller.alter_configs([]),
    ):
        with pytest.raises(KafkaError) as caught:
            await attempt
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
    await node.controller.create_topics([NewTopic("t")])
    await node.stop()
    await asyncio.wait_for(other.controller.wait_elected(), 60)
    assert not node.controller.active
    assert other.controller.epoch == 2
    (created,) = await other.controller.create_topics([NewTopic("t")])
    assert created.error is not None
    assert created.error.code is ErrorCode.TOPIC_ALREADY_EXISTS, "it knows what the first one did"
    await other.stop()


@dataclass
class UnawareTerm:
    """A term whose holder does not hear of its end."""

    epoch: int
    fence: Check
    lost: Loss = field(default_factory=Loss)

    async def release(self) -> None:
        pass


class UnawareRegistry(Registry):
    async def campaign(self, broker_id: int) -> Term:
        term = await super().campaign(broker_id)
        return UnawareTerm(term.epoch, term.fence)


async def test_a_deposed_controller_that_does_not_know_it_yet_changes_nothing(
    store: EmbeddedStore,
) -> None:
    old, new = Node(store, 1, UnawareRegistry(store)), Node(store, 2)
    await old.start()
    await asyncio.wait_for(old.controller.wait_elected(), 60)
    await new.start()
    await old.admitted(2)
    while "" not in old.registry.image.broker_configs:  # the last that it has to do by itself
        await asyncio.sleep(0)
        await old.registry.load()
    assert (await old.controller.create_topics([NewTopic("t")]))[0].error is None
    key = holder_key("controller")
    await store.commit(Delete(key, (await store.read(key)).entries[key].version))
    await asyncio.wait_for(new.controller.wait_elected(), 60)
    before = await new.registry.load()
    assert old.controller.active, "as far as it knows"
    change = ConfigChange(ResourceKind.TOPIC, "t", lambda old: {"a": "1"})
    for attempt in (
        old.controller.create_topics([NewTopic("late")]),
        old.controller.delete_topics([DeleteTopic("t")]),
        old.controller.create_partitions([GrowTopic("t", 9)]),
        old.controller.alter_configs([change]),
    ):
        with pytest.raises(KafkaError) as caught:
            await attempt
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert await new.registry.load() == before
    await old.stop()
    await new.stop()


async def test_a_topic_that_came_to_exist_behind_its_back_is_reported(
    store: EmbeddedStore, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = node.registry.create_topics

    async def raced(topics: list[object], **options: object) -> object:
        rival = Registry(store)
        await rival.load()
        (topic,) = topics
        await rival.create_topics([topic])
        return await original(topics, **options)

    monkeypatch.setattr(node.registry, "create_topics", raced)
    (outcome,) = await node.controller.create_topics([NewTopic("t")])
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_store_that_fails_is_a_storage_error(files: MemoryFileSystem, node: Node) -> None:
    files.fail("*/journal-*", errno.ENOSPC, operations=["append"], times=1)
    with pytest.raises(KafkaError) as caught:
        await node.controller.create_topics([NewTopic("t")])
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "The metadata store cannot be used: " in (caught.value.message or "")
    assert "; try again when it can" in (caught.value.message or "")
    (outcome,) = await node.controller.create_topics([NewTopic("t")])
    assert outcome.error is None


async def test_the_office_ends_with_the_store(store: EmbeddedStore) -> None:
    node = Node(store, 1)
    await node.start()
    await node.controller.wait_elected()
    await store.close()
    assert node.running is not None
    await asyncio.wait_for(node.running, 60)
    assert not node.controller.active


async def test_what_can_be_done_is_done_before_replicas_are_asked(store: EmbeddedStore) -> None:
    """Many partitions wait for reports; one of those who are asked says nothing. Nobody else waits
    for that, and it is waited for once."""
    asked: list[TopicPartition] = []
    silence = asyncio.Event()

    async def ask(partition: TopicPartition, replicas: object) -> dict[int, LogEnd]:
        asked.append(partition)
        await silence.wait()
        return {1: LogEnd(0, 0)}

    node = Node(store, 1, ask=ask)
    lost = PartitionState(-1, 4, 4, (1, 2), (), (), (1, 2))
    await node.registry.load()
    await node.registry.create_topics([Topic("t", node.registry.new_id(), (lost,) * 100)])
    await node.start()
    other = Membership(Registry(store))
    await other.register(2, Host())
    async with asyncio.timeout(60):
        await node.admitted(1)
        await node.admitted(2)
        while not asked:
            await asyncio.sleep(0.01)
    first = len(asked)
    assert first < 100
    silence.set()
    async with asyncio.timeout(60):
        await node.controller.create_topics([NewTopic("u")])
    assert len(asked) == first
    await node.stop()


async def test_many_topics_are_a_line_in_the_log(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ottla.controller.service"):
        await node.controller.create_topics([NewTopic(f"t{n}", 3) for n in range(7)])
        await node.controller.create_topics([NewTopic("one")])
        await node.controller.delete_topics([DeleteTopic(f"t{n}") for n in range(7)])
    assert caplog.messages == [
        "created 7 topics with 21 partitions: t0, t1, t2, t3, t4 and 2 more",
        "created topic one with 2 partition(s)",
        "deleted 7 topic(s): t0, t1, t2, t3, t4 and 2 more",
    ]


async def test_an_election_by_force_takes_who_has_most_and_is_still_the_same(
    store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Three have reported; the one with most loses its disk before its report decides."""
    others = Membership(Registry(store))
    sessions = {}
    ends = {1: LogEnd(4, 8), 2: LogEnd(4, 20), 3: LogEnd(4, 9)}

    async def ask(partition: TopicPartition, replicas: Collection[int]) -> dict[int, LogEnd]:
        await sessions.pop(2).session.release()
        await others.register(2, Host(lost=True))
        return {each: ends[each] for each in replicas if each in ends}

    node = Node(store, 1, ask=ask)
    await node.start()
    for broker in (2, 3):
        sessions[broker] = await others.register(broker, Host())
    async with asyncio.timeout(60):
        for broker in (1, 2, 3):
            await node.admitted(broker)
    stuck = PartitionState(-1, 4, 4, (1, 2, 3, 9), (), (9,), ())
    await node.registry.create_topics([Topic("t", node.registry.new_id(), (stuck,))])
    wanted = [TopicPartition("t", 0), TopicPartition("t", 1)]
    outcomes = await node.controller.elect_leaders(wanted, unclean=True)
    assert outcomes[wanted[0]] is None
    error = outcomes[wanted[1]]
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.registry.image.topics["t"].partitions[0].leader == 3
    assert node.controller.unclean.total == 1
    assert "t-0 is led by broker 3" in caplog.text
    again = await node.controller.elect_leaders(wanted[:1], unclean=True)
    assert again[wanted[0]] is not None, "it has a leader"
    await node.stop()


async def test_who_cannot_tell_of_one_partition_is_asked_about_the_next(
    store: EmbeddedStore,
) -> None:
    """One of the disks of broker 2 has failed; of the partitions on the others it has most."""
    broken = 40

    async def ask(partition: TopicPartition, replicas: Collection[int]) -> dict[int, LogEnd | None]:
        of_two = None if partition.partition < broken else LogEnd(4, 20)
        return {each: LogEnd(4, 8) if each == 1 else of_two for each in replicas}

    node = Node(store, 1, ask=ask)
    await node.start()
    other = Membership(Registry(store))
    await other.register(2, Host())
    async with asyncio.timeout(60):
        await node.admitted(1)
        await node.admitted(2)
    stuck = PartitionState(-1, 4, 4, (1, 2, 9), (), (9,), ())
    await node.registry.create_topics([Topic("t", node.registry.new_id(), (stuck,) * 100)])
    wanted = [TopicPartition("t", index) for index in range(100)]
    outcomes = await node.controller.elect_leaders(wanted, unclean=True)
    assert not any(outcomes.values())
    leaders = [state.leader for state in node.registry.image.topics["t"].partitions]
    assert leaders == [1] * broken + [2] * (100 - broken)
    await node.stop()


async def test_the_settings_of_a_topic_are_worked_out_once_for_all_of_its_partitions(
    store: EmbeddedStore,
) -> None:
    """Those of a topic that is moved with a throttle name each of its replicas."""
    node = Node(store, 1)
    looked_at: list[str] = []

    def rules_of(topic: Topic) -> Rules:
        looked_at.append(topic.name)
        return Rules(min_insync=1)

    node.controller = Controller(
        node.registry,
        1,
        defaults=lambda: TopicDefaults(2, 1),
        check_topic_config=nothing_wrong,
        rng=Random(1),
        rules_of=rules_of,
        ask_log_ends=nobody_answers,
    )
    await node.start()
    async with asyncio.timeout(60):
        await node.admitted(1)
        await node.controller.create_topics([NewTopic("t", 500)])
    looked_at.clear()
    wanted = {TopicPartition("t", index): [1] for index in range(500)}
    outcomes = await node.controller.reassign(wanted)
    assert not any(outcomes.values())
    assert len(looked_at) < 10
    await node.stop()
