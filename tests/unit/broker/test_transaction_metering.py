"""What is counted of transactions, and which of them are late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.transaction_metering import LATE_MS, TURN, TransactionNumbers
from ottla.coordinator.transaction.state import State, Transaction
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER, PartitionState, Topic
from ottla.storage.producers import ProducerState

MAX_TIMEOUT_MS = 900_000
NOW_MS = 10_000_000
LED = PartitionState(1, 0, 0, (1,), (1,))
LOST = PartitionState(NO_LEADER, 0, 0, (2,), (2,))


def partition(*producers: ProducerState, end: int = 100) -> Any:
    starts = [each.txn_start_offset for each in producers if each.txn_start_offset >= 0]
    return SimpleNamespace(
        high_watermark=end,
        last_stable_offset=lambda: min(starts, default=end),
        log=SimpleNamespace(producers=lambda: list(producers)),
    )


def counted(
    *transactions: Transaction, led: tuple[Any, ...] = ()
) -> tuple[TransactionNumbers, int]:
    topic = Topic("t", TopicId(bytes(16)), (LED, LOST), {})
    services = SimpleNamespace(
        image=ClusterImage(topics={"t": topic}),
        transactions=SimpleNamespace(held=lambda: list(transactions)),
        clock=SimpleNamespace(now_ms=lambda: NOW_MS),
        config=SimpleNamespace(transaction_max_timeout_ms=MAX_TIMEOUT_MS),
        replicas=SimpleNamespace(led=lambda: iter(led)),
    )
    numbers = TransactionNumbers()
    return numbers, len(list(numbers.count(cast("Any", services))))


def a_transaction(state: State, *partitions: tuple[str, int]) -> Transaction:
    included = frozenset(TopicPartition(*each) for each in partitions)
    return Transaction("x", 7, state=state, partitions=included)


def test_transactions_are_counted_by_state_and_markers_by_what_they_wait_for() -> None:
    numbers, _ = counted(
        a_transaction(State.ONGOING, ("t", 0), ("t", 1)),
        a_transaction(State.PREPARE_COMMIT, ("t", 0), ("t", 1), ("deleted", 0), ("t", 9)),
        a_transaction(State.PREPARE_ABORT, ("t", 1)),
        a_transaction(State.COMPLETE_ABORT),
    )
    assert numbers.by_state[State.ONGOING] == numbers.by_state[State.PREPARE_COMMIT] == 1
    assert numbers.by_state[State.EMPTY] == 0
    assert (numbers.markers_pending, numbers.markers_without_leader) == (5, 2)


def test_a_partition_is_late_by_its_oldest_transaction() -> None:
    at = NOW_MS - MAX_TIMEOUT_MS - LATE_MS
    silent = ProducerState(1, 0, 5, at - 1, -1, 40)
    younger = ProducerState(2, 0, 5, at - 1, -1, 50)
    in_time = ProducerState(3, 0, 5, at, -1, 40)
    over = ProducerState(4, 0, 5, at - 1, -1, -1)
    assert counted(led=(partition(silent),))[0].late_partitions == 1
    assert counted(led=(partition(in_time, younger, over),))[0].late_partitions == 0
    assert counted(led=(partition(over), partition(silent)))[0].late_partitions == 1


def test_many_are_counted_in_turns() -> None:
    many = [a_transaction(State.EMPTY)] * (2 * TURN)
    led = tuple([partition()] * (3 * TURN))
    assert counted(*many, led=led)[1] == 5
