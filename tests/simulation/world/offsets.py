"""Readers of offsets that are committed in transactions, and what must hold of what they are told.

OffsetsWithTransaction  a group's offset is that of a transaction whose commit was asked for, and
                        whose records are not aborted; it never goes back; and a fetch that requires
                        stable offsets tells at least the last transaction of which its producer was
                        told, before the fetch, that it is committed

Every transaction has a number, higher than those before it, and commits that as its offset: so an
offset says whose it is. A group is used by one transactional id alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.coordinator.group.service import OFFSETS_TOPIC
from ottla.coordinator.key_hash import key_hash
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition

from .broker import SimBroker
from .invariants import Violation
from .requests import Requests
from .transactions import History

if TYPE_CHECKING:
    from .cluster import Cluster

GROUP_COORDINATORS = 2  # partitions of the offsets' topic
PAUSE = 0.2
LAST_SECONDS = 60.0
NAME = "OffsetsWithTransaction"


def group_of(name: str) -> str:
    """The group whose offsets a transactional id commits."""
    return f"group of {name}"


def place_of(group: str) -> TopicPartition:
    """Where a group is kept."""
    return TopicPartition(OFFSETS_TOPIC, key_hash(group) % GROUP_COORDINATORS)


class OffsetReader:
    """Asks for the offset of one group, again and again."""

    def __init__(self, cluster: Cluster, history: History, name: str) -> None:
        self._cluster = cluster
        self._history = history
        self._name = name
        self._group = group_of(name)
        self._rng = cluster.rng(f"offsets of {name}")
        self._requests = Requests(cluster, self._rng)
        self._shown = -1  # the newest
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._cluster.loop.create_task(self._read_on())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def check_end(self) -> None:
        """When everything has settled: a stable offset is told, and it is the right one."""
        until = self._cluster.loop.time() + LAST_SECONDS
        while self._cluster.loop.time() < until:
            if await self._read(stable=True):
                self._history.check_last_offset(self._name, self._shown)
                return
            await asyncio.sleep(PAUSE)
        raise Violation(NAME, f"{self._group} is told no stable offset for {LAST_SECONDS:g} s")

    async def _read_on(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE))
            try:
                await self._read(stable=self._rng.random() < 0.5)
            except Violation as violation:
                self._cluster.violate(violation)
                raise

    async def _read(self, *, stable: bool) -> bool:
        """Whether an offset was told, or that there is none. Raises Violation."""
        committed = self._history.last_told(self._name) if stable else -1

        async def fetch(broker: SimBroker) -> int:
            return await broker.committed_offset(self._group, stable=stable)

        told = await self._requests.ask(place_of(self._group), fetch)
        if isinstance(told, KafkaError):
            return False
        if told < max(self._shown, committed):
            text = (
                f"{self._group} is told {told}, and was told {self._shown}; transaction "
                f"{committed} was committed before"
            )
            raise Violation(NAME, text)
        if told > self._shown:
            self._history.meet_offset(told)
        self._shown = told
        return True
