"""One broker, put together as `ottla.broker.app` does it, over a simulated disk and network.

Registry, controller, lifecycle, failure detector, replication, partition table, fetch sessions and
the handlers that brokers use among themselves are the product's own, and so are the store on
ZooKeeper and the coordinators of transactions and of groups' offsets. Left out: listeners, codecs,
real logs, members of groups.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

from ottla.broker.failure_detector import FailureDetector
from ottla.broker.lifecycle import Lifecycle
from ottla.broker.loaded_logs import (
    behind_their_leaders,
    lost_partitions,
    needing_new_epochs,
    set_aside_strays,
)
from ottla.broker.offline_partitions import OfflinePartitions
from ottla.broker.running_config import RunningConfig
from ottla.cluster.contact import StoreContact
from ottla.cluster.membership import Host
from ottla.cluster.producer_ids import ProducerIds
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import StoreError
from ottla.cluster.zookeeper.address import parse_address
from ottla.cluster.zookeeper.store import ZooKeeperStore
from ottla.config.broker import BrokerConfig
from ottla.controller.remote import LogEnds
from ottla.controller.service import Controller
from ottla.coordinator.group.service import OFFSETS_TOPIC, Groups
from ottla.coordinator.transaction.service import Transactions
from ottla.coordinator.transaction.state import RAISES_EPOCH, TRANSACTIONS_TOPIC, Identity
from ottla.dispatch.context import Request, Services
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.fetch import MANY, fetch
from ottla.handlers.group_offsets import offset_fetch
from ottla.handlers.offsets import list_offsets
from ottla.handlers.transactional_offsets import txn_offset_commit
from ottla.handlers.transactions import add_partitions_to_txn, write_txn_markers
from ottla.model.broker import Endpoint
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.protocol.messages.offsets import ListOffsetsRequest
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WriteTxnMarkersRequest,
)
from ottla.records.batch import read_header
from ottla.replication.fetch_sessions import FetchSessions
from ottla.replication.flushes import Durability
from ottla.replication.remote import HighWatermarks
from ottla.replication.replicas import Replicas
from ottla.replication.service import Replication
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories

from .batch_log import BatchLog
from .disk import Disk, SimLog
from .ensemble import WORLD, SimConnection
from .invariants import Acked
from .loop import Process, VirtualClock, VirtualLoop
from .network import Network, ServerSide, SimPeers

logger = logging.getLogger(__name__)

LISTENER = "PLAINTEXT"
FETCH_VERSION = 18
OFFSETS_VERSION = 10
ADD_VERSION = 5
MARKERS_VERSION = 2
TXN_COMMIT_VERSION = 5
OFFSET_FETCH_VERSION = 7
NUMBERS = struct.Struct(">q")
TRANSACTIONAL_TOPIC = "x"
"""What is in transactions is written to this one."""


def _log_of(tp: TopicPartition) -> type[SimLog]:
    of_batches = (TRANSACTIONAL_TOPIC, TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
    return BatchLog if tp.topic in of_batches else SimLog


class Served:
    """The part of `Services` that these handlers use."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)

    @property
    def image(self) -> ClusterImage:
        image: ClusterImage = self.__dict__["registry"].image
        return image


