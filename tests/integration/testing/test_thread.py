"""LoopThread: an event loop beside a test."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from ottla.testing.thread import LoopThread


def test_a_loop_is_closed_with_connections_that_nobody_closed() -> None:
    thread = LoopThread("loop")
    accepted = threading.Event()

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set()

    async def start() -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)

    server = thread.call(start(), 60)
    with socket.create_connection(server.sockets[0].getsockname()):
        assert accepted.wait(60)
        closing = threading.Thread(target=thread.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive(), "the loop is never closed"
    assert thread.loop.is_closed()


def test_nothing_is_run_any_more_then() -> None:
    thread = LoopThread("loop")
    thread.close()
    thread.close()
    work = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        thread.call(work, 10)
    work.close()
