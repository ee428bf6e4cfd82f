"""Transactional producers: clients that commit, abort, die, and come back with the same id.

Each speaks transaction version 2 (KIP-890): every end gives it a new epoch. Some transactions
commit offsets of a group. Who is not answered asks again. A producer that dies leaves its
transaction as it is, and may go on as a zombie while another begins under its id.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ottla.coordinator.key_hash import key_hash
from ottla.coordinator.transaction.state import (
    RAISES_EPOCH,
    TRANSACTIONS_TOPIC,
    EndTransaction,
    Identity,
    InitProducer,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.builder import build_batch

from .broker import TRANSACTIONAL_TOPIC, SimBroker
from .invariants import Acked, Violation
from .offsets import group_of, place_of
from .requests import Requests, Work
from .transactions import History, SimTransaction

if TYPE_CHECKING:
    from .cluster import Cluster

TIMEOUT_MS = 6_000  # of a transaction
GIVE_UP_SECONDS = 15.0
COORDINATORS = 2  # partitions of the transactions' topic
PARTITIONS = 3
OFFSETS_CHANCE = 0.5

# The producer is not who it takes itself for any more.
FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


class Fenced(Exception):
    """There is a later producer, or the transaction was taken away."""


class GivenUp(Exception):
    """Nobody has answered for long."""


class Incarnation:
    """One life of a producer."""

    def __init__(self) -> None:
        self.replaced = False  # a later one was told that it is the producer now


class TransactionalProducer:
    """One transactional id, and whoever uses it."""

    def __init__(self, cluster: Cluster, history: History, name: str) -> None:
        self._cluster = cluster
        self._history = history
        self._loop = cluster.loop
        self._name = name
        self._rng = cluster.rng(f"producer {name}")
        self._coordinator = TopicPartition(TRANSACTIONS_TOPIC, key_hash(name) % COORDINATORS)
        self._lives: list[asyncio.Task[None]] = []
        self._requests = Requests(cluster, self._rng)

    def start(self) -> None:
        self._lives.append(self._loop.create_task(self._live()))

    async def stop(self) -> None:
        """Leave what is open as it is: that is for the coordinator to end."""
        self._requests.stop()
        for task in self._lives:
            task.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    # --- what it does -------------------------------------------------------------------------

    async def _live(self) -> None:
        before: Incarnation | None = None
        while True:
            own = Incarnation()
            try:
                producer = await self._init()
            except GivenUp:
                continue
            if before is not None:
                before.replaced = True
            before = own
            try:
                await self._work(own, producer, self._rng.randint(1, 8))
            except (Fenced, GivenUp):
                pass
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))

    async def _work(self, own: Incarnation, producer: Identity, count: int) -> None:
        """Some transactions; then it dies in the middle of one."""
        rng = self._rng
        for number in range(count):
            await asyncio.sleep(rng.expovariate(1 / 0.15))
            transaction = self._history.begin(self._name, producer)
            await self._write(own, transaction)
            if number == count - 1 and rng.random() < 0.7:
                if rng.random() < 0.5:
                    haunting = self._loop.create_task(self._haunt(own, transaction))
                    self._lives.append(haunting)
                return
            producer = await self._end(own, transaction, commit=rng.random() < 0.75)

    async def _haunt(self, own: Incarnation, transaction: SimTransaction) -> None:
        """A zombie goes on: what it asks for after it was replaced must be refused."""
        try:
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))
            if self._rng.random() < 0.5:
                await self._write(own, transaction)
            await self._end(own, transaction, commit=True)
        except (Fenced, GivenUp):
            pass

    async def _init(self) -> Identity:
        async def init(broker: SimBroker) -> Identity:
            if broker.transactions is None:
                raise KafkaError(ErrorCode.NOT_COORDINATOR)
            return await broker.transactions.init_producer(InitProducer(self._name, TIMEOUT_MS))

        found: Identity = await self._until_done(self._coordinator, init, Incarnation())
        return found

    async def _write(self, own: Incarnation, transaction: SimTransaction) -> None:
        for _ in range(self._rng.randint(1, 4)):
            tp = TopicPartition(TRANSACTIONAL_TOPIC, self._rng.randrange(PARTITIONS))
            sequence = transaction.sequences.get(tp, 0)
            transaction.sequences[tp] = sequence + 1
            number = self._history.add(transaction, tp)
            batch = build_batch(
                [(0, None, b"%d" % number, ())],
                producer_id=transaction.producer.producer_id,
                producer_epoch=transaction.producer.producer_epoch,
                base_sequence=sequence,
                transactional=True,
            )

            async def append(
                broker: SimBroker, tp: TopicPartition = tp, batch: bytes = batch
            ) -> Acked:
                return await broker.append_in_transaction(
                    tp, self._name, transaction.producer, batch
                )

            acked = await self._until_done(tp, append, own)
            transaction.acked.add(number)
            self._cluster.note_acked(tp, acked)
        if self._rng.random() < OFFSETS_CHANCE:
            await self._commit_offset(own, transaction)

    async def _commit_offset(self, own: Incarnation, transaction: SimTransaction) -> None:
        group = group_of(self._name)

        async def commit(broker: SimBroker) -> None:
            await broker.commit_offset_in_transaction(
                group, transaction.number, self._name, transaction.producer
            )

        await self._until_done(place_of(group), commit, own)
        transaction.offset_acked = True

    async def _end(
        self, own: Incarnation, transaction: SimTransaction, *, commit: bool
    ) -> Identity:
        transaction.asked = transaction.asked or commit
        command = EndTransaction(self._name, transaction.producer, commit, RAISES_EPOCH)

        async def end(broker: SimBroker) -> Identity:
            if broker.transactions is None:
                raise KafkaError(ErrorCode.NOT_COORDINATOR)
            return await broker.transactions.end(command)

        producer: Identity = await self._until_done(self._coordinator, end, own)
        transaction.told = commit
        return producer

    # --- asking -------------------------------------------------------------------------------

    async def _until_done(self, leader_of: TopicPartition, work: Work, own: Incarnation) -> Any:
        """Ask whoever leads a partition, again and again. Raises Fenced, or GivenUp."""
        until = self._loop.time() + GIVE_UP_SECONDS
        while self._loop.time() < until:
            replaced = own.replaced
            reply = await self._requests.ask(leader_of, work)
            if not isinstance(reply, KafkaError):
                if replaced:
                    text = f"{self._name}: {leader_of} took a request of a producer that was fenced"
                    raise self._cluster.violate(Violation("ZombieFenced", text))
                return reply
            if reply.code in FENCED:
                raise Fenced
            await asyncio.sleep(self._rng.uniform(0.02, 0.2))
        raise GivenUp
