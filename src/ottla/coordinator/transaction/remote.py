"""Other brokers, as transactions need them: those that lead partitions, and other coordinators.

`MarkerSender` sees to it that every partition of a decided transaction gets its marker: directly
where this broker leads it, else with WriteTxnMarkers, one request at a time to each broker, with as
much of what has gathered for it as is handled in one go. What fails is tried again, at whoever
leads the partition then, as long as this broker coordinates the transaction: after 50 ms, as in
Kafka, with a line in the log only now and then. A partition that was deleted needs none. Markers of
this broker's own partitions are written at once, for a few milliseconds: those of a transaction
with thousands of them, or of thousands that time out together, go on in the loop's next turns,
one of each transaction after the other.

`Coordinators` asks the coordinator of a transaction whether it includes a partition, or to include
it, for the leader of that partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from ottla.client.peer import Peer
from ottla.coordinator.host import Slot
from ottla.coordinator.transaction.marking import SLICE_SECONDS, TIMEOUT_SECONDS, MarkerWriter
from ottla.coordinator.transaction.state import (
    RAISES_EPOCH,
    Complete,
    Identity,
    WriteMarkers,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.broker import Endpoint
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER
from ottla.net.channel import ChannelClosed
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.replication.marker import Marker
from ottla.replication.remote import Peers
from ottla.runtime.clock import Clock, SystemClock
from ottla.runtime.logs import RateLimit
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.05
LONG_RETRY_SECONDS = 1.0
COMPLAIN_SECONDS = 60.0
ASK_SECONDS = 30.0
MOST_MARKERS = 300
"""Of one request. Each is three elements at most, and a broker refuses requests of too many."""

# The marker comes from a coordinator, or about a producer, that another one has replaced.
_REPLACED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)


class Connections:
    """One connection to each broker, where it is now."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._open: dict[int, tuple[Endpoint, Peer]] = {}

    def to(self, broker: int) -> Peer | None:
        """None if the broker is not registered."""
        endpoint = self._peers.endpoint(broker)
        known = self._open.get(broker)
        if known is not None and known[0] == endpoint:
            return known[1]
        if known is not None:
            known[1].close()
            del self._open[broker]
        if endpoint is None:
            return None
        peer = self._peers.at(endpoint)
        self._open[broker] = endpoint, peer
        return peer

    def look(self) -> None:
        """Brokers have come or gone: who waits for the answer of one that is not there any more,
        and may stand still for long, is told so at once."""
        for broker in tuple(self._open):
            self.to(broker)

    def close(self) -> None:
        for _, peer in self._open.values():
            peer.close()
        self._open.clear()


# --- markers --------------------------------------------------------------------------------------


class _Decided:
    """A transaction whose markers are on their way."""

    __slots__ = ("left", "replaced", "slot", "what")

    def __init__(self, slot: Slot, what: WriteMarkers) -> None:
        self.slot = slot
        self.what = what
        self.left = set(what.partitions)
        self.replaced = False

    @property
    def is_ours(self) -> bool:
        return self.slot.active and not self.replaced

    @property
    def marker(self) -> Marker:
        what = self.what
        return Marker(
            *what.producer, what.commit, self.slot.leader_epoch, what.version >= RAISES_EPOCH
        )


