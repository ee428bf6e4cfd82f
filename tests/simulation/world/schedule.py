"""What goes wrong, and when: drawn from a seed, carried out, and shrunk when it finds something.

Every fault undoes itself after a while, so that each can be left out without harm to the others.
Faults that destroy records spare so many replicas that nothing acknowledged may be lost: between
two moments at which all replicas are in sync, the power fails for one broker at most, unless the
topic asks for fsync before anything is acknowledged. A disk that fails counts as one of these: when
its broker is started anew, what was not synced may be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from ottla.controller.topics import NewTopic
from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

from .broker import TRANSACTIONAL_TOPIC
from .cluster import SETTLE_SECONDS, Cluster
from .invariants import Violation
from .offsets import GROUP_COORDINATORS
from .producers import COORDINATORS, PARTITIONS
from .transactions import History

TOPIC = "t"
MIN_INSYNC = 2
MAX_LAG_MS = 3_000


class Fault(NamedTuple):
    """`kind` happens to a broker at a time, for some seconds; `other` is another broker."""

    at: float
    kind: str
    broker: int
    other: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.at:6.2f} s  {self.kind:<14} broker {self.broker}, other {self.other}, "
            f"{self.seconds:.2f} s"
        )


class Setup(NamedTuple):
    """The cluster of a seed, and what goes wrong in it."""

    seed: int
    brokers: int
    partitions: int
    synced: bool  # flush.messages=1: nothing is acknowledged before it is on the disk
    transactional: bool  # producers write in transactions as well
    until: float
    faults: tuple[Fault, ...]

    def only(self, numbers: Collection[int]) -> Setup:
        kept = tuple(each for number, each in enumerate(self.faults) if number in numbers)
        return self._replace(faults=kept)


class Outcome(NamedTuple):
    """What a run did."""

    violation: Violation | None
    at: float
    steps: int
    checks: int
    attempts: int
    acked: int
    writes: int
    conflicts: int
    messages: int
    trace: int

    @property
    def digest(self) -> str:
        """The same for the same run."""
        return "-".join(str(each) for each in self[2:-1]) + f"-{self.trace:08x}"


def draw(seed: int, seconds: float = 25.0, *, moves: bool = False) -> Setup:
    rng = random.Random(f"{seed}/schedule")
    brokers = rng.choice((3, 3, 4, 5))
    often = {kind: rng.choice((0, 0.3, 1, 3)) for kind in KINDS}
    kinds = [kind for kind, weight in often.items() if weight] or ["kill"]
    faults = []
    at = 1.0
    while True:
        at += rng.expovariate(1 / rng.choice((0.3, 1.0, 3.0)))
        if at > seconds:
            break
        [kind] = rng.choices(kinds, [often[each] or 1 for each in kinds])
        broker, other = rng.sample(range(1, brokers + 1), 2)
        length = rng.choice((rng.uniform(0.05, 1.0), rng.uniform(1.0, 5.0), rng.uniform(5.0, 12.0)))
        faults.append(Fault(at, kind, broker, other, length))
    partitions, synced = rng.choice((1, 2, 3)), rng.random() < 0.3
    transactional = random.Random(f"{seed}/transactions").random() < 0.5
    faults = sorted([*faults, *_draw_disks(seed, brokers, seconds)])
    if moves:
        faults = sorted([*faults, *_draw_moves(seed, brokers, seconds)])
    return Setup(seed, brokers, partitions, synced, transactional, seconds, tuple(faults))


def _draw_disks(seed: int, brokers: int, seconds: float) -> Iterator[Fault]:
    """In some seeds disks fail, too."""
    rng = random.Random(f"{seed}/disks")
    for _ in range(rng.choice((0, 0, 1, 3))):
        broker, other = rng.sample(range(1, brokers + 1), 2)
        length = rng.choice((rng.uniform(0.05, 1.0), rng.uniform(1.0, 8.0)))
        yield Fault(rng.uniform(1.0, seconds), "disk", broker, other, length)


def _draw_moves(seed: int, brokers: int, seconds: float) -> Iterator[Fault]:
    """Partitions are moved where that is asked for: every few seconds, or move after move."""
    rng = random.Random(f"{seed}/moves")
    at = 1.0
    while (at := at + rng.choice((rng.uniform(0.05, 1.0), rng.uniform(1.0, 6.0)))) < seconds:
        broker, other = rng.sample(range(1, brokers + 1), 2)
        yield Fault(at, "move", broker, other, rng.uniform(0.05, 2.0))


def run(setup: Setup) -> Outcome:
    """Run it once."""
    settings = {
        "min.insync.replicas": str(MIN_INSYNC),
        "default.replication.factor": "3",
        "replica.lag.time.max.ms": str(MAX_LAG_MS),
        "offsets.topic.replication.factor": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "leader.imbalance.check.interval.seconds": "7",
    }
    cluster = Cluster(setup.seed, setup.brokers, settings)
    violation: Violation | None = None
    try:
        cluster.run(lambda cluster: _play(cluster, setup))
    except Violation as found:
        violation = found
    return Outcome(
        violation,
        cluster.loop.time(),
        cluster.steps,
        cluster.checks,
        cluster.attempts,
        sum(map(len, cluster.acked.values())),
        cluster.ensemble.writes,
        cluster.ensemble.conflicts,
        cluster.network.messages,
        cluster.trace,
    )


async def _play(cluster: Cluster, setup: Setup) -> None:
    await cluster.start()
    cluster.watch()
    config = {"flush.messages": "1"} if setup.synced else {}
    await cluster.create([NewTopic(TOPIC, setup.partitions, 3, config=config)])
    history: History | None = None
    if setup.transactional:
        topics = (
            (TRANSACTIONAL_TOPIC, PARTITIONS),
            (TRANSACTIONS_TOPIC, COORDINATORS),
            (OFFSETS_TOPIC, GROUP_COORDINATORS),
        )
        await cluster.create([NewTopic(*topic, 3, config=config) for topic in topics])
        history = cluster.produce_in_transactions(("one", "two"))
    begun = cluster.loop.time()
    cluster.write_on([TopicPartition(TOPIC, each) for each in range(setup.partitions)], 0.05)
    repairs: list[asyncio.Task[None]] = []
    for fault in setup.faults:
        await asyncio.sleep(max(0.0, begun + fault.at - cluster.loop.time()))
        repairs.append(asyncio.ensure_future(_happen(cluster, setup, fault)))
    await asyncio.sleep(max(0.0, begun + setup.until - cluster.loop.time()))
    await asyncio.gather(*repairs)
    await cluster.eventually(lambda: _whole(cluster), SETTLE_SECONDS, "all replicas are in sync")
    await cluster.stop_writing()
    await asyncio.sleep(2.0)
    await cluster.eventually(
        lambda: cluster.in_full and _nothing_is_missing(cluster),
        SETTLE_SECONDS,
        "all replicas stay in sync",
    )
    cluster.check_end()
    if history is not None:
        await cluster.eventually(
            lambda: not history.open(cluster),
            SETTLE_SECONDS,
            "all transactions have ended",
            name="NoHangingTransaction",
        )
        history.check_end()
        await cluster.check_offsets()


def _whole(cluster: Cluster) -> bool:
    return cluster.in_full and all(each.running for each in cluster.brokers.values())


def _nothing_is_missing(cluster: Cluster) -> bool:
    """Whether those that have lost records have them again. After an outage of the store the
    controller waits before it admits anybody, and until then they are called in sync."""
    return all(map(cluster.has_all, cluster.destroyed))


async def _happen(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    if cluster.destroyed and _whole(cluster) and _nothing_is_missing(cluster):
        cluster.destroyed.clear()
    await ALL_KINDS[fault.kind](cluster, setup, fault)


# --- kinds of faults ------------------------------------------------------------------------------


async def _kill(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    broker = cluster.brokers[fault.broker]
    if broker.running:
        broker.kill()
        await asyncio.sleep(fault.seconds)
        broker.start()


async def _power(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    broker = cluster.brokers[fault.broker]
    if not setup.synced and (cluster.destroyed or not _whole(cluster)):
        await _kill(cluster, setup, fault)
        return
    if broker.running:
        cluster.destroyed.add(broker.id)
        broker.fail_power()
        await asyncio.sleep(fault.seconds)
        broker.start()


async def _disk(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    """A folder fails, with some partitions or all; after a while the broker is started anew."""
    broker = cluster.brokers[fault.broker]
    if not broker.ready or cluster.destroyed or not _whole(cluster):
        return
    cluster.destroyed.add(broker.id)
    process = broker.process
    lost = [tp for tp in broker.disk.logs if (_number(tp) + fault.other) % 3]
    cluster.loop.call_soon(broker.fail_disk, lost, context=process.context)
    await asyncio.sleep(fault.seconds)
    if broker.process is process and broker.running:
        broker.kill()
        broker.start()


def _number(tp: TopicPartition) -> int:
    return zlib.crc32(str(tp).encode())


async def _stop(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    broker = cluster.brokers[fault.broker]
    if broker.ready:
        process = broker.process
        stopping = broker.stop_soon()
        await asyncio.wait((stopping,), timeout=20.0)
        if broker.process is process and broker.running:
            broker.kill()
        if broker.process is process:
            await asyncio.sleep(fault.seconds)
            if broker.process is process:
                broker.start()


async def _pause(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    broker = cluster.brokers[fault.broker]
    process, connection = broker.process, broker.connection
    if process.stopped or connection is None:
        return
    process.stopped = True
    session = connection.session
    lasts = min(fault.seconds, connection.session_seconds)
    await asyncio.sleep(lasts)
    if fault.seconds > lasts and process.alive:
        cluster.ensemble.expire(session)
        await asyncio.sleep(fault.seconds - lasts)
    if process.alive:
        cluster.loop.go_on(process)
        if not cluster.ensemble.lives(connection.session):
            connection.drop()


async def _cut(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    link = (fault.broker, fault.other)
    cluster.network.cut(link)
    await asyncio.sleep(fault.seconds)
    cluster.network.heal(link)


async def _isolate(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    links = [
        link
        for other in cluster.brokers
        if other != fault.broker
        for link in ((fault.broker, other), (other, fault.broker))
    ]
    for link in links:
        cluster.network.cut(link)
    await asyncio.sleep(fault.seconds)
    for link in links:
        cluster.network.heal(link)


def _store_cut(way: str) -> Callable[..., object]:
    async def cut(cluster: Cluster, setup: Setup, fault: Fault) -> None:
        connection = cluster.brokers[fault.broker].connection
        if connection is not None and not connection.blocked:
            connection.cut(way)
            await asyncio.sleep(fault.seconds)
            connection.heal()

    return cut


async def _store_drop(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    connection = cluster.brokers[fault.broker].connection
    if connection is not None:
        connection.drop()


async def _expire(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    connection = cluster.brokers[fault.broker].connection
    if connection is not None and connection.connected:
        connection.expire()


async def _slow_server(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    server = cluster.ensemble.servers[fault.broker % len(cluster.ensemble.servers)]
    server.slow += 0.4
    await asyncio.sleep(fault.seconds)
    server.slow = max(0.0, server.slow - 0.4)


async def _store_away(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    """Nobody reaches the store; sessions live on, as ZooKeeper's new leader has it."""
    ensemble = cluster.ensemble
    if ensemble.down:
        return
    ensemble.down = True
    for broker in cluster.brokers.values():
        if broker.connection is not None:
            broker.connection.drop()
    await asyncio.sleep(fault.seconds)
    ensemble.down = False


