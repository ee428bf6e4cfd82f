"""Peer: another broker, spoken to from the event loop in Kafka's protocol.

For brokers among themselves: followers fetch, requests are handed on to the controller. Versions
are chosen from what the other side says it speaks, so brokers of different releases get along.
Several requests may be in flight. The connection is made with the first request, and again with the
next one after it broke; how often and when to try again is for the caller to decide.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.net.channel import Channel, ChannelClosed
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.header import parse_response_header, request_header
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.primitives import DecodeError

_FALLBACK = 0
_keys: dict[type[Any], ApiKey] = {}
_responses: dict[ApiKey, type[Any]] = {}


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

        ChannelClosed when the connection fails, REQUEST_TIMED_OUT when no answer comes in time;
        what became of the request is not known then.
        """
        channel = self._channel
        if channel is None or channel.closed:
            channel = await self._open()
        key = _key_of(type(request))
        if version is None:
            version = self._chosen.get(key)
            if version is None:
                version = self._chosen[key] = self._version_of(key)
        try:
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
        if self._channel is not None:
            self._channel.abort()
            self._channel = None

    # ------------------------------------------------------------------ inside

    async def _open(self) -> Channel:
        if self._channel is not None and not self._channel.closed:
            return self._channel
        async with self._opening:
            if self._channel is None or self._channel.closed:
                channel = await Channel.open(self.host, self.port, timeout=self._connect_timeout)
                try:
                    self._versions = await self._greet(channel)
                except TimeoutError:
                    channel.abort()
                    raise ChannelClosed(f"{channel.name} does not answer") from None
                except BaseException:
                    channel.abort()
                    raise
                self._chosen.clear()
                self._channel = channel
        return self._channel

    async def _greet(self, channel: Channel) -> dict[int, tuple[int, int]]:
        from ottla import __version__

        key = ApiKey.API_VERSIONS
        request = ApiVersionsRequest(
            client_software_name="ottla", client_software_version=__version__
        )
        patience = self._connect_timeout
        answer: ApiVersionsResponse = await self._exchange(
            channel, key, APIS[key].max_version, request, patience
        )
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self._exchange(channel, key, _FALLBACK, ApiVersionsRequest(), patience)
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def _version_of(self, key: ApiKey) -> int:
        spec = APIS[key]
        lowest, highest = self._versions.get(int(key), (1, 0))
        version = min(spec.max_version, highest)
        if version < max(spec.min_version, lowest):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.host}:{self.port} does not support {key.name}",
            )
        return version

    async def _exchange(
        self, channel: Channel, key: ApiKey, version: int, request: Any, timeout: float | None
    ) -> Any:
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts: list[Any] = [request_header(key, version, correlation_id, self._client_id)]
        codec(type(request), version).encode(request, parts)
        try:
            frame = await channel.send(correlation_id, parts, timeout)
        except asyncio.CancelledError:
            channel.forget(correlation_id)
            raise
        response = _response_of(key)
        try:
            _, position = parse_response_header(frame, key, version)
            try:
                message, _ = codec(response, version).decode(frame, position)
            except DecodeError:
                if key is not ApiKey.API_VERSIONS or version == _FALLBACK:
                    raise
                message, _ = codec(response, _FALLBACK).decode(frame, position)
        except DecodeError as error:
            channel.abort()
            raise ChannelClosed(
                f"what listens at {self.host}:{self.port} is not a Kafka broker ({error})"
            ) from None
        return message


def _key_of(request: type[Any]) -> ApiKey:
    key = _keys.get(request)
    if key is None:
        name = request.__name__.removesuffix("Request")
        constant = "".join(f"_{c}" if c.isupper() else c.upper() for c in name).lstrip("_")
        key = _keys[request] = ApiKey[constant]
    return key


def _response_of(key: ApiKey) -> type[Any]:
    found = _responses.get(key)
    if found is None:
        found = _responses[key] = APIS[key].response
    return found
