"""The nemesis: breaks a cluster, by a seed, again and again.

A round is one fault, or two that overlap. Kinds come in turn, in an order that the seed gives, so
that a long run has about as many of each. After every round the cluster must become whole again by
itself: all replicas in sync, and writes acknowledged in every partition.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ottla.testing.process import BrokerProcessError
from ottla.testing.zookeeper import ZooKeeperProcessError
from ottla.verify.clients.writer import Progress
from ottla.verify.cluster import OFFSETS_TOPIC, ClusterUnderTest, NotHealthy
from ottla.verify.faults.fault import Fault
from ottla.verify.history import Recorder
from ottla.verify.patience import Patience

HEAL_SECONDS = 60.0
OVERLAPPING = 0.3
BUSY_SECONDS = 60.0
_MORE = 100
"""Records that must be acknowledged after a round."""


class GaveUp(Exception):
    """The cluster did not become whole again: the run is over. The history says why."""


class Nemesis:
    """`await round()`, as often as wanted."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        kinds: Sequence[type[Fault]],
        topics: Sequence[str],
        progress: Progress,
        recorder: Recorder,
        *,
        seed: int,
        patience: float = HEAL_SECONDS,
        on_fault: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.fewest_in_flight: int | None = None
        self._cluster = cluster
        self._kinds = list(kinds)
        self._topics = [*topics, OFFSETS_TOPIC]
        self._progress = progress
        self._recorder = recorder
        self._patience = patience
        self._on_fault = on_fault
        self._chance = random.Random(seed)
        self._next: list[type[Fault]] = []
        self._number = 0
        self._turn = 0

    @property
    def faults(self) -> int:
        return self.counts.total()

    async def round(self) -> None:
        """One fault or two, until the cluster is whole again. Raises GaveUp."""
        first = self._draw()
        chosen = [first]
        if not first.alone and self._chance.random() < OVERLAPPING:
            second = self._draw()
            if second.alone:
                self._next.append(second)
            else:
                chosen.append(second)
        try:
            await asyncio.gather(*(self._one(kind) for kind in chosen))
        except (BrokerProcessError, ZooKeeperProcessError, NotHealthy) as error:
            self._give_up(str(error))
        await self.wait_whole()

    async def wait_whole(self) -> None:
        """Wait until all replicas are in sync and writes go on everywhere. Raises GaveUp."""
        begun = time.monotonic()
        for broker in self._cluster.dead():
            text = f"broker {broker} has ended"
            self._recorder.record("nemesis", "died", "ok", broker=broker, text=text)
            raise GaveUp(text)
        try:
            await self._cluster.wait_healthy(self._topics, self._patience)
        except NotHealthy as error:
            self._give_up(str(error))
        wanted, before = self._progress.acknowledged + _MORE, self._progress.places.copy()
        patience = Patience(self._patience)
        while self._progress.acknowledged < wanted or self._silent(before):
            if patience.over():
                where = "".join(f" in {place}" for place in self._silent(before)[:1])
                self._give_up(f"nothing is acknowledged{where} for {self._patience:g} s")
            await asyncio.sleep(0.02)
        took = round(time.monotonic() - begun, 3)
        self._recorder.record("nemesis", "healed", "ok", seconds=took)

    def _silent(self, before: Counter[tuple[str, int]]) -> list[str]:
        """The partitions in which nothing was acknowledged since then."""
        now = self._progress.places
        return [
            f"{topic}-{number}"
            for (topic, number), count in before.items()
            if now[topic, number] == count
        ]

    def _give_up(self, text: str) -> None:
        self._recorder.record("nemesis", "healed", "fail", text=text)
        raise GaveUp(text)

    def _draw(self) -> type[Fault]:
        while not self._next:
            self._next = [kind for kind in self._kinds if self._turn % kind.every == 0]
            self._chance.shuffle(self._next)
            self._turn += 1
        return self._next.pop()

    async def _wait_busy(self) -> int:
        """Wait until many requests are in flight, if they come to be; how many there are."""
        deadline = time.monotonic() + BUSY_SECONDS
        self._progress.pressing += 1
        try:
            while self._progress.in_flight < self._progress.busy and time.monotonic() < deadline:
                await asyncio.sleep(0.002)
            return self._progress.in_flight
        finally:
            self._progress.pressing -= 1

    async def _one(self, kind: type[Fault]) -> None:
        """One fault from its beginning to its end."""
        self._number += 1
        client = f"fault-{self._number}"
        record = functools.partial(self._recorder.record, client)
        fault = kind(self._cluster, random.Random(self._chance.getrandbits(32)), record)
        seconds = fault.lasts()
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        in_flight = await self._wait_busy()
        if kind.alone:  # a replica may have fallen behind while there was so much to do
            await self._cluster.wait_healthy(self._topics, self._patience)
        self._recorder.record(client, "fault", "invoke", kind=kind.name, in_flight=in_flight)
        what = await fault.start()
        self._on_fault(f"{kind.name}: {what}, {seconds:.1f} s")
        self._recorder.record(
            client, "broken", "ok", kind=kind.name, what=what, seconds=round(seconds, 3)
        )
        await asyncio.sleep(seconds)
        await fault.heal()
        happened = fault.happened()
        self._recorder.record(client, "fault", "ok" if happened else "fail", kind=kind.name)
        if happened:
            self.counts[kind.name] += 1
            fewest = self.fewest_in_flight
            self.fewest_in_flight = in_flight if fewest is None else min(fewest, in_flight)
        else:
            self._on_fault(f"{kind.name}: there was nothing to break; it does not count")
