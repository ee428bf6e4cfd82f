"""Invariants of the registry under arbitrary histories."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.registry import Registry
from ottla.cluster.store import StoreError
from ottla.model.topic import PartitionState, Topic
from ottla.testing.files import Crashed, MemoryFileSystem

FOLDER = "/data/metadata"


@settings(max_examples=80, deadline=None)
@example(lives=[([], 2, True), ([1], 60, False), ([1], 60, False)])
@example(lives=[([1, 1], 20, True), ([1], 60, False), ([1], 60, False)])
@given(
    lives=st.lists(
        st.tuples(
            st.lists(st.integers(1, 2_000), max_size=5),  # sizes of the blocks asked for
            st.integers(0, 40),  # operations until the crash
            st.booleans(),  # kill -9, or power loss
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_producer_id_is_given_twice_over_any_crashes(
    lives: list[tuple[list[int], int, bool]],
) -> None:
    given_out: list[int] = []

    async def live(files: MemoryFileSystem, counts: list[int]) -> None:
        try:
            store = await EmbeddedStore.open(files, FOLDER, journal_limit=150)
        except Crashed:
            return
        registries = [Registry(store), Registry(store)]
        for turn, count in enumerate(counts):
            try:
                block = await registries[turn % 2].allocate_producer_ids(count)
            except StoreError:
                break
            assert len(block) == count
            assert not given_out or block.start > given_out[-1], "later blocks are higher"
            given_out.extend((block.start, block.stop - 1))
        await store.close()

    files = MemoryFileSystem()
    for counts, crash_after, killed in lives:
        files.crash_at(files.operations + crash_after)
        asyncio.run(live(files, counts))
        files = files.killed() if killed else files.power_lost()


STATE = PartitionState(1, 0, 0, (1,), (1,))
names = st.sampled_from(["a", "b.c", "b_c", "d"])
actions = st.one_of(
    st.tuples(st.just("create"), names, st.integers(1, 140)),
    st.tuples(st.just("delete"), names, st.just(0)),
    st.tuples(st.just("grow"), names, st.integers(1, 140)),
    st.tuples(st.just("configure"), names, st.integers(0, 3)),
    st.tuples(st.just("broker config"), st.sampled_from(["", "1"]), st.integers(0, 2)),
    st.tuples(st.just("look"), st.just(""), st.just(0)),
)


@settings(max_examples=80, deadline=None)
@given(history=st.lists(st.tuples(st.integers(0, 1), actions), max_size=25))
def test_an_image_grown_step_by_step_equals_one_built_at_once(
    history: list[tuple[int, tuple[str, str, int]]],
) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(MemoryFileSystem(), FOLDER)
        registries = [Registry(store), Registry(store)]
        expected: dict[str, Topic] = {}
        configs: dict[str, dict[str, str]] = {}
        for who, (action, name, number) in history:
            registry = registries[who]
            topic = expected.get(name)
            config = {"n": str(number)} if number else {}
            if action == "create":
                new = Topic(name, registry.new_id(), (STATE,) * number)
                refused = await registry.create_topics([new])
                assert bool(refused) == (topic is not None)
                expected.setdefault(name, new)
            elif action == "broker config":
                await registry.set_broker_config(name, config)
                configs[name] = config
            elif action == "look":
                await registry.load()
            elif topic is None:
                continue
            else:
                await change(registry, action, topic, number, config)
                if action == "delete":
                    del expected[name]
                elif action == "grow":
                    grown = topic.partitions + (STATE,) * number
                    expected[name] = Topic(name, topic.id, grown, topic.config)
                else:
                    expected[name] = Topic(name, topic.id, topic.partitions, config)
        fresh = await Registry(store).load()
        assert fresh.topics == expected
        assert fresh.topic_names == {topic.id: name for name, topic in expected.items()}
        assert fresh.broker_configs == {name: each for name, each in configs.items() if each}
        for registry in registries:
            assert await registry.load() == fresh
        await store.close()

    asyncio.run(run())


async def change(
    registry: Registry, action: str, topic: Topic, number: int, config: dict[str, str]
) -> None:
    if action == "delete":
        await registry.delete_topic(topic.id)
    elif action == "grow":
        await registry.grow_topic(topic.id, len(topic.partitions), (STATE,) * number)
    else:
        await registry.set_topic_config(topic.id, config)
