"""The transactional part of the fault harness: a sound broker passes, every mistake is found.

Mistakes that show by themselves are planted into a broker of this process, on which the workload
runs for some seconds. Two need a certain moment, and have a scenario of a few requests. What is
wrong with transaction version 1 by itself has one as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.client.peer import Peer
from ottla.coordinator.group.offsets import OffsetMachine
from ottla.coordinator.transaction.machine import TransactionShard
from ottla.coordinator.transaction.state import Transaction
from ottla.model.ids import NO_PRODUCER_ID
from ottla.protocol.messages.transactions import (
    EndTxnRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.runtime.loop import run as run_loop
from ottla.storage.cleaned_txns import CleanedTransactions
from ottla.storage.cleaning import CleanTask
from ottla.storage.producers import ProducerStates
from ottla.testing import Broker
from ottla.verify.checks import Verdict
from ottla.verify.clients.connections import Address, Connections, NoAnswer
from ottla.verify.clients.txn_producer import ONE, TWO, Dialect, Ended, TxnProducer
from ottla.verify.clients.txn_reader import TxnReader, ask_mark
from ottla.verify.clients.writer import Progress
from ottla.verify.cluster import ClusterUnderTest
from ottla.verify.history import History, Recorder, excerpt
from ottla.verify.run import Limits, judge_history, run_on_cluster
from ottla.verify.txn_values import Values
from ottla.verify.workload import Plan, Workload

SECONDS = 6.0
ATTEMPTS = 20
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "log.cleaner.backoff.ms": 100,
    "log.initial.task.delay.ms": 0,
}
PLAN = Plan("verify", partitions=2, transactional=3, creates=False).only("transactions")

LONGER = (SECONDS, 20.0, 60.0)
"""For what has to happen sooner or later, on a machine that has no time for it at first."""

Patch = pytest.MonkeyPatch
C = TypeVar("C", bound=Connections)


def run_workload(broker: Broker, path: Path, seed: int = 0, *, seconds: float = SECONDS) -> Verdict:
    """The transactional clients on a broker, for some seconds."""

    async def run() -> None:
        plan = replace(PLAN, topic=f"verify-{seed}", seed=seed)
        await run_on_cluster(
            [("127.0.0.1", broker.port)], plan, path, Limits(seconds), asyncio.Event()
        )

    run_loop(run())
    verdict, complete = judge_history(path)
    assert complete
    return verdict


def shown(path: Path, verdict: Verdict) -> str:
    """Every anomaly with its events."""
    lines = []
    for anomaly in verdict.anomalies:
        lines.append(f"{anomaly.check}: {anomaly.text}")
        lines += [f"    {event}" for event in excerpt(History(path), anomaly.events)]
    return "\n".join(lines)


def test_transactions_on_a_sound_broker_have_no_anomalies(tmp_path: Path) -> None:
    wanted = {
        ("txn-writer-", "txn-send"),
        ("txn-writer-", "txn-end"),
        ("table-writer-", "txn-send"),
        ("mover-", "txn-read"),
        ("mover-", "txn-offsets"),
        ("mover-", "txn-end"),
        ("txn-watcher", "txn-mark"),
        ("txn-watcher", "txn-committed"),
        ("final", "txn-moved"),
        ("final", "txn-final"),
    }
    missing = wanted
    with Broker(SETTINGS) as broker:
        for seed, seconds in enumerate(LONGER):
            path = tmp_path / f"{seed}.gz"
            verdict = run_workload(broker, path, seed, seconds=seconds)
            assert not verdict.anomalies, shown(path, verdict)
            missing = wanted - {
                (event.client.partition(".")[0].rstrip("0123456789"), event.action)
                for event in History(path)
                if event.phase == "ok"
            }
            if not missing and verdict.committed > 0 < verdict.aborted:
                return
    pytest.fail(f"not everything was done: {verdict}, {missing}")


# -- mistakes that show by themselves


def forget_epochs(patch: Patch) -> None:
    """Neither the coordinator nor a partition compares a producer's epoch."""

    def known(self: TransactionShard, transactional_id: str, _producer: object) -> Transaction:
        return self.transactions[transactional_id]

    patch.setattr(TransactionShard, "_known", known)
    patch.setattr(TransactionShard, "_check_producer", lambda *_arguments, **_named: None)
    patch.setattr(TransactionShard, "_is_repeated", lambda *_arguments: False)
    patch.setattr(ProducerStates, "_check_epoch", lambda *_arguments: None)


