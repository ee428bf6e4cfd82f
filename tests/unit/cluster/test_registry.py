from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from itertools import pairwise

import pytest

from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.membership import Host, Membership
from ottla.cluster.registry import Fenced, ImageChange, Registry
from ottla.cluster.store import Create, Op, Revision, Set, Snapshot
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition, topic_id_text
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionChange, PartitionState, Topic
from ottla.runtime.files import OsFileSystem
from ottla.runtime.tasks import Tasks
from ottla.testing.files import MemoryFileSystem

STATE = PartitionState(leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))
FOLDER = "/data/metadata"


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await EmbeddedStore.open(MemoryFileSystem(), FOLDER)
    yield store
    await store.close()


@pytest.fixture
async def registry(store: EmbeddedStore) -> Registry:
    registry = Registry(store)
    await registry.load()
    return registry


def topic(registry: Registry, name: str, partitions: int = 1, **config: str) -> Topic:
    return Topic(name, registry.new_id(), (STATE,) * partitions, config)


async def rebuilt(store: EmbeddedStore) -> ClusterImage:
    """What a registry that has seen nothing makes of the store."""
    return await Registry(store).load()


async def test_a_created_topic_is_in_the_image_when_the_call_returns(
    registry: Registry, store: EmbeddedStore
) -> None:
    orders = topic(registry, "orders", 3, retention_ms="5")
    assert await registry.create_topics([orders]) == []
    assert registry.image.topics == {"orders": orders}
    assert registry.image.topic_names == {orders.id: "orders"}
    assert registry.image == await rebuilt(store)


async def test_a_topic_that_exists_is_refused_and_its_neighbours_are_created(
    registry: Registry,
) -> None:
    first = topic(registry, "a")
    await registry.create_topics([first])
    rival, other = topic(registry, "a"), topic(registry, "b")
    assert await registry.create_topics([other, rival]) == [rival]
    assert registry.image.topics == {"a": first, "b": other}
    assert await registry.create_topics([rival]) == [rival]


async def test_all_leader_epochs_are_raised_in_few_commits(
    registry: Registry, store: EmbeddedStore
) -> None:
    many = [topic(registry, f"t{number}") for number in range(5_000)]
    wide = topic(registry, "wide", 5_000)
    await registry.create_topics([*many, wide])
    above = {
        TopicPartition(each.name, n): -1
        for each in (*many, wide)
        for n in range(len(each.partitions))
    }
    above[TopicPartition("t7", 0)] = 41
    before = registry.image.revision
    await registry.raise_leader_epochs(above)
    assert registry.image.revision - before <= 4
    assert registry.image == await rebuilt(store)
    epochs = {
        each.name: {state.leader_epoch for state in each.partitions}
        for each in registry.image.topics.values()
    }
    assert epochs.pop("t7") == {42}
    assert all(found == {1} for found in epochs.values())
    assert registry.image.topics["wide"].partitions[0] == STATE.next_epoch()


async def test_only_the_partitions_that_are_named_get_a_new_epoch(registry: Registry) -> None:
    await registry.create_topics([topic(registry, "a", 70), topic(registry, "b")])
    asked = [TopicPartition("a", 1), TopicPartition("a", 69), TopicPartition("gone", 0)]
    await registry.raise_leader_epochs(dict.fromkeys(asked, -1))
    raised = [
        n for n, state in enumerate(registry.image.topics["a"].partitions) if state.leader_epoch
    ]
    assert raised == [1, 69]
    assert registry.image.topics["b"].partitions == (STATE,)


async def test_a_new_epoch_is_above_what_another_writer_made_of_it(
    registry: Registry, store: EmbeddedStore
) -> None:
    await registry.create_topics([topic(registry, "a")])
    other = Registry(store)
    await other.load()
    one = {TopicPartition("a", 0): -1}
    await other.raise_leader_epochs(one)
    await registry.raise_leader_epochs(one)
    assert registry.image.topics["a"].partitions[0].leader_epoch == 2


async def test_a_partition_that_has_got_another_leader_meanwhile_keeps_its_epoch(
    registry: Registry, store: EmbeddedStore
) -> None:
    """Who raises epochs is about to register, and knows only what it read before its recovery."""
    await registry.create_topics([topic(registry, "a", 2)])
    other = Registry(store)
    [made] = (await other.load()).topics.values()
    elected = replace(STATE.next_epoch(), leader=2)
    await other.change_partitions([PartitionChange(made.id, 0, STATE, elected)])
    await registry.raise_leader_epochs({TopicPartition("a", n): -1 for n in range(2)})
    assert registry.image.topics["a"].partitions == (elected, STATE.next_epoch())
    # One that is not above what the log has is raised all the same.
    await other.raise_leader_epochs({TopicPartition("a", 0): 7})
    assert other.image.topics["a"].partitions[0].leader_epoch == 8


