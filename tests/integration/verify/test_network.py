"""The proxies of the harness: links are cut, slowed, and lose answers; doors close with servers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import Any

import pytest

from ottla.runtime.loop import LOOP_FACTORIES, run
from ottla.testing.process import LOOPBACK, free_port
from ottla.verify.network import Link, Network
from ottla.verify.owners import owner_of

SOON = 60.0
THERE, BACK = ("client", "server"), ("server", "client")
TWIN = """
import socket, sys
connection = socket.socket()
connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
connection.bind(("127.0.0.1", 0))
connection.connect(("127.0.0.1", int(input())))
print(connection.getsockname()[1], flush=True)
sys.stdin.read()
"""
"""A process that connects from a port which others may connect from, too."""


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self.port = free_port()
        self.received = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def close(self) -> None:
        """As if the process had been killed."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(1 << 16):
                self.received += len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


class Client:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> bytes:
        self.writer.write(data)
        return await self.get(len(data))

    async def get(self, size: int) -> bytes:
        async with asyncio.timeout(SOON):
            return await self.reader.readexactly(size)

    async def ended(self) -> bool:
        """Whether the connection ends, cleanly or not."""
        async with asyncio.timeout(SOON):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


class Place:
    """A server, its proxy, and who connects to it."""

    def __init__(self, network: Network, echo: Echo, port: int) -> None:
        self.network = network
        self.echo = echo
        self.port = port
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(LOOPBACK, self.port))
        self._clients.append(client)
        return client

    async def wait_open(self) -> Client:
        async with asyncio.timeout(SOON):
            while True:
                try:
                    return await self.connect()
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)

    async def wait_received(self, size: int) -> None:
        async with asyncio.timeout(SOON):
            while self.echo.received < size:
                await asyncio.sleep(0.01)

    async def wait_held(self, link: Link) -> None:
        """Wait until all that hinder a link have met something."""
        async with asyncio.timeout(SOON):
            while not all(each.met for each in self.network.condition(link).hindrances.values()):
                await asyncio.sleep(0.01)

    def close(self) -> None:
        for client in self._clients:
            client.writer.close()


@asynccontextmanager
async def a_place(
    client: str | Callable[[int, int], str | None] = "client",
) -> AsyncIterator[Place]:
    network, echo = Network(), Echo()
    await echo.open()
    proxy = network.proxy(echo.port, "server", client)
    place = Place(network, echo, proxy.port)
    try:
        (await place.wait_open()).writer.close()
        yield place
    finally:
        place.close()
        await network.close()
        await echo.close()


Test = Callable[[Place], Coroutine[Any, Any, None]]


