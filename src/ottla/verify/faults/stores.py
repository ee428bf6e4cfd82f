"""Faults of the metadata store."""

from __future__ import annotations

import signal

from ottla.verify.faults.fault import Fault


class KillStore(Fault):
    """`kill-store`."""

    name = "kill-store"
    about = "ZooKeeper, or the process that lends the metadata, is killed, and started again."
    seconds = (0.0, 5.0)

    async def start(self) -> str:
        self.cluster.store.kill()
        return "the metadata store"

    async def heal(self) -> None:
        if not self.cluster.store.alive:
            self.cluster.store.launch()


class PauseZooKeeper(Fault):
    """`pause-zookeeper`."""

    name = "pause-zookeeper"
    about = "ZooKeeper stands still (SIGSTOP), and goes on."
    seconds = (0.2, 5.0)
    zookeeper = True

    async def start(self) -> str:
        self._send(signal.SIGSTOP)
        return "ZooKeeper"

    async def heal(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        zookeeper = self.cluster.zookeeper
        if zookeeper is not None and zookeeper.alive:
            zookeeper.signal(number)
