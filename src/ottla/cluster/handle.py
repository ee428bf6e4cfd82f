"""StoreHandle: one broker's own way into a metadata store that several brokers of a process share.

A store ends every session of a client that is closed. Where several brokers share one
`EmbeddedStore` object, closing that object would end all of them, so each gets a handle: a
`MetadataStore` that passes everything on, remembers what was joined and won through it, and gives
exactly that back when it is closed. The store itself stays open; whoever opened it closes it.

    store = await EmbeddedStore.open(files, folder)
    brokers = [Broker(config, store=StoreHandle(store)) for config in configs]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ottla.cluster.store import (
    Loss,
    MetadataStore,
    Op,
    Revision,
    Session,
    Snapshot,
    StoreClosed,
    StoreError,
    Term,
)

Presence = TypeVar("Presence", bound=Session | Term)


class StoreHandle:
    """A client of `store`, in the same process."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._closed = Loss()
        self._held: list[Session | Term] = []
        self._joining: set[asyncio.Task[Any]] = set()

    @property
    def session_seconds(self) -> float:
        return self._store.session_seconds

    async def read(self, prefix: str) -> Snapshot:
        self._check_open()
        return await self._store.read(prefix)

    async def commit(self, *ops: Op) -> Revision:
        self._check_open()
        return await self._store.commit(*ops)

    def watch(self, prefix: str) -> AsyncIterator[Revision]:
        return _Watch(self._store.watch(prefix), self._closed)

    async def join(self, key: str, value: bytes, *ops: Op) -> Session:
        return await self._hold(self._store.join(key, value, *ops))

    async def campaign(self, role: str, value: bytes) -> Term:
        return await self._hold(self._store.campaign(role, value))

    async def close(self) -> None:
        self._closed.happen()
        while self._joining:
            for task in self._joining:
                task.cancel()
            await asyncio.wait(self._joining)
        held, self._held = self._held, []
        for presence in held:
            with suppress(StoreError):  # lost with the store
                await presence.release()

    def _check_open(self) -> None:
        if self._closed.happened:
            raise StoreClosed("this handle of the metadata store is closed")

    async def _hold(self, work: Coroutine[Any, Any, Presence]) -> Presence:
        """Wait for a session or a term, and remember it."""
        if self._closed.happened:
            work.close()
        self._check_open()
        task = asyncio.ensure_future(work)
        self._joining.add(task)
        task.add_done_callback(self._joined)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed.happened and caller is not None and not caller.cancelling():
                raise StoreClosed("this handle of the metadata store was closed") from None
            # Cancelled between the answer and its arrival: nobody will release what was joined.
            if task.done() and not task.cancelled() and task.exception() is None:
                await task.result().release()
            raise

    def _joined(self, task: asyncio.Task[Presence]) -> None:
        self._joining.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._held = [presence for presence in self._held if not presence.lost.happened]
            self._held.append(task.result())


class _Watch:
    """A watch of the store, which ends with the handle as well."""

    def __init__(self, watch: AsyncIterator[Revision], closed: Loss) -> None:
        self._watch = watch
        self._closed = closed

    def __aiter__(self) -> _Watch:
        return self

    async def __anext__(self) -> Revision:
        if self._closed.happened:
            raise StopAsyncIteration
        change = asyncio.ensure_future(_next(self._watch))
        closed = asyncio.ensure_future(_happened(self._closed))
        try:
            await asyncio.wait((change, closed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            if not change.done():
                change.cancel()
        revision = None if self._closed.happened else await change
        if revision is None:
            raise StopAsyncIteration
        return revision


async def _next(watch: AsyncIterator[Revision]) -> Revision | None:
    return await anext(watch, None)


async def _happened(loss: Loss) -> None:
    await loss
