"""Connections over real sockets, on both event loops: order, back-pressure, files, bad bytes.

Everything holds for a client that is alone and for one in a crowd, whose answers leave with those
of others.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from ottla.net.connection import (
    OUT_LIMIT,
    SEND_TURN,
    SLOT_LIMIT,
    Connection,
    Hangup,
    NotYet,
    Reply,
)
from ottla.net.listener import Limits, Listeners
from ottla.net.traffic import TOGETHER, Traffic
from ottla.runtime.clock import SystemClock
from ottla.runtime.files import FileRegion, OsFileSystem
from ottla.runtime.loop import LOOP_FACTORIES, loop_factory
from ottla.runtime.page_cache import PageCache
from ottla.runtime.waiters import Deferred

Answer = Callable[[Connection, memoryview], "Reply | Deferred[Reply]"]


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def echo(connection: Connection, request: memoryview) -> Reply:
    return [frame(bytes(request))]


@pytest.fixture(params=LOOP_FACTORIES)
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = loop_factory(request.param)()
    yield loop
    loop.close()


@pytest.fixture(params=["alone", "in a crowd"], autouse=True)
def crowd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    crowded: bool = request.param == "in a crowd"
    monkeypatch.setattr(Traffic, "in_crowd", lambda traffic, client: crowded)
    return crowded


class Client:
    """A peer that speaks frames, with a deadline on everything."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *payloads: bytes) -> None:
        self.writer.write(b"".join(frame(payload) for payload in payloads))

    async def receive(self) -> bytes:
        async with asyncio.timeout(60):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def closed(self) -> bool:
        async with asyncio.timeout(60):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


async def serving(answer: Answer, limits: Limits, scenario: Callable[..., object]) -> None:
    listeners = Listeners(answer, limits, SystemClock())
    writers: list[asyncio.StreamWriter] = []
    bound = listeners.bind("TEST", "127.0.0.1", 0)
    listeners.open()

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.port, limit=1 << 26)
        writers.append(writer)
        return Client(reader, writer)

    try:
        await scenario(listeners, connect)
    finally:
        for writer in writers:
            writer.close()
        listeners.close()
        await asyncio.sleep(0)


def run(loop, answer: Answer, scenario, limits: Limits = Limits()) -> None:  # noqa: B008 - a frozen value
    loop.run_until_complete(serving(answer, limits, scenario))


def test_pipelined_requests_are_answered_in_order(loop):
    async def scenario(listeners, connect):
        client = await connect()
        client.send(*(b"%d" % n for n in range(1000)))
        assert [await client.receive() for _ in range(1000)] == [b"%d" % n for n in range(1000)]

    run(loop, echo, scenario)


def test_answers_of_a_crowd_leave_when_all_have_been_served(loop, crowd):
    known: list[Connection] = []
    sent: list[list[int]] = []

    async def scenario(listeners, connect):
        clients = [await connect() for _ in range(3)]
        for client in clients:
            client.send(b"hello")
            assert await client.receive() == b"hello"
        for client in clients:  # they arrive in one turn of the loop
            client.send(b"again")
        assert [await client.receive() for client in clients] == [b"again"] * 3

    def answer(connection: Connection, request: memoryview) -> Reply:
        if request == b"hello":
            known.append(connection)
        else:
            sent.append(sorted(each.sent_bytes for each in known))
        return [frame(bytes(request))]

    run(loop, answer, scenario)
    before, after = len(frame(b"hello")), len(frame(b"hello") + frame(b"again"))
    assert sent[0] == [before] * 3
    assert sent[2] == ([before] * 3 if crowd else [before, after, after])


def test_a_client_that_reads_as_fast_as_we_write_leaves_the_others_their_turn(
    loop, tmp_path, monkeypatch
):
    size = 40 << 20
    (tmp_path / "log").write_bytes(bytes(size))
    file = OsFileSystem().open(str(tmp_path / "log"))
    sends: list[int] = []  # in each turn of the loop

    def sendfile(out: int, fd: int, position: int, length: int) -> int:
        sends[-1] += length
        return length  # into a socket that is never full

    def answer(connection: Connection, request: memoryview) -> Reply:
        return [FileRegion(file, 0, size)] if request == b"all" else [frame(bytes(request))]

    async def scenario(listeners, connect):
        def turn() -> None:
            sends.append(0)
            if sum(sends) < size:
                asyncio.get_running_loop().call_soon(turn)

        monkeypatch.setattr("os.sendfile", sendfile)
        reader = await connect()
        turn()
        reader.send(b"all")
        async with asyncio.timeout(60):
            while sum(sends) < size:
                await asyncio.sleep(0)
        reader.send(b"next")
        assert await reader.receive() == b"next"

    run(loop, answer, scenario)
    assert sum(sends) == size
    assert max(sends) <= 2 * SEND_TURN, "one turn, and what of the next the count may catch"


