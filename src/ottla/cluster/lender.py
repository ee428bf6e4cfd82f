"""Lender: serves the metadata store of this process to other processes of the same machine.

Each connection is a client of its own: what it has joined or won ends with it, at once when it is
closed, after the session's time when nothing is heard on it any more. That time is counted in
looks: whoever stood still itself, with the whole machine perhaps, has not listened meanwhile. Every
change is sent to all clients, so that they read without asking (`lent.py`).

A client that connects again has given up its earlier connection, but this side may not know yet: a
process that was stopped finds the last requests of the one beside the beginning of the other, in
any order. So a connection names the one before it, and that one ends first: what of it was begun is
done, what was not read never is. From the first answer on the client knows what became of it all.

The socket is a file that only its owner may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from ottla.cluster import lent_protocol as wire
from ottla.cluster.handle import StoreHandle
from ottla.cluster.store import (
    Conflict,
    Entry,
    MetadataStore,
    Op,
    Session,
    StoreError,
    Term,
)
from ottla.cluster.unix_path import short_path

logger = logging.getLogger(__name__)

SESSION_SECONDS = 6.0
CLOSE_SECONDS = 1.0


class Lender:
    """Serves one store on one socket. `await start()`, `await stop()`."""

    def __init__(
        self, store: MetadataStore, path: str, *, session_seconds: float = SESSION_SECONDS
    ) -> None:
        self._store = store
        self._path = path
        self._session_seconds = session_seconds
        self._server: asyncio.AbstractServer | None = None
        self._clients: dict[_Client, asyncio.Task[None] | None] = {}  # and who serves each
        self._named: dict[str, _Client] = {}

    async def start(self) -> None:
        """Serve from now on. OSError when the socket cannot be made."""
        with contextlib.suppress(FileNotFoundError):
            # A socket that was left behind: whoever has the store open is the only lender.
            os.unlink(self._path)
        with short_path(self._path) as path:
            before = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._serve, path)
            finally:
                os.umask(before)
        os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR)

    async def stop(self) -> None:
        """End every session, and serve no more."""
        if self._server is None:
            return
        self._server.close()
        serving = [task for task in self._clients.values() if task is not None]
        await asyncio.gather(*(client.close() for client in tuple(self._clients)))
        if serving:
            await asyncio.wait(serving, timeout=CLOSE_SECONDS)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(StoreHandle(self._store), reader, writer, self._session_seconds)
        self._clients[client] = asyncio.current_task()
        name = None
        try:
            name, earlier = await client.greet()
            self._named[name] = client
            if earlier in self._named:
                await self._named[earlier].close()
            await client.run()
        except Gone:
            pass
        finally:
            await client.close()
            self._clients.pop(client, None)
            if name is not None:
                self._named.pop(name, None)


class Gone(Exception):
    """The other side is not there any more, or says what nobody understands."""


class _Client:
    """One connection: requests in, answers and changes out."""

    def __init__(
        self,
        store: StoreHandle,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session_seconds: float,
    ) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._session_seconds = session_seconds
        self._over = False
        self._heard = False  # since the last look
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing: set[asyncio.Task[None]] = set()  # those of them that change the store
        self._waiting: dict[int, asyncio.Task[None]] = {}  # joins and campaigns, by request
        self._held: dict[int, Session | Term] = {}  # by request
        self._sent: Mapping[str, Entry] = {}

    async def greet(self) -> tuple[str, str | None]:
        """The names of this connection and of the client's earlier one, if it had one."""
        with self._understanding():
            async with asyncio.timeout(self._session_seconds):
                message = await self._receive()
            if message["t"] != "hello":
                raise wire.BadMessage("it does not begin with a hello")
            earlier = message["earlier"]
            return str(message["name"]), None if earlier is None else str(earlier)

    async def run(self) -> None:
        self._start(self._send_changes())
        self._start(self._notice_silence())
        with self._understanding():
            while True:
                message = await self._receive()
                self._heard = True
                if self._over:  # what was received before the end is not begun after it
                    return
                self._take(message)

    async def _notice_silence(self) -> None:
        silent = 0
        while silent < wire.LOOKS:
            self._heard = False
            await asyncio.sleep(self._session_seconds / wire.LOOKS)
            silent = 0 if self._heard else silent + 1
        self._writer.transport.abort()

    async def _receive(self) -> wire.Message:
        (length,) = wire.LENGTH.unpack(await self._reader.readexactly(4))
        if length > wire.MAX_MESSAGE:
            raise wire.BadMessage(f"a message of {length} bytes")
        return wire.decode(await self._reader.readexactly(length))

    @contextlib.contextmanager
    def _understanding(self) -> Iterator[None]:
        try:
            yield
        except (asyncio.IncompleteReadError, ConnectionError, OSError, TimeoutError):
            raise Gone from None
        except (wire.BadMessage, KeyError, TypeError, ValueError) as error:
            logger.warning("a client of the metadata store is not understood: %s", error)
            raise Gone from None

    async def close(self) -> None:
        """End it: when this returns nothing is changed in its name any more."""
        self._over = True
        if self._changing:
            await asyncio.wait(self._changing)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        self._writer.transport.abort()  # who reads no more would keep it for ever

    def _take(self, message: wire.Message) -> None:
        kind = message["t"]
        if kind == "ping":
            self._send({"t": "pong"})
            return
        request = int(message["id"])
        if kind == "commit":
            ops = tuple(map(wire.decode_op, message["ops"]))
            self._change(self._answer(request, partial(self._commit, request, ops)))
        elif kind == "join":
            ops = tuple(map(wire.decode_op, message["ops"]))
            value = wire.decode_value(message["value"])
            joining = partial(self._store.join, message["key"], value, *ops)
            self._waiting[request] = self._change(self._begin(request, joining))
        elif kind == "campaign":
            value = wire.decode_value(message["value"])
            standing = partial(self._store.campaign, message["role"], value)
            self._waiting[request] = self._start(self._begin(request, standing))
        elif kind == "cancel":
            task = self._waiting.pop(request, None)
            if task is not None:
                task.cancel()
            self._start(self._release(request))
        elif kind == "release":
            held = int(message["held"])
            self._start(self._answer(request, partial(self._release_and_tell, request, held)))
        elif kind == "sync":
            self._start(self._answer(request, partial(self._sync, request)))
        else:
            raise wire.BadMessage(f"{kind!r} is no request")

    def _begin(
        self, request: int, work: Callable[[], Coroutine[Any, Any, Session | Term]]
    ) -> Coroutine[Any, Any, None]:
        """Work on what may be cancelled before it is done."""
        return self._answer(request, partial(self._hold, request, work))

    async def _answer(self, request: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Conflict as conflict:
            self._send(
                {"t": "conflict", "id": request, "key": conflict.key, "message": conflict.message}
            )
        except ValueError as error:
            self._send({"t": "failed", "id": request, "invalid": True, "message": str(error)})
        except StoreError as error:
            self._send({"t": "failed", "id": request, "invalid": False, "message": str(error)})
        finally:
            self._waiting.pop(request, None)

    async def _commit(self, request: int, ops: tuple[Op, ...]) -> None:
        revision = await self._store.commit(*ops)
        self._send({"t": "done", "id": request, "revision": revision})

    async def _hold(
        self, request: int, work: Callable[[], Coroutine[Any, Any, Session | Term]]
    ) -> None:
        held = await work()
        self._held[request] = held
        answer: wire.Message = {"t": "done", "id": request, "revision": 0}
        fence = getattr(held, "fence", None)
        if fence is not None:
            answer |= {"epoch": fence.version + 1, "fence": [fence.key, fence.version]}
        self._send(answer)
        self._start(self._tell_loss(request, held))

    async def _tell_loss(self, request: int, held: Session | Term) -> None:
        await held.lost
        if self._held.pop(request, None) is not None:
            self._send({"t": "lost", "held": request})

    async def _release(self, request: int) -> None:
        held = self._held.pop(request, None)
        if held is not None:
            with contextlib.suppress(StoreError):
                await held.release()

    async def _release_and_tell(self, request: int, held: int) -> None:
        await self._release(held)
        self._send({"t": "done", "id": request, "revision": 0})

    async def _sync(self, request: int) -> None:
        snapshot = await self._store.read("")
        self._send({"t": "done", "id": request, "revision": snapshot.revision})

    async def _send_changes(self) -> None:
        first = True
        with contextlib.suppress(StoreError):
            async for _ in self._store.watch(""):
                snapshot = await self._store.read("")
                before, entries = self._sent, snapshot.entries
                changed = {
                    key: wire.encode_entry(entry)
                    for key, entry in entries.items()
                    if before.get(key) is not entry
                }
                changed |= {key: None for key in before if key not in entries}
                self._sent = entries
                kind = "all" if first else "changes"
                first = False
                self._send(
                    {
                        "t": kind,
                        "revision": snapshot.revision,
                        "entries": changed,
                        "session": self._session_seconds,
                    }
                )
                await self._writer.drain()
        self._writer.close()

    def _send(self, message: wire.Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(wire.encode(message))

    def _change(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what goes on to its end, unless the client itself stops it."""
        task = self._start(work)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        return task

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
