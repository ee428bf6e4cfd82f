"""Connections between brokers: seeded delays, resets, and links that carry nothing one way.

What is sent over a link that is cut waits there, as TCP has it, and arrives when the link is whole
again. A reset fails everything that is under way on a connection, whether it was done or not. A
process that has died refuses connections at once; a machine that is off does not answer at all.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.errors import ErrorCode, KafkaError
from ottla.net.channel import ChannelClosed
from ottla.replication.remote import Peers
from ottla.runtime.waiters import Deferred

from .ensemble import WORLD
from .loop import PROCESS, Process, VirtualLoop

if TYPE_CHECKING:
    from ottla.model.broker import Endpoint

    from .broker import SimBroker

Link = tuple[int, int]


class ServerSide:
    """What a handler knows of a connection."""

    __slots__ = ("listener", "noted")

    def __init__(self) -> None:
        self.listener = "PLAINTEXT"
        self.noted: float | None = None


class Network:
    """All links."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.brokers: dict[int, SimBroker] = {}
        self.mean_delay = 0.0003
        self.slow: dict[Link, float] = {}  # seconds more
        self.cuts: dict[Link, list[tuple[Callable[..., None], Any]]] = {}  # and what waits there
        self.reset_chance = 0.0
        self.connections: dict[SimPeer | SimChannel, None] = {}
        # for statistics
        self.messages = 0
        self.entries = 0  # partitions named in them

    def send(self, link: Link, function: Callable[[], None], context: Any) -> None:
        """Call the function at the other end, when it has arrived there."""
        waiting = self.cuts.get(link)
        if waiting is not None:
            waiting.append((function, context))
            return
        delay = self.rng.expovariate(1 / self.mean_delay) + self.slow.get(link, 0.0)
        self.loop.call_later(delay, function, context=context)

    def cut(self, link: Link) -> None:
        self.cuts.setdefault(link, [])

    def heal(self, link: Link) -> None:
        for function, context in self.cuts.pop(link, ()):
            self.send(link, function, context)

    def reset_all(self, of: SimBroker) -> None:
        """Every connection to or from a broker ends, as when its process dies."""
        for connection in list(self.connections):
            if of.process in (connection.process, connection.served_by):
                connection.reset("the other side closed the connection")


class _Connection:
    """One connection, from the process that has made it."""

    def __init__(self, network: Network, to: int) -> None:
        process = PROCESS.get()
        assert process is not None
        self.process: Process = process
        self.served_by: Process | None = None
        self._network = network
        self._here = int(process.name)
        self._to = to
        self.server = ServerSide()

    def establish(self) -> ChannelClosed | None:
        """Connect; why not, if so."""
        broker = self._network.brokers.get(self._to)
        if broker is None or not broker.listening:
            error = ChannelClosed(f"broker {self._to} refuses connections")
            if broker is not None and broker.powered:
                error.errno = errno.ECONNREFUSED
            return error
        self.served_by = broker.process
        self.server = ServerSide()
        self._network.connections[self] = None
        return None

    def reset(self, reason: str) -> None:
        raise NotImplementedError


