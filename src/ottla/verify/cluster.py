"""The cluster under test: real broker processes and their metadata store, behind proxies.

Every broker has two listeners, one for clients and one for brokers, and advertises the proxies in
front of them; to ZooKeeper each has a proxy of its own. So every link can be cut by itself. Between
a broker and its files is a door, through which its disk can be made to fail (`failing_broker`).

The store is a real ZooKeeper, an ensemble of three, or the one that brokers of one machine borrow
(`lent`), which has no network to be cut.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.testing.process import LOOPBACK, BrokerProcess, BrokerProcessError, free_port
from ottla.testing.zookeeper import ZooKeeperProcess, ZooKeeperProcessError, ensemble
from ottla.verify.clients.connections import Address, Connections, NoAnswer, NotSent
from ottla.verify.network import CLIENTS, ZOOKEEPER, Network
from ottla.verify.owners import owner_of
from ottla.verify.patience import MOST_OF_A_LOOK, Patience

StoreKind = Literal["zookeeper", "ensemble", "lent"]

SESSION_MS = 3_000
START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.1
OUTAGE_SECONDS = 60.0
SERVERS = 3
"""Of an ensemble."""
OFFSETS_TOPIC = "__consumer_offsets"
REPLICAS = 3
"""Of every partition; it has more for as long as it is moved."""

_SETTINGS: Mapping[str, object] = {
    "inter.broker.listener.name": "BROKERS",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "zookeeper.session.timeout.ms": SESSION_MS,
    "zookeeper.connection.timeout.ms": 60_000,
    "replica.lag.time.max.ms": 3_000,
    "replica.socket.timeout.ms": 3_000,
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "default.replication.factor": REPLICAS,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.replication.factor": REPLICAS,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": REPLICAS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "log.cleaner.backoff.ms": 500,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.bytes": 1 << 20,
}


class StoreProcess(Protocol):
    """The process that keeps the metadata."""

    @property
    def alive(self) -> bool: ...
    def kill(self) -> None: ...
    def launch(self) -> None: ...


class LentStoreProcess:
    """`ottla.verify.lent_store` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "store.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ottla.verify.lent_store", str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class ZooKeepers:
    """One ZooKeeper, or an ensemble of them."""

    def __init__(self, servers: Sequence[ZooKeeperProcess]) -> None:
        self.servers = servers

    @property
    def alive(self) -> bool:
        return all(server.alive for server in self.servers)

    def launch(self) -> None:
        for server in self.servers:
            if not server.alive:
                server.launch()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


class NotHealthy(Exception):
    """What was waited for did not come; the message says what is missing."""