class MarkerSender:
    """Brings markers to all partitions of transactions, then completes these."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], ClusterImage],
        connections: Connections,
        writer: MarkerWriter,
        tasks: Tasks,
        clock: Clock,
        on_over: Callable[[str], None] = lambda transactional_id: None,
    ) -> None:
        """`on_over` is told of every transaction that is complete."""
        self._on_over = on_over
        self._clock = clock
        self._node_id = node_id
        self._image = image
        self._connections = connections
        self._writer = writer
        self._tasks = tasks
        self._queued: dict[int, list[tuple[_Decided, TopicPartition]]] = {}  # by broker
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._queued_here: deque[tuple[_Decided, deque[TopicPartition]]] = deque()
        self._writes_here = False  # now, or goes on in the next turn
        self._next_turn: asyncio.Handle | None = None
        self._unwritten: set[_Decided] = set()  # complete, which could not be written yet
        self._complaints = RateLimit(logger, SystemClock(), burst=1, interval=COMPLAIN_SECONDS)
        self._closed = False

    def send(self, slot: Slot, what: WriteMarkers) -> None:
        """The decision is committed in the log of `slot`: tell everybody."""
        decided = _Decided(slot, what)
        self._distribute(decided, what.partitions)

    @property
    def unwritten(self) -> int:
        """Transactions that have all of their markers, of which that could not be written yet."""
        return len(self._unwritten)

    def close(self) -> None:
        self._closed = True
        if self._next_turn is not None:
            self._next_turn.cancel()
        for task in self._sending.values():
            task.cancel()

    def _distribute(self, decided: _Decided, partitions: Iterable[TopicPartition]) -> None:
        if self._closed or not decided.is_ours:
            return
        later: list[TopicPartition] = []
        here: deque[TopicPartition] = deque()
        for partition in partitions:
            leader = self._leader_of(partition)
            if leader is None:
                decided.left.discard(partition)
            elif leader == self._node_id:
                here.append(partition)
            elif leader == NO_LEADER or self._connections.to(leader) is None:
                later.append(partition)
            else:
                self._queue_there(decided, partition, leader)
        if later:
            self._retry(decided, later, RETRY_SECONDS)
        if here:
            self._queued_here.append((decided, here))
            if not self._writes_here:  # an end that this one brings about gets its turn, too
                self._write_queued_here()
        elif not decided.left:
            self._complete(decided)

    def _leader_of(self, partition: TopicPartition) -> int | None:
        """None for a partition that is no more."""
        topic = self._image().topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        return topic.partitions[partition.partition].leader

    def _queue_there(self, decided: _Decided, partition: TopicPartition, leader: int) -> None:
        self._queued.setdefault(leader, []).append((decided, partition))
        if leader not in self._sending:
            self._sending[leader] = self._tasks.start(
                f"sending markers to broker {leader}", self._drain(leader)
            )

    def _write_queued_here(self) -> None:
        """Write markers here for as long as others can wait, the rest in the loop's next turn."""
        self._writes_here = True
        queued, clock = self._queued_here, self._clock
        turn_ends = clock.monotonic() + SLICE_SECONDS
        try:
            while queued and clock.monotonic() <= turn_ends:
                decided, partitions = queued.popleft()
                if decided.is_ours:
                    partition = partitions.popleft()
                    if partitions:
                        queued.append((decided, partitions))
                    self._write_here(decided, partition)
        finally:
            self._writes_here = bool(queued)
            if queued:
                loop = asyncio.get_running_loop()
                self._next_turn = loop.call_soon(self._write_queued_here)

    def _write_here(self, decided: _Decided, partition: TopicPartition) -> None:
        try:
            writing = self._writer.write(decided.marker, partition)
        except KafkaError as error:
            self._settle(decided, partition, error.code)
            return
        if writing is None:
            self._settle(decided, partition, ErrorCode.NONE)
            return

        def done(settled: Deferred[None]) -> None:
            code = ErrorCode.NONE
            try:
                settled.result()
            except KafkaError as error:
                code = error.code
            self._settle(decided, partition, code)

        writing.on_done(done)

    async def _drain(self, broker: int) -> None:
        """Send what is there for a broker, until nothing is."""
        try:
            while entries := self._take(broker):
                entries = [each for each in entries if each[0].is_ours]
                codes = await self._ask(broker, entries) if entries else {}
                for decided, partition in entries:
                    producer_id = decided.what.producer.producer_id
                    code = codes.get((producer_id, partition), ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    self._settle(decided, partition, code)
        finally:
            self._sending.pop(broker, None)

    def _take(self, broker: int) -> list[tuple[_Decided, TopicPartition]]:
        """The next of what is there for a broker."""
        queued = self._queued.pop(broker, [])
        if len(queued) > MOST_MARKERS:
            self._queued[broker] = queued[MOST_MARKERS:]
        return queued[:MOST_MARKERS]

    async def _ask(
        self, broker: int, entries: list[tuple[_Decided, TopicPartition]]
    ) -> Mapping[tuple[int, TopicPartition], ErrorCode]:
        """The outcome by producer and partition; what is missing has to be tried again."""
        markers: dict[_Decided, dict[str, list[int]]] = {}
        for decided, (topic, index) in entries:
            markers.setdefault(decided, {}).setdefault(topic, []).append(index)
        request = WriteTxnMarkersRequest(
            markers=[_marker(decided, topics) for decided, topics in markers.items()]
        )
        peer = self._connections.to(broker)
        if peer is None:
            return {}
        try:
            response: WriteTxnMarkersResponse = await peer.ask(request, timeout=TIMEOUT_SECONDS + 1)
        except (ChannelClosed, KafkaError) as error:
            self._complaints.warning(
                f"sending to {broker}",
                "markers could not be sent to broker %d, again soon: %s",
                broker,
                error,
            )
            return {}
        return {
            (each.producer_id, TopicPartition(topic.name, part.partition_index)): ErrorCode.of(
                part.error_code
            )
            for each in response.markers
            for topic in each.topics
            for part in topic.partitions
        }

    def _settle(self, decided: _Decided, partition: TopicPartition, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            decided.left.discard(partition)
            if not decided.left:
                self._complete(decided)
            return
        if code in _REPLACED:
            decided.replaced = True
            logger.warning(
                "the marker of %s for %s was refused (%s): another coordinator has ended it",
                decided.what.transactional_id,
                partition,
                code.name,
            )
            return
        pause = RETRY_SECONDS if code.retriable else LONG_RETRY_SECONDS
        self._retry(decided, (partition,), pause)

    def _retry(
        self, decided: _Decided, partitions: Iterable[TopicPartition], seconds: float
    ) -> None:
        if not self._closed and decided.is_ours:
            loop = asyncio.get_running_loop()
            loop.call_later(seconds, self._distribute, decided, tuple(partitions))

    def _complete(self, decided: _Decided) -> None:
        """All have their marker: the transaction is over, once that is written."""
        self._unwritten.discard(decided)
        if self._closed or not decided.is_ours:
            return
        what = decided.what
        try:
            reply = decided.slot.run(
                Complete(what.transactional_id, what.producer, what.decided_ms)
            )
        except KafkaError as error:
            self._complete_again(decided, error)
            return
        if isinstance(reply, Deferred):
            reply.on_done(partial(self._completed, decided))
        self._on_over(what.transactional_id)

    def _completed(self, decided: _Decided, done: Deferred[Any]) -> None:
        """It was written, or could not be. If it is not committed in time, there is nothing left to
        write, and being told so again does no harm."""
        try:
            done.result()
        except KafkaError as error:
            self._complete_again(decided, error)

    def _complete_again(self, decided: _Decided, error: KafkaError) -> None:
        if not self._closed and decided.is_ours:
            self._complaints.warning(
                "completing",
                "%s cannot be completed now: %s",
                decided.what.transactional_id,
                error,
            )
            self._unwritten.add(decided)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._complete, decided)


def _marker(decided: _Decided, topics: Mapping[str, list[int]]) -> WritableTxnMarker:
    what = decided.what
    return WritableTxnMarker(
        producer_id=what.producer.producer_id,
        producer_epoch=what.producer.producer_epoch,
        transaction_result=what.commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=decided.slot.leader_epoch,
        transaction_version=what.version,
    )


# --- partitions of transactions -------------------------------------------------------------------


class Local(Protocol):
    """The coordinator of this broker."""

    def coordinator_of(self, transactional_id: str) -> int | None:
        """The broker that coordinates the transaction, if there is one."""
        ...

    async def allow_here(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: frozenset[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]: ...


class Coordinators:
    """Asks coordinators about transactions, wherever they are."""

    def __init__(self, node_id: int, local: Local, connections: Connections) -> None:
        self._node_id = node_id
        self._local = local
        self._connections = connections

    async def allow(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: frozenset[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether these are part of the transaction; with `add` they become so."""
        broker = self._local.coordinator_of(transactional_id)
        if broker == self._node_id:
            return await self._local.allow_here(transactional_id, producer, partitions, add=add)
        peer = None if broker is None else self._connections.to(broker)
        if peer is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(partitions):
            by_topic.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            verify_only=not add,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in by_topic.items()
            ],
        )
        try:
            response: AddPartitionsToTxnResponse = await peer.ask(
                AddPartitionsToTxnRequest(transactions=[transaction]), timeout=ASK_SECONDS
            )
        except (ChannelClosed, KafkaError):
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        found = _outcome(response)
        return {each: found.get(each, ErrorCode.COORDINATOR_NOT_AVAILABLE) for each in partitions}


def _outcome(response: Any) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, part.partition_index): ErrorCode.of(part.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for part in topic.results_by_partition
    }
