"""What the tools say when what listens is not a broker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ottla.cli.kafka_compat import run


@pytest.fixture
def stranger() -> Iterator[str]:
    """A server that answers everything with a line of text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_a_stranger_is_called_one(stranger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kafka-log-dirs", ["--bootstrap-server", stranger, "--describe"]) == 1
    assert "is not a Kafka broker" in capsys.readouterr().err
