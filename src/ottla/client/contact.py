"""Whether a Kafka broker answers at an address; and if not, who does.

librdkafka tries for ever, which is right for a service that starts before its broker, and says
so in many lines, of which none tells a person that an HTTP server or nobody at all is at the
address. So a client that hears nothing looks for itself, and writes one line:

    no broker answers: localhost:8080 is an HTTP server. Trying again

    look_at(server, timeout)   why no broker answers there; None when one does
    check_reachable(servers)   the same for people at a prompt: raises
    Contact(servers)           the same for clients: one line of the log, now and then
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from ottla.client.settings import LOGGER, parse_address
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 1.5
"""Seconds of silence after which a new client looks for itself."""
_LOOK = 1.0
_REPEAT = 60.0

_CORRELATION = 0x4F54544C
# ApiVersions 0 of an unnamed client: key, version, correlation id, no client id.
_QUESTION = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
_LONGEST_ANSWER = 1 << 20

_STRANGERS = (
    (b"HTTP/", "an HTTP server"),
    (b"<!DO", "an HTTP server"),
    (b"<htm", "an HTTP server"),
    (b"SSH-", "an SSH server"),
    (b"\x15\x03", "a TLS port: set security.protocol=SSL, or use a PLAINTEXT listener"),
    (b"-ERR", "a Redis server"),
    (b"220 ", "a mail or FTP server"),
)


def look_at(server: str, timeout: float) -> str | None:
    """Why no Kafka broker answers at HOST:PORT; None when one does."""
    host, port = parse_address(server)
    try:
        with socket.create_connection((host.strip("[]"), port), timeout) as connection:
            connection.sendall(_QUESTION)
            answer = _receive(connection, 8)
    except TimeoutError:
        return f"{server} does not answer"
    except ConnectionRefusedError:
        return f"nothing listens at {server}"
    except socket.gaierror as error:
        return f"{host} is not the name of a machine ({error.strerror})"
    except OSError as error:
        return f"{server}: {error.strerror or error}"
    return _stranger(server, answer)


def check_reachable(servers: str, timeout: float) -> None:
    """Raise at once when no broker answers at any of `servers`."""
    reasons: list[str] = []
    for server in servers.split(","):
        reason = look_at(server, timeout)
        if reason is None:
            return
        reasons.append(reason)
    raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "; ".join(reasons))


def _receive(connection: socket.socket, count: int) -> bytes:
    """The first bytes of an answer; fewer when the other side ends the connection."""
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            break
        received += part
    return received


def _stranger(server: str, answer: bytes) -> str | None:
    for beginning, who in _STRANGERS:
        if answer.startswith(beginning):
            return f"{server} is {who}"
    if not answer:
        return f"{server} closes the connection: a TLS port, or no Kafka broker"
    if len(answer) == 8:
        size, correlation = struct.unpack(">ii", answer)
        if correlation == _CORRELATION and 4 <= size <= _LONGEST_ANSWER:
            return None
    return f"{server} answers, but not as a Kafka broker"


class Contact:
    """Looks at the brokers' addresses when a client hears nothing. Methods return at once."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._servers = str(config["bootstrap.servers"]).split(",")
        # With TLS we could not tell a broker from anybody else.
        protocol = str(config.get("security.protocol", "plaintext")).lower()
        self._can_look = protocol in ("plaintext", "sasl_plaintext")
        self._quiet_until = 0.0
        self._since = time.monotonic()

    @property
    def waited(self) -> bool:
        """Whether a new client has waited long enough to wonder."""
        return time.monotonic() - self._since >= PATIENCE

    def lost(self) -> None:
        """Nothing is heard of any broker: look, and say what is there, once a minute at most."""
        now = time.monotonic()
        if self._can_look and now >= self._quiet_until:
            self._quiet_until = now + _REPEAT
            threading.Thread(target=self._look, name="ottla-contact", daemon=True).start()

    def _look(self) -> None:
        reasons = []
        for server in self._servers:
            reason = look_at(server, _LOOK)
            if reason is None:
                self._quiet_until = 0.0
                return
            reasons.append(reason)
        LOGGER.warning("no broker answers: %s. Trying again", "; ".join(reasons))
