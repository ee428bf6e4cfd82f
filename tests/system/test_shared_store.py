"""Several brokers in one process, each with its own handle of one metadata store."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from ottla.broker.app import Broker, StartFailed
from ottla.cluster import layout
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.store import Delete
from ottla.config.load import load
from ottla.controller.topics import NewTopic
from ottla.testing.files import MemoryFileSystem

LIMIT = 120


class Nodes:
    """Brokers over one store and one disk, by number."""

    def __init__(self, store: EmbeddedStore, disk: MemoryFileSystem) -> None:
        self.store = store
        self.disk = disk
        self.running: dict[int, Broker] = {}

    def new(self, number: int, *, folder: str | None = None) -> Broker:
        settings = {
            "node.id": str(number),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": folder or f"/data-{number}",
        }
        config = load(None, settings).config
        return Broker(config, store=StoreHandle(self.store), fs=self.disk)

    async def start(self, number: int) -> Broker:
        broker = self.running[number] = self.new(number)
        async with asyncio.timeout(LIMIT):
            await broker.start()
        return broker

    async def stop(self, number: int) -> None:
        await self.running.pop(number).stop()

    async def kill(self, number: int) -> None:
        """As kill -9, but for the folder's lock, which the disk of a test has to give back."""
        await self.running.pop(number).abandon(lambda: None)

    async def stop_all(self) -> None:
        for number in list(self.running):
            await self.stop(number)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    disk = MemoryFileSystem()
    store = await EmbeddedStore.open(disk, "/store")
    nodes = Nodes(store, disk)
    yield nodes
    await nodes.stop_all()
    await store.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.001)


async def answers(broker: Broker) -> bool:
    """Whether a client gets an answer to ApiVersions."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.listening[0].port)
    try:
        writer.write(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        return len(await reader.readexactly(length)) == length
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_second_broker_starts_beside_the_controller(nodes: Nodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    assert await answers(first)
    assert await answers(second)
    assert second.cluster_id == first.cluster_id
    assert first.services.controller.active
    assert not second.services.controller.active
    await first.services.controller.create_topics([NewTopic("t", 4, 1)])
    await until(lambda: "t" in second.services.image.topics)
    led = {state.leader for state in second.services.image.topics["t"].partitions}
    assert led == {1, 2}, "partitions are placed on both"


async def test_when_the_controller_stops_another_broker_takes_over(nodes: Nodes) -> None:
    await nodes.start(1)
    second = await nodes.start(2)
    await nodes.stop(1)
    await until(lambda: second.services.controller.active)
    await until(lambda: set(second.services.image.brokers) == {2})
    await second.services.controller.create_topics([NewTopic("t", 1, 1)])
    assert await answers(second)
    again = await nodes.start(1)
    assert "t" in again.services.image.topics
    assert not again.services.controller.active


async def test_a_killed_broker_leaves_the_store_to_the_others(nodes: Nodes) -> None:
    await nodes.start(1)
    second = await nodes.start(2)
    await nodes.kill(1)
    await until(lambda: second.services.controller.active)
    await until(lambda: set(second.services.image.brokers) == {2})
    assert await answers(second)


async def test_a_broker_id_in_use_is_refused_and_harms_nobody(nodes: Nodes) -> None:
    first = await nodes.start(1)
    await first.services.controller.create_topics([NewTopic("t", 2, 1)])
    before = first.services.image
    with pytest.raises(StartFailed, match="registered with broker id 1"):
        await nodes.new(1, folder="/elsewhere").start()
    assert await answers(first)
    assert set(first.services.image.brokers) == {1}
    assert await first.services.registry.load() == before, "nor are its partitions led anew"


async def test_a_broker_with_a_given_store_keeps_no_metadata_in_its_folders(nodes: Nodes) -> None:
    await nodes.start(1)
    await nodes.stop(1)
    names = set(nodes.disk.listdir("/data-1"))
    assert "meta.properties" in names
    assert not names & {"metadata", "ottla.metadata"}


async def test_a_lost_registration_is_made_anew_while_clients_are_served(nodes: Nodes) -> None:
    first = await nodes.start(1)
    second = await nodes.start(2)
    before = first.services.image.brokers[2].epoch
    key = layout.broker_key(2)
    await nodes.store.commit(Delete(key, (await nodes.store.read(key)).entries[key].version))
    await until(
        lambda: 2 in first.services.image.brokers and first.services.image.brokers[2].epoch > before
    )
    assert await answers(second)


async def test_a_store_that_is_closed_under_a_broker_ends_it_with_a_reason(nodes: Nodes) -> None:
    first = await nodes.start(1)
    await nodes.store.close()
    async with asyncio.timeout(LIMIT):
        reason = await first.wait_failed()
    assert reason.startswith("the metadata store was lost")
    assert reason.endswith("restart the broker")
