"""Transactions over several partitions, with a crash of the coordinator at every write.

The machine's records count when they are committed. Until then no answer leaves and no marker is
sent, as the host has it, and a crash takes away any number of the last of them. Answers get lost,
and markers of a coordinator that is no more still arrive. The partitions judge batches and markers
by the product's own rules (`ProducerStates`); the model knows what producers have asked for and
were told, and looks at what became of their batches: all of a transaction counts, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from ottla.coordinator.transaction.machine import TransactionShard
from ottla.coordinator.transaction.state import (
    NEEDS_PRODUCER_ID,
    AddPartitions,
    Complete,
    EndTransaction,
    Identity,
    InitProducer,
    WriteMarkers,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchHeader, read_header
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, end_marker, read_end_marker
from ottla.storage.producers import Guard, ProducerStates
from ottla.testing.shards import ShardRunner

ID = "orders"
VERSION = 2
PRODUCERS = st.sampled_from((0, 0, 0, 1))
PARTITIONS = st.integers(0, 1)
SELDOM = st.sampled_from((False, False, False, True))
TIMEOUT_MS = 60_000


@dataclass
class Settings:
    transaction_version: int = VERSION
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000
    id_expiration_ms: int = 10**12


@dataclass
class Transaction:
    """As its producer knows it, and what became of it where it was written."""

    asked: bool = False  # to commit
    told: bool | None = None  # that it is committed, or aborted
    outcomes: dict[TopicPartition, bool | None] = field(default_factory=dict)

    def check(self) -> None:
        known = {each for each in self.outcomes.values() if each is not None}
        assert len(known) < 2, "torn"
        if known == {True}:
            assert self.asked, "committed, and nobody has asked for that"
        if known and self.told is not None:
            assert known == {self.told}, "not what its producer was told"


class Place:
    """A partition: what its leader knows of producers, and the transaction that is open in it."""

    def __init__(self, index: int) -> None:
        self.id = TopicPartition("t", index)
        self.states = ProducerStates(self.id)
        self.open: dict[int, Transaction] = {}  # by producer id
        self.sequences: dict[Identity, int] = {}

    def append(self, producer: Identity, guard: Guard | None, transaction: Transaction) -> None:
        """A batch of a producer; refused batches are no more than that."""
        sequence = self.sequences.get(producer, 0)
        header = _data(producer, sequence)
        try:
            if self.states.check(header) is not None:
                return
            self.states.check_begin(header, guard)
        except KafkaError:
            return
        self.states.update(header, self.states.end_offset)
        self.sequences[producer] = sequence + 1
        assert self.open.setdefault(producer.producer_id, transaction) is transaction
        assert transaction.outcomes.setdefault(self.id, None) is None, "written after its end"

    def mark(self, effect: WriteMarkers, coordinator_epoch: int) -> bool:
        """Write a marker; False if it is refused."""
        batch = end_marker(
            ControlType.COMMIT if effect.commit else ControlType.ABORT,
            producer_id=effect.producer.producer_id,
            producer_epoch=effect.producer.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=0,
        )
        header, marker = read_header(batch), read_end_marker(batch)
        assert marker is not None
        try:
            self.states.check_marker(header, marker, raised=effect.version >= VERSION)
        except KafkaError:
            return False
        self.states.update(header, self.states.end_offset, marker)
        ended = self.open.pop(effect.producer.producer_id, None)
        if ended is not None:
            ended.outcomes[self.id] = effect.commit
            ended.check()
        return True


def _data(producer: Identity, sequence: int) -> BatchHeader:
    return read_header(
        build_batch(
            [(0, None, b"", ())],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


class Waiting(NamedTuple):
    """What happens when the log is committed up to an offset."""

    offset: int
    happens: Callable[[], None]


class Sending:
    """The markers of one decision, by the coordinator of an epoch."""

    def __init__(self, effect: WriteMarkers, epoch: int) -> None:
        self.effect = effect
        self.epoch = epoch
        self.left = set(effect.partitions)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = ShardRunner(lambda: TransactionShard(Settings()), TransactionShard.validate)
        self.places = [Place(index) for index in range(2)]
        self.epoch = 1  # of the coordinator
        self.committed = 0
        self.waiting: list[Waiting] = []
        self.sending: list[Sending] = []
        self.identities: dict[int, Identity] = {}  # what each producer was told last
        self.transactions: dict[Identity, Transaction] = {}
        self.ids = 0

    def give(
        self,
        command: Any,
        told: Callable[[Any], None],
        *,
        lost: bool = False,
        delayed: bool = False,
    ) -> None:
        """A command whose reply is told when everything before it is committed, or gets lost."""
        before = len(self.runner.effects)
        try:
            reply = self.runner.run(command)
            if reply is NEEDS_PRODUCER_ID:
                self.ids += 1
                reply = self.runner.run(command._replace(new_producer_id=self.ids))
        except KafkaError as error:
            reply = error
        self.send_later(self.runner.effects[before:])
        if not lost:
            self.waiting.append(Waiting(len(self.runner.log), lambda: told(reply)))
        if not delayed:
            self.committed = len(self.runner.log)
        self.happen()

    def send_later(self, effects: list[WriteMarkers]) -> None:
        for effect in effects:
            sending = Sending(effect, self.epoch)
            self.waiting.append(
                Waiting(len(self.runner.log), lambda sending=sending: self.sending.append(sending))
            )

    def happen(self) -> None:
        ready = [each for each in self.waiting if each.offset <= self.committed]
        self.waiting = [each for each in self.waiting if each.offset > self.committed]
        for each in ready:
            each.happens()

    # --- producers ------------------------------------------------------------------------------

    @rule(producer=PRODUCERS, again=SELDOM, lost=SELDOM, delayed=SELDOM)
    def begin(self, producer: int, again: bool, lost: bool, delayed: bool) -> None:
        if producer in self.identities and not again:
            return

        def told(reply: Any) -> None:
            if isinstance(reply, Identity):
                assert reply not in self.transactions, "one identity for two producers"
                self.identities[producer] = reply
                self.transactions[reply] = Transaction()

        self.give(InitProducer(ID, TIMEOUT_MS), told, lost=lost, delayed=delayed)

    @rule(producer=PRODUCERS, index=PARTITIONS, delayed=SELDOM)
    def write(self, producer: int, index: int, delayed: bool) -> None:
        identity = self.identities.get(producer)
        if identity is None:
            return
        place, transaction = self.places[index], self.transactions[identity]
        guard = place.states.begin_verification(*identity, place.sequences.get(identity, 0), 0)

        def told(reply: Any) -> None:
            if reply is ErrorCode.NONE:
                place.append(identity, guard, transaction)

        command = AddPartitions(ID, identity, frozenset({place.id}), VERSION)
        self.give(command, told, delayed=delayed)

    @rule(producer=PRODUCERS, commit=st.booleans(), lost=SELDOM, delayed=st.booleans())
    def end(self, producer: int, commit: bool, lost: bool, delayed: bool) -> None:
        identity = self.identities.get(producer)
        if identity is None:
            return
        transaction = self.transactions[identity]
        transaction.asked = transaction.asked or commit

        def told(reply: Any) -> None:
            if isinstance(reply, Identity):
                transaction.told = commit
                transaction.check()
                if self.identities[producer] == identity:
                    self.identities[producer] = reply
                    self.transactions.setdefault(reply, Transaction())

        command = EndTransaction(ID, identity, commit, VERSION)
        self.give(command, told, lost=lost, delayed=delayed)

    # --- the coordinator ------------------------------------------------------------------------

    @rule(count=st.integers(1, 5))
    def replicate(self, count: int) -> None:
        self.committed = min(self.committed + count, len(self.runner.log))
        self.happen()

    @rule(kept=st.integers(0, 2))
    def crash(self, kept: int) -> None:
        """The next coordinator has what was committed, and some of what was not."""
        del self.runner.log[self.committed + kept :]
        self.waiting.clear()
        self.epoch += 1
        self.runner.reload()
        self.send_later(self.runner.effects)
        self.happen()

    @rule(ms=st.sampled_from((1, 15_000, 2 * TIMEOUT_MS)))
    def pass_time(self, ms: int) -> None:
        before = len(self.runner.effects)
        self.runner.advance(ms)
        self.send_later(self.runner.effects[before:])
        self.happen()

    @rule(which=st.integers(0, 5), index=PARTITIONS)
    def write_marker(self, which: int, index: int) -> None:
        if not self.sending:
            return
        sending = self.sending[which % len(self.sending)]
        place = self.places[index]
        if place.id in sending.left and not self.mark(sending, place):
            return
        if not sending.left:
            self.sending.remove(sending)
            if sending.epoch == self.epoch:  # else the coordinator is another one
                effect = sending.effect
                command = Complete(effect.transactional_id, effect.producer, effect.decided_ms)
                self.give(command, lambda reply: None, delayed=True)

    def mark(self, sending: Sending, place: Place) -> bool:
        if not place.mark(sending.effect, sending.epoch):
            self.sending.remove(sending)
            assert sending.epoch != self.epoch, "the coordinator's own marker was refused"
            return False
        sending.left.discard(place.id)
        return True

    def teardown(self) -> None:
        """Left alone, everything comes to its end, and is as everybody was told."""
        for _ in range(4):
            self.replicate(len(self.runner.log) + 1)
            while self.sending:  # those of the newest coordinator first: the others may never come
                for place in self.places:
                    self.write_marker(len(self.sending) - 1, place.id.partition)
            self.pass_time(2 * TIMEOUT_MS)
        assert all(each.state.is_idle for each in self.runner.shard.transactions.values())
        for place in self.places:
            assert not place.open, "a transaction hangs"
        for transaction in self.transactions.values():
            transaction.check()
            assert None not in transaction.outcomes.values()


Machine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestTransactionsSurviveCrashes = Machine.TestCase
