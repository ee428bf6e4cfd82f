"""Several clients of one store: each with sessions, watches and an end of its own.

Brokers of one process share a store by a `StoreHandle` each. Closing a handle ends what was begun
through it, as the end of a process does for a client of ZooKeeper; the store itself goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from ottla.cluster.store import (
    MetadataStore,
    Op,
    Revision,
    Session,
    Snapshot,
    StoreClosed,
    StoreError,
    Term,
)

H = TypeVar("H", Session, Term)


class StoreHandle:
    """A client of a store that others use too. Itself a `MetadataStore`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._closed = asyncio.Event()
        self._held: list[Session | Term] = []

    async def read(self, prefix: str) -> Snapshot:
        self._check_open()
        return await self._store.read(prefix)

    async def commit(self, *ops: Op) -> Revision:
        self._check_open()
        return await self._store.commit(*ops)

    async def watch(self, prefix: str) -> AsyncIterator[Revision]:
        self._check_open()
        inner = self._store.watch(prefix)
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            while True:
                following = asyncio.ensure_future(anext(inner))
                await asyncio.wait((following, closed), return_when=asyncio.FIRST_COMPLETED)
                if closed.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    return
                try:
                    yield following.result()
                except StopAsyncIteration:
                    return
        finally:
            closed.cancel()

    async def join(self, key: str, value: bytes, *ops: Op) -> Session:
        self._check_open()
        return self._hold(await self._store.join(key, value, *ops))

    async def campaign(self, role: str, value: bytes) -> Term:
        self._check_open()
        waiting = asyncio.ensure_future(self._store.campaign(role, value))
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait((waiting, closed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            if not waiting.done():
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            if self._closed.is_set() or _cancelled():
                await _give_back(waiting)
        self._check_open()
        return self._hold(waiting.result())

    async def close(self) -> None:
        """End what was begun here; the store goes on for the others."""
        if self._closed.is_set():
            return
        self._closed.set()
        held, self._held = self._held, []
        for each in held:
            try:
                await each.release()
            except StoreError:
                continue  # the store has ended, and with it the session

    def _hold(self, held: H) -> H:
        self._held = [each for each in self._held if not each.lost.happened]
        self._held.append(held)
        return held

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreClosed("the metadata store is closed")


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _give_back(won: asyncio.Future[Term]) -> None:
    """Release a role that nobody is there to hold."""
    if not won.cancelled() and won.exception() is None:
        await won.result().release()
