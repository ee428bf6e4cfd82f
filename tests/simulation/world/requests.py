"""Requests of clients: a moment to arrive, sometimes seconds, and answers that may get lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

from .broker import SimBroker
from .ensemble import WORLD

if TYPE_CHECKING:
    from .cluster import Cluster

REQUEST_SECONDS = 3.0
LATE_CHANCE = LOST_CHANCE = 0.03

Work = Callable[[SimBroker], Awaitable[Any]]


class Requests:
    """One client's way to the brokers."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self._rng = rng
        self._served: list[asyncio.Task[None]] = []  # at brokers, some of which have died
        self._stopping = False

    def stop(self) -> None:
        """What is under way does not arrive any more."""
        self._stopping = True

    async def ask(self, leader_of: TopicPartition, work: Work) -> Any:
        """The answer of somebody who leads a partition, or a KafkaError."""
        nobody = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        leaders = [
            broker
            for broker in self._cluster.brokers.values()
            if broker.replicas is not None and broker.replicas.leads(*leader_of)
        ]
        if not leaders:
            return nobody
        broker, answer = self._rng.choice(leaders), self._loop.create_future()

        def arrive() -> None:
            if broker.running and not self._stopping:
                serving = self._serve(broker, work, answer)
                task = self._loop.create_task(serving, context=broker.process.context)
                self._served.append(task)

        self._loop.call_later(self._delay(), arrive, context=WORLD)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                return await answer
        except TimeoutError:
            return nobody

    async def _serve(self, broker: SimBroker, work: Work, answer: asyncio.Future[Any]) -> None:
        """In the broker's process."""
        process, reply = broker.process, None
        try:
            reply = await work(broker)
        except KafkaError as error:
            reply = error
        self._loop.touch()

        def arrive() -> None:
            if not answer.done() and process.alive:
                answer.set_result(reply)

        if self._rng.random() >= LOST_CHANCE:
            self._loop.call_later(self._delay(), arrive, context=WORLD)

    def _delay(self) -> float:
        if self._rng.random() < LATE_CHANCE:
            return self._rng.uniform(0.0, 6.0)
        return self._rng.expovariate(1 / 0.0005)
