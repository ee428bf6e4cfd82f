"""A small HTTP server for a few pages that only read: GET and HEAD, one request a connection.

It is made for a port that anybody may connect to. A request has to arrive whole within
`READ_SECONDS` and `HEAD_LIMIT` bytes, its body is not read, its answer has to be taken within
`WRITE_SECONDS`, and no more than `MOST_CONNECTIONS` are open: so what strangers can hold is a few
kilobytes each, and the pages that they are being sent. When all places are taken, a new connection
gets that of whoever has kept the server waiting for longest, so that strangers who are silent, or
slow, keep nobody from the pages. No more than `MOST_AT_A_PAGE` wait for one page, so that a page
that takes long keeps nobody from the others. Whoever breaks a rule is answered if that is possible,
closed, and named in the log, a few times in ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from ottla.runtime.clock import Clock
from ottla.runtime.logs import RateLimit

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 16
MOST_AT_A_PAGE = 12
HEAD_LIMIT = 8_192
READ_SECONDS = 5.0
ANSWER_SECONDS = 20.0
WRITE_SECONDS = 10.0

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
# What a stranger has chosen of a complaint: numbers, and what is quoted in either way.
_WHATEVER = re.compile("[0-9]+|'.*'|\".*\"")
_FIELD = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK

    @classmethod
    def of_json(cls, value: object, status: HTTPStatus = HTTPStatus.OK) -> Page:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        return cls(f"{text}\n".encode(), "application/json", status)


Fields = Mapping[str, str]
"""The header fields of a request, by their names in lower case."""

Answer = Callable[[Fields], Awaitable[Page]]


class BadRequest(Exception):
    """What came cannot be answered with a page; the message says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class HttpServer:
    """Serves pages by their path. `bind`, then `await start()`; `await close()` at the end."""

    def __init__(self, pages: Mapping[str, Answer], clock: Clock) -> None:
        self._pages = pages
        self._complaints = RateLimit(logger, clock)
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        # Those that wait for their client, to ask or to take the answer; since longest first.
        self._idle: dict[asyncio.StreamWriter, None] = {}
        self._waiting: Counter[str] = Counter()  # for a page, by its path

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address; returns it, with the real port where 0 was asked for. OSError."""
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(MOST_CONNECTIONS)
        except OSError:
            sock.close()
            raise
        self._socket = sock
        return host, sock.getsockname()[1]

    async def start(self) -> None:
        """Answer from now on."""
        assert self._socket is not None, "bind comes first"
        self._server = await asyncio.start_server(
            self._accepted, sock=self._socket, limit=HEAD_LIMIT
        )

    async def close(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for task in tuple(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    # ------------------------------------------------------------------ one connection

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS and not self._make_room():
            self._complain(writer, f"{MOST_CONNECTIONS} connections are open")
            writer.transport.abort()
            return
        self._open.add(writer)
        self._idle[writer] = None
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def _make_room(self) -> bool:
        """Close the connection that has waited for its client for longest, if any does."""
        slowest = next(iter(self._idle), None)
        if slowest is None:
            return False
        self._complain(slowest, "it was slow, and somebody else wants its place")
        self._leave(slowest)
        return True

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        self._idle.pop(writer, None)
        self._open.discard(writer)
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            page, with_body = await self._answer(reader, writer)
            if page is not None and writer in self._open:
                self._idle[writer] = None
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._send(writer, page, with_body)
        except TimeoutError:
            self._complain(writer, f"it did not take the answer within {WRITE_SECONDS:g} s")
        except OSError:
            pass  # it has gone
        finally:
            self._leave(writer)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Page | None, bool]:
        """The page for whatever comes, and whether with its body; None for who has gone."""
        try:
            head = await _receive(reader)
            self._idle.pop(writer, None)
            method, path, fields = _parse(head)
            return await self._make(path, fields), method == "GET"
        except BadRequest as error:
            self._complain(writer, str(error))
            return _refusal(error.status), True
        except asyncio.IncompleteReadError as error:
            if error.partial and writer in self._open:
                self._complain(writer, "it ended in the middle of a request")
            return None, False

    async def _make(self, path: str, fields: Fields) -> Page:
        answer = self._page(path)
        if self._waiting[path] >= MOST_AT_A_PAGE:
            raise BadRequest(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_AT_A_PAGE} wait for {path} already"
            )
        self._waiting[path] += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer(fields)
        except TimeoutError:
            logger.warning("%s was not ready within %g s", path, ANSWER_SECONDS)
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:
            logger.exception("%s cannot be made", path)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            self._waiting[path] -= 1

    def _page(self, path: str) -> Answer:
        found = self._pages.get(path)
        if found is None:
            raise BadRequest(HTTPStatus.NOT_FOUND, f"there is no page {path[:100]!r}")
        return found

    async def _send(self, writer: asyncio.StreamWriter, page: Page, with_body: bool) -> None:
        allow = "Allow: GET, HEAD\r\n" if page.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            f"Cache-Control: no-store\r\n"
            f"X-Content-Type-Options: nosniff\r\n"
            f"{allow}Connection: close\r\n\r\n"
        )
        # Everything is taken before this returns: the transport holds back nothing.
        writer.transport.set_write_buffer_limits(0)
        writer.write(head.encode("ascii") + (page.body if with_body else b""))
        await writer.drain()
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()

    def _complain(self, writer: asyncio.StreamWriter, why: str) -> None:
        peer = writer.get_extra_info("peername")
        shown = "somebody" if not peer else f"{peer[0]}:{peer[1]}"
        kind = _WHATEVER.sub("#", why)
        self._complaints.warning(kind, "the page for metrics refused %s: %s", shown, why)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    """Everything up to the empty line. Raises BadRequest, or IncompleteReadError."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise BadRequest(status, f"a request of more than {HEAD_LIMIT} bytes") from None
    except TimeoutError:
        why = f"no whole request within {READ_SECONDS:g} s"
        raise BadRequest(HTTPStatus.REQUEST_TIMEOUT, why) from None


def _refusal(status: HTTPStatus) -> Page:
    return Page(f"{status.value} {status.phrase}\n".encode(), status=status)


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path without its query, and header fields. Raises BadRequest."""
    first, *rest = head[:-4].split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.0 or 1.1")
    method, target = (part.decode("ascii") for part in found.groups())
    if method not in ("GET", "HEAD"):
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not possible here")
    fields: dict[str, str] = {}
    for line in rest:
        field = _FIELD.fullmatch(line.decode("latin-1"))
        if field is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header field that is none")
        fields[field[1].lower()] = field[2]
    return method, target.partition("?")[0], fields
