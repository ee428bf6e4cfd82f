"""Idempotent producers across elections: what was acknowledged is there, once, in its order.

Three replicas with real logs (on a disk in memory), real producer states and real truncation; the
rest is as small as it can be. Leaders are cut off and go on believing that they lead, their
followers elect another, who was cut off comes back and cuts off what it alone has, and may lead
again. Producers send a batch again, to whoever says that it leads, until it is acknowledged, and
answers are lost. OTTLA_SIMULATION_SEEDS runs more.

AckedIsThereOnce     in the end the log has every acknowledged value once, and no other value twice
NextIsAccepted       a producer's next batch is accepted after the one before it was
LogsAreOne           in the end all replicas hold the same
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.storage import following
from ottla.testing.logs import LogBench

SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "80"))
STEPS = 1_200
NODES = (0, 1, 2)
MIN_INSYNC = 2
_EVERYTHING = 2**31 - 1


class Violation(AssertionError):
    """One of the invariants does not hold."""


@dataclass
class Store:
    """Who leads, and who is in sync."""

    leader: int = 0
    epoch: int = 0
    isr: frozenset[int] = frozenset(NODES)


class Node:
    def __init__(self, number: int) -> None:
        self.number = number
        self.bench = LogBench()
        self.log = self.bench.open()
        self.leader = 0  # as far as it knows
        self.epoch = 0
        self.cut_off = False
        self.ends: dict[int, int] = {}  # of its followers, in this epoch

    @property
    def leads(self) -> bool:
        return self.leader == self.number

    def learn(self, store: Store) -> None:
        if not self.cut_off and store.epoch > self.epoch:
            self.leader, self.epoch = store.leader, store.epoch
            self.ends.clear()


@dataclass
class Producer:
    id: int
    sequence: int = 0
    waiting: bytes | None = None  # the value that is not acknowledged yet
    asked: tuple[Node, int, int] | None = None  # whom, under which epoch, up to which offset
    acknowledged: list[bytes] = field(default_factory=list)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = Store()
        self.nodes = [Node(each) for each in NODES]
        self.producers = [Producer(1000 + each) for each in range(3)]
        self.values = 0

    def step(self) -> None:
        happens = self.random.choices(
            (self.send, self.answer, self.fetch, self.learn, self.cut_off, self.come_back,
             self.shrink, self.join, self.prefer),
            (20, 20, 30, 20, 1.5, 4, 6, 10, 2),
        )[0]  # fmt: skip
        happens(self.random.choice(self.nodes))

    # --- producers ----------------------------------------------------------------------------

    def send(self, node: Node) -> None:
        """A producer sends its batch to a node, which takes it if it believes that it leads."""
        producer = self.random.choice(self.producers)
        if not node.leads:
            return
        if producer.waiting is None:
            self.values += 1
            producer.waiting = b"%d" % self.values
        try:
            info = node.bench.append(
                node.log,
                producer.waiting,
                epoch=node.epoch,
                producer_id=producer.id,
                producer_epoch=0,
                sequence=producer.sequence,
            )
        except KafkaError as error:
            # Who was deposed may not have the batches before; its client finds the new leader.
            newest = node.number == self.store.leader and node.epoch == self.store.epoch
            if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or newest:
                raise Violation(f"{producer} is told {error}") from None
            return
        producer.asked = node, node.epoch, info.last_offset

    def answer(self, _: Node) -> None:
        """What is committed is acknowledged; or the answer is lost."""
        producer = self.random.choice(self.producers)
        if producer.asked is None or producer.waiting is None:
            return
        node, epoch, last_offset = producer.asked
        if not node.leads or node.epoch != epoch or self.random.random() < 0.3:
            producer.asked = None
        elif self.mark(node) > last_offset:
            producer.acknowledged.append(producer.waiting)
            producer.waiting = producer.asked = None
            producer.sequence += 1

    def mark(self, node: Node) -> int:
        """Up to where a leader's log is on all replicas that are in sync."""
        if self.store.epoch != node.epoch:
            # Those in sync follow another: nobody has asked for what came after.
            return 0
        isr = self.store.isr
        if len(isr) < MIN_INSYNC:
            return 0
        ends = [node.ends.get(each, 0) for each in isr if each != node.number]
        return min(ends, default=node.log.log_end_offset)

    # --- replicas -----------------------------------------------------------------------------

    def learn(self, node: Node) -> None:
        node.learn(self.store)

    def fetch(self, node: Node) -> None:
        """Cut off what the leader does not have, say what is left, take some of the rest."""
        leader = self.nodes[node.leader]
        if node.leads or node.cut_off or leader.cut_off or leader.epoch != node.epoch:
            return
        log = node.log
        epoch = log.latest_epoch
        if epoch is not None:
            known, end = leader.log.epoch_end_offset(epoch)
            if known < epoch:
                end = min(end, log.epoch_end_offset(known)[1])
            end = max(end, 0)  # the leader knows no such epoch: it has none of these records
            if end < log.log_end_offset:
                log.truncate_to(end)
                return
        leader.ends[node.number] = log.log_end_offset
        region = leader.log.read(
            log.log_end_offset, _EVERYTHING, upper=leader.log.log_end_offset
        ).region
        if region is not None:
            log.append_replicated(memoryview(bytearray(region.read())), leader_epoch=node.epoch)

    def cut_off(self, node: Node) -> None:
        if not any(each.cut_off for each in self.nodes):
            node.cut_off = True

    def come_back(self, node: Node) -> None:
        node.cut_off = False

    def shrink(self, node: Node) -> None:
        """Who is cut off is not in sync, and does not lead, if somebody is left."""
        store = self.store
        left = store.isr - {node.number}
        if node.cut_off and node.number in store.isr and left:
            leader = store.leader if store.leader in left else min(left)
            self.elect(leader, left)

    def join(self, node: Node) -> None:
        """Who has all that its leader has is in sync."""
        store = self.store
        leader = self.nodes[store.leader]
        if (
            node.number not in store.isr
            and not node.cut_off
            and leader.epoch == store.epoch == node.epoch
            and leader.ends.get(node.number) == leader.log.log_end_offset
        ):
            store.isr |= {node.number}

    def prefer(self, _: Node) -> None:
        if self.store.leader != 0 and 0 in self.store.isr:
            self.elect(0, self.store.isr)

    def elect(self, leader: int, isr: frozenset[int]) -> None:
        store = self.store
        store.epoch += leader != store.leader
        store.leader, store.isr = leader, isr

    # --- in the end ---------------------------------------------------------------------------

    def settle(self) -> list[bytes]:
        """Everybody follows the last leader; what its log holds."""
        for node in self.nodes:
            node.cut_off = False
            node.learn(self.store)
        leader = self.nodes[self.store.leader]
        for node in self.nodes:
            while node is not leader and not self.is_same(node, leader):
                self.fetch(node)
        return [value for _, value in leader.bench.contents(leader.log)]

    def is_same(self, node: Node, leader: Node) -> bool:
        if node.log.log_end_offset < leader.log.log_end_offset:
            return False
        if node.bench.contents(node.log) == leader.bench.contents(leader.log):
            return True
        before = node.log.log_end_offset
        self.fetch(node)
        if node.log.log_end_offset >= before:
            raise Violation(f"{node.number} and {leader.number} hold different records")
        return False


def run(seed: int) -> int:
    """One run; how many values were acknowledged. Raises Violation."""
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    times = Counter(world.settle())
    twice = [value for value, number in times.items() if number > 1]
    if twice:
        raise Violation(f"{twice} are there more than once")
    acknowledged = [value for each in world.producers for value in each.acknowledged]
    lost = [value for value in acknowledged if not times[value]]
    if lost:
        raise Violation(f"{lost} were acknowledged and are lost")
    return len(acknowledged)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_acknowledged_is_there_once(seed: int) -> None:
    run(seed)


def test_much_is_acknowledged() -> None:
    assert sum(run(seed) for seed in range(20)) > 200


MOST_SEEDS = 300


def test_a_truncation_that_does_not_rewind_producers_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "reload_producers", lambda *_, **__: [])
    for seed in range(MOST_SEEDS):
        try:
            run(seed)
        except Violation:
            return
    pytest.fail(f"{MOST_SEEDS} seeds show nothing")