class SimPeer(_Connection):
    """What `client.peer.Peer` is to followers and controllers."""

    def __init__(self, network: Network, endpoint: Endpoint) -> None:
        super().__init__(network, endpoint.port)
        self.host = endpoint.host
        self.port = endpoint.port
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._life = 0

    async def ask(
        self, request: Any, *, timeout: float | None = None, version: int | None = None
    ) -> Any:
        network, loop = self._network, self._network.loop
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting[answer] = None
        timer = None
        if timeout is not None:
            timer = loop.call_later(timeout, self._time_out, answer)
        if self.served_by is None:
            self._connect(request, answer)
        else:
            self._send(request, answer)
        network.messages += 1
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)
            if timer is not None:
                timer.cancel()

    def _time_out(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            text = f"broker {self._to} did not answer in time"
            answer.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, text))

    def _connect(self, request: Any, answer: asyncio.Future[Any]) -> None:
        """There and back once more before the request goes out."""
        life = self._life

        def arrive() -> None:
            error = self.establish()
            self._network.send((self._to, self._here), lambda: back(error), self.process.context)

        def back(error: ChannelClosed | None) -> None:
            if life != self._life or answer.done():
                return
            if error is None:
                self._send(request, answer)
            elif error.errno == errno.ECONNREFUSED:
                answer.set_exception(error)

        self._network.send((self._here, self._to), arrive, WORLD)

    def _send(self, request: Any, answer: asyncio.Future[Any]) -> None:
        network, life, served_by = self._network, self._life, self.served_by
        if network.reset_chance and network.rng.random() < network.reset_chance:
            when = network.rng.uniform(0.0, 0.05)
            network.loop.call_later(when, self.reset, "reset", context=WORLD)

        def arrive() -> None:
            broker = network.brokers[self._to]
            if life != self._life or broker.process is not served_by:
                return
            reply = broker.handle(request, self.server)
            if isinstance(reply, Deferred):
                reply.on_done(finish)
            else:
                send_back(reply)

        def finish(reply: Deferred[Any]) -> None:
            send_back(reply.result())

        def send_back(response: Any) -> None:
            network.messages += 1
            _decode(response)
            network.send((self._to, self._here), lambda: done(response), self.process.context)

        def done(response: Any) -> None:
            if life == self._life and not answer.done():
                answer.set_result(response)

        assert served_by is not None
        network.send((self._here, self._to), arrive, served_by.context)

    def reset(self, reason: str) -> None:
        """Both sides are told, this one in its own process."""
        self._network.connections.pop(self, None)
        self._life += 1
        self.served_by = None
        waiting, self._waiting = self._waiting, {}
        for answer in waiting:
            self._network.loop.call_soon(_fail, answer, reason, context=self.process.context)

    def close(self) -> None:
        self.reset("closed by this side")


class SimChannel(_Connection):
    """What `net.channel.Channel` is to the failure detector: a connection that may end."""

    def __init__(self, network: Network, to: int) -> None:
        super().__init__(network, to)
        self._ended: asyncio.Future[None] = network.loop.create_future()

    @classmethod
    async def connect(cls, network: Network, to: int, timeout: float) -> SimChannel:
        channel = cls(network, to)
        there: asyncio.Future[ChannelClosed | None] = network.loop.create_future()

        def arrive() -> None:
            error = channel.establish()
            network.send((to, channel._here), lambda: back(error), channel.process.context)

        def back(error: ChannelClosed | None) -> None:
            if there.done():
                channel.abort()
            elif error is None or error.errno == errno.ECONNREFUSED:
                there.set_result(error)

        network.send((channel._here, to), arrive, WORLD)
        try:
            async with asyncio.timeout(timeout):
                error = await there
        except TimeoutError:
            raise ChannelClosed(f"broker {to} did not answer") from None
        if error is not None:
            raise error
        return channel

    async def wait_closed(self) -> None:
        await asyncio.shield(self._ended)

    def reset(self, reason: str) -> None:
        self._network.connections.pop(self, None)

        def end() -> None:
            if not self._ended.done():
                self._ended.set_result(None)

        link = (self._to, self._here)
        self._network.send(link, end, self.process.context)

    def abort(self) -> None:
        self._network.connections.pop(self, None)


class SimPeers(Peers):
    """The other brokers, over the simulated network."""

    network: Network

    def at(self, endpoint: Endpoint) -> Any:
        return SimPeer(self.network, endpoint)


def _decode(response: Any) -> None:
    """What encoding and decoding makes of records."""
    for topic in getattr(response, "responses", ()):
        for part in topic.partitions:
            part.records = memoryview(part.records)


def _fail(answer: asyncio.Future[Any], reason: str) -> None:
    if not answer.done():
        answer.set_exception(ChannelClosed(reason))
