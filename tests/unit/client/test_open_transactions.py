"""Which transactions hang, among coordinators that move while they are asked."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.admin_transactions import (
    ProducerState,
    TransactionDescription,
    TransactionListing,
    Transactions,
)
from ottla.client.open_transactions import OpenTransaction, hanging
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import NO_LEADER

ORDERS = TopicPartition("orders", 0)
LISTED = TransactionListing("mine", 1, 7, "Ongoing")
OPEN = OpenTransaction(ORDERS, ProducerState(7, 0, 0, 0, None, 5))


class Told:
    """`Transactions` of one that is open; `lists` is what all brokers list, one look after the
    other, and `away` the partitions of the coordinators' log that nobody leads."""

    def __init__(self, *lists: tuple[TransactionListing, ...], away: tuple[int, ...] = ()) -> None:
        self._lists = iter(lists)
        self._away = away

    def without_coordinator(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition("__transaction_state", each) for each in self._away)

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


def test_nothing_hangs_as_long_as_a_coordinator_is_away_that_may_know_it() -> None:
    transactions: Any = Told((), (), away=(1,))
    with pytest.raises(KafkaError, match="__transaction_state-1 has no leader") as raised:
        hanging(transactions, [OPEN])
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_nobody_is_missed_for_a_transaction_that_is_known() -> None:
    transactions: Any = Told((LISTED,), away=(1,))
    assert hanging(transactions, [OPEN]) == []


@pytest.mark.parametrize(("leaders", "away"), [((1, NO_LEADER), [1]), ((1, 2), []), ((), [])])
def test_coordinators_are_away_where_nobody_leads_their_log(
    leaders: tuple[int, ...], away: list[int]
) -> None:
    partitions = [
        SimpleNamespace(partition_index=index, leader_id=leader)
        for index, leader in enumerate(leaders)
    ]
    told = {("__transaction_state",): [SimpleNamespace(partitions=partitions)]}
    router: Any = SimpleNamespace(metadata=lambda names: SimpleNamespace(topics=told[(*names,)]))
    assert [each.partition for each in Transactions(router).without_coordinator()] == away


def test_an_id_whose_coordinator_moves_meanwhile_is_listed_once() -> None:
    moved = TransactionListing("mine", 2, 7, "Ongoing")
    router: Any = SimpleNamespace(ask_each_node=lambda _ask: [[LISTED], [moved]])
    assert Transactions(router).list_transactions() == (moved,)
