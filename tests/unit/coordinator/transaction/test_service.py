"""The transaction coordinator and the other brokers: who is gone is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.cluster.registry import ImageChange
from ottla.config.broker import BrokerConfig
from ottla.coordinator.host import Slot
from ottla.coordinator.transaction.service import Transactions
from ottla.coordinator.transaction.state import TRANSACTIONS_TOPIC, Identity, WriteMarkers
from ottla.errors import ErrorCode
from ottla.model.broker import Endpoint
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.net.channel import ChannelClosed
from ottla.runtime.clock import SystemClock
from ottla.runtime.tasks import Tasks
from ottla.runtime.workers import Workers

HERE, FROZEN, NEXT = 1, 2, 3
PRODUCER = Identity(7, 3)
PLACE = TopicPartition("t", 0)


class SilentPeer:
    """A broker that takes requests and stands still."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._closed = asyncio.Event()

    async def ask(self, request: Any, *, timeout: float) -> Any:
        self.asked.set()
        await self._closed.wait()
        raise ChannelClosed("closed")

    def close(self) -> None:
        self._closed.set()


class SilentPeers:
    def __init__(self) -> None:
        self.registered = {FROZEN, NEXT}
        self.peers = {FROZEN: SilentPeer(), NEXT: SilentPeer()}

    def endpoint(self, broker_id: int) -> Endpoint | None:
        return Endpoint("brokers", "h", broker_id) if broker_id in self.registered else None

    def at(self, endpoint: Endpoint) -> SilentPeer:
        return self.peers[endpoint.port]


def image(leader: int) -> ClusterImage:
    """Everything is led by this broker."""
    state = PartitionState(leader, 0, 0, (leader,), (leader,))
    topics = [
        Topic(name, TopicId(name[-1:].encode() * 16), (state,))
        for name in ("t", TRANSACTIONS_TOPIC)
    ]
    return ClusterImage(topics={each.name: each for each in topics})


class World:
    def __init__(self, workers: Workers) -> None:
        self.peers = SilentPeers()
        self._image = ClusterImage()
        anything = cast(Any, SimpleNamespace())
        self.transactions = Transactions(
            HERE,
            partitions=anything,
            groups=anything,
            clock=SystemClock(),
            workers=workers,
            tasks=Tasks(),
            config=BrokerConfig,
            version=lambda: 2,
            new_producer_id=anything,
            peers=cast(Any, self.peers),
        )
        self.lead(FROZEN)

    def lead(self, leader: int, *gone: int) -> None:
        """Another broker leads; others are registered no more."""
        self.peers.registered -= set(gone)
        old, self._image = self._image, image(leader)
        topics = frozenset(self._image.topics)
        self.transactions.apply(ImageChange(old, self._image, topics, frozenset(gone)))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    workers = Workers()
    made = World(workers)
    yield made
    await made.transactions.close()
    workers.close()


async def test_the_answer_of_a_coordinator_that_is_gone_is_not_waited_for(world: World) -> None:
    ask = world.transactions.allow("orders", PRODUCER, frozenset({PLACE}), add=False)
    asking = asyncio.create_task(ask)
    async with asyncio.timeout(20):
        await world.peers.peers[FROZEN].asked.wait()
        world.lead(NEXT, FROZEN)
        assert await asking == {PLACE: ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def test_markers_for_a_leader_that_is_gone_are_sent_to_the_next_one(world: World) -> None:
    slot = cast(Slot, SimpleNamespace(active=True, leader_epoch=5))
    what = WriteMarkers("orders", PRODUCER, True, frozenset({PLACE}), 2, 0)
    world.transactions.sender.send(slot, what)
    async with asyncio.timeout(20):
        await world.peers.peers[FROZEN].asked.wait()
        world.lead(NEXT, FROZEN)
        await world.peers.peers[NEXT].asked.wait()
