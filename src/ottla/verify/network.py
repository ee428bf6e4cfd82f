"""A network of TCP proxies on loopback, whose links can be cut, slowed and made to lose answers.

Each proxy stands for one address of one server. A link is a pair of names, from whom to whom bytes
flow, so that a cut may be one-way: answers flow against the direction of the connection. Names are
those of brokers, `clients` and `zookeeper`. What is cut off is held back, the end of a connection
too, and goes on when the link is mended, as with TCP over a network that loses packets.

A proxy refuses connections when its server does. It is told by nobody: when a connection to the
server ends, or cannot be made, it knocks, and closes its own door, before it passes the news on,
until somebody answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from ottla.testing.process import LOOPBACK, free_port

CLIENTS = "clients"
ZOOKEEPER = "zookeeper"

KNOCK_SECONDS = 0.02
_KNOCK_PATIENCE = 0.05
_MOST_HELD = 4 << 20
_BACKLOG = 1024
_PORTS_TRIED = 100

Link = tuple[str, str]
"""From whom to whom bytes flow."""
Who = Callable[[int, int], str | None]
"""Whose connection it is that goes from one port to another."""


@dataclass(slots=True)
class Hindrance:
    """What somebody does to a link."""

    cut: bool = False
    delay: float = 0.0
    losing: bool = False
    """What arrives is thrown away, and the connection with it: an answer that is never seen."""
    met: bool = False
    """Whether anything was hindered."""


class Condition:
    """What a link is like: what all together do to it."""

    __slots__ = ("hindrances",)

    def __init__(self) -> None:
        self.hindrances: dict[object, Hindrance] = {}  # by whom

    @property
    def cut(self) -> bool:
        return any(each.cut for each in self.hindrances.values())

    @property
    def delay(self) -> float:
        return max((each.delay for each in self.hindrances.values()), default=0.0)

    @property
    def losing(self) -> bool:
        return any(each.losing for each in self.hindrances.values())

    def note(self, data: bytes | None) -> None:
        """Something, or the end of a connection, has come to it. An end cannot be lost."""
        for each in self.hindrances.values():
            each.met = each.met or data is not None or not each.losing


class Network:
    """All proxies, and the condition of every link."""

    def __init__(self) -> None:
        self._conditions: dict[Link, Condition] = {}
        self._flows: defaultdict[Link, set[_Flow]] = defaultdict(set)
        self._proxies: list[Proxy] = []

    def proxy(self, target: int, server: str, client: str | Who) -> Proxy:
        """A proxy for the server at `target`, at a port of its own.

        Its client is always the same one, or is found by the port that it connects from.
        """
        proxy = Proxy(self, target, server, client)
        self._proxies.append(proxy)
        proxy.check()
        return proxy

    def condition(self, link: Link) -> Condition:
        found = self._conditions.get(link)
        if found is None:
            found = self._conditions[link] = Condition()
        return found

    def hinder(
        self,
        link: Link,
        by: object = None,
        *,
        cut: bool = False,
        delay: float = 0.0,
        losing: bool = False,
    ) -> None:
        """Change what a link is like, until the same one lets it go."""
        self.condition(link).hindrances[by] = Hindrance(cut, delay, losing)
        self._flush(link)

    def release(self, link: Link, by: object = None) -> bool:
        """Let a link go, but for what others do to it; whether anything was hindered."""
        ended = self.condition(link).hindrances.pop(by, None)
        self._flush(link)
        return ended is not None and ended.met

    def heal(self) -> None:
        """All links are as they should be."""
        for link, condition in list(self._conditions.items()):
            condition.hindrances.clear()
            self._flush(link)

    def _flush(self, link: Link) -> None:
        for flow in list(self._flows[link]):
            flow.flush()

    @property
    def links(self) -> Iterator[Link]:
        """Those over which something has flowed."""
        return iter([link for link, flows in self._flows.items() if flows])

    async def close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()


class _Flow:
    """Bytes from one end of a connection to the other."""

    def __init__(self, network: Network, link: Link) -> None:
        self.source: _End | None = None
        self.target: _End | None = None
        self._network = network
        self._link = link
        self._condition = network.condition(link)
        self._held: deque[tuple[float, bytes | None]] = deque()  # None: the end
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        network._flows[link].add(self)

    def feed(self, data: bytes | None) -> None:
        """Pass something on, now or later; None is the end of the connection."""
        condition = self._condition
        if condition.hindrances:
            condition.note(data)
            if condition.losing and data is not None:
                self.abort()
                return
        if not (self._held or condition.cut or condition.delay or self.target is None):
            self._deliver(data)
            return
        due = asyncio.get_running_loop().time() + condition.delay
        self._held.append((due, data))
        self._size += len(data or b"")
        if self._size > _MOST_HELD and self.source is not None:
            self.source.pause()
        self.flush()

    def flush(self) -> None:
        """Pass on what is held back and may go."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.target is None or self._condition.cut:
            return
        loop = asyncio.get_running_loop()
        while self._held:
            due, data = self._held[0]
            if self._condition.delay and due > loop.time():
                self._timer = loop.call_at(due, self.flush)
                return
            self._held.popleft()
            self._size -= len(data or b"")
            self._deliver(data)
        if self.source is not None:
            self.source.resume()

    def _deliver(self, data: bytes | None) -> None:
        assert self.target is not None
        if data is None:
            self.target.finish()
            self.forget()
        else:
            self.target.write(data)

    def abort(self) -> None:
        """The connection is gone, with everything that is on its way."""
        for end in (self.source, self.target):
            if end is not None:
                end.abort()
        self.forget()

    def forget(self) -> None:
        self._network._flows[self._link].discard(self)
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _End(asyncio.Protocol):
    """One end of a connection that goes through a proxy."""

    def __init__(self, outgoing: _Flow, incoming: _Flow, ended: Callable[[], None]) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._ended = ended
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outgoing.source = self
        self._incoming.target = self
        self._incoming.flush()

    def data_received(self, data: bytes) -> None:
        self._outgoing.feed(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._ended()
        self._outgoing.feed(None)
        self._incoming.forget()

    def pause_writing(self) -> None:
        if self._incoming.source is not None:
            self._incoming.source.pause()

    def resume_writing(self) -> None:
        if self._incoming.source is not None:
            self._incoming.source.resume()

    # what flows do with it

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finish(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):
                self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()


class Proxy:
    """One address, in front of one server."""

    def __init__(
        self,
        network: Network,
        target: int,
        server: str,
        client: str | Who,
    ) -> None:
        # Bound for as long as the proxy lives, so that nobody takes the port while the door is
        # closed: Linux lets a socket listen, stop (shutdown) and listen again. It must not be
        # shared (SO_REUSEADDR) while it is closed, and be so when it is opened: its old
        # connections have the same port.
        self._door = _bound()
        self.port: int = self._door.getsockname()[1]
        self.open = False
        """Whether connections are accepted."""
        self._network = network
        self._target = target
        self._server = server
        self._client = client
        self._knocking: asyncio.Task[None] | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._connecting, *([self._knocking] if self._knocking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_door()
        self._door.close()

    # ------------------------------------------------------------------ the door

    def check(self) -> None:
        """Knock at the server; without an answer close the door until there is one."""
        if self._closed or (self._knocking is not None and not self._knocking.done()):
            return
        if self.open and _answers(self._target):
            return
        self._close_door()
        self._knocking = asyncio.ensure_future(self._knock())

    async def _knock(self) -> None:
        while not _answers(self._target):
            await asyncio.sleep(KNOCK_SECONDS)
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._door.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._door.fileno(), self._accept)
        self.open = True

    def _close_door(self) -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().remove_reader(self._door.fileno())
            self._door.shutdown(socket.SHUT_RDWR)
            self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

    # ------------------------------------------------------------------ connections

    def _accept(self) -> None:
        """Somebody comes in: find out who, and connect to the server."""
        try:
            caller, (_, port) = self._door.accept()
        except OSError:
            return  # gone again
        told = self._client
        client = told if isinstance(told, str) else told(port, self.port)
        if client is None:
            caller.close()
            return
        task = asyncio.ensure_future(self._reach(caller, client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _reach(self, caller: socket.socket, client: str) -> None:
        loop = asyncio.get_running_loop()
        there = _Flow(self._network, (client, self._server))
        back = _Flow(self._network, (self._server, client))
        try:
            await loop.connect_accepted_socket(lambda: _End(there, back, _nothing), caller)
            await loop.create_connection(
                lambda: _End(back, there, self.check), LOOPBACK, self._target
            )
        except OSError:
            self.check()
            there.abort()
            back.abort()


def _bound() -> socket.socket:
    """A socket at a port that nobody else has, not listening yet."""
    for _ in range(_PORTS_TRIED):
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        door.setblocking(False)
        try:
            door.bind((LOOPBACK, free_port()))
        except OSError:
            door.close()
            continue
        return door
    raise RuntimeError(f"no port could be had in {_PORTS_TRIED} tries")


def _nothing() -> None:
    """The end of a client tells nothing about the server."""


def _answers(port: int) -> bool:
    """Whether a port of this machine accepts connections; one that does not answer does."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as knocking:
        knocking.settimeout(_KNOCK_PATIENCE)
        try:
            knocking.connect((LOOPBACK, port))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
