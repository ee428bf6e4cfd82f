"""Transactions, and the producers that partitions remember, as brokers tell of them.

    with Router("127.0.0.1:9092") as router:
        transactions = Transactions(router)
        for each in transactions.survey():
            print(each.transactional_id, each.state, each.partitions)

Spoken by ourselves (`router`): librdkafka has no request for any of it. A transaction is told of by
its coordinator, a producer by the leader of a partition; each method asks the right broker, and
repeats what fails only for a moment.

There are two ways to abort. `fence` has the coordinator abort what a transactional id has open,
and shuts its producer out: the way for a transaction that a coordinator knows. `abort` writes the
marker into one partition, past the coordinator: the way for one that hangs, since no coordinator
knows of it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ottla.client.descriptions import Node
from ottla.client.retry import retry
from ottla.client.router import TRANSACTION, Router, check, error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import NO_LEADER
from ottla.protocol.messages import transactions as messages

TRANSACTIONS_TOPIC = "__transaction_state"
FENCE_TIMEOUT_MS = 30_000
"""What Java's client gives an id that it fences."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a list. `state` is in Kafka's words: "Ongoing", "PrepareCommit"."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, its producer, and its last transaction.

    `partitions` are those of an open transaction, or of a decided one those that have no marker
    yet. `started_ms` is None if there never was a transaction.
    """

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]

    @property
    def is_ongoing(self) -> bool:
        """Open: its producer goes on, or it times out."""
        return self.state == "Ongoing"

    @property
    def is_decided(self) -> bool:
        """Committed or aborted, and not yet known to all partitions."""
        return self.state in ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer as a partition remembers it.

    `coordinator_epoch` is None before its first marker, `txn_start_offset` while it has no
    transaction open there.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    txn_start_offset: int | None


class ProducerIdentity(NamedTuple):
    """Who a producer is."""

    producer_id: int
    producer_epoch: int


class Transactions:
    """Asks about transactions, and ends them."""

    def __init__(self, router: Router, *, timeout: float = 30.0) -> None:
        self.router = router
        self._timeout = timeout

    # -- what coordinators know

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        open_longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> tuple[TransactionListing, ...]:
        """All transactional ids, or those that every filter lets through; by broker, in the order
        brokers give them."""
        request = messages.ListTransactionsRequest(
            state_filters=[*states],
            producer_id_filters=[*producer_ids],
            duration_filter=open_longer_than_ms,
            transactional_id_pattern=pattern,
        )
        answers = self.router.ask_each_node(partial(self._list, request))
        # One whose coordinator goes to a broker that is asked later is listed by both.
        found = {each.transactional_id: each for listed in answers for each in listed}
        return tuple(found.values())

    def _list(
        self, request: messages.ListTransactionsRequest, node: Node
    ) -> list[TransactionListing]:
        answer = self.router.node(node.id).ask(request)
        check(answer.error_code)
        if answer.unknown_state_filters:
            # The broker lists nothing for these, which would read as: there are none.
            names = ", ".join(map(repr, answer.unknown_state_filters))
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"no state of a transaction is called {names}"
            )
        return [
            TransactionListing(
                each.transactional_id, node.id, each.producer_id, each.transaction_state
            )
            for each in answer.transaction_states
        ]

    def describe(self, *names: str) -> dict[str, TransactionDescription]:
        """These transactions; TRANSACTIONAL_ID_NOT_FOUND when there is one too few."""
        return {name: self._describe(name) for name in names}

    def _describe(self, name: str) -> TransactionDescription:
        request = messages.DescribeTransactionsRequest(transactional_ids=[name])

        def ask() -> TransactionDescription:
            node = self.router.coordinator_node(name, TRANSACTION)
            [found] = self.router.node(node.id).ask(request).transaction_states
            check(found.error_code)
            return _description(found, node.id)

        return self.router.retried(ask)

    def survey(self, *, states: Iterable[str] = ()) -> tuple[TransactionDescription, ...]:
        """All transactions, or those in these states; two requests to each broker, however many
        there are. Those that vanish meanwhile are left out."""
        request = messages.ListTransactionsRequest(state_filters=[*states], producer_id_filters=[])

        def ask(node: Node) -> list[TransactionDescription]:
            names = [each.transactional_id for each in self._list(request, node)]
            if not names:
                return []
            wanted = messages.DescribeTransactionsRequest(transactional_ids=names)
            answer = self.router.node(node.id).ask(wanted)
            return [
                _description(each, node.id)
                for each in answer.transaction_states
                if not each.error_code
            ]

        answers = self.router.ask_each_node(ask)
        found = {each.transactional_id: each for listed in answers for each in listed}
        return tuple(found.values())

    def without_coordinator(self) -> tuple[TopicPartition, ...]:
        """The partitions of the coordinators' log that nobody leads: whatever has its place there
        is in no list now, and can be neither described nor ended."""
        [topic] = self.router.metadata([TRANSACTIONS_TOPIC]).topics
        return tuple(
            sorted(
                TopicPartition(TRANSACTIONS_TOPIC, each.partition_index)
                for each in topic.partitions
                if each.leader_id == NO_LEADER
            )
        )

    # -- what partitions know

    def producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        """The producers that partitions remember, or why they are not told; asked of the leaders,
        or of one broker that has a replica."""
        if broker is None:
            return self.router.ask_leaders(partitions, _producers_request, _producers)
        wanted = list(dict.fromkeys(partitions))

        def ask() -> Any:
            return self.router.node(broker).ask(_producers_request(wanted))

        answer = self.router.retried(ask)
        return {
            tp: KafkaError(error_code(code)) if code else states
            for tp, code, states in _producers(answer)
        }

    # -- ending them

    def abort(
        self, tp: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write the marker that aborts a producer's transaction in one partition, whatever its
        coordinator thinks. Raises KafkaError."""
        request = messages.WriteTxnMarkersRequest(
            markers=[
                messages.WritableTxnMarker(
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    transaction_result=False,
                    topics=[
                        messages.WritableTxnMarkerTopic(
                            name=tp.topic, partition_indexes=[tp.partition]
                        )
                    ],
                    coordinator_epoch=coordinator_epoch,
                )
            ]
        )
        self.router.ask_leader(tp, request, _marked)

    def fence(self, name: str, *, timeout_ms: int = FENCE_TIMEOUT_MS) -> ProducerIdentity:
        """Shut out the producer of a transactional id, and have what it has open aborted: returns
        who the id's producer is from then on, when that is done. An id that is not known
        is made. `timeout_ms` is the id's transaction timeout from then on."""
        request = messages.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout_ms
        )

        def ask() -> ProducerIdentity:
            answer = self.router.coordinator(name, TRANSACTION).ask(request)
            check(answer.error_code)
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        # Asked twice, it raises the epoch twice; that fences nobody who should not be.
        return retry(
            lambda: self.router.retried(ask),
            timeout=self._timeout,
            passes=lambda error: error.code is ErrorCode.CONCURRENT_TRANSACTIONS,
        )


