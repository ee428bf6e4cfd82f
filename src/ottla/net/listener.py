"""Listening sockets, the connections they accept, and the limits on both.

One `Listeners` per broker owns everything that connections share: the scratch buffer, the memory
for partial frames, the rules about their traffic, the connection table. Its once-a-second sweep
closes what has been idle too long and makes room when memory is short.
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

from ottla.net.connection import Answer, Connection
from ottla.net.flow import ReceiveMemory
from ottla.net.traffic import Traffic
from ottla.runtime.clock import Clock
from ottla.runtime.logs import RateLimit

logger = logging.getLogger(__name__)

SCRATCH_SIZE = 1 << 18
ACCEPT_BURST = 64
# When descriptors run out the listening socket stays readable: look away for this long.
ACCEPT_PAUSE = 1.0
SWEEP_INTERVAL = 1.0
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
        self.traffic = Traffic(self.loop.call_soon)
        self.answer = answer
        self.complaints = RateLimit(logger, clock)
        # ours
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.bytes_in = 0  # of connections that are gone; see totals()
        self.bytes_out = 0
        self.limits = limits  # may be replaced: the limits on connections are dynamic
        self._per_ip: Tally[str] = Tally()
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
        self.traffic.forget(connection)
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
