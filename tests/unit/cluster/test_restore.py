"""A backup brought back into an emptied store: what may have changed since is not believed."""

from __future__ import annotations

import pytest

from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.hand_over import BATCH_KEYS, HandOverRefused, bring_back
from ottla.cluster.handle import StoreHandle
from ottla.cluster.registry import Registry
from ottla.cluster.restore import lasting, renewed
from ottla.cluster.store import Create, Entry, Op, Revision, StoreError, Unavailable
from ottla.model.ids import TopicId
from ottla.model.topic import NO_LEADER, PartitionState
from ottla.testing.files import MemoryFileSystem

ID = TopicId(bytes(15) + b"\1")
PARTITIONS = layout.partitions_key(ID, 0)
LED = PartitionState(2, 7, 9, (1, 2, 3), (2,), (3,), (1,))
NOW_MS = 1_700_000_000_000
CONTENTS = {
    layout.CLUSTER: layout.encode_cluster("ours"),
    layout.PRODUCER_IDS: layout.encode_counter(3000),
    layout.BROKER_EPOCH: layout.encode_counter(7),
    layout.topic_key("t"): layout.encode_topic(ID, {"retention.ms": "1"}),
    PARTITIONS: layout.encode_partitions([LED]),
}
PASSING = {
    "controller/epoch": b"{}",
    "brokers/ids/1": b"{}",
    "brokers/states/1": b"{}",
    layout.HANDED_OVER: b"{}",
}


def entries(contents: dict[str, bytes]) -> dict[str, Entry]:
    return {key: Entry(value, 3) for key, value in contents.items()}


async def empty() -> EmbeddedStore:
    return await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")


async def values(store: EmbeddedStore) -> dict[str, bytes]:
    return {key: entry.value for key, entry in (await store.read("")).entries.items()}


def state_in(found: dict[str, Entry]) -> PartitionState:
    [state] = layout.decode_partitions(PARTITIONS, found[PARTITIONS].value)
    return state


def test_who_is_there_now_is_no_part_of_a_backup() -> None:
    assert lasting(entries(CONTENTS | PASSING)) == entries(CONTENTS)


def test_nobody_leads_and_nobody_is_trusted() -> None:
    state = state_in(renewed(entries(CONTENTS), NOW_MS))
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (NO_LEADER, (), (), ())
    assert state.replicas == LED.replicas


def test_the_same_backup_brought_back_twice_uses_no_number_twice() -> None:
    first, second = (renewed(entries(CONTENTS), NOW_MS + later) for later in (0, 60_000))
    assert LED.leader_epoch < state_in(first).leader_epoch < state_in(second).leader_epoch
    assert state_in(second).leader_epoch < 1 << 31
    for key, before in ((layout.PRODUCER_IDS, 3000), (layout.BROKER_EPOCH, 7)):
        one, other = (layout.decode_counter(key, each[key].value) for each in (first, second))
        assert before < one < other


def test_numbers_never_go_back_when_the_clock_did() -> None:
    once = renewed(entries(CONTENTS), NOW_MS)
    again = renewed(once, 0)
    assert state_in(again).leader_epoch > state_in(once).leader_epoch
    for key in (layout.PRODUCER_IDS, layout.BROKER_EPOCH):
        assert again[key] == once[key]


async def test_a_backup_is_written_whole_and_the_cluster_is_there_again() -> None:
    store = await empty()
    wanted = renewed(entries(CONTENTS), NOW_MS)
    await bring_back(wanted, store, "zk", patience=0)
    assert await values(store) == {key: entry.value for key, entry in wanted.items()}
    assert await Registry(store).ensure_cluster_id() == "ours"
    await store.close()


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


@pytest.mark.parametrize("at", [0, 1])
async def test_an_interrupted_import_is_begun_again_with_its_own_numbers(at: int) -> None:
    store = await empty()
    many = CONTENTS | {
        layout.group_config_key(str(number)): layout.encode_config({})
        for number in range(BATCH_KEYS)
    }
    wanted = renewed(entries(many), NOW_MS)
    with pytest.raises(Unavailable):
        await bring_back(wanted, Interrupted(store, at=at), "zk", patience=0)
    with pytest.raises(StoreError, match="is being handed over"):
        await Registry(store).ensure_cluster_id()
    wanted = renewed(entries(many), NOW_MS + 60_000)
    await bring_back(wanted, store, "zk", patience=0)
    assert await values(store) == {key: entry.value for key, entry in wanted.items()}
    await store.close()


async def test_only_an_empty_store_is_written_to() -> None:
    store = await empty()
    await store.commit(Create(layout.CLUSTER, layout.encode_cluster("ours")))
    with pytest.raises(HandOverRefused, match="zk is not empty: cluster ours is there"):
        await bring_back(renewed(entries(CONTENTS), NOW_MS), store, "zk", patience=0)
    await store.close()
