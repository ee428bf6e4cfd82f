"""Nothing that was committed is lost: replicas, leaders, controller and store in every order.

A model of a whole cluster with one partition. The rules are the product's own: `Partition` with its
in-sync sets, the proposals of leaders, the controller's plans and elections. The rest is as small
as it can be: logs are lists, the store is a list of states that every broker may lag behind, and a
request is a call. What happens next is drawn: records and fetches, crashes with and without loss,
sessions that end while their brokers live, plans that are carried out in part, answers of the store
that are lost on the way, other values of min.insync.replicas, operators who give up replicas, and
reassignments that begin, are replaced and cancelled; who holds a partition no longer deletes it.
OTTLA_SIMULATION_SEEDS runs more.

After every step:

SetsAreSound         a leader is in sync; the sets are disjoint, and hold nobody but replicas
CommittedIsOneLog    what any leader has committed is a prefix of, or goes on from, what others have
NoCommittedIsLost    who is in sync or eligible has every committed record, unless its machine has
                     crashed and the cluster has not drawn its conclusions yet
UncleanIsVisible     records are lost only when the sets said that nobody has them for certain, and
                     under a leader epoch that is new
UncleanIsCounted     and then the controller's plan says so
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.controller.election import LogEnd, is_unclean
from ottla.controller.machine import (
    Plan,
    electable,
    plan,
    plan_forced,
    plan_preferred,
    plan_recovery,
)
from ottla.controller.reassignment import plan_reassignment
from ottla.errors import KafkaError
from ottla.model.broker import Broker, BrokerState
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionChange, PartitionState, Topic
from ottla.replication.flushes import Durability
from ottla.replication.isr import InSyncReplicas, Rules
from ottla.replication.isr_updates import Proposal, forget, proposal
from ottla.replication.partition import Partition
from ottla.storage.log import AppendInfo, Log

SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "80"))
TOPIC_ID = TopicId(bytes(16))
TP = TopicPartition("t", 0)
BROKERS = (1, 2, 3, 4)
MAX_LAG_MS = 1_000.0


class ListLog:
    """A log whose records are pairs of a leader epoch and a number that no other record has."""

    unflushed_messages = 0
    flush_due = False
    recovery_point = 0
    log_start_offset = 0
    failure = None

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.high_watermark = 0

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def begin_epoch(self, epoch: int) -> None:
        pass

    def append(self, records: list[int], *, leader_epoch: int, **_: object) -> AppendInfo:
        self.records += [(leader_epoch, each) for each in records]
        last = len(self.records) - 1
        return AppendInfo(last, last, -1, 0, False, len(records))

    def append_replicated(self, records: list[tuple[int, int]], leader_epoch: int) -> None:
        self.records += records

    def bytes_from(self, start: int, end: int) -> int:
        return end - start

    def last_epoch(self) -> int:
        return self.records[-1][0] if self.records else -1

    def last_stable_offset(self, high_watermark: int) -> int:
        return high_watermark


@dataclass(frozen=True)
class Stored:
    """Everything the store says."""

    partition: PartitionState
    rules: Rules
    states: dict[int, BrokerState]
    registrations: dict[int, Broker]

    def image(self) -> ClusterImage:
        topic = Topic(TP.topic, TOPIC_ID, (self.partition,))
        live = {
            each: broker
            for each, broker in self.registrations.items()
            if not self.states[each].fenced and self.states[each].epoch == broker.epoch
        }
        return ClusterImage(
            brokers=live,
            registrations=self.registrations,
            broker_states=self.states,
            topics={TP.topic: topic},
            topic_names={TOPIC_ID: TP.topic},
        )


@dataclass
class Node:
    """One broker: what survives its process, and what does not."""

    id: int
    cluster: Cluster
    log: ListLog = field(default_factory=ListLog)
    machine_crashed: bool = False  # since its last registration
    checkpoint: int = 0
    # of its process
    partition: Partition | None = None
    view: Stored | None = None
    broker_epoch: int = -1
    # A proposal that waits, one on its way with what it relies on, one of unknown outcome.
    pending: Proposal | None = None
    sent: tuple[Proposal, dict[int, BrokerState]] | None = None
    unknown: Proposal | None = None

    make_proposal = staticmethod(proposal)

    # what the partition asks of the cluster

    @property
    def node_id(self) -> int:
        return self.id

    @property
    def max_lag_ms(self) -> float:
        return MAX_LAG_MS

    def now_ms(self) -> float:
        return self.cluster.now

    def may_join(self, broker: int, broker_epoch: int) -> bool:
        assert self.view is not None
        found = self.view.image().brokers.get(broker)
        return (
            found is not None
            and found.epoch == broker_epoch
            and not self.view.states[broker].stopping
        )

    def propose_isr(
        self, partition: Partition, isr: tuple[int, ...], lost: frozenset[int] = frozenset()
    ) -> None:
        waiting, self.pending = self.pending, None
        if waiting is not None:
            forget(waiting)  # as `IsrUpdates.propose` does
        self.pending = self.make_proposal(partition, isr, lost)

    # following the store

    def see(self) -> None:
        if self.partition is None:
            return
        self.view = view = self.cluster.stored
        state = view.partition
        if self.id not in state.replicas and self.log.records:
            self.log = ListLog()
            self.checkpoint = 0
            self.cluster._start(self)
        admitted = self.id in view.image().brokers and (
            view.registrations[self.id].epoch == self.broker_epoch
        )
        if admitted and state.leader == self.id:
            self.partition.lead(state, view.rules)
        else:
            self.partition.follow(state)

    @property
    def leading(self) -> bool:
        return self.partition is not None and self.partition.leading


class Violation(AssertionError):
    """One of the invariants does not hold."""


class Cluster:
    """All of it."""

    make_plan = staticmethod(plan)

    def __init__(self, replicas: int, min_insync: int, unclean: bool) -> None:
        self.now = 0.0
        self.numbers = 0
        self.epochs = len(BROKERS)
        state = PartitionState(1, 0, 0, BROKERS[:replicas], BROKERS[:replicas])
        self.stored = Stored(
            state,
            Rules(min_insync, unclean),
            {each: BrokerState(each, fenced=False) for each in BROKERS},
            {each: Broker(each, each, {}) for each in BROKERS},
        )
        self.todo: Plan | None = None
        self.asked: tuple[dict[int, BrokerState], dict[int, LogEnd]] | None = None
        self.committed: list[tuple[int, int]] = []
        self.unclean_epoch = 0
        self.unclean_elections = 0
        self.steps: list[str] = []
        self.nodes = {each: Node(each, self) for each in BROKERS}
        for node in self.nodes.values():
            self._start(node)
            node.broker_epoch = node.id
            node.see()

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.stored.partition.replicas

    def _start(self, node: Node) -> None:
        node.partition = Partition(
            TP,
            TOPIC_ID,
            cast(Log, node.log),
            self.stored.partition,
            cast(Durability, None),
            node,
            node.checkpoint,
        )
        node.pending = None

    # --- the store --------------------------------------------------------------------------------

    def put(self, **changes: Any) -> None:
        self.stored = replace(self.stored, **changes)

    def change_partition(
        self,
        change: PartitionChange,
        *,
        forced: bool = False,
        told: bool = True,
        elects: bool = True,
    ) -> bool:
        """Compare and set; notes what is lost where nobody was certain to have everything.

        `forced` by an operator, who has given up others; `told` that it may lose records.
        """
        before = self.stored.partition
        if before != change.before:
            return False
        self.put(partition=change.after)
        after = change.after
        if elects and (
            after.leader not in (NO_LEADER, before.leader)
            or after.leader_epoch > before.leader_epoch
        ):
            trusted = {*before.isr, *before.elr} - self._lost()
            if after.leader != NO_LEADER and after.leader not in trusted:
                if trusted and not self.stored.rules.unclean and not forced:
                    raise Violation(f"{after.leader} leads although {trusted} could")
                if not told and len(self.replicas) > 1:
                    raise Violation("an unclean election that nobody counts")
                self._unclean(after)
        return True

    def _lost(self) -> set[int]:
        return {each for each, state in self.stored.states.items() if state.fenced and state.lost}

    def _unclean(self, state: PartitionState) -> None:
        if state.leader_epoch <= self.unclean_epoch:
            raise Violation("an unclean election under an epoch that was there before")
        self.unclean_elections += 1
        self.unclean_epoch = state.leader_epoch
        records = self.nodes[state.leader].log.records
        self.committed = self.committed[: common(self.committed, records)]

    # --- what may happen --------------------------------------------------------------------------

    def append(self, node: Node, more: int) -> None:
        if node.leading:
            assert node.partition is not None
            numbers = range(self.numbers, self.numbers + 1 + more % 3)
            self.numbers += len(numbers)
            node.partition.append(cast(memoryview, list(numbers)), 0)

    def fetch(self, node: Node, most: int) -> None:
        """Cut off what the leader does not have, say what is left, take what comes after it."""
        mine = node.partition
        if mine is None or mine.leading or node.view is None:
            return
        leader = self.nodes.get(node.view.partition.leader)
        if leader is None or leader is node or leader.partition is None or not leader.leading:
            return
        if node.view.image().brokers.get(node.id) is None:
            return
        if leader.partition.leader_epoch != mine.leader_epoch:
            return
        records, theirs = node.log.records, leader.log.records
        shared = common(records, theirs)
        if shared < len(records):
            mine.begin_truncation()
            del records[shared:]
            mine.end_truncation()
        try:
            leader.partition.fetched_by(node.id, node.broker_epoch, len(records), 0)
        except KafkaError:
            return
        sent = theirs[len(records) : len(records) + most % 4]
        if sent:
            mine.append_replicated(cast(memoryview, sent), leader.partition.high_watermark, 0)

    def lag(self, node: Node, other: int) -> None:
        """A leader finds that others have not been caught up for too long."""
        self.now += MAX_LAG_MS * (0.3 + other % 3)
        if node.leading:
            assert node.partition is not None
            node.partition.isr.shrink()

    def send(self, node: Node, _: int) -> None:
        """A proposal goes to the store, with what it relies on; or is dropped before."""
        made, node.pending = node.pending, None
        if made is None or node.partition is None:
            return
        brokers = node.view.image().brokers if node.view else {}
        relied_on = {**made.added, node.id: node.broker_epoch}
        if made.stands and all(
            each in brokers and brokers[each].epoch == epoch for each, epoch in relied_on.items()
        ):
            assert node.view is not None
            node.sent = made, {each: node.view.states[each] for each in relied_on}
        else:
            forget(made)

    def commit(self, node: Node, way: int) -> None:
        """The store takes a proposal, or not; its answer arrives, or not."""
        if node.sent is None:
            return
        (made, relied_on), node.sent = node.sent, None
        states = self.stored.states
        if way % 4 != 3 and all(states[each] == state for each, state in relied_on.items()):
            self.change_partition(made.change)  # else the request was lost on its way, or refused
        if way % 4 == 2:
            node.unknown = made  # until the store is read again
            return
        if node.partition is not None:
            node.see()
            forget(made)

    def learn(self, node: Node, _: int) -> None:
        """The store is read again, after an outcome that was unknown."""
        made, node.unknown = node.unknown, None
        if made is not None and node.partition is not None:
            node.see()
            forget(made)

    def see(self, node: Node, _: int) -> None:
        node.see()

    def expire(self, node: Node, _: int) -> None:
        """A session ends, whether the broker lives or not."""
        registrations = dict(self.stored.registrations)
        if registrations.pop(node.id, None) is not None:
            self.put(registrations=registrations)

    def fence(self, node: Node, _: int) -> None:
        """Somebody takes a broker for dead."""
        state = self.stored.states[node.id]
        if node.id in self.stored.registrations and not state.fenced:
            self.expire(node, 0)
            self.put(states={**self.stored.states, node.id: replace(state, fenced=True)})

    def stop(self, node: Node, _: int) -> None:
        """A broker asks to be relieved of its leaderships."""
        state = self.stored.states[node.id]
        if state.epoch == node.broker_epoch and node.id in self.stored.registrations:
            self.put(states={**self.stored.states, node.id: replace(state, stopping=True)})

    def kill(self, node: Node, _: int) -> None:
        if node.partition is not None:
            node.checkpoint = min(node.partition.high_watermark, node.log.log_end_offset)
            node.partition = node.view = node.pending = node.unknown = None
            node.broker_epoch = -1

    def crash(self, node: Node, lost: int) -> None:
        """The machine crashes: what was not synced is gone."""
        self.kill(node, 0)
        kept = max(0, node.log.log_end_offset - lost % 4)
        del node.log.records[kept:]
        node.checkpoint = min(node.checkpoint, kept)
        node.machine_crashed = True

    def register(self, node: Node, _: int) -> None:
        """A broker comes back, or one that lives finds its registration gone."""
        if node.partition is not None:
            registered = self.stored.registrations.get(node.id)
            if registered is not None and registered.epoch == node.broker_epoch:
                return
        before = self.stored.states[node.id]
        self.epochs += 1
        lost = node.machine_crashed or (before.fenced and before.lost)
        if node.partition is None:
            self._raise_epoch(node)
            self._start(node)
        state = BrokerState(self.epochs, lost=lost)
        node.broker_epoch = self.epochs
        self.put(
            states={**self.stored.states, node.id: state},
            registrations={**self.stored.registrations, node.id: Broker(node.id, self.epochs, {})},
        )
        node.machine_crashed = False
        node.see()

    def _raise_epoch(self, node: Node) -> None:
        """At its start a broker begins a new epoch of what it leads, since its log may be cut."""
        before = self.stored.partition
        if before.leader == node.id:
            after = before.next_epoch()
            self.put(partition=after)
            if node.machine_crashed and len(self.replicas) == 1:
                self._unclean(after)

    def plan(self, _: Node, patient: int) -> None:
        """The controller looks at the cluster."""
        stored = self.stored
        patience = patient % 8 == 7
        self.todo = self.make_plan(stored.image(), lambda _: stored.rules, patient=patience)
        for change in self.todo.partitions:
            elected = change.after.leader
            if elected not in (change.before.leader, NO_LEADER, *stored.registrations):
                raise Violation(f"{elected} is elected, and is not there")

    def carry_out(self, _: Node, most: int) -> None:
        """It does some of what it has planned."""
        todo = self.todo
        for _step in range(1 + most % 5):
            if todo is None:
                return
            if todo.departures:
                broker, epoch = todo.departures.pop(0)
                state = self.stored.states[broker]
                there = self.stored.registrations.get(broker)
                if state.epoch == epoch and (there is None or there.epoch != epoch):
                    self.put(states={**self.stored.states, broker: replace(state, fenced=True)})
            elif todo.partitions:
                states = self.stored.states
                relied_on = todo.relied_on.items()
                change = todo.partitions.pop(0)
                if any(states[broker] != state for broker, state in relied_on) or not (
                    self.change_partition(change, told=change in todo.unclean)
                ):
                    self.todo = todo = None
            elif todo.arrivals:
                broker, epoch = todo.arrivals.pop(0)
                state = self.stored.states[broker]
                there = self.stored.registrations.get(broker)
                if state.epoch == epoch and there is not None and there.epoch == epoch:
                    admitted = replace(state, fenced=False, lost=False)
                    self.put(states={**self.stored.states, broker: admitted})
            else:
                self.todo = todo = None

    def recover(self, _: Node, __: int) -> None:
        """Nobody is certain to have everything: those who may are asked what they have."""
        stored = self.stored
        asked = plan(stored.image(), lambda _: stored.rules).to_ask.get(TP, ())
        self.asked = stored.states, self._reports(asked)

    def _reports(self, asked: Iterable[int]) -> dict[int, LogEnd]:
        return {
            each: LogEnd(self.nodes[each].log.last_epoch(), self.nodes[each].log.log_end_offset)
            for each in asked
            if self.nodes[each].partition is not None
        }

    def decide(self, _: Node, __: int) -> None:
        """What they have reported decides, if they have not registered anew since."""
        if self.asked is None:
            return
        (asked_of, reports), self.asked = self.asked, None
        change = plan_recovery(self.stored.image(), TP, reports)
        if change is None or any(self.stored.states[each] != asked_of[each] for each in reports):
            return
        self.change_partition(change, told=is_unclean(change.before, change.after))

    def force(self, _: Node, __: int) -> None:
        """An operator gives up all replicas that do not answer."""
        stored = self.stored
        there = [each for each in self.replicas if each in stored.image().brokers]
        change = plan_forced(stored.image(), TP, self._reports(there), stored.rules)
        if change is not None:
            told = is_unclean(change.before, change.after)
            self.change_partition(change, forced=True, told=told)

    def prefer(self, _: Node, __: int) -> None:
        for change in plan_preferred(self.stored.image()):
            self.change_partition(change)

    def reassign(self, node: Node, way: int) -> None:
        """Somebody moves the partition, or changes their mind."""
        first = BROKERS.index(node.id)
        target = (*BROKERS[first:], *BROKERS[:first])[: 1 + way % 3]
        image = self.stored.image()
        try:
            before, after = plan_reassignment(
                image, TP, None if way > 5 else target, electable(image), self.stored.rules
            )
        except KafkaError:
            return
        if after is not before:
            change = PartitionChange(TOPIC_ID, 0, before, after)
            # Who leads on under a new epoch is not elected by that: it was judged before.
            elects = after.leader != before.leader
            self.change_partition(change, told=is_unclean(before, after), elects=elects)
            alone = len(after.replicas) == 1 and after.leader in self._lost()
            if alone and after.leader_epoch > self.unclean_epoch:
                # The only one left has come back with less, under an epoch that says so. Where it
                # was the only one then, too, that was noted at once.
                self._unclean(after)

    def min_insync(self, _: Node, value: int) -> None:
        self.put(rules=self.stored.rules._replace(min_insync=1 + value % 3))

    # --- what must hold ---------------------------------------------------------------------------

    def step(self, action: str, node: int, argument: int) -> None:
        chosen = self.nodes[BROKERS[node % len(BROKERS)]]
        self.steps.append(f"{action}({chosen.id}, {argument})")
        try:
            getattr(self, action)(chosen, argument)
            self.check()
        except Violation as violation:
            raise Violation(f"{violation}\n{self.stored}\n" + "\n".join(self.steps)) from None

    def check(self) -> None:
        self.sets_are_sound()
        self.committed_is_one_log()
        self.no_committed_is_lost()

    def sets_are_sound(self) -> None:
        state = self.stored.partition
        if state.leader == NO_LEADER:
            sound = not state.isr
        else:
            sound = state.leader in state.isr
        together = (*state.isr, *state.elr, *state.last_known_elr)
        if not (sound and len(together) == len(set(together)) and {*together} <= {*self.replicas}):
            raise Violation("the sets are not sound")
        for node in self.nodes.values():
            if node.partition is not None and node.partition.in_sync is not None:
                node.partition.in_sync.validate()

    def committed_is_one_log(self) -> None:
        for node in self.nodes.values():
            partition = node.partition
            if partition is None or not partition.leading:
                continue
            if partition.leader_epoch < self.unclean_epoch:
                continue  # it does not know yet that others have gone on without it
            shown = node.log.records[: partition.high_watermark]
            shared = common(shown, self.committed)
            if shared < min(len(shown), len(self.committed)):
                raise Violation(f"{node.id} has committed {shown}, others {self.committed}")
            if len(shown) > len(self.committed):
                self.committed = shown

    def no_committed_is_lost(self) -> None:
        state = self.stored.partition
        excused = self._lost() | {node.id for node in self.nodes.values() if node.machine_crashed}
        for each in {*state.isr, *state.elr} - excused:
            records = self.nodes[each].log.records
            if common(records, self.committed) < len(self.committed):
                raise Violation(f"broker {each} has {records}, committed is {self.committed}")


def common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    """How many records two logs have in common."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return number
    return min(len(one), len(other))


