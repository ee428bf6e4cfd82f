"""A connection to something that is not a broker, or to one that lies."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from contextlib import closing, suppress
from typing import Any

import pytest

from ottla.client.contact import look_at
from ottla.client.settings import parse_address
from ottla.client.wire import Wire
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest


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


def test_an_answer_that_trickles_in_is_not_waited_for_longer_than_one_that_does_not_come() -> None:
    over = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # the client hangs up
            connection.recv(1 << 16)
            connection.sendall((1 << 20).to_bytes(4))
            while not over.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=trickle)
        server.start()
        try:
            with pytest.raises(KafkaError, match="did not answer API_VERSIONS in time"):
                Wire("127.0.0.1", listener.getsockname()[1], timeout=0.5, client_id="test")
        finally:
            over.set()
            server.join()


def test_a_request_that_was_interrupted_half_sent_is_the_last_one(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = parse_address(bootstrap)
    wire = Wire(host, port, timeout=30, client_id="test")

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

        def sendall(self, data: bytes) -> None:
            connection.sendall(data[: len(data) // 2])
            raise KeyboardInterrupt

    connection = wire._socket
    monkeypatch.setattr(wire, "_socket", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        wire.tell(ProduceRequest(acks=0, timeout_ms=1000, topic_data=[]))
    assert not wire.usable
    with pytest.raises(KafkaError, match="the connection ended"):
        wire.ask(MetadataRequest(topics=[]))


def test_a_name_that_no_machine_can_have_is_an_error_like_one_that_none_has() -> None:
    with pytest.raises(KafkaError, match="no machine can have this name"):
        Wire("a..b", 9092, timeout=30, client_id="test")
    assert look_at("a..b:9092", 30) == "no machine can be called a..b"


def test_an_address_that_is_silent_leaves_time_to_the_others_of_its_name(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening, resolve = parse_address(bootstrap), socket.getaddrinfo
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for each in (first, second):  # nobody accepts these: the next are not answered at all
            each.setblocking(False)
            each.connect_ex(silent.getsockname())

        def two(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
            assert host == "two.example"
            return [
                found
                for address in (silent.getsockname(), listening)
                for found in resolve(*address, type=socket.SOCK_STREAM)
            ]

        monkeypatch.setattr(socket, "getaddrinfo", two)
        wire = Wire("two.example", listening[1], timeout=6, client_id="test")
    with closing(wire):
        assert wire.ask(MetadataRequest(topics=[])).brokers


def test_what_an_older_broker_cannot_be_told_is_an_unsupported_version(bootstrap: str) -> None:
    host, port = parse_address(bootstrap)
    newest = {ApiKey.LIST_GROUPS: 3}
    wire = Wire(host, port, timeout=30, client_id="test", newest=newest)
    with closing(wire), pytest.raises(KafkaError, match="states_filter") as raised:
        wire.ask(ListGroupsRequest(states_filter=["Empty"]))
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
