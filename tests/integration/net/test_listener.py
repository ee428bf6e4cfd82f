"""How many connections are accepted."""

from __future__ import annotations

import asyncio

import pytest

from ottla.net.listener import Limits, Listeners
from ottla.runtime.clock import SystemClock


async def test_connections_leave_descriptors_for_files(caplog: pytest.LogCaptureFixture) -> None:
    listeners = Listeners(lambda connection, frame: None, Limits(descriptors=2), SystemClock())
    try:
        bound = listeners.bind("L", "127.0.0.1", 0)
        listeners.open()
        clients = [await asyncio.open_connection("127.0.0.1", bound.port) for _ in range(3)]
        assert await clients[2][0].read() == b"", "the third is hung up on"
        assert len(listeners.connections) == 2
        assert "limit on open files" in caplog.text
        for _, writer in clients:
            writer.close()
    finally:
        listeners.close()