# How often each happens in a long run; misfortunes more or less often, as the seed has it.
WORK = {
    "append": 10, "fetch": 30, "see": 20, "send": 8, "commit": 8, "learn": 4, "plan": 10,
    "carry_out": 14, "register": 8, "recover": 2, "decide": 2,
}  # fmt: skip
MISFORTUNES = (
    "lag", "expire", "fence", "stop", "kill", "crash", "prefer", "min_insync", "force", "reassign",
)  # fmt: skip

STEPS = st.tuples(
    st.sampled_from(sorted((*WORK, *MISFORTUNES))), st.integers(0, 3), st.integers(0, 7)
)


@settings(deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 3), st.booleans(), st.lists(STEPS, min_size=10, max_size=80)
)
def test_no_order_of_events_loses_a_committed_record(
    replicas: int, min_insync: int, unclean: bool, steps: list[tuple[str, int, int]]
) -> None:
    async def run() -> None:
        cluster = Cluster(replicas, min_insync, unclean)
        for step in steps:
            cluster.step(*step)

    asyncio.run(run())


Setup = tuple[int, int, bool]  # replicas, min.insync.replicas, unclean elections
Step = tuple[str, int, int]


def drawn(seed: int) -> tuple[Setup, list[Step]]:
    """What happens in a long run; everything more or less often, as the seed has it."""
    rng = random.Random(seed)
    setup = rng.choice((1, 2, 3, 3, 3, 4)), rng.choice((1, 2, 2, 3)), rng.random() < 0.2
    weights = {each: weight * rng.choice((0.4, 1, 1, 2)) for each, weight in WORK.items()}
    weights |= {each: rng.choice((0, 0.2, 1, 3)) for each in MISFORTUNES}
    actions = rng.choices(list(weights), list(weights.values()), k=1_500)
    return setup, [(action, rng.randrange(4), rng.randrange(8)) for action in actions]


