"""LentStore: the metadata store of another process of this machine, over a Unix socket.

The other side is a `Lender`. It sends every change, so this side has all of the state in memory; a
read asks only which revision is the newest and waits until that has arrived.

The connection is the session: when it ends, what was joined or won through it is lost, and a commit
under way has an unknown outcome. It is made again in the background, for as long as it takes; until
then everything raises `Unavailable`. The new connection names the old one, which the lender ends
before it answers: what is read then is what became of the commit, and stays so. A lender that was
started anew may count revisions from an earlier number; here they go on from the last one seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from ottla.cluster import lent_protocol as wire
from ottla.cluster.store import (
    Check,
    Conflict,
    Create,
    Entry,
    Loss,
    Op,
    Revision,
    Snapshot,
    StoreClosed,
    StoreError,
    Unavailable,
    check_ops,
    covers,
    epoch_key,
    holder_key,
)
from ottla.cluster.unix_path import short_path

logger = logging.getLogger(__name__)

SESSION_SECONDS = 6.0
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5


class LentSession:
    """What was joined, or a role that was won, through one connection."""

    def __init__(self, store: LentStore, link: _Link, request: int, key: str) -> None:
        self._store = store
        self._link = link
        self._request = request
        self.key = key
        self.lost = Loss()

    async def release(self) -> None:
        if not self.lost.happened:
            with contextlib.suppress(Unavailable):  # then it is over anyway
                await self._link.ask({"t": "release", "held": self._request})
            self._link.held.pop(self._request, None)
            self.lost.happen()


class LentTerm(LentSession):
    """A role held."""

    def __init__(
        self, store: LentStore, link: _Link, request: int, role: str, epoch: int, fence: Check
    ) -> None:
        super().__init__(store, link, request, holder_key(role))
        self.epoch = epoch
        self.fence = fence


class LentStore:
    """A `MetadataStore` that another process of this machine holds."""

    def __init__(self, path: str, session_seconds: float) -> None:
        self._path = path
        self._session_seconds = session_seconds
        self.session_seconds = session_seconds
        self._link: _Link | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._earlier: str | None = None  # the last connection that anything was asked on
        self._closed = False
        # The mirror.
        self.entries: Mapping[str, Entry] = {}
        self._revision = 0
        self._arrived = asyncio.Condition()
        self._watches: set[_Watch] = set()

    @classmethod
    async def connect(cls, path: str, *, session_seconds: float = SESSION_SECONDS) -> LentStore:
        """Connect to the lender at `path`; Unavailable when nobody is there."""
        store = cls(path, session_seconds)
        await store._open()
        return store

    # --- MetadataStore ----------------------------------------------------------------------------

    async def read(self, prefix: str) -> Snapshot:
        link = self._living()
        answer = await link.ask({"t": "sync"})
        wanted = int(answer["revision"]) + link.ahead
        async with self._arrived:
            await self._arrived.wait_for(
                lambda: self._revision >= wanted or self._link is not link or link.over
            )
        if self._living() is not link:  # another lender's revisions say nothing about this one's
            raise Unavailable("the connection to the metadata store was lost")
        entries = self.entries
        if prefix:
            entries = {key: entry for key, entry in entries.items() if covers(prefix, key)}
        return Snapshot(Revision(self._revision), entries)

    async def commit(self, *ops: Op) -> Revision:
        check_ops(ops)
        link = self._living()
        answer = await link.ask({"t": "commit", "ops": list(map(wire.encode_op, ops))})
        return Revision(int(answer["revision"]) + link.ahead)

    def watch(self, prefix: str) -> _Watch:
        watch = _Watch(self, prefix)
        self._watches.add(watch)
        return watch

    async def join(self, key: str, value: bytes, *ops: Op) -> LentSession:
        check_ops((Create(key, value), *ops))
        link = self._living()
        request = link.next_id()
        message = {
            "t": "join",
            "key": key,
            "value": wire.encode_value(value),
            "ops": list(map(wire.encode_op, ops)),
        }
        session = LentSession(self, link, request, key)
        await link.hold(request, session, message)
        return session

    async def campaign(self, role: str, value: bytes) -> LentTerm:
        check_ops((Create(holder_key(role), value), Create(epoch_key(role), value)))
        link = self._living()
        request = link.next_id()
        term = LentTerm(self, link, request, role, 0, Check(epoch_key(role), 0))
        message = {"t": "campaign", "role": role, "value": wire.encode_value(value)}
        answer = await link.hold(request, term, message)
        term.epoch = int(answer["epoch"])
        term.fence = Check(answer["fence"][0], int(answer["fence"][1]))
        return term

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if self._link is not None:
            await self._link.close("the metadata store is closed")
        self._link = None
        for watch in tuple(self._watches):
            watch.news.set()
        async with self._arrived:
            self._arrived.notify_all()

    def disconnect(self) -> None:
        """End the connection, as a fault would; it is made again."""
        if self._link is not None:
            self._link.abort()

    # --- the connection ---------------------------------------------------------------------------

    def _living(self) -> _Link:
        if self._closed:
            raise StoreClosed("the metadata store is closed")
        if self._link is None or self._link.over:
            raise Unavailable(f"the metadata store at {self._path} is out of reach")
        return self._link

    async def _open(self) -> None:
        try:
            with short_path(self._path) as path:
                reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            raise Unavailable(
                f"the metadata store at {self._path} is out of reach: {error.strerror or error}"
            ) from None
        link = _Link(self, reader, writer, self.session_seconds)
        try:
            await link.begin(self._earlier)
        except BaseException:
            await link.close("it did not answer")
            raise
        self._earlier = link.name
        self._link = link

    def _link_ended(self, link: _Link) -> None:
        if self._link is not link:
            return
        self._link = None
        for watch in tuple(self._watches):
            watch.fail()
        if not self._closed:
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        async with self._arrived:
            self._arrived.notify_all()
        pause = FIRST_PAUSE
        while True:
            try:
                await self._open()
                return
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _mirror(self, link: _Link, message: wire.Message) -> None:
        """Take over what the lender has sent."""
        theirs = int(message["revision"])
        if message["t"] == "all":
            # Another life of the lender may count from less: ours never goes back.
            link.ahead = max(0, self._revision + 1 - theirs) if self._revision else 0
            self.session_seconds = min(self._session_seconds, float(message["session"]))
            entries: dict[str, Entry] = {}
        else:
            entries = dict(self.entries)
        changed = set(message["entries"])
        if message["t"] == "all":
            changed |= set(self.entries)
        for key, fields in message["entries"].items():
            entry = wire.decode_entry(fields)
            if entry is None:
                entries.pop(key, None)
            else:
                entries[key] = entry
        self.entries = entries
        self._revision = theirs + link.ahead
        for watch in tuple(self._watches):
            watch.notice(changed)
        async with self._arrived:
            self._arrived.notify_all()


class _Link:
    """One connection."""

    def __init__(
        self,
        store: LentStore,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session_seconds: float,
    ) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._session_seconds = session_seconds
        self.name = secrets.token_hex(8)
        self.ahead = 0  # by so much our revisions are above the lender's
        self._last_id = 0
        self._answers: dict[int, asyncio.Future[wire.Message]] = {}
        self.held: dict[int, LentSession] = {}
        self.over = False
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = False  # since the last look

    async def begin(self, earlier: str | None) -> None:
        """Receive the state as it is now, and what comes after it from then on."""
        self._send({"t": "hello", "name": self.name, "earlier": earlier})
        try:
            async with asyncio.timeout(self._session_seconds):
                message = await self._receive()
                if message["t"] != "all":
                    raise wire.BadMessage("the lender does not begin with its state")
                await self._store._mirror(self, message)
        except TimeoutError:
            raise Unavailable("the lender of the metadata store does not answer") from None
        except (asyncio.IncompleteReadError, OSError, wire.BadMessage) as error:
            raise Unavailable(f"the lender of the metadata store hung up: {error}") from None
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._listen()), loop.create_task(self._ping())]

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def ask(self, message: wire.Message, request: int | None = None) -> wire.Message:
        if self.over:  # nobody would answer
            raise Unavailable("the connection to the metadata store was lost")
        request = self.next_id() if request is None else request
        answer: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        self._send({**message, "id": request})
        try:
            return await answer
        finally:
            self._answers.pop(request, None)

    async def hold(self, request: int, session: LentSession, message: wire.Message) -> wire.Message:
        """Ask for something to hold; whoever stops waiting holds nothing."""
        self.held[request] = session
        try:
            return await self.ask(message, request)
        except BaseException as error:
            self.held.pop(request, None)
            if isinstance(error, asyncio.CancelledError):
                self._send({"t": "cancel", "id": request})
            raise

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self, reason: str) -> None:
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._end(StoreClosed(reason))
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._writer.wait_closed()

    # --- inside -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        reason = "the lender of the metadata store hung up"
        try:
            while True:
                message = await self._receive()
                self._heard = True
                await self._take(message)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (wire.BadMessage, KeyError, TypeError, ValueError) as error:
            reason = f"the lender of the metadata store is not understood: {error}"
        self._lost(reason)

    async def _ping(self) -> None:
        """Show that we live; and notice when the other side does not any more, as the lender does:
        it is no silence when nobody here has listened."""
        silent = 0
        while silent < wire.LOOKS:
            self._heard = False
            self._send({"t": "ping"})
            await asyncio.sleep(self._session_seconds / wire.LOOKS)
            silent = 0 if self._heard else silent + 1
        self._lost("the lender of the metadata store is silent")

    async def _receive(self) -> wire.Message:
        (length,) = wire.LENGTH.unpack(await self._reader.readexactly(4))
        if length > wire.MAX_MESSAGE:
            raise wire.BadMessage(f"a message of {length} bytes")
        return wire.decode(await self._reader.readexactly(length))

    async def _take(self, message: wire.Message) -> None:
        kind = message["t"]
        if kind in ("all", "changes"):
            await self._store._mirror(self, message)
        elif kind == "lost":
            session = self.held.pop(int(message["held"]), None)
            if session is not None:
                session.lost.happen()
        elif kind != "pong":
            answer = self._answers.get(int(message["id"]))
            if answer is not None and not answer.done():
                _settle(answer, message)

    def _send(self, message: wire.Message) -> None:
        if not self.over and not self._writer.is_closing():
            self._writer.write(wire.encode(message))

    def _lost(self, reason: str) -> None:
        self._end(Unavailable(reason))
        self._writer.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._store._link_ended(self)

    def _end(self, error: StoreError) -> None:
        self.over = True
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(type(error)(*error.args))
        held, self.held = self.held, {}
        for session in held.values():
            session.lost.happen()


def _settle(answer: asyncio.Future[wire.Message], message: dict[str, Any]) -> None:
    if message["t"] == "done":
        answer.set_result(message)
    elif message["t"] == "conflict":
        answer.set_exception(Conflict(message["key"], message["message"]))
    elif message["invalid"]:
        answer.set_exception(ValueError(message["message"]))
    else:
        answer.set_exception(Unavailable(message["message"]))


class _Watch:
    """Remembers only whether there is something to say."""

    def __init__(self, store: LentStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.news = asyncio.Event()
        self.news.set()
        self._failed = False
        self._begun = False

    def notice(self, changed: set[str]) -> None:
        if any(covers(self._prefix, key) for key in changed):
            self.news.set()

    def fail(self) -> None:
        self._failed = True
        self.news.set()

    def __aiter__(self) -> _Watch:
        return self

    async def __anext__(self) -> Revision:
        if not self._begun and not self._store._closed:
            # What is told first is the newest state, so that only later changes are told after it.
            self._begun = True
            await self._store.read("")
        await self.news.wait()
        if self._store._closed:
            self._store._watches.discard(self)
            raise StopAsyncIteration
        if self._failed:
            self._store._watches.discard(self)
            raise Unavailable("the connection to the metadata store was lost")
        self.news.clear()
        return Revision(self._store._revision)
