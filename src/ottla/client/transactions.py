"""Transactions of a producer: everything sent in a block counts, or nothing of it does.

    with Producer(transactional_id="billing-1") as producer:
        with producer.transaction() as txn:
            txn.send("invoices", "...")
            txn.commit_offsets(consumer)

Leaving the block commits. An exception, Ctrl-C included, aborts, and goes on its way. Offsets of a
group are part of the transaction: with them, what was read counts as read exactly if what was made
of it counts.

librdkafka does the work; here is what it leaves to its caller. It has one kind of exception, and
three flags on it: they become types that say what to do. Its calls end early with "call again", so
that signals are seen in between; the call that commits is always brought to an end, because nobody
could tell afterwards what became of it. And it does not know which of its consumer's records are
in the transaction (`progress` does), nor whether that consumer is still a member of its group: to
a broker, one that was thrown out looks like a program that never joined, which may commit anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import confluent_kafka as rd

from ottla.client.errors import (
    AbortableTransactionError,
    ClientError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionError,
    TransactionInDoubtError,
    TransactionTimedOutError,
    translate,
)
from ottla.client.interrupts import Interrupts, undisturbed
from ottla.client.positions import check_offset, check_partition
from ottla.client.settings import LOGGER
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.client.consumer import Consumer
    from ottla.client.outbox import Outbox
    from ottla.client.producer import DeliveryCallback, Producer
    from ottla.client.records import Delivery, Headers

K = TypeVar("K")
V = TypeVar("V")

# One wait inside librdkafka; signals are handled in between.
_SLICE = 0.25
# Between two calls that librdkafka has refused at once.
_PAUSE = 0.05

_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
# What a group answers to somebody who is not a member any more, or not in that generation.
_NO_MEMBER = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
# What librdkafka calls a transaction with a record that was not stored: the end of it, and any call
# that comes when it knows of the record already.
_OF_A_RECORD = ("_INCONSISTENT", "_STATE")
_REWIND = "call rewind() of the consumer if its records are in it"

# When the last transaction of each id was aborted. Of the process and not of a producer: after many
# an abort a program goes on with a new producer, and with the consumer that it has.
_aborted: dict[str, float] = {}


class GroupOffsets(NamedTuple):
    """Offsets for a transaction, and on whose behalf."""

    offsets: dict[TopicPartition, int]
    metadata: Any
    """Group, member and generation, as librdkafka hands them from consumer to producer."""
    consumer: Consumer[Any, Any] | None


class Transactions:
    """The transactions of one producer, one after the other."""

    def __init__(
        self,
        outbox: Outbox,
        transactional_id: str,
        *,
        timeout: float,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transactional_id = transactional_id
        self._outbox = outbox
        self._timeout = timeout
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._initialized = False
        self._leftover = False  # one that could not be aborted yet
        self._dead: TransactionError | None = None
        # Of the present one.
        self.open = False
        self._begun = 0.0
        self._restore: list[Callable[[], None]] = []

    @property
    def aborted(self) -> float | None:
        """When the last transaction with this id was aborted, if one was."""
        return _aborted.get(self.transactional_id)

    # -- the life of one

    def initialize(self) -> None:
        """Take over the transactional id: what an earlier producer with it left open is aborted,
        and that producer can write no more."""
        if self._dead is not None:
            raise self._dead
        if self._initialized:
            return
        self._begun = self._clock()
        error = self._insist(self._outbox.producer.init_transactions)
        if error is not None:
            raise self._cannot_begin(error)
        self._initialized = True

    def begin(self) -> None:
        with self._lock:
            if self.open:
                raise RuntimeError(
                    f"{self.transactional_id!r} has an open transaction, and one at a time; "
                    f"another producer with another transactional_id can have one beside it"
                )
            self.open = True
        try:
            self.initialize()
            if self._leftover:
                self._abort_leftover()
            self._outbox.failure = None
            self._restore.clear()
            self._begun = self._clock()
            self._leftover = True  # if Ctrl-C comes from here on
            error = _attempt(lambda _: self._outbox.producer.begin_transaction(), 0.0)
            if error is not None:
                self._leftover = False
                raise self._classified(error)
        except BaseException:
            self.open = False
            raise

    def commit(self) -> None:
        """Returns when it is committed; else it is aborted, or nobody knows. Ctrl-C is raised when
        that is over; a second one does not wait for it."""
        if not self.open:
            raise RuntimeError("the producer was closed, which has aborted its transaction")
        try:
            with Interrupts() as interrupts:
                error = self._insist(
                    self._outbox.producer.commit_transaction, lambda: interrupts.count > 1
                )
        except BaseException as interrupt:  # somebody's own handler of signals
            self._in_doubt(ClientError(ErrorCode.REQUEST_TIMED_OUT, f"interrupted: {interrupt!r}"))
            raise
        finally:
            self.open = self._leftover = False
        if error is not None:
            raise self._end_badly(error)
        self._restore.clear()
        interrupts.check()

    def abandon(self) -> None:
        """Nobody will end what has begun; it is aborted before the next one."""
        self.open = False

    def abort(self) -> None:
        """Returns when it is aborted. If no broker answers, that is done before the next one begins
        (or by the coordinator, when the time of the transaction is over)."""
        if self.open:
            self.open = False
            self._abort()

    def _hand_back(self) -> None:
        """Nothing of it counts: consumers have the records in hand as before."""
        _aborted[self.transactional_id] = self._clock()
        for restore in self._restore:
            restore()
        self._restore.clear()

    def _abort(self) -> None:
        self._hand_back()
        if self._dead is not None:
            return  # whatever ended the producer has ended the transaction, or will
        self._leftover = True
        error = self._insist(self._outbox.producer.abort_transaction)
        self._outbox.take_unobserved()
        if error is None:
            self._leftover = False
            self._heal()
        elif not error.retriable:
            raise self._classified(error)
        else:
            LOGGER.warning(
                "the transaction of %r could not be aborted yet: %s",
                self.transactional_id,
                error.message,
            )

    def _heal(self) -> None:
        """Go on after a record that a broker has refused: librdkafka has counted it, the broker has
        not, and the next transaction would be aborted for the gap in the sequence numbers. The id
        is taken over again at once, while nobody else can have it."""
        failure = self._outbox.failure
        if failure is None or failure.local is not None:
            return
        self._outbox.failure = None
        self._initialized = False
        self._outbox.renew()
        with suppress(KafkaError):  # else it is tried again when the next one begins
            self.initialize()

    def _abort_leftover(self) -> None:
        error = self._insist(self._outbox.producer.abort_transaction)
        self._outbox.take_unobserved()
        if error is not None and error.local != "_STATE":  # else there was none
            raise self._cannot_begin(error) if error.retriable else self._classified(error)
        self._leftover = False

    # -- what is in it

    def send_offsets(self, given: GroupOffsets) -> None:
        """Make offsets of a group part of the transaction."""
        offsets = [rd.TopicPartition(*tp, offset) for tp, offset in given.offsets.items()]

        def send(timeout: float) -> None:
            self._outbox.producer.send_offsets_to_transaction(offsets, given.metadata, timeout)

        if not offsets:
            return
        error = self._insist(send)
        if error is not None:
            raise self._classified(error)
        if given.consumer is not None and given.consumer._inbox.progress is not None:
            self._restore.append(given.consumer._inbox.progress.commit(given.offsets))

    def refused(self, error: ClientError) -> KafkaError:
        """librdkafka has refused a record: because of the record, or of the transaction?"""
        if error.local not in ("_STATE", "_FATAL"):
            return error
        # The call that ends a transaction tells why it cannot; in this state it does nothing else.
        reason = _attempt(self._outbox.producer.commit_transaction, 0.0)
        return self._classified(error if reason is None else reason)

    # -- librdkafka

    def _insist(
        self, call: Callable[[float], None], hurry: Callable[[], bool] = lambda: False
    ) -> _Refusal | None:
        """Repeat a call until it is done or refused, or nobody has answered for long enough."""
        deadline = self._clock() + self._patience
        while True:
            begun = self._clock()
            left = max(0.0, deadline - begun)
            error = undisturbed(partial(_attempt, call), min(left, _SLICE))
            if error is None or not error.retriable or left <= 0 or hurry():
                return error
            if self._clock() - begun < _PAUSE:
                time.sleep(_PAUSE)

    # -- what it means

    def _end_badly(self, error: _Refusal) -> TransactionError:
        """A commit has not come to its end. Where the producer survives that, it aborts."""
        if error.retriable:
            return self._in_doubt(error)
        meaning = self._classified(error)
        if isinstance(meaning, AbortableTransactionError):
            self._abort()
        else:
            self._hand_back()
        return meaning

    def _classified(self, error: ClientError) -> TransactionError:
        """The type that says what to do; for a producer that is of no more use, always the same."""
        if self._dead is not None:
            return self._dead
        name = repr(self.transactional_id)
        fatal = error.fatal or error.local == "_FATAL"
        if fatal and error.code in _FENCED:
            age = self._clock() - self._begun
            if age >= self._timeout:
                self._dead = TransactionTimedOutError(
                    error,
                    f"the transaction of {name} was open for {age:.1f} s, longer than "
                    f"transaction_timeout={self._timeout:g}, so the coordinator has aborted it. "
                    f"Close this producer and make a new one; send less in one transaction, or "
                    f"allow more time",
                )
            else:
                self._dead = ProducerFencedError(
                    error,
                    f"another producer has taken over the transactional id {name}, or somebody has "
                    f"aborted its transaction (`ottla txn abort`): what this one had open does not "
                    f"count. Close this one and leave the work to the other; if both are wanted, "
                    f"each needs an id of its own",
                )
            return self._dead
        if fatal and error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            self._dead = FatalTransactionError(
                error,
                f"transaction_timeout={self._timeout:g} is longer than the brokers allow "
                f"(transaction.max.timeout.ms): close the producer with the transactional id "
                f"{name} and make a new one with a lower transaction_timeout",
            )
            return self._dead
        if fatal:
            self._dead = FatalTransactionError(
                error,
                f"the producer with the transactional id {name} cannot go on: {error.message}. "
                f"Nothing of its open transaction counts; close it and make a new one",
            )
            return self._dead
        failure = self._outbox.failure if error.code in _NO_MEMBER else self._wait_failure()
        reason = error.message
        if failure is not None and (error.local in _OF_A_RECORD or error.code is failure.code):
            error, reason = failure, f"a record was not stored: {failure.message or failure}"
        elif error.code in _NO_MEMBER:
            reason = f"the consumer has lost its place in the group, which has rebalanced: {reason}"
        return AbortableTransactionError(
            error,
            f"the transaction of {name} is aborted, nothing of it counts: {reason}. "
            f"To run it again with the same producer, {_REWIND}",
            () if failure is None else (failure,),
        )

    def _wait_failure(self) -> ClientError | None:
        """Which record was not stored and why, if that is it: it is told a moment later."""
        deadline = self._clock() + _SLICE
        while self._outbox.failure is None and (left := deadline - self._clock()) > 0:
            self._outbox.serve(left)
        return self._outbox.failure

    def objects(self, reason: str) -> AbortableTransactionError:
        """What is not librdkafka's to know makes a commit wrong."""
        return AbortableTransactionError(
            ClientError(ErrorCode.TRANSACTION_ABORTABLE),
            f"the transaction of {self.transactional_id!r} is aborted, nothing of it counts: "
            f"{reason}. To run it again with the same producer, {_REWIND}",
        )

    def _in_doubt(self, error: ClientError) -> TransactionError:
        self._dead = TransactionInDoubtError(
            error,
            f"nobody has told within {self._patience:g} s whether the transaction of "
            f"{self.transactional_id!r} is committed ({error.message}); it counts as a whole or "
            f"not at all. Close this producer and make a new one with the same id, whose first "
            f"transaction waits for the decision; then look at what is committed before anything "
            f"is done again",
        )
        return self._dead

    def _cannot_begin(self, error: _Refusal) -> KafkaError:
        if not error.retriable:
            return self._classified(error)
        return ClientError(
            error.code,
            f"no transaction of {self.transactional_id!r} could begin within {self._patience:g} s: "
            f"{error.message}",
            local=error.local,
            retriable=True,
        )


