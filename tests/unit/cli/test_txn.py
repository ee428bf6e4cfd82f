"""What `ottla txn` makes of what coordinators and partitions say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ottla.cli import txn_abort
from ottla.cli.txn_words import Ages, no_transaction, sentence
from ottla.client.admin_transactions import (
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.open_transactions import HoldUp, OpenTransaction, hanging
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

NOW = Ages(112_000)
ORDERS = TopicPartition("orders", 0)
OPEN = TransactionDescription("tx-1", 1, "Ongoing", 7, 0, 60_000, 100_000, (ORDERS,))
PRODUCER = ProducerState(7, 0, 3, 110_000, None, 42)
HELD = HoldUp(OpenTransaction(ORDERS, PRODUCER), 42, 8, None, OPEN)


class Cluster:
    """Says what it is told to: of coordinators, and of partitions, each time they are asked."""

    def __init__(
        self,
        known: Iterable[TransactionDescription] = (),
        opened: Iterable[Iterable[OpenTransaction]] = (),
    ) -> None:
        self.known = {each.transactional_id: each for each in known}
        self.opened = [list(each) for each in opened]
        self.fenced: list[str] = []

    def list_transactions(self, **_: Any) -> tuple[TransactionListing, ...]:
        return tuple(
            TransactionListing(each.transactional_id, 1, each.producer_id, each.state)
            for each in self.known.values()
        )

    def describe(self, name: str) -> dict[str, TransactionDescription]:
        if name not in self.known:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return {name: self.known[name]}

    def producers(self, partitions: Any, *, broker: int | None = None) -> Any:
        now = self.opened.pop(0)
        return {
            tp: tuple(each.producer for each in now if each.partition == tp) for tp in partitions
        }

    def without_coordinator(self) -> tuple[TopicPartition, ...]:
        return ()

    def fence(self, name: str, *, timeout_ms: int) -> tuple[int, int]:
        self.fenced.append(name)
        return 7, 2


def test_a_sentence_says_who_waits_where_for_whom_and_how_long() -> None:
    assert sentence(HELD, NOW) == (
        "consumers with read_committed of orders-0 wait at offset 42 (8 offsets), for transaction "
        "'tx-1' of producer 7, open for 12 s, times out in 48 s"
    )


def test_a_transaction_that_is_overdue_is_said_to_be_aborted_soon() -> None:
    assert sentence(HELD, Ages(200_000)).endswith(
        "open for 1 min 40 s, has timed out and is about to be aborted"
    )


@pytest.mark.parametrize(
    ("state", "end"), [("PrepareCommit", "committed"), ("PrepareAbort", "aborted")]
)
def test_a_decided_transaction_waits_for_its_marker(state: str, end: str) -> None:
    decided = replace(HELD, transaction=replace(OPEN, state=state))
    assert sentence(decided, NOW).endswith(f"which is {end} and whose marker has yet to come")


def test_one_behind_another_names_that() -> None:
    first = OpenTransaction(ORDERS, replace(PRODUCER, producer_id=6, txn_start_offset=30))
    behind = replace(HELD, offset=30, behind=first)
    assert sentence(behind, NOW) == (
        "consumers with read_committed of orders-0 wait at offset 30; from offset 42 on also, once "
        "the transaction of producer 6 is over, for transaction 'tx-1' of producer 7, open for "
        "12 s, times out in 48 s"
    )


def test_offsets_of_groups_have_their_own_sentence() -> None:
    offsets = TopicPartition("__consumer_offsets", 12)
    held = replace(HELD, open=OpenTransaction(offsets, PRODUCER))
    assert sentence(held, NOW).startswith(
        "groups kept in __consumer_offsets-12 wait for offsets that are committed with transaction "
        "'tx-1'"
    )


def test_a_commit_that_is_under_way_is_not_aborted() -> None:
    cluster: Any = Cluster([replace(OPEN, state="PrepareCommit")])
    with pytest.raises(KafkaError) as refused:
        txn_abort._by_coordinator(cluster, "tx-1", as_json=False)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert "'tx-1' is being committed, which cannot be undone" in (refused.value.message or "")
    assert "only the markers in orders-0 are missing" in (refused.value.message or "")
    assert cluster.fenced == []


def test_an_abort_that_is_under_way_is_waited_for() -> None:
    cluster: Any = Cluster([replace(OPEN, state="PrepareAbort")])
    txn_abort._by_coordinator(cluster, "tx-1", as_json=False)
    assert cluster.fenced == ["tx-1"]


def test_without_a_coordinator_one_is_told_where_to_look() -> None:
    cluster: Any = Cluster()
    error = no_transaction(cluster, "tx-1", KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert error.message == (
        "'tx-1' has no coordinator now: nobody leads its partition of __transaction_state; "
        "`ottla cluster status` tells why"
    )


class TestHanging:
    OPENED = OpenTransaction(ORDERS, PRODUCER)

    def test_what_its_coordinator_will_end_does_not_hang(self) -> None:
        cluster: Any = Cluster([OPEN], [[self.OPENED]])
        assert hanging(cluster, [self.OPENED]) == []

    def test_what_no_coordinator_knows_hangs(self) -> None:
        cluster: Any = Cluster([], [[self.OPENED]])
        assert hanging(cluster, [self.OPENED]) == [self.OPENED]

    def test_what_its_coordinator_has_in_another_partition_hangs(self) -> None:
        elsewhere = replace(OPEN, partitions=(TopicPartition("stock", 0),))
        cluster: Any = Cluster([elsewhere], [[self.OPENED]])
        assert hanging(cluster, [self.OPENED]) == [self.OPENED]

    def test_what_ended_between_two_questions_does_not_hang(self) -> None:
        done = replace(OPEN, state="CompleteCommit", partitions=())
        cluster: Any = Cluster([done], [[]])
        assert hanging(cluster, [self.OPENED]) == []

    def test_nor_the_next_transaction_of_the_same_producer(self) -> None:
        done = replace(OPEN, state="CompleteCommit", partitions=())
        following = OpenTransaction(ORDERS, replace(PRODUCER, txn_start_offset=50))
        cluster: Any = Cluster([done], [[following]])
        assert hanging(cluster, [self.OPENED]) == []
