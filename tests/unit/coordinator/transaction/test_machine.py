"""The transaction machine: who is fenced, what is decided, and what must be done about it."""

from __future__ import annotations

from collections.abc import ValuesView
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.coordinator.transaction import journal
from ottla.coordinator.transaction.machine import TransactionShard
from ottla.coordinator.transaction.state import (
    LAST_EPOCH,
    NEEDS_PRODUCER_ID,
    RAISES_EPOCH,
    AddPartitions,
    Complete,
    EndTransaction,
    Identity,
    InitProducer,
    State,
    Timer,
    Transaction,
    VerifyPartitions,
    WriteMarkers,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.testing.shards import ShardRunner

ID = "orders"
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
MINUTE = 60_000


@dataclass
class Settings:
    transaction_version: int = 2
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000
    id_expiration_ms: int = 7 * 24 * 3_600_000


class World:
    """A shard with one transactional id, and whoever asks about it."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.settings = Settings(version)
        self.runner = ShardRunner(
            lambda: TransactionShard(self.settings), TransactionShard.validate
        )
        self.next_id = 100

    @property
    def transaction(self) -> Transaction:
        return self.runner.shard.transactions[ID]

    def run(self, command: Any) -> Any:
        reply = self.runner.run(command)
        if reply is NEEDS_PRODUCER_ID:
            self.next_id += 1
            reply = self.runner.run(command._replace(new_producer_id=self.next_id))
        return reply

    def init(self, expected: Identity | None = None, timeout_ms: int = MINUTE) -> Identity:
        identity: Identity = self.run(InitProducer(ID, timeout_ms, expected))
        return identity

    def add(self, producer: Identity, *partitions: TopicPartition) -> None:
        self.run(AddPartitions(ID, producer, frozenset(partitions), self.version))

    def end(self, producer: Identity, *, commit: bool = True) -> Identity:
        identity: Identity = self.run(EndTransaction(ID, producer, commit, self.version))
        return identity

    def write_markers(self) -> WriteMarkers:
        """What a sender of markers does."""
        (effect,) = self.runner.effects
        self.runner.effects.clear()
        self.run(Complete(effect.transactional_id, effect.producer, effect.decided_ms))
        assert isinstance(effect, WriteMarkers)
        return effect

    def code(self, command: Any) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            self.run(command)
        return refused.value.code

    def exhaust(self, epochs_left: int = 0) -> Identity:
        """A producer in its last epoch, or that many before it."""
        producer = self.init()
        epoch = LAST_EPOCH - epochs_left
        last = Transaction(
            ID, producer.producer_id, epoch, MINUTE, updated_ms=self.runner.now.wall_ms
        )
        record = journal.transaction(last, self.version)
        self.runner.log.append(record)
        self.runner.shard.replay(*record)
        return Identity(producer.producer_id, epoch)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


@pytest.fixture
def newer() -> World:
    return World(2)


@pytest.fixture
def older() -> World:
    return World(1)


class TestBeginning:
    def test_a_new_id_gets_a_producer_id(self, world: World) -> None:
        assert world.init() == Identity(101, 0)
        assert world.transaction.state is State.EMPTY

    def test_whoever_begins_anew_fences_the_one_before(self, world: World) -> None:
        first = world.init()
        second = world.init()
        assert second == Identity(first.producer_id, first.producer_epoch + 1)
        assert world.code(AddPartitions(ID, first, frozenset({A}))) is ErrorCode.PRODUCER_FENCED
        assert world.code(EndTransaction(ID, first, True)) is ErrorCode.PRODUCER_FENCED

    def test_what_the_one_before_had_open_is_aborted_first(self, world: World) -> None:
        first = world.init()
        world.add(first, A, B)
        assert world.code(InitProducer(ID, MINUTE)) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert world.code(InitProducer(ID, MINUTE)) is ErrorCode.CONCURRENT_TRANSACTIONS
        markers = world.write_markers()
        assert not markers.commit
        assert markers.partitions == {A, B}
        fenced = first.producer_epoch + world.version
        assert markers.producer.producer_epoch == fenced
        assert world.init().producer_epoch == fenced + 1

    @pytest.mark.parametrize("epochs_left", [0, 1, 100])
    @pytest.mark.parametrize("commit", [True, False])
    def test_who_was_fenced_is_not_given_the_next_epoch(
        self, world: World, commit: bool, epochs_left: int
    ) -> None:
        """Neither while the abort is under way nor later, nor by the next coordinator."""
        world.init()
        last = world.exhaust(epochs_left)
        world.add(last, A)
        assert world.code(InitProducer(ID, MINUTE)) is ErrorCode.CONCURRENT_TRANSACTIONS
        end = EndTransaction(ID, last, commit, world.version)
        assert world.code(end) is ErrorCode.PRODUCER_FENCED
        world.runner.reload()
        assert world.code(end) is ErrorCode.PRODUCER_FENCED
        world.write_markers()
        assert world.code(end) is ErrorCode.PRODUCER_FENCED
        successor = world.init()
        world.add(successor, B)
        assert world.code(end) in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        )

    def test_a_producer_goes_on_after_an_error(self, world: World) -> None:
        first = world.init()
        again = world.init(first)
        assert again.producer_epoch == 1
        assert world.init(first) == again  # the answer got lost
        assert world.code(InitProducer(ID, MINUTE, Identity(7, 0))) is ErrorCode.PRODUCER_FENCED

    def test_a_producer_that_was_fenced_does_not_go_on(self, world: World) -> None:
        first = world.init()
        world.init()
        assert world.code(InitProducer(ID, MINUTE, first)) is ErrorCode.PRODUCER_FENCED

    def test_nor_does_it_end_what_its_successor_has_open(self, world: World) -> None:
        first = world.init()
        second = world.init()
        world.add(second, A)
        assert world.code(InitProducer(ID, MINUTE, first)) is ErrorCode.PRODUCER_FENCED
        assert world.transaction.state is State.ONGOING
        world.end(second)
        assert world.write_markers().commit

    def test_what_a_producer_itself_has_open_is_aborted_first(self, world: World) -> None:
        first = world.init()
        world.add(first, A)
        command = InitProducer(ID, MINUTE, first)
        assert world.code(command) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert not world.write_markers().commit

    def test_epochs_that_are_used_up_lead_to_a_new_producer_id(self, world: World) -> None:
        world.init()
        last = world.exhaust()
        begun = world.init()
        assert begun.producer_epoch == 0
        assert begun.producer_id != last.producer_id

    def test_the_answer_about_a_new_producer_id_can_get_lost(self, world: World) -> None:
        world.init()
        last = world.exhaust()
        begun = world.init(last)
        assert begun.producer_epoch == 0
        again = world.init(last)
        assert again.producer_id == begun.producer_id


class TestPartitions:
    def test_they_are_added_and_asked_for(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        assert world.run(VerifyPartitions(ID, producer, frozenset({A, B}))) == {
            A: ErrorCode.NONE,
            B: ErrorCode.TRANSACTION_ABORTABLE,
        }

    def test_what_is_included_already_is_not_written_again(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        written = len(world.runner.log)
        world.add(producer, A)
        assert len(world.runner.log) == written

    def test_strangers_are_told_so(self, world: World) -> None:
        producer = world.init()
        unknown = AddPartitions("another", producer, frozenset({A}))
        assert world.code(unknown) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        stranger = AddPartitions(ID, Identity(7, 0), frozenset({A}))
        assert world.code(stranger) is ErrorCode.INVALID_PRODUCER_ID_MAPPING

    def test_nothing_is_added_while_a_transaction_ends(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        after = world.end(producer)
        for command in (
            AddPartitions(ID, after, frozenset({B}), world.version),
            VerifyPartitions(ID, after, frozenset({B})),
        ):
            assert world.code(command) is ErrorCode.CONCURRENT_TRANSACTIONS

    def test_a_partition_of_the_transaction_before_is_not_in_the_next(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        after = world.end(producer)
        world.write_markers()
        assert world.run(VerifyPartitions(ID, after, frozenset({A}))) == {
            A: ErrorCode.TRANSACTION_ABORTABLE
        }


class TestEnding:
    @pytest.mark.parametrize("commit", [True, False])
    def test_a_decision_leads_to_markers_and_these_to_its_completion(
        self, world: World, commit: bool
    ) -> None:
        producer = world.init()
        world.add(producer, A, B)
        world.end(producer, commit=commit)
        assert world.transaction.state.is_prepared
        markers = world.write_markers()
        assert (markers.commit, markers.partitions) == (commit, {A, B})
        assert world.transaction.state is (
            State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
        )
        assert not world.transaction.partitions

    def test_without_a_durable_record_there_are_no_markers(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        world.runner.failures = 1
        assert world.code(EndTransaction(ID, producer, True, world.version)) is (
            ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        assert not world.runner.effects
        assert world.transaction.state is State.ONGOING

    def test_after_a_failover_the_next_coordinator_sends_the_markers(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        world.end(producer)
        before = list(world.runner.effects)
        world.runner.reload(compact=True)
        assert world.runner.effects == before
        world.write_markers()
        world.runner.reload(compact=True)
        assert not world.runner.effects

    def test_a_decision_cannot_be_turned_round(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        world.end(producer, commit=True)
        again = EndTransaction(ID, producer, True, world.version)
        other = again._replace(commit=False)
        assert world.code(again) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert world.code(other) is ErrorCode.CONCURRENT_TRANSACTIONS
        world.write_markers()
        assert world.run(again) == Identity(
            world.transaction.producer_id, world.transaction.producer_epoch
        )
        assert world.code(other) is ErrorCode.INVALID_TXN_STATE

    def test_markers_of_an_earlier_end_complete_nothing(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        after = world.end(producer)
        effect = world.write_markers()
        world.add(after, B)
        world.run(Complete(ID, effect.producer, effect.decided_ms))
        assert world.transaction.state is State.ONGOING

    def test_nor_do_they_when_the_next_one_is_decided(self, world: World) -> None:
        producer = world.init()
        world.add(producer, A)
        after = world.end(producer)
        effect = world.write_markers()
        world.add(after, B)
        world.runner.advance(1)
        world.end(after)
        world.run(Complete(ID, effect.producer, effect.decided_ms))
        assert world.transaction.state is State.PREPARE_COMMIT
        world.write_markers()
        assert world.transaction.state is State.COMPLETE_COMMIT

    @pytest.mark.parametrize(
        ("client_version", "times_out"), [(0, True), (RAISES_EPOCH, False)], ids=["old", "new"]
    )
    def test_a_decision_is_written_though_it_is_larger_than_what_fitted(
        self, newer: World, client_version: int, times_out: bool
    ) -> None:
        """It says that the cluster speaks version 2, or which producer id comes next."""
        last = newer.exhaust()
        newer.run(AddPartitions(ID, last, frozenset({A}), client_version))
        command: Any = EndTransaction(ID, last, True, client_version, new_producer_id=9)
        now = newer.runner.now
        if times_out:
            command, now = Timer.ABORT_TIMED_OUT, now._replace(wall_ms=now.wall_ms + 2 * MINUTE)
        decision = newer.runner.shard.handle(command, now)
        ((_, begun), (_, decided)) = newer.runner.log[-1], *decision.records
        assert len(decided or b"") > len(begun or b"")
        assert decision.must_fit

    def test_version_1_keeps_the_epoch(self, older: World) -> None:
        producer = older.init()
        older.add(producer, A)
        assert older.end(producer) == producer

    def test_version_1_ends_nothing_that_has_not_begun(self, older: World) -> None:
        producer = older.init()
        for commit in (True, False):
            command = EndTransaction(ID, producer, commit)
            assert older.code(command) is ErrorCode.INVALID_TXN_STATE

    def test_version_2_raises_the_epoch_with_every_end(self, newer: World) -> None:
        producer = newer.init()
        newer.add(producer, A)
        after = newer.end(producer)
        assert after == Identity(producer.producer_id, producer.producer_epoch + 1)
        assert newer.write_markers().producer == after
        late = AddPartitions(ID, producer, frozenset({A}), 2)
        assert newer.code(late) is ErrorCode.PRODUCER_FENCED

    def test_version_2_aborts_without_a_transaction_by_raising_the_epoch(
        self, newer: World
    ) -> None:
        producer = newer.init()
        after = newer.end(producer, commit=False)
        assert after.producer_epoch == producer.producer_epoch + 1
        assert newer.write_markers().partitions == frozenset()
        once_more = newer.end(after, commit=False)
        newer.write_markers()
        assert once_more.producer_epoch == after.producer_epoch + 1
        commit = EndTransaction(ID, once_more, True, 2)
        assert newer.code(commit) is ErrorCode.INVALID_TXN_STATE

    def test_the_next_end_may_come_before_the_markers_are_written(self, newer: World) -> None:
        """Of a transaction that could not begin meanwhile: the producer only comes too early."""
        producer = newer.init()
        newer.add(producer, A)
        after = newer.end(producer)
        add = AddPartitions(ID, after, frozenset({A}), 2)
        abort = EndTransaction(ID, after, False, 2)
        assert newer.code(add) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert newer.code(abort) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert newer.write_markers().commit
        assert newer.run(abort).producer_epoch == after.producer_epoch + 1

    def test_version_2_gives_a_new_producer_id_when_the_epochs_are_used_up(
        self, newer: World
    ) -> None:
        newer.init()
        last = newer.exhaust()
        newer.add(last, A)
        after = newer.end(last)
        assert after.producer_epoch == 0
        assert after.producer_id != last.producer_id
        markers = newer.write_markers()
        assert markers.producer == Identity(last.producer_id, LAST_EPOCH + 1)
        assert newer.end(last) == after  # the answer got lost
        newer.add(after, B)

    def test_nobody_begins_a_transaction_in_the_epoch_that_fences_the_last_one(
        self, world: World
    ) -> None:
        last = world.exhaust()
        world.add(last, A)
        world.runner.advance(2 * MINUTE)
        world.write_markers()
        nobody = last._replace(producer_epoch=LAST_EPOCH + 1)
        assert world.transaction.producer_epoch == nobody.producer_epoch
        for command in (
            AddPartitions(ID, nobody, frozenset({A}), world.version),
            VerifyPartitions(ID, nobody, frozenset({A})),
            EndTransaction(ID, nobody, False, world.version),
        ):
            assert world.code(command) is ErrorCode.PRODUCER_FENCED
        assert world.init().producer_epoch == 0

    def test_the_next_producer_id_may_be_used_before_the_markers_are_written(
        self, newer: World
    ) -> None:
        """The producer was told of it when the end was decided: it only comes too early."""
        newer.init()
        last = newer.exhaust()
        newer.add(last, A)
        after = newer.end(last)
        for command in (
            AddPartitions(ID, after, frozenset({B}), 2),
            EndTransaction(ID, after, False, 2),
            InitProducer(ID, MINUTE, after),
        ):
            assert newer.code(command) is ErrorCode.CONCURRENT_TRANSACTIONS
        newer.write_markers()
        newer.add(after, B)
        assert newer.end(after) == Identity(after.producer_id, 1)

    def test_a_client_of_version_1_in_a_cluster_of_version_2(self, newer: World) -> None:
        producer = newer.init()
        newer.run(AddPartitions(ID, producer, frozenset({A})))
        assert newer.run(EndTransaction(ID, producer, True)) == producer
        assert newer.write_markers().version == 0


class TestTime:
    def test_a_transaction_that_is_open_for_too_long_is_aborted(self, world: World) -> None:
        producer = world.init(timeout_ms=MINUTE)
        world.add(producer, A)
        world.runner.advance(MINUTE - 1)
        assert world.transaction.state is State.ONGOING
        world.runner.advance(world.settings.abort_interval_ms + 1)
        assert world.transaction.state is State.PREPARE_ABORT
        assert world.write_markers().producer.producer_epoch == (
            producer.producer_epoch + world.version
        )
        for commit in (True, False):
            end = EndTransaction(ID, producer, commit, world.version)
            assert world.code(end) is ErrorCode.PRODUCER_FENCED

    def test_several_are_aborted_at_once(self, world: World) -> None:
        for number in range(3):
            name = f"id-{number}"
            producer = world.run(InitProducer(name, MINUTE))
            world.run(AddPartitions(name, producer, frozenset({A})))
        world.runner.advance(2 * MINUTE)
        assert len(world.runner.effects) == 3

    def test_one_that_cannot_be_written_does_not_stop_the_others(self, world: World) -> None:
        for number in range(3):
            name = f"id-{number}"
            producer = world.run(InitProducer(name, MINUTE))
            world.run(AddPartitions(name, producer, frozenset({A})))
        world.runner.advance(MINUTE)
        world.runner.failures = 1
        world.runner.advance(world.settings.abort_interval_ms)
        assert len(world.runner.effects) == 2
        world.runner.advance(world.settings.abort_interval_ms)
        assert len(world.runner.effects) == 3

    def test_many_are_looked_through_once(self, world: World) -> None:
        for number in range(100):
            name = f"id-{number}"
            producer = world.run(InitProducer(name, MINUTE))
            world.run(AddPartitions(name, producer, frozenset({A})))
        world.runner._check = None  # which looks through them as well
        looked: list[int] = []

        class Counted(dict[str, Transaction]):
            def values(self) -> ValuesView[Transaction]:
                looked.append(len(self))
                return super().values()

        world.runner.advance(MINUTE)
        world.runner.shard.transactions = Counted(world.runner.shard.transactions)
        world.runner.advance(world.settings.abort_interval_ms)
        assert len(world.runner.effects) == 100
        assert looked == [100]

    def test_a_decided_transaction_never_times_out(self, world: World) -> None:
        producer = world.init(timeout_ms=MINUTE)
        world.add(producer, A)
        world.end(producer)
        world.runner.advance(10 * MINUTE)
        assert world.transaction.state is State.PREPARE_COMMIT

    def test_an_id_without_activity_is_forgotten(self, world: World) -> None:
        producer = world.init()
        world.runner.advance(world.settings.id_expiration_ms + world.settings.expiry_interval_ms)
        assert ID not in world.runner.shard.transactions
        add = AddPartitions(ID, producer, frozenset({A}))
        assert world.code(add) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert world.init().producer_id != producer.producer_id

    def test_an_open_transaction_is_not_forgotten(self, world: World) -> None:
        producer = world.init(timeout_ms=2**31 - 1)
        world.add(producer, A)
        world.runner.advance(world.settings.id_expiration_ms + world.settings.expiry_interval_ms)
        assert ID in world.runner.shard.transactions


def test_a_record_that_cannot_be_read_does_not_harm_the_others() -> None:
    shard = TransactionShard(Settings())
    shard.replay(b"\0", b"")
    shard.replay(b"\0\0\0\1x", b"\0\7")
    shard.replay(b"\0\7", b"")
    assert not shard.transactions
