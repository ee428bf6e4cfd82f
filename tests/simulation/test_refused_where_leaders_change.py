"""Batches that are refused while leaders change: what is stored is in its order, each batch once.

Two replicas with a log and its real producer states, and a client with up to five batches in
flight that looks for the leader anew now and then, finds the wrong one at times, and sends nothing
to one before it has all answers of the other. A replica learns late that it leads, or does not. It
refuses what it does not lead, and for a moment what it does. A follower cuts off what its leader
does not have, and may be elected before it has done so. In some runs all this is slow, or happens
often, while what has arrived is read late. OTTLA_SIMULATION_SEEDS runs more.

NothingIsOutOfOrder  the client is never told that a batch is out of order
StoredInOrder        the log of whoever leads in the end has its batches in their order, each once
NobodyStarves        in the end all is acknowledged
"""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchHeader, read_header
from ottla.records.builder import build_batch
from ottla.storage.producers import ProducerStates

SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "300"))
STEPS = 400_000
BATCHES = 24
SEQUENCES = 2**31


@cache
def header(sequence: int) -> BatchHeader:
    batch = build_batch(
        [(0, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence
    )
    return read_header(batch)


@dataclass
class Answer:
    number: int
    code: ErrorCode | None  # None: not committed yet
    offset: int = -1


@dataclass
class Replica:
    states: ProducerStates = field(default_factory=lambda: ProducerStates(TopicPartition("t", 0)))
    log: list[int] = field(default_factory=list)
    epoch: int = 0
    leads: bool = False  # as it knows
    refuses: bool = False
    cut: int | None = None  # where its log is to be cut
    arrived: deque[int] = field(default_factory=deque)
    answers: deque[Answer] = field(default_factory=deque)

    @property
    def in_flight(self) -> int:
        return len(self.arrived) + len(self.answers)


class World:
    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.first = draw.choice((0, 0, 7, SEQUENCES - 4))
        self.replicas = (Replica(leads=True), Replica())
        self.leader = self.epoch = 0
        # the client
        self.view = 0
        self.to_send = deque(range(BATCHES))
        self.acknowledged: set[int] = set()
        self.refusals: Counter[int] = Counter()
        self.most_in_flight = draw.randint(1, 5)
        self.one_at_a_time = draw.random() < 0.5
        self.weights = (6, 12, 12, 8, 0.4, 2, 2.5, 0.5, 0.8)
        if draw.random() < 0.5:
            self.weights = tuple(each * draw.choice((0.3, 1, 3)) for each in self.weights)

    def step(self) -> None:
        happens = (
            self.send, self.judge, self.hear, self.replicate, self.elect, self.learn, self.look,
            self.turn, self.truncate,
        )  # fmt: skip
        self.random.choices(happens, self.weights)[0]()

    def header(self, number: int) -> BatchHeader:
        return header((self.first + number) % SEQUENCES)

    def any_replica(self) -> Replica:
        return self.random.choice(self.replicas)

    # the client

    def look(self) -> None:
        self.view = self.leader if self.random.random() < 0.7 else 1 - self.leader

    def send(self) -> None:
        there, other = self.replicas[self.view], self.replicas[1 - self.view]
        if not self.to_send or other.in_flight or there.in_flight == self.most_in_flight:
            return
        if not (self.one_at_a_time and there.in_flight and self.refusals[self.to_send[0]]):
            there.arrived.append(self.to_send.popleft())

    def hear(self) -> None:
        answers = self.any_replica().answers
        if not answers or answers[0].code is None:
            return
        answer = answers.popleft()
        if answer.code is ErrorCode.NONE:
            self.acknowledged.add(answer.number)
            return
        assert answer.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.refusals[answer.number] += 1
        self.to_send = deque(sorted((*self.to_send, answer.number)))

    # the replicas

    def judge(self) -> None:
        replica = self.any_replica()
        if not replica.arrived:
            return
        number = replica.arrived.popleft()
        batch, states = self.header(number), replica.states
        if not replica.leads or replica.refuses:
            states.note_refused(batch)
            replica.answers.append(Answer(number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        try:
            duplicate = states.check(batch)
        except KafkaError as error:
            replica.answers.append(Answer(number, error.code))
        else:
            if duplicate is None:
                self.store(replica, number)
            offset = len(replica.log) - 1 if duplicate is None else duplicate.base_offset
            replica.answers.append(Answer(number, None, offset))

    def store(self, replica: Replica, number: int) -> None:
        replica.states.update(self.header(number), len(replica.log))
        replica.log.append(number)

    def replicate(self) -> None:
        """One batch more on the follower; what both have is committed."""
        leader, follower = self.replicas[self.leader], self.replicas[1 - self.leader]
        if not leader.leads or follower.leads or follower.cut is not None:
            return
        if follower.epoch != self.epoch:
            follower.epoch = self.epoch
            same = 0
            for ours, theirs in zip(leader.log, follower.log, strict=False):
                if ours != theirs:
                    break
                same += 1
            follower.cut = same if same < len(follower.log) else None
            return
        if len(follower.log) < len(leader.log):
            self.store(follower, leader.log[len(follower.log)])
        for answer in leader.answers:
            if answer.code is None and answer.offset < len(follower.log):
                answer.code = ErrorCode.NONE

    def truncate(self) -> None:
        replica = self.any_replica()
        if replica.cut is None:
            return
        left = replica.log[: replica.cut]
        replica.log, replica.cut = [], None
        replica.states.take_away(len(left))
        replica.states.reset(0)
        for number in left:
            self.store(replica, number)

    def turn(self) -> None:
        replica = self.any_replica()
        replica.refuses = not replica.refuses

    # who leads

    def elect(self) -> None:
        """The follower, when both know who leads and it has come over."""
        known = all(each.leads == (self.leader == i) for i, each in enumerate(self.replicas))
        if known and self.replicas[1 - self.leader].epoch == self.epoch:
            self.leader = 1 - self.leader
            self.epoch += 1
            self.replicas[self.leader].epoch = self.epoch

    def learn(self) -> None:
        index = self.random.randrange(2)
        replica, leads = self.replicas[index], index == self.leader
        if leads and replica.cut is not None:
            return
        replica.leads = leads
        for answer in replica.answers:
            if not leads and answer.code is None:
                answer.code = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_refused_while_leaders_change_is_stored_in_its_order(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        if len(world.acknowledged) == BATCHES:
            break
        world.step()
    assert world.acknowledged == {*range(BATCHES)}
    assert world.replicas[world.leader].log == list(range(BATCHES))