async def test_a_thousand_large_topics_are_split_into_commits(
    registry: Registry, store: EmbeddedStore
) -> None:
    topics = [topic(registry, f"t{number}", 100, note="x" * 900) for number in range(600)]
    before = (await store.read("")).revision
    assert await registry.create_topics(topics) == []
    commits = (await store.read("")).revision - before
    assert 1 < commits < 10
    assert registry.image.topics == {each.name: each for each in topics}


async def test_deleting_removes_every_key_of_a_topic(
    registry: Registry, store: EmbeddedStore
) -> None:
    before = dict((await store.read("")).entries)
    orders = topic(registry, "orders", 200)
    await registry.create_topics([orders])
    await registry.delete_topic(orders.id)
    assert registry.image.topics == {}
    assert registry.image.topic_names == {}
    assert dict((await store.read("")).entries) == before
    with pytest.raises(KafkaError) as caught:
        await registry.delete_topic(orders.id)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_topic_created_again_under_its_name_is_another_one(
    registry: Registry, store: EmbeddedStore
) -> None:
    old, new = topic(registry, "a", 2, x="1"), topic(registry, "a", 1)
    await registry.create_topics([old])
    await registry.delete_topic(old.id)
    await registry.create_topics([new])
    assert registry.image.topics == {"a": new}
    assert registry.image.topic_names == {new.id: "a"}
    with pytest.raises(KafkaError):
        await registry.set_topic_config(old.id, {"x": "2"})
    assert registry.image == await rebuilt(store)


async def test_a_delete_and_a_create_seen_at_once_are_not_confused(
    registry: Registry, store: EmbeddedStore
) -> None:
    late = Registry(store)
    old, new = topic(registry, "a", 2), topic(registry, "a", 70)
    await registry.create_topics([old])
    await late.load()
    await registry.delete_topic(old.id)
    await registry.create_topics([new])
    assert (await late.load()) == registry.image == await rebuilt(store)


@pytest.mark.parametrize(("start", "more"), [(1, 1), (60, 10), (64, 1), (63, 1), (130, 200)])
async def test_growing_a_topic_keeps_what_it_had(
    registry: Registry, store: EmbeddedStore, start: int, more: int
) -> None:
    orders = topic(registry, "orders", start)
    await registry.create_topics([orders])
    added = [PartitionState(2, 0, 0, (2, 1), (2, 1))] * more
    await registry.grow_topic(orders.id, start, added)
    assert registry.image.topics["orders"].partitions == (STATE,) * start + tuple(added)
    assert registry.image == await rebuilt(store)
    with pytest.raises(KafkaError) as caught:
        await registry.grow_topic(orders.id, start, added)
    assert caught.value.code is ErrorCode.INVALID_PARTITIONS


async def test_settings_of_topics_brokers_and_groups_are_replaced(
    registry: Registry, store: EmbeddedStore
) -> None:
    orders = topic(registry, "orders", 1, a="1")
    await registry.create_topics([orders])
    await registry.set_topic_config(orders.id, {"b": "2"})
    assert registry.image.topics["orders"].config == {"b": "2"}
    assert registry.image.topics["orders"].id == orders.id
    await registry.set_broker_config("", {"x": "1"})
    await registry.set_broker_config("", {"x": "2"})
    await registry.set_broker_config("7", {"y": "1"})
    assert registry.image.broker_configs == {"": {"x": "2"}, "7": {"y": "1"}}
    await registry.set_broker_config("", {})
    await registry.set_broker_config("", {})
    assert registry.image.broker_configs == {"7": {"y": "1"}}
    await registry.set_group_config("a/b", {"x": "1"})
    await registry.set_group_config("a/b", {"x": "2"})
    await registry.set_group_config(".", {"y": "1"})
    assert registry.image.group_configs == {"a/b": {"x": "2"}, ".": {"y": "1"}}
    await registry.set_group_config(".", {})
    await registry.set_group_config("never", {})
    assert registry.image.group_configs == {"a/b": {"x": "2"}}
    await registry.set_features({"transaction.version": 2})
    assert registry.features == {"transaction.version": 2}
    await registry.set_features({})
    assert registry.features == {}
    assert registry.image == await rebuilt(store)


async def test_an_operation_that_lost_a_race_tries_again(
    registry: Registry, store: EmbeddedStore
) -> None:
    orders = topic(registry, "orders", 2)
    await registry.create_topics([orders])
    # Behind the registry's back, as a leader that changes its ISR would.
    key = layout.partitions_key(orders.id, 0)
    moved = PartitionState(1, 0, 1, (1,), (1,))
    await store.commit(Set(key, layout.encode_partitions([moved, STATE]), 0))
    await registry.grow_topic(orders.id, 2, [STATE])
    assert registry.image.topics["orders"].partitions == (moved, STATE, STATE)
    await store.commit(Set(key, layout.encode_partitions([moved, STATE, moved]), 2))
    await registry.delete_topic(orders.id)
    assert dict((await store.read("partitions")).entries) == {}


