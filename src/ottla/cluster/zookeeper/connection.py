"""The one door to kazoo: ZooKeeper's operations as coroutines of our loop.

kazoo has threads of its own. A request is put into its queue, which blocks nobody; the answer, a
watch and every change of the connection's state cross over to the loop in the order in which kazoo
told them. Nothing is tried again here. kazoo keeps the connection and the session alive and makes
new ones; what was under way when a connection ended fails with `Broken`, and for a write that means
that its outcome is not known.

`sync` before a read in the same session makes the read as new as the ensemble: a server answers the
requests of a session in order.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ottla.cluster.zookeeper.address import Access, Address
from ottla.cluster.zookeeper.mirror import CheckNode, CreateNode, DeleteNode, SetNode, Step

MAX_PACKET = 1_000_000
"""ZooKeeper closes the connection on a request of 1 MiB (jute.maxbuffer)."""

# Requests that may be in kazoo's queue at a time. Each is a byte in a socket pair, which must not
# fill up: the thread that writes into it is the loop's.
_IN_FLIGHT = 256
_STEP_OVERHEAD = 80

# One attempt to connect may take a session's length divided by the number of servers, so a single
# server that accepts and stays silent would cost the session. kazoo counts names, not servers.
_ATTEMPTS = 3
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}


class State(Enum):
    """What becomes of the connection."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # the session may still be alive
    LOST = "lost"  # the session is over: expired, or closed by us


class Stat(NamedTuple):
    """What ZooKeeper keeps about a node."""

    created: int
    version: int
    child_version: int
    children: int
    owner: int


class NoNode(Exception):
    """There is no such node."""


class Refused(Exception):
    """A write was not done, for certain."""


class Broken(Exception):
    """The connection or session ended; whether a write was done is not known."""


class Denied(Exception):
    """ZooKeeper knows us and does not let us."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with one queue for answers and watches, and sockets of our own.

    ZooKeeper sends a watch before the answer to any later read that would show its cause. kazoo
    has a thread for each of the two, which may swap them. Its sockets stay open when TLS fails.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: Any
    ) -> socket.socket:
        """Called in a thread of kazoo's."""
        plain = socket.create_connection(address, timeout / _ATTEMPTS)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                return plain
            return self._tls.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(self, readers: list[Any], *rest: Any, **options: Any) -> Any:
        """What TLS has decrypted already is ready, too, and no selector knows of it."""
        decrypted = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        if decrypted:
            return decrypted, [], []
        return super().select(readers, *rest, **options)

    def dispatch_callback(self, callback: Any) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))


