"""Standing for a role: a line of ephemeral nodes, in which each watches only the one before.

`.lines/<role>` holds a sequential node for everyone who waits. The first in line waits until the
role's holder key is gone, then creates it and raises the epoch in one commit, which is what
counts: the line is there so that others need not try. When a holder goes, one client acts, not all.
One that was killed stands in line until its session ends, and does not act: when the role has been
free for a while, the next in line tries, and after another while the one behind.

A node's name begins with a candidate's own id. After a lost connection it looks for itself in the
line before it enters again, and one that gives up finds its node by the id, even when it never
learnt that the node was made.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol
from urllib.parse import quote

from ottla.cluster.store import (
    Conflict,
    Create,
    Op,
    Revision,
    Set,
    Unavailable,
    epoch_key,
    holder_key,
)
from ottla.cluster.zookeeper.connection import Broken, Connection, Denied, NoNode, Refused
from ottla.cluster.zookeeper.mirror import Mirror
from ottla.cluster.zookeeper.nodes import LINES
from ottla.cluster.zookeeper.sessions import Release, ZooKeeperSession, ZooKeeperTerm

OVERDUE_SECONDS = 0.5
"""How long each one in line is given to take a role that is free."""


class Electorate(Protocol):
    """What a candidate needs of the store."""

    @property
    def connection(self) -> Connection: ...

    @property
    def mirror(self) -> Mirror: ...

    async def refresh(self) -> None: ...

    async def wait_online(self) -> None: ...

    async def wait_offline(self) -> None: ...

    async def commit_as(self, session: ZooKeeperSession, ops: tuple[Op, ...]) -> None: ...

    def watch(self, prefix: str) -> AsyncIterator[Revision]: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Candidate:
    """One who stands for a role, until elected or cancelled."""

    def __init__(self, store: Electorate, role: str, value: bytes, release: Release) -> None:
        self._store = store
        self._connection = store.connection
        self._role = role
        self._value = value
        self._release = release
        self._id = uuid.uuid4().hex
        self._line = f"{LINES}/{quote(role, safe='')}"
        self.term: ZooKeeperTerm | None = None
        """The newest attempt to begin a term."""

    async def stand(self) -> ZooKeeperTerm:
        """Wait to be elected."""
        try:
            while True:
                await self._store.wait_online()
                try:
                    await self._wait_first()
                    await self._wait_vacant()
                    return await self._take()
                except (Broken, Unavailable, Conflict, NoNode, Refused):
                    continue
        finally:
            self._store.spawn(self._leave())

    async def _wait_first(self) -> None:
        """Enter the line, or find oneself there, and wait for everybody before, unless they do
        nothing."""
        while True:
            places = await self._places()
            mine = [place for place in places if self._id in place]
            if not mine:
                name = f"{self._line}/{self._id}-"
                await self._connection.create(name, ephemeral=True, sequence=True)
                continue
            before = places[: places.index(mine[0])]
            if not before:
                return
            moved = asyncio.Event()
            path = f"{self._line}/{before[-1]}"
            if await self._connection.exists(path, watch=_setting(moved)) is None:
                continue
            if not await self._wait_moved(moved, len(before)):
                return

    async def _wait_moved(self, moved: asyncio.Event, ahead: int) -> bool:
        """Until a watch was called, or (False) those `ahead` leave a free role untaken too long.

        Broken when the connection ends, which ends the watch too.
        """
        waiting = asyncio.ensure_future(moved.wait())
        offline = asyncio.ensure_future(self._store.wait_offline())
        overdue = asyncio.ensure_future(self._wait_overdue(ahead))
        tasks = (waiting, offline, overdue)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if moved.is_set():
                return True
            if offline.done():
                raise Broken("the connection to ZooKeeper ended")
            overdue.result()
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_overdue(self, ahead: int) -> None:
        while True:
            await self._wait_vacant()
            await asyncio.sleep(OVERDUE_SECONDS * ahead)
            if holder_key(self._role) not in self._store.mirror.entries:
                return

    async def _places(self) -> list[str]:
        """The names in the line, in the order of their numbers."""
        while True:
            try:
                names = await self._connection.children(self._line)
            except NoNode:
                for path in (LINES, self._line):
                    try:
                        await self._connection.create(path)
                    except Refused:
                        continue  # it is there
                continue
            return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    async def _wait_vacant(self) -> None:
        holder = holder_key(self._role)
        async for _ in self._store.watch(holder):
            await self._store.refresh()
            if holder not in self._store.mirror.entries:
                return

    async def _take(self) -> ZooKeeperTerm:
        """Holder and next epoch in one commit."""
        last = self._store.mirror.entries.get(epoch_key(self._role))
        begin: Op
        if last is None:
            begin = Create(epoch_key(self._role), self._value)
        else:
            begin = Set(epoch_key(self._role), self._value, last.version)
        version = 0 if last is None else last.version + 1
        term = self.term = ZooKeeperTerm(self._role, version, self._release)
        await self._store.commit_as(term, (Create(term.key, self._value), begin))
        return term

    async def _leave(self) -> None:
        """Take our node out of the line; it would hold up everybody behind."""
        while True:
            await self._store.wait_online()
            try:
                for place in await self._places():
                    if self._id in place:
                        await self._connection.delete(f"{self._line}/{place}")
                return
            except (Broken, Refused):
                continue
            except Denied:
                return


def _setting(event: asyncio.Event) -> Callable[[object], None]:
    return lambda _: event.set()