def test_what_was_answered_before_a_bad_request_is_sent(loop):
    def answer(connection: Connection, request: memoryview) -> Reply:
        if request == b"bad":
            raise Hangup("no")
        return [frame(bytes(request))]

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"one", b"two", b"bad")
        assert [await client.receive() for _ in range(2)] == [b"one", b"two"]
        assert await client.closed()

    run(loop, answer, scenario)


def test_a_crowd_too_large_for_one_turn_is_answered_in_portions(loop):
    async def scenario(listeners, connect):
        clients = [await connect() for _ in range(3 * TOGETHER)]
        for _ in range(3):
            for client in clients:
                client.send(b"x", b"y")
            for client in clients:
                assert [await client.receive() for _ in range(2)] == [b"x", b"y"]

    run(loop, echo, scenario)


def test_a_slow_answer_holds_back_the_answers_after_it_but_not_their_work(loop):
    slow: list[Deferred[Reply]] = []
    worked: list[bytes] = []

    def answer(connection: Connection, request: memoryview) -> Reply | Deferred[Reply]:
        worked.append(bytes(request))
        if request == b"slow":
            slow.append(Deferred())
            return slow[-1]
        return [frame(bytes(request))]

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"slow", b"quick")
        while len(worked) < 2:
            await asyncio.sleep(0.001)
        slow[0].resolve([frame(b"at last")])
        assert await client.receive() == b"at last"
        assert await client.receive() == b"quick"

    run(loop, answer, scenario)


@pytest.mark.parametrize(("count", "size"), [(5000, 1), (500, 1 << 16)])
def test_answers_that_wait_for_an_earlier_one_are_not_heaped_up(loop, count, size):
    """The client need not read for that: the earlier one may be a fetch that waits for days."""
    slow: Deferred[Reply] = Deferred()
    worked: list[bytes] = []

    def answer(connection: Connection, request: memoryview) -> Reply | Deferred[Reply]:
        worked.append(bytes(request))
        return slow if request == b"slow" else [frame(request.tobytes().rjust(size))]

    async def scenario(listeners, connect):
        client, other = await connect(), await connect()
        client.send(b"slow", *(b"%d" % number for number in range(count)))
        for _ in range(100):
            other.send(b"")
            await other.receive()
        [waiting] = [connection for connection in listeners.connections if connection._slots]
        assert len(waiting._slots) <= SLOT_LIMIT
        assert waiting._unsent() <= OUT_LIMIT + size + 4
        slow.resolve([frame(b"at last")])
        assert await client.receive() == b"at last"
        for number in range(count):
            assert await client.receive() == (b"%d" % number).rjust(size)

    run(loop, answer, scenario)


def test_an_exclusive_answer_holds_back_the_next_request(loop):
    pending: list[Deferred[Reply]] = []
    worked: list[bytes] = []

    def answer(connection: Connection, request: memoryview) -> Reply | Deferred[Reply]:
        worked.append(bytes(request))
        if request == b"alone":
            pending.append(Deferred(exclusive=True))
            return pending[-1]
        return [frame(bytes(request))]

    async def scenario(listeners, connect):
        client, other = await connect(), await connect()
        client.send(b"alone", b"after")
        while not pending:
            await asyncio.sleep(0.001)
        other.send(b"somebody else")
        assert await other.receive() == b"somebody else"
        assert worked == [b"alone", b"somebody else"]
        pending[0].resolve([frame(b"done")])
        assert await client.receive() == b"done"
        assert await client.receive() == b"after"

    run(loop, answer, scenario)