def violation(setup: Setup, steps: Iterable[Step]) -> AssertionError | None:
    """What these steps do wrong."""
    cluster = Cluster(*setup)
    try:
        for step in steps:
            cluster.step(*step)
    except AssertionError as error:
        return error
    return None


def shrunk(setup: Setup, steps: list[Step]) -> list[Step]:
    """Steps of these that do wrong all the same, and none of which can be left out."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if violation(setup, fewer) is not None:
                steps = fewer
            else:
                start += size
        size //= 2
    return steps


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_long_runs_lose_no_committed_record(seed: int) -> None:
    setup, steps = drawn(seed)
    error = violation(setup, steps)
    if error is not None:
        fewest = shrunk(setup, steps)
        pytest.fail(f"seed {seed}, {setup}: {violation(setup, fewest)}\n{fewest}")


async def test_without_misfortunes_everything_is_committed() -> None:
    """The model does something: records get through it."""
    cluster = Cluster(3, 2, unclean=False)
    for _ in range(20):
        for action in WORK:
            for node in range(3):
                cluster.step(action, node, 3)
    assert len(cluster.committed) == 19, "all but what was appended last"
    assert not cluster.unclean_elections


# --- mistakes that are planted --------------------------------------------------------------------


def join_below_the_epochs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower joins when it has what the new leader knows to be committed: that may be less."""

    def may_add(
        self: InSyncReplicas, broker: int, mark: int, may_join: Callable[[int, int], bool]
    ) -> bool:
        follower = self.followers.get(broker)
        return (
            follower is not None
            and not self.in_flight
            and broker not in self.state.isr
            and follower.end >= mark
            and may_join(broker, follower.broker_epoch)
        )

    monkeypatch.setattr(InSyncReplicas, "may_add", may_add)


