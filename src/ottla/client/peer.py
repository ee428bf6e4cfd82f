"""Peer: another broker, spoken to from the event loop in Kafka's protocol.

For brokers among themselves: followers fetch, requests are handed on to the controller. Versions
are chosen from what the other side says it speaks, so brokers of different releases get along.
Several requests may be in flight. The connection is made with the first request, and again with the
next one after it broke; how often and when to try again is for the caller to decide.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.client.exchange import (
    FALLBACK,
    decode_response,
    greeting,
    newest_common,
    versions_of,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.net.channel import Channel, ChannelClosed
from ottla.protocol.apis import APIS, ApiKey, key_of
from ottla.protocol.compiler import codec
from ottla.protocol.header import request_header
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.primitives import DecodeError


class Peer:
    """One broker at one address."""

    def __init__(
        self, host: str, port: int, *, client_id: str, connect_timeout: float = 10.0
    ) -> None:
        self.host = host
        self.port = port
        self._client_id = client_id
        self._connect_timeout = connect_timeout
        self._channel: Channel | None = None
        self._greeted: Channel | None = None  # the next one, while it is not answered yet
        self._closings = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._chosen: dict[ApiKey, int] = {}  # of these, by what we speak ourselves
        self._opening = asyncio.Lock()
        self._correlation_id = 0

    @property
    def connected(self) -> bool:
        return self._channel is not None and not self._channel.closed

    async def ask(
        self, request: Any, *, timeout: float | None = None, version: int | None = None
    ) -> Any:
        """The response to a request, in the newest version that both sides know.

        ChannelClosed when the connection fails, REQUEST_TIMED_OUT when no answer comes in time, the
        time to connect included; what became of the request is not known then.
        """
        key = key_of(request)
        try:
            channel = self._channel
            if channel is None or channel.closed:
                channel, timeout = await self._open_within(timeout)
            if version is None:
                version = self._chosen.get(key)
                if version is None:
                    version = self._chosen[key] = self._version_of(key)
            return await self._exchange(channel, key, version, request, timeout)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.host}:{self.port} did not answer {key.name} in time",
            ) from None

    async def connect(self) -> None:
        """Make the connection now; ChannelClosed when that fails."""
        await self._open()

    def close(self) -> None:
        """End the connection, or the one that is being made. Who waits for an answer, or for the
        connection, is told so at once; the next request makes another."""
        self._closings += 1
        for channel in (self._channel, self._greeted):
            if channel is not None:
                channel.abort()
        self._channel = None

    # ------------------------------------------------------------------ inside

    async def _open_within(self, timeout: float | None) -> tuple[Channel, float | None]:
        """The connection, and what is left of the time."""
        if timeout is None:
            return await self._open(), None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with asyncio.timeout_at(deadline):
            channel = await self._open()
        return channel, max(0.0, deadline - loop.time())

    async def _open(self) -> Channel:
        if self._channel is not None and not self._channel.closed:
            return self._channel
        closings = self._closings
        async with self._opening:
            self._check_wanted(closings)
            if self._channel is None or self._channel.closed:
                channel = await Channel.open(self.host, self.port, timeout=self._connect_timeout)
                self._greeted = channel
                try:
                    self._check_wanted(closings)
                    async with asyncio.timeout(self._connect_timeout):
                        self._versions = await self._greet(channel)
                    self._check_wanted(closings)
                except TimeoutError:
                    channel.abort()
                    raise ChannelClosed(f"{channel.name} does not answer") from None
                except BaseException:
                    channel.abort()
                    raise
                finally:
                    self._greeted = None
                self._chosen.clear()
                self._channel = channel
        return self._channel

    def _check_wanted(self, closings: int) -> None:
        """ChannelClosed to who began to wait for a connection before it was closed."""
        if self._closings != closings:
            raise ChannelClosed(f"{self.host}:{self.port}: closed by this side")

    async def _greet(self, channel: Channel) -> dict[int, tuple[int, int]]:
        key = ApiKey.API_VERSIONS
        answer: ApiVersionsResponse = await self._exchange(
            channel, key, APIS[key].max_version, greeting()
        )
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self._exchange(channel, key, FALLBACK, ApiVersionsRequest())
        return versions_of(answer)

    def _version_of(self, key: ApiKey) -> int:
        version = newest_common(key, self._versions)
        if version is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.host}:{self.port} does not support {key.name}",
            )
        return version

    async def _exchange(
        self,
        channel: Channel,
        key: ApiKey,
        version: int,
        request: Any,
        timeout: float | None = None,
    ) -> Any:
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts: list[Any] = [request_header(key, version, correlation_id, self._client_id)]
        codec(type(request), version).encode(request, parts)
        try:
            frame = await channel.send(correlation_id, parts, timeout)
        except asyncio.CancelledError:
            channel.give_up(correlation_id)
            raise
        try:
            _, message = decode_response(frame, key, version)
        except DecodeError as error:
            channel.abort()
            raise ChannelClosed(
                f"what listens at {self.host}:{self.port} is not a Kafka broker ({error})"
            ) from None
        return message
