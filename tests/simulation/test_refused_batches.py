"""Batches that are refused for a moment: whoever sends them again has them stored in their order.

One log's real producer states, and a client with up to five batches in flight. The log refuses what
it gets now and then; the client hears of that late, and sends again what was refused, in its order,
beside what is new: one at a time as the Java client does, or all as librdkafka does. The producer
is new, or known, or was forgotten; of one of its batches from before, which went elsewhere, the log
may remember that it was refused. The log may come after the first batches. The client may close its
connection and send all again over another one, and what it had sent is still read.
OTTLA_SIMULATION_SEEDS runs more.

NothingIsOutOfOrder  who gives nothing up is never told that a batch is out of order, unless that is
                     stored and, as in Kafka, no more known to be, with five others behind it
StoredInOrder        what is stored is in its order, each batch once
NobodyStarves        in the end all is stored that was not given up, or the client knows of a gap
"""

from __future__ import annotations

import os
import random
from collections import Counter, deque

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchHeader, read_header
from ottla.records.builder import build_batch
from ottla.replication.early import EarlyBatches
from ottla.storage.producers import ProducerStates
from ottla.storage.refused import WINDOW

SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "200"))
STEPS = 6_000
BATCHES = 30
SEQUENCES = 2**31
DAY_MS = 86_400_000


CLOSED = 2
"""Connections at most that are read though the client has closed them."""


class Gap(Exception):
    """The client has learned that a batch is missing."""


class Forgotten(Exception):
    """The log does not know any more that it has a batch."""


class World:
    def __init__(self, seed: int, *, gives_up: bool) -> None:
        self.random = draw = random.Random(seed)
        self.gives_up = gives_up
        self.states = ProducerStates(TopicPartition("t", 0))
        self.first = draw.choice((0, 0, 5, SEQUENCES - 3))
        if self.first and draw.random() < 0.5:
            self.states.update(self.header(-1), 0)
            if draw.random() < 0.7:
                self.states.expire(DAY_MS, DAY_MS)
        if draw.random() < 0.3:
            self.states.note_refused(self.header(-draw.randint(1, 4)))
        self.refuses = False
        self.early = EarlyBatches() if draw.random() < 0.3 else None  # until the log is there
        self.stored: list[int] = []
        # what the client has to send, what is on its way to the log, and what on its way back
        self.to_send = deque(range(BATCHES))
        self.sent: deque[int] = deque()
        self.closed: list[deque[int]] = []  # what was sent over connections before
        self.closes = not gives_up and draw.random() < 0.5
        self.answers: deque[tuple[int, ErrorCode]] = deque()
        self.most_in_flight = draw.randint(1, 5)
        self.one_at_a_time = draw.random() < 0.5
        self.refusals: Counter[int] = Counter()
        self.given_up: set[int] = set()
        self.weights = (6, 6, 6, 1.5, 0.3, 0.5)
        if self.closes:
            self.weights = (
                6,
                draw.choice((3, 6)),
                draw.choice((3, 6)),
                0.5,
                0.3,
                draw.choice((0.5, 2)),
            )

    def header(self, number: int) -> BatchHeader:
        sequence = (self.first + number) % SEQUENCES
        batch = build_batch(
            [(0, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        return read_header(batch)

    @property
    def is_over(self) -> bool:
        return not (self.to_send or self.sent or self.answers)

    def step(self) -> None:
        happens = (self.send, self.judge, self.hear, self.turn, self.give_up, self.close)
        self.random.choices(happens, self.weights)[0]()

    def send(self) -> None:
        in_flight = len(self.sent) + len(self.answers)
        if not self.to_send or in_flight == self.most_in_flight:
            return
        if not (self.one_at_a_time and in_flight and self.refusals[self.to_send[0]]):
            self.sent.append(self.to_send.popleft())

    def judge(self) -> None:
        queues = [queue for queue in (self.sent, *self.closed) if queue]
        if not queues:
            return
        queue = self.random.choice(queues)
        number = queue.popleft()
        code = self.outcome(number)
        if queue is self.sent:
            self.answers.append((number, code))

    def outcome(self, number: int) -> ErrorCode:
        header = self.header(number)
        code = ErrorCode.NONE
        if self.early is not None:
            self.early.note("t", 0, header)
            code = ErrorCode.NOT_ENOUGH_REPLICAS
        elif self.refuses:
            self.states.note_refused(header)
            code = ErrorCode.NOT_ENOUGH_REPLICAS
        else:
            try:
                duplicate = self.states.check(header)
            except KafkaError as error:
                code = error.code
            else:
                if duplicate is None:
                    self.states.update(header, len(self.stored))
                    self.stored.append(number)
                else:
                    assert self.closes
                    assert self.stored[duplicate.base_offset] == number
        return code

    def hear(self) -> None:
        if not self.answers:
            return
        number, code = self.answers.popleft()
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            self.refusals[number] += 1
            self.to_send = deque(sorted((*self.to_send, number)))
        elif code is not ErrorCode.NONE:
            if self.closes and number in self.stored[:-WINDOW]:
                raise Forgotten
            assert self.given_up, f"{number} is told {code.name}"
            raise Gap

    def close(self) -> None:
        """The client has waited for too long. What it has not heard of it sends again."""
        self.closed = [queue for queue in self.closed if queue]
        if not self.closes or len(self.closed) == CLOSED:
            return
        again = (*(number for number, _ in self.answers), *self.sent)
        self.refusals.update(again)
        self.to_send = deque(sorted((*self.to_send, *again)))
        self.closed.append(self.sent)
        self.sent = deque()
        self.answers.clear()

    def turn(self) -> None:
        if self.early is None:
            self.refuses = not self.refuses
            return
        for header in self.early.take(("t",), 0):
            self.states.note_refused(header)
        self.early = None

    def give_up(self) -> None:
        if self.gives_up and self.to_send and self.refusals[self.to_send[0]] > 2:
            self.given_up.add(self.to_send.popleft())


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_refused_for_a_moment_is_stored_in_its_order(seed: int, gives_up: bool) -> None:
    world = World(seed, gives_up=gives_up)
    try:
        for _ in range(STEPS):
            if world.is_over:
                break
            world.step()
    except (Gap, Forgotten):
        pass
    else:
        assert {*world.stored} == {*range(BATCHES)} - world.given_up
    assert world.stored == sorted(world.stored)