def add_with_a_stale_broker_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether who is added is still the one that has caught up."""

    def careless(*arguments: Any) -> Proposal | None:
        made = proposal(*arguments)
        return None if made is None else made._replace(added={})

    monkeypatch.setattr(Node, "make_proposal", staticmethod(careless))


def count_the_new_set_before_it_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark waits no longer for who is about to leave."""
    high_watermark = InSyncReplicas.high_watermark

    def by_proposed(self: InSyncReplicas, *arguments: Any) -> int:
        confirmed = self.state
        if self._proposed is not None:
            self.state = replace(confirmed, isr=self._proposed)
        try:
            return high_watermark(self, *arguments)
        finally:
            self.state = confirmed

    monkeypatch.setattr(InSyncReplicas, "high_watermark", by_proposed)


def try_again_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was refused, as another was first, is written over that other."""
    change_partition = Cluster.change_partition

    def blindly(self: Cluster, change: PartitionChange, **options: bool) -> bool:
        change = change._replace(before=self.stored.partition)
        return change_partition(self, change, **options)

    monkeypatch.setattr(Cluster, "change_partition", blindly)


def drop_the_union_after_an_old_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unknown outcome the store is read without a sync, and what is old is believed."""

    def learn(_: Cluster, node: Node, __: int) -> None:
        made, node.unknown = node.unknown, None
        if made is not None:
            forget(made)

    monkeypatch.setattr(Cluster, "learn", learn)