async def test_a_fenced_controller_changes_nothing(
    registry: Registry, store: EmbeddedStore
) -> None:
    old = await registry.campaign(1)
    orders = topic(registry, "orders")
    await registry.create_topics([orders], fence=old.fence)
    assert registry.image.controller_id == 1
    await old.release()
    new = await registry.campaign(2)
    assert registry.image.controller_id == 2
    assert registry.image.controller_epoch == new.epoch > old.epoch
    before = registry.image
    for attempt in (
        registry.create_topics([topic(registry, "late")], fence=old.fence),
        registry.delete_topic(orders.id, fence=old.fence),
        registry.grow_topic(orders.id, 1, [STATE], fence=old.fence),
        registry.set_topic_config(orders.id, {"a": "1"}, fence=old.fence),
        registry.set_broker_config("", {"a": "1"}, fence=old.fence),
        registry.set_group_config("g", {"a": "1"}, fence=old.fence),
    ):
        with pytest.raises(Fenced):
            await attempt
    assert await rebuilt(store) == before
    await registry.delete_topic(orders.id, fence=new.fence)
    await new.release()
    await registry.load()
    assert registry.image.controller_id == -1


async def test_the_cluster_id_is_made_once(registry: Registry, store: EmbeddedStore) -> None:
    cluster_id = await registry.ensure_cluster_id()
    assert len(cluster_id) == 22
    assert await registry.ensure_cluster_id() == cluster_id
    assert await Registry(store).ensure_cluster_id(cluster_id) == cluster_id
    assert registry.image.cluster_id == cluster_id
    with pytest.raises(KafkaError) as caught:
        await registry.ensure_cluster_id("another")
    assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID


async def test_a_wanted_cluster_id_is_taken(registry: Registry) -> None:
    assert await registry.ensure_cluster_id("MkU3OEVBNTcwNTJENDM2Qg") == "MkU3OEVBNTcwNTJENDM2Qg"


async def test_random_ids_are_uuids_that_do_not_start_with_a_dash(store: EmbeddedStore) -> None:
    # 0xf8… is spelled "-…" in url-safe base64: it must be thrown away.
    rolls = iter([b"\xf8" * 16, b"\xfb" * 16, b"\x00" * 16])
    drawn = Registry(store, entropy=lambda size: next(rolls)).new_id()
    assert not topic_id_text(drawn).startswith("-")
    assert drawn[6] >> 4 == 4, "version 4"
    assert drawn[8] >> 6 == 0b10, "variant"
    assert next(rolls, None) is None
    registry = Registry(store)
    assert len({registry.new_id() for _ in range(1_000)}) == 1_000


async def test_changes_of_others_arrive_through_follow(store: EmbeddedStore) -> None:
    here, there = Registry(store), Registry(store)
    await here.load()
    await there.load()
    arrived: asyncio.Queue[ImageChange] = asyncio.Queue()
    there.subscribe(arrived.put_nowait)
    following = asyncio.ensure_future(there.follow())
    a, b = topic(here, "a"), topic(here, "b")
    await here.create_topics([a])
    change = await asyncio.wait_for(arrived.get(), 60)
    assert change.topics == {"a"}
    assert change.new.topics == {"a": a}
    await here.create_topics([b])
    change = await asyncio.wait_for(arrived.get(), 60)
    assert change.topics == {"b"}
    assert change.old.topics == {"a": a}
    assert change.new == here.image
    await Membership(here).register(1, Host())
    change = await asyncio.wait_for(arrived.get(), 60)
    while not change.new.registrations:
        change = await asyncio.wait_for(arrived.get(), 60)
    assert change.topics == set()
    assert change.brokers == {1}
    assert change.new.topics is change.old.topics, "what did not change is shared"
    await store.close()
    await asyncio.wait_for(following, 60)


async def test_listeners_hear_of_a_change_before_its_author_goes_on(registry: Registry) -> None:
    heard: list[ImageChange] = []
    cancel = registry.subscribe(heard.append)
    orders = topic(registry, "orders")
    await registry.create_topics([orders])
    assert heard[-1].new.topics == {"orders": orders}
    await registry.grow_topic(orders.id, 1, [STATE])
    assert heard[-1].topics == {"orders"}
    await registry.delete_topic(orders.id)
    assert heard[-1].topics == {"orders"}
    assert heard[-1].new.topics == {}
    for earlier, later in pairwise(heard):
        assert earlier.new is later.old
        assert later.new.revision > later.old.revision
    cancel()
    count = len(heard)
    await registry.create_topics([orders])
    assert len(heard) == count


