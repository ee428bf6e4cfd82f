"""Faults of broker processes."""

from __future__ import annotations

import contextlib

from ottla.verify.cluster import OFFSETS_TOPIC
from ottla.verify.faults.fault import Fault

_IN_SYNC_SECONDS = 60.0


class Kill(Fault):
    """`kill`."""

    name = "kill"
    about = "A broker is killed with SIGKILL, and started again."
    seconds = (0.0, 4.0)

    async def start(self) -> str:
        self._broker = self.any_broker()
        self._was_there = self.cluster.brokers[self._broker].alive
        self.cluster.kill(self._broker)
        return f"broker {self._broker}"

    async def heal(self) -> None:
        await self.cluster.start_brokers([self._broker])

    def happened(self) -> bool:
        return self._was_there


class KillAll(Fault):
    """`kill-all`."""

    name = "kill-all"
    about = "All brokers are killed at once, and started again in any order."
    seconds = (0.0, 2.0)

    async def start(self) -> str:
        for broker in self.cluster.brokers:
            self.cluster.kill(broker)
        return "all brokers"

    async def heal(self) -> None:
        order = sorted(self.cluster.brokers)
        self.chance.shuffle(order)
        for broker in order[:-1]:
            await self.cluster.start_brokers([broker], wait=False)
        await self.cluster.start_brokers(order)


class Pause(Fault):
    """`pause`."""

    name = "pause"
    about = "A broker stands still (SIGSTOP), shorter or longer than its session, and goes on."
    seconds = (0.2, 5.0)

    async def start(self) -> str:
        self._broker = self.any_broker()
        self._was_there = self.cluster.brokers[self._broker].alive
        with contextlib.suppress(ProcessLookupError):
            self.cluster.pause(self._broker)
        return f"broker {self._broker}"

    async def heal(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.cluster.resume(self._broker)

    def happened(self) -> bool:
        return self._was_there


class RollingRestart(Fault):
    """`rolling-restart`."""

    name = "rolling-restart"
    about = "The brokers are stopped with SIGTERM and started again, one after the other."
    seconds = (0.0, 0.0)

    async def start(self) -> str:
        order = sorted(self.cluster.brokers)
        self.chance.shuffle(order)
        self._order = order
        return ", ".join(f"broker {broker}" for broker in order)

    async def heal(self) -> None:
        for broker in self._order:
            if self.cluster.brokers[broker].alive:
                await self.cluster.stop(broker)
            await self.cluster.start_brokers([broker])
            await self.cluster.wait_healthy([OFFSETS_TOPIC], _IN_SYNC_SECONDS)