@pytest.fixture(params=LOOP_FACTORIES)
def on_loop(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a test at a place, on either event loop."""

    def go(test: Test) -> None:
        async def main() -> None:
            async with a_place() as place:
                await test(place)

        run(main(), request.param)

    return go


def test_what_is_sent_arrives_and_comes_back(on_loop: Callable[[Test], None]) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        data = os.urandom(1 << 20)
        client.writer.write(data)
        assert await client.get(len(data)) == data

    on_loop(test)


def test_what_is_cut_off_arrives_when_the_link_is_mended(on_loop: Callable[[Test], None]) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        assert await client.ask(b"before") == b"before"
        received = place.echo.received
        place.network.hinder(THERE, cut=True)
        client.writer.write(b"held")
        later = await place.connect()  # as with packets that are lost, nobody hears of it
        later.writer.write(b"too")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.reader.read(1)
        assert place.echo.received == received
        place.network.heal()
        assert await client.get(4) == b"held"
        assert await later.get(3) == b"too"

    on_loop(test)


def test_a_cut_may_be_one_way(on_loop: Callable[[Test], None]) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        assert await client.ask(b"before") == b"before"
        received = place.echo.received
        place.network.hinder(BACK, cut=True)
        client.writer.write(b"held")
        await place.wait_received(received + 4)  # it gets there; the answer is what is held back
        place.network.release(BACK)
        assert await client.get(4) == b"held"

    on_loop(test)


def test_the_end_of_a_connection_is_held_back_too(on_loop: Callable[[Test], None]) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        assert await client.ask(b"before") == b"before"
        place.network.hinder(BACK, cut=True)
        await place.echo.close()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.reader.read()
        place.network.heal()
        assert await client.ended()

    on_loop(test)


def test_a_lost_answer_ends_the_connection_after_the_request_arrived(
    on_loop: Callable[[Test], None],
) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        assert await client.ask(b"before") == b"before"
        received = place.echo.received
        place.network.hinder(BACK, losing=True)
        client.writer.write(b"lost")
        assert await client.ended()
        assert place.echo.received == received + 4
        place.network.heal()
        assert await (await place.connect()).ask(b"again") == b"again"

    on_loop(test)


def test_a_link_is_cut_until_all_have_let_it_go(on_loop: Callable[[Test], None]) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        assert await client.ask(b"before") == b"before"
        place.network.hinder(THERE, "one", cut=True)
        place.network.hinder(THERE, "other", cut=True)
        client.writer.write(b"held")
        await place.wait_held(THERE)
        received = place.echo.received
        assert place.network.release(THERE, "one")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.reader.read(1)
        assert place.echo.received == received
        assert place.network.release(THERE, "other")
        assert await client.get(4) == b"held"
        place.network.hinder(THERE, "one", cut=True)
        assert not place.network.release(THERE, "one")  # nothing has come

    on_loop(test)


def test_a_slow_link_keeps_the_order(on_loop: Callable[[Test], None]) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        place.network.hinder(THERE, delay=0.05)
        parts = [b"%04d" % number for number in range(50)]
        for part in parts:
            client.writer.write(part)
            await asyncio.sleep(0)
        place.network.release(THERE)  # what is under way is not overtaken by what follows
        client.writer.write(b"last")
        assert await client.get(204) == b"".join(parts) + b"last"

    on_loop(test)


def test_the_door_closes_with_the_servers_and_before_its_end_is_known(
    on_loop: Callable[[Test], None],
) -> None:
    async def test(place: Place) -> None:
        client = await place.connect()
        assert await client.ask(b"before") == b"before"
        await place.echo.close()
        assert await client.ended()
        with pytest.raises(ConnectionRefusedError):
            await place.connect()
        await place.echo.open()
        assert await (await place.wait_open()).ask(b"again") == b"again"

    on_loop(test)


def test_a_process_is_found_by_the_port_that_it_connects_from() -> None:
    with (
        socket.create_server((LOOPBACK, free_port())) as server,
        socket.create_connection(server.getsockname()) as ours,
    ):
        port, target = ours.getsockname()[1], server.getsockname()[1]
        assert owner_of(port, target, {"other": os.getppid(), "this": os.getpid()}) == "this"
        assert owner_of(port, target, {"other": os.getppid()}) is None
        assert owner_of(port, target, {"ended": 0}) is None


def test_another_connection_from_the_same_port_is_somebody_else() -> None:
    """Linux gives a port to several connections that go to different places."""
    with (
        socket.create_server((LOOPBACK, free_port())) as server,
        socket.create_server((LOOPBACK, free_port())) as second,
        subprocess.Popen([sys.executable, "-c", TWIN], stdin=PIPE, stdout=PIPE, text=True) as twin,
    ):
        assert twin.stdin is not None
        assert twin.stdout is not None
        print(second.getsockname()[1], file=twin.stdin, flush=True)
        port = int(twin.stdout.readline())
        with socket.socket() as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ours.bind((LOOPBACK, port))
            ours.connect(server.getsockname())
            names = {"twin": twin.pid, "this": os.getpid()}
            assert owner_of(port, server.getsockname()[1], names) == "this"
            assert owner_of(port, second.getsockname()[1], names) == "twin"
        twin.stdin.close()


def test_who_cannot_be_found_is_hung_up_on() -> None:
    async def main() -> None:
        async with a_place(lambda _port, _target: None) as place:
            assert await (await place.connect()).ended()

    run(main())
