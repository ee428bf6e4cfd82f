"""Keeping the mirror as new as somebody needs it, with few requests.

A *round* brings the mirror up to date. One that somebody waits for begins with `sync`, so that it
counts as a read that began after they asked; one that a watch caused does without. It asks how many
changes there have been (ZooKeeper counts the children ever created below `.changes`), reads those
it does not have yet, and applies them together. So a change elsewhere costs a watch, a look at the
count, a read of the change and a new watch, however many keys there are.

Everything is read once at the start, and when the changes that are missing have been trimmed. What
is read over many requests is no state of one moment; the changes made meanwhile, applied on top,
make it one. The same holds for values too large to be part of a change.

A session's end deletes its ephemeral keys without a change. Each of them therefore has a watch of
its own. Where such an end stands among the commits is not known: it may be seen later than commits
that followed it, never earlier than its key's creation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ottla.cluster.zookeeper.connection import Broken, Connection, Denied, NoNode, Stat
from ottla.cluster.zookeeper.mirror import Mirror, unread
from ottla.cluster.zookeeper.nodes import (
    CHANGES,
    Change,
    Node,
    change_name,
    change_number,
    decode_change,
    decode_data,
    is_reserved,
)


class Replaced(Exception):
    """What is in ZooKeeper is not what was there before."""


class Trimmed(Exception):
    """Changes that would be needed are gone."""


class Follower:
    """The mirror, and the way to make it newer."""

    def __init__(
        self, connection: Connection, on_change: Callable[[set[str], Iterable[Change]], None]
    ) -> None:
        self._connection = connection
        self._on_change = on_change
        self.mirror = Mirror()
        self.full_loads = 0
        self.kept = 0
        """Changes that are there now."""
        # Which store this is: what its founder wrote into `.changes`.
        self._identity: bytes | None = None
        self._wrong = True
        # Watches.
        self._armed_at: int | None = None
        self._watched: dict[str, int] = {}
        self._vanished: set[tuple[str, int]] = set()
        self._arming: set[asyncio.Task[None]] = set()
        # Rounds.
        self.kick = asyncio.Event()
        """Set when a round should be made although nobody waits for it."""

    async def check_numbering(self) -> None:
        """That this server counts as Apache ZooKeeper does; everything here builds on it."""
        numbers = [change_number(name) for name in await self._connection.children(CHANGES)]
        _, stat = await self._look(synced=False)
        if numbers and _newest(stat) < max(numbers):
            raise Replaced(
                "this server numbers sequential nodes in another way than Apache ZooKeeper: use "
                "Apache ZooKeeper"
            )

    def reload(self) -> None:
        """Read everything in the next round: the mirror was found to be wrong."""
        self._wrong = True

    def forget_watches(self) -> None:
        """A connection ended, and its watches with it."""
        self._armed_at = None
        self._watched.clear()
        self.kick.set()

    async def round(self, *, synced: bool) -> None:
        """Bring the mirror up to date. Raises Broken, Replaced."""
        while True:
            identity, stat = await self._look(synced=synced)
            if self._identity is None:
                self._identity = identity
            self.compare((identity, stat), self.mirror.position)
            if self._wrong:
                await self._load_everything()
            else:
                try:
                    await self._catch_up(stat)
                except Trimmed:
                    await self._load_everything()
            await self._arm()
            if not self._vanished:
                return
            synced = False  # sessions ended before their keys had a watch

    def compare(self, found: tuple[bytes, Stat] | None, known: int) -> None:
        """Replaced when what was found cannot have come of what was known when the look began: the
        change with this number, and those before it. That nothing is there says nothing yet."""
        if found is None or self._identity is None:
            return
        identity, stat = found
        if identity != self._identity or _newest(stat) < known:
            raise Replaced("it was emptied, or an older state of it was brought back")

    async def _look(self, *, synced: bool) -> tuple[bytes, Stat]:
        """Which store this is, and how many changes it has seen."""
        try:
            if synced:
                # Both are on their way at once; the server answers in order.
                _, found = await asyncio.gather(
                    self._connection.sync(CHANGES), self._connection.get(CHANGES)
                )
            else:
                found = await self._connection.get(CHANGES)
        except NoNode:
            raise Replaced("it was deleted") from None
        self.kept = found[1].children
        return found

    async def _catch_up(self, stat: Stat) -> None:
        vanished, self._vanished = self._vanished, set()
        try:
            changes, read = await self._collect(self.mirror.position, stat)
        except BaseException:
            self._vanished |= vanished
            raise
        gone = {key for key, born in vanished if self.mirror.vanish(key, born)}
        touched = self.mirror.apply(changes, read)
        if touched or gone:
            self._on_change(touched | gone, changes)

    async def _collect(
        self, position: int, stat: Stat
    ) -> tuple[list[Change], dict[str, Node | None]]:
        """The changes after `position`, and the values that they do not hold."""
        changes: list[Change] = []
        read: dict[str, Node | None] = {}
        while True:
            newest = _newest(stat)
            if newest - position > stat.children:
                raise Trimmed
            changes += await asyncio.gather(
                *(self._change(number) for number in range(position + 1, newest + 1))
            )
            position = newest
            missing = sorted(unread(changes))
            if not missing:
                return changes, {}
            read = dict(zip(missing, await self._nodes(missing), strict=True))
            _, stat = await self._look(synced=False)
            if _newest(stat) == newest:
                return changes, read

    async def _change(self, number: int) -> Change:
        try:
            data, stat = await self._connection.get(change_name(number))
        except NoNode:
            raise Trimmed from None
        return decode_change(data, number, stat.created)

    async def _load_everything(self) -> None:
        self.full_loads += 1
        while True:
            _, start = await self._look(synced=False)
            nodes: dict[str, Node] = {}
            await self._walk("", nodes)
            try:
                _, stat = await self._look(synced=False)
                changes, read = await self._collect(_newest(start), stat)
            except Trimmed:
                continue
            break
        self._wrong = False
        mirror = Mirror(nodes, _newest(start))
        mirror.apply(changes, read)
        touched = mirror.carry_on_from(self.mirror)
        self.mirror = mirror
        self._watched.clear()
        self._vanished.clear()
        self._on_change(touched, changes)

    async def _walk(self, top: str, nodes: dict[str, Node]) -> None:
        """All nodes below `top`, level by level."""
        level = [top]
        while level:
            below = await asyncio.gather(*(self._below(path) for path in level))
            keys = [key for names in below for key in names if not is_reserved(key)]
            found = await asyncio.gather(*(self._load(key) for key in keys))
            level = []
            for key, loaded in zip(keys, found, strict=True):
                if loaded is not None:
                    nodes[key], children = loaded
                    if children:
                        level.append(key)

    async def _below(self, path: str) -> list[str]:
        try:
            names = await self._connection.children(path)
        except NoNode:
            return []
        return [f"{path}/{name}" if path else name for name in names]

    async def _nodes(self, keys: Iterable[str]) -> list[Node | None]:
        loaded = await asyncio.gather(*(self._load(key) for key in keys))
        return [None if each is None else each[0] for each in loaded]

    async def _load(self, key: str) -> tuple[Node, int] | None:
        try:
            data, stat = await self._connection.get(key)
        except NoNode:
            return None
        value, base = decode_data(data)
        return Node(value, stat.version, base, stat.created, stat.owner != 0), stat.children

    # --- watches ----------------------------------------------------------------------------------

    async def _arm(self) -> None:
        """Watches on the next change and on every ephemeral key that has none."""
        following = self.mirror.position + 1
        wanted = []
        if self._armed_at != following:
            self._armed_at = following
            wanted.append(self._watch_next(following))
        for key, born in self.mirror.ephemerals():
            if self._watched.get(key) != born:
                self._watched[key] = born
                wanted.append(self._watch_ephemeral(key, born))
        if wanted:
            await asyncio.gather(*wanted)

    async def _watch_next(self, number: int) -> None:
        def made(_: bool) -> None:
            self.kick.set()

        if await self._connection.exists(change_name(number), watch=made) is not None:
            self.kick.set()

    async def _watch_ephemeral(self, key: str, born: int) -> None:
        def changed(deleted: bool) -> None:
            if deleted:
                self._vanish(key, born)
            elif self._watched.get(key) == born:
                work = self._watch_again(key, born)
                task = asyncio.get_running_loop().create_task(work)
                self._arming.add(task)
                task.add_done_callback(self._arming.discard)

        try:
            _, stat = await self._connection.get(key, watch=changed)
        except NoNode:
            self._vanish(key, born)
            return
        if stat.created != born:
            self._vanish(key, born)

    def _vanish(self, key: str, born: int) -> None:
        if self._watched.get(key) == born:
            del self._watched[key]
        self._vanished.add((key, born))
        self.kick.set()

    async def _watch_again(self, key: str, born: int) -> None:
        try:
            await self._watch_ephemeral(key, born)
        except (Broken, Denied):
            pass  # `forget_watches` follows, and everything is armed anew

    async def stop(self) -> None:
        for task in tuple(self._arming):
            task.cancel()
        if self._arming:
            await asyncio.wait(tuple(self._arming))


def _newest(stat: Stat) -> int:
    """The number of the newest change; -1 before the first.

    ZooKeeper numbers sequential nodes by the children ever created, and shows a count of all
    changes of the list of children: twice the creations, less those that are still there.
    """
    return (stat.child_version + stat.children) // 2 - 1
