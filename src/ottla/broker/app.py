"""Broker: everything a broker is made of, put together.

`start` and `stop` are the whole story, in order. Nothing here decides anything about Kafka; the
parts do. Whatever can be wrong with the surroundings (a taken port, a locked folder, a folder of
another node) is found before anything is served, and becomes `StartFailed` with one sentence.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any

from ottla.broker.addresses import not_bound
from ottla.broker.internal_topics import InternalTopics
from ottla.broker.metadata_home import (
    Home,
    MetadataMissing,
    check_filled,
    find_home,
    remember,
)
from ottla.broker.metering import measure
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.membership import Host, Membership
from ottla.cluster.producer_ids import ProducerIds
from ottla.cluster.registry import ImageChange, Registry
from ottla.cluster.store import MetadataStore, StoreError
from ottla.config.broker import BrokerConfig
from ottla.config.checks import parse_ip_limits
from ottla.config.dynamic import validate_topic_overrides
from ottla.config.setting import ConfigError
from ottla.config.topic import TopicConfig
from ottla.controller.service import Controller
from ottla.controller.topics import TopicDefaults
from ottla.coordinator.group.consumer import ConsumerMachine
from ottla.coordinator.group.service import Groups
from ottla.dispatch.context import Services
from ottla.dispatch.dispatcher import Dispatcher
from ottla.dispatch.table import Table
from ottla.errors import KafkaError
from ottla.handlers import HANDLERS
from ottla.model.broker import Endpoint
from ottla.model.ids import ZERO_TOPIC_ID, TopicPartition
from ottla.model.image import ClusterImage
from ottla.net.connection import Connection, Reply
from ottla.net.listener import Bound, Limits, Listeners
from ottla.replication.fetch_sessions import FetchSessions
from ottla.replication.isr import Rules
from ottla.replication.replicas import Replicas
from ottla.runtime.clock import Clock, SystemClock
from ottla.runtime.files import FileSystem, OsFileSystem
from ottla.runtime.loop import StallMonitor
from ottla.runtime.metrics import Metrics
from ottla.runtime.process import Descriptors, divide_descriptors, file_limit
from ottla.runtime.tasks import Tasks
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.cleaner import CleanerSettings
from ottla.storage.directory import LogDirectories, StorageSettings, StorageUnavailable
from ottla.storage.loader import Progress

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
# What strangers may make us hold in unfinished requests, where the settings do not say.
RECEIVE_MEMORY = 256 << 20
# Segment files held open, where the limit on descriptors allows it.
MAX_OPEN_FILES = 2_048


class StartFailed(Exception):
    """The broker cannot start; the message says why and what to do."""


class Broker:
    """One broker. `await start()`, use it, `await stop()`; not to be started twice."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        handlers: Iterable[Callable[..., Any]] = HANDLERS,
    ) -> None:
        # handed in
        self._static = config
        self._handlers = handlers
        self._fs = fs or OsFileSystem()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._descriptors = divide_descriptors(file_limit(), MAX_OPEN_FILES)
        # known after start
        self.node_id = config.node_id
        self.cluster_id = ""
        self.listening: tuple[Bound, ...] = ()
        self.endpoints: tuple[Endpoint, ...] = ()  # what clients are told
        self.data_dirs = config.log_dirs
        self.metrics = Metrics()
        self.services: Services
        self._listeners: Listeners
        self._store: MetadataStore
        # while it runs
        self._running = AsyncExitStack()
        self._failed: asyncio.Future[str] | None = None
        self._tasks = Tasks(self._task_died)
        self._ending = False
        self._epochs_raised = False

    @property
    def chosen_hosts(self) -> frozenset[str]:
        """The listeners whose advertised host nobody gave."""
        return self._static.listener_plan.chosen

    async def start(self) -> None:
        """Everything in its order; on failure what was started is stopped again."""
        self._failed = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            try:
                await self._start(stack)
            except (StorageUnavailable, StoreError, ConfigError) as error:
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
        self._listeners.close()
        cut()
        services = self.services
        services.logs.cleaner.abandon()
        services.workers.close()
        for log in services.logs.logs.values():
            log.close_files()
        await self._store.close()

    @property
    def connections(self) -> Collection[Connection]:
        """The clients that are connected, always the newest state."""
        return self._listeners.connections

    async def wait_failed(self) -> str:
        """Returns, with the reason, when the broker cannot go on: no data folder is left, the
        metadata store has failed, or a task in the background has died."""
        assert self._failed is not None
        return await self._failed

    # ------------------------------------------------------------------ the order of things

    async def _start(self, stack: AsyncExitStack) -> None:
        config = self._static
        workers = Workers(children=config.num_recovery_threads_per_data_dir)
        stack.callback(workers.close)

        # The folders are ours, or nothing happens.
        logs = LogDirectories(
            self._fs,
            config.log_dirs,
            clock=self._clock,
            workers=workers,
            settings=_storage_settings(config, self._descriptors),
            rng=self._rng,
            on_offline=self._folder_offline,
            tasks=self._tasks,
        )
        logs.open_folders()
        stack.callback(logs.release)

        # So are the ports. Nothing is accepted yet, but a taken one fails the start now.
        self._listeners = listeners = Listeners(
            self._not_yet, _limits(config, self._descriptors), self._clock
        )
        stack.callback(listeners.close)
        bound = [self._bind(listeners, it.name, it.host, it.port) for it in config.listeners]

        # What the cluster is, from our own store or from what Apache Kafka left here.
        home = self._find_home(logs)
        self._store = store = await self._open_store(home, logs.folders)
        stack.push_async_callback(store.close)
        if not (await store.read("")).entries:
            self._check_filled(home, logs)
        registry = Registry(store)
        await registry.load()
        self._identify(logs, registry)
        self.cluster_id = await registry.ensure_cluster_id(_cluster_id_of(logs))
        logs.identify(self.node_id, self.cluster_id)
        remember(self._fs, logs.folders, home.data_folder, logs.offline_folders)

        # The logs, recovered where needed.
        await logs.load(lambda topic: self._topic_config(registry, topic), progress=_say_progress)
        stack.push_async_callback(self._close_logs, logs)
        _set_aside_strays(logs, registry.image)
        await registry.raise_leader_epochs(_needing_new_epochs(logs, registry.image, self.node_id))
        self._epochs_raised = True
        self.data_dirs = tuple(logs.folders)

        # Who answers.
        table = Table(self._handlers)
        replicas = Replicas(
            self.node_id,
            logs,
            logs.group_commit,
            lambda topic: TopicConfig.resolve(topic.config, self.services.config),
        )
        controller = self._controller(registry)
        groups = Groups(
            self.node_id,
            partitions=replicas,
            clock=self._clock,
            workers=workers,
            tasks=self._tasks,
            config=lambda: self.services.config,
            new_id=self._new_id,
            consumer=lambda state, classic: ConsumerMachine(
                state, classic, lambda group: registry.image.group_configs.get(group, {})
            ),
            on_loaded=self.metrics.histogram(
                "ottla_group_load_seconds", "Loading one partition of the groups' log."
            ).record,
        )
        self.services = services = Services(
            node_id=self.node_id,
            clock=self._clock,
            config=self._with_dynamic(registry.image),
            registry=registry,
            replicas=replicas,
            logs=logs,
            controller=controller,
            groups=groups,
            internal_topics=InternalTopics(
                controller, lambda: registry.image, lambda: self.services.config
            ),
            producer_ids=ProducerIds(registry),
            fetch_sessions=FetchSessions(
                config.max_incremental_fetch_session_cache_slots,
                lambda: self._rng.randrange(1, 2**31),
            ),
            workers=workers,
            metrics=self.metrics,
            table=table,
        )
        logs.positions = groups
        stack.callback(replicas.stop_making)
        replicas.apply(_everything(registry.image))
        groups.apply(_everything(registry.image))
        stack.push_async_callback(groups.close)
        registry.subscribe(self._on_image)
        dispatcher = Dispatcher(table, services)
        stack.push_async_callback(dispatcher.close)

        # Part of the cluster, elected, open.
        await self._join(stack, services, bound)
        logs.start_schedule()
        self._watch_loop(stack)
        measure(self.metrics, services, listeners)
        listeners.answer = dispatcher.answer
        listeners.open()
        stack.push_async_callback(listeners.drain, DRAIN_SECONDS)
        # First of all, those who wait for a rebalance are sent elsewhere.
        stack.push_async_callback(groups.close)

    async def _close_logs(self, logs: LogDirectories) -> None:
        """Clean only with the epochs raised: the mark tells the next start that none need be."""
        await logs.close(clean=self._epochs_raised)

    async def _join(self, stack: AsyncExitStack, services: Services, bound: list[Bound]) -> None:
        """Stand for the role of controller and register; both end with the broker."""
        self.listening = tuple(bound)
        ports = {it.name: it.port for it in bound}
        advertised = self._static.listener_plan.advertise(ports)
        self.endpoints = tuple(
            Endpoint(it.name, it.host, it.port, it.security_protocol) for it in advertised
        )
        registration = await Membership(services.registry).register(
            self.node_id, Host(self.endpoints, self._static.broker_rack)
        )
        stack.push_async_callback(registration.session.release)
        for what, work in (
            ("running the controller", services.controller.run()),
            ("following the metadata", services.registry.follow()),
        ):
            stack.push_async_callback(_ended, self._tasks.start(what, work, endless=True))
        await self._unless_failed(self._admitted(services.registry, registration.broker.epoch))

    async def _admitted(self, registry: Registry, epoch: int) -> None:
        """Wait until the controller counts on this broker."""
        admitted = asyncio.Event()

        def look(image: ClusterImage) -> None:
            broker = image.brokers.get(self.node_id)
            if broker is not None and broker.epoch == epoch:
                admitted.set()

        unsubscribe = registry.subscribe(lambda change: look(change.new))
        try:
            look(registry.image)
            await admitted.wait()
        finally:
            unsubscribe()

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

    def _bind(self, listeners: Listeners, name: str, host: str, port: int) -> Bound:
        try:
            return listeners.bind(name, host, port)
        except (OSError, UnicodeError) as error:
            raise StartFailed(not_bound(host, port, error)) from None

    async def _open_store(self, home: Home, folders: tuple[str, ...]) -> MetadataStore:
        try:
            if home.kraft:
                return await _take_over(self._fs, home.path, folders)
            return await EmbeddedStore.open(self._fs, home.path)
        except BlockingIOError:
            raise StartFailed(f"the metadata in {home.path} is in use by another process") from None
        except OSError as error:
            raise StartFailed(f"the metadata in {home.path} cannot be opened: {error}") from None

    def _find_home(self, logs: LogDirectories) -> Home:
        try:
            return find_home(self._fs, logs.folders, logs.offline_folders)
        except MetadataMissing as error:
            raise StartFailed(str(error)) from None
        except OSError as error:
            raise StartFailed(f"the metadata cannot be looked for: {error}") from None

    def _check_filled(self, home: Home, logs: LogDirectories) -> None:
        try:
            check_filled(self._fs, home, logs.folders)
        except MetadataMissing as error:
            raise StartFailed(str(error)) from None
        except OSError as error:
            raise StartFailed(f"the metadata cannot be looked for: {error}") from None

    def _identify(self, logs: LogDirectories, registry: Registry) -> None:
        """The node's number: as told, else as the folders remember it."""
        if self._static.is_given("node.id") or self._static.is_given("broker.id"):
            return
        for meta in logs.meta.values():
            if meta is not None and meta.node_id is not None:
                self.node_id = meta.node_id
                return

    def _controller(self, registry: Registry) -> Controller:
        return Controller(
            registry,
            self.node_id,
            defaults=lambda: TopicDefaults(
                self.services.config.num_partitions,
                self.services.config.default_replication_factor,
            ),
            check_topic_config=lambda overrides: _check(overrides, self.services.config),
            rng=self._rng,
            rules_of=lambda topic: _rules(TopicConfig.resolve(topic.config, self.services.config)),
        )

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _watch_loop(self, stack: AsyncExitStack) -> None:
        stalls = StallMonitor(
            self.metrics.histogram(
                "ottla_loop_stall_seconds", "By how much the event loop was late for a timer."
            )
        )
        stalls.start()
        stack.callback(stalls.stop)

    # ------------------------------------------------------------------ what changes

    def _on_image(self, change: ImageChange) -> None:
        services = self.services
        if change.new.broker_configs != change.old.broker_configs:
            services.config = self._with_dynamic(change.new)
            self._listeners.limits = _limits(services.config, self._descriptors)
            services.replicas.apply(change)
            services.replicas.reconfigure()
            services.logs.cleaner.reconfigure(_cleaner_settings(services.config))
        else:
            services.replicas.apply(change)
        services.logs.cleaner.look_soon()
        services.groups.apply(change)

    def _with_dynamic(self, image: ClusterImage) -> BrokerConfig:
        default = image.broker_configs.get("", {})
        own = image.broker_configs.get(str(self.node_id), {})
        return self._static.with_dynamic(default, own) if default or own else self._static

    def _topic_config(self, registry: Registry, name: str) -> TopicConfig:
        topic = registry.image.topics.get(name)
        config = self._with_dynamic(registry.image)
        return TopicConfig.resolve({} if topic is None else topic.config, config)

    def _folder_offline(self, folder: str, lost: tuple[TopicPartition, ...]) -> None:
        services: Services | None = getattr(self, "services", None)
        if services is None:
            return
        services.replicas.take_offline(lost)
        services.groups.lose(lost)
        if not services.logs.folders:
            self._fail(
                "no data folder is left: " + "; ".join(services.logs.offline_folders.values())
            )

    def _task_died(self, what: str, error: BaseException | None) -> None:
        """A broker that goes on without one of its tasks only looks alive."""
        if self._ending:
            return
        if isinstance(error, StoreError):
            # The embedded store does not come back within a process; a restart re-reads the disk.
            self._fail(f"the metadata store was lost: {error}; restart the broker")
            return
        logger.critical("%s has ended", what, exc_info=error)
        why = "" if error is None else f": {type(error).__name__}: {error}"
        self._fail(f"{what} has ended{why}; restart the broker, and please report this")

    def _fail(self, reason: str) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(reason)

    def _not_yet(self, connection: Connection, frame: memoryview) -> Reply | Deferred[Reply]:
        raise AssertionError("nothing is accepted before the broker is ready")