def _description(found: messages.TransactionState, coordinator: int) -> TransactionDescription:
    started_ms = found.transaction_start_time_ms
    return TransactionDescription(
        found.transactional_id,
        coordinator,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        started_ms if started_ms >= 0 else None,
        tuple(
            TopicPartition(topic.topic, index)
            for topic in found.topics
            for index in topic.partitions
        ),
    )


def _producers_request(partitions: Sequence[TopicPartition]) -> messages.DescribeProducersRequest:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return messages.DescribeProducersRequest(
        topics=[
            messages.TopicRequest(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    )


def _producers(
    answer: messages.DescribeProducersResponse,
) -> Iterable[tuple[TopicPartition, int, tuple[ProducerState, ...]]]:
    for topic in answer.topics:
        for part in topic.partitions:
            states = tuple(
                ProducerState(
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    _unless_negative(each.coordinator_epoch),
                    _unless_negative(each.current_txn_start_offset),
                )
                for each in part.active_producers
            )
            yield TopicPartition(topic.name, part.partition_index), part.error_code, states


def _unless_negative(number: int) -> int | None:
    return None if number < 0 else number


def _marked(
    answer: messages.WriteTxnMarkersResponse,
) -> Iterable[tuple[TopicPartition, int, None]]:
    for marker in answer.markers:
        for topic in marker.topics:
            for part in topic.partitions:
                yield TopicPartition(topic.name, part.partition_index), part.error_code, None
