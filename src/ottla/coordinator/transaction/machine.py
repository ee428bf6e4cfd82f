"""TransactionShard: the transactions of one partition of `__transaction_state`. No I/O.

It implements `coordinator.shard.Shard`. A command finds the transaction as the log has it, decides
by Kafka's rules, and writes the whole transaction as one record; only `replay` changes anything.
A decision to commit or abort has an effect, `WriteMarkers`, that the host passes on when the record
is committed, never before: a marker that is written cannot be taken back.

The rules are those of Kafka 4.2's TransactionCoordinator and TransactionMetadata. A transition that
is under way there (its append is not yet answered) has no counterpart here: append and replay are
one step, and whoever asks about the same id waits until both are committed.

- InitProducerId raises the epoch, so that the producer before is fenced. It aborts what that one
  had open and answers CONCURRENT_TRANSACTIONS: the client tries again when the markers are written.
- A producer that names its identity goes on with it: its epoch is raised too, or, if that was done
  already and the answer got lost, told once more. Another identity is PRODUCER_FENCED.
- Epochs end at 32766; a producer that has used them up gets a new id.
- Under transaction version 2 every end raises the epoch, and the answer says so. EndTxn with the
  epoch before is the same request once more. An abort without a transaction raises the epoch, too.
- A transaction that is open for longer than its time-out is aborted, with a new epoch. This and
  InitProducerId raise the epoch by two under version 2: whoever is fenced must not take it for an
  end of its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from ottla.coordinator.shard import Answer, Deadlines, Now, Result
from ottla.coordinator.transaction import journal
from ottla.coordinator.transaction.state import (
    LAST_EPOCH,
    NEEDS_PRODUCER_ID,
    NO_TIME,
    RAISES_EPOCH,
    TRANSACTIONS_TOPIC,
    AddPartitions,
    Complete,
    Counts,
    DescribeTransaction,
    EndTransaction,
    Identity,
    InitProducer,
    ListTransactions,
    Resume,
    State,
    Timer,
    Transaction,
    VerifyPartitions,
    WriteMarkers,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

logger = logging.getLogger(__name__)


class Settings(Protocol):
    """What of the settings, and of the cluster's features, the machine reads; always the newest."""

    @property
    def transaction_version(self) -> int: ...
    @property
    def abort_interval_ms(self) -> int: ...
    @property
    def expiry_interval_ms(self) -> int: ...
    @property
    def id_expiration_ms(self) -> int: ...


