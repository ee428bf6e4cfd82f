"""Broker: everything a broker is made of, put together.

`start` and `stop` are the whole story, in order. Nothing here decides anything about Kafka; the
parts do. Whatever can be wrong with the surroundings (a taken port, a locked folder, a folder of
another node) is found before anything is served, and becomes `StartFailed` with one sentence.

A start goes through named steps, each of which is given what earlier ones have made. What a step
has begun is ended in the opposite order, both when the broker stops and when a later step fails.

The metadata store is in ZooKeeper where the settings name one, else the broker's own, in its data
folders, unless one is handed in: a handle of a store that several brokers of this process share
(`cluster.handle`), or a client of one that is elsewhere. Either way the broker closes it when it
stops.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any

from ottla.broker.addresses import not_bound
from ottla.broker.failure_detector import FailureDetector
from ottla.broker.internal_topics import InternalTopics
from ottla.broker.lifecycle import Lifecycle, load_in_time
from ottla.broker.loaded_logs import (
    behind_their_leaders,
    log_progress,
    lost_partitions,
    needing_new_epochs,
    report_lost,
    set_aside_strays,
)
from ottla.broker.metering import measure
from ottla.broker.metrics_page import MetricsPage
from ottla.broker.offline_partitions import OfflinePartitions
from ottla.broker.own_store import OwnStore
from ottla.broker.running_config import (
    RunningConfig,
    cleaner_settings,
    connection_limits,
    storage_settings,
)
from ottla.broker.start_failed import StartFailed
from ottla.cluster.contact import StoreContact
from ottla.cluster.departed import DepartedBrokers
from ottla.cluster.layout import UnreadableValue
from ottla.cluster.membership import Host, Membership
from ottla.cluster.producer_ids import ProducerIds
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import MetadataStore, StoreError
from ottla.config.broker import BrokerConfig
from ottla.config.setting import ConfigError
from ottla.controller.remote import ControllerLink, LogEnds
from ottla.controller.service import Controller
from ottla.coordinator.group.classic import ClassicMachine
from ottla.coordinator.group.consumer import ConsumerMachine
from ottla.coordinator.group.group import ShardState
from ottla.coordinator.group.service import Groups
from ottla.coordinator.transaction.service import FEATURE as TRANSACTION_VERSION
from ottla.coordinator.transaction.service import Transactions
from ottla.dispatch.context import Services
from ottla.dispatch.dispatcher import Dispatcher
from ottla.dispatch.table import Table
from ottla.errors import KafkaError
from ottla.handlers import HANDLERS
from ottla.model.broker import Endpoint
from ottla.model.features import unreadable
from ottla.model.ids import TopicPartition
from ottla.model.image import ClusterImage
from ottla.net.connection import Connection, Reply
from ottla.net.listener import Bound, Listeners
from ottla.replication.fetch_sessions import FetchSessions
from ottla.replication.remote import HighWatermarks, Peers
from ottla.replication.replicas import Replicas
from ottla.replication.service import NO_REGISTRATION, Replication
from ottla.replication.throttle import folder_moves_throttle
from ottla.runtime.clock import Clock, SystemClock
from ottla.runtime.files import FileSystem, OsFileSystem
from ottla.runtime.loop import StallMonitor
from ottla.runtime.metrics import Metrics
from ottla.runtime.process import boot_id, divide_descriptors, file_limit
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories, StorageUnavailable
from ottla.telemetry.clients import Telemetry

__all__ = ["Broker", "StartFailed"]

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
# Segment files held open, where the limit on descriptors allows it.
MAX_OPEN_FILES = 2_048


class Broker:
    """One broker. `await start()`, use it, `await stop()`; not to be started twice."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MetadataStore | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        boot: str | None = None,
        handlers: Iterable[Callable[..., Any]] = HANDLERS,
    ) -> None:
        # handed in
        self._static = config
        self._given_store = store
        self._handlers = handlers
        self._fs = fs or OsFileSystem()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._boot = boot_id() if boot is None else boot
        self._descriptors = divide_descriptors(file_limit(), MAX_OPEN_FILES)
        # known after start
        self.node_id = config.node_id
        self.cluster_id = ""
        self.listening: tuple[Bound, ...] = ()
        self.endpoints: tuple[Endpoint, ...] = ()  # what clients are told
        self.data_dirs = config.log_dirs
        self.metrics = Metrics()
        self._services: Services | None = None
        self._config: RunningConfig
        self._listeners: Listeners
        self._store: MetadataStore
        self._peers: Peers
        self._lifecycle: Lifecycle
        self._detector: FailureDetector
        self._offline: OfflinePartitions
        self._page: MetricsPage | None = None
        # while it runs
        self._running = AsyncExitStack()
        self._failed: asyncio.Future[str] | None = None
        self._tasks = Tasks(self._task_died)
        self._ending = False
        self._epochs_raised = False

    @property
    def services(self) -> Services:
        """What handlers work with, from the moment there is something to answer."""
        assert self._services is not None, "the broker was not started"
        return self._services

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are served, if they are."""
        return None if self._page is None else self._page.url

    @property
    def chosen_hosts(self) -> frozenset[str]:
        """The listeners whose advertised host nobody gave."""
        return self._static.listener_plan.chosen

    @property
    def _store_patience(self) -> float:
        """Seconds that the store, if others run it, may be away during the start: ZooKeeper, or the
        process that lends one to the brokers of a machine."""
        return self._static.zookeeper_connection_timeout_ms / 1000

    async def start(self) -> None:
        """Everything in its order; on failure what was started is stopped again."""
        self._failed = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            try:
                await self._start(stack)
            except (StorageUnavailable, StoreError, ConfigError, UnreadableValue) as error:
                raise StartFailed(str(error)) from None
            except KafkaError as error:
                raise StartFailed(error.message or str(error)) from None
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """Answer what is being answered, flush, mark the folders as cleanly closed."""
        self._ending = True
        await self._running.aclose()
        logger.info("stopped")

    async def abandon(self, cut: Callable[[], None]) -> None:
        """Stop as kill -9 does, for tests: nothing is answered, flushed or given back.

        Connections are closed, then `cut` is called, which has to see to it that nothing reaches
        the disk any more and that its locks are free; then threads and descriptors are let go.
        """
        self._ending = True
        self._running.pop_all()
        if self._page is not None:
            await self._page.close()
        self._listeners.close()
        self.services.replicas.stop_making()
        await self._lifecycle.abandon()
        await self._detector.stop()
        await self._offline.stop()
        services = self.services
        await services.replication.stop()
        services.controller_link.close()
        services.transactions.stop_sending()
        cut()
        services.logs.cleaner.abandon()
        services.logs.moves.abandon_all()
        services.workers.close()
        for log in services.logs.logs.values():
            log.close_files()
        await self._store.close()

    @property
    def connections(self) -> Collection[Connection]:
        """The clients that are connected, always the newest state."""
        return self._listeners.connections

    @property
    def reached(self) -> Collection[int]:
        """The brokers whose death this one would notice at once."""
        return self._detector.reached

    async def wait_failed(self) -> str:
        """Returns, with the reason, when the broker cannot go on: no data folder is left, the
        metadata store has failed, or a task in the background has died."""
        assert self._failed is not None
        return await self._failed

    # ------------------------------------------------------------------ the order of things

    async def _start(self, stack: AsyncExitStack) -> None:
        if self._given_store is not None:
            stack.push_async_callback(self._given_store.close)
        await self._open_page(stack)
        workers = Workers(children=self._static.num_recovery_threads_per_data_dir)
        stack.callback(workers.close)
        # The ports and the folders are ours, or nothing happens: a port that is taken leaves no
        # folder behind. Nothing is accepted yet.
        listeners, bound = self._take_ports(stack)
        logs = self._take_folders(stack, workers)
        # What the cluster is, and who we are in it.
        registry = await self._open_registry(stack, logs)
        config = self._config = RunningConfig(self._static, self.node_id, registry)
        await self._load_logs(stack, logs, registry, config)
        # Who answers.
        services = self._services = self._build_services(workers, logs, registry, config)
        logs.require_folder()  # from now on, losing the last one is told to `_folder_offline`
        self._follow_image(stack, services)
        dispatcher = Dispatcher(services.table, services)
        stack.push_async_callback(dispatcher.close)
        # Part of the cluster, and open.
        await self._join_cluster(stack, services, bound)
        logs.start_schedule()
        self._watch_loop(stack)
        measure(self.metrics, services, listeners)
        self._open_listeners(stack, listeners, dispatcher)
        self.listening = bound
        # When the broker stops, other brokers lead its partitions first, then those who wait for a
        # rebalance are sent elsewhere.
        stack.push_async_callback(services.groups.close)
        stack.push_async_callback(services.transactions.close)
        stack.push_async_callback(self._lifecycle.hand_over)
        stack.push_async_callback(self._offline.note_failure)

    async def _open_page(self, stack: AsyncExitStack) -> None:
        """Metrics, and whether clients are served; before all else, and until the very end."""
        address = self._static.metrics_address
        if address is None:
            return
        self._page = page = MetricsPage(
            self.metrics,
            self._clock,
            folders=lambda: self.data_dirs,
            failure=self._failure,
            missing=self._missing,
        )
        stack.push_async_callback(page.close)
        await page.open(*address)

    def _failure(self) -> str | None:
        """Why the broker is about to end, if so."""
        return None if self._failed is None or not self._failed.done() else self._failed.result()

    def _missing(self) -> dict[str, str]:
        """What is missing for clients to be served, and why."""
        if self._ending:
            return {"running": "the broker is stopping"}
        failure = self._failure()
        if failure is not None:
            return {"running": failure}
        if not self.listening:
            return {"running": "the broker is starting"}
        services = self.services
        missing: dict[str, str] = {}
        epoch, admitted = services.replication.broker_epoch, services.image.brokers
        if epoch == NO_REGISTRATION:
            missing["registered"] = "the broker has lost its registration in the metadata store"
        elif self.node_id not in admitted or admitted[self.node_id].epoch != epoch:
            missing["admitted"] = "the controller has not admitted the broker to the cluster"
        failed = services.logs.offline_folders
        if failed:
            missing["log_dirs"] = "; ".join(f"{each}: {why}" for each, why in failed.items())
        return missing

    def _take_folders(self, stack: AsyncExitStack, workers: Workers) -> LogDirectories:
        """The data folders, locked; their logs are not read yet."""
        logs = LogDirectories(
            self._fs,
            self._static.log_dirs,
            clock=self._clock,
            workers=workers,
            settings=storage_settings(self._static, self._descriptors),
            rng=self._rng,
            on_offline=self._folder_offline,
            tasks=self._tasks,
        )
        logs.open_folders()
        stack.callback(logs.release)
        return logs

    def _take_ports(self, stack: AsyncExitStack) -> tuple[Listeners, tuple[Bound, ...]]:
        """The listeners, bound, so that a taken port fails the start now."""
        limits = connection_limits(self._static, self._descriptors)
        self._listeners = listeners = Listeners(self._not_yet, limits, self._clock)
        stack.callback(listeners.close)
        bound = []
        for wanted in self._static.listeners:
            try:
                bound.append(listeners.bind(wanted.name, wanted.host, wanted.port))
            except (OSError, UnicodeError) as error:
                raise StartFailed(not_bound(wanted.host, wanted.port, error)) from None
        return listeners, tuple(bound)

    async def _open_registry(self, stack: AsyncExitStack, logs: LogDirectories) -> Registry:
        """The cluster's metadata, read; the folders are those of this node and cluster."""
        own = None
        store = self._given_store
        if store is None and self._static.zookeeper_connect is not None:
            from ottla.broker.zookeeper_store import open_zookeeper

            store = await open_zookeeper(self._static, self._fs, logs, _cluster_id_of(logs))
            stack.push_async_callback(store.close)
        if store is None:
            own = OwnStore(self._fs, logs)
            store = await own.open()
            stack.push_async_callback(store.close)
            await own.check(store)
        self._store = store
        registry = Registry(store, tasks=self._tasks)
        await registry.load()
        why = unreadable(registry.features)
        if why is not None:
            raise StartFailed(f"{why}: start a newer version of Ottla here")
        self._identify(logs)
        await self._refuse_duplicate(registry, logs)
        self.cluster_id = await registry.ensure_cluster_id(_cluster_id_of(logs))
        logs.identify(self.node_id, self.cluster_id)
        if own is not None:
            own.note()
        return registry

    async def _refuse_duplicate(self, registry: Registry, logs: LogDirectories) -> None:
        """Before anything is changed in the name of this broker: new folders keep no wrong id."""
        known = all(meta is not None and meta.directory_id for meta in logs.meta.values())
        registered = Peers(registry, self.node_id, self._static.listener_plan.inter_broker)
        Membership(registry).refuse_duplicate(
            self.node_id,
            logs.directory_ids if known else (),
            socket.gethostname(),
            answers=await registered.answers(self.node_id),
        )

    def _identify(self, logs: LogDirectories) -> None:
        """The node's number: as told, else as the folders remember it."""
        if self._static.is_given("node.id") or self._static.is_given("broker.id"):
            return
        for meta in logs.meta.values():
            if meta is not None and meta.node_id is not None:
                self.node_id = meta.node_id
                return

    async def _load_logs(
        self, stack: AsyncExitStack, logs: LogDirectories, registry: Registry, config: RunningConfig
    ) -> None:
        """The logs, recovered where needed, and in agreement with the metadata."""
        await logs.load(
            config.of_topic_named,
            progress=log_progress,
            topic_ids={name: topic.id for name, topic in registry.image.topics.items()},
        )
        stack.push_async_callback(self._close_logs, logs)
        set_aside_strays(logs, registry.image, self.node_id)
        report_lost(logs, registry.image, self.node_id)
        await registry.raise_leader_epochs(needing_new_epochs(logs, registry.image, self.node_id))
        self._epochs_raised = True
        self.data_dirs = tuple(logs.folders)

    async def _close_logs(self, logs: LogDirectories) -> None:
        """Clean only with the epochs raised: the mark tells the next start that none need be."""
        await logs.close(clean=self._epochs_raised)

    def _build_services(
        self, workers: Workers, logs: LogDirectories, registry: Registry, config: RunningConfig
    ) -> Services:
        """Everything that handlers use."""
        self._peers = peers = Peers(registry, self.node_id, self._static.listener_plan.inter_broker)
        replication = Replication(
            self.node_id,
            registry,
            clock=self._clock,
            config=config.current,
            tasks=self._tasks,
            peers=peers,
            truncate=logs.cut,
        )
        replicas = Replicas(self.node_id, logs, logs.group_commit, config.of_topic, replication)
        logs.moves.owner = replicas
        logs.moves.copying.pace = folder_moves_throttle(self.node_id, config.current, self._clock)
        logs.moves.at_once = lambda: config.current().num_replica_alter_log_dirs_threads
        controller = Controller(
            registry,
            self.node_id,
            defaults=config.topic_defaults,
            check_topic_config=config.check_topic,
            rng=self._rng,
            rules_of=config.rules_of,
            ask_log_ends=LogEnds(peers).ask,
            upkeep=config.upkeep,
        )
        link = ControllerLink(controller, registry, peers)
        logs.positions = groups = self._build_groups(workers, replicas, config)
        producer_ids = ProducerIds(registry)
        transactions = Transactions(
            self.node_id,
            partitions=replicas,
            groups=groups,
            clock=self._clock,
            workers=workers,
            tasks=self._tasks,
            config=config.current,
            version=lambda: registry.features.get(TRANSACTION_VERSION, 0),
            new_producer_id=producer_ids.next,
            peers=peers,
            on_loaded=self.metrics.histogram(
                "kafka_server_transaction_coordinator_metrics_partition_load_time_seconds",
                "Loading one partition of the transactions' log.",
            ).record,
        )
        return Services(
            node_id=self.node_id,
            clock=self._clock,
            config=config.current(),
            registry=registry,
            departed=DepartedBrokers(registry, self._clock),
            contact=StoreContact(self._clock),
            replicas=replicas,
            replication=replication,
            logs=logs,
            controller=controller,
            controller_link=link,
            groups=groups,
            transactions=transactions,
            internal_topics=InternalTopics(link, lambda: registry.image, config.current),
            producer_ids=producer_ids,
            fetch_sessions=FetchSessions(
                self._static.max_incremental_fetch_session_cache_slots, self._new_session_id
            ),
            telemetry=Telemetry(
                self._clock,
                lambda: registry.image.client_metrics,
                lambda: uuid.UUID(self._new_member_id()).bytes,
                shown=self._page is not None,
            ),
            workers=workers,
            metrics=self.metrics,
            table=Table(self._handlers),
        )

    def _build_groups(self, workers: Workers, replicas: Replicas, config: RunningConfig) -> Groups:
        def consumer_machine(state: ShardState, classic: ClassicMachine) -> ConsumerMachine:
            return ConsumerMachine(state, classic, config.of_group)

        return Groups(
            self.node_id,
            partitions=replicas,
            clock=self._clock,
            workers=workers,
            tasks=self._tasks,
            config=config.current,
            new_id=self._new_member_id,
            consumer=consumer_machine,
            on_loaded=self.metrics.histogram(
                "kafka_server_group_coordinator_metrics_partition_load_time_seconds",
                "Loading one partition of the groups' log.",
            ).record,
        )

    def _follow_image(self, stack: AsyncExitStack, services: Services) -> None:
        """Partitions and groups as the image has them, now and after every change."""
        stack.callback(services.replicas.stop_making)
        everything = _everything(services.image)
        services.replicas.apply(everything)
        services.groups.apply(everything)
        services.transactions.apply(everything)
        services.replication.start(services.replicas)
        stack.push_async_callback(services.replication.stop)
        self._offline = offline = OfflinePartitions(
            services.registry,
            self.node_id,
            logs=services.logs,
            table=services.replicas,
            rules_of=self._config.rules_of,
            broker_epoch=lambda: services.replication.broker_epoch,
            unclean=services.controller.unclean,
            tasks=self._tasks,
        )
        stack.push_async_callback(offline.stop)
        stack.callback(services.controller_link.close)
        stack.push_async_callback(services.groups.close)
        stack.push_async_callback(services.transactions.close)
        services.registry.subscribe(self._on_image)

    async def _join_cluster(
        self, stack: AsyncExitStack, services: Services, bound: tuple[Bound, ...]
    ) -> None:
        """Registered, up to date, and in a cluster with a controller, whichever broker that is."""
        advertised = self._static.listener_plan.advertise(
            {listener.name: listener.port for listener in bound}
        )
        self.endpoints = tuple(
            Endpoint(listener.name, listener.host, listener.port, listener.security_protocol)
            for listener in advertised
        )
        services.endpoints = {endpoint.listener: endpoint for endpoint in self.endpoints}
        self._lifecycle = lifecycle = Lifecycle(
            services.registry,
            services.controller,
            self._tasks,
            services.contact,
            node_id=self.node_id,
            about=await self._about(services),
            on_registered=self._on_registered,
            on_certain=self._on_certain,
        )
        stack.push_async_callback(lifecycle.stop)
        await lifecycle.start(patience=self._store_patience)
        await self._unless_failed(lifecycle.wait_ready())
        services.logs.losses_are_known()
        self._detector = detector = FailureDetector(
            services.registry,
            self.node_id,
            self._static.listener_plan.inter_broker,
            self._tasks,
        )
        detector.start()
        stack.push_async_callback(detector.stop)
        if math.isfinite(self._store.session_seconds):  # it is elsewhere, and may go away
            keeping = services.producer_ids.keep_reserve()
            reserve = self._tasks.start("keeping producer ids in reserve", keeping)
            stack.callback(reserve.cancel)

    async def _about(self, services: Services) -> Host:
        """What the broker says of itself to the cluster."""
        logs = services.logs
        # The logs may have taken long.
        image = await load_in_time(services.registry, services.contact, self._store_patience)
        behind = await behind_their_leaders(
            logs, image, self.node_id, HighWatermarks(self._peers).ask
        )
        lost = lost_partitions(logs.lost_partitions | behind, image)
        return Host(
            endpoints=self.endpoints,
            rack=self._static.broker_rack,
            host=socket.gethostname(),
            directories=logs.directory_ids,
            boot_id=self._boot,
            incarnation=self._new_member_id(),
            clean=logs.were_clean,
            lost=lost is None,
            lost_partitions=lost or frozenset(),
        )

    async def _unless_failed(self, condition: Coroutine[None, None, None]) -> None:
        """Wait for a condition of the start, which cannot come any more once the broker failed."""
        assert self._failed is not None
        waiting = asyncio.ensure_future(condition)
        try:
            await asyncio.wait((waiting, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                raise StartFailed(self._failed.result())
            await waiting
        finally:
            waiting.cancel()

    def _watch_loop(self, stack: AsyncExitStack) -> None:
        stalls = StallMonitor(
            self.metrics.histogram(
                "ottla_loop_stall_seconds", "By how much the event loop was late for a timer."
            )
        )
        stalls.start()
        stack.callback(stalls.stop)

    def _open_listeners(
        self, stack: AsyncExitStack, listeners: Listeners, dispatcher: Dispatcher
    ) -> None:
        """Clients come in from now on."""
        listeners.answer = dispatcher.answer
        listeners.open()
        stack.push_async_callback(listeners.drain, DRAIN_SECONDS)

    def _not_yet(self, connection: Connection, frame: memoryview) -> Reply | Deferred[Reply]:
        raise AssertionError("nothing is accepted before the broker is ready")

    def _new_member_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _new_session_id(self) -> int:
        return self._rng.randrange(1, 2**31)

    # ------------------------------------------------------------------ what changes

    def _on_registered(self, epoch: int) -> None:
        self.services.replication.registered(epoch)
        self.services.groups.host.look()
        self.services.transactions.host.look()

    def _on_certain(self, until: float) -> None:
        self.services.replication.session_until = until

    def _on_image(self, change: ImageChange) -> None:
        services = self.services
        if change.new.broker_configs != change.old.broker_configs:
            services.config = config = self._config.refresh()
            self._listeners.limits = connection_limits(config, self._descriptors)
            services.replicas.apply(change)
            services.replicas.reconfigure()
            services.logs.cleaner.reconfigure(cleaner_settings(config))
        else:
            services.replicas.apply(change)
        services.logs.cleaner.look_soon()
        services.groups.apply(change)
        services.transactions.apply(change)
        self._offline.look()

    def _folder_offline(self, folder: str, lost: tuple[TopicPartition, ...]) -> None:
        services = self._services
        if services is None:
            return  # not yet served: the step that needs the folder says what is wrong with it
        services.replicas.take_offline(lost)
        services.groups.lose(lost)
        services.transactions.lose(lost)
        self._offline.folder_failed()
        if not services.logs.folders:
            self._fail(
                "no data folder is left: " + "; ".join(services.logs.offline_folders.values())
            )

    def _task_died(self, what: str, error: BaseException | None) -> None:
        """A broker that goes on without one of its tasks only looks alive."""
        if self._ending:
            return
        if isinstance(error, StoreError):
            # One that may come back was waited for; this one is only read again by a restart.
            self._fail(f"the metadata store was lost: {error}; restart the broker")
            return
        logger.critical("%s has ended", what, exc_info=error)
        why = "" if error is None else f": {type(error).__name__}: {error}"
        self._fail(f"{what} has ended{why}; restart the broker, and please report this")

    def _fail(self, reason: str) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(reason)


def _everything(image: ClusterImage) -> ImageChange:
    return ImageChange(ClusterImage(), image, frozenset(image.topics))


def _cluster_id_of(logs: LogDirectories) -> str | None:
    return next((meta.cluster_id for meta in logs.meta.values() if meta and meta.cluster_id), None)
