"""What `ottla txn` says in words about transactions that keep others waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.live import age
from ottla.cli.names import nearest
from ottla.cli.output import count, grouped
from ottla.errors import ErrorCode, KafkaError
from ottla.model.topic import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.client.admin_transactions import TransactionDescription, Transactions
    from ottla.client.open_transactions import HoldUp, OpenTransaction


@dataclass(frozen=True, slots=True)
class Ages:
    """How long things have been so, as of one moment; None for what is not open."""

    now_ms: int

    def open(self, found: TransactionDescription) -> float | None:
        """Seconds since a transaction began that is not over."""
        if found.started_ms is None or not (found.is_ongoing or found.is_decided):
            return None
        return max(0.0, (self.now_ms - found.started_ms) / 1000)

    def left(self, found: TransactionDescription) -> float | None:
        """Seconds until its coordinator aborts it; a decided one does not time out."""
        if found.started_ms is None or not found.is_ongoing:
            return None
        return max(0.0, (found.started_ms + found.timeout_ms - self.now_ms) / 1000)

    def idle(self, opened: OpenTransaction) -> float:
        """Seconds since its producer last wrote to the partition."""
        return max(0.0, (self.now_ms - opened.producer.last_timestamp) / 1000)


def sentence(hold: HoldUp, ages: Ages) -> str:
    """Who waits where, for whom, and how long still."""
    whom = _whom(hold, ages)
    where = str(hold.partition)
    if hold.partition.topic in INTERNAL_TOPICS:
        return f"groups kept in {where} wait for offsets that are committed with {whom}"
    if hold.behind is not None:
        first = hold.behind.producer.producer_id
        return (
            f"consumers with read_committed of {where} wait at offset {grouped(hold.offset)}; from "
            f"offset {grouped(hold.open.start_offset)} on also, once the transaction of producer "
            f"{first} is over, for {whom}"
        )
    return (
        f"consumers with read_committed of {where} wait at offset {grouped(hold.offset)} "
        f"({count(hold.held, 'offset')}), for {whom}"
    )


def _whom(hold: HoldUp, ages: Ages) -> str:
    found = hold.transaction
    if found is None:
        tp = hold.partition
        return (
            f"a transaction of producer {hold.open.producer.producer_id} that no coordinator will "
            f"end, last written to {age(ages.idle(hold.open))} ago: `ottla txn abort -t {tp.topic} "
            f"-p {tp.partition} -o {hold.open.start_offset}` ends it"
        )
    name = f"transaction {found.transactional_id!r} of producer {found.producer_id}"
    if found.is_decided:
        end = "committed" if found.state == "PrepareCommit" else "aborted"
        return f"{name}, which is {end} and whose marker has yet to come"
    left = ages.left(found)
    ending = f"times out in {age(left)}" if left else "has timed out and is about to be aborted"
    return f"{name}, open for {age(ages.open(found))}, {ending}"


def no_transaction(transactions: Transactions, name: str, error: KafkaError) -> KafkaError:
    """Why a transactional id cannot be described, and what to do."""
    if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return KafkaError(
            error.code,
            f"{name!r} has no coordinator now: nobody leads its partition of "
            f"__transaction_state; `ottla cluster status` tells why",
        )
    if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return error
    known = (each.transactional_id for each in transactions.list_transactions())
    near = nearest(name, known)
    hint = "" if near is None else f"did you mean {near!r}? Otherwise "
    return KafkaError(
        error.code,
        f"there is no transactional id {name!r}; {hint}`ottla txn list` shows those there are",
    )
