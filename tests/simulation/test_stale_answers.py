"""A leader that was cut off tells nothing that is out of date: leases in every order of events.

A model of one partition whose leaders answer questions from memory, as coordinators do. The rules
are the product's own: `InSyncReplicas` with its leases, the elections of the controller. The rest
is as small as it can be. Each broker learns what the store says late or not at all, fetches and
their answers are under way for as long as is drawn, or lost; brokers stand still and go on with
what they find; sessions end while their brokers live. A follower names the partition only when
something has changed, and may be at rest otherwise, as in `rounds.py`. OTTLA_SIMULATION_SEEDS runs
more.

After every step:

NothingOldIsTold   what a leader tells is not older than anything that was told before
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

import pytest

from ottla.controller.election import prefer, settle
from ottla.controller.reassignment import begin, cancel, complete
from ottla.model.topic import PartitionState
from ottla.replication.isr import InSyncReplicas, Rules, with_isr
from ottla.replication.lease import LONG_AGO, Past

SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "200"))
STEPS = 2_000
MAX_LAG_MS = 3_000.0
Record = tuple[int, int]  # epoch and value


@dataclass
class Round:
    """A follower's fetch session, as its leader has it."""

    at_ms: float = LONG_AGO
    asked_after_ms: float = LONG_AGO


@dataclass(frozen=True)
class Named:
    """What a follower has told a leader in its session, and does not tell again."""

    leader: int
    epoch: int
    log: tuple[Record, ...]


@dataclass(frozen=True)
class Fetch:
    """A follower's question, and the moment of the answer that it has got before."""

    follower: int
    state: PartitionState
    log: tuple[Record, ...]
    asked_after_ms: float
    opens: bool  # a new session
    names: bool


@dataclass(frozen=True)
class Answer:
    state: PartitionState
    log: tuple[Record, ...]
    made_ms: float
    high_watermark: int = 0


@dataclass
class Node:
    id: int
    view: PartitionState
    log: list[Record] = field(default_factory=list)
    in_sync: InSyncReplicas | None = None
    high_watermark: int = 0
    past: Past = field(default_factory=lambda: Past(0, 0.0))
    answered_ms: float = LONG_AGO  # when its leader made the last answer that has come
    asks: int | None = None  # the leader that owes it an answer
    named: Named | None = None  # in its session
    rounds: dict[int, Round] = field(default_factory=dict)  # of its followers

    @property
    def leads(self) -> bool:
        return self.view.leader == self.id


