"""A lent store whose lender dies, or whose client falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.cluster import lent_protocol as wire
from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.lender import Lender
from ottla.cluster.lent import LentStore
from ottla.cluster.store import Create, Revision, Unavailable, holder_key
from ottla.testing.files import MemoryFileSystem

SESSION = 60.0
"""Seconds: nobody is to be taken for gone since this machine does other things for a while."""

BRIEF = 1.5
"""For who is to be gone, or is not to be though it is over."""


class Life:
    """One life of a process that lends its store; the file system outlives it."""

    def __init__(self, path: str, session: float = SESSION) -> None:
        self.path = path
        self.session = session
        self.files = MemoryFileSystem()
        self.store: EmbeddedStore | None = None
        self.lender: Lender | None = None

    async def begin(self, files: MemoryFileSystem | None = None) -> EmbeddedStore:
        self.files = files or self.files
        self.store = await EmbeddedStore.open(self.files, "/data/metadata")
        self.lender = Lender(self.store, self.path, session_seconds=self.session)
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
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


async def last(watch: AsyncIterator[Revision]) -> None:
    async for _ in watch:
        pass


async def back(client: LentStore) -> Revision:
    """Waits until the store can be read again; returns its revision."""
    async with asyncio.timeout(60):
        while True:
            try:
                return (await client.read("")).revision
            except Unavailable:
                await asyncio.sleep(0.001)


async def test_a_client_that_falls_silent_is_gone_after_its_time(tmp_path: Path) -> None:
    life = Life(str(tmp_path / "store"), session=BRIEF)
    store = await life.begin()
    reader, writer = await asyncio.open_unix_connection(life.path)
    join = {"t": "join", "id": 1, "key": "brokers/7", "value": "", "ops": []}
    writer.write(wire.encode({"t": "hello", "name": "7", "earlier": None}) + wire.encode(join))
    async with asyncio.timeout(60):
        told = await reader.read()
    assert b'"brokers/7":["",' in told, "it was there"
    async with asyncio.timeout(60):
        while "brokers/7" in (await store.read("")).entries:
            await asyncio.sleep(0.001)
    writer.close()
    await life.end()


async def test_it_is_no_silence_when_the_machine_stood_still(tmp_path: Path) -> None:
    life = Life(str(tmp_path / "store"), session=BRIEF)
    await life.begin()
    client = await LentStore.connect(life.path, session_seconds=BRIEF)
    session = await client.join("brokers/1", b"")
    for _ in range(2):
        threading.Event().wait(2 * BRIEF)  # neither the lender nor its client runs
        for _ in range(10):
            await client.read("")
            assert not session.lost.happened
    assert "brokers/1" in (await client.read("")).entries
    await client.close()
    await life.end()


async def test_a_lender_that_falls_silent_is_noticed(tmp_path: Path) -> None:
    said = {"t": "all", "revision": 1, "entries": {}, "session": BRIEF}

    async def say_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.encode(said))
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(say_no_more, str(tmp_path / "silent"))
    client = await LentStore.connect(str(tmp_path / "silent"), session_seconds=BRIEF)
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match="silent"):
            await client.read("")
    await client.close()
    server.close()


class Relay:
    """Between clients and the lender: what the first connection sends can be kept back, as a lender
    that was stopped and goes on may find it later than what the next one sends."""

    def __init__(self, path: str, lender: str) -> None:
        self.path = path
        self._lender = lender
        self._server: asyncio.AbstractServer | None = None
        self._passing: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.first: asyncio.StreamWriter | None = None  # to the client of the first connection
        self.flows = asyncio.Event()
        self.flows.set()
        self.kept = bytearray()
        self.delivered = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_lender = await asyncio.open_unix_connection(self._lender)
        self._writers += [writer, to_lender]
        is_first, self.first = self.first is None, self.first or writer
        forth = self._keep(reader, to_lender) if is_first else self._pass(reader, to_lender)
        loop = asyncio.get_running_loop()
        self._passing += [loop.create_task(forth), loop.create_task(self._pass(there, writer))]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not self.flows.is_set():
                self.kept += data
            else:
                writer.write(data)
        await self.flows.wait()
        writer.write(self.kept)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
        self.delivered.set()


async def test_what_was_read_after_a_lost_connection_stays_so(life: Life, tmp_path: Path) -> None:
    relay = Relay(str(tmp_path / "relay"), life.path)
    await relay.start()
    client = await LentStore.connect(relay.path, session_seconds=SESSION)
    relay.flows.clear()
    commit = asyncio.ensure_future(client.commit(Create("late", b"")))
    await until(lambda: b"late" in relay.kept)
    assert relay.first is not None
    relay.first.close()
    with pytest.raises(Unavailable):
        await commit
    await back(client)
    assert "late" not in (await client.read("")).entries, "the lender has not read it"
    relay.flows.set()
    async with asyncio.timeout(60):
        await relay.delivered.wait()
        for number in range(20):
            await client.commit(Create(f"after-{number}", b""))
    assert "late" not in (await client.read("")).entries
    await client.close()
    await relay.stop()


async def test_what_was_begun_is_done_before_the_next_connection_is_answered(
    life: Life, client: LentStore
) -> None:
    for number in range(20):
        commit = asyncio.ensure_future(client.commit(Create(f"key-{number}", b"")))
        await asyncio.sleep(0)
        client.disconnect()
        with contextlib.suppress(Unavailable):
            await commit
        await back(client)
        first = (await client.read("")).entries
        for _ in range(5):
            assert (await client.read("")).entries == first


async def test_nobody_asks_in_vain_on_a_connection_that_is_over(client: LentStore) -> None:
    session = await client.join("brokers/1", b"")
    link = client._link
    assert link is not None
    client.disconnect()
    await until(lambda: link.over)
    async with asyncio.timeout(60):
        await session.release()
        with pytest.raises(Unavailable):
            await link.ask({"t": "sync"})


async def test_a_client_knows_for_how_long_the_lender_waits_for_it(life: Life) -> None:
    client = await LentStore.connect(life.path, session_seconds=100 * SESSION)
    assert client.session_seconds == SESSION
    await client.close()


async def test_whoever_speaks_something_else_is_hung_up_on(life: Life) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", wire.encode({"t": "nonsense", "id": 1}), b"\xff" * 9):
        reader, writer = await asyncio.open_unix_connection(life.path)
        writer.write(noise)
        async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
        second = await waiting
    assert second.epoch > first.epoch
