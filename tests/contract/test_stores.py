"""Every metadata store keeps the contract of `ottla.testing.check_store`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.cluster.embedded import EmbeddedStore
from ottla.cluster.handle import StoreHandle
from ottla.cluster.lender import Lender
from ottla.cluster.lent import LentStore
from ottla.runtime.files import FileSystem, OsFileSystem
from ottla.testing.check_store import CHECKS, Connect, StoreCheck, check_store
from ottla.testing.files import MemoryFileSystem

SESSION = 60.0
"""Seconds: nobody is to be taken for gone since this machine does other things for a while."""


class SharedEmbeddedStore:
    """Clients of one embedded store: the same object while it is open, a restart afterwards."""

    def __init__(self, files: FileSystem, folder: str, journal_limit: int) -> None:
        self._files = files
        self._folder = folder
        self._journal_limit = journal_limit
        self._store: EmbeddedStore | None = None

    async def __call__(self) -> EmbeddedStore:
        if self._store is None or self._store.closed:
            self._store = await EmbeddedStore.open(
                self._files, self._folder, journal_limit=self._journal_limit
            )
        return self._store


@pytest.fixture(params=["on disk", "in memory", "in memory, rotating after every commit"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> SharedEmbeddedStore:
    limit = 1 if "rotating" in request.param else 1 << 20
    if request.param == "on disk":
        return SharedEmbeddedStore(OsFileSystem(), str(tmp_path / "data" / "metadata"), limit)
    return SharedEmbeddedStore(MemoryFileSystem(), "/data/metadata", limit)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_embedded_store(check: StoreCheck, connect: SharedEmbeddedStore) -> None:
    await check(connect)


@pytest.fixture
async def handles() -> AsyncIterator[Connect]:
    """Each client has a handle of its own to one embedded store, which outlives them all."""
    store = await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")

    async def connect() -> StoreHandle:
        return StoreHandle(store)

    yield connect
    await store.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_handles_of_an_embedded_store(check: StoreCheck, handles: Connect) -> None:
    await check(handles)


async def test_a_closed_handle_gives_back_only_what_is_its_own(handles: Connect) -> None:
    one, other = await handles(), await handles()
    mine = await one.join("brokers/1", b"")
    theirs = await other.join("brokers/2", b"")
    term = await one.campaign("controller", b"1")
    waiting = asyncio.ensure_future(other.campaign("controller", b"2"))
    await one.close()
    assert mine.lost.happened
    assert term.lost.happened
    assert not theirs.lost.happened
    async with asyncio.timeout(60):
        assert (await waiting).epoch == term.epoch + 1
    assert set((await other.read("brokers")).entries) == {"brokers/2"}
    await other.close()


async def test_the_suite_runs_as_one_call_too() -> None:
    opened = []

    async def fresh() -> SharedEmbeddedStore:
        opened.append(SharedEmbeddedStore(MemoryFileSystem(), "/data/metadata", 1 << 20))
        return opened[-1]

    await check_store(fresh)
    assert len(opened) == len(CHECKS)


async def test_the_suite_lists_every_check_it_defines() -> None:
    import ottla.testing.check_store as suite

    defined = {
        name
        for name, value in vars(suite).items()
        if getattr(value, "__module__", None) == suite.__name__
        and callable(value)
        and not name.startswith("_")
        and name not in ("check_store",)
    }
    assert defined == {check.__name__ for check in CHECKS}


class Lent:
    """Clients of one embedded store over a Unix socket, as processes of one machine have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lender: Lender | None = None

    async def __call__(self) -> LentStore:
        path = str(self._folder / "metadata.socket")
        if self._lender is None:
            store = await EmbeddedStore.open(MemoryFileSystem(), "/data/metadata")
            self._lender = Lender(store, path, session_seconds=SESSION)
            await self._lender.start()
        return await LentStore.connect(path, session_seconds=SESSION)

    async def close(self) -> None:
        if self._lender is not None:
            await self._lender.stop()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_lent_store(check: StoreCheck, tmp_path: Path) -> None:
    lent = Lent(tmp_path)
    try:
        await check(lent)
    finally:
        await lent.close()