def show_open_transactions(patch: Patch) -> None:
    """The last stable offset is the high watermark."""
    patch.setattr(ProducerStates, "last_stable_offset", lambda _self, mark: mark)


def show_pending_offsets(patch: Patch) -> None:
    """Offsets of a transaction count when they are written."""
    replay = OffsetMachine.replay

    def at_once(self: OffsetMachine, entry: Any, offset: int, _producer_id: int) -> None:
        replay(self, entry, offset, NO_PRODUCER_ID)

    patch.setattr(OffsetMachine, "replay", at_once)


def drop_tombstones(patch: Patch) -> None:
    """The cleaner does not wait for `delete.retention.ms`."""
    make = CleanTask.__init__

    def impatient(self: CleanTask, **given: Any) -> None:
        make(self, **{**given, "delete_retention_ms": -1})

    patch.setattr(CleanTask, "__init__", impatient)


def drop_abort_markers(patch: Patch) -> None:
    """The cleaner removes the marker of an aborted transaction before the records."""

    def gone(self: CleanedTransactions, _header: object, _batch: object) -> bool:
        return True

    patch.setattr(CleanedTransactions, "data", lambda _self, _header: False)
    patch.setattr(CleanedTransactions, "marker", gone)


MISTAKES: dict[Callable[[Patch], None], set[str]] = {
    forget_epochs: {"zombie-not-fenced"},
    show_open_transactions: {"uncommitted-read", "G1a"},
    show_pending_offsets: {"uncommitted-offset"},
    drop_tombstones: {"tombstone-dropped"},
    drop_abort_markers: {"G1a"},
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(
    plant: Callable[[Patch], None], tmp_path: Path, monkeypatch: Patch
) -> None:
    """Clients are real, and meet by chance: it is tried until it shows."""
    plant(monkeypatch)
    with Broker(SETTINGS) as broker:
        for seed in range(ATTEMPTS):
            verdict = run_workload(broker, tmp_path / f"{seed}.gz", seed)
            assert all(anomaly.events for anomaly in verdict.anomalies)
            if MISTAKES[plant] & {anomaly.check for anomaly in verdict.anomalies}:
                return
    pytest.fail(f"nothing was found in {ATTEMPTS} runs")


# -- scenarios


class Network(Connections):
    """A producer's way to the brokers, on which its first request for an end is held back."""

    held: EndTxnRequest | None = None

    async def ask(
        self, peer: Peer, request: Any, *, seconds: float | None = None, version: int | None = None
    ) -> Any:
        if isinstance(request, EndTxnRequest) and self.held is None:
            self.held = request
            raise NoAnswer("the connection broke")
        return await super().ask(peer, request, seconds=seconds, version=version)


class Scenario:
    """A few requests of a producer, recorded and judged."""

    def __init__(self, bootstrap: Sequence[Address], recorder: Recorder, partitions: int) -> None:
        self.recorder = recorder
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._open: list[Connections] = []
        self._sent = 0

    async def connect(self, kind: type[C], topic: str = "t") -> C:
        connections = kind(self._bootstrap, topic, "scenario")
        self._open.append(connections)
        while not connections.partitions:
            connections.metadata = None
            await connections.look()
        return connections

    async def producer(
        self, dialect: Dialect, connections: Connections, name: str = "a.1"
    ) -> TxnProducer:
        producer = TxnProducer(name, "id", dialect, connections, self.recorder, Progress())
        await producer.init()
        return producer

    async def send(self, producer: TxnProducer, partition: int) -> None:
        self._sent += 1
        await producer.send(partition, [Values(0, self._sent, 1)])

    async def wait_decided(self, partition: int) -> int:
        """Wait until no transaction is open in a partition; where it ends then."""
        connections = await self.connect(Connections)
        while True:
            end = await ask_mark("final", partition, "all", connections, self.recorder)
            mark = await ask_mark("final", partition, "committed", connections, self.recorder)
            if end is not None and end == mark:
                return end
            await asyncio.sleep(0.05)

    async def finish(self) -> None:
        """Wait until everything is decided, and read it."""
        for partition in range(self._partitions):
            end = await self.wait_decided(partition)
            connections = await self.connect(Connections)
            reader = TxnReader("final", partition, "committed", connections, self.recorder)
            await reader.read_to(end, 60.0)
            self.recorder.record(
                "final", "txn-final", "ok", topic="t", p=partition, level="committed", end=end
            )
        for connections in self._open:
            connections.close()


def play(broker: Broker, path: Path, act: Callable[[Scenario], Awaitable[None]]) -> Verdict:
    async def run() -> None:
        with Recorder(path, {"seed": 0}) as recorder:
            scenario = Scenario([("127.0.0.1", broker.port)], recorder, partitions=2)
            await act(scenario)
            await scenario.finish()

    run_loop(run())
    verdict, complete = judge_history(path)
    assert complete
    return verdict


SECOND_MARKER = 3
"""Its offset, when a transaction of one record was committed before."""


def late_end(dialect: Dialect) -> Callable[[Scenario], Awaitable[None]]:
    """A commit is sent twice, as its first answer got lost, and the second comes late."""

    async def act(scenario: Scenario) -> None:
        network = await scenario.connect(Network)
        producer = await scenario.producer(dialect, network)
        producer.begin()
        await scenario.send(producer, 0)
        await producer.end(commit=True)
        producer.begin()
        await scenario.send(producer, 0)
        connections = await scenario.connect(Connections)
        coordinator = await connections.transaction_coordinator("id")
        answer = await connections.ask(coordinator, network.held, version=dialect.end)
        assert (answer.error_code == 0) is (dialect is ONE)
        reader = TxnReader("r", 0, "committed", connections, scenario.recorder)
        while dialect is ONE and reader.position < SECOND_MARKER:
            await reader.read()
        try:
            await producer.end(commit=False)
        except Ended:
            assert dialect is ONE  # there is nothing left to abort

    return act


def test_a_late_end_of_version_1_is_counted_as_a_flaw(tmp_path: Path) -> None:
    with Broker(SETTINGS, topics={"t": 2}) as broker:
        verdict = play(broker, tmp_path / "history.gz", late_end(ONE))
    assert not verdict.anomalies, shown(tmp_path / "history.gz", verdict)
    assert verdict.flaws == {"v1-uncommitted-read": 1}


def test_a_late_end_of_version_2_ends_nothing(tmp_path: Path) -> None:
    with Broker(SETTINGS, topics={"t": 2}) as broker:
        verdict = play(broker, tmp_path / "history.gz", late_end(TWO))
    assert not verdict.anomalies, shown(tmp_path / "history.gz", verdict)
    assert verdict.flaws == {}


async def stale_marker(scenario: Scenario) -> None:
    """A coordinator that was replaced sends the marker of an end that it remembers."""
    connections = await scenario.connect(Connections)
    producer = await scenario.producer(ONE, connections)
    producer.begin()
    await scenario.send(producer, 0)
    await scenario.send(producer, 1)
    await producer.end(commit=True)
    while await ask_mark("w", 0, "committed", connections, scenario.recorder) != 2:
        await asyncio.sleep(0.05)
    producer.begin()
    await scenario.send(producer, 0)
    await scenario.send(producer, 1)
    marker = WritableTxnMarker(
        producer_id=producer.identity[0],
        producer_epoch=producer.identity[1],
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=-1,  # before the first
    )
    leader, _ = await connections.leader(0)
    await connections.ask(leader, WriteTxnMarkersRequest(markers=[marker]), version=1)
    await producer.end(commit=True)


def test_a_marker_of_a_stale_coordinator_is_found_where_it_is_accepted(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    with Broker(SETTINGS, topics={"t": 2}) as broker:
        verdict = play(broker, tmp_path / "sound.gz", stale_marker)
        assert not verdict.anomalies, shown(tmp_path / "sound.gz", verdict)
    monkeypatch.setattr(ProducerStates, "check_marker", lambda *_arguments, **_named: None)
    with Broker(SETTINGS, topics={"t": 2}) as broker:
        verdict = play(broker, tmp_path / "planted.gz", stale_marker)
    assert {anomaly.check for anomaly in verdict.anomalies} == {"torn-transaction"}


# -- a decision that was not replicated


PLANTED = Path(__file__).with_name("planted_broker.py")
SOUND = ("-m", "ottla.verify.failing_broker")
TRANSACTIONS = "__transaction_state"
PATIENT = {"transaction.state.log.num.partitions": 1, "replica.lag.time.max.ms": 30_000}
"""Nobody leaves the in-sync replicas because he cannot follow for some seconds."""


async def lose_a_decision(
    cluster: ClusterUnderTest, recorder: Recorder, marked_seconds: float
) -> None:
    """The coordinator of a transaction decides while one of its followers is cut off from it, and
    dies; the follower coordinates then."""
    scenario = Scenario(cluster.bootstrap, recorder, partitions=3)
    connections = await scenario.connect(Connections)
    producer = await scenario.producer(TWO, connections)
    await cluster.wait_healthy(["t", TRANSACTIONS], 60)
    producer.begin()
    for partition in range(3):
        await scenario.send(producer, partition)
    looking = await scenario.connect(Connections, TRANSACTIONS)
    assert looking.metadata is not None
    [state] = looking.metadata.topics[0].partitions
    coordinator = state.leader_id
    follower, third = [each for each in state.replica_nodes if each != coordinator]
    names = cluster.name(coordinator), cluster.name(follower)
    for link in (names, names[::-1]):
        cluster.network.hinder(link, losing=True)
    committing = asyncio.ensure_future(producer.end(commit=True))
    assert connections.metadata is not None
    [theirs] = [
        each.partition_index
        for each in connections.metadata.topics[0].partitions
        if each.leader_id == third
    ]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(marked_seconds):
            await scenario.wait_decided(theirs)
    cluster.kill(coordinator)
    committing.cancel()
    await asyncio.wait([committing])
    cluster.network.heal()
    await cluster.start_brokers([coordinator])
    await scenario.producer(TWO, connections, "a.2")
    await scenario.finish()


def judged_loss(folder: Path, program: tuple[str, ...], *, marked_seconds: float) -> Verdict:
    """What is said of it; so long is waited for a marker that should not come."""
    folder.mkdir()
    path = folder / "history.gz"

    async def run() -> None:
        cluster = ClusterUnderTest(folder, store="lent", settings=PATIENT, program=program)
        with Recorder(path, {"seed": 0}) as recorder:
            try:
                await cluster.start()
                plan = Plan("t", transactional=0)
                workload = Workload(cluster.addresses, plan, recorder)
                await workload.create_topics()
                await workload.close()
                await lose_a_decision(cluster, recorder, marked_seconds)
            finally:
                await cluster.close()

    run_loop(run())
    return judge_history(path)[0]


def test_markers_before_the_decision_is_replicated_are_found(tmp_path: Path) -> None:
    verdict = judged_loss(tmp_path / "sound", SOUND, marked_seconds=2)
    assert not verdict.anomalies, shown(tmp_path / "sound" / "history.gz", verdict)
    planted = (str(PLANTED), "mark_before_commit")
    verdict = judged_loss(tmp_path / "planted", planted, marked_seconds=20)
    assert {anomaly.check for anomaly in verdict.anomalies} == {"torn-transaction"}
