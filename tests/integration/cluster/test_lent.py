"""A lent store whose lender dies, or whose client falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.cluster import lent_protocol as wire
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.lender import Lender
from ottla.cluster.lent import LentStore
from ottla.cluster.store import Create, Revision, Unavailable, holder_key
from ottla.testing.files import MemoryFileSystem

SESSION = 1.5


class Life:
    """One life of a process that lends its store; the file system outlives it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files = MemoryFileSystem()
        self.store: EmbeddedStore | None = None
        self.lender: Lender | None = None

    async def begin(self, files: MemoryFileSystem | None = None) -> EmbeddedStore:
        self.files = files or self.files
        self.store = await EmbeddedStore.open(self.files, "/data/metadata")
        self.lender = Lender(self.store, self.path, session_seconds=SESSION)
        await self.lender.start()
        return self.store

    async def end(self) -> None:
        if self.lender is not None and self.store is not None:
            await self.lender.stop()
            await self.store.close()


@pytest.fixture
async def life(tmp_path: Path) -> AsyncIterator[Life]:
    made = Life(str(tmp_path / "store"))
    await made.begin()
    yield made
    await made.end()


@pytest.fixture
async def client(life: Life) -> AsyncIterator[LentStore]:
    store = await LentStore.connect(life.path, session_seconds=SESSION)
    yield store
    await store.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


async def last(watch: AsyncIterator[Revision]) -> None:
    async for _ in watch:
        pass


async def back(client: LentStore) -> Revision:
    """Waits until the store can be read again; returns its revision."""
    async with asyncio.timeout(10):
        while True:
            try:
                return (await client.read("")).revision
            except Unavailable:
                await asyncio.sleep(0.001)


async def test_a_client_that_falls_silent_is_gone_after_its_time(
    life: Life, client: LentStore
) -> None:
    reader, writer = await asyncio.open_unix_connection(life.path)
    join = {"t": "join", "id": 1, "key": "brokers/7", "value": "", "ops": []}
    writer.write(wire.encode(join))
    assert life.store is not None
    async with asyncio.timeout(10):
        async for _ in client.watch("brokers"):
            if "brokers/7" in client.entries:
                break
        async for _ in client.watch("brokers"):
            if "brokers/7" not in client.entries:
                break
        await reader.read()
    writer.close()


async def test_whoever_speaks_something_else_is_hung_up_on(life: Life) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", wire.encode({"t": "nonsense", "id": 1}), b"\xff" * 9):
        reader, writer = await asyncio.open_unix_connection(life.path)
        writer.write(noise)
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
    await (await LentStore.connect(life.path)).close()


async def test_a_lender_that_died_takes_all_sessions_along_and_is_found_again(
    life: Life, client: LentStore
) -> None:
    await client.commit(Create("a", b"1"))
    session = await client.join("brokers/1", b"")
    term = await client.campaign("role", b"")
    await life.end()
    async with asyncio.timeout(10):
        await session.lost
        await term.lost
    with pytest.raises(Unavailable):
        await client.read("")
    await life.begin()
    await back(client)
    snapshot = await client.read("")
    assert snapshot.entries["a"].value == b"1"
    assert "brokers/1" not in snapshot.entries
    again = await client.join("brokers/1", b"")
    assert not again.lost.happened


async def test_revisions_never_go_back_whatever_the_next_lender_counts(
    life: Life, client: LentStore
) -> None:
    for number in range(20):
        await client.commit(Create(f"key-{number}", b""))
    before = (await client.read("")).revision
    await life.end()
    await life.begin(MemoryFileSystem())  # another store, from the beginning
    after = await back(client)
    assert after > before
    assert (await client.read("")).entries == {}
    assert await client.commit(Create("new", b"")) > after


async def test_a_watch_does_not_miss_what_happened_between_two_lives(
    life: Life, client: LentStore
) -> None:
    watch = client.watch("")
    async with asyncio.timeout(10):
        await anext(watch)
        await life.end()
        with pytest.raises(Unavailable):
            await last(watch)
        store = await life.begin()
        await store.commit(Create("meanwhile", b""))
        await back(client)
        await anext(client.watch(""))
    assert "meanwhile" in (await client.read("")).entries


async def test_whoever_waits_for_a_role_learns_that_the_lender_died(
    life: Life, client: LentStore
) -> None:
    holder = await LentStore.connect(life.path, session_seconds=SESSION)
    await holder.campaign("role", b"1")
    waiting = asyncio.ensure_future(client.campaign("role", b"2"))
    await client.read("")
    assert not waiting.done()
    await life.end()
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await waiting
        await life.begin()
        await back(client)
        term = await client.campaign("role", b"2")
    assert term.epoch == 2
    assert (await client.read("")).entries[holder_key("role")].value == b"2"
    await holder.close()


async def test_whoever_waits_for_a_role_gets_it_when_its_holder_hangs_up(
    life: Life, client: LentStore
) -> None:
    holder = await LentStore.connect(life.path, session_seconds=SESSION)
    first = await holder.campaign("role", b"1")
    waiting = asyncio.ensure_future(client.campaign("role", b"2"))
    await client.read("")
    await holder.close()
    async with asyncio.timeout(10):
        second = await waiting
    assert second.epoch > first.epoch
