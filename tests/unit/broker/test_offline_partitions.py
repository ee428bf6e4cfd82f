"""What a broker does about partitions whose disk or log has failed, over the embedded store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from ottla.broker.offline_partitions import OfflinePartitions
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.membership import Host, Membership, Registration
from ottla.cluster.registry import Registry
from ottla.cluster.store import Op, Revision, Unavailable
from ottla.controller.unclean import UncleanElections
from ottla.model.broker import BrokerState
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState, Topic
from ottla.replication.isr import Rules
from ottla.runtime.tasks import Tasks
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem

TP = TopicPartition("t", 0)
ID = TopicId(b"\x01" * 16)
LED = PartitionState(leader=1, leader_epoch=0, partition_epoch=0, replicas=(1, 2), isr=(1, 2))


class FlakyStore(StoreHandle):
    out_of_reach = False

    async def commit(self, *ops: Op) -> Revision:
        if self.out_of_reach:
            raise Unavailable("no answer")
        return await super().commit(*ops)


class Bench:
    """Broker 1, as far as its offline partitions are concerned."""

    def __init__(self, store: EmbeddedStore, workers: Workers) -> None:
        self.store = FlakyStore(store)
        self.registry = Registry(self.store)
        self.members = Membership(self.registry)
        self.registration: Registration | None = None
        self.other: Registration | None = None
        self.fs = MemoryFileSystem()
        self.logs = LogDirectories(self.fs, ["/data"], clock=ManualClock(), workers=workers)
        self.logs.open_folders()
        self.table: list[str] = []
        self.offline = OfflinePartitions(
            self.registry,
            1,
            logs=self.logs,
            table=self,
            rules_of=lambda _: Rules(1),
            broker_epoch=lambda: self.registration.broker.epoch if self.registration else -1,
            unclean=UncleanElections(),
            tasks=Tasks(),
        )

    async def join(self, *brokers: int) -> None:
        for broker in brokers:
            made = await self.members.register(broker, Host(incarnation=str(broker)))
            await self.members.admit(broker, made.broker.epoch)
            if broker == 1:
                self.registration = made
            else:
                self.other = made

    @property
    def state(self) -> BrokerState:
        return self.registry.image.broker_states[1]

    def take_offline(self, lost: Iterable[TopicPartition]) -> None:
        self.table += (f"without {tp}" for tp in lost)

    def begin_anew(self, tp: TopicPartition) -> None:
        self.table.append(f"again {tp}")

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    store = await EmbeddedStore.open(MemoryFileSystem(), "/metadata")
    workers = Workers()
    made = Bench(store, workers)
    yield made
    await made.offline.stop()
    workers.close()
    await store.close()


async def test_a_failed_disk_is_noted_in_the_store(bench: Bench) -> None:
    await bench.join(1, 2)
    bench.offline.folder_failed()
    await bench.until(lambda: bench.state.failed)


async def test_who_is_alone_has_nobody_to_tell(bench: Bench) -> None:
    await bench.join(1)
    bench.offline.folder_failed()
    await bench.offline.note_failure()
    assert not bench.state.failed


async def test_what_cannot_be_noted_is_tried_again(bench: Bench) -> None:
    await bench.join(1, 2)
    bench.store.out_of_reach = True
    bench.offline.folder_failed()
    await bench.offline.note_failure()
    bench.store.out_of_reach = False
    assert not bench.state.failed
    await bench.until(lambda: bench.offline.look() or bench.state.failed)


async def test_a_broker_that_stops_notes_it_at_last(bench: Bench) -> None:
    await bench.join(1, 2)
    bench.store.out_of_reach = True
    bench.offline.folder_failed()
    await bench.offline.note_failure()
    bench.store.out_of_reach = False
    await bench.offline.note_failure()
    assert bench.state.failed


async def test_a_damaged_log_is_kept_until_the_store_has_confirmed_that_nobody_counts_on_it(
    bench: Bench,
) -> None:
    await bench.join(1, 2)
    await bench.registry.create_topics([Topic("t", ID, (LED,))])
    bench.fs.makedirs("/data/t-0")
    bench.logs.offline_partitions[TP] = "damaged"
    bench.logs.damaged[TP] = ID
    bench.logs._folders["/data"].partitions.add(TP)
    bench.store.out_of_reach = True
    for _ in range(50):
        bench.offline.look()
        await asyncio.sleep(0)
    assert bench.fs.is_dir("/data/t-0")
    assert not bench.table
    bench.store.out_of_reach = False
    await bench.until(lambda: bench.offline.look() or bench.table)
    assert bench.table == [f"without {TP}", f"again {TP}"]
    [state] = bench.registry.image.topics["t"].partitions
    assert (state.leader, state.isr) == (2, (2,))
    assert not bench.fs.is_dir("/data/t-0")
    assert not bench.logs.damaged


async def test_a_damaged_log_is_kept_while_the_others_are_away(bench: Bench) -> None:
    """As after an outage of the store: nobody knows yet with what they come back."""
    await bench.join(1, 2)
    await bench.registry.create_topics([Topic("t", ID, (LED,))])
    bench.fs.makedirs("/data/t-0")
    bench.logs.offline_partitions[TP] = "damaged"
    bench.logs.damaged[TP] = ID
    bench.logs._folders["/data"].partitions.add(TP)
    assert bench.other is not None
    await bench.other.session.release()
    await bench.registry.load()
    assert not bench.registry.image.broker_states[2].fenced
    for _ in range(50):
        bench.offline.look()
        await asyncio.sleep(0)
    assert bench.registry.image.topics["t"].partitions == (LED,)
    assert not bench.table
    await bench.join(2)
    await bench.until(lambda: bench.offline.look() or bench.table)
    [state] = bench.registry.image.topics["t"].partitions
    assert (state.leader, state.isr) == (2, (2,))