class Transaction(Generic[K, V]):
    """What is sent here counts when the `with` block ends, or not at all. Made by
    `Producer.transaction`."""

    def __init__(self, producer: Producer[K, V], transactions: Transactions) -> None:
        self._producer = producer
        self._transactions = transactions
        self._state = "not begun"
        self._objection: TransactionError | None = None

    def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Future[Delivery]:
        """As `Producer.send`. The future tells that the record is stored, which does not make it
        visible: the end of the transaction does. Nobody has to look at it: a transaction of which a
        record could not be stored is not committed."""
        check_open(self._state)
        record = self._producer._prepare(topic, value, key, partition, timestamp, headers)
        try:
            return self._producer._send(record, on_delivery)
        except ClientError as error:
            raise self._transactions.refused(error) from None

    def post(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Headers | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Send one record without a future, which is cheaper."""
        check_open(self._state)
        record = self._producer._prepare(topic, value, key, partition, timestamp, headers)
        try:
            self._producer._offer(record, on_delivery)
        except ClientError as error:
            raise self._transactions.refused(error) from None

    def commit_offsets(
        self,
        group: Consumer[Any, Any] | str,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets of a group with this transaction, and only with it.

        Given a consumer (with `auto_commit=False`), everything that it has given so far counts as
        read, or what `offsets` says: for each partition the offset to go on at. It raises
        `AbortableTransactionError` if the consumer is not a member of its group any more, or if
        partitions were taken away from it while their records were in hand. Given the name of a
        group, `offsets` are needed, and nobody looks whether the group has members.
        """
        check_open(self._state)
        try:
            if isinstance(group, str):
                chosen = named_group(group, offsets, self._producer._of_group)
            else:
                chosen = of_consumer(group, offsets, self._transactions)
            self._transactions.send_offsets(chosen)
        except TransactionError as error:
            self._objection = error  # the block may go on, but it is not committed
            raise

    def abort(self) -> None:
        """Give up what was sent here; nothing more can be sent until the block ends."""
        check_open(self._state)
        self._state = "aborted"
        self._transactions.abort()

    def __enter__(self) -> Self:
        if self._state != "not begun":
            raise RuntimeError("a transaction is used once; call transaction() for the next one")
        self._transactions.begin()
        self._state = "open"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._state != "open":
            return
        if error is None and self._objection is None:
            self._state = "committing"
            self._transactions.commit()
            self._state = "committed"
            return
        self._state = "aborted"
        abort_for(self._transactions, error)
        if error is None and self._objection is not None:
            raise self._objection


def check_open(state: str) -> None:
    if state == "not begun":
        raise RuntimeError("a transaction begins with `with producer.transaction() as txn:`")
    if state != "open":
        raise RuntimeError(f"the transaction is {state}; call transaction() for the next one")


def abort_for(transactions: Transactions, error: BaseException | None) -> None:
    """Abort because of `error`, which is what the caller gets to see; but if that is of a client,
    as that of a record's future, and the producer is of no more use, then what says so."""
    try:
        transactions.abort()
    except TransactionError as failure:
        if error is None or (isinstance(error, ClientError) and failure is not error):
            raise failure from error
        if failure is not error:
            error.add_note(f"{type(failure).__name__}: {failure.message}")


# -- whose offsets


def of_consumer(
    consumer: Consumer[Any, Any],
    offsets: Mapping[TopicPartition, int] | None,
    transactions: Transactions,
) -> GroupOffsets:
    """What a consumer has given, and its place in its group."""
    inbox = consumer._inbox
    progress = inbox.by_hand("commit_offsets()")
    objection = progress.objection(transactions.aborted)
    if objection is not None:
        raise transactions.objects(objection)
    chosen = inbox.to_commit() if offsets is None else _checked(offsets)
    if not chosen:
        return GroupOffsets({}, None, consumer)  # it may not be a member yet
    metadata = inbox.client.consumer_group_metadata()
    if inbox.as_stranger is not None and metadata == inbox.as_stranger:
        raise transactions.objects("the consumer is not a member of its group any more")
    if inbox.as_stranger is not None:
        foreign = sorted(chosen.keys() - set(consumer.assignment()))
        if foreign:
            raise transactions.objects(f"{foreign[0]} is not assigned to the consumer")
    return GroupOffsets(chosen, metadata, consumer)


def named_group(
    group: str,
    offsets: Mapping[TopicPartition, int] | None,
    metadata: Callable[[str], Any],
) -> GroupOffsets:
    """Offsets of a group that somebody keeps account of by himself."""
    if not group:
        raise ValueError("the name of a group is not empty")
    if offsets is None:
        raise ValueError(f"commit_offsets({group!r}, ...) needs the offsets, or give a Consumer")
    return GroupOffsets(_checked(offsets), metadata(group), None)


def stranger(group: str) -> Any:
    """What somebody says of himself to a group that he has not joined. librdkafka has a word for
    that only in the mouth of a consumer; this one has no broker to connect to."""
    consumer = rd.Consumer({"group.id": group, "log_level": 0})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _checked(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {check_partition(tp): check_offset(at) for tp, at in offsets.items()}


# -- librdkafka's word


class _Refusal(ClientError):
    """Why librdkafka has not done it."""


def _attempt(call: Callable[[float], None], timeout: float) -> _Refusal | None:
    try:
        call(timeout)
    except rd.KafkaException as exception:
        cause = exception.args[0]
        error = translate(cause)
        return _Refusal(
            error.code,
            error.message,
            local=error.local,
            # "retriable" is also said of codes whose transaction has to be aborted.
            retriable=cause.retriable() and not cause.txn_requires_abort(),
            fatal=error.fatal,
        )
    return None