def _storage_settings(config: BrokerConfig, descriptors: Descriptors) -> StorageSettings:
    return StorageSettings(
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        producer_id_expiration_check_interval_ms=config.producer_id_expiration_check_interval_ms,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        recovery_point_checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_start_checkpoint_interval_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        high_watermark_checkpoint_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
        initial_task_delay_ms=config.log_initial_task_delay_ms,
        recovery_children=config.num_recovery_threads_per_data_dir,
        max_open_files=descriptors.segments,
        cleaner=_cleaner_settings(config),
    )


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enable=config.log_cleaner_enable,
        threads=config.log_cleaner_threads,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        load_factor=config.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes=config.log_cleaner_io_buffer_size,
        bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def _limits(config: BrokerConfig, descriptors: Descriptors) -> Limits:
    asked = config.queued_max_request_bytes
    return Limits(
        frame_bytes=config.socket_request_max_bytes,
        receive_memory=asked if asked > 0 else RECEIVE_MEMORY,
        max_connections=config.max_connections,
        descriptors=descriptors.connections,
        max_connections_per_ip=config.max_connections_per_ip,
        per_ip_overrides=parse_ip_limits(config.max_connections_per_ip_overrides),
        idle_seconds=config.connections_max_idle_ms / 1000,
        send_buffer=config.socket_send_buffer_bytes,
        receive_buffer=config.socket_receive_buffer_bytes,
        backlog=config.socket_listen_backlog_size,
    )


