"""Cluster: real replicated brokers inside the test process, gone when the test is over.

    with Cluster(brokers=3, topics=[NewTopic("orders", 6, 3)]) as cluster:
        run_the_service(cluster.bootstrap)
        cluster.leader("orders", 0).crash()           # as by kill -9; clients notice a pause

Each broker is a `Broker` with a loop, a port, a disk and faults of its own; they share one metadata
store over a Unix socket, as the brokers of `ottla server start --processes` do. A broker that is
crashed loses its session at once; one that is paused, when its session has expired.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ottla.client.descriptions import NewTopic
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.lender import Lender
from ottla.cluster.lent import LentStore
from ottla.cluster.store import MetadataStore
from ottla.model.topic import PartitionState
from ottla.runtime.files import OsFileSystem
from ottla.testing.broker import Broker, BrokerDown, Topics, wanted_topics
from ottla.testing.folder import TemporaryFolder
from ottla.testing.thread import LoopThread

logger = logging.getLogger(__name__)

# As by default; a busy machine lets a thread wait for seconds, which is no death.
SESSION_SECONDS = 6.0
# Long, since it is for what never comes.
WAIT_SECONDS = 120.0


class Cluster:
    """Brokers 1 to `brokers`, replicated. Starts when made; `close`, or leave the `with` block.

    brokers          how many
    config           settings of all brokers, by their Kafka names
    topics           created at the start: names, `NewTopic`s, or names with numbers of partitions
    folders          data folders of each broker
    racks            `broker.rack` of each broker
    session_seconds  how long a broker may be silent before it counts as dead
    """

    def __init__(
        self,
        brokers: int = 3,
        config: Mapping[str, object] | None = None,
        *,
        topics: Topics = (),
        folders: int = 1,
        racks: Sequence[str] = (),
        session_seconds: float = SESSION_SECONDS,
    ) -> None:
        if brokers < 1:
            raise ValueError("a cluster has at least one broker")
        self._temporary = TemporaryFolder()
        self._home = Path(self._temporary.path)
        self._session_seconds = session_seconds
        self._metadata = LoopThread("ottla-metadata")
        self._store: EmbeddedStore | None = None
        self._lender: Lender | None = None
        self.brokers: dict[int, Broker] = {}
        self._apart: set[int] = set()  # brokers that learn nothing now
        self._folders = folders
        self._racks = racks
        self._failures: list[BaseException] = []
        factor = min(3, brokers)
        self._config = {
            "default.replication.factor": factor,
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "min.insync.replicas": min(2, brokers),
            **(config or {}),
        }
        try:
            self.start_metadata()
            starting = [
                threading.Thread(target=self._start, args=(node_id,))
                for node_id in range(1, brokers + 1)
            ]
            for thread in starting:
                thread.start()
            for thread in starting:
                thread.join()
            if self._failures:
                raise self._failures[0]
            self.wait_until(self._is_watched)
            self.create(*wanted_topics(topics))
        except BaseException:
            self.close()
            raise

    def add(self) -> Broker:
        """One more broker, with the settings of the others; all know of it when this returns."""
        node_id = max(self.brokers) + 1
        self._start(node_id)
        if self._failures:
            raise self._failures.pop()
        self.wait_until(lambda: all(node_id in self._live(each) for each in self.running))
        return self.brokers[node_id]

    def _start(self, node_id: int) -> None:
        config: dict[str, object] = {"node.id": node_id, **self._config}
        if node_id <= len(self._racks):
            config["broker.rack"] = self._racks[node_id - 1]
        try:
            self.brokers[node_id] = Broker(
                config,
                data_dir=self._home / f"broker-{node_id}",
                folders=self._folders,
                store=partial(self._connect, node_id),
            )
        except BaseException as error:
            self._failures.append(error)

    async def _connect(self, node_id: int) -> MetadataStore:
        # Each has a way of its own to the store, which can be taken away.
        way = self._way(node_id)
        if not way.is_symlink():
            way.symlink_to(self._socket)
        return await LentStore.connect(str(way), session_seconds=self._session_seconds)

    def _way(self, node_id: int) -> Path:
        return self._home / f"metadata-{node_id}.socket"

    @property
    def _socket(self) -> str:
        return str(self._home / "metadata.socket")

    # ------------------------------------------------------------------ the metadata store

    def start_metadata(self) -> None:
        """Start the store again after `stop_metadata`: brokers come back to it by themselves."""

        async def start() -> None:
            self._store = await EmbeddedStore.open(OsFileSystem(), str(self._home / "metadata"))
            self._lender = Lender(self._store, self._socket, session_seconds=self._session_seconds)
            await self._lender.start()

        self._metadata.call(start(), WAIT_SECONDS)

    def stop_metadata(self) -> None:
        """Take the metadata store away, as by kill -9 of the process that has it."""

        async def stop() -> None:
            if self._lender is not None:
                await self._lender.stop()
            if self._store is not None:
                await self._store.close()
            self._store = self._lender = None

        self._metadata.call(stop(), WAIT_SECONDS)

    # ------------------------------------------------------------------ brokers

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, running or not, for a client's bootstrap servers."""
        return ",".join(self.brokers[each].bootstrap for each in sorted(self.brokers))

    def __getitem__(self, node_id: int) -> Broker:
        if node_id not in self.brokers:
            there = ", ".join(map(str, sorted(self.brokers)))
            raise KeyError(f"there is no broker {node_id}; this cluster has {there}")
        return self.brokers[node_id]

    def __iter__(self) -> Iterator[Broker]:
        return iter([self.brokers[each] for each in sorted(self.brokers)])

    @property
    def running(self) -> list[Broker]:
        return [broker for broker in self if broker.running]

    @contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        """The broker stands still, as after SIGSTOP: it neither answers nor notices anything."""
        resume, stopped = threading.Event(), threading.Event()

        def stand_still() -> None:
            stopped.set()
            resume.wait()

        self.brokers[node_id]._on_loop(stand_still)
        stopped.wait(WAIT_SECONDS)
        self._apart.add(node_id)
        try:
            yield
        finally:
            self._apart.discard(node_id)
            resume.set()

    @contextmanager
    def cut_off(self, node_id: int) -> Iterator[None]:
        """The broker does not reach the metadata store; clients and other brokers reach it."""
        broker, way = self.brokers[node_id], self._way(node_id)
        store = broker._services().registry.store
        assert isinstance(store, LentStore)
        way.unlink()
        broker._on_loop(store.disconnect)
        self._apart.add(node_id)
        try:
            yield
        finally:
            self._apart.discard(node_id)
            way.symlink_to(self._socket)

    @property
    def controller(self) -> Broker | None:
        """The broker that is the controller, if there is one now."""
        for broker in self.running:
            with suppress(Exception):
                if broker._services().controller.active:
                    return broker
        return None

    # ------------------------------------------------------------------ topics

    def create(self, *topics: NewTopic) -> None:
        """Create topics; they are known to every running broker when this returns."""
        if not topics:
            return
        self.wait_until(lambda: self.controller is not None)
        controller = self.controller
        assert controller is not None
        controller._create(list(topics))
        names = {topic.name for topic in topics}
        self.wait_until(
            lambda: all(names <= set(each._services().image.topics) for each in self.running)
        )

    def state(self, topic: str, partition: int) -> PartitionState:
        """Who leads a partition and who is in sync, as the running brokers know it at best."""
        images = [broker._services().image for broker in self.running]
        newest = max(images, key=lambda image: image.revision)
        if topic not in newest.topics:
            raise KeyError(f"there is no topic {topic!r}; make it with `create`")
        return newest.topics[topic].partitions[partition]

    def leader(self, topic: str, partition: int) -> Broker:
        """The broker that leads a partition; waits until there is one that runs."""

        def found() -> Broker | None:
            leader = self.brokers.get(self.state(topic, partition).leader)
            return leader if leader is not None and leader.running else None

        self.wait_until(lambda: found() is not None)
        leader = found()
        assert leader is not None
        return leader

    def wait_in_sync(self, topic: str, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every replica of a topic is in sync, as far as any running broker knows."""

        def in_sync() -> bool:
            topics = [broker._services().image.topics.get(topic) for broker in self._informed]
            return bool(topics) and all(
                each is not None
                and all(set(state.isr) == set(state.replicas) for state in each.partitions)
                for each in topics
            )

        self.wait_until(in_sync, timeout)

    def replica(self, node_id: int, topic: str, partition: int) -> Any:
        """One broker's replica of a partition, to look at its log."""
        broker = self.brokers[node_id]
        services = broker._services()
        known, held = services.image.topics.get(topic), services.replicas.held(topic, partition)
        if held is not None and known is not None and held.topic_id == known.id:
            return held
        # Its files are not made yet, which only the broker's own thread may do.
        assert broker._thread is not None
        find = partial(services.replicas.replica_by_name, topic, partition)
        return broker._thread.do(find, WAIT_SECONDS)

    # ------------------------------------------------------------------ the end

    def wait_until(self, condition: Any, timeout: float = WAIT_SECONDS) -> None:
        """Wait for something to become true, and then until every broker knows what the metadata
        store says, so that any of them can be asked. AssertionError when it does not in time.

        Those that are paused or cut off are not waited for, nor is anybody without the store.
        """
        deadline = time.monotonic() + timeout

        def wait(until: Callable[[], Any]) -> None:
            while not until():
                if time.monotonic() > deadline:
                    raise AssertionError(f"not so within {timeout:g} s")
                time.sleep(0.01)

        wait(condition)
        newest = self._metadata.call(self._newest(), WAIT_SECONDS)
        if newest is not None:
            wait(lambda: all(_knows(broker, newest) for broker in self._informed))

    async def _newest(self) -> int | None:
        """The revision of the metadata store; None while it is away."""
        return None if self._store is None else (await self._store.read("")).revision

    @property
    def _informed(self) -> list[Broker]:
        """The running brokers, without those that learn nothing now."""
        return [
            self.brokers[each]
            for each in sorted(self.brokers)
            if self.brokers[each].running and each not in self._apart
        ]

    def _is_watched(self) -> bool:
        """Whether all know of all, and the death of any of them would be noticed at once."""
        everybody = set(self.brokers)
        if any(set(self._live(broker)) != everybody for broker in self.running):
            return False
        return all(broker._is_watching(everybody) for broker in self.running)

    def _live(self, broker: Broker) -> Mapping[int, object]:
        return broker._services().image.brokers

    def close(self) -> None:
        """End all brokers and remove their data. May be called twice."""
        ends = [self._end_of(broker) for broker in self.brokers.values()]
        for end in (*ends, self.stop_metadata, self._metadata.close):
            try:
                end()
            except Exception:
                logger.exception("a part of the cluster did not end as it should")
        self._temporary.close()

    def _end_of(self, broker: Broker) -> Callable[[], None]:
        def end() -> None:
            if broker.running:
                broker.crash()
            broker.close()

        return end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _knows(broker: Broker, revision: int) -> bool:
    """Whether a broker has this revision of the metadata, unless it has ended meanwhile."""
    with suppress(BrokerDown):
        registry = broker._services().registry
        store = registry.store
        assert isinstance(store, LentStore)
        link = store._link
        return link is not None and registry.image.revision - link.ahead >= revision
    return True