class Connection:
    """One session with an ensemble, and its successors."""

    def __init__(
        self,
        address: Address,
        access: Access,
        tls: ssl.SSLContext | None,
        session_timeout: float,
        on_state: Callable[[State], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._root = address.chroot
        self._acl = CREATOR_ALL_ACL if access.username is not None else OPEN_ACL_UNSAFE
        self._outstanding: set[asyncio.Future[Any]] = set()
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self.requests = 0
        """Asked so far; for statistics and tests."""
        log = logging.getLogger(f"{__name__}.kazoo")
        log.setLevel(logging.CRITICAL)  # every attempt to connect is a warning to kazoo
        self._client = KazooClient(
            hosts=",".join([address.hosts] * math.ceil(_ATTEMPTS / len(address.servers))),
            timeout=session_timeout,
            handler=_Handler(tls),
            logger=log,
            connection_retry=_RECONNECT,
            auth_data=(
                [("digest", f"{access.username}:{access.password}")] if access.username else None
            ),
        )
        self._client.add_listener(self._state_changed)
        self.session_seconds = session_timeout
        """What was asked for, then what ZooKeeper has allowed: it has limits of its own."""
        self._client._connection._connect = self._noting_session(self._client._connection._connect)

    # --- the connection ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, for as long as it takes."""
        self._client.start_async()

    async def stop(self) -> None:
        """End the session, and with it its ephemeral nodes."""

        def stop() -> None:
            try:
                self._client.stop()
            except Exception as error:
                logging.getLogger(__name__).warning("ZooKeeper's client did not stop: %r", error)
            finally:
                self._client.close()

        await asyncio.to_thread(stop)
        self._fail_outstanding(Broken("the connection was closed"))

    @property
    def session(self) -> int:
        """The session's number; 0 without one."""
        known = self._client.client_id
        return int(known[0]) if known else 0

    def _noting_session(
        self, connect: Callable[..., tuple[float, float]]
    ) -> Callable[..., tuple[float, float]]:
        """kazoo keeps to itself what was negotiated, but for what it makes of it: two thirds of a
        session's milliseconds are how long it waits for an answer."""

        def noting(*arguments: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*arguments)
            self.session_seconds = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        return noting

    def _state_changed(self, state: str) -> None:
        """Called in a thread of kazoo's."""
        self._cross(self._note_state, _STATES[state])

    def _note_state(self, state: State) -> None:
        if state is not State.CONNECTED:
            # kazoo fails what it knew of; a request that entered its queue at the wrong moment is
            # forgotten by it, and must not wait for ever.
            self._fail_outstanding(Broken("the connection to ZooKeeper ended"))
        self._on_state(state)

    def _fail_outstanding(self, error: Exception) -> None:
        for future in tuple(self._outstanding):
            if not future.done():
                future.set_exception(error)

    def _cross(self, function: Callable[..., None], *arguments: object) -> None:
        """From kazoo's threads to the loop, in order."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits any more

    # --- requests ---------------------------------------------------------------------------------

    async def get(
        self, path: str, watch: Callable[[bool], None] | None = None
    ) -> tuple[bytes, Stat]:
        """Data of a node. `watch` is told once, with whether it was deleted."""
        data, stat = await self._ask(
            lambda: self._client.get_async(self._at(path), watch=self._watcher(watch))
        )
        return data, _stat(stat)

    async def exists(self, path: str, watch: Callable[[bool], None] | None = None) -> Stat | None:
        """Like `get`, and a watch on a node that is not there is told when it is."""
        stat = await self._ask(
            lambda: self._client.exists_async(self._at(path), watch=self._watcher(watch))
        )
        return None if stat is None else _stat(stat)

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._ask(lambda: self._client.get_children_async(self._at(path)))
        return names

    async def sync(self, path: str) -> None:
        await self._ask(lambda: self._client.sync_async(self._at(path)))

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """The path that was created, relative to the chroot."""
        made: str = await self._ask(
            lambda: self._client.create_async(
                self._at(path), data, acl=self._acl, ephemeral=ephemeral, sequence=sequence
            )
        )
        return made[len(self._root) + 1 :]

    async def create_root(self) -> None:
        """The chroot, with what is above it, which anybody may use."""
        segments = self._root.split("/")
        for end in range(2, len(segments) + 1):
            acl = self._acl if end == len(segments) else OPEN_ACL_UNSAFE
            path = "/".join(segments[:end])
            try:
                await self._ask(partial(self._client.create_async, path, b"", acl))
            except Refused:
                continue  # it is there

    async def delete(self, path: str) -> None:
        """Harmless when it is gone."""
        try:
            await self._ask(lambda: self._client.delete_async(self._at(path)))
        except NoNode:
            pass

    async def multi(self, steps: Sequence[Step]) -> list[Any]:  # noqa: C901 - one branch for each kind of operation
        """All or nothing; `Refused` says that it was nothing."""
        size = sum(
            len(self._root) + len(step.path) + _STEP_OVERHEAD + len(getattr(step, "data", b""))
            for step in steps
        )
        if size > MAX_PACKET:
            raise ValueError(
                f"a commit of {len(steps)} operations takes {size} bytes on its way to ZooKeeper, "
                f"over the limit of {MAX_PACKET}: divide it"
            )

        def start() -> Any:
            transaction = self._client.transaction()
            for step in steps:
                path = self._at(step.path)
                if isinstance(step, CreateNode):
                    transaction.create(
                        path, step.data, self._acl, step.ephemeral, sequence=step.sequence
                    )
                elif isinstance(step, SetNode):
                    transaction.set_data(path, step.data, step.version)
                elif isinstance(step, DeleteNode):
                    transaction.delete(path, step.version)
                else:
                    assert isinstance(step, CheckNode)
                    transaction.check(path, step.version)
            return transaction.commit_async()

        try:
            results: list[Any] = await self._ask(start)
        except NoNode as error:
            raise Refused(str(error)) from None
        for step, result in zip(steps, results, strict=False):
            if isinstance(result, Exception) and not isinstance(
                result, kazoo.RolledBackError | kazoo.RuntimeInconsistency
            ):
                raise _translated(result, step.path)
        if len(results) < len(steps):
            raise Refused(f"{len(results)} answers to {len(steps)} operations")
        return results

    async def _ask(self, start: Callable[[], Any]) -> Any:
        async with self._slots:
            future: asyncio.Future[Any] = self._loop.create_future()
            self._outstanding.add(future)
            self.requests += 1
            try:
                start().rawlink(lambda result: self._cross(_settle, future, result))
                return await future
            except kazoo.KazooException as error:
                raise _translated(error, "") from None
            finally:
                self._outstanding.discard(future)

    def _watcher(self, watch: Callable[[bool], None] | None) -> Callable[[Any], None] | None:
        if watch is None:
            return None

        def called(event: Any) -> None:
            # A connection's end calls every watch as well, and is told as a state.
            if event.type != EventType.NONE:
                self._cross(watch, event.type == EventType.DELETED)

        return called

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root or "/"


_STATES = {
    KazooState.CONNECTED: State.CONNECTED,
    KazooState.SUSPENDED: State.SUSPENDED,
    KazooState.LOST: State.LOST,
}


@asynccontextmanager
async def connected(
    address: Address,
    access: Access,
    tls: ssl.SSLContext | None,
    session_seconds: float,
    within: float,
) -> AsyncIterator[Connection]:
    """A connection for one look. TimeoutError when the look takes longer than `within` seconds, the
    time to connect included."""
    online = asyncio.Event()

    def note(state: State) -> None:
        if state is State.CONNECTED:
            online.set()

    connection = Connection(address, access, tls, session_seconds, note)
    connection.start()
    try:
        async with asyncio.timeout(within):
            await online.wait()
            yield connection
    finally:
        await connection.stop()


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is None:
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)


def _stat(stat: Any) -> Stat:
    return Stat(stat.czxid, stat.version, stat.cversion, stat.numChildren, stat.ephemeralOwner)


def _translated(error: Exception, path: str) -> Exception:
    """What a failure means to us."""
    name = type(error).__name__
    if isinstance(error, kazoo.NoNodeError) and not path:
        return NoNode(name)
    if isinstance(error, kazoo.NoAuthError | kazoo.AuthFailedError | kazoo.InvalidACLError):
        return Denied(
            "ZooKeeper refuses it (no authorization): the nodes belong to another user; see "
            "zookeeper.digest.username in the file of credentials"
        )
    refusals = (
        kazoo.NoNodeError,
        kazoo.NodeExistsError,
        kazoo.BadVersionError,
        kazoo.NotEmptyError,
        kazoo.NoChildrenForEphemeralsError,
    )
    if isinstance(error, refusals):
        return Refused(f"{name} at {path}" if path else name)
    return Broken(f"{name} {error}".strip())
