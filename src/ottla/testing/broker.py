"""Broker: a real broker inside the test process, on a free port, gone when the test is over.

    with Broker(topics=["orders"]) as broker:
        run_the_service(broker.bootstrap)           # any Kafka client, sync or async
        [record] = broker.consume("orders", count=1)

It is the broker that `ottla server start` runs: the same sockets, protocol, logs and recovery, on
an event loop in a thread of its own, with its data in a temporary folder. Three things differ from
Kafka's defaults, because a test waits for them: no delay before a group's first rebalance, one
partition in each of the brokers' own topics, and data that is not synced to the platter (see
`testing.disk`).

`produce`, `consume`, `lag` and the rest go straight into the broker without a client: they are
quick, and no fault on requests touches them. Called from a coroutine they block its loop; use
`asyncio.to_thread` where that loop has to run meanwhile, as when waiting for records.

A broker that was not closed is closed when it is collected or the interpreter ends.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla.broker.app import Broker as App
from ottla.broker.app import StartFailed
from ottla.client.descriptions import NewTopic
from ottla.client.records import Delivery, Headers, Record
from ottla.cluster.store import MetadataStore
from ottla.config.broker import BrokerConfig
from ottla.config.describe import describe_broker, describe_topic
from ottla.config.dynamic import (
    AlterOp,
    Change,
    apply_incremental,
    validate_broker_overrides,
    validate_topic_overrides,
)
from ottla.config.load import load
from ottla.config.topic import TopicConfig
from ottla.controller.service import ConfigChange, ResourceKind
from ottla.controller.topics import DEFAULT, DeleteTopic
from ottla.controller.topics import NewTopic as WantedTopic
from ottla.dispatch.context import Services
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers import HANDLERS
from ottla.model.ids import TopicPartition
from ottla.model.topic import INTERNAL_TOPICS
from ottla.testing import records
from ottla.testing.clock import ShiftedClock
from ottla.testing.disk import Disk, DiskSession
from ottla.testing.faults import Faults
from ottla.testing.folder import TemporaryFolder
from ottla.testing.process import LOOPBACK, free_port
from ottla.testing.thread import LoopThread

T = TypeVar("T")

# Long, since they are for what never comes: a busy machine lets a thread wait for seconds.
START_SECONDS = 120.0
STOP_SECONDS = 120.0
CRASH_SECONDS = 20.0
CALL_SECONDS = 120.0
PORT_ATTEMPTS = 20

QUICK: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}
"""The settings in which a test broker differs from Kafka's defaults; `config` wins over them."""

Topics = Iterable[str | NewTopic] | Mapping[str, int]
"""Names, `NewTopic`s, or names with their number of partitions."""


class BrokerDown(RuntimeError):
    """The broker does not run; the message says why."""


