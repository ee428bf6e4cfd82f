"""The controller's standing work, over the embedded store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace

import pytest

from ottla.cluster import membership
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.membership import Host, Membership, Registration
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import Op, Revision, Unavailable
from ottla.controller import keeper
from ottla.controller.election import LogEnd
from ottla.controller.keeper import ClusterKeeper
from ottla.model.features import FORMATS, TRANSACTIONS
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import NO_LEADER, PartitionChange, PartitionState, Topic
from ottla.replication.isr import Rules
from ottla.testing.files import MemoryFileSystem

TOPIC_ID = TopicId(bytes([7]) * 16)
TP = TopicPartition("t", 0)
LED = PartitionState(leader=1, leader_epoch=5, partition_epoch=9, replicas=(1, 2, 3), isr=(1, 2, 3))


class FlakyStore(StoreHandle):
    """A store that is out of reach, or lets somebody be faster, when the test says so."""

    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__(store)
        self.out_of_reach = False
        self.session = math.inf
        self.before_commit: Callable[[], object] | None = None

    @property
    def session_seconds(self) -> float:
        return self.session

    async def commit(self, *ops: Op) -> Revision:
        if self.out_of_reach:
            raise Unavailable("no answer")
        before, self.before_commit = self.before_commit, None
        if before is not None:
            await before()
        return await super().commit(*ops)


class Bench:
    """A controller without a broker, and brokers without a process."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = FlakyStore(store)
        self.registry = Registry(self.store)
        self.keeper = ClusterKeeper(self.registry, lambda _: self.rules, self.ask)
        self.rules = Rules(2)
        self.others = Registry(StoreHandle(store))
        self.members = Membership(self.others)
        self.brokers: dict[int, Registration] = {}
        self.reports: dict[int, LogEnd] = {}
        self.asked: list[tuple[TopicPartition, tuple[int, ...]]] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.busy = asyncio.Lock()
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, partition: TopicPartition, replicas: Collection[int]) -> dict[int, LogEnd]:
        self.asked.append((partition, tuple(replicas)))
        await self.answering.wait()
        return {each: self.reports[each] for each in replicas if each in self.reports}

    async def control(self) -> None:
        term = await self.registry.campaign(9)
        self.tasks = [
            asyncio.ensure_future(self.keeper.keep(term, self.busy)),
            asyncio.ensure_future(self.registry.follow()),
        ]

    async def register(self, broker: int, *, lost: bool = False) -> None:
        about = Host(incarnation=str(broker), lost=lost)
        self.brokers[broker] = await self.members.register(broker, about)

    async def create(self, *states: PartitionState) -> None:
        await self.others.load()
        await self.others.create_topics([Topic("t", TOPIC_ID, states)])

    def state(self, index: int = 0) -> PartitionState:
        return self.registry.image.topics["t"].partitions[index]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0)

    async def admitted(self, *brokers: int) -> None:
        await self.until(
            lambda: all(
                (broker := self.registry.image.brokers.get(each)) is not None
                and broker.epoch == self.brokers[each].broker.epoch
                for each in brokers
            )
        )

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(keeper, name, 0.001)
    store = await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")
    made = Bench(store)
    yield made
    await made.stop()
    await store.close()