@pytest.mark.parametrize("chunk", [7, 5000, 1 << 20])
def test_a_request_that_waits_for_its_turn_is_handed_in_again_as_it_came(loop, chunk):
    """Wherever its bytes were cut, and whatever came with it."""
    requests = [b"%d " % number + bytes(number * 977 % 5000) for number in range(60)]
    taken: list[bytes] = []

    def answer(connection: Connection, request: memoryview) -> Reply | Deferred[Reply]:
        if len(taken) % 3 and connection.owes_answers:
            raise NotYet
        taken.append(bytes(request))
        later: Deferred[Reply] = Deferred()
        loop.call_later(0.001, later.resolve, [frame(bytes(request))])
        return later

    async def scenario(listeners, connect):
        client = await connect()
        stream = b"".join(map(frame, requests))
        for at in range(0, len(stream), chunk):
            client.writer.write(stream[at : at + chunk])
            await client.writer.drain()
        assert [await client.receive() for _ in requests] == taken == requests
        assert listeners.memory.lent == 0

    run(loop, answer, scenario)


def test_requests_without_an_answer_leave_no_gap(loop):
    def answer(connection: Connection, request: memoryview) -> Reply:
        return None if request == b"quiet" else [frame(bytes(request))]

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"quiet", b"a", b"quiet", b"b")
        assert await client.receive() == b"a"
        assert await client.receive() == b"b"

    run(loop, answer, scenario)


@pytest.mark.parametrize("size", [1, 1000, 65_536, 65_537, 5_000_000])
def test_file_regions_arrive_byte_for_byte_between_buffers(loop, tmp_path, size):
    content = bytes(i * 7 % 251 for i in range(1000)) * (size // 1000 + 2)
    path = str(tmp_path / "file")
    (tmp_path / "file").write_bytes(content)
    file = OsFileSystem().open(path)

    def answer(connection: Connection, request: memoryview) -> Reply:
        head = struct.pack(">i", size + 3) + b"<"
        return [head, FileRegion(file, 500, size), b"]>"]

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"1", b"2", b"3")
        expected = b"<" + content[500 : 500 + size] + b"]>"
        for _ in range(3):
            assert await client.receive() == expected

    run(loop, answer, scenario)


def test_a_file_system_that_keeps_its_pages_elsewhere_is_sent_from(loop, tmp_path, monkeypatch):
    class NeverThere(PageCache):  # so overlayfs, whatever was read
        def holds(self, fd: int, position: int, length: int) -> bool | None:
            return False

    size = 3 << 20
    path = tmp_path / "data"
    path.write_bytes(bytes(size))
    file = OsFileSystem().open(path)
    monkeypatch.setattr("ottla.net.connection._page_cache", NeverThere())

    def answer(connection: Connection, request: memoryview) -> Reply:
        return [struct.pack(">i", size), FileRegion(file, 0, size)]

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"1")
        assert await client.receive() == bytes(size)

    run(loop, answer, scenario)


def test_a_file_that_became_shorter_ends_the_connection(loop, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(1000))
    file = OsFileSystem().open(path)

    def answer(connection: Connection, request: memoryview) -> Reply:
        return [FileRegion(file, 1000, 1 << 20)]

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"1")
        assert await client.closed()

    run(loop, answer, scenario)


def test_a_client_that_never_reads_is_not_read_from_and_hurts_nobody(loop):
    block = frame(bytes(1 << 20))

    async def scenario(listeners, connect):
        ((listening, _),) = listeners._sockets
        deaf = socket.create_connection(listening.getsockname())
        deaf.setblocking(False)
        sent = 0
        polite = await connect()
        for _ in range(200):
            try:
                while True:
                    sent += deaf.send(frame(b"x") * 100)
            except BlockingIOError:
                pass
            polite.send(b"hello")
            assert len(await polite.receive()) == 1 << 20
        (connection,) = [c for c in listeners.connections if c._out]
        assert connection._unsent() < 2 << 20
        deaf.close()

    run(loop, lambda connection, request: [block], scenario)


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 5000])
def test_a_length_out_of_range_closes_the_connection_and_no_other(loop, length):
    async def scenario(listeners, connect):
        bad, good = await connect(), await connect()
        bad.writer.write(struct.pack(">i", length))
        assert await bad.closed()
        good.send(b"still here")
        assert await good.receive() == b"still here"

    run(loop, echo, scenario, Limits(frame_bytes=4096))


def test_a_client_that_resets_its_connection_within_a_request_has_gone(loop):
    """What it had sent is still there to be read when it is noticed."""

    async def scenario(listeners, connect):
        ((listening, _),) = listeners._sockets
        hasty = socket.create_connection(listening.getsockname())
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while not listeners.connections:
            await asyncio.sleep(0.001)
        hasty.sendall(struct.pack(">i", 1000) + bytes(100))
        hasty.close()
        async with asyncio.timeout(20):
            while listeners.connections:
                await asyncio.sleep(0.001)
        assert listeners.memory.lent == 0

    run(loop, echo, scenario)


