"""Whether a Kafka broker answers at an address; and if not, who does.

librdkafka tries for ever, which is right for a service that starts before its broker, and says
so in many lines, of which none tells a person that an HTTP server or nobody at all is at the
address. So a client that hears nothing looks for itself, and writes one line:

    no broker answers: localhost:8080 is an HTTP server. Trying again

    look_at(server, timeout)   why no broker answers there; None when one does
    check_reachable(servers)   the same for people at a prompt: raises
    Contact(servers)           the same for clients: one line of the log, now and then
    Contact.ask(question)      a question to librdkafka that nobody has to wait for in silence
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ottla.client.settings import LOGGER, parse_address
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

PATIENCE = 1.5
"""Seconds of silence after which a new client looks for itself."""
_LOOK = 1.0
_PAUSE = 0.1
_FIRST = 0.5
"""Seconds that a question to librdkafka may take before one looks who is there: no signal
interrupts it."""
_SILENCE = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
_REPEAT = 60.0

PROMPT_SECONDS = 15.0
"""How long a person at a prompt waits for a broker that listens, and is busy."""

_CORRELATION = 0x4F54544C
# ApiVersions 0 of an unnamed client: key, version, correlation id, no client id.
_QUESTION = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
_LONGEST_ANSWER = 1 << 20

_STRANGERS = (
    (b"HTTP", "an HTTP server"),
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
    except UnicodeError:  # such as an empty part between two dots
        return f"no machine can be called {host}"
    except OSError as error:
        return f"{server}: {error.strerror or error}"
    return _stranger(server, answer)


def check_reachable(servers: str, timeout: float = PROMPT_SECONDS) -> None:
    """Raise when no broker answers at any of `servers`: at once where nobody listens."""
    reasons: list[str] = []
    for server in servers.split(","):
        reason = look_at(server, timeout)
        if reason is None:
            return
        reasons.append(reason)
    raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "; ".join(reasons))


def name_of_stranger(beginning: bytes) -> str | None:
    """Who speaks like this, by the first bytes of an answer; None when we do not know."""
    return next((who for start, who in _STRANGERS if beginning.startswith(start)), None)


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
    who = name_of_stranger(answer)
    if who is not None:
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

    def ask(self, question: Callable[[float], T], timeout: float) -> T:
        """The answer to a question, which gets the seconds that it may take.

        librdkafka waits for a broker that is not there without a word, and through every Ctrl-C.
        So the first try is a short one; the next, with all the time that is left, waits until a
        broker answers at one of the addresses.
        """
        began = time.monotonic()
        try:
            return question(min(timeout, _FIRST))
        except KafkaError as error:
            if timeout <= _FIRST or error.code not in _SILENCE:
                raise
        self._wait_for_broker(began, began + timeout)
        return question(max(_PAUSE, began + timeout - time.monotonic()))

    def _wait_for_broker(self, began: float, deadline: float) -> None:
        while self._can_look:
            reasons = self._reasons()
            if reasons is None:
                return
            now = time.monotonic()
            if now >= deadline:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"no broker answers: {reasons}")
            if now - began >= PATIENCE and now >= self._quiet_until:
                self._quiet_until = now + _REPEAT
                LOGGER.warning("no broker answers: %s. Trying again", reasons)
            time.sleep(_PAUSE)

    def _reasons(self) -> str | None:
        """Why no broker answers at any of the addresses; None when one does."""
        reasons = []
        for server in self._servers:
            reason = look_at(server, _LOOK)
            if reason is None:
                return None
            reasons.append(reason)
        return "; ".join(reasons)

    def _look(self) -> None:
        reasons = self._reasons()
        if reasons is None:
            self._quiet_until = 0.0
        else:
            LOGGER.warning("no broker answers: %s. Trying again", reasons)