async def _resets(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    cluster.network.reset_chance = 0.05
    await asyncio.sleep(fault.seconds)
    cluster.network.reset_chance = 0.0


async def _slow_link(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    link = (fault.broker, fault.other)
    cluster.network.slow[link] = 0.3
    await asyncio.sleep(fault.seconds)
    cluster.network.slow.pop(link, None)


async def _prefer(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    async def ask() -> None:
        with contextlib.suppress(KafkaError):
            await cluster.as_controller(lambda each: each.elect_leaders(None, unclean=False))

    broker = cluster.active_controller()
    if broker is not None and not broker.process.stopped:
        # What is asked of a process that dies meanwhile never ends, also when it is cancelled. And
        # it may fail later than anybody waits for it, when the store has been away for long.
        await asyncio.wait([asyncio.ensure_future(ask())], timeout=5.0)


async def _move(cluster: Cluster, setup: Setup, fault: Fault) -> None:
    """Each partition is moved to other replicas, the first of which is `broker`; now and then what
    is on its way is cancelled instead."""
    ids = sorted(cluster.brokers)
    rng = random.Random(f"{setup.seed}/{fault}")
    wanted: dict[TopicPartition, Sequence[int] | None] = {}
    for number in range(setup.partitions):
        others = rng.sample([each for each in ids if each != fault.broker], 2)
        target = (fault.broker, *others)
        wanted[TopicPartition(TOPIC, number)] = None if rng.random() < 0.2 else target
    if setup.transactional:
        for topic, count in (
            (TRANSACTIONS_TOPIC, COORDINATORS),
            (OFFSETS_TOPIC, GROUP_COORDINATORS),
        ):
            for number in range(count):
                wanted[TopicPartition(topic, number)] = rng.sample(ids, 3)

    async def ask() -> None:
        with contextlib.suppress(KafkaError):
            await cluster.as_controller(lambda each: each.reassign(wanted))

    broker = cluster.active_controller()
    if broker is not None and not broker.process.stopped:
        await asyncio.wait([asyncio.ensure_future(ask())], timeout=5.0)


KINDS: dict[str, Callable[..., object]] = {
    "kill": _kill,
    "power": _power,
    "stop": _stop,
    "pause": _pause,
    "cut": _cut,
    "isolate": _isolate,
    "store-cut-out": _store_cut("out"),
    "store-cut-in": _store_cut("in"),
    "store-drop": _store_drop,
    "expire": _expire,
    "slow-server": _slow_server,
    "store-away": _store_away,
    "resets": _resets,
    "slow-link": _slow_link,
    "prefer": _prefer,
}
ALL_KINDS = {**KINDS, "disk": _disk, "move": _move}


# --- making a failure smaller ---------------------------------------------------------------------


def shrink(setup: Setup, found: Outcome, most_runs: int = 60) -> tuple[list[int], Outcome]:
    """The numbers of faults that are enough for the same invariant to be broken."""
    wanted = _kind(found.violation)
    numbers = [number for number, fault in enumerate(setup.faults) if fault.at <= found.at]
    best = found
    size, runs = max(1, len(numbers) // 2), 0
    while runs < most_runs:
        smaller = False
        for start in range(0, len(numbers), size):
            kept: Sequence[int] = numbers[:start] + numbers[start + size :]
            outcome = run(setup.only(kept))
            runs += 1
            if _kind(outcome.violation) == wanted:
                numbers, best, smaller = list(kept), outcome, True
                break
            if runs >= most_runs:
                break
        if not smaller:
            if size == 1:
                break
            size = max(1, size // 2)
    return numbers, best


def _kind(violation: Violation | None) -> str | None:
    """What tells one violation from another. Two names stand for anything that may go wrong: with
    these the same text is meant, but for its numbers."""
    if violation is None:
        return None
    if violation.name not in ("NoUnexpectedError", "Recovers"):
        return violation.name
    return re.sub(r"\d+", "", str(violation))