class Threads:
    """What `Workers` is to coordinators: a thread takes a moment."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def run_in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(self._rng.uniform(0.0, 0.005))
        return function(*args)


class SimBroker:
    """One machine: its disk, and the process that runs on it, one after the other."""

    def __init__(
        self,
        node_id: int,
        loop: VirtualLoop,
        network: Network,
        config: BrokerConfig,
        rng: random.Random,
    ) -> None:
        self.id = node_id
        self._loop = loop
        self._network = network
        self._static = config
        self._rng = rng
        self._clock = VirtualClock(loop)
        self.disk = Disk(loop.touch, rng, _log_of)
        self.powered = True
        self.failures: list[str] = []  # why its processes ended by themselves
        # of its process
        self.process = Process(str(node_id))
        self.process.kill()
        self.listening = False
        self.ending = False
        self.replicas: Replicas | None = None
        self.registry: Registry | None = None
        self.controller: Controller | None = None
        self.transactions: Transactions | None = None
        self.connection: SimConnection | None = None
        self.offline: OfflinePartitions | None = None
        self.seconds_before = 0.0  # of processes before this one
        self._parts: tuple[Any, ...] = ()
        self._starting: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self.process.alive

    @property
    def ready(self) -> bool:
        """Whether it has joined the cluster, and has not begun to leave it."""
        return bool(self._parts) and not self.ending

    @property
    def seconds(self) -> float:
        """CPU time spent."""
        return self.seconds_before + self.process.seconds

    # --- its process --------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.running
        self.ending = False
        self.seconds_before += self.process.seconds
        self.powered = True
        self.process = self._loop.new_process(str(self.id))
        self.disk.start()
        process = self.process
        coroutine = self._start(process)
        self._starting = self._loop.create_task(coroutine, context=process.context)

    async def _start(self, process: Process) -> None:
        while True:
            try:
                await self._begin()
                return
            except (StoreError, KafkaError) as error:
                logger.info("broker %d cannot start: %r", self.id, error)
                await asyncio.sleep(0.5)  # as whoever starts it again
            except Exception as error:
                self._task_died("starting", error)
                raise

    async def _begin(self) -> None:
        tasks = Tasks(self._task_died)
        store = await ZooKeeperStore.open(parse_address("zookeeper:2181/sim"))
        self.connection = cast(SimConnection, store.connection)
        try:
            await self._join(store, tasks)
        except BaseException:
            await store.close()
            raise

    async def _join(self, store: ZooKeeperStore, tasks: Tasks) -> None:
        registry = Registry(store, entropy=self._rng.randbytes, tasks=tasks)
        self.registry = registry
        await registry.load()
        await registry.ensure_cluster_id()
        config = RunningConfig(self._static, self.id, registry)
        logs = cast(LogDirectories, self.disk)
        set_aside_strays(logs, registry.image, self.id)
        await registry.raise_leader_epochs(needing_new_epochs(logs, registry.image, self.id))
        peers = SimPeers(registry, self.id, LISTENER)
        peers.network = self._network
        replication = Replication(
            self.id,
            registry,
            clock=self._clock,
            config=config.current,
            tasks=tasks,
            peers=peers,
            truncate=self.disk.truncate,
        )
        replicas = Replicas(
            self.id, logs, cast(Durability, self.disk), config.of_topic, replication
        )
        controller = Controller(
            registry,
            self.id,
            defaults=config.topic_defaults,
            check_topic_config=config.check_topic,
            rng=self._rng,
            rules_of=config.rules_of,
            ask_log_ends=LogEnds(peers).ask,
            upkeep=config.upkeep,
        )
        groups = Groups(
            self.id,
            partitions=replicas,
            clock=self._clock,
            workers=cast(Workers, Threads(self._rng)),
            tasks=tasks,
            config=config.current,
            new_id=lambda: f"{self._rng.getrandbits(64):016x}",
        )
        transactions = Transactions(
            self.id,
            partitions=replicas,
            groups=groups,
            clock=self._clock,
            workers=cast(Workers, Threads(self._rng)),
            tasks=tasks,
            config=config.current,
            version=lambda: RAISES_EPOCH,
            new_producer_id=ProducerIds(registry).next,
            peers=peers,
        )
        self.services = Served(
            node_id=self.id,
            clock=self._clock,
            config=config.current(),
            registry=registry,
            replicas=replicas,
            replication=replication,
            controller=controller,
            groups=groups,
            transactions=transactions,
            fetch_sessions=FetchSessions(1000, lambda: self._rng.randrange(1, 2**31)),
        )
        self.offline = offline = OfflinePartitions(
            registry,
            self.id,
            logs=logs,
            table=replicas,
            rules_of=config.rules_of,
            broker_epoch=lambda: replication.broker_epoch,
            unclean=controller.unclean,
            tasks=tasks,
        )
        image = registry.image
        everything = ImageChange(ClusterImage(), image, frozenset(image.topics))
        for part in (replicas, groups, transactions):
            part.apply(everything)
        replication.start(replicas)

        def follow(change: ImageChange) -> None:
            if change.new.broker_configs != change.old.broker_configs:
                self.services.config = config.refresh()
                replicas.apply(change)
                replicas.reconfigure()
            else:
                replicas.apply(change)
            groups.apply(change)
            transactions.apply(change)
            offline.look()

        def registered(epoch: int) -> None:
            replication.registered(epoch)
            groups.host.look()
            transactions.host.look()

        registry.subscribe(follow)
        image = await registry.load()
        behind = await behind_their_leaders(logs, image, self.id, HighWatermarks(peers).ask)
        lost = lost_partitions(behind, image)
        about = Host(
            endpoints=(Endpoint(LISTENER, "sim", self.id),),
            rack=self._static.broker_rack,
            host=f"machine-{self.id}",
            directories=self.disk.directory_ids,
            boot_id=f"boot-{self.disk.boot}",
            incarnation=f"{self._rng.getrandbits(64):016x}",
            clean=self.disk.were_clean,
            lost=lost is None,
            lost_partitions=lost or frozenset(),
        )

        def certain(until: float) -> None:
            replication.session_until = until

        lifecycle = Lifecycle(
            registry,
            controller,
            tasks,
            StoreContact(self._clock),
            node_id=self.id,
            about=about,
            on_registered=registered,
            on_certain=certain,
        )
        self.replicas, self.controller, self.transactions = replicas, controller, transactions
        # The port is bound from the start on; here whoever connects early is answered early, too.
        self.listening = True
        await lifecycle.start()
        await lifecycle.wait_ready()
        detector = FailureDetector(registry, self.id, LISTENER, tasks)
        detector.start()
        self._parts = lifecycle, detector, transactions, groups, replication, store

    def _task_died(self, what: str, error: BaseException | None) -> None:
        if self.ending:
            return
        if isinstance(error, StoreError) and not self.ready:
            # Its start has failed, and says why; somebody starts it again.
            self._loop.call_soon(self._start_again, self.process, context=WORLD)
        else:
            self.failures.append(f"broker {self.id}: {what} has ended: {error!r}")

    def _start_again(self, process: Process) -> None:
        if self.process is process and process.alive:
            self.kill()
            self.start()

    def kill(self) -> None:
        """kill -9, now."""
        if self.running:
            failed = self._failed
            self._end()
            self.disk.process_died()
            if failed:
                self.disk.lose_unwritten()

    @property
    def _failed(self) -> bool:
        """Whether the cluster knows that a disk has failed: else the next process might be trusted
        with what is missing, and would find that by its checksums, which this world has not."""
        if not self.disk.offline_partitions or self.registry is None:
            return False
        state = self.registry.image.broker_states.get(self.id)
        return state is not None and state.failed

    def fail_disk(self, partitions: Collection[TopicPartition]) -> None:
        """The folder of these partitions fails, as the process learns by its next write."""
        replicas, transactions, offline = self.replicas, self.transactions, self.offline
        if replicas is None or transactions is None or offline is None:
            return
        self.disk.fail(partitions)
        replicas.take_offline(partitions)
        transactions.lose(partitions)
        offline.folder_failed()

    def fail_power(self) -> int:
        """The machine is off: returns how many records are lost with it."""
        self._end()
        self.powered = False
        return self.disk.power_failed()

    def _end(self) -> None:
        self.process.kill()
        self.listening = False
        self._parts = ()
        if self.connection is not None:
            self.connection.process_died()
            self.connection = None
        self._network.reset_all(self)
        self.replicas = self.controller = self.transactions = None

    async def stop(self) -> None:
        """A stop as it should be: leaderships are handed over first."""
        self.ending = True
        lifecycle, detector, transactions, groups, replication, store = self._parts
        assert self.offline is not None
        await self.offline.note_failure()
        await lifecycle.hand_over()
        await detector.stop()
        await lifecycle.stop()
        await transactions.close()
        await groups.close()
        await self.offline.stop()
        await replication.stop()
        failed = self._failed
        self.disk.stop_cleanly()
        if failed:
            self.disk.lose_unwritten()
        await store.close()
        self._end()

    def stop_soon(self) -> asyncio.Task[None]:
        return self._loop.create_task(self.stop(), context=self.process.context)

    # --- requests -----------------------------------------------------------------------------

    def handle(self, body: Any, connection: ServerSide) -> Any:
        """What the dispatcher does with a request of another broker."""
        services = cast(Services, self.services)
        reply: Any
        if isinstance(body, FetchRequest):
            entries = sum(len(topic.partitions) for topic in body.topics)
            self._network.entries += entries
            request: Any = Request(
                FETCH_VERSION, "broker", cast(Any, connection), body, entries > MANY
            )
            reply = fetch(request, services)
        else:
            handler, version = HANDLERS[type(body)]
            reply = handler(Request(version, "broker", cast(Any, connection), body), services)
        return _finished(reply)

    def append(self, topic: str, index: int, number: int) -> Any:
        """A produce request with acks=all: (partition, offsets), or KafkaError."""
        if self.replicas is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = self.replicas.by_name(topic, index)
        partition.check_enough_in_sync()
        return partition, partition.append(memoryview(NUMBERS.pack(number)), 0)

    async def append_in_transaction(
        self, tp: TopicPartition, transactional_id: str, producer: Identity, batch: Any
    ) -> Acked:
        """A produce request of a transactional producer, as `handlers/produce.py` serves it.
        Raises KafkaError."""
        replicas, transactions = self.replicas, self.transactions
        if replicas is None or transactions is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = replicas.by_name(*tp)
        partition.check_enough_in_sync()
        sequence = read_header(batch).base_sequence
        guard: Any = partition.log.begin_verification(*producer, sequence)
        if guard is not None:
            joined = await transactions.join(
                transactional_id, producer, {partition: sequence}, add=True
            )
            guard = joined[partition]
            if isinstance(guard, ErrorCode):
                raise KafkaError(guard)
            partition.check_enough_in_sync()
        info = partition.append(memoryview(bytearray(batch)), self._clock.now_ms(), guard=guard)
        record = self.disk.logs[tp].records[info.base_offset]
        acked = Acked(partition.leader_epoch, info.base_offset, record)
        if not partition.committed(info):
            await partition.wait_committed(info)
        return acked

    async def commit_offset_in_transaction(
        self, group: str, offset: int, transactional_id: str, producer: Identity
    ) -> None:
        """TxnOffsetCommit. Raises KafkaError."""
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        body = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=TRANSACTIONAL_TOPIC, partitions=[partition])],
        )
        response = await txn_offset_commit(*self._asked(TXN_COMMIT_VERSION, body))
        _check(response.topics[0].partitions[0].error_code)

    async def committed_offset(self, group: str, *, stable: bool) -> int:
        """OffsetFetch of what `commit_offset_in_transaction` commits; -1 for none. Raises
        KafkaError."""
        topic = OffsetFetchRequestTopic(name=TRANSACTIONAL_TOPIC, partition_indexes=[0])
        body = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=stable)
        response = offset_fetch(*self._asked(OFFSET_FETCH_VERSION, body))
        if isinstance(response, Deferred):
            response = await response
        _check(response.error_code)
        (partition,) = response.topics[0].partitions
        _check(partition.error_code)
        return partition.committed_offset

    def _asked(self, version: int, body: Any) -> tuple[Request[Any], Services]:
        """A client's request, for a handler."""
        if self.replicas is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return Request(version, "client", cast(Any, None), body), cast(Services, self.services)


def _check(code: int) -> None:
    if code:
        raise KafkaError(ErrorCode(code))


HANDLERS: dict[type, tuple[Callable[..., Any], int]] = {
    ListOffsetsRequest: (list_offsets, OFFSETS_VERSION),
    AddPartitionsToTxnRequest: (add_partitions_to_txn, ADD_VERSION),
    WriteTxnMarkersRequest: (write_txn_markers, MARKERS_VERSION),
}


def _finished(reply: Any) -> Any:
    """A reply that was made in turns with others, made in one go."""
    if not isinstance(reply, Iterator):
        return reply
    while True:
        try:
            next(reply)
        except StopIteration as stop:
            return _finished(stop.value)
