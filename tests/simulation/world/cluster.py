"""Brokers, ensemble and network as one world, and clients that write to it.

A `Cluster` is made with a seed and lives in a loop of its own. Everything that is drawn comes from
generators of that seed, one for each part, so that taking away one fault leaves the others' luck as
it was.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from ottla.broker import failure_detector
from ottla.cluster import layout
from ottla.cluster.zookeeper import connection as zookeeper_connection
from ottla.cluster.zookeeper import store as zookeeper_store
from ottla.config.broker import BrokerConfig
from ottla.controller.topics import NewTopic
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.topic import PartitionState
from ottla.replication.partition import Partition
from ottla.runtime.clock import SystemClock
from ottla.runtime.waiters import Deferred

from .broker import SimBroker
from .disk import SimLog
from .ensemble import Ensemble, SimConnection
from .invariants import Acked, Violation, all_invariants, check_acked
from .loop import PROCESS, Process, VirtualClock, VirtualLoop
from .network import Network, SimChannel
from .offsets import OffsetReader
from .producers import TransactionalProducer
from .transactions import History

START_SECONDS = 60.0
SETTLE_SECONDS = 120.0


class Cluster:
    """All of it. `run` once; then `close`."""

    def __init__(
        self,
        seed: int,
        brokers: int,
        settings: dict[str, str],
        *,
        racks: int = 0,
        metered: bool = False,
    ) -> None:
        self.loop = VirtualLoop(metered=metered)
        self.loop.set_exception_handler(self._note_error)
        self._seed = seed
        self.errors: list[str] = []
        self.ensemble = Ensemble(self.loop, self.rng("ensemble"))
        self.network = Network(self.loop, self.rng("network"))
        self.brokers: dict[int, SimBroker] = {}
        self.connections: list[SimConnection] = []  # to the ensemble
        for node_id in range(1, brokers + 1):
            own = {"node.id": str(node_id), **settings}
            if racks:
                own["broker.rack"] = f"rack-{node_id % racks}"
            broker = SimBroker(
                node_id, self.loop, self.network, BrokerConfig.of(own), self.rng(str(node_id))
            )
            self.brokers[node_id] = self.network.brokers[node_id] = broker
        # what clients do and see
        self.acked: dict[TopicPartition, list[Acked]] = {}
        self.attempts = 0
        self._numbers = 0
        self._clients: list[asyncio.Task[None]] = []
        self._producers: list[TransactionalProducer] = []
        self._readers: list[OffsetReader] = []
        self.destroyed: set[int] = set()  # brokers that lost records, and are not back in sync
        # what is checked
        self._invariants = all_invariants()
        self.checks = 0
        self.steps = self.trace = 0
        self.violation: Violation | None = None
        self._violated: asyncio.Future[None] = self.loop.create_future()

    def rng(self, part: str) -> random.Random:
        return random.Random(f"{self._seed}/{part}")

    # --- running ------------------------------------------------------------------------------

    def run(self, work: Callable[[Cluster], Any]) -> None:
        """Do `work` until it is done; raises the first Violation, or what else went wrong."""
        with self._patched():
            try:
                self.loop.run_until_complete(self._until_violated(work(self)))
            finally:
                self._end()
        if self.violation is not None:
            raise self.violation
        if self.errors:
            raise Violation("NoUnexpectedError", self.errors[0])

    async def _until_violated(self, work: Any) -> None:
        main = asyncio.ensure_future(work)
        await asyncio.wait((main, self._violated), return_when=asyncio.FIRST_COMPLETED)
        if main.done():
            main.result()
        else:
            main.cancel()
            await asyncio.gather(main, return_exceptions=True)

    def _patched(self) -> ExitStack:
        """The product with this world around it."""
        stack = ExitStack()
        numbers, clock = self.rng("uuid"), VirtualClock(self.loop)
        watches = iter(range(2**62))

        class Watch(zookeeper_store._Watch):
            """Watches are kept in a set: its order must not depend on addresses in memory."""

            def __init__(self, *arguments: Any) -> None:
                self._number = next(watches)
                super().__init__(*arguments)

            def __hash__(self) -> int:
                return self._number

            __eq__ = object.__eq__

        for target, name, value in (
            (zookeeper_store, "Connection", self._connect),
            (zookeeper_connection, "Connection", self._connect_for_a_look),
            (zookeeper_store, "_Watch", Watch),
            (failure_detector, "Channel", _Channels(self.network)),
            (uuid, "uuid4", lambda: uuid.UUID(int=numbers.getrandbits(128), version=4)),
            (SystemClock, "now_ms", lambda _: clock.now_ms()),
            (SystemClock, "monotonic", lambda _: clock.monotonic()),
        ):
            stack.enter_context(patch.object(target, name, value))
        return stack

    def _connect(self, *arguments: Any) -> SimConnection:
        connection = SimConnection(self.ensemble, arguments[-1])
        self._here().connection = connection
        self.connections.append(connection)
        return connection

    def _connect_for_a_look(self, *arguments: Any) -> SimConnection:
        """Somebody new on a machine that reaches the ensemble, or does not."""
        connection = SimConnection(self.ensemble, arguments[-1])
        known = self._here().connection
        connection.blocked = "" if known is None else known.blocked
        self.connections.append(connection)
        return connection

    def _here(self) -> SimBroker:
        process = PROCESS.get()
        assert process is not None
        return self.brokers[int(process.name)]

    def _note_error(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {error!r}")

    def _end(self) -> None:
        """Let everything end in order: also what was killed has to be cleared away.

        Tasks end in the order of a set of asyncio's, so that these steps do not count.
        """
        self.loop.after_step = None
        self.steps, self.trace = self.loop.steps, self.loop.trace
        kept = len(self.errors)
        for connection in self.connections:
            connection.finish()
        for _ in range(20):
            tasks = [each for each in asyncio.all_tasks(self.loop) if not each.done()]
            if not tasks:
                break
            for process in self.loop.processes:
                self.loop.go_on(process)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        del self.errors[kept:]
        self.loop.close()

    def watch(self) -> None:
        """Check everything after every step from now on."""
        self.loop.after_step = self._check

    def produce_in_transactions(self, names: Iterable[str]) -> History:
        """Until `stop_writing`: a transactional producer for each name, and a reader of the offsets
        that it commits."""
        history = History()
        self._invariants.append(history)
        for name in names:
            producer = TransactionalProducer(self, history, name)
            self._producers.append(producer)
            producer.start()
            reader = OffsetReader(self, history, name)
            self._readers.append(reader)
            reader.start()
        return history

    def _check(self) -> None:
        self.checks += 1
        try:
            for invariant in self._invariants:
                invariant.verify(self)
            for broker in self.brokers.values():
                if broker.failures:
                    raise Violation("NoUnexpectedError", broker.failures[0])
        except Violation as violation:
            self.violate(violation)

    def violate(self, violation: Violation) -> Violation:
        """End the run."""
        self.loop.after_step = None
        if self.violation is None:
            self.violation = violation
        if not self._violated.done():
            self._violated.set_result(None)
        return violation

    # --- what is there ------------------------------------------------------------------------

    def leaders(self) -> Iterator[tuple[int, Partition]]:
        """Everybody who leads a partition, or takes itself for its leader."""
        for broker in self.brokers.values():
            if broker.replicas is not None:
                for partition in broker.replicas:
                    if partition.leading:
                        yield broker.id, partition

    def logs(self) -> Iterator[tuple[int, SimLog]]:
        for broker in self.brokers.values():
            for log in broker.disk.logs.values():
                yield broker.id, log

    def log_of(self, broker: int, tp: TopicPartition) -> SimLog:
        return self.brokers[broker].disk.logs[tp]

    def states(self) -> Iterator[tuple[str, PartitionState]]:
        """What the ensemble's leader holds about every partition, as (topic id and number, …)."""
        for path, node in self.ensemble.tree.nodes.items():
            if path.startswith("partitions/") and node.data:
                for number, state in enumerate(layout.decode_partitions(path, node.data)):
                    yield f"{path}/{number}", state

    @property
    def in_full(self) -> bool:
        """Whether every partition has a leader, and all of its replicas are in sync."""
        return all(
            state.leader >= 0 and len(state.isr) == len(state.replicas)
            for _, state in self.states()
        )

    def has_all(self, broker: int) -> bool:
        """Whether a broker has what the leaders of its partitions show, and all are led. One that
        has lost records is called in sync until the controller hears of it."""
        mine = self.brokers[broker].disk.logs
        leaders = [*self.leaders()]
        if not mine.keys() <= {partition.id for _, partition in leaders}:
            return False
        for leader, partition in leaders:
            tp, mark = partition.id, partition.high_watermark
            if tp in mine and mine[tp].records[:mark] != self.log_of(leader, tp).records[:mark]:
                return False
        return True

    def active_controller(self) -> SimBroker | None:
        for broker in self.brokers.values():
            if broker.controller is not None and broker.running and broker.controller.active:
                return broker
        return None

    # --- doing things -------------------------------------------------------------------------

    async def start(self) -> None:
        """All brokers up, with a controller."""
        for broker in self.brokers.values():
            broker.start()
        await self.eventually(
            lambda: (
                all(each.ready for each in self.brokers.values())
                and self.active_controller() is not None
            ),
            START_SECONDS,
            "the brokers start",
        )

    async def create(self, topics: list[NewTopic]) -> None:
        for first in range(0, len(topics), 50):
            outcomes = await self.as_controller(
                lambda controller, first=first: controller.create_topics(topics[first : first + 50])
            )
            for outcome in outcomes:
                assert outcome.error is None, outcome.error

    async def as_controller(self, work: Callable[[Any], Any]) -> Any:
        """Ask the controller for something, in its own process."""
        broker = self.active_controller()
        assert broker is not None
        assert broker.controller is not None
        context = broker.process.context
        return await self.loop.create_task(work(broker.controller), context=context)

    async def eventually(
        self,
        condition: Callable[[], bool],
        seconds: float,
        what: str,
        every: float = 0.1,
        name: str = "Recovers",
    ) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > deadline:
                raise Violation(name, f"after {seconds:g} s it is not so that {what}")
            await asyncio.sleep(every)

    # --- clients ------------------------------------------------------------------------------

    def write_on(self, tps: list[TopicPartition], pause: float) -> None:
        """A client for each partition that writes until it is stopped."""
        for tp in tps:
            self._clients.append(self.loop.create_task(self._write_on(tp, pause)))

    async def stop_writing(self) -> None:
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for producer in self._producers:
            await producer.stop()
        for reader in self._readers:
            await reader.stop()

    async def _write_on(self, tp: TopicPartition, pause: float) -> None:
        rng = self.rng(f"client {tp}")
        while True:
            await asyncio.sleep(rng.expovariate(1 / pause))
            # Whoever takes itself for the leader: clients learn of another one late.
            leaders = [
                broker
                for broker in self.brokers.values()
                if broker.replicas is not None
                and not broker.process.stopped
                and broker.replicas.leads(*tp)
            ]
            if leaders:
                broker = rng.choice(leaders)
                broker.process.context.run(self._write, broker, tp)

    def _write(self, broker: SimBroker, tp: TopicPartition) -> None:
        self._numbers += 1
        self.attempts += 1
        try:
            partition, info = broker.append(*tp, self._numbers)
        except KafkaError:
            return
        self.loop.touch()
        record = broker.disk.logs[tp].records[info.last_offset]
        acked = Acked(partition.leader_epoch, info.last_offset, record)
        process = broker.process
        if partition.committed(info):
            self._acknowledge(tp, acked, process)
            return
        waiting: Deferred[None] = partition.wait_committed(info)
        waiting.on_done(lambda done: self._answered(done, tp, acked, process))

    def _answered(
        self, done: Deferred[None], tp: TopicPartition, acked: Acked, process: Process
    ) -> None:
        try:
            done.result()
        except KafkaError:
            return
        self._acknowledge(tp, acked, process)

    def _acknowledge(self, tp: TopicPartition, acked: Acked, process: Process) -> None:
        if process.alive:
            self.note_acked(tp, acked)

    def note_acked(self, tp: TopicPartition, acked: Acked) -> None:
        self.acked.setdefault(tp, []).append(acked)
        self.loop.touch()

    async def check_offsets(self) -> None:
        """When all transactions have ended: groups are told the offsets of what was committed."""
        for reader in self._readers:
            await reader.check_end()

    def check_end(self) -> None:
        """When everything is in sync again: all replicas have everything that was acknowledged."""
        for tp, acked in self.acked.items():
            for broker in self.brokers.values():
                log = broker.disk.logs.get(tp)
                if log is not None:
                    check_acked(broker.id, log, acked)


class _Channels:
    """`Channel`, as the failure detector uses it."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def open(self, host: str, port: int, *, timeout: float) -> SimChannel:
        return await SimChannel.connect(self._network, port, timeout)
