"""Faults of the metadata store."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ottla.testing.process import LOOPBACK
from ottla.verify.cluster import LOOK_SECONDS, NotHealthy
from ottla.verify.faults.fault import ON_ZOOKEEPER, Fault
from ottla.verify.network import ZOOKEEPER, Link
from ottla.verify.patience import Patience

_NOTICE_SECONDS = 60.0
_COMMAND_SECONDS = 120.0
EMPTY = "has lost all metadata"
NO_CLUSTER = "holds no metadata of Ottla"
REPLACED = "is not what this process knows"
"""What a broker says of a ZooKeeper that was emptied, when it starts, and after the import."""


class KillStore(Fault):
    """`kill-store`."""

    name = "kill-store"
    about = "ZooKeeper, or the process that lends the metadata, is killed, and started again."
    seconds = (0.0, 5.0)

    async def start(self) -> str:
        self._was_there = self.cluster.store.alive
        self.cluster.kill_store(self)
        return "the metadata store"

    async def heal(self) -> None:
        self.cluster.launch_store(self)

    def happened(self) -> bool:
        return self._was_there


class Outage(Fault):
    """`zookeeper-outage`."""

    name = "zookeeper-outage"
    about = "ZooKeeper is killed, or cut off from all brokers, for a minute (`--outage`)."
    every = 3
    stores = ON_ZOOKEEPER

    def lasts(self) -> float:
        return self.cluster.outage_seconds

    async def start(self) -> str:
        self._killed = self.chance.random() < 0.5
        if self._killed:
            self.cluster.kill_store(self)
            return "ZooKeeper is killed"
        for link in self._links():
            self.cluster.network.hinder(link, self, cut=True)
        return "ZooKeeper is cut off"

    async def heal(self) -> None:
        if self._killed:
            self.cluster.launch_store(self)
            return
        for link in self._links():
            self.cluster.network.release(link, self)

    def _links(self) -> list[Link]:
        names = map(self.cluster.name, self.cluster.brokers)
        return [link for name in names for link in ((name, ZOOKEEPER), (ZOOKEEPER, name))]


class PauseZooKeeper(Fault):
    """`pause-zookeeper`."""

    name = "pause-zookeeper"
    about = "ZooKeeper stands still (SIGSTOP), and goes on."
    seconds = (0.2, 5.0)
    stores = ON_ZOOKEEPER

    async def start(self) -> str:
        self._was_there = any(server.alive for server in self.cluster.zookeepers)
        self._send(signal.SIGSTOP)
        return "ZooKeeper"

    async def heal(self) -> None:
        self._send(signal.SIGCONT)

    def happened(self) -> bool:
        return self._was_there

    def _send(self, number: signal.Signals) -> None:
        for server in self.cluster.zookeepers:
            if server.alive:
                server.signal(number)


class KillZooKeeperLeader(Fault):
    """`kill-zookeeper-leader`."""

    name = "kill-zookeeper-leader"
    about = "The leader of an ensemble of three ZooKeepers is killed, and started again."
    seconds = (0.5, 5.0)
    stores = ("ensemble",)

    async def start(self) -> str:
        patience = Patience(_NOTICE_SECONDS)
        while True:
            for server in self.cluster.zookeepers:
                if await asyncio.to_thread(server.mode) == "leader":
                    server.kill()
                    self._server = server
                    return f"server {server.server_id}"
            if patience.over():
                raise NotHealthy(f"the ensemble has had no leader for {_NOTICE_SECONDS:g} s")
            await asyncio.sleep(LOOK_SECONDS)

    async def heal(self) -> None:
        if not self._server.alive:
            self._server.launch()


class WipeZooKeeper(Fault):
    """`wipe-zookeeper`: the brokers must notice, and must not begin anew with nothing."""

    name = "wipe-zookeeper"
    about = (
        "ZooKeeper loses everything; the brokers say so and change no metadata, until `ottla "
        "metadata import` has brought back a backup, which may be an old one."
    )
    seconds = (0.0, 2.0)
    alone = True
    stores = ("zookeeper",)

    async def start(self) -> str:
        cluster = self.cluster
        number, self._backup = await self._export()
        self._number = number
        marks = {each: broker.log_size() for each, broker in cluster.brokers.items()}
        cluster.down.update(cluster.brokers)  # they will end by themselves
        [server] = cluster.zookeepers
        server.kill()
        server.wipe()
        await asyncio.to_thread(server.start)
        for broker, mark in marks.items():
            await self._wait_told(broker, EMPTY, mark)
        again = self.any_broker()
        cluster.kill(again)
        mark = cluster.brokers[again].log_size()
        cluster.brokers[again].launch()
        await self._wait_told(again, NO_CLUSTER, mark)
        return f"backup {number} of {len(cluster.backups)}"

    async def heal(self) -> None:
        marks = {each: broker.log_size() for each, broker in self.cluster.brokers.items()}
        self.record("restore", "invoke", backup=self._number)
        await self._ottla("import", "--yes")
        self.record("restore", "ok", backup=self._number)
        for broker, process in self.cluster.brokers.items():
            if process.alive:
                await self._wait_told(broker, REPLACED, marks[broker])
                await self._wait_ended(broker)
        await self.cluster.start_brokers(self.cluster.brokers)

    async def _export(self) -> tuple[int, Path]:
        """A backup of now, or the one before that."""
        backups = self.cluster.backups
        number = len(backups) + 1
        self._backup = self.cluster.folder / f"metadata-{number}.json"
        self.record("backup", "invoke", backup=number)
        await self._ottla("export")
        self.record("backup", "ok", backup=number)
        backups.append(self._backup)
        if len(backups) > 1 and self.chance.random() < 0.5:
            return number - 1, backups[-2]
        return number, backups[-1]

    async def _ottla(self, command: str, *options: str) -> None:
        [server] = self.cluster.zookeepers
        line = [
            sys.executable, "-m", "ottla", "metadata", command, str(self._backup),
            "--zookeeper", f"{LOOPBACK}:{server.port}", *options,
        ]  # fmt: skip
        try:
            done = await asyncio.to_thread(
                subprocess.run,
                line,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotHealthy(
                f"`ottla metadata {command}` has not ended after {_COMMAND_SECONDS:g} s"
            ) from None
        if done.returncode:
            raise NotHealthy(f"`ottla metadata {command}` fails: {done.stderr.strip()}")

    async def _wait_told(self, broker: int, text: str, mark: int) -> None:
        """Wait until a broker has written something to its log."""
        process = self.cluster.brokers[broker]
        await self._wait(lambda: text in process.log_since(mark), f"broker {broker} says {text!r}")

    async def _wait_ended(self, broker: int) -> None:
        process = self.cluster.brokers[broker]
        await self._wait(lambda: not process.alive, f"broker {broker} ends")

    async def _wait(self, condition: Callable[[], bool], what: str) -> None:
        patience = Patience(_NOTICE_SECONDS)
        while not condition():
            if patience.over():
                raise NotHealthy(
                    f"ZooKeeper was emptied: it was waited in vain for {_NOTICE_SECONDS:g} s until "
                    f"{what}"
                )
            await asyncio.sleep(LOOK_SECONDS)
