"""Who answers at an address, and what a client says of it."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest

import ottla
from ottla.client.contact import Contact, check_reachable, look_at
from ottla.errors import KafkaError

Stranger = Callable[[bytes | None], AbstractContextManager[str]]


@pytest.mark.parametrize(
    ("answer", "who"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is an HTTP server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is an SSH server"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "is a TLS port"),
        (b"-ERR unknown command\r\n", "is a Redis server"),
        (b"", "closes the connection"),
        (b"good day to you", "answers, but not as a Kafka broker"),
    ],
)
def test_a_stranger_is_named(stranger: Stranger, answer: bytes, who: str) -> None:
    with stranger(answer) as address:
        assert look_at(address, 5.0) is not None
        with pytest.raises(KafkaError, match=f"{address} {who}"):
            check_reachable(address, 5.0)


def test_nobody_is_named_too() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    assert look_at(address, 5.0) == f"nothing listens at {address}"
    assert "is not the name of a machine" in (look_at("no-such-host.invalid:9092", 5.0) or "")


def test_somebody_who_does_not_answer_is_not_waited_for(stranger: Stranger) -> None:
    with stranger(None) as address:
        assert look_at(address, 0.05) == f"{address} does not answer"


def test_a_broker_is_recognised_and_one_of_several_is_enough(
    bootstrap: str, stranger: Stranger
) -> None:
    assert look_at(bootstrap, 5.0) is None
    with stranger(b"SSH-2.0-OpenSSH_9.2\r\n") as other:
        check_reachable(f"{other},{bootstrap}", 5.0)


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_client_says_once_who_is_at_the_address(
    kind: str, stranger: Stranger, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        caplog.set_level(logging.INFO, "ottla.client")
        client: Any
        if kind == "producer":
            client = ottla.Producer(address, delivery_timeout=300)
            client.send("t", "v")
        else:
            client = ottla.Consumer(address)

        def told() -> bool:
            if kind == "consumer":
                client.poll(0.05)
            return "is an HTTP server. Trying again" in caplog.text

        eventually(told)
        lines = [record for record in caplog.records if record.name == "ottla.client"]
        assert [record.levelname for record in lines] == ["WARNING"]
        if kind == "producer":
            with pytest.raises(KafkaError):
                client.close(0.01)
        else:
            client.close()


def test_with_tls_nobody_is_judged(caplog: pytest.LogCaptureFixture) -> None:
    contact = Contact({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL"})
    contact.lost()
    assert not caplog.records


@pytest.mark.parametrize(
    "question",
    [
        lambda consumer: consumer.assign("orders", "earliest"),
        lambda consumer: consumer.partitions("orders"),
        lambda consumer: consumer.offsets([("orders", 0)], "latest"),
        lambda consumer: consumer.committed(("orders", 0)),
    ],
    ids=["assign", "partitions", "offsets", "committed"],
)
def test_a_question_to_nobody_fails_with_what_is_there(
    stranger: Stranger, question: Callable[[Any], object], caplog: pytest.LogCaptureFixture
) -> None:
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        consumer = ottla.Consumer(address, group="g", timeout=6)
        with caplog.at_level(logging.WARNING, "ottla.client"), pytest.raises(KafkaError) as raised:
            question(consumer)
        assert raised.value.message == f"no broker answers: {address} is an HTTP server"
        assert f"no broker answers: {address} is an HTTP server. Trying again" in caplog.messages
        consumer.close()


@pytest.mark.parametrize(
    "question",
    [lambda admin: admin.list_topics(), lambda admin: admin.create_topic("orders")],
    ids=["list_topics", "create_topic"],
)
def test_an_admin_says_who_is_there(
    stranger: Stranger, question: Callable[[Any], object], caplog: pytest.LogCaptureFixture
) -> None:
    with stranger(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        with (
            caplog.at_level(logging.WARNING, "ottla.client"),
            ottla.Admin(address, timeout=8) as admin,
            pytest.raises(KafkaError),
        ):
            question(admin)
        assert f"no broker answers: {address} is an SSH server. Trying again" in caplog.messages


WAITING = """
import ottla, sys
print("asking", flush=True)
ottla.Consumer(sys.argv[1], timeout=600).assign("orders", "earliest")
"""


def test_a_question_to_nobody_ends_with_ctrl_c(stranger: Stranger) -> None:
    with stranger(b"good day to you") as address:
        asking = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", WAITING, address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert asking.stdout is not None
            assert asking.stdout.readline() == "asking\n"
            asking.send_signal(signal.SIGINT)
            _, errors = asking.communicate(timeout=250)
        except subprocess.TimeoutExpired:
            asking.send_signal(signal.SIGABRT)  # it says where it stands
            pytest.fail(f"it does not end:\n{asking.communicate()[1]}")
        finally:
            asking.kill()
            asking.communicate()
        assert "KeyboardInterrupt" in errors


def test_a_broker_that_is_slow_gets_the_whole_time(ottla_broker: Any) -> None:
    ottla_broker.create_topic("orders")
    # librdkafka's first question is too early for this one
    ottla_broker.faults.delay(1.0, "Metadata", times=None)
    with ottla.Consumer(ottla_broker.bootstrap, timeout=60) as consumer:
        assert consumer.partitions("orders") == (("orders", 0),)