class TransactionShard:
    """One shard; implements `coordinator.shard.Shard`."""

    def __init__(self, settings: Settings, counts: Counts | None = None) -> None:
        self._settings = settings
        self._counts = counts or Counts()
        self.transactions: dict[str, Transaction] = {}
        self._deadlines: Deadlines[Timer] = Deadlines()
        # The epochs before the present ones, for InitProducerId sent again. Not kept over a load.
        self._last_epochs: dict[str, int] = {}
        self._commands: dict[type, Callable[[Any, Now], Result]] = {
            InitProducer: self._init,
            AddPartitions: self._add,
            VerifyPartitions: self._verify,
            EndTransaction: self._end,
            Complete: self._complete,
            Resume: self._resume,
            DescribeTransaction: self._describe,
            ListTransactions: self._list,
            Timer: self._timeout,
        }

    # ------------------------------------------------------------------ Shard

    def handle(self, command: Any, now: Now) -> Result:
        return self._commands[type(command)](command, now)

    def subject(self, command: Any) -> str | None:
        """The transactional id; time-outs are about all of them."""
        return getattr(command, "transactional_id", None)

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int = -1,
        producer_id: int = -1,
        meaning: Any = None,
    ) -> None:
        try:
            transactional_id = journal.decode_key(key)
            if transactional_id is None:
                return
            if value is None:
                self.transactions.pop(transactional_id, None)
                self._last_epochs.pop(transactional_id, None)
            else:
                found = journal.decode_value(transactional_id, value)
                self.transactions[transactional_id] = found
        except ValueError as error:
            # As with groups: one that cannot be read must not take the others along.
            logger.error(
                "a record of the transactions' log at offset %d is unreadable: %s", offset, error
            )

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Nothing in this log is written in a transaction."""

    def loaded(self, now: Now) -> Iterable[Any]:
        settings = self._settings
        self._deadlines.set(Timer.ABORT_TIMED_OUT, now.ms + settings.abort_interval_ms)
        self._deadlines.set(Timer.EXPIRE_IDS, now.ms + settings.expiry_interval_ms)
        return [
            Resume(transaction.transactional_id)
            for transaction in self.transactions.values()
            if transaction.state.is_prepared
        ]

    @property
    def next_due_ms(self) -> int | None:
        return self._deadlines.next_ms

    def due(self, now: Now) -> list[Any]:
        return list(self._deadlines.pop_due(now.ms))

    def unload(self, error: KafkaError) -> list[Answer]:
        return []

    def validate(self) -> None:
        """Assert the invariants; for tests."""
        for transactional_id, transaction in self.transactions.items():
            assert transaction.transactional_id == transactional_id
            assert transaction.producer_id >= 0
            assert 0 <= transaction.producer_epoch <= LAST_EPOCH + 1
            assert bool(transaction.partitions) <= (not transaction.state.is_idle)
            assert (transaction.state is State.EMPTY) == (transaction.started_ms == NO_TIME)

    # ------------------------------------------------------------------ beginning

    def _init(self, command: InitProducer, now: Now) -> Result:
        found = self.transactions.get(command.transactional_id)
        expected = command.expected
        if found is None:
            if command.new_producer_id is None:
                return Result(NEEDS_PRODUCER_ID)
            found = Transaction(command.transactional_id, command.new_producer_id)
        elif found.state.is_prepared:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif expected is not None and not self._may_go_on(found, expected):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if found.state is State.ONGOING:
            if expected not in (None, (found.producer_id, found.producer_epoch)):
                # Kafka aborts the transaction of the one who has taken over, and refuses this then.
                raise KafkaError(ErrorCode.PRODUCER_FENCED)
            fenced = self._fence(found, now)
            fenced.reply = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            return fenced
        begun = replace(
            found,
            timeout_ms=command.timeout_ms,
            state=State.EMPTY,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now.wall_ms,
            next_producer_id=NO_PRODUCER_ID,
        )
        last = NO_PRODUCER_EPOCH
        if found.is_exhausted and (
            expected is None or expected.producer_epoch == found.producer_epoch
        ):
            if command.new_producer_id is None:
                return Result(NEEDS_PRODUCER_ID)
            begun = replace(
                begun,
                producer_id=command.new_producer_id,
                producer_epoch=0,
                previous_producer_id=found.producer_id,
            )
            if expected is not None:
                last = found.producer_epoch
        else:
            epoch, last = self._next_epoch(found, expected)
            begun = replace(begun, producer_epoch=epoch)
        return self._change(
            begun, Identity(begun.producer_id, begun.producer_epoch), last_epoch=last
        )

    def _may_go_on(self, found: Transaction, expected: Identity) -> bool:
        return expected.producer_id == found.producer_id or (
            expected.producer_id == found.previous_producer_id
            and expected.producer_epoch >= LAST_EPOCH
        )

    def _next_epoch(self, found: Transaction, expected: Identity | None) -> tuple[int, int]:
        """The epoch of a producer that begins, and the one before if it has named that."""
        present = found.producer_epoch
        if expected is None:
            return present + 1, NO_PRODUCER_EPOCH
        if present in (NO_PRODUCER_EPOCH, expected.producer_epoch):
            return present + 1, present
        last = self._last_epochs.get(found.transactional_id, NO_PRODUCER_EPOCH)
        if expected.producer_epoch == last:
            return present, last  # raised already: the answer got lost
        raise KafkaError(ErrorCode.PRODUCER_FENCED)

    # ------------------------------------------------------------------ partitions

    def _add(self, command: AddPartitions, now: Now) -> Result:
        found = self._known(command.transactional_id, command.producer)
        if any(partition.topic == TRANSACTIONS_TOPIC for partition in command.partitions):
            # It takes no markers: the transaction could never be completed.
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if found.state.is_prepared:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if found.state is State.ONGOING and command.partitions <= found.partitions:
            return Result(ErrorCode.NONE)
        started_ms = found.started_ms if found.state is State.ONGOING else now.wall_ms
        return self._change(
            replace(
                found,
                state=State.ONGOING,
                partitions=found.partitions | command.partitions,
                started_ms=started_ms,
                updated_ms=now.wall_ms,
                client_version=command.client_version,
            ),
            ErrorCode.NONE,
            last_epoch=self._last_epochs.get(found.transactional_id, NO_PRODUCER_EPOCH),
        )

    def _verify(self, command: VerifyPartitions, now: Now) -> Result:
        found = self._known(command.transactional_id, command.producer)
        if found.state.is_prepared:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        outcome: dict[TopicPartition, ErrorCode] = {}
        for partition in command.partitions:
            included = partition in found.partitions
            outcome[partition] = ErrorCode.NONE if included else ErrorCode.TRANSACTION_ABORTABLE
        return Result(outcome)

    def _known(self, transactional_id: str, producer: Identity) -> Transaction:
        found = self.transactions.get(transactional_id)
        if found is not None and found.leads_to(producer):
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if found is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        self._check_producer(found, producer)
        return found

    def _check_producer(self, found: Transaction, producer: Identity) -> None:
        if producer.producer_id != found.producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        # The epoch that fences the last one is nobody's: a transaction in it could not be ended,
        # since there is none for the marker.
        if found.producer_epoch != producer.producer_epoch or producer.producer_epoch > LAST_EPOCH:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)

    # ------------------------------------------------------------------ ending

    def _end(self, command: EndTransaction, now: Now) -> Result:
        found = self.transactions.get(command.transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if found.leads_to(command.producer):
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        raises = command.client_version >= RAISES_EPOCH
        repeated = raises and self._is_repeated(found, command.producer)
        if not repeated:
            self._check_producer(found, command.producer)
        if found.state.is_prepared:
            # By the same end or the other one, or already by that of the next transaction.
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        same_outcome = command.commit is (found.state is State.COMPLETE_COMMIT)
        if found.state is State.ONGOING:
            return self._decide(found, command, now)
        if found.state is not State.EMPTY and (repeated or not raises):
            if same_outcome:
                return Result(Identity(found.producer_id, found.producer_epoch))
        elif raises and not command.commit:
            return self._decide(found, command, now)
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"the transaction of {found.transactional_id} is in state {found.state.name} and "
            f"cannot be {'committed' if command.commit else 'aborted'}",
        )

    def _is_repeated(self, found: Transaction, producer: Identity) -> bool:
        """Whether this end was asked for already, and raised the epoch."""
        if not found.raises_epoch or found.state not in (
            State.PREPARE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_COMMIT, State.COMPLETE_ABORT,
        ):  # fmt: skip
            return False
        if found.producer_id == producer.producer_id:
            if found.producer_epoch > LAST_EPOCH and found.next_producer_id == NO_PRODUCER_ID:
                return False  # fenced in its last epoch: its own end would have led to another id
            return found.producer_epoch == producer.producer_epoch + 1
        return (
            not found.state.is_prepared
            and found.previous_producer_id == producer.producer_id
            and found.producer_epoch == 0
            and producer.producer_epoch == LAST_EPOCH
        )

    def _decide(self, found: Transaction, command: EndTransaction, now: Now) -> Result:
        """Commit or abort; without a transaction, only raise the epoch."""
        raises = command.client_version >= RAISES_EPOCH
        following = NO_PRODUCER_ID
        if raises and found.is_exhausted:
            if command.new_producer_id is None:
                return Result(NEEDS_PRODUCER_ID)
            following = command.new_producer_id
        last = self._last_epochs.get(found.transactional_id, NO_PRODUCER_EPOCH)
        prepared = replace(
            found,
            state=State.PREPARE_COMMIT if command.commit else State.PREPARE_ABORT,
            producer_epoch=found.producer_epoch + 1 if raises else found.producer_epoch,
            started_ms=found.started_ms if found.state is State.ONGOING else now.wall_ms,
            updated_ms=now.wall_ms,
            next_producer_id=following,
            client_version=command.client_version,
        )
        # What the producer is from now on: with used up epochs that shows when the end is complete.
        identity = (
            Identity(following, 0)
            if following != NO_PRODUCER_ID
            else Identity(prepared.producer_id, prepared.producer_epoch)
        )
        result = self._change(
            prepared, identity, last_epoch=found.producer_epoch if raises else last
        )
        result.effects = (_markers(prepared),)
        result.must_fit = True
        return result

    def _fence(self, found: Transaction, now: Now) -> Result:
        """Abort what is open, under an epoch that its producer does not have. Nor does it expect
        that one: under version 2 the next epoch is what an end by the producer itself leads to."""
        version = self._settings.transaction_version
        epoch = found.producer_epoch + (2 if version >= RAISES_EPOCH else 1)
        prepared = replace(
            found,
            state=State.PREPARE_ABORT,
            producer_epoch=min(epoch, LAST_EPOCH + 1),
            updated_ms=now.wall_ms,
            client_version=version,
        )
        result = self._change(prepared, None, last_epoch=NO_PRODUCER_EPOCH)
        result.effects = (_markers(prepared),)
        result.must_fit = True
        return result

    def _complete(self, command: Complete, now: Now) -> Result:
        found = self.transactions.get(command.transactional_id)
        if (
            found is None
            or not found.state.is_prepared
            or (found.producer_id, found.producer_epoch) != command.producer
            or found.updated_ms != command.decided_ms
        ):
            return Result()  # it is completed: by the next coordinator, or this is told once more
        done = State.COMPLETE_COMMIT
        if found.state is State.PREPARE_ABORT:
            done = State.COMPLETE_ABORT
        completed = replace(found, state=done, partitions=frozenset(), updated_ms=now.wall_ms)
        if found.next_producer_id != NO_PRODUCER_ID:
            completed = replace(
                completed,
                producer_id=found.next_producer_id,
                producer_epoch=0,
                previous_producer_id=found.producer_id,
                next_producer_id=NO_PRODUCER_ID,
            )
        last = self._last_epochs.get(found.transactional_id, NO_PRODUCER_EPOCH)
        return self._change(completed, None, last_epoch=last)

    def _resume(self, command: Resume, now: Now) -> Result:
        found = self.transactions.get(command.transactional_id)
        if found is None or not found.state.is_prepared:
            return Result()
        return Result(effects=(_markers(found),))

    # ------------------------------------------------------------------ looking

    def _describe(self, command: DescribeTransaction, now: Now) -> Result:
        found = self.transactions.get(command.transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return Result(found)

    def _list(self, command: ListTransactions, now: Now) -> Result:
        return Result(list(self.transactions.values()))

    # ------------------------------------------------------------------ time

    def _timeout(self, timer: Timer, now: Now) -> Result:
        if timer is Timer.ABORT_TIMED_OUT:
            self._deadlines.set(timer, now.ms + self._settings.abort_interval_ms)
            return self._abort_timed_out(now)
        self._deadlines.set(timer, now.ms + self._settings.expiry_interval_ms)
        return self._expire(now)

    def _abort_timed_out(self, now: Now) -> Result:
        late = deque(
            found.transactional_id
            for found in self.transactions.values()
            if found.state is State.ONGOING and found.started_ms + found.timeout_ms < now.wall_ms
        )
        return self._abort_next(late, now)

    def _abort_next(self, late: deque[str], now: Now) -> Result:
        """One after the other, all of them: one that cannot be written does not stop the others."""
        if not late:
            return Result()
        found = self.transactions[late.popleft()]
        logger.info(
            "transaction of %s is aborted: it was open for longer than its %d ms",
            found.transactional_id,
            found.timeout_ms,
        )
        fenced = self._fence(found, now)
        note = fenced.after

        def after(error: KafkaError | None, now: Now) -> Result:
            if note is not None:
                note(error, now)
            self._counts.timed_out += error is None
            return self._abort_next(late, now)

        fenced.after = after
        return fenced

    def _expire(self, now: Now) -> Result:
        expiration_ms = self._settings.id_expiration_ms
        gone = [
            found.transactional_id
            for found in self.transactions.values()
            if found.state.is_idle and found.updated_ms + expiration_ms <= now.wall_ms
        ]
        return Result(records=[journal.tombstone(each) for each in gone], atomic=False)

    # ------------------------------------------------------------------ writing

    def _change(self, transaction: Transaction, reply: Any, *, last_epoch: int) -> Result:
        def after(error: KafkaError | None, now: Now) -> Result | None:
            if error is None:
                self._last_epochs[transaction.transactional_id] = last_epoch
            return None

        record = journal.transaction(transaction, self._settings.transaction_version)
        return Result(reply, [record], after=after)


def _markers(prepared: Transaction) -> WriteMarkers:
    return WriteMarkers(
        prepared.transactional_id,
        Identity(prepared.producer_id, prepared.producer_epoch),
        prepared.state is State.PREPARE_COMMIT,
        prepared.partitions,
        prepared.client_version,
        prepared.updated_ms,
    )
