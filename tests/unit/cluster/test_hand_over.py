"""One broker's metadata goes over to a shared store: whole, once, and through interruptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.hand_over import BATCH_BYTES, HandOverRefused, hand_over, is_founder
from ottla.cluster.handle import StoreHandle
from ottla.cluster.registry import Registry
from ottla.cluster.store import Check, Create, Delete, Op, Revision, StoreError, Unavailable
from ottla.testing.files import MemoryFileSystem

CLUSTER = layout.encode_cluster("ours")
# Three batches; the registry reads no such things.
CONTENTS = {
    layout.CLUSTER: CLUSTER,
    layout.PRODUCER_IDS: layout.encode_counter(3000),
    layout.BROKER_EPOCH: layout.encode_counter(7),
    "things/a": b"a" * (BATCH_BYTES // 2),
    "things/b": b"b" * (BATCH_BYTES // 2),
    "things/c": b"c",
    "controller/epoch": layout.encode_holder(1),
}
CARRIED = {key: value for key, value in CONTENTS.items() if not key.startswith("controller")}


class Interrupted(StoreHandle):
    """A way into a store that breaks at a commit."""

    def __init__(self, store: EmbeddedStore, *, at: int) -> None:
        super().__init__(store)
        self._left = at

    async def commit(self, *ops: Op) -> Revision:
        if not self._left:
            raise Unavailable("the connection broke")
        self._left -= 1
        return await super().commit(*ops)


async def embedded(contents: dict[str, bytes] | None = None) -> EmbeddedStore:
    store = await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")
    if contents:
        await store.commit(*(Create(key, value) for key, value in contents.items()))
    return store


async def values(store: EmbeddedStore) -> dict[str, bytes]:
    return {key: entry.value for key, entry in (await store.read("")).entries.items()}


@pytest.fixture
async def own() -> AsyncIterator[EmbeddedStore]:
    store = await embedded(CONTENTS)
    yield store
    await store.close()


@pytest.fixture
async def shared() -> AsyncIterator[EmbeddedStore]:
    store = await embedded()
    yield store
    await store.close()


async def test_everything_is_carried_over_and_the_source_is_marked(
    own: EmbeddedStore, shared: EmbeddedStore
) -> None:
    assert await is_founder(own)
    assert await hand_over(own, shared, "zk:2181/a", patience=0) == len(CARRIED) - 1
    assert await values(shared) == CARRIED
    assert not await is_founder(own)
    mark = (await values(own))[layout.HANDED_OVER]
    assert layout.decode_hand_over(layout.HANDED_OVER, mark) == "zk:2181/a"


async def test_a_second_start_carries_nothing_over(
    own: EmbeddedStore, shared: EmbeddedStore
) -> None:
    await hand_over(own, shared, "zk", patience=0)
    await shared.commit(Create("things/new", b"n"), Delete("things/c", 0))
    assert await hand_over(own, shared, "zk", patience=0) == 0
    assert set(await values(shared)) == {*CARRIED, "things/new"} - {"things/c"}


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_what_was_interrupted_goes_on(
    own: EmbeddedStore, shared: EmbeddedStore, at: int
) -> None:
    with pytest.raises(Unavailable):
        await hand_over(own, Interrupted(shared, at=at), "zk", patience=0)
    with pytest.raises(StoreError, match="is being handed over"):
        await Registry(shared).ensure_cluster_id()
    await hand_over(own, shared, "zk", patience=0)
    assert await values(shared) == CARRIED
    assert await Registry(shared).ensure_cluster_id() == "ours"


async def test_an_interruption_before_the_mark_leaves_the_source_in_use(
    own: EmbeddedStore, shared: EmbeddedStore
) -> None:
    with pytest.raises(Unavailable):
        await hand_over(Interrupted(own, at=0), shared, "zk", patience=0)
    assert await is_founder(own)
    await hand_over(own, shared, "zk", patience=0)
    assert await values(shared) == CARRIED


async def test_only_an_empty_store_is_founded(own: EmbeddedStore) -> None:
    for contents, reason in (
        ({layout.CLUSTER: layout.encode_cluster("theirs")}, "it holds cluster theirs"),
        ({layout.CLUSTER: CLUSTER}, "they are a copy of others"),
        ({"things/x": b"x"}, "it holds other metadata"),
    ):
        other = await embedded(contents)
        with pytest.raises(HandOverRefused, match=reason):
            await hand_over(own, other, "zk", patience=0)
        assert await values(other) == contents
        await other.close()
    assert await is_founder(own)


async def test_of_two_copies_at_once_the_second_is_refused(
    own: EmbeddedStore, shared: EmbeddedStore
) -> None:
    copy = await embedded(CONTENTS)
    outcomes = await asyncio.gather(
        hand_over(own, shared, "zk", patience=5),
        hand_over(copy, shared, "zk", patience=5),
        return_exceptions=True,
    )
    [refused] = [each for each in outcomes if isinstance(each, BaseException)]
    assert isinstance(refused, HandOverRefused)
    assert await values(shared) == CARRIED
    assert sorted([await is_founder(own), await is_founder(copy)]) == [False, True]
    await copy.close()


async def test_whoever_is_at_it_is_waited_for_only_so_long(
    own: EmbeddedStore, shared: EmbeddedStore
) -> None:
    value = layout.encode_hand_over("zk")
    await shared.join(
        layout.HAND_OVER_HOLDER,
        value,
        Create(layout.CLUSTER, CLUSTER),
        Create(layout.HAND_OVER, value),
    )
    with pytest.raises(HandOverRefused, match="another broker is handing its metadata over"):
        await hand_over(own, shared, "zk", patience=0)


async def test_another_copy_does_not_finish_what_differs(
    own: EmbeddedStore, shared: EmbeddedStore
) -> None:
    copy = await embedded({**CONTENTS, "things/a": b"another"})
    with pytest.raises(Unavailable):
        await hand_over(own, Interrupted(shared, at=1), "zk", patience=0)
    with pytest.raises(HandOverRefused, match="things/a differs"):
        await hand_over(copy, shared, "zk", patience=0)
    await hand_over(own, shared, "zk", patience=0)
    assert await values(shared) == CARRIED
    await copy.close()


async def test_who_was_overtaken_writes_nothing_more(
    own: EmbeddedStore, shared: EmbeddedStore
) -> None:
    class Overtaken(StoreHandle):
        async def commit(self, *ops: Op) -> Revision:
            if isinstance(ops[0], Check):
                [held] = self._held
                await held.release()
                await hand_over(await embedded(CONTENTS), shared, "zk", patience=0)
            return await super().commit(*ops)

    with pytest.raises(HandOverRefused, match="somebody else has taken the hand-over up"):
        await hand_over(own, Overtaken(shared), "zk", patience=0)
    assert await is_founder(own)
    assert await values(shared) == CARRIED
