"""Open transactions as partitions have them: who holds up whom, and which nobody will ever end.

A consumer that reads committed records reads up to where the oldest open transaction begins, its
partition's last stable offset. `hold_ups` brings together what a coordinator knows of a
transaction (how long it has been open, when it times out) and what the partitions know (where it
begins, who was before it).

A transaction *hangs* if a partition has it open, and its coordinator would write no marker there:
the transactional id is not known, or its transaction does not include the partition. Nothing ends
it by itself, and its partition's readers wait for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ottla.client.admin_transactions import ProducerState, TransactionDescription, Transactions
from ottla.client.descriptions import OffsetInfo
from ottla.client.router import error_code
from ottla.client.topic_offsets import LATEST, TopicOffsets
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

BATCH = 500
"""Partitions that are asked about in one request."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A producer's transaction that is open in a partition."""

    partition: TopicPartition
    producer: ProducerState

    @property
    def start_offset(self) -> int:
        assert self.producer.txn_start_offset is not None
        return self.producer.txn_start_offset


@dataclass(frozen=True, slots=True)
class HoldUp:
    """Consumers of committed records wait in a partition, from `offset` on, for `open` to end.

    `held` counts the offsets that they do not get, up to the end of the partition; `behind` is the
    transaction that began before `open` there, and has to end first. `transaction` is what its
    coordinator knows: None if it hangs.
    """

    open: OpenTransaction
    offset: int
    held: int
    behind: OpenTransaction | None
    transaction: TransactionDescription | None

    @property
    def partition(self) -> TopicPartition:
        return self.open.partition


def open_in(
    transactions: Transactions, partitions: Iterable[TopicPartition], *, broker: int | None = None
) -> tuple[list[OpenTransaction], dict[TopicPartition, KafkaError]]:
    """The transactions that partitions have open, by partition and offset; and the partitions that
    could not be asked."""
    wanted = list(dict.fromkeys(partitions))
    found: list[OpenTransaction] = []
    failures: dict[TopicPartition, KafkaError] = {}
    for start in range(0, len(wanted), BATCH):
        answers = transactions.producers(wanted[start : start + BATCH], broker=broker)
        for tp, states in answers.items():
            if isinstance(states, KafkaError):
                failures[tp] = states
                continue
            found += [
                OpenTransaction(tp, each) for each in states if each.txn_start_offset is not None
            ]
    return sorted(found, key=lambda each: (each.partition, each.start_offset)), failures


def hanging(
    transactions: Transactions, candidates: Sequence[OpenTransaction]
) -> list[OpenTransaction]:
    """Those of the candidates that no coordinator will end, in the same order.

    A transaction that its coordinator does not know may have ended since the partition was asked.
    So partitions are asked once more: one that is still open then was not ended, and will not be.
    Coordinators, too: brokers are asked one after the other, and who takes care of a transactional
    id may go meanwhile from one that was still to be asked to one that had been.

    A transaction whose coordinator is away is in no list either, and goes on when that is back. So
    while a part of the coordinators' log has no leader nothing is said to hang:
    COORDINATOR_NOT_AVAILABLE.
    """
    unknown = _unknown(transactions, candidates)
    again, _ = open_in(transactions, [each.partition for each in unknown])
    still = {(each.partition, each.producer.producer_id, each.start_offset) for each in again}
    return _unknown(
        transactions,
        [
            each
            for each in unknown
            if (each.partition, each.producer.producer_id, each.start_offset) in still
        ],
    )


def _unknown(
    transactions: Transactions, candidates: Sequence[OpenTransaction]
) -> list[OpenTransaction]:
    """Those of the candidates that belong to no transaction of which a coordinator tells."""
    ids = {each.producer.producer_id for each in candidates}
    if not ids:
        return []
    expected: dict[int, frozenset[TopicPartition]] = {}
    for each in transactions.list_transactions(producer_ids=sorted(ids)):
        try:
            described = transactions.describe(each.transactional_id)[each.transactional_id]
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue  # expired since the list was made
        expected[each.producer_id] = frozenset(described.partitions)
    unknown = [
        each
        for each in candidates
        if each.partition not in expected.get(each.producer.producer_id, frozenset())
    ]
    if unknown:
        _check_coordinators(transactions)
    return unknown


def _check_coordinators(transactions: Transactions) -> None:
    """Whether everybody is there who could know of a transaction."""
    away = transactions.without_coordinator()
    if away:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"whether a transaction hangs cannot be told while {', '.join(map(str, away))} has no "
            f"leader: it may be one that is coordinated there, and goes on when that is back",
        )


def partitions_of(
    transactions: Transactions, topics: Iterable[str] | None = None, *, broker: int | None = None
) -> list[TopicPartition]:
    """The partitions of topics, of all if none is named; only those with a replica on `broker`, if
    that is given. Raises KafkaError for a topic that is not there."""
    found: list[TopicPartition] = []
    for topic in transactions.router.metadata(topics).topics:
        name = topic.name or ""
        if topic.error_code:
            code = error_code(topic.error_code)
            missing = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"there is no topic {name!r}" if missing else None)
        found += [
            TopicPartition(name, each.partition_index)
            for each in topic.partitions
            if broker is None or broker in each.replica_nodes
        ]
    return sorted(found)


def hold_ups(
    transactions: Transactions,
    described: Iterable[TransactionDescription],
    opened: Iterable[OpenTransaction] = (),
    *,
    timeout: float = 30.0,
) -> list[HoldUp]:
    """Where transactions keep readers of committed records waiting: those of `described` that are
    open or decided, and the single `opened` ones, which hang. Partitions that a transaction has
    not written to, or has ended in, are left out; so are those that cannot be asked."""
    known = {
        (each.producer_id, tp): each
        for each in described
        if each.is_ongoing or each.is_decided
        for tp in each.partitions
    }
    strangers = {(each.producer.producer_id, each.partition) for each in opened}
    partitions = sorted({tp for _, tp in known.keys() | strangers})
    queues: dict[TopicPartition, list[OpenTransaction]] = defaultdict(list)
    for tp, states in transactions.producers(partitions).items():
        if not isinstance(states, KafkaError):
            queues[tp] = sorted(
                (OpenTransaction(tp, each) for each in states if each.txn_start_offset is not None),
                key=lambda each: each.start_offset,
            )
    ends = TopicOffsets(transactions.router, timeout=timeout).find(
        dict.fromkeys(queues, LATEST), wait_for_node=False
    )
    found: list[HoldUp] = []
    for tp, queue in queues.items():
        end = ends.get(tp)
        for number, each in enumerate(queue):
            key = (each.producer.producer_id, tp)
            if key in known or key in strangers:
                last = end.offset if isinstance(end, OffsetInfo) else each.start_offset
                found.append(
                    HoldUp(
                        each,
                        queue[0].start_offset,
                        max(0, last - queue[0].start_offset),
                        queue[number - 1] if number else None,
                        known.get(key),
                    )
                )
    return found
