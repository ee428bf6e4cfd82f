"""The transaction machine against a simple model, with failed writes and failovers anywhere.

Several producers use one transactional id, as zombies do. Each remembers the last identity that it
was told. The model knows which of them is the newest, what was acknowledged as part of the open
transaction, and what was decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.coordinator.transaction.machine import TransactionShard
from ottla.coordinator.transaction.state import (
    NEEDS_PRODUCER_ID,
    AddPartitions,
    Complete,
    EndTransaction,
    Identity,
    InitProducer,
    State,
    WriteMarkers,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.testing.shards import ShardRunner

ID = "orders"
PRODUCERS = st.integers(0, 2)
PARTITIONS = st.integers(0, 4).map(lambda index: TopicPartition("t", index))
TIMEOUT_MS = 60_000


@dataclass
class Settings:
    transaction_version: int = 2
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000
    id_expiration_ms: int = 10**12


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.config = Settings()
        self.runner = ShardRunner(lambda: TransactionShard(self.config), TransactionShard.validate)
        self.identities: dict[int, Identity] = {}  # what each producer was told last
        self.newest: int | None = None  # who was told so last by InitProducerId
        self.ids = 0
        self.open: set[TopicPartition] = set()  # acknowledged, and not yet decided about
        self.decided: dict[Identity, bool] = {}  # by the marker's identity
        self.marked: set[Identity] = set()
        self.told: list[Identity] = []  # by InitProducerId, to those who named no identity

    @initialize(version=st.integers(1, 2))
    def agree(self, version: int) -> None:
        self.config.transaction_version = version

    @property
    def version(self) -> int:
        return self.config.transaction_version

    def run_command(self, command: Any) -> Any:
        before = len(self.runner.effects)
        try:
            reply = self.runner.run(command)
            if reply is NEEDS_PRODUCER_ID:
                self.ids += 1
                reply = self.runner.run(command._replace(new_producer_id=self.ids))
        except KafkaError as error:
            reply = error
        self.note(self.runner.effects[before:])
        return reply

    def note(self, effects: list[WriteMarkers]) -> None:
        for effect in effects:
            known = self.decided.setdefault(effect.producer, effect.commit)
            assert known is effect.commit, "decided both ways"
            assert self.open <= effect.partitions, "a partition was forgotten"

    @rule(producer=PRODUCERS)
    def begin(self, producer: int) -> None:
        reply = self.run_command(InitProducer(ID, TIMEOUT_MS))
        if isinstance(reply, Identity):
            assert reply not in self.told, "one identity for two producers"
            self.told.append(reply)
            self.identities[producer] = reply
            self.newest = producer
            self.open = set()

    @rule(producer=PRODUCERS, partition=PARTITIONS)
    def add(self, producer: int, partition: TopicPartition) -> None:
        identity = self.identities.get(producer)
        if identity is None:
            return
        command = AddPartitions(ID, identity, frozenset({partition}), self.version)
        reply = self.run_command(command)
        if reply is ErrorCode.NONE:
            assert producer == self.newest, "a zombie has added a partition"
            self.open.add(partition)

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        identity = self.identities.get(producer)
        if identity is None:
            return
        reply = self.run_command(EndTransaction(ID, identity, commit, self.version))
        if isinstance(reply, Identity):
            assert producer == self.newest, "a zombie has ended a transaction"
            self.identities[producer] = reply
            self.open = set()

    @rule()
    def write_markers(self) -> None:
        if self.runner.effects:
            effect = self.runner.effects.pop(0)
            self.marked.add(effect.producer)
            self.run_command(Complete(effect.transactional_id, effect.producer, effect.decided_ms))

    @rule()
    def fail_the_next_write(self) -> None:
        self.runner.failures = 1

    @rule(compact=st.booleans(), slice_of=st.integers(2, 60))
    def fail_over(self, compact: bool, slice_of: int) -> None:
        self.runner.failures = 0
        self.runner.reload(compact=compact, slice_of=slice_of)
        self.note(self.runner.effects)

    @rule(ms=st.integers(1, 2 * TIMEOUT_MS))
    def pass_time(self, ms: int) -> None:
        before = len(self.runner.effects)
        self.runner.advance(ms)
        if len(self.runner.effects) > before:
            self.note(self.runner.effects[before:])
            self.open = set()

    @invariant()
    def what_is_decided_is_under_way(self) -> None:
        """A decided transaction has markers to send, or its completion has failed to be written."""
        found = self.runner.shard.transactions.get(ID)
        if found is None or not found.state.is_prepared:
            return
        identity = Identity(found.producer_id, found.producer_epoch)
        assert self.decided[identity] is (found.state is State.PREPARE_COMMIT)
        under_way = [effect.producer for effect in self.runner.effects]
        assert identity in under_way or identity in self.marked


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTransactions = Machine.TestCase
