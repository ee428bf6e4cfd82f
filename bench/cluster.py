"""Three brokers, three replicas, acks=all and two in sync: records, and the death of a broker.

Ottla's brokers have a real ZooKeeper beside them. The clock of the start runs from the first
process, the store's included, to a record that three brokers have; Ottla starts once more before
that, with one command that keeps the metadata itself, and Apache Kafka, which knows one way to
start, has the same figure in both rows.

A broker is killed with -9 under a load of a client with default settings; see `load.pauses`. The
leader that is killed is not the controller, and the controller leads nothing: it is a follower, so
that both deaths are one.

A follower that catches up was stopped in good order while the others took the records. Its clock
runs from the start of its process until the leader has it in sync.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka.admin import NewTopic

from bench.client import Client, measure
from bench.course import Course
from bench.figures import Rate
from bench.processes import BenchError, Child, wait_port
from bench.systems import new_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from bench.course import Step
    from bench.rows import Sizes
    from bench.selection import Selection
    from bench.systems import ApacheKafka, System

BROKERS = 3
MIN_INSYNC = 2
_ALL = -1
_START_PATIENCE = 120.0
_PATIENCE = 600.0
_SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 0.02
_CONFIGS = {"min.insync.replicas": str(MIN_INSYNC)}
_PAUSES = ("cluster-pause-leader", "cluster-pause-controller")


class ClusterSession(Course):
    """One cluster, from nothing to its last pause."""

    REPLICAS: ClassVar[int] = BROKERS

    def __init__(
        self,
        system: System,
        tools: ApacheKafka,
        folder: Path,
        sizes: Sizes,
        selection: Selection,
        record: Callable[[str, float], None],
    ) -> None:
        super().__init__(system, tools, folder, sizes, selection, record)
        self._cluster = new_cluster(folder, BROKERS)
        self._brokers: dict[int, Child] = {}
        self._store: Child | None = None

    # The course of a session.

    @property
    def _bootstrap(self) -> str:
        return self._cluster.bootstrap

    def _running(self) -> Sequence[Child]:
        return [*self._brokers.values(), *([] if self._store is None else [self._store])]

    def _prepare(self) -> None:
        self._system.prepare_cluster(self._cluster, self.SETTINGS)

    def _start(self, stack: ExitStack) -> None:
        lent = self._started_lent() if self._wants("cluster-start-lent") else None
        seconds = self._start_all(stack)
        self._report("cluster-start", seconds)
        self._report("cluster-start-lent", seconds if lent is None else lent)

    def _start_all(self, stack: ExitStack) -> float:
        """Start the store and the brokers; the seconds until a replicated record."""
        with self._first_record() as (client, began):
            self._store = self._system.start_store(self._cluster)
            if self._store is not None:
                stack.enter_context(self._store)
            for node in self._cluster.nodes:
                self._brokers[node.number] = stack.enter_context(self._system.start(node))
            seconds = _until_acknowledged(client, began, self._running())
        # Before any load: the ports must not belong to somebody else's brokers.
        for node in self._cluster.nodes:
            wait_port(node.port, self._brokers[node.number], _START_PATIENCE)
        return seconds

    def _started_lent(self) -> float | None:
        with self._first_record() as (client, began):
            child = self._system.start_lent(self._cluster)
            if child is None:
                return None
            with child:
                return _until_acknowledged(client, began, [child])

    @contextmanager
    def _first_record(self) -> Iterator[tuple[Client, int]]:
        """A client that knocks already, and the time at which the first process is started."""
        with Client(
            "replicated-ack",
            bootstrap=self._bootstrap,
            topic="first",
            replicas=BROKERS,
            min_insync=MIN_INSYNC,
        ) as client:
            client.wait_ready()
            yield client, time.monotonic_ns()

    def _steps(self) -> Sequence[Step]:
        sizes = self._sizes
        return (
            (
                lambda: self._produce_row("cluster-produce-100b", 100, sizes.small_records),
                ("cluster-produce-100b",),
            ),
            (
                lambda: self._produce_row("cluster-produce-1k", 1000, sizes.large_records),
                ("cluster-produce-1k", "cluster-cpu-produce"),
            ),
            (lambda: self._request_row(1), ("cluster-requests-1",)),
            (lambda: self._request_row(64), ("cluster-requests-64", "cluster-cpu-requests-64")),
            (self._latency_rows, ("cluster-latency-p50", "cluster-latency-p99")),
            (self._memory_row, ("cluster-memory",)),
            (self._catch_up_row, ("cluster-catch-up",)),
            (lambda: self._pause_row(_PAUSES[0]), _PAUSES[:1]),
            (lambda: self._pause_row(_PAUSES[1]), _PAUSES[1:]),
        )

    def _warm_up(self) -> None:
        self._make("warm")
        self._make("requests")
        self._produce("warm", 100, self._sizes.warm_records // 2)
        self._requests(1, self._sizes.warm_seconds)

    # The rows.

    def _produce_row(self, key: str, size: int, count: int) -> None:
        self._make(key)
        for _ in range(self._sizes.repeats):
            before = self._cpu_seconds()
            figures = self._produce(key, size, count)
            cpu = self._cpu_seconds() - before
            if size < 1000:
                self._report(key, figures["records"] / figures["seconds"] / 1e6)
            else:
                self._report(key, figures["bytes"] / figures["seconds"] / 1e6)
                self._report("cluster-cpu-produce", cpu / (figures["bytes"] / 1e9))

    def _request_row(self, connections: int) -> None:
        if connections > 1:
            # CPU counts here, and a JVM that still compiles takes several times as much.
            self._requests(connections, self._sizes.crowd_warm_seconds)
        for _ in range(self._sizes.repeats):
            found = self._requests(connections, self._sizes.request_seconds)
            self._report(f"cluster-requests-{connections}", found.a_second)
            if connections > 1:
                self._report(f"cluster-cpu-requests-{connections}", found.cpu_microseconds)

    def _latency_rows(self) -> None:
        self._make("latency")
        seconds = self._sizes.latency_seconds
        figures = self._paced("latency", lambda: time.sleep(seconds), acks=_ALL)
        self._report("cluster-latency-p50", figures["end_to_end_p50"])
        self._report("cluster-latency-p99", figures["end_to_end_p99"])

    def _memory_row(self) -> None:
        time.sleep(_SETTLE_SECONDS)
        for child in self._brokers.values():
            self._report("cluster-memory", child.usage().resident_bytes / 1e6)
        if self._store is not None:
            held = self._store.usage().resident_bytes / 1e6
            print(f"  {self._store.name} beside them: {held:.0f} MB", flush=True)

    def _catch_up_row(self) -> None:
        topic = "behind"
        size = self._sizes.cold_record_bytes
        leader, follower, other = self._replicas_for(topic)
        self._make(topic, [leader, follower, other])
        with self._without(follower, kill=False):
            self._produce(topic, size, self._sizes.catch_up_bytes // size)
            os.sync()
        self._wait_in_sync(topic)
        taken = (time.monotonic_ns() - self._brokers[follower].started) / 1e9
        folder = self._cluster.nodes[follower - 1].data / f"{topic}-0"
        there = sum(file.stat().st_size for file in folder.glob("*.log"))
        if there < self._sizes.catch_up_bytes:
            raise BenchError(f"a follower in sync has {there:,} bytes of the topic")
        self._report("cluster-catch-up", taken)
        self._delete(topic)

    def _pause_row(self, key: str) -> None:
        # More than once: when a client asks who leads now is up to a timer of its own.
        for turn in range(self._sizes.repeats):
            self._report(key, self._pause(f"{key}-{turn}", leader_dies=key == _PAUSES[0]))

    def _pause(self, topic: str, *, leader_dies: bool) -> float:
        leader, follower, controller = self._replicas_for(topic)
        self._make(topic, [leader, follower, controller])
        victim = leader if leader_dies else controller
        with Client(
            "pause", bootstrap=self._bootstrap, topic=topic, rate=self._sizes.latency_rate
        ) as client:
            client.wait_ready()
            client.tell()
            with self._without(victim, kill=True):
                time.sleep(self._sizes.pause_seconds)
                client.tell()
                figures = client.result()
        print(
            f"  {figures['acknowledged']:,.0f} records acknowledged, none of them lost, "
            f"{figures['twice']:,.0f} there twice",
            flush=True,
        )
        self._wait_in_sync(topic)
        return figures["longest_seconds"]

    # What the rows share.

    def _make(self, topic: str, replicas: Sequence[int] | None = None) -> None:
        """One partition, on these brokers in this order if they are named."""
        if replicas is None:
            self._create(topic, 1, _CONFIGS)
            return
        admin = self._admin()
        pending = admin.create_topics(
            [NewTopic(topic, 1, replica_assignment=[list(replicas)], config=dict(_CONFIGS))]
        )
        pending[topic].result(_PATIENCE)
        self._wait_in_sync(topic)

    def _replicas_for(self, topic: str) -> tuple[int, int, int]:
        """A leader, a follower, and last of all the broker that is the controller."""
        controller = self._system.controller_of(self._cluster)
        if controller not in self._brokers:
            raise BenchError(f"{topic}: the controller is broker {controller}, which is none")
        first, second = (number for number in self._brokers if number != controller)
        return first, second, controller

    def _wait_in_sync(self, topic: str) -> None:
        """Wait until the topic has a leader and all its replicas are in sync."""
        admin = self._admin()
        deadline = time.monotonic() + _PATIENCE
        while True:
            partitions = admin.list_topics(topic, timeout=_PATIENCE).topics[topic].partitions
            if 0 in partitions and len(partitions[0].isrs) == BROKERS and partitions[0].leader >= 0:
                return
            if time.monotonic() > deadline:
                raise BenchError(f"the replicas of {topic} never were in sync")
            time.sleep(_LOOK_SECONDS)

    @contextmanager
    def _without(self, number: int, *, kill: bool) -> Iterator[None]:
        """One broker down meanwhile; then its process is started again."""
        child = self._brokers.pop(number)
        if kill:
            child.kill()
        else:
            child.stop()
        try:
            yield
        finally:
            again = self._system.start(self._cluster.nodes[number - 1])
            self._brokers[number] = self._stack.enter_context(again)
            self._brokers = dict(sorted(self._brokers.items()))

    def _produce(self, topic: str, size: int, count: int) -> dict[str, float]:
        os.sync()
        return measure(
            "produce",
            bootstrap=self._bootstrap,
            topic=topic,
            partitions=1,
            size=size,
            count=count,
            acks=_ALL,
        )

    def _requests(self, connections: int, seconds: float) -> Rate:
        os.sync()
        before = self._cpu_seconds()
        figures = measure(
            "requests",
            bootstrap=self._bootstrap,
            topic="requests",
            connections=connections,
            seconds=seconds,
            acks=_ALL,
        )
        return Rate(figures["requests"], figures["seconds"], self._cpu_seconds() - before)


def _until_acknowledged(client: Client, began: int, children: Sequence[Child]) -> float:
    try:
        return (client.result()["acknowledged_ns"] - began) / 1e9
    except BenchError as error:
        tails = "\n".join(f"{child.name} said:\n{child.tail()}" for child in children)
        raise BenchError(f"{error}\n{tails}") from None
