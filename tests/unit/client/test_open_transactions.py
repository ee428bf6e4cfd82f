"""Which transactions hang, among coordinators that move while they are asked."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ottla.client.admin_transactions import (
    ProducerState,
    TransactionDescription,
    TransactionListing,
    Transactions,
)
from ottla.client.open_transactions import OpenTransaction, hanging
from ottla.model.ids import TopicPartition

ORDERS = TopicPartition("orders", 0)
LISTED = TransactionListing("mine", 1, 7, "Ongoing")
OPEN = OpenTransaction(ORDERS, ProducerState(7, 0, 0, 0, None, 5))


class Told:
    """`Transactions` of one that is open; `lists` is what all brokers list, one look after the
    other."""

    def __init__(self, *lists: tuple[TransactionListing, ...]) -> None:
        self._lists = iter(lists)

    def list_transactions(self, **_filters: Any) -> tuple[TransactionListing, ...]:
        return next(self._lists)

    def describe(self, name: str) -> dict[str, TransactionDescription]:
        found = TransactionDescription(name, 1, "Ongoing", 7, 0, 60_000, 0, (ORDERS,))
        return {name: found}

    def producers(self, partitions: Iterable[TopicPartition], **_options: Any) -> dict[Any, Any]:
        return dict.fromkeys(partitions, (OPEN.producer,))


def test_a_transaction_hangs_if_nobody_knows_it() -> None:
    transactions: Any = Told((), ())
    assert hanging(transactions, [OPEN]) == [OPEN]


def test_a_transaction_does_not_hang_if_its_coordinator_moved_while_brokers_were_asked() -> None:
    transactions: Any = Told((), (LISTED,))
    assert hanging(transactions, [OPEN]) == []


def test_an_id_whose_coordinator_moves_meanwhile_is_listed_once() -> None:
    moved = TransactionListing("mine", 2, 7, "Ongoing")
    router: Any = SimpleNamespace(ask_each_node=lambda _ask: [[LISTED], [moved]])
    assert Transactions(router).list_transactions() == (moved,)
