"""Descriptors run out where the groups' log is: groups wait for a moment, and not for ever."""

from __future__ import annotations

import asyncio
import errno

from ottla.broker.app import Broker
from ottla.config.load import load
from ottla.controller.topics import NewTopic
from ottla.testing.files import MemoryFileSystem

SETTINGS = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data", "node.id": "1"}
LIMIT = 120
TOPIC = "__consumer_offsets"


def test_a_partition_that_could_not_be_made_at_once_is_coordinated_when_it_is():
    disk = MemoryFileSystem()

    async def scenario() -> None:
        broker = Broker(load(None, SETTINGS).config, fs=disk)
        await broker.start()
        services = broker.services
        disk.fail(f"/data/{TOPIC}-1/*", error=errno.EMFILE, operations={"open"}, times=2)
        await services.controller.create_topics([NewTopic(TOPIC, 3, 1)])
        async with asyncio.timeout(LIMIT):
            while services.groups.count_partitions(active=True) < 3:
                await asyncio.sleep(0.01)
        assert [slot.index for slot in services.groups.host if slot.active] == [0, 2, 1]
        await broker.stop()

    asyncio.run(scenario())
