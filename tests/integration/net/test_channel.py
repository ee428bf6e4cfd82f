"""Channel: frames out, frames in, over a real connection."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ottla.net.channel import SCRATCH, Channel, ChannelClosed

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Listen = Callable[[Behaviour], Awaitable[int]]


def frame(correlation_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


async def requests(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        found.append(await reader.readexactly(length))
    return found


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    servers: list[asyncio.Server] = []

    async def start(behave: Behaviour) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await behave(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()


async def connect(port: int) -> Channel:
    return await Channel.open("127.0.0.1", port, timeout=10)


def ask(channel: Channel, number: int, body: bytes = b"") -> asyncio.Future[memoryview]:
    return channel.send(number, [struct.pack(">i", number), body])


async def test_answers_find_their_requests_in_any_order(listen: Listen) -> None:
    async def backwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for request in reversed(await requests(reader, 500)):
            writer.write(struct.pack(">i", len(request)) + request)
        await writer.drain()
        await reader.read()

    channel = await connect(await listen(backwards))
    answers = [ask(channel, number, b"%d" % number) for number in range(500)]
    assert channel.in_flight == 500
    async with asyncio.timeout(60):
        for number, answer in enumerate(await asyncio.gather(*answers)):
            assert bytes(answer[4:]) == b"%d" % number
    assert channel.in_flight == 0
    channel.abort()


@pytest.mark.parametrize("size", [0, SCRATCH - 8, SCRATCH - 7, SCRATCH + 1, 5_000_000])
async def test_frames_of_every_size_come_whole_however_they_are_cut(
    listen: Listen, size: int
) -> None:
    body = bytes(range(256)) * (size // 256 + 1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 3)
        stream = frame(1, b"first") + frame(2, body[:size]) + frame(3, b"last")
        cuts = sorted({0, 5, 17, 30, len(stream) - 3, len(stream)})
        for start, end in itertools.pairwise(cuts):
            writer.write(stream[start:end])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    channel = await connect(await listen(answer))
    async with asyncio.timeout(60):
        first, middle, last = await asyncio.gather(*(ask(channel, each) for each in (1, 2, 3)))
    assert (bytes(first[4:]), bytes(last[4:])) == (b"first", b"last")
    assert bytes(middle[4:]) == body[:size]
    channel.abort()


async def test_when_the_other_side_hangs_up_everybody_is_told(listen: Listen) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 2)
        writer.write(frame(1, b"x")[:-1])  # one byte is missing

    channel = await connect(await listen(hang_up))
    answers = [ask(channel, each) for each in (1, 2)]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*answers, return_exceptions=True)
        await channel.wait_closed()
    assert [type(each) for each in results] == [ChannelClosed] * 2
    assert channel.closed
    with pytest.raises(ChannelClosed):
        ask(channel, 3)


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 8, bytes(8)])
async def test_who_speaks_another_language_is_hung_up_on(listen: Listen, noise: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(noise)
        await reader.read()

    channel = await connect(await listen(speak))
    async with asyncio.timeout(60):
        await channel.wait_closed()
        with pytest.raises(ChannelClosed, match="no Kafka broker"):
            ask(channel, 1)


async def test_an_answer_that_nobody_waits_for_any_more_is_dropped(listen: Listen) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 2)
        writer.write(frame(1, b"late") + frame(2, b"in time"))
        await reader.read()

    channel = await connect(await listen(late))
    given_up = ask(channel, 1)
    given_up.cancel()
    async with asyncio.timeout(60):
        assert bytes((await ask(channel, 2))[4:]) == b"in time"
    channel.abort()


async def test_an_answer_that_does_not_come_in_time_fails_alone(listen: Listen) -> None:
    go_on = asyncio.Event()

    async def only_some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 4)
        await go_on.wait()
        writer.write(frame(1, b"in time") + frame(3, b"whenever") + frame(4, b"in time"))
        await reader.read()

    channel = await connect(await listen(only_some))
    limits = {1: 60.0, 2: 0.01, 3: None, 4: 30.0}
    answers = {
        number: channel.send(number, [struct.pack(">i", number)], limit)
        for number, limit in limits.items()
    }
    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError):
            await answers[2]
        assert channel.in_flight == 3
        go_on.set()
        found = [bytes((await answers[number])[4:]) for number in (1, 3, 4)]
    assert found == [b"in time", b"whenever", b"in time"]
    late = [channel.send(number, [struct.pack(">i", number)], 0.01) for number in (5, 6)]
    async with asyncio.timeout(60):
        for answer in late:
            with pytest.raises(TimeoutError):
                await answer
    assert channel.in_flight == 0
    channel.abort()


async def test_a_refused_connection_says_so() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    with pytest.raises(ChannelClosed) as caught:
        await connect(port)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_an_answer_to_no_request_ends_the_connection(listen: Listen) -> None:
    async def mistake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await requests(reader, 1)
        writer.write(frame(2, b"x"))
        await reader.read()

    channel = await connect(await listen(mistake))
    async with asyncio.timeout(60):
        with pytest.raises(ChannelClosed, match="a request that was not made"):
            await ask(channel, 1)


@pytest.mark.parametrize(("host", "port"), [("a..b", 9092), ("127.0.0.1", 65536)])
async def test_what_is_no_address_is_not_connected_to(host: str, port: int) -> None:
    with pytest.raises(ChannelClosed):
        await Channel.open(host, port, timeout=10)