async def _take_over(fs: FileSystem, path: str, folders: tuple[str, ...]) -> MetadataStore:
    """A store that begins with what Apache Kafka left; imported here, since it is rarely needed."""
    from ottla.cluster.kraft_import import ImportRefused, open_store

    try:
        store, _ = await open_store(fs, path, folders)
    except ImportRefused as error:
        raise StartFailed(str(error)) from None
    return store


def _everything(image: ClusterImage) -> ImageChange:
    return ImageChange(ClusterImage(), image, frozenset(image.topics))


def _set_aside_strays(logs: LogDirectories, image: ClusterImage) -> None:
    """Logs that no topic claims: a topic was deleted while we were dying, or made anew since.

    Kafka renames such folders and keeps them, since the metadata may be what is wrong.
    """
    for partition, log in list(logs.logs.items()):
        topic = image.topics.get(partition.topic)
        known = topic is not None and partition.partition < len(topic.partitions)
        if known and topic is not None and log.topic_id in (topic.id, ZERO_TOPIC_ID):
            continue
        logger.warning(
            "%s belongs to no topic of this cluster; its data was kept in %s",
            partition,
            logs.set_aside(partition),
        )


def _needing_new_epochs(
    logs: LogDirectories, image: ClusterImage, node_id: int
) -> dict[TopicPartition, int]:
    """The partitions of ours that need a new leader epoch, each with the one to be above.

    A log that may have lost its end will give the lost offsets to other records; that these come
    under a new epoch is how a consumer that had read the old ones notices (KIP-320). A log with
    epochs the metadata has not seen means metadata older than the data, as from a backup.
    """
    found: dict[TopicPartition, int] = {}
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if state.leader != node_id:
                continue
            partition = TopicPartition(topic.name, index)
            log = logs.logs.get(partition)
            noted = -1 if log is None or log.latest_epoch is None else log.latest_epoch
            if noted > state.leader_epoch or logs.may_be_cut(partition):
                found[partition] = noted
    return found


def _cluster_id_of(logs: LogDirectories) -> str | None:
    return next((it.cluster_id for it in logs.meta.values() if it and it.cluster_id), None)


def _rules(config: TopicConfig) -> Rules:
    return Rules(config.min_insync_replicas, config.unclean_leader_election_enable)


def _check(overrides: object, config: BrokerConfig) -> None:
    validate_topic_overrides(overrides, config)  # type: ignore[arg-type]


def _say_progress(progress: Progress) -> None:
    logger.info(
        "loading %s: %d of %d partitions, %d of %d MB checked, %.0f s",
        progress.folder,
        progress.loaded,
        progress.total,
        progress.scanned_bytes >> 20,
        progress.bytes_to_scan >> 20,
        progress.seconds,
    )


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
