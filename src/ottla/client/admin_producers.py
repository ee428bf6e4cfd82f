"""What `Admin` does with transactions and their producers.

librdkafka has no request for it, so these methods speak for themselves (`admin_transactions`):
connections are made for the call and closed after it, as in `admin_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ottla.client.admin_groups import GroupAdmin
from ottla.client.admin_transactions import (
    ProducerIdentity,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    Transactions,
)
from ottla.client.errors import PartialFailureError
from ottla.client.positions import check_partition
from ottla.client.router import Router
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition


class ProducerAdmin(GroupAdmin):
    """The part of `Admin` that is about transactions."""

    def list_transactions(
        self,
        *,
        states: str | Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        open_longer_than: float | None = None,
        pattern: str | None = None,
    ) -> tuple[TransactionListing, ...]:
        """All transactional ids, or those that every filter lets through: states ("Ongoing",
        "PrepareCommit"), producers, seconds since the transaction began, a pattern (RE2) of the
        whole id."""
        if open_longer_than is not None and open_longer_than < 0:
            raise ValueError(f"open_longer_than is a number of seconds, not {open_longer_than}")
        longer_ms = -1 if open_longer_than is None else round(open_longer_than * 1000)
        with self._transactions() as transactions:
            return transactions.list_transactions(
                states=[states] if isinstance(states, str) else states,
                producer_ids=producer_ids,
                open_longer_than_ms=longer_ms,
                pattern=pattern,
            )

    def describe_transactions(self, *names: str) -> dict[str, TransactionDescription]:
        """These transactional ids, each with its producer and its last transaction."""
        found: dict[str, TransactionDescription] = {}
        failures: dict[str, KafkaError] = {}
        with self._transactions() as transactions:
            for name in names:
                try:
                    found |= transactions.describe(name)
                except KafkaError as error:
                    failures[name] = _explained(name, error)
        _raise(failures, len(names))
        return found

    def describe_producers(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]],
        *,
        broker: int | None = None,
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that partitions remember, as their leaders have them, or as the replicas
        on one broker do."""
        chosen = [check_partition(tp) for tp in partitions]
        found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        failures: dict[str, KafkaError] = {}
        with self._transactions() as transactions:
            for tp, states in transactions.producers(chosen, broker=broker).items():
                if isinstance(states, KafkaError):
                    failures[str(tp)] = states
                else:
                    found[tp] = states
        _raise(failures, len(chosen))
        return found

    def abort_transaction(
        self, partition: TopicPartition | tuple[str, int], producer: ProducerState
    ) -> None:
        """End a transaction that hangs, in one partition and past its coordinator; `producer` is
        what `describe_producers` says of it. For a transaction that a coordinator knows there is
        `fence_producers`: written here, its producer would go on without noticing."""
        with self._transactions() as transactions:
            transactions.abort(
                check_partition(partition),
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=producer.coordinator_epoch or 0,
            )

    def fence_producers(self, *names: str) -> dict[str, ProducerIdentity]:
        """Shut out the producers of transactional ids, and have what they have open aborted;
        returns when that is done. An id that is not known is made."""
        found: dict[str, ProducerIdentity] = {}
        failures: dict[str, KafkaError] = {}
        with self._transactions() as transactions:
            for name in names:
                try:
                    found[name] = transactions.fence(name)
                except KafkaError as error:
                    failures[name] = error
        _raise(failures, len(names))
        return found

    @contextmanager
    def _transactions(self) -> Iterator[Transactions]:
        with Router(
            self._bootstrap,
            timeout=self._timeout,
            client_id=self._client_id,
            config=self._security,
        ) as router:
            yield Transactions(router, timeout=self._timeout)


def _explained(name: str, error: KafkaError) -> KafkaError:
    if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return KafkaError(error.code, f"there is no transactional id {name!r}")
    return error


def _raise(failures: dict[str, KafkaError], asked: int) -> None:
    """What went wrong: one error for one question, else all of them by name."""
    if len(failures) == 1 and asked == 1:
        raise next(iter(failures.values()))
    if failures:
        raise PartialFailureError(failures)