class Broker:
    """A broker in this process. Starts when made; `close`, or leave the `with` block, to end it.

    config    broker settings by their Kafka names; unknown ones are refused
    topics    created at the start: names, `NewTopic`s, or a mapping of names to partitions
    data_dir  where to keep the data; a temporary folder, removed at the end, unless given
    folders   how many data folders (`log.dirs`) to spread it over
    port      a fixed one instead of a free one
    store     makes the metadata store, on the broker's loop; its own one, unless given (`Cluster`)
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        topics: Topics = (),
        data_dir: str | os.PathLike[str] | None = None,
        folders: int = 1,
        port: int | None = None,
        store: Callable[[], Coroutine[Any, Any, MetadataStore]] | None = None,
    ) -> None:
        # for the life of this object
        self._config = {name: _text(value) for name, value in (config or {}).items()}
        self._temporary = TemporaryFolder() if data_dir is None else None
        home = self._temporary.path if self._temporary is not None else data_dir
        assert home is not None
        self.data_dir = Path(home).absolute()
        self._folders = [str(self.data_dir / f"data-{n}") for n in range(1, folders + 1)]
        self.port = port or 0
        self._make_store = store
        self._boots = 1  # of the machine that it seems to run on
        self._clock = ShiftedClock()
        self._disk = Disk()
        self.faults = Faults(self._disk, self._clock)
        self.failure: str | None = None
        """Why the broker ended by itself, if it did: no data folder left, or a part that died."""
        # while it runs
        self._thread: LoopThread | None = None
        self._session: DiskSession | None = None
        self._app: App | None = None
        self._closed = False
        self._over = threading.Event()
        self._owner = os.getpid()
        _open_brokers.add(self)
        try:
            self.start()
            self._create(wanted_topics(topics))
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """`host:port` for a client's bootstrap servers."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The data folders (`log.dirs`)."""
        return tuple(self._folders)

    @property
    def metrics_url(self) -> str | None:
        """Where its metrics are served over HTTP; None unless `config` has `metrics.listen`."""
        return self._running_app().metrics_url

    @property
    def running(self) -> bool:
        return self._app is not None and self.failure is None

    # ------------------------------------------------------------------ starting and stopping

    def start(self) -> None:
        """Start again after `stop`, `crash` or a full disk: the same port, the same data."""
        if self._closed:
            raise BrokerDown("the broker was closed; make a new one")
        if self._app is not None:
            if self.failure is None:
                raise RuntimeError("the broker already runs")
            self._abandon()
        fixed = self.port
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self.port = fixed or free_port()
            try:
                self._start()
                return
            except (StartFailed, OSError) as error:
                # Somebody else may take the port between our looking at it and our binding it.
                taken = "cannot listen" in str(error) or (
                    isinstance(error, OSError) and error.errno == errno.EADDRINUSE
                )
                if fixed or not taken or attempt == PORT_ATTEMPTS:
                    self.port = fixed
                    raise

    def _start(self) -> None:
        settings = {
            **QUICK,
            "node.id": "1",
            "log.dirs": ",".join(self._folders),
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            **self._config,
        }
        config = load(None, settings, strict=True).config
        self.failure = None
        self._over.clear()
        self._session = DiskSession(self._disk, self._clock)
        self._thread = thread = LoopThread(f"ottla-broker-{self.port}")
        try:
            store = thread.call(self._make_store()) if self._make_store is not None else None
            app = App(
                config,
                store=store,
                fs=self._session,
                clock=self._clock,
                boot=f"boot-{self._boots}",
                handlers=[self.faults.wrap(handler) for handler in HANDLERS],
            )
            thread.call(app.start(), START_SECONDS)
        except BaseException:
            self._thread = None
            self._session.cut()
            thread.close()
            raise
        self._app = app
        self.faults.attach(thread, app.connections)
        cut = self._session.cut
        thread.do(lambda: _watch(app, cut, weakref.ref(self)))

    def stop(self) -> None:
        """Stop cleanly, as on SIGTERM: answer, flush, checkpoint. `start` goes on from there."""
        if self._app is None or self._thread is None:
            return
        app, thread = self._app, self._thread
        with suppress(RuntimeError):
            thread.do(self.faults.release)
        try:
            thread.call(app.stop(), STOP_SECONDS)
        finally:
            self._let_go()

    def restart(self) -> None:
        """`stop` and `start`."""
        if self.failure is None:
            self.stop()
        self.start()

    def crash(self, *, power_loss: bool = False) -> None:
        """End as by kill -9; `start` recovers. Every byte that was written is still there.

        With `power_loss` what was not synced is gone as well: records of topics that do not ask
        for fsync (`flush.messages`), which Kafka's defaults leave to replication.
        """
        if self._app is None:
            raise BrokerDown("the broker does not run")
        self._abandon()
        if power_loss:
            self._disk.lose_unsynced()
            self._boots += 1

    def wait_ended(self, timeout: float = STOP_SECONDS) -> str:
        """Wait until the broker ends by itself, as on a full disk; returns why."""
        if not self._over.wait(timeout):
            raise AssertionError(f"the broker still runs after {timeout} s")
        return self.failure or ""

    def close(self) -> None:
        """End it and remove the data, if that is in a temporary folder. May be called twice."""
        self._close(clean=self._temporary is None)

    def _close(self, *, clean: bool) -> None:
        if self._owner != os.getpid():
            return  # a child that was forked off the test: neither thread nor data are its own
        self._closed = True
        _open_brokers.discard(self)
        try:
            if self._app is not None:
                if clean and self.failure is None:
                    self.faults.heal()
                    self.stop()
                else:
                    self._abandon()
        finally:
            if self._temporary is not None:
                self._temporary.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self._close(clean=False)

    def _abandon(self) -> None:
        app, thread, session = self._app, self._thread, self._session
        assert app is not None
        assert thread is not None
        assert session is not None
        self._disk.quicken()  # whoever sleeps on a slow disk would be waited for

        try:
            thread.call(app.abandon(session.cut), CRASH_SECONDS)
        except TimeoutError:
            thread.tell_stuck("a crash")  # which is one all the same
        finally:
            self._let_go()

    def _let_go(self) -> None:
        thread, session = self._thread, self._session
        self._app = self._thread = self._session = None
        self.faults.detach()
        if session is not None:
            session.cut()
        if thread is not None:
            thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.running else "closed" if self._closed else "stopped"
        return f"<Broker {self.bootstrap} {state}>"

    # ------------------------------------------------------------------ topics and settings

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic; the number of partitions is the broker's default unless given."""
        settings = {key: _text(value) for key, value in (config or {}).items()}
        self._create([NewTopic(name, partitions, config=settings)])

    def delete_topic(self, name: str) -> None:
        services = self._services()
        (outcome,) = self._call(services.controller.delete_topics([DeleteTopic(name)]))
        if outcome.error is not None:
            raise outcome.error

    def topics(self) -> dict[str, int]:
        """The topics with their numbers of partitions, without Kafka's own."""
        image = self._services().image
        return {
            name: len(topic.partitions)
            for name, topic in sorted(image.topics.items())
            if name not in INTERNAL_TOPICS
        }

    def configs(self, topic: str | None = None) -> dict[str, str | None]:
        """All settings in force, of the broker or of a topic."""
        services = self._services()
        if topic is None:
            return {entry.name: entry.value for entry in describe_broker(services.config)}
        known = services.image.topics.get(topic)
        if known is None:
            raise _no_topic(topic)
        return {entry.name: entry.value for entry in describe_topic(known.config, services.config)}

    def configure(self, settings: Mapping[str, object], topic: str | None = None) -> None:
        """Change settings of the running broker or of a topic; None goes back to the default."""
        services = self._services()
        changes = [
            Change(name, AlterOp.DELETE, None)
            if value is None
            else Change(name, AlterOp.SET, _text(value))
            for name, value in settings.items()
        ]

        def edit(current: Mapping[str, str]) -> Mapping[str, str]:
            if topic is not None:
                made = apply_incremental(current, changes, TopicConfig)
                return validate_topic_overrides(made, services.config)
            made = apply_incremental(current, changes, BrokerConfig)
            return validate_broker_overrides(made, per_broker=True, broker=services.config)

        kind = ResourceKind.BROKER if topic is None else ResourceKind.TOPIC
        change = ConfigChange(kind, topic or str(services.node_id), edit)
        (outcome,) = self._call(services.controller.alter_configs([change]))
        if outcome.error is not None:
            raise outcome.error

    def _create(self, wanted: list[NewTopic]) -> None:
        if not wanted:
            return
        requests = [
            WantedTopic(
                topic.name,
                DEFAULT if topic.partitions is None else topic.partitions,
                DEFAULT if topic.replication is None else topic.replication,
                assignments=tuple(enumerate(topic.assignment or ())),
                config=dict(topic.config),
            )
            for topic in wanted
        ]
        for outcome in self._call(self._services().controller_link.create_topics(requests)):
            if outcome.error is not None:
                raise outcome.error

    # ------------------------------------------------------------------ records

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> list[Delivery]:
        """Append records; returns where they are. A missing topic is made, as for a client.

        Without `partition` a key goes where Java's client puts it, and values without a key go to
        the partitions in turn, from the first on. None as a value is a tombstone.
        """
        services = self._services()
        if topic not in services.image.topics and services.config.auto_create_topics_enable:
            self.create_topic(topic)
        return self._call(
            records.produce(
                services,
                topic,
                [_bytes(value) for value in values],
                key=_bytes(key),
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
            )
        )

    def consume(
        self,
        topic: str,
        count: int | None = None,
        *,
        partition: int | None = None,
        offset: int = 0,
        timeout: float = 60.0,
    ) -> list[Record[bytes, bytes]]:
        """The first `count` records, waiting for them; without `count`, all that are there now.

        In the order of partitions and offsets, from `offset` on. AssertionError when they do not
        come in time. No group is involved and nothing is committed.
        """
        services = self._services()
        work = records.consume(
            services, topic, count, partition=partition, offset=offset, timeout=timeout
        )
        return self._call(work, timeout + CALL_SECONDS)

    def lag(self, group: str, topic: str | None = None) -> dict[TopicPartition, int]:
        """How many records a group has before it, in each partition it has committed for."""
        return self._call(records.lag(self._services(), group, topic))

    def apply_retention(self) -> int:
        """Delete now what is too old or too much, by the broker's clock, as Kafka does every five
        minutes; returns how many rules deleted something. Goes well with `faults.jump_clock`."""
        return self._call(self._services().logs.apply_retention())

    def metrics(self) -> dict[str, float]:
        """Every number by its name, as `kafka_server_replica_manager_leader_count`, or with labels:
        `kafka_network_request_metrics_requests_total{request="Produce"}`."""
        app = self._running_app()
        assert self._thread is not None
        return self._thread.do(app.metrics.values, CALL_SECONDS)

    # ------------------------------------------------------------------ inside

    def _running_app(self) -> App:
        if self.failure is not None:
            raise BrokerDown(f"the broker has ended: {self.failure}")
        if self._app is None:
            raise BrokerDown("the broker was closed" if self._closed else "the broker is stopped")
        return self._app

    def _services(self) -> Services:
        return self._running_app().services

    def _is_watching(self, brokers: set[int]) -> bool:
        """Whether it would notice the death of those of a cluster that it is to watch."""
        app = self._running_app()
        image, node_id = app.services.image, app.node_id
        watched = brokers if image.controller_id == node_id else {image.controller_id}
        return watched - {node_id} <= set(app.reached)

    def _on_loop(self, work: Callable[[], object]) -> None:
        """Have something done on the broker's loop, without waiting for it."""
        assert self._thread is not None
        self._thread.loop.call_soon_threadsafe(work)

    def _call(self, work: Coroutine[Any, Any, T], timeout: float = CALL_SECONDS) -> T:
        assert self._thread is not None
        return self._thread.call(work, timeout)


_open_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Also those in a given folder end unflushed: threads cannot be had any more by now."""
    for broker in list(_open_brokers):
        with suppress(Exception):
            broker._close(clean=False)


def _watch(app: App, cut: Callable[[], None], ref: weakref.ref[Broker]) -> None:
    """Let a broker that has failed end, as `ottla server start` does, and note why."""

    async def watch() -> None:
        reason = await app.wait_failed()
        await app.abandon(cut)
        broker = ref()
        if broker is not None:
            broker.failure = reason
            broker._over.set()

    watcher = asyncio.get_running_loop().create_task(watch())
    watcher.add_done_callback(lambda done: done.cancelled() or done.exception())


def wanted_topics(topics: Topics) -> list[NewTopic]:
    """The topics that somebody has named, one way or another."""
    if isinstance(topics, str):
        raise TypeError(f"topics is a list of names, not the one name {topics!r}")
    if isinstance(topics, Mapping):
        return [NewTopic(name, partitions) for name, partitions in topics.items()]
    return [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]


def _no_topic(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the broker has no topic {name!r}")


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