async def test_an_older_broker_is_not_let_in_again_when_others_have_finalized_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was in the cluster, and lost its session: so nobody asked whether it supports the rest."""
    await bench.control()
    await bench.register(1)
    await bench.admitted(1)
    monkeypatch.setattr(membership, "supported", lambda: {FORMATS: (0, 1)})
    await bench.register(2)  # the new cluster has begun with the newest levels
    await bench.register(3)
    await bench.until(lambda: caplog.text.count("is not let in") == 2)
    assert f"broker 2 (epoch 2) is not let in: the cluster has finalized {TRANSACTIONS} at 2" in (
        caplog.text
    )
    assert set(bench.registry.image.brokers) == {1}
    levels = {**bench.registry.features, TRANSACTIONS: 0}
    await bench.others.load()
    await bench.others.set_features(levels)
    await bench.until(lambda: bench.registry.features == levels)
    bench.keeper.features_changed()
    await bench.admitted(2, 3)


async def test_brokers_are_admitted_and_fenced_when_they_leave(bench: Bench) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    await bench.create(LED)
    await bench.brokers[1].session.release()
    await bench.until(lambda: "t" in bench.registry.image.topics and bench.state().leader == 2)
    assert bench.state().isr == (2, 3)
    assert bench.registry.image.broker_states[1].fenced


async def test_who_has_lost_records_is_admitted_after_it_has_left_every_set(bench: Bench) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    await bench.create(LED)
    await bench.until(lambda: "t" in bench.registry.image.topics)
    in_sync: dict[int, bool] = {}  # when it was first live under each of its epochs

    def look(change: ImageChange) -> None:
        broker = change.new.brokers.get(2)
        if broker is not None:
            state = change.new.topics["t"].partitions[0]
            in_sync.setdefault(broker.epoch, 2 in state.isr)

    bench.registry.subscribe(look)
    await bench.brokers[2].session.release()
    await bench.register(2, lost=True)
    await bench.admitted(2)
    assert in_sync[bench.brokers[2].broker.epoch] is False
    assert bench.state().isr == (1, 3)
    assert not bench.registry.image.broker_states[2].lost, "it starts again with nothing"


async def test_who_leads_although_it_may_lack_records_is_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.rules = Rules(1)
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    await bench.create(replace(LED, isr=(1,)))
    bench.reports = {1: LogEnd(5, 10), 2: LogEnd(5, 9)}
    await bench.brokers[1].session.release()
    await bench.register(1, lost=True)
    await bench.until(lambda: bench.state().leader == 1 and bench.state().leader_epoch > 6)
    await bench.until(lambda: bench.keeper.unclean.total == 1)
    assert "records may be lost in 1 partition(s): t-0 is led by broker 1" in caplog.text


async def test_who_lost_records_between_plan_and_commit_does_not_lead(bench: Bench) -> None:
    """The plan made it leader; by then it had come back without its records."""
    bench.rules = Rules(1)
    for broker in (1, 2):
        await bench.register(broker)
        await bench.members.admit(broker, bench.brokers[broker].broker.epoch)
    two = PartitionState(1, 5, 9, (1, 2), (1, 2))
    await bench.create(two)
    await bench.members.fence(1, bench.brokers[1].broker.epoch)

    async def come_back_empty() -> None:
        await bench.brokers[2].session.release()
        await bench.register(2, lost=True)

    bench.store.before_commit = come_back_empty
    await bench.control()
    await bench.until(lambda: bench.state().leader != 1)
    await bench.admitted(2)
    assert bench.state().leader == NO_LEADER
    assert bench.state().elr == (1,), "it has everything"
    assert bench.state().last_known_elr == (2,)


async def test_what_somebody_else_changed_first_is_planned_again(bench: Bench) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    await bench.create(LED)
    await bench.until(lambda: "t" in bench.registry.image.topics)
    shrunk = PartitionState(1, 5, 10, (1, 2, 3), (1, 3))

    async def shrink() -> None:
        await bench.others.change_partitions([PartitionChange(TOPIC_ID, 0, LED, shrunk)])

    bench.store.before_commit = shrink
    await bench.brokers[1].session.release()
    await bench.until(lambda: bench.state().leader == 3)
    assert bench.state().isr == (3,)
    assert bench.state().elr == (1,), "and not 2, which had left before"


async def test_an_outage_of_the_store_is_waited_for(bench: Bench) -> None:
    await bench.control()
    await bench.register(1)
    await bench.admitted(1)
    bench.store.out_of_reach = True
    await bench.register(2)
    await bench.until(lambda: 2 in bench.registry.image.registrations)
    for _ in range(20):
        await asyncio.sleep(0)
    assert 2 not in bench.registry.image.brokers
    bench.store.out_of_reach = False
    await bench.admitted(2)


@pytest.mark.parametrize("session", ["new", "kept"])
async def test_after_an_outage_of_the_store_others_are_waited_for_first(
    bench: Bench, session: str
) -> None:
    """Every session may have ended with the store, or every other."""
    bench.store.session = 3_600.0
    for broker in (1, 2, 3):
        await bench.register(broker)
        await bench.members.admit(broker, bench.brokers[broker].broker.epoch)
    await bench.create(LED)
    for broker in (1, 2, 3):
        await bench.brokers[broker].session.release()
    if session == "new":
        bench.keeper.session_began()
    else:
        bench.store.returned_at = asyncio.get_running_loop().time()
    await bench.control()
    await bench.register(2)
    await bench.register(3)
    await bench.admitted(2, 3)
    assert bench.state() == LED
    bench.store.session = 0.0
    bench.keeper.session_began()
    bench.store.returned_at = float("-inf")
    await bench.register(4)  # something to look at
    await bench.until(lambda: bench.state().leader == 2)
    assert 1 not in bench.state().isr


OFFLINE = PartitionState(NO_LEADER, 5, 9, (1, 2, 3), (), (), (1, 3))


async def test_replicas_are_asked_until_all_have_answered(bench: Bench) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    bench.reports = {1: LogEnd(4, 10)}
    await bench.create(OFFLINE)
    await bench.until(lambda: len(bench.asked) >= 3)
    assert set(bench.asked) == {(TP, (1, 2, 3))}
    assert bench.state().leader == NO_LEADER
    bench.reports[3] = LogEnd(4, 11)
    await bench.until(lambda: bench.state().leader == 3)
    assert bench.state().isr == (3,)


async def test_the_cluster_is_looked_after_while_replicas_are_asked(bench: Bench) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    bench.answering.clear()
    await bench.create(OFFLINE, LED)
    await bench.until(lambda: bool(bench.asked))
    await bench.brokers[1].session.release()
    await bench.until(lambda: bench.state(1).leader == 2)
    assert not bench.busy.locked()


async def test_a_keeper_whose_term_is_over_stops(bench: Bench) -> None:
    await bench.control()
    await bench.register(1)
    await bench.admitted(1)
    await bench.store.close()
    async with asyncio.timeout(60):
        await bench.tasks[0]


async def test_who_comes_back_empty_after_its_report_does_not_lead(bench: Bench) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    bench.reports = {1: LogEnd(4, 10), 3: LogEnd(4, 11)}

    async def come_back_empty() -> None:
        await bench.brokers[3].session.release()
        await bench.register(3, lost=True)
        bench.reports[3] = LogEnd(-1, 0)

    bench.answering.clear()
    await bench.create(OFFLINE)
    await bench.until(lambda: bool(bench.asked))
    bench.store.before_commit = come_back_empty
    bench.answering.set()
    await bench.until(lambda: bench.state().leader != NO_LEADER)
    assert bench.state().leader == 1
    assert bench.keeper.unclean.total == 1


async def test_what_may_be_lost_is_told_with_the_first_of_many_partitions(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """They had their leaders one by one, and were told when all had them: seconds later, and never
    by a controller that died or lost its store in between."""
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    bench.reports = {1: LogEnd(4, 10), 3: LogEnd(4, 11)}
    led: list[int] = []

    def look(change: ImageChange) -> None:
        topic = change.new.topics.get("t")
        if topic is not None:
            led.append(sum(each.leader != NO_LEADER for each in topic.partitions))

    bench.registry.subscribe(look)
    await bench.create(*[OFFLINE] * 20)
    await bench.until(lambda: bench.keeper.unclean.total == 20)
    assert set(led) == {0, 20}
    assert caplog.text.count("records may be lost in 20 partition(s)") == 1


async def test_a_question_that_fails_is_asked_again(bench: Bench) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    ask = bench.ask

    async def fail(*_: object) -> dict[int, LogEnd]:
        bench.keeper._ask = ask
        raise ValueError("an answer that makes no sense")

    bench.keeper._ask = fail
    bench.reports = {1: LogEnd(4, 10), 3: LogEnd(4, 11)}
    await bench.create(OFFLINE)
    await bench.until(lambda: "t" in bench.registry.image.topics and bench.state().leader == 3)


async def test_unclean_elections_are_counted_and_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    bench.reports = {2: LogEnd(4, 10)}  # the other one is not waited for
    only = PartitionState(NO_LEADER, 5, 9, (1, 2), (), (), (2,))
    bench.reports = {2: LogEnd(4, 10)}
    await bench.create(only, LED)
    await bench.until(lambda: "t" in bench.registry.image.topics and bench.state().leader == 2)
    await bench.until(lambda: bench.keeper.unclean.total == 1)
    assert "unclean recovery" in caplog.text
    assert "t-0 is led by broker 2" in caplog.text
    await bench.brokers[1].session.release()
    await bench.until(lambda: bench.state(1).leader == 2)
    assert bench.keeper.unclean.total == 1


async def test_who_cannot_tell_of_many_partitions_is_asked_about_the_others(bench: Bench) -> None:
    """A replica that answers, but not for many partitions, is none that never does."""
    await bench.control()
    for broker in (1, 2, 3):
        await bench.register(broker)
    await bench.admitted(1, 2, 3)
    failed = range(2 * keeper.ASKED_TOGETHER)

    async def ask(partition: TopicPartition, replicas: Collection[int]) -> dict[int, LogEnd]:
        there = [each for each in replicas if each != 1 or partition.partition not in failed]
        return {each: LogEnd(4, 10) for each in there}

    bench.keeper._ask = ask
    await bench.create(*[OFFLINE] * len(failed), OFFLINE)
    await bench.until(lambda: "t" in bench.registry.image.topics)
    await bench.until(lambda: bench.state(len(failed)).leader == 1)
    assert bench.state().leader == NO_LEADER