def test_an_answer_may_hang_up(loop):
    def answer(connection: Connection, request: memoryview) -> Reply:
        raise Hangup("no")

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"x")
        assert await client.closed()
        assert not listeners.connections

    run(loop, answer, scenario)


def test_half_frames_hold_no_more_memory_than_allowed_and_give_way(loop):
    limits = Limits(receive_memory=4 << 20)

    async def scenario(listeners, connect):
        hogs = [await connect() for _ in range(6)]
        for hog in hogs:
            hog.writer.write(struct.pack(">i", 50 << 20) + bytes(2 << 20))
        polite = await connect()
        big = bytes(3 << 20)
        polite.send(b"small")
        assert await polite.receive() == b"small"
        polite.send(big)
        assert await polite.receive() == big
        assert listeners.memory.lent <= limits.receive_memory + 7 * (1 << 20)

    run(loop, echo, scenario, limits)


def test_idle_connections_are_closed_and_busy_ones_are_not(loop):
    async def scenario(listeners, connect):
        idle = await connect()
        idle.send(b"ping")
        assert await idle.receive() == b"ping"
        (its_connection,) = listeners.connections
        busy = await connect()
        busy.send(b"ping")
        assert await busy.receive() == b"ping"
        its_connection.last_active -= 1000  # as if so many seconds had passed
        assert await idle.closed()
        busy.send(b"ping")
        assert await busy.receive() == b"ping"

    run(loop, echo, scenario, Limits(idle_seconds=500))


def test_more_connections_than_allowed_are_refused(loop):
    async def scenario(listeners, connect):
        first = await connect()
        first.send(b"in")
        assert await first.receive() == b"in"
        second = await connect()
        assert await second.closed()
        first.send(b"in")
        assert await first.receive() == b"in"

    run(loop, echo, scenario, Limits(max_connections_per_ip=1))


def test_a_flood_of_small_requests_leaves_others_their_turn(loop):
    order: list[bytes] = []

    def answer(connection: Connection, request: memoryview) -> Reply:
        order.append(bytes(request))
        return [frame(b"")]

    async def scenario(listeners, connect):
        flood, polite = await connect(), await connect()
        flood.send(*[b"f"] * 20_000)
        polite.send(b"p")
        for _ in range(20_000):
            await flood.receive()
        await polite.receive()
        assert order.count(b"f") == 20_000
        assert order.index(b"p") < 19_000

    run(loop, answer, scenario)


def test_the_loop_goes_to_sleep_when_a_client_pauses(loop):
    async def scenario(listeners, connect):
        client = await connect()
        for _ in range(200):
            client.send(b"one by one")
            assert await client.receive() == b"one by one"
        async with asyncio.timeout(60):
            while listeners.traffic.spinning:
                await asyncio.sleep(0.001)
        client.send(b"after a pause")
        assert await client.receive() == b"after a pause"

    run(loop, echo, scenario)


def test_a_bug_in_answering_closes_that_connection_and_no_other(loop, caplog):
    def answer(connection: Connection, request: memoryview) -> Reply:
        if request == b"trigger":
            raise RuntimeError("a bug")
        return [frame(bytes(request))]

    async def scenario(listeners, connect):
        unlucky, other = await connect(), await connect()
        unlucky.send(b"trigger", b"after")
        assert await unlucky.closed()
        other.send(b"fine")
        assert await other.receive() == b"fine"

    run(loop, answer, scenario)
    assert "a bug" in caplog.text


def test_closing_the_connection_abandons_what_is_waited_for(loop):
    abandoned: list[bool] = []

    def answer(connection: Connection, request: memoryview) -> Deferred[Reply]:
        pending: Deferred[Reply] = Deferred()
        pending.on_abandon = lambda: abandoned.append(True)
        return pending

    async def scenario(listeners, connect):
        client = await connect()
        client.send(b"x")
        while not listeners.connections or next(iter(listeners.connections)).idle:
            await asyncio.sleep(0.001)
        client.writer.close()
        async with asyncio.timeout(60):
            while listeners.connections:
                await asyncio.sleep(0.001)
        assert abandoned == [True]

    run(loop, answer, scenario)
