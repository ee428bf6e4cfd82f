"""The small HTTP server: what it answers, and what it puts up with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

import pytest

from ottla.net import http
from ottla.net.http import Fields, HttpServer, Page
from ottla.runtime.clock import SystemClock

Ask = Callable[[bytes], Awaitable[bytes]]
BIG = b"x" * (8 << 20)


async def hello(fields: Fields) -> Page:
    return Page(f"hello {fields.get('x-name', 'you')}\n".encode())


async def big(_fields: Fields) -> Page:
    return Page(BIG)


async def never(_fields: Fields) -> Page:
    await asyncio.Event().wait()
    raise AssertionError


async def broken(_fields: Fields) -> Page:
    raise OSError("the disk is on fire")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    pages = {"/": hello, "/big": big, "/never": never, "/broken": broken}
    server = HttpServer(pages, SystemClock())
    _, port = server.bind("127.0.0.1", 0)
    await server.start()
    yield port
    await server.close()


@pytest.fixture
def ask(port: int) -> Ask:
    async def send(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    return send


async def waiting(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Somebody who waits for a page that never comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /never HTTP/1.1\r\n\r\n")
    return reader, writer


async def test_a_page_is_answered_and_the_connection_closed(ask: Ask) -> None:
    head, _, body = (await ask(b"GET /?a=b HTTP/1.1\r\nX-Name: Franz\r\n\r\n")).partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 12\r\n" in head
    assert b"Connection: close" in head
    assert body == b"hello Franz\n"


async def test_head_has_no_body(ask: Ask) -> None:
    answer = await ask(b"HEAD / HTTP/1.0\r\n\r\n")
    assert b"Content-Length: 10\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"POST / HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"\x00\x00\x00\x2a\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET http://elsewhere/ HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/2\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n: nameless\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nA: b\n\nc\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /" + b"a" * 9000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (b"GET /broken HTTP/1.1\r\n\r\n", HTTPStatus.INTERNAL_SERVER_ERROR),
    ],
)
async def test_what_is_no_proper_request_is_told_so(
    ask: Ask, request_bytes: bytes, status: HTTPStatus
) -> None:
    answer = await ask(request_bytes)
    assert answer.startswith(f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode())


async def test_a_refusal_is_logged_a_few_times(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(20):
        for path in (f"page{number}", f"a'{number:x}", f"{number:x}'b\\"):
            await ask(f"GET /{path} HTTP/1.1\r\n\r\n".encode())
    assert 1 <= caplog.text.count("there is no page") <= 5


async def test_who_is_slow_to_ask_is_closed(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_SECONDS", 0.05)
    assert (await ask(b"GET / HT")).startswith(b"HTTP/1.1 408 ")


async def test_a_page_that_is_not_ready_in_time_is_unavailable(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ANSWER_SECONDS", 0.05)
    assert (await ask(b"GET /never HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503 ")


async def test_who_does_not_take_the_answer_is_closed(
    port: int,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.transport.pause_reading()
    writer.write(b"GET /big HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(60):
        while "did not take the answer" not in caplog.text:
            await asyncio.sleep(0.01)
    writer.transport.abort()
    monkeypatch.setattr(http, "WRITE_SECONDS", 30.0)
    assert (await ask(b"GET /big HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n" + BIG)
    del reader


async def test_more_connections_than_the_bound_are_refused(
    ask: Ask, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_AT_A_PAGE", http.MOST_CONNECTIONS)
    busy = [await waiting(port) for _ in range(http.MOST_CONNECTIONS)]
    async with asyncio.timeout(60):
        while True:  # until the last of them has asked, this one may be answered
            try:
                if not await ask(b"GET / HTTP/1.1\r\n\r\n"):
                    break
            except ConnectionError:
                break
    for _, writer in busy:
        writer.close()


async def test_a_page_that_many_wait_for_keeps_nobody_from_the_others(ask: Ask, port: int) -> None:
    busy = [await waiting(port) for _ in range(http.MOST_AT_A_PAGE + 1)]
    answers = [asyncio.ensure_future(reader.readline()) for reader, _ in busy]
    async with asyncio.timeout(60):
        [refused], _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    assert (await refused).startswith(b"HTTP/1.1 503 ")
    busy += [await waiting(port) for _ in range(3 * http.MOST_CONNECTIONS)]
    for _ in range(3):
        assert b"hello" in await ask(b"GET / HTTP/1.1\r\n\r\n")
    for _, writer in busy:
        writer.close()
    await asyncio.gather(*answers, return_exceptions=True)


async def test_the_silent_and_the_slow_give_way(
    port: int, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    slow = []
    for number in range(3 * http.MOST_CONNECTIONS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /b")
        if number % 2:
            writer.write(b"ig HTTP/1.1\r\n\r\n")
            await reader.readexactly(1)
            writer.transport.pause_reading()
        slow.append((reader, writer))
    for _ in range(3):
        assert b"hello" in await ask(b"GET / HTTP/1.1\r\n\r\n")
    assert "somebody else wants its place" in caplog.text
    assert "in the middle of a request" not in caplog.text
    for _, writer in slow:
        writer.transport.abort()


async def test_closing_ends_everything(caplog: pytest.LogCaptureFixture) -> None:
    server = HttpServer({"/never": never}, SystemClock())
    _, port = server.bind("127.0.0.1", 0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /never HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0)
    await server.close()
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)
    assert "ERROR" not in caplog.text


def test_json_is_indented_and_in_utf_8() -> None:
    made = Page.of_json({"a": "ž"}, HTTPStatus.SERVICE_UNAVAILABLE)
    assert json.loads(made.body) == {"a": "ž"}
    assert made.content_type == "application/json"
