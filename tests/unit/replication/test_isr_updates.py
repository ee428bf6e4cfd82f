"""Proposals of in-sync sets, over the embedded store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.membership import Host, Membership, Registration
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import Op, Revision, Snapshot, Unavailable
from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionChange, PartitionState, Topic
from ottla.records.builder import build_batch
from ottla.replication import isr_updates
from ottla.replication.isr import InSyncReplicas, Rules
from ottla.replication.isr_updates import IsrUpdates
from ottla.replication.partition import Partition
from ottla.runtime.tasks import Tasks
from ottla.testing.files import MemoryFileSystem
from ottla.testing.logs import LogBench

TOPIC_ID = TopicId(bytes([7]) * 16)
LED = PartitionState(leader=1, leader_epoch=5, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2))


class FlakyStore(StoreHandle):
    """A store whose commits and reads go as the test says."""

    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__(store)
        self.before_commit: Callable[[], Awaitable[None]] | None = None
        self.lost = ""  # on its way: "request" or "answer"
        self.readable = True
        self.reads = 0

    async def commit(self, *ops: Op) -> Revision:
        before, self.before_commit = self.before_commit, None
        if before is not None:
            await before()
        if self.lost == "request":
            raise Unavailable("no answer")
        revision = await super().commit(*ops)
        if self.lost == "answer":
            raise Unavailable("no answer")
        return revision

    async def read(self, prefix: str) -> Snapshot:
        self.reads += 1
        if not self.readable:
            raise Unavailable("no answer")
        return await super().read(prefix)


class Bench:
    """Broker 1, which leads partitions; brokers 2 and 3 are registrations only."""

    node_id = 1
    max_lag_ms = 1_000.0

    def __init__(self, store: EmbeddedStore, tasks: Tasks) -> None:
        self.now = 0.0
        self.store = FlakyStore(store)
        self.registry = Registry(self.store)
        self.registry.subscribe(self.apply)
        self.members = Membership(Registry(StoreHandle(store)))
        self.brokers: dict[int, Registration] = {}
        self.partitions: list[Partition] = []
        self.updates = IsrUpdates(self.registry, 1, lambda: self.brokers[1].broker.epoch, tasks)

    def now_ms(self) -> float:
        return self.now

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        return True

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: Collection[int] = ()
    ) -> None:
        self.updates.propose(partition, isr, lost)

    def apply(self, change: ImageChange) -> None:
        """What the partition table does."""
        for partition in self.partitions:
            topic = change.new.topics["t"]
            partition.lead(topic.partitions[partition.id.partition], Rules(2))

    async def register(self, broker: int) -> None:
        if broker in self.brokers:
            await self.brokers[broker].session.release()
        registration = await self.members.register(broker, Host())
        await self.members.admit(broker, registration.broker.epoch)
        self.brokers[broker] = registration

    async def begin(self, partitions: int = 1) -> None:
        for broker in (1, 2, 3):
            await self.register(broker)
        await self.registry.create_topics([Topic("t", TOPIC_ID, (LED,) * partitions)])
        for index in range(partitions):
            log = LogBench(TopicConfig()).open()
            tp = TopicPartition("t", index)
            partition = Partition(tp, TOPIC_ID, log, LED, None, self)
            partition.lead(LED, Rules(2))
            self.partitions.append(partition)

    def catch_up(self, broker: int, index: int = 0) -> None:
        """A follower fetches, has everything, and is proposed."""
        epoch = self.brokers[broker].broker.epoch
        self.partitions[index].fetched_by(broker, epoch, 0, 0)

    def in_sync(self, index: int = 0) -> InSyncReplicas:
        in_sync = self.partitions[index].in_sync
        assert in_sync is not None
        return in_sync

    async def settled(self) -> None:
        async with asyncio.timeout(60):
            while any(self.in_sync(index).in_flight for index in range(len(self.partitions))):
                await asyncio.sleep(0)

    async def stored(self, index: int = 0) -> PartitionState:
        await self.registry.load()
        return self.registry.image.topics["t"].partitions[index]


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(isr_updates, name, 0.001)
    store = await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")
    fatal: list[BaseException] = []
    made = Bench(store, Tasks(lambda name, error: fatal.append(error)))
    yield made
    await made.updates.stop()
    await store.close()
    assert not fatal


async def test_who_has_caught_up_joins(bench: Bench) -> None:
    await bench.begin()
    bench.catch_up(3)
    assert bench.in_sync().in_flight
    await bench.settled()
    assert (await bench.stored()).isr == (1, 2, 3)
    assert bench.in_sync().state.isr == (1, 2, 3)


async def test_many_partitions_are_one_commit_and_one_line(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.begin(20)
    before = (await bench.registry.load()).revision
    with caplog.at_level(logging.INFO):
        for index in range(20):
            bench.catch_up(3, index)
        await bench.settled()
        await bench.updates.stop()
    assert (await bench.registry.load()).revision == before + 1
    assert caplog.messages == [
        "broker 3 joined the in-sync replicas of 20 partitions: t-0, t-1, t-2, t-3, t-4 and 15 more"
    ]


async def test_among_many_brokers_replicas_are_added_at_a_random_moment_and_taken_out_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.begin(2)
    for broker in range(4, 31):
        await bench.register(broker)
    await bench.registry.load()
    parts: list[float] = []

    def none_of_it(seconds: float) -> float:
        parts.append(seconds)
        return 0.0

    monkeypatch.setattr(bench.registry, "any_part_of", none_of_it)
    bench.catch_up(3)
    await bench.settled()
    assert parts == [pytest.approx(0.2)], "thirty brokers commit no more often than ten"
    bench.updates.propose(bench.partitions[1], (1,))
    await bench.settled()
    assert (await bench.stored(1)).isr == (1,)
    assert len(parts) == 1


async def test_among_many_brokers_nothing_waits_that_producers_wait_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too few are in sync nothing is taken with acks=all before one is added."""
    await bench.begin(3)
    for broker in range(4, 31):
        await bench.register(broker)
    await bench.registry.load()
    monkeypatch.setattr(bench.registry, "any_part_of", lambda seconds: 60.0)
    bench.catch_up(3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.in_sync().in_flight, "it goes at a random moment"
    bench.updates.propose(bench.partitions[1], (1,))
    await bench.settled()
    assert [(await bench.stored(index)).isr for index in (0, 1)] == [(1, 2, 3), (1,)]
    bench.catch_up(2, 1)
    await bench.settled()
    assert (await bench.stored(1)).isr == (1, 2)
    bench.partitions[1].lead(bench.in_sync(1).state, Rules(3))
    bench.catch_up(3, 1)
    await bench.settled()
    assert (await bench.stored(1)).isr == (1, 2, 3)
    bench.updates.propose(bench.partitions[2], (1,))
    await bench.settled()
    assert (await bench.stored(2)).elr == (2,)
    bench.partitions[2].lead(bench.in_sync(2).state, Rules(1))
    await bench.settled()
    assert (await bench.stored(2)).elr == (), "else the mark would stand still"


async def test_who_dies_before_it_is_added_is_waited_for_no_longer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.begin()
    for broker in range(4, 31):
        await bench.register(broker)
    await bench.registry.load()
    monkeypatch.setattr(bench.registry, "any_part_of", lambda seconds: 60.0)
    monkeypatch.setattr(bench, "may_join", lambda broker, _: broker in bench.registry.image.brokers)
    bench.catch_up(3)
    for _ in range(5):
        await asyncio.sleep(0)
    led = bench.partitions[0]
    batch = bytearray(build_batch([(0, None, b"a", ())]))
    led.append(memoryview(batch), 0)
    led.fetched_by(2, bench.brokers[2].broker.epoch, 1, 0)
    assert (bench.in_sync().in_flight, led.high_watermark) == (True, 0)
    await bench.brokers[3].session.release()
    await bench.registry.load()
    assert (bench.in_sync().in_flight, led.high_watermark) == (False, 1)
    assert bench.updates.failed == 1
    assert (await bench.stored()).isr == (1, 2)


async def test_who_is_about_to_stop_while_it_waits_to_be_added_is_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.begin()
    for broker in range(4, 31):
        await bench.register(broker)
    await bench.registry.load()
    monkeypatch.setattr(bench.registry, "any_part_of", lambda seconds: 60.0)
    bench.catch_up(3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.in_sync().in_flight
    monkeypatch.setattr(bench, "may_join", lambda *_: False)
    assert await bench.members.announce_stop(3, bench.brokers[3].broker.epoch)
    await bench.registry.load()
    assert not bench.in_sync().in_flight
    assert await bench.stored() == LED


async def test_who_is_about_to_stop_while_it_is_added_is_not(bench: Bench) -> None:
    await bench.begin()

    async def stop() -> None:
        assert await bench.members.announce_stop(3, bench.brokers[3].broker.epoch)

    bench.store.before_commit = stop
    bench.catch_up(3)
    await bench.settled()
    assert await bench.stored() == LED


@pytest.mark.parametrize("broker", [3, 1], ids=["the one who joins", "the leader"])
async def test_nothing_changes_when_a_broker_has_registered_anew(bench: Bench, broker: int) -> None:
    await bench.begin()

    async def come_back() -> None:
        before = bench.brokers[1]
        await bench.register(broker)
        bench.brokers[1] = before  # which the leader does not know yet

    bench.store.before_commit = come_back
    bench.catch_up(3)
    await bench.settled()
    assert await bench.stored() == LED


async def test_one_that_is_refused_does_not_hold_up_others(bench: Bench) -> None:
    await bench.begin(2)

    async def come_back() -> None:
        await bench.register(3)

    bench.store.before_commit = come_back
    bench.catch_up(3, 0)
    bench.updates.propose(bench.partitions[1], (1,))
    await bench.settled()
    assert (await bench.stored(0)).isr == (1, 2)
    assert (await bench.stored(1)).isr == (1,)


async def test_those_that_are_not_refused_go_together_however_many_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker comes back again and again: each change would else be a commit that everybody reads,
    and who lags behind elsewhere would stay in sync for as long."""
    await bench.begin(20)
    commits: list[int] = []
    commit = bench.registry.change_partitions

    async def counted(changes: Collection[Any], **more: Any) -> Any:
        refused = await commit(changes, **more)
        commits.append(len(changes) - len(refused))
        return refused

    monkeypatch.setattr(bench.registry, "change_partitions", counted)

    async def come_back() -> None:
        await bench.register(3)

    bench.store.before_commit = come_back
    for index in range(0, 20, 2):
        bench.catch_up(3, index)
        bench.updates.propose(bench.partitions[index + 1], (1,))
    before = bench.store.reads
    await bench.settled()
    assert commits == [10]
    assert bench.store.reads - before < 10, "nor is the store read for each that is refused"
    assert bench.updates.failed == 10
    assert [(await bench.stored(index)).isr for index in (0, 1)] == [(1, 2), (1,)]


async def test_the_controller_may_be_faster(bench: Bench) -> None:
    await bench.begin()
    moved = replace(LED, partition_epoch=10, isr=(1,), elr=(2,))

    async def shrink() -> None:
        other = Registry(StoreHandle(bench.store))
        await other.load()
        await other.change_partitions([PartitionChange(TOPIC_ID, 0, LED, moved)])

    bench.store.before_commit = shrink
    bench.catch_up(3)
    await bench.settled()
    # What it has made of it counts, and 3, which may be held back by a throttle and not fetch for a
    # while, is asked for once more: the high watermark waits for it.
    after = await bench.stored()
    assert after == bench.in_sync().state
    assert (after.isr, after.partition_epoch) == ((1, 3), 11)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_while_the_outcome_is_unknown_both_sets_count(bench: Bench, lost: str) -> None:
    await bench.begin()
    bench.store.lost = lost
    bench.store.readable = False
    bench.catch_up(3)
    for _ in range(50):
        await asyncio.sleep(0)
    in_sync = bench.in_sync()
    assert in_sync.in_flight
    in_sync.fetched(2, bench.brokers[2].broker.epoch, 100, 100, 0.0)
    everybody = in_sync.high_watermark(0, 100, 0.0, 1_000.0, lambda *_: False)
    assert everybody == 0, "3 has nothing yet, and may be in sync by now"
    bench.store.lost = ""
    bench.store.readable = True
    await bench.settled()
    assert in_sync.state.isr == (1, 2, 3), "3 need not fetch again for it"
    assert (await bench.stored()).isr == in_sync.state.isr


async def test_who_falls_behind_before_the_store_was_asked_to_add_it_is_waited_for_no_longer(
    bench: Bench,
) -> None:
    """The store is away, with a change of another partition: the next one is not sent before it is
    back. Nobody can be in sync by it, then."""
    await bench.begin(2)
    bench.store.lost = "request"
    bench.store.readable = False
    bench.catch_up(3, 0)
    for _ in range(50):
        await asyncio.sleep(0)
    bench.catch_up(3, 1)
    led = bench.partitions[1]
    led.append(memoryview(bytearray(build_batch([(0, None, b"a", ())]))), 0)
    led.fetched_by(2, bench.brokers[2].broker.epoch, 1, 0)
    led.isr.shrink()
    assert (bench.in_sync(1).in_flight, led.high_watermark) == (True, 0)
    bench.now += bench.max_lag_ms + 1
    led.fetched_by(2, bench.brokers[2].broker.epoch, 1, 0)
    led.isr.shrink()
    assert (bench.in_sync(1).in_flight, led.high_watermark) == (False, 1)
    other = bench.partitions[0]
    other.append(memoryview(bytearray(build_batch([(0, None, b"a", ())]))), 0)
    other.fetched_by(2, bench.brokers[2].broker.epoch, 1, 0)
    other.isr.shrink()
    assert (bench.in_sync(0).in_flight, other.high_watermark) == (True, 0), "3 may be in sync here"
    bench.store.lost = ""
    bench.store.readable = True
    await bench.settled()
    assert [(await bench.stored(index)).isr for index in (0, 1)] == [(1, 2), (1, 2)]


async def test_what_was_asked_for_before_it_was_led_anew_is_not_sent(bench: Bench) -> None:
    """Fenced and admitted again under the same epoch: the mark may have moved on without it."""
    await bench.begin()
    partition = bench.partitions[0]
    bench.catch_up(3)
    partition.follow(LED)
    partition.lead(LED, Rules(2))
    async with asyncio.timeout(60):
        while bench.updates._worker is not None and not bench.updates._worker.done():
            await asyncio.sleep(0)
    assert await bench.stored() == LED


async def test_a_refusal_does_not_end_what_was_asked_for_afterwards(bench: Bench) -> None:
    await bench.begin()
    partition = bench.partitions[0]
    bench.catch_up(3)
    partition.follow(LED)
    partition.lead(LED, Rules(2))
    bench.store.lost = "request"
    bench.updates.propose(partition, (1,))
    old = isr_updates.Proposal(
        partition, InSyncReplicas(1, LED, 0, Rules(2), 0.0),
        PartitionChange(TOPIC_ID, 0, LED, LED), {},
    )  # fmt: skip
    isr_updates.forget(old)
    assert bench.in_sync().in_flight
    bench.store.lost = ""
    await bench.settled()


async def test_what_comes_shortly_after_a_change_goes_together(bench: Bench) -> None:
    """When many brokers come back, a leader commits a few times, not once for each of them."""
    await bench.begin(20)
    before = (await bench.registry.load()).revision
    for index in range(20):
        bench.catch_up(3, index)
        while index == 0 and bench.in_sync(0).in_flight:
            await asyncio.sleep(0)
        for _ in range(10):  # one after the other, each of them long enough for a commit
            await asyncio.sleep(0)
    await bench.settled()
    assert (await bench.registry.load()).revision == before + 2


async def test_one_that_was_overtaken_while_it_waited_does_not_spoil_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.begin(3)
    with caplog.at_level(logging.INFO):
        for index in range(3):
            bench.catch_up(3, index)
        bench.partitions[1].lead(replace(LED, leader_epoch=6, partition_epoch=10), Rules(2))
        await bench.settled()
    assert [(await bench.stored(index)).isr for index in (0, 2)] == [(1, 2, 3), (1, 2, 3)]
    assert not [each for each in caplog.messages if "one by one" in each]
