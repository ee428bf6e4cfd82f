"""Listening sockets, the connections they accept, and the limits on both.

One `Listeners` per broker owns everything that connections share: the scratch buffer, the memory
for partial frames, the connection table. Its once-a-second sweep closes what has been idle too
long and makes room when memory is short.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

from ottla.net.connection import Answer, Connection
from ottla.net.flow import ReceiveMemory
from ottla.runtime.clock import Clock
from ottla.runtime.logs import RateLimit

logger = logging.getLogger(__name__)

SCRATCH_SIZE = 1 << 18
ACCEPT_BURST = 64
# When descriptors run out the listening socket stays readable: look away for this long.
ACCEPT_PAUSE = 1.0
SWEEP_INTERVAL = 1.0
# How long to look for the next request before sleeping; see `Listeners.busy`.
SPIN_SECONDS = 200e-6
# A crowd is so many clients in so long, and so little time between one and the next; see
# `Listeners.crowded`. So many of them are answered together.
CROWD = 8
COUNT_SECONDS = 1e-3
CROWD_SECONDS = 100e-6
TOGETHER = 32
DISK_THREADS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """What one broker puts up with."""

    frame_bytes: int = 104_857_600
    receive_memory: int = 256 << 20
    max_connections: int = 2**31 - 1
    descriptors: int = 2**31 - 1
    """Connections that the limit on open files leaves room for."""
    max_connections_per_ip: int = 2**31 - 1
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    idle_seconds: float = 600.0
    send_buffer: int = -1
    receive_buffer: int = -1
    backlog: int = 50


@dataclass(frozen=True, slots=True)
class Bound:
    """A listener that is open; `port` is the real one where 0 was asked for."""

    name: str
    host: str
    port: int


class Listeners:
    """All listening sockets of a broker and all connections that came in through them."""

    def __init__(self, answer: Answer, limits: Limits, clock: Clock) -> None:
        # what connections use
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.frame_limit = limits.frame_bytes
        self.memory = ReceiveMemory(limits.receive_memory)
        self.answer = answer
        self.complaints = RateLimit(logger, clock)
        # ours
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.bytes_in = 0  # of connections that are gone; see totals()
        self.bytes_out = 0
        self.limits = limits  # may be replaced: the limits on connections are dynamic
        self._per_ip: Tally[str] = Tally()
        self._spinning = False
        self._spin_until = 0.0
        self._last_busy = 0.0
        self._last_served: Connection | None = None
        self._clients = 0  # answered in the last period
        self._counted: set[Connection] = set()  # those of the present one
        self._counting_since = 0.0
        self._sending: list[Connection] = []  # they have gathered answers
        self._sockets: list[tuple[socket.socket, str]] = []
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk-read")
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL, self._sweep)

    def bind(self, name: str, host: str, port: int) -> Bound:
        """Claim the address without accepting yet, so that a taken port fails the start early."""
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.limits.receive_buffer > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer)
            sock.setblocking(False)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
        self._sockets.append((sock, name))
        return Bound(name, host, sock.getsockname()[1])

    def open(self) -> None:
        """Begin to accept on everything that was bound."""
        for sock, name in self._sockets:
            sock.listen(max(self.limits.backlog, 128))
            self.loop.add_reader(sock.fileno(), self._on_acceptable, sock, name)

    def _on_acceptable(self, sock: socket.socket, name: str) -> None:
        for _ in range(ACCEPT_BURST):
            try:
                client, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self.complaints.warning(
                        "descriptors",
                        "cannot accept connections: %s; raise the limit on open files (ulimit -n)",
                        error.strerror,
                    )
                    self.loop.remove_reader(sock.fileno())
                    self.loop.call_later(ACCEPT_PAUSE, self._look_again, sock, name)
                    return
                raise
            self._accept(client, address[0], address[1], name)

    def _look_again(self, sock: socket.socket, name: str) -> None:
        if (sock, name) in self._sockets:
            self.loop.add_reader(sock.fileno(), self._on_acceptable, sock, name)

    def _accept(self, client: socket.socket, ip: str, port: int, name: str) -> None:
        limits = self.limits
        count = len(self.connections)
        if count >= limits.descriptors:
            self.complaints.warning(
                "descriptors",
                "refused %s: %d connections are open, and the limit on open files leaves room for "
                "no more, since logs need some; raise it (ulimit -n)",
                ip,
                count,
            )
            client.close()
            return
        full = count >= limits.max_connections
        allowed = limits.per_ip_overrides.get(ip, limits.max_connections_per_ip)
        if full or self._per_ip[ip] >= allowed:
            self.complaints.warning(
                "connections",
                "refused %s: %s is reached",
                ip,
                "max.connections" if full else "max.connections.per.ip",
            )
            client.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.limits.send_buffer > 0:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer)
        self.accepted += 1
        self._per_ip[ip] += 1
        peer = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        connection = Connection(self, client, peer, name)
        self.connections.add(connection)
        connection.start()

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._counted.discard(connection)
        if connection is self._last_served:
            self._last_served = None
        self.bytes_in += connection.received_bytes
        self.bytes_out += connection.sent_bytes
        ip = connection.peer.rpartition(":")[0].strip("[]")
        self._per_ip[ip] -= 1
        if not self._per_ip[ip]:
            del self._per_ip[ip]

    def totals(self) -> tuple[int, int]:
        """Bytes received and sent since the start."""
        received = self.bytes_in + sum(c.received_bytes for c in self.connections)
        sent = self.bytes_out + sum(c.sent_bytes for c in self.connections)
        return received, sent

    def busy(self, connection: Connection) -> None:
        """`connection` was just answered: its next request may be on its way.

        A process that sleeps takes tens of microseconds to be woken, more than answering a small
        request takes. So while one client sends its requests one by one, each as soon as it has
        its answer, the loop looks again for `SPIN_SECONDS` instead of going to sleep. Several
        busy clients keep the loop awake anyway, and a quiet broker uses no processor.
        """
        now = perf_counter()
        if connection is self._last_served and now - self._last_busy < SPIN_SECONDS:
            self._spin_until = now + SPIN_SECONDS
            if not self._spinning:
                self._spinning = True
                self.loop.call_soon(self._spin)
        else:
            self._last_served = connection
        self._last_busy = now
        if now - self._counting_since > COUNT_SECONDS:
            self._clients = len(self._counted)
            self._counted.clear()
            self._counting_since = now
        self._counted.add(connection)

    def crowded(self, connection: Connection) -> bool:
        """Whether many clients ask at the same time, and one was answered just now.

        On one machine `send(2)` to a client that sleeps takes three times as long as to one that
        is awake. So the answers of a crowd leave together when the loop's turn ends. A few clients
        are better off when each can go on while the next is being served.
        """
        return (
            self._clients >= CROWD
            and perf_counter() - self._last_busy < CROWD_SECONDS
            and connection is not self._last_served
        )

    def send_soon(self, connection: Connection) -> None:
        """Have it send what it has gathered when the turn ends."""
        if len(self._sending) >= TOGETHER:
            self._send_gathered()
        if not self._sending:
            self.loop.call_soon(self._send_gathered)
        self._sending.append(connection)

    def _send_gathered(self) -> None:
        sending, self._sending = self._sending, []
        for connection in sending:
            connection.send_gathered()

    def _spin(self) -> None:
        if perf_counter() < self._spin_until:
            self.loop.call_soon(self._spin)
        else:
            self._spinning = False

    def run_blocking(self, work: Callable[[], None]) -> asyncio.Future[None]:
        return self.loop.run_in_executor(self._disk, work)

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(SWEEP_INTERVAL, self._sweep)
        self.memory.relieve(self.connections)
        if self.limits.idle_seconds <= 0:
            return
        oldest = self.loop.time() - self.limits.idle_seconds
        for connection in [c for c in self.connections if c.last_active < oldest]:
            connection.close("idle for longer than connections.max.idle.ms")

    def stop_accepting(self) -> None:
        sockets, self._sockets = self._sockets, []
        for sock, _ in sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()

    async def drain(self, timeout: float) -> None:
        """Let what is being answered be answered, for at most `timeout` seconds, then close all."""
        self.stop_accepting()
        deadline = self.loop.time() + timeout
        while self.loop.time() < deadline and any(not c.idle for c in self.connections):
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections):
            connection.close(None)

    def close(self) -> None:
        self.stop_accepting()
        self._sweeper.cancel()
        for connection in tuple(self.connections):
            connection.close(None)
        self._disk.shutdown(wait=False, cancel_futures=True)