async def test_a_listener_that_fails_stops_nobody_else_and_is_made_known(
    store: EmbeddedStore,
) -> None:
    heard: list[ImageChange] = []
    deaths: list[tuple[str, BaseException | None]] = []
    tasks = Tasks(lambda what, error: deaths.append((what, error)))
    registry = Registry(store, tasks=tasks)
    await registry.load()

    def broken(change: ImageChange) -> None:
        raise RuntimeError("boom")

    registry.subscribe(broken)
    registry.subscribe(heard.append)
    await registry.create_topics([topic(registry, "a")])
    assert len(heard) == 1
    [(what, error)] = deaths
    assert what.startswith("following the metadata")
    assert str(error) == "boom"


async def test_producer_id_blocks_never_overlap_between_brokers(store: EmbeddedStore) -> None:
    brokers = [Registry(store) for _ in range(3)]
    blocks = await asyncio.gather(
        *(broker.allocate_producer_ids() for broker in brokers for _ in range(4))
    )
    ids = [number for block in blocks for number in block]
    assert len(ids) == len(set(ids)) == 12_000
    assert min(ids) == 0


class StallingStore:
    """A store whose reads do not return while a certain key is there."""

    def __init__(self, store: EmbeddedStore, key: str) -> None:
        self._store = store
        self._key = key
        self.commit = store.commit
        self.watch = store.watch
        self.join = store.join
        self.campaign = store.campaign
        self.close = store.close

    async def read(self, prefix: str) -> Snapshot:
        if (await self._store.read(self._key)).entries:
            await asyncio.Event().wait()
        return await self._store.read(prefix)


@pytest.mark.parametrize(
    ("key", "attempt"),
    [
        ("brokers/ids/1", lambda registry: Membership(registry).register(1, Host())),
        ("controller/holder", lambda registry: registry.campaign(1)),
    ],
)
async def test_whoever_is_cancelled_in_the_last_step_keeps_nothing(
    store: EmbeddedStore, key: str, attempt: Callable[[Registry], Coroutine[None, None, object]]
) -> None:
    watch = store.watch(key)
    joining = asyncio.ensure_future(attempt(Registry(StallingStore(store, key))))
    while not (await store.read(key)).entries:
        await asyncio.wait_for(anext(watch), 60)
    assert not joining.done()
    joining.cancel()
    while (await store.read(key)).entries:
        await asyncio.wait_for(anext(watch), 60)


async def test_unreadable_metadata_is_said_so(registry: Registry, store: EmbeddedStore) -> None:
    await store.commit(Create(layout.topic_key("future"), b'{"v":99}'))
    with pytest.raises(layout.UnreadableValue, match="topics/future"):
        await registry.load()


async def test_a_thousand_topics_created_one_by_one_cost_less_than_three_seconds(
    tmp_path: object,
) -> None:
    store = await EmbeddedStore.open(OsFileSystem(), f"{tmp_path}/metadata")
    registry = Registry(store)
    following = asyncio.ensure_future(registry.follow())
    began = time.process_time()
    for number in range(1_000):
        assert not await registry.create_topics([topic(registry, f"topic-{number}", 3)])
    spent = time.process_time() - began
    assert len(registry.image.topics) == 1_000
    # Processor time: how long the disk and the other tests on this machine take is not ours.
    assert spent < 3
    await store.close()
    await following


def test_ids_are_spelled_as_kafka_spells_them() -> None:
    assert topic_id_text(TopicId(bytes(16))) == "AAAAAAAAAAAAAAAAAAAAAA"


async def test_a_partition_that_has_not_changed_is_the_same_object(registry: Registry) -> None:
    """Whoever follows a topic of thousands of partitions looks only at the others."""
    orders = topic(registry, "orders", 3)
    await registry.create_topics([orders])
    before = registry.image.topics["orders"].partitions
    change = PartitionChange(orders.id, 1, STATE, STATE.next_epoch())
    assert await registry.change_partitions([change]) == []
    after = registry.image.topics["orders"].partitions
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]


async def test_of_many_who_want_the_same_key_few_try_in_vain(store: EmbeddedStore) -> None:
    """Else a hundred brokers that start together would make five thousand attempts."""
    attempts = 0

    class Slow(StoreHandle):
        async def commit(self, *ops: Op) -> Revision:
            nonlocal attempts
            attempts += 1
            for _ in range(20):  # as long as the others need to make theirs
                await asyncio.sleep(0)
            return await super().commit(*ops)

    registries = [Registry(Slow(store)) for _ in range(40)]
    for each in registries:
        await each.load()
    blocks = await asyncio.gather(*(each.allocate_producer_ids(1) for each in registries))
    assert sorted(block.start for block in blocks) == list(range(40))
    assert attempts < 40 * 41 / 2 * 0.75, "less than when all try again at once"
