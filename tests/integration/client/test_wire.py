"""A connection to something that is not a broker, or to one that lies."""

from __future__ import annotations

import socket
import threading
import tracemalloc

import pytest

from ottla.client.wire import Wire
from ottla.errors import KafkaError


def test_memory_grows_with_what_comes_and_not_with_what_was_announced() -> None:
    def announce() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall((200 << 20).to_bytes(4) + bytes(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=announce)
        server.start()
        tracemalloc.start()
        try:
            with pytest.raises(KafkaError, match="closed the connection"):
                Wire("127.0.0.1", listener.getsockname()[1], timeout=30, client_id="test")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            server.join()
    assert peak < 20 << 20
