"""One blocking connection to a broker, spoken with our own codec.

For tools that ask a broker a few things, print its answer word for word and end.
librdkafka is made for programs that stay: it takes longer to load than such a tool runs, keeps
some answers to itself (which versions a broker speaks, what its folders hold, its words for an
error) and tries for a minute where a person wants to be told at once that nobody listens.

Versions are chosen from what the broker says it speaks, so any Kafka from 2.4 on will do.

Who needs a broker asks a `router` for a connection; nobody else makes one. Threads may share it:
one request is answered before the next is sent.

Not done   TLS and SASL: `security.protocol` must be PLAINTEXT.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ottla.client.contact import name_of_stranger
from ottla.client.exchange import (
    FALLBACK,
    decode_response,
    greeting,
    newest_common,
    versions_of,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.apis import APIS, ApiKey, key_of
from ottla.protocol.compiler import codec
from ottla.protocol.header import request_header
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.primitives import DecodeError, EncodeError, NotInVersion

_SIZE = struct.Struct(">i")
_MAX_RESPONSE = 256 << 20
_PIECE = 1 << 20


class Wire:
    """A connection that sends a request and waits for its response.

    timeout          seconds that an answer may take
    connect_timeout  the same for the connection itself and the first answer together
    newest           versions of APIs that are not to be exceeded
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: float,
        client_id: str,
        connect_timeout: float | None = None,
        newest: Mapping[ApiKey, int] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._usable = True
        self.proven = False
        """Whether the broker has answered all requests here, one at least, for as long as it was
        connected: who makes the connection anew may expect that it will."""
        self._client_id = client_id
        self._newest = newest or {}
        self._correlation_id = 0
        self._lock = threading.Lock()
        self._timeout = timeout
        patience = timeout if connect_timeout is None else connect_timeout
        deadline = time.monotonic() + patience
        try:
            self._socket = _connect(host.strip("[]"), port, deadline)
        except OSError as error:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"{host}:{port}: {error.strerror or error}"
            ) from None
        except UnicodeError:  # such as an empty part between two dots
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"{host}:{port}: no machine can have this name"
            ) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.greeting = self._greet(deadline)
        except BaseException:
            self._socket.close()
            raise
        self.versions = versions_of(self.greeting)

    @property
    def usable(self) -> bool:
        """Whether the next request can be sent: not after one whose answer did not come, nor when
        the broker has hung up since, as brokers do when a connection was idle for long. Who asks on
        such a connection does not know whether the request was carried out."""
        if self._usable and self._lock.acquire(blocking=False):  # else somebody is just using it
            try:
                # Nobody waits for an answer, so what can be read is the end, or nonsense.
                poller = select.poll()
                with suppress(ValueError):  # closed by another thread at this moment
                    poller.register(self._socket, select.POLLIN)
                    if poller.poll(0):
                        self.close()
            finally:
                self._lock.release()
        return self._usable

    def ask(self, request: Any) -> Any:
        """Send a request in the newest version that both sides know; returns the response."""
        key = key_of(request)
        version = self.version_of(key)
        with self._lock:
            self._check_usable()
            try:
                answer = self._exchange(key, version, request, time.monotonic() + self._timeout)
                self.proven = True
                return answer
            except BaseException:  # Ctrl-C too leaves an answer that nobody waits for
                self.close()
                raise

    def tell(self, request: Any) -> None:
        """Send a request that the broker does not answer: Produce with acks=0."""
        key = key_of(request)
        version = self.version_of(key)
        with self._lock:
            self._check_usable()
            try:
                self._send(key, version, request, time.monotonic() + self._timeout)
            except OSError as error:
                self.close()
                raise self._broken(error) from None
            except BaseException:  # Ctrl-C: half a request may have left
                self.close()
                raise

    def version_of(self, key: ApiKey) -> int:
        """The version to use for an API; UNSUPPORTED_VERSION when there is none."""
        version = newest_common(key, self.versions, self._newest.get(key))
        if version is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"The node does not support {key.name}")
        return version

    def close(self) -> None:
        """End the connection; a thread that waits for an answer on it fails at once."""
        self._usable = False
        with suppress(OSError):  # the broker may have been first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # -- inside

    def _check_usable(self) -> None:
        """Nothing can be sent where another thread's request has just failed."""
        if not self._usable:
            raise self._broken(
                ConnectionResetError(0, "the connection ended while others waited for an answer")
            )

    def _greet(self, deadline: float) -> ApiVersionsResponse:
        key = ApiKey.API_VERSIONS
        newest = APIS[key].max_version
        answer: ApiVersionsResponse = self._exchange(key, newest, greeting(), deadline)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = self._exchange(key, FALLBACK, ApiVersionsRequest(), deadline)
        return answer

    def _exchange(self, key: ApiKey, version: int, request: Any, deadline: float) -> Any:
        try:
            self._send(key, version, request, deadline)
            beginning = self._receive(4, deadline)
            (size,) = _SIZE.unpack(beginning)
            if not 4 <= size <= _MAX_RESPONSE:
                who = name_of_stranger(bytes(beginning))
                raise self._stranger(who or f"a response of {size} bytes")
            frame = memoryview(self._receive(size, deadline))
        except TimeoutError:
            self.proven = False
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.host}:{self.port} did not answer {key.name} in time",
            ) from None
        except OSError as error:
            raise self._broken(error) from None
        try:
            correlation_id, message = decode_response(frame, key, version)
        except DecodeError as error:
            raise self._stranger(str(error)) from None
        if correlation_id != self._correlation_id:
            raise self._stranger("a response to another request")
        return message

    def _send(self, key: ApiKey, version: int, request: Any, deadline: float) -> None:
        self._correlation_id += 1
        header = request_header(key, version, self._correlation_id, self._client_id)
        parts: list[Any] = [b"", header]
        try:
            length = codec(type(request), version).encode(request, parts)
        except NotInVersion as error:
            # An older broker would do something else if it were left out, such as list everything.
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.host}:{self.port} is too old for what is asked ({error})",
            ) from None
        except EncodeError as error:
            # Nobody could be asked that: a number of too many digits, half a surrogate pair.
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this does not fit into a request: {error}"
            ) from None
        parts[0] = _SIZE.pack(len(header) + length)
        self._limit(deadline)
        self._socket.sendall(b"".join(parts))

    def _broken(self, error: OSError) -> KafkaError:
        return KafkaError(
            ErrorCode.NETWORK_EXCEPTION, f"{self.host}:{self.port}: {error.strerror or error}"
        )

    def _limit(self, deadline: float) -> None:
        """Wait for the other side until then, however often it shows a sign of life."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _receive(self, count: int, deadline: float) -> bytearray:
        """Memory grows with what comes, not with what was announced."""
        received = bytearray()
        while len(received) < count:
            self._limit(deadline)
            part = self._socket.recv(min(count - len(received), _PIECE))
            if not part:
                raise ConnectionResetError(0, "the broker closed the connection")
            received += part
        return received

    def _stranger(self, what: str) -> KafkaError:
        return KafkaError(
            ErrorCode.NETWORK_EXCEPTION,
            f"what listens at {self.host}:{self.port} is not a Kafka broker ({what})",
        )


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address of a name that answers. Each has its share of the time: one that
    is silent, such as that of IPv6 where nothing routes it, leaves some to the others."""
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for number, (family, kind, protocol, _, address) in enumerate(places):
        share = (deadline - time.monotonic()) / (len(places) - number)
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            connection.settimeout(max(share, 0.001))  # 0 would not wait at all
            connection.connect(address)
            return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            failure = error
    raise failure or OSError(0, "the name has no address")