class ClusterUnderTest:
    """Brokers 1 to n. `await start()`, `await close()`."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        store: StoreKind = "zookeeper",
        settings: Mapping[str, object] | None = None,
        program: Sequence[str] = ("-m", "ottla.verify.failing_broker"),
        outage_seconds: float = OUTAGE_SECONDS,
    ) -> None:
        self.folder = folder
        self.network = Network()
        self.store_kind = store
        self.addresses: dict[int, Address] = {}
        """Where clients find each broker."""
        self.brokers: dict[int, BrokerProcess] = {}
        self.down: set[int] = set()
        """Those that were told to end."""
        self.may_end: Counter[int] = Counter()
        """For how many reasons each may end by itself now, as for want of a disk."""
        self._starting: set[int] = set()
        """Those that do not serve yet: they may end for want of their metadata."""
        self._ended: set[int] = set()
        """Those that had ended by themselves when they were to be ended or started."""
        self._without_store: set[object] = set()
        """Who wants the metadata store to be away."""
        self.topics: tuple[str, ...] = (OFFSETS_TOPIC,)
        """Those that the run is about."""
        self.zookeepers: list[ZooKeeperProcess] = []
        self.backups: list[Path] = []
        """Of the metadata, the newest last."""
        self.outage_seconds = outage_seconds
        """For how long the metadata store is away when it is away for long."""
        self.store: StoreProcess
        if store == "zookeeper":
            self.zookeepers = [ZooKeeperProcess(folder / "zookeeper")]
            self.store = ZooKeepers(self.zookeepers)
        elif store == "ensemble":
            self.zookeepers = ensemble(folder / "zookeeper", SERVERS)
            self.store = ZooKeepers(self.zookeepers)
        else:
            self.store = LentStoreProcess(folder / "cluster")
        self._given = dict(settings or {})
        self._program = tuple(program)
        self._numbers = range(1, brokers + 1)

    @property
    def bootstrap(self) -> list[Address]:
        return list(self.addresses.values())

    def name(self, broker: int) -> str:
        """What a broker is called in the network."""
        return f"broker-{broker}"

    # ------------------------------------------------------------------ start and end

    async def start(self) -> None:
        """Returns when all brokers serve clients. Raises NotHealthy."""
        try:
            self.store.launch()
            for server in self.zookeepers:
                await asyncio.to_thread(server.wait_ready, timeout=START_SECONDS)
            for number in self._numbers:
                self._prepare(number)
                self.down.add(number)
            await self.start_brokers(self._numbers)
            await self.wait_doors(self._numbers)
        except (BrokerProcessError, ZooKeeperProcessError) as error:
            raise NotHealthy(f"the cluster does not start: {error}") from None
        except TimeoutError:
            text = f"the cluster does not start: clients reach no broker after {START_SECONDS:g} s"
            raise NotHealthy(text) from None

    def _prepare(self, number: int) -> None:
        inner = free_port(), free_port()
        name = self.name(number)
        proxies = (
            self.network.proxy(inner[0], name, CLIENTS),
            self.network.proxy(inner[1], name, self._who),
        )
        outer = [proxy.port for proxy in proxies]
        names = ("CLIENTS", "BROKERS")
        settings = {
            **_SETTINGS,
            "broker.id": number,
            "listeners": ",".join(
                f"{name}://{LOOPBACK}:{port}" for name, port in zip(names, inner, strict=True)
            ),
            "advertised.listeners": ",".join(
                f"{name}://{LOOPBACK}:{port}" for name, port in zip(names, outer, strict=True)
            ),
            **self._given,
        }
        arguments: list[str] = []
        if self.zookeepers:
            ports = [
                self.network.proxy(server.port, ZOOKEEPER, name).port for server in self.zookeepers
            ]
            settings["zookeeper.connect"] = ",".join(f"{LOOPBACK}:{port}" for port in ports)
        else:
            del settings["zookeeper.session.timeout.ms"]
            del settings["zookeeper.connection.timeout.ms"]
            arguments = ["--member-of", str(self.folder / "cluster")]
        self.brokers[number] = BrokerProcess(
            self.folder / name,
            port=inner[0],
            settings=settings,
            arguments=arguments,
            listen=(),
            program=self._program,
        )
        self.addresses[number] = LOOPBACK, outer[0]

    def _who(self, port: int, target: int) -> str | None:
        """Which broker has connected from a port to one of ours."""
        processes = {
            self.name(number): broker.pid for number, broker in self.brokers.items() if broker.alive
        }
        return owner_of(port, target, processes)

    async def close(self) -> None:
        """End everything at once."""
        for broker in self.brokers.values():
            if broker.alive:
                broker.signal(signal.SIGCONT)
            broker.kill()
        self.store.kill()
        await self.network.close()

    # ------------------------------------------------------------------ brokers

    async def start_brokers(self, numbers: Iterable[int], *, wait: bool = True) -> None:
        """Start brokers together; with `wait` returns when they serve clients."""
        chosen = list(numbers)
        for number in chosen:
            self._note_if_ended(number)
            if not self.brokers[number].alive:
                self._starting.add(number)
                self.brokers[number].launch()
            self.down.discard(number)
        if wait:
            await asyncio.gather(*(self._wait_listening(number) for number in chosen))

    async def _wait_listening(self, number: int) -> None:
        broker = self.brokers[number]
        patience = Patience(START_SECONDS + self.outage_seconds)
        while True:
            try:
                await asyncio.to_thread(broker.wait_listening, timeout=MOST_OF_A_LOOK)
                self._starting.discard(number)
                return
            except BrokerProcessError:
                # A broker that does not get to its metadata ends, and whoever supervises it starts
                # it again.
                if patience.over():
                    raise
            await asyncio.sleep(LOOK_SECONDS)
            if not broker.alive and number not in self.down:
                broker.launch()

    async def wait_doors(self, numbers: Iterable[int]) -> None:
        """Wait until brokers can be reached by their clients."""
        waiting = Connections(self.bootstrap, "", "verify-start")
        try:
            async with asyncio.timeout(START_SECONDS):
                for number in numbers:
                    while True:
                        try:
                            await waiting.broker(self.addresses[number]).connect()
                            break
                        except ConnectionError:
                            await asyncio.sleep(LOOK_SECONDS)
        finally:
            waiting.close()

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self._note_if_ended(number)
        self.down.add(number)
        self.brokers[number].kill()

    def pause(self, number: int) -> None:
        """SIGSTOP: it stands still, and its connections stay open."""
        self.brokers[number].signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        if self.brokers[number].alive:
            self.brokers[number].signal(signal.SIGCONT)

    async def stop(self, number: int) -> None:
        """SIGTERM, and wait until it has ended."""
        self._note_if_ended(number)
        self.down.add(number)
        await asyncio.to_thread(self.brokers[number].terminate, timeout=STOP_SECONDS)

    def wipe(self, number: int) -> None:
        """Remove all data of a broker that does not run."""
        shutil.rmtree(self.brokers[number].data_dir)

    def dead(self) -> list[int]:
        """Brokers that have ended though nobody told them to, also if they were started again."""
        for number in self.brokers:
            self._note_if_ended(number)
        return sorted(self._ended)

    def _note_if_ended(self, number: int) -> None:
        allowed = number in self.down or number in self._starting or self.may_end[number]
        if not allowed and not self.brokers[number].alive:
            self._ended.add(number)

    # ------------------------------------------------------------------ the metadata store

    def kill_store(self, by: object) -> None:
        """SIGKILL to the process that keeps the metadata."""
        self._without_store.add(by)
        self.store.kill()

    def launch_store(self, by: object) -> None:
        """Start it again, unless somebody else wants it to be away still."""
        self._without_store.discard(by)
        if not self._without_store and not self.store.alive:
            self.store.launch()

    # ------------------------------------------------------------------ health

    async def wait_healthy(self, topics: Sequence[str], seconds: float) -> None:
        """Wait until every broker says that all replicas are in sync. Raises NotHealthy."""
        looking = Connections(self.bootstrap, topics[0], "verify-health", ask=2.0)
        patience = Patience(seconds)
        try:
            while True:
                missing = await self._missing(looking, topics)
                if missing is None:
                    return
                if patience.over():
                    raise NotHealthy(f"after {seconds:g} s {missing}")
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            looking.close()

    async def replicas(self, topic: str) -> dict[int, list[int]]:
        """Which brokers hold a partition of a topic. Raises NotHealthy."""
        looking = Connections(self.bootstrap, topic, "verify-replicas")
        try:
            await looking.look()
        except NotSent as error:
            raise NotHealthy(f"nobody tells the replicas of {topic}: {error}") from None
        finally:
            looking.close()
        assert looking.metadata is not None
        return {
            each.partition_index: each.replica_nodes
            for found in looking.metadata.topics
            for each in found.partitions
        }

    async def _missing(self, looking: Connections, topics: Sequence[str]) -> str | None:
        """What is not as it should be."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics],
            allow_auto_topic_creation=False,
        )
        for number, address in self.addresses.items():
            try:
                answer = await looking.ask(looking.broker(address), request)
            except (NotSent, NoAnswer) as error:
                return f"broker {number} does not answer: {error}"
            missing = _missing_in(answer, len(self.brokers))
            if missing is not None:
                return f"broker {number} says that {missing}"
        return None


def _missing_in(answer: MetadataResponse, brokers: int) -> str | None:
    if len(answer.brokers) < brokers:
        return f"there are {len(answer.brokers)} of {brokers} brokers"
    for topic in answer.topics:
        if topic.error_code:
            return f"{topic.name} has error {topic.error_code}"
        for each in topic.partitions:
            name = f"{topic.name}-{each.partition_index}"
            if each.leader_id < 0:
                return f"{name} has no leader (in sync: {each.isr_nodes})"
            if set(each.isr_nodes) != set(each.replica_nodes):
                return f"{name} has {each.isr_nodes} of {each.replica_nodes} in sync"
    return None
