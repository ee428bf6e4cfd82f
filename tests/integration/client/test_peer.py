"""Peer: what comes back from a broker's address is not always what a broker would send."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ottla.client.peer import Peer
from ottla.errors import ErrorCode, KafkaError
from ottla.net.channel import MAX_FRAME, ChannelClosed
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.header import response_header
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse

SOON = 60.0


def answer(key: ApiKey, version: int, correlation_id: int, message: object) -> bytes:
    parts = [response_header(key, version, correlation_id)]
    codec(type(message), version).encode(message, parts)
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


def greeting(version: int, correlation_id: int) -> bytes:
    keys = [
        ApiVersion(api_key=int(key), min_version=spec.min_version, max_version=spec.max_version)
        for key, spec in APIS.items()
    ]
    response = ApiVersionsResponse(api_keys=keys)
    return answer(ApiKey.API_VERSIONS, version, correlation_id, response)


Reply = Callable[[int, int], bytes | None]
"""Bytes to send for a version and a correlation id; None to hang up."""


class Stranger:
    """Answers a connection's requests one after the other as it was told, then like a broker."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(length)
                key, version, correlation_id = struct.unpack_from(">hhi", request)
                reply = self.replies.pop(0) if self.replies else _like_a_broker(key)
                data = reply(version, correlation_id)
                if data is None:
                    return
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()


def _like_a_broker(key: int) -> Reply:
    if key == ApiKey.API_VERSIONS:
        return greeting
    return lambda version, number: answer(
        ApiKey.METADATA, version, number, MetadataResponse(brokers=[], topics=[], cluster_id="c")
    )


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    made = Stranger()
    await made.open()
    yield made
    made.close()


@pytest.fixture
async def peer(stranger: Stranger) -> AsyncIterator[Peer]:
    made = Peer("127.0.0.1", stranger.port, client_id="broker-1")
    yield made
    made.close()


async def soon(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(SOON):
        return await awaitable


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


HOSTILE: dict[str, Reply] = {
    "another language": lambda version, number: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a huge frame": lambda version, number: struct.pack(">ii", MAX_FRAME + 1, number),
    "a negative length": lambda version, number: struct.pack(">ii", -1, number),
    "an empty frame": lambda version, number: struct.pack(">ii", 0, 0),
    "another number": lambda version, number: frame(number + 1, bytes(16)),
    "no body": lambda version, number: frame(number, b""),
    "noise": lambda version, number: frame(number, b"\xff" * 64),
    "the end": lambda version, number: None,
}


@pytest.mark.parametrize("greeted", [False, True], ids=["greeting", "answer"])
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_wrong_answer_ends_the_connection_and_the_next_request_makes_another(
    stranger: Stranger, peer: Peer, kind: str, greeted: bool
) -> None:
    if greeted:
        await soon(peer.connect())
    stranger.replies = [HOSTILE[kind]]
    with pytest.raises(ChannelClosed):
        await soon(peer.ask(MetadataRequest(topics=None), timeout=60))
    assert not peer.connected
    response = await soon(peer.ask(MetadataRequest(topics=None), timeout=60))
    assert response.cluster_id == "c"
    assert stranger.connections == 2


@pytest.mark.parametrize("greeted", [False, True], ids=["greeting", "answer"])
async def test_half_an_answer_is_waited_for_no_longer_than_allowed(
    stranger: Stranger, peer: Peer, greeted: bool
) -> None:
    if greeted:
        await soon(peer.connect())
    stranger.replies = [lambda version, number: frame(number, bytes(64))[:20]]
    with pytest.raises(KafkaError) as caught:
        await soon(peer.ask(MetadataRequest(topics=None), timeout=0.05))
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert str(stranger.port) in str(caught.value.message)


@pytest.mark.parametrize("greeted", [False, True], ids=["greeting", "answer"])
async def test_silence_is_waited_for_no_longer_than_allowed(
    stranger: Stranger, peer: Peer, greeted: bool
) -> None:
    if greeted:
        await soon(peer.connect())
    stranger.replies = [lambda version, number: b""]
    with pytest.raises(KafkaError) as caught:
        await soon(peer.ask(MetadataRequest(topics=None), timeout=0.05))
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    stranger.replies.clear()  # the time may have been up before anything was asked
    # A late answer to what was given up harms nobody who asks next.
    response = await soon(peer.ask(MetadataRequest(topics=None), timeout=60))
    assert response.cluster_id == "c"


async def test_who_waits_for_a_greeting_is_told_when_the_connection_is_closed(
    stranger: Stranger,
) -> None:
    peer = Peer("127.0.0.1", stranger.port, client_id="broker-1", connect_timeout=2 * SOON)
    asked = asyncio.Event()

    def silent(version: int, number: int) -> bytes:
        asked.set()
        return b""

    stranger.replies = [silent]
    waiting = [asyncio.create_task(peer.ask(MetadataRequest(topics=None))) for _ in range(2)]
    await soon(asked.wait())
    peer.close()
    for each in waiting:  # also who waited for the other to make the connection
        with pytest.raises(ChannelClosed, match="closed by this side"):
            await soon(each)
    response = await soon(peer.ask(MetadataRequest(topics=None)))
    assert response.cluster_id == "c"
    peer.close()


async def test_who_does_not_greet_in_time_is_not_connected_to(stranger: Stranger) -> None:
    peer = Peer("127.0.0.1", stranger.port, client_id="broker-1", connect_timeout=0.05)
    stranger.replies = [lambda version, number: b""]
    with pytest.raises(ChannelClosed, match="does not answer"):
        await soon(peer.connect())
    assert not peer.connected


async def test_a_late_answer_is_not_taken_for_the_next_one(stranger: Stranger, peer: Peer) -> None:
    held: list[bytes] = []

    def hold(version: int, number: int) -> bytes:
        held.append(_like_a_broker(ApiKey.METADATA)(version, number) or b"")
        return b""

    def both(version: int, number: int) -> bytes:
        late = held.pop()
        response = MetadataResponse(brokers=[], topics=[], cluster_id="next")
        return late + answer(ApiKey.METADATA, version, number, response)

    await soon(peer.connect())
    stranger.replies = [hold, both]
    with pytest.raises(KafkaError):
        await soon(peer.ask(MetadataRequest(topics=None), timeout=0.05))
    response = await soon(peer.ask(MetadataRequest(topics=None), timeout=60))
    assert response.cluster_id == "next"
    assert stranger.connections == 1


async def test_an_old_broker_is_greeted_again_in_its_own_version(
    stranger: Stranger, peer: Peer
) -> None:
    def too_new(version: int, number: int) -> bytes:
        refused = ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=[])
        return answer(ApiKey.API_VERSIONS, 0, number, refused)

    stranger.replies = [too_new]
    response = await soon(peer.ask(MetadataRequest(topics=None), timeout=60))
    assert response.cluster_id == "c"


async def test_a_broker_without_the_request_is_named(stranger: Stranger, peer: Peer) -> None:
    def nothing(version: int, number: int) -> bytes:
        return answer(ApiKey.API_VERSIONS, version, number, ApiVersionsResponse(api_keys=[]))

    stranger.replies = [nothing]
    with pytest.raises(KafkaError, match="does not support METADATA") as caught:
        await soon(peer.ask(MetadataRequest(topics=None), timeout=60))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