class Cluster:
    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.now = 0.0
        count = draw.choice((2, 3, 3, 3, 4, 5))
        nodes = tuple(range(1, count + 1))
        self.rules = Rules(draw.randint(1, count))
        self.store = PartitionState(1, 0, 0, nodes, nodes)
        self.pace = draw.choice((0.2, 1.0))  # how long everything takes, beside a lease
        self.moves = draw.random() < 0.5
        spare = draw.randint(1, 3) if self.moves else 0  # brokers it can be moved to
        self.live = set(range(1, count + spare + 1))
        self.nodes = {each: Node(each, self.store) for each in sorted(self.live)}
        self.fetches: dict[int, Fetch] = {}  # on their way, by follower
        self.answers: dict[int, Answer] = {}
        self.still: set[int] = set()  # brokers that stand still
        self.cut: set[int] = set()  # those that the store does not reach
        self.ended: set[int] = set()  # those whose session has ended, and that do not know it yet
        self.values = 0
        self.told = 0
        self.answers_given = 0
        self.rested = 0  # fetches of followers at rest
        self.nodes[1].in_sync = InSyncReplicas(1, self.store, 0, self.rules, 0.0)

    # ------------------------------------------------------------------ what can happen

    def step(self) -> None:
        self.now += self.pace * self.random.choice((0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 40.0))
        node = self.nodes[self.random.choice(list(self.nodes))]
        happens = self.random.choices(
            (self.fetch, self.serve, self.receive, self.lose, self.learn, self.append, self.ask,
             self.stand_still, self.go_on, self.cut_off, self.join, self.fence, self.admit,
             self.give_back, self.change_isr, self.hand_over, self.move, self.finish),
            (40, 40, 40, 1, 20, 3, 25, 1, 5, 1, 2, 6, 2, 0.3, 6, 1, 2, 6),
        )[0]  # fmt: skip
        if node.id not in self.still or happens in (self.go_on, self.fence, self.admit):
            happens(node)
        self.tell_committed()

    def fetch(self, node: Node) -> None:
        leader = node.view.leader
        if leader in (node.id, -1) or node.asks is not None or node.id not in node.view.replicas:
            return
        node.asks = leader
        before, log = node.named, tuple(node.log)
        opens = before is None or before.leader != leader
        node.named = Named(leader, node.view.leader_epoch, log)
        self.fetches[node.id] = Fetch(
            node.id, node.view, log, node.answered_ms, opens, opens or before != node.named
        )

    def serve(self, node: Node) -> None:
        """Read everything that has come for this leader."""
        for fetch in [each for each in self.fetches.values() if each.state.leader == node.id]:
            del self.fetches[fetch.follower]
            same = node.leads and fetch.state.leader_epoch == node.view.leader_epoch
            same = same and fetch.follower in node.view.replicas
            if same and node.in_sync is not None and list(fetch.log) == node.log[: len(fetch.log)]:
                self.attend(node, node.in_sync, fetch)
                self.advance(node)
            log = tuple(node.log) if same else ()
            self.answers[fetch.follower] = Answer(
                fetch.state if same else node.view, log, self.now, node.high_watermark
            )

    def attend(self, node: Node, in_sync: InSyncReplicas, fetch: Fetch) -> None:
        """Take note of a fetch. One that does not name the partition says nothing else of it."""
        follower = in_sync.followers[fetch.follower]
        if fetch.opens or fetch.follower not in node.rounds:
            node.rounds[fetch.follower] = Round()
        session = node.rounds[fetch.follower]
        if fetch.names:
            follower.stir()
        session.at_ms = self.now
        session.asked_after_ms = max(session.asked_after_ms, fetch.asked_after_ms)
        if follower.rests_with(session):
            self.rested += 1
            return
        in_sync.fetched(
            fetch.follower, 1, len(fetch.log), len(node.log), self.now, fetch.asked_after_ms
        )
        if follower.end == len(node.log) and fetch.follower in in_sync.state.isr:
            follower.rest(session)

    def stir(self, node: Node) -> None:
        """Something has happened to the partition: its followers have to tell of themselves."""
        if node.in_sync is not None:
            for follower in node.in_sync.followers.values():
                follower.stir()

    def receive(self, node: Node) -> None:
        answer = self.answers.pop(node.id, None)
        if answer is None:
            return
        node.asks = None
        node.answered_ms = answer.made_ms
        if answer.log and answer.state.leader_epoch == node.view.leader_epoch and not node.leads:
            node.log = list(answer.log)
            mark = min(answer.high_watermark, len(node.log))
            if mark > node.high_watermark:
                node.high_watermark = mark
                node.past.moved(mark, self.now)

    def lose(self, node: Node) -> None:
        """The connection breaks: the next fetch comes after no answer, and in a new session if the
        follower does not know what has become of the last one."""
        if node.asks is not None or self.random.random() < 0.5:
            node.named = None
        self.fetches.pop(node.id, None)
        self.answers.pop(node.id, None)
        node.asks = None
        node.answered_ms = LONG_AGO

    def cut_off(self, node: Node) -> None:
        """It hears nothing from the store any more."""
        self.cut.add(node.id)

    def join(self, node: Node) -> None:
        self.cut.discard(node.id)

    def learn(self, node: Node) -> None:
        if node.id in self.cut:
            return
        self.ended.discard(node.id)
        if node.view == self.store:
            return
        before, node.view = node.view, self.store
        if self.store.leader_epoch != before.leader_epoch:
            if node.asks is not None:
                self.lose(node)
            self.begin_epoch(node, before)
        elif node.in_sync is not None:
            node.in_sync.confirmed(self.store, self.now)
            self.stir(node)
            self.advance(node)

    def begin_epoch(self, node: Node, before: PartitionState) -> None:
        """As `Partition.lead` and `Partition.follow` do."""
        past, had_led = node.past, node.in_sync
        succeeded = had_led is not None and had_led.has_succeeded(self.now)
        if succeeded:
            past.settled(node.high_watermark)
        elif had_led is not None:
            past.moved(node.high_watermark, self.now)
        unknown = self.store.leader_epoch > before.leader_epoch + 1
        if unknown or not (succeeded or {*self.store.replicas}.issuperset(before.replicas)):
            past.taken_away(self.now)
        node.in_sync = None
        if node.id not in self.store.replicas:
            node.log.clear()  # it was moved away
            node.high_watermark = 0
            node.past = Past(0, self.now)
        elif node.leads:
            node.in_sync = InSyncReplicas(
                node.id,
                self.store,
                len(node.log),
                self.rules,
                self.now,
                all_here=past.all_here(self.now),
            )

    def told_below(self, node: Node) -> int:
        """As `Tenure.told_below`."""
        known = node.past.long_known(self.now)
        if not 0 < known <= len(node.log):
            return 0
        epoch = node.log[known - 1][0]
        if node.view.leader_epoch > epoch + 1:
            return known
        return sum(each <= epoch for each, _ in node.log)

    def append(self, node: Node) -> None:
        # Who has appended what is not committed tells nothing more of it.
        if node.in_sync is not None and (node.id not in self.cut or self.random.random() < 0.1):
            self.values += 1
            node.log.append((node.view.leader_epoch, self.values))
            self.stir(node)
            self.advance(node)

    def ask(self, node: Node) -> None:
        """What a coordinator does with a question: tell, wait, or refuse."""
        if node.in_sync is None or not node.in_sync.certain(
            self.now, session_alive=node.id in self.live - self.cut - self.ended
        ):
            return
        if len(node.log) > self.mark(node):
            return  # it waits
        value = max((value for _, value in node.log), default=0)
        assert value >= self.told, f"{node.id} tells {value} when {self.told} was told before"
        self.answers_given += 1

    def stand_still(self, node: Node) -> None:
        self.still.add(node.id)

    def go_on(self, node: Node) -> None:
        self.still.discard(node.id)

    def fence(self, node: Node) -> None:
        if node.id in self.still | self.cut or self.random.random() < 0.1:
            self.live.discard(node.id)
            self.ended.add(node.id)
            self.store = settle(self.store, self.live, self.rules)

    def admit(self, node: Node) -> None:
        self.live.add(node.id)
        self.store = settle(self.store, self.live, self.rules)

    def give_back(self, node: Node) -> None:
        self.store = prefer(self.store, self.live)

    def hand_over(self, node: Node) -> None:
        """Another in-sync replica leads from now on."""
        state = self.store
        if state.leader >= 0 and node.id in self.live.intersection(state.isr) - {state.leader}:
            self.store = replace(state.next_epoch(), leader=node.id)

    def move(self, node: Node) -> None:
        """Somebody moves the partition to other brokers, or changes their mind. That must not be
        done while replicas are cut off, but for one that has led and does not know of it."""
        if not self.moves or not self.may_move:
            return
        if self.store.reassigning and self.random.random() < 0.3:
            self.store = cancel(self.store, self.live, self.rules) or self.store
        else:
            target = self.random.sample(sorted(self.nodes), len(self.store.original))
            self.store = begin(self.store, target, self.live)

    def finish(self, node: Node) -> None:
        if self.may_move:
            self.store = complete(self.store, self.live)

    @property
    def may_move(self) -> bool:
        return all(
            each.leads or each.view.leader_epoch == self.store.leader_epoch
            for each in map(self.nodes.__getitem__, self.store.replicas)
        )

    def change_isr(self, node: Node) -> None:
        """A leader asks the store for another in-sync set, by compare-and-set."""
        in_sync = node.in_sync
        if in_sync is None:
            return
        removed = in_sync.to_remove(node.high_watermark, len(node.log), self.now, MAX_LAG_MS)
        added = [
            each
            for each in in_sync.followers
            if each in self.live and in_sync.may_add(each, node.high_watermark, lambda *_: True)
        ]
        isr = tuple(each for each in in_sync.with_(added) if each not in removed)
        if not in_sync.in_flight and with_isr(in_sync.state, isr, self.rules) is in_sync.state:
            return
        if not in_sync.in_flight:
            in_sync.proposed(isr)
            if in_sync.state == self.store and node.id in self.live - self.cut:
                self.store = with_isr(self.store, isr, self.rules)
        elif in_sync.state == self.store:
            in_sync.refused()

    # ------------------------------------------------------------------ what follows from it

    def advance(self, node: Node) -> None:
        assert node.in_sync is not None
        node.high_watermark = node.in_sync.high_watermark(
            node.high_watermark, len(node.log), self.now, MAX_LAG_MS, lambda *_: True
        )

    def mark(self, node: Node) -> int:
        assert node.in_sync is not None
        if node.in_sync.has_succeeded(self.now):
            return node.high_watermark
        return min(node.high_watermark, self.told_below(node))

    def tell_committed(self) -> None:
        """Whoever waits for a commit is answered."""
        for node in self.nodes.values():
            if node.in_sync is not None and node.id not in self.still:
                told = [value for _, value in node.log[: self.mark(node)]]
                self.told = max([self.told, *told])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_answer_is_older_than_one_before_it(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(STEPS):
        cluster.step()


def test_questions_are_answered_most_of_the_time() -> None:
    answered = rested = 0
    for seed in range(20):
        cluster = Cluster(seed)
        for _ in range(STEPS):
            cluster.step()
        answered += cluster.answers_given
        rested += cluster.rested
    assert answered > 100
    assert rested > 100
