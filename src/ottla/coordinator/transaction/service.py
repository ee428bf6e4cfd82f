"""Transactions: the transaction coordinator as handlers see it.

It finds the shard of a transactional id (which belongs to the partition of `__transaction_state`
that the hash of the id names) and runs the command there. For leaders of partitions it asks the
coordinator of a transaction, on whichever broker, before the first batch is appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ottla.cluster.registry import ImageChange
from ottla.config.broker import BrokerConfig
from ottla.coordinator.host import Host, Partitions
from ottla.coordinator.key_hash import key_hash
from ottla.coordinator.replies import gather, then, when_there
from ottla.coordinator.transaction.joining import join
from ottla.coordinator.transaction.machine import TransactionShard
from ottla.coordinator.transaction.marking import GroupLogs, MarkerWriter
from ottla.coordinator.transaction.patience import Endings
from ottla.coordinator.transaction.remote import Connections, Coordinators, MarkerSender
from ottla.coordinator.transaction.state import (
    NEEDS_PRODUCER_ID,
    RAISES_EPOCH,
    TRANSACTIONS_TOPIC,
    AddPartitions,
    Counts,
    EndTransaction,
    Identity,
    InitProducer,
    ListTransactions,
    Transaction,
    VerifyPartitions,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import NO_LEADER
from ottla.records.compression import Compression
from ottla.replication.partition import Partition
from ottla.replication.remote import Peers
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.producers import Guard

FEATURE = "transaction.version"


class _Settings:
    """What the host and the machine read of the settings and features, always the newest."""

    compression = Compression.NONE

    def __init__(self, config: Callable[[], BrokerConfig], version: Callable[[], int]) -> None:
        self._config = config
        self._version = version

    @property
    def load_buffer_bytes(self) -> int:
        return self._config().transaction_state_log_load_buffer_size

    @property
    def commit_timeout_ms(self) -> int:
        return self._config().offsets_commit_timeout_ms

    @property
    def transaction_version(self) -> int:
        return self._version()

    @property
    def abort_interval_ms(self) -> int:
        return self._config().transaction_abort_timed_out_transaction_cleanup_interval_ms

    @property
    def expiry_interval_ms(self) -> int:
        return self._config().transaction_remove_expired_transaction_cleanup_interval_ms

    @property
    def id_expiration_ms(self) -> int:
        return self._config().transactional_id_expiration_ms


class Transactions:
    """The transaction coordinator of this broker."""

    def __init__(  # noqa: PLR0913 - handed in once, by name, by the composition root
        self,
        node_id: int,
        *,
        partitions: Partitions,
        groups: GroupLogs,
        clock: Clock,
        workers: Workers,
        tasks: Tasks,
        config: Callable[[], BrokerConfig],
        version: Callable[[], int],
        new_producer_id: Callable[[], Awaitable[int]],
        peers: Peers,
        on_loaded: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.counts = Counts()
        self._config = config
        self._new_producer_id = new_producer_id
        # Answers come in the order of requests, and a marker's may take long: it is not to hold up
        # the questions of others.
        self._connections = for_markers, for_questions = Connections(peers), Connections(peers)
        self.writer = MarkerWriter(partitions, groups, clock)
        self._endings = Endings()
        self.sender = MarkerSender(
            node_id,
            lambda: self.host.image,
            for_markers,
            self.writer,
            tasks,
            clock,
            self._endings.over,
        )
        self._coordinators = Coordinators(node_id, self, for_questions)
        settings = _Settings(config, version)
        self.host = Host(
            TRANSACTIONS_TOPIC,
            node_id,
            partitions=partitions,
            clock=clock,
            workers=workers,
            tasks=tasks,
            settings=settings,
            make_shard=lambda index, image: TransactionShard(settings, self.counts),
            on_loaded=on_loaded,
            on_effect=self.sender.send,
        )

    # ------------------------------------------------------------------ where

    @property
    def image(self) -> ClusterImage:
        return self.host.image

    def partition_for(self, transactional_id: str) -> int:
        """The partition of the transactions topic that keeps this id."""
        topic = self.host.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return key_hash(transactional_id) % self._config().transaction_state_log_num_partitions
        return key_hash(transactional_id) % len(topic.partitions)

    def coordinator_of(self, transactional_id: str) -> int | None:
        topic = self.host.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        leader = topic.partitions[self.partition_for(transactional_id)].leader
        return None if leader == NO_LEADER else leader

    def apply(self, change: ImageChange) -> None:
        """Follow the cluster; after the partitions have."""
        self.host.apply(change)
        if change.brokers:
            for each in self._connections:
                each.look()

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """The disk of these partitions has failed."""
        for partition in partitions:
            if partition.topic == TRANSACTIONS_TOPIC:
                self.host.unload(partition.partition)

    async def wait_loaded(self) -> None:
        await self.host.wait_loaded()

    async def close(self) -> None:
        await self.host.close()
        self.stop_sending()

    def stop_sending(self) -> None:
        """Tell other brokers nothing any more."""
        self.sender.close()
        for each in self._connections:
            each.close()

    # ------------------------------------------------------------------ for producers

    def run(self, command: Any) -> Any:
        """Any command: its reply, or a Deferred of it. Raises KafkaError."""
        if not command.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.host.run(self.partition_for(command.transactional_id), command)

    def run_certainly(self, command: AddPartitions | VerifyPartitions) -> Any:
        """As `run`, and no other coordinator can have ended the transaction meanwhile: on the
        answer a batch is appended, and nobody would end what it begins."""
        if not command.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.host.run_certainly(self.partition_for(command.transactional_id), command)

    def add(self, command: AddPartitions) -> Any:
        """As `run_certainly`; the end of the transaction before is waited for."""
        seconds = self._config().add_partitions_to_txn_retry_backoff_max_ms / 1000
        ask = partial(self.run_certainly, command)
        return self._endings.patiently(command.transactional_id, ask, seconds)

    def list_all(self) -> list[Transaction] | Deferred[list[Transaction]]:
        """The transactions that this broker coordinates. Raises KafkaError while it loads some."""
        return then(gather(self.host.run_everywhere(ListTransactions)), _joined)

    def held(self) -> list[Transaction]:
        """Those of the shards that are in service, as they are in memory: for metrics."""
        return [
            transaction
            for slot in self.host
            if slot.active and isinstance(slot.shard, TransactionShard)
            for transaction in slot.shard.transactions.values()
        ]

    def count_partitions(self, *, active: bool) -> int:
        """How many partitions of the transactions topic are in service here, or being loaded."""
        return sum(slot.active is active for slot in self.host)

    async def init_producer(self, command: InitProducer) -> Identity:
        longest = self._config().transaction_max_timeout_ms
        if not 0 < command.timeout_ms <= longest:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return await self._with_id(command)

    async def end(self, command: EndTransaction) -> Identity:
        return await self._with_id(command)

    async def _with_id(self, command: InitProducer | EndTransaction) -> Identity:
        """Give a command, and once more with a new producer id if it needs one."""
        reply = await when_there(self._run_and_confirm(command))
        if reply is NEEDS_PRODUCER_ID:
            with_id = command._replace(new_producer_id=await self._new_producer_id())
            reply = await when_there(self._run_and_confirm(with_id))
        identity: Identity = reply
        return identity

    def _run_and_confirm(self, command: InitProducer | EndTransaction) -> Any:
        """As `run`; but who was replaced neither calls a transaction ended because the one before
        was, nor a producer fenced that goes on elsewhere."""
        if not command.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.host.run_and_confirm(self.partition_for(command.transactional_id), command)

    # ------------------------------------------------------------------ for leaders of partitions

    async def allow_here(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: frozenset[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether this broker's transaction includes partitions; with `add`, include them."""
        try:
            if add:
                adding = AddPartitions(transactional_id, producer, partitions, RAISES_EPOCH)
                reply = await when_there(self.add(adding))
            else:
                verifying = VerifyPartitions(transactional_id, producer, partitions)
                reply = await when_there(self.run_certainly(verifying))
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        if isinstance(reply, dict):
            return reply
        return dict.fromkeys(partitions, ErrorCode.NONE)

    async def join(
        self,
        transactional_id: str,
        producer: Identity,
        sequences: Mapping[Partition, int],
        *,
        add: bool,
    ) -> dict[Partition, Guard | ErrorCode | None]:
        """What the first batches of a transaction are appended with (`joining.join`)."""
        ask = partial(self.allow, transactional_id, add=add)
        return await join(ask, producer, sequences, raises_epoch=add)

    async def allow(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: frozenset[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Ask the coordinator of a transaction about partitions that are led here, before their
        first batch. With `add` they are included (transaction version 2); while the transaction
        before is still ending, that is tried for a moment, as Kafka does."""
        config = self._config()
        if not add and not config.transaction_partition_verification_enable:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        loop = asyncio.get_running_loop()
        until = loop.time() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            found = await self._coordinators.allow(transactional_id, producer, partitions, add=add)
            if (
                not add
                or ErrorCode.CONCURRENT_TRANSACTIONS not in found.values()
                or loop.time() >= until
            ):
                return found
            await asyncio.sleep(config.add_partitions_to_txn_retry_backoff_ms / 1000)


def _joined(lists: Iterable[list[Transaction] | KafkaError]) -> list[Transaction]:
    transactions: list[Transaction] = []
    for reply in lists:
        if isinstance(reply, KafkaError):
            if reply.code is ErrorCode.NOT_COORDINATOR:
                continue  # the shard went elsewhere meanwhile, and is listed there
            raise reply
        transactions += reply
    return transactions