def ignore_that_a_plan_is_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller does what it has planned, whatever has become of the brokers since."""

    def careless(*arguments: Any, **options: Any) -> Plan:
        made = plan(*arguments, **options)
        made.relied_on = {}
        return made

    monkeypatch.setattr(Cluster, "make_plan", staticmethod(careless))


def lead_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preferred replica leads as soon as it is live, in sync or not."""

    def prefer(self: Cluster, _: Node, __: int) -> None:
        before = self.stored.partition
        preferred = before.replicas[0]
        if preferred != before.leader and preferred in self.stored.image().brokers:
            isr = tuple(sorted({*before.isr, preferred}))
            elr = tuple(each for each in before.elr if each != preferred)
            known = tuple(each for each in before.last_known_elr if each != preferred)
            after = replace(
                before.next_epoch(), leader=preferred, isr=isr, elr=elr, last_known_elr=known
            )
            self.change_partition(PartitionChange(TOPIC_ID, 0, before, after))

    monkeypatch.setattr(Cluster, "prefer", prefer)


def trust_who_has_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose machine has crashed registers as if it had not."""
    register = Cluster.register

    def trusting(self: Cluster, node: Node, argument: int) -> None:
        node.machine_crashed = False
        register(self, node, argument)

    monkeypatch.setattr(Cluster, "register", trusting)


MISTAKES = (
    count_the_new_set_before_it_is_confirmed,
    try_again_blindly,
    ignore_that_a_plan_is_out_of_date,
    lead_from_outside,
    trust_who_has_lost_records,
)
MOST_SEEDS = 300
"""A mistake shows in one of so many: some 30 s of a processor at most."""


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_planted_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    for seed in range(MOST_SEEDS):
        setup, steps = drawn(seed)
        if violation(setup, steps) is not None:
            return
    pytest.fail(f"{MOST_SEEDS} seeds show nothing")


# What shows in one run of some hundred or thousand: shrunk from such a run.
SCENARIOS: dict[Callable[[pytest.MonkeyPatch], None], tuple[Setup, list[Step]]] = {
    # Who is elected last has a record of which only the leader before knew that it was committed.
    join_below_the_epochs_start: ((4, 2, False), [
        ("expire", 0, 4), ("plan", 0, 6), ("carry_out", 1, 2), ("see", 1, 1), ("append", 1, 2),
        ("expire", 2, 0), ("plan", 2, 1), ("carry_out", 0, 7), ("see", 1, 0), ("see", 3, 1),
        ("fetch", 3, 7), ("expire", 1, 0), ("register", 2, 3), ("fetch", 3, 1), ("plan", 1, 0),
        ("carry_out", 2, 4), ("see", 2, 4), ("see", 3, 6), ("fetch", 2, 1), ("send", 3, 5),
        ("commit", 3, 6),
    ]),
    # A follower's machine crashes after it had caught up, and before it is added.
    add_with_a_stale_broker_epoch: ((3, 3, False), [
        ("crash", 0, 0), ("register", 0, 3), ("plan", 0, 7), ("carry_out", 0, 1), ("see", 1, 2),
        ("append", 1, 0), ("see", 0, 1), ("fetch", 0, 2), ("fetch", 0, 3), ("crash", 0, 5),
        ("send", 1, 3), ("register", 0, 2), ("plan", 0, 5), ("commit", 1, 2), ("see", 2, 0),
        ("fetch", 2, 6), ("carry_out", 0, 7), ("see", 1, 1), ("fetch", 2, 5),
    ]),
    # The store has added a follower, its answer is lost, and the leader does not count it.
    drop_the_union_after_an_old_read: ((3, 1, False), [
        ("crash", 2, 1), ("register", 2, 1), ("plan", 2, 3), ("carry_out", 1, 4), ("see", 2, 4),
        ("see", 0, 2), ("fetch", 2, 2), ("lag", 2, 4), ("append", 0, 2), ("fetch", 1, 6),
        ("send", 0, 5), ("fetch", 1, 7), ("commit", 0, 6), ("learn", 0, 3),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("mistake", SCENARIOS)
async def test_a_planted_mistake_is_found_where_few_runs_show_it(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SCENARIOS[mistake]
    assert violation(*scenario) is None
    mistake(monkeypatch)
    assert violation(*scenario) is not None


async def test_a_violation_is_shown_by_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    lead_from_outside(monkeypatch)
    setup, steps = next(
        (setup, steps) for setup, steps in map(drawn, range(MOST_SEEDS)) if violation(setup, steps)
    )
    fewest = shrunk(setup, steps)
    assert violation(setup, fewest) is not None
    assert len(fewest) < 40
