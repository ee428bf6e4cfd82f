"""What stands before a body: request headers (versions 1 and 2) and response headers (0 and 1).

Which header an API uses follows from its key and version: flexible versions carry tagged
fields in the header too. The client id stays a classic string in both. One exception, for
good: an ApiVersions response has the old header in every version, because the client that
reads it does not know yet what the broker speaks.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.protocol.apis import APIS, FLEXIBLE_FROM, NEVER, ApiKey
from ottla.protocol.primitives import (
    MAX_STRING,
    DecodeError,
    EncodeError,
    skip_tagged_fields,
)

_FIXED = struct.Struct(">hhih")
_PREFIX = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")
_CORRELATION_TAGS = struct.Struct(">iB")

_unpack_fixed = _FIXED.unpack_from
_pack_correlation = _CORRELATION.pack
_pack_correlation_tags = _CORRELATION_TAGS.pack

_API_VERSIONS = int(ApiKey.API_VERSIONS)
_API_VERSIONS_MAX = APIS[ApiKey.API_VERSIONS].max_version


class RequestHeader(NamedTuple):
    """The head of a request, and where its body begins in the same buffer.

    `api_key` may be a number nobody knows: answering or closing is the dispatcher's decision.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


_new_tuple = tuple.__new__


def parse_request_header(buffer: memoryview) -> RequestHeader:
    """Read the head of a frame; DecodeError and nothing else when it is no request.

    Two kinds of request are read as far as they can be instead of failing: one with an unknown
    key (its client id is read if there is one), and an ApiVersions request newer than ours,
    which must get an answer whatever its header may look like by then.
    """
    try:
        key, version, correlation_id, size = _unpack_fixed(buffer, 0)
    except struct.error:
        return _without_client_id(buffer)
    flexible_from = FLEXIBLE_FROM.get(key)
    if flexible_from is None or (key == _API_VERSIONS and version > _API_VERSIONS_MAX):
        try:
            client_id, _ = _read_client_id(buffer, size)
        except DecodeError:
            client_id = None
        return RequestHeader(key, version, correlation_id, client_id, len(buffer))
    client_id, position = _read_client_id(buffer, size)
    if version >= flexible_from:
        try:
            count = buffer[position]
            position += 1
            if count:
                position = skip_tagged_fields(buffer, position, count)
        except IndexError as error:
            raise DecodeError("the request ends inside its header") from error
    return _new_tuple(RequestHeader, (key, version, correlation_id, client_id, position))


def _read_client_id(buffer: memoryview, size: int) -> tuple[str | None, int]:
    """The client id, whose length stands before byte 10, and the position after it."""
    if size < 0:
        return None, 10
    end = 10 + size
    if end > len(buffer):
        raise DecodeError(f"a client id of {size} bytes exceeds the request")
    try:
        return buffer[10:end].tobytes().decode(), end
    except UnicodeDecodeError as error:
        raise DecodeError("the client id is not UTF-8") from error


def _without_client_id(buffer: memoryview) -> RequestHeader:
    """A frame of fewer than ten bytes: not sent by a Kafka client, or no request."""
    try:
        key, version, correlation_id = _PREFIX.unpack_from(buffer, 0)
    except struct.error as error:
        raise DecodeError(f"{len(buffer)} bytes are no request") from error
    if key in FLEXIBLE_FROM and not (key == _API_VERSIONS and version > _API_VERSIONS_MAX):
        raise DecodeError("the request ends inside its header")
    return RequestHeader(key, version, correlation_id, None, len(buffer))


def request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """The bytes before a request body, for our own client."""
    tags = b"\0" if api_version >= FLEXIBLE_FROM.get(api_key, NEVER) else b""
    if client_id is None:
        return _FIXED.pack(api_key, api_version, correlation_id, -1) + tags
    name = client_id.encode()
    if len(name) > MAX_STRING:
        raise EncodeError(f"a client id of {len(name)} bytes, more than {MAX_STRING}")
    return _FIXED.pack(api_key, api_version, correlation_id, len(name)) + name + tags


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The bytes before a response body."""
    if api_version >= FLEXIBLE_FROM.get(api_key, NEVER) and api_key != _API_VERSIONS:
        return _pack_correlation_tags(correlation_id, 0)
    return _pack_correlation(correlation_id)


def parse_response_header(buffer: memoryview, api_key: int, api_version: int) -> tuple[int, int]:
    """Read the head of a response to a request of this key and version.

    Returns (correlation id, position of the body).
    """
    try:
        (correlation_id,) = _CORRELATION.unpack_from(buffer, 0)
        position = 4
        if api_version >= FLEXIBLE_FROM.get(api_key, NEVER) and api_key != _API_VERSIONS:
            position = skip_tagged_fields(buffer, 5, buffer[4])
    except (struct.error, IndexError) as error:
        raise DecodeError("the response ends inside its header") from error
    return correlation_id, position
