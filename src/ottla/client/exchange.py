"""What every connection of ours to a broker has in common: greeting, versions, responses.

`wire.py` speaks to a broker from a thread, `peer.py` from the event loop. Both begin with
ApiVersions, choose for each request the newest version that both sides know, and read responses in
the same way; only how bytes are sent and waited for is their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.header import parse_response_header
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.primitives import DecodeError

FALLBACK = 0
"""The version in which a broker answers an ApiVersions request that is newer than it knows."""

Versions = Mapping[int, tuple[int, int]]
"""Of each API the lowest and the highest version that a broker speaks."""


def greeting() -> ApiVersionsRequest:
    """The first request on a connection."""
    from ottla import __version__

    return ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)


def versions_of(answer: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


def newest_common(key: ApiKey, versions: Versions, limit: int | None = None) -> int | None:
    """The newest version of an API that both sides know, up to `limit`; None if there is none."""
    spec = APIS[key]
    if key.is_own:
        return spec.max_version  # never advertised: whoever does not know it hangs up
    lowest, highest = versions.get(int(key), (1, 0))
    version = min(spec.max_version, highest, highest if limit is None else limit)
    return version if version >= max(spec.min_version, lowest) else None


def decode_response(frame: memoryview, key: ApiKey, version: int) -> tuple[int, Any]:
    """A response and the number of its request; DecodeError if it is none of this API's."""
    response = APIS[key].response
    correlation_id, position = parse_response_header(frame, key, version)
    try:
        message, _ = codec(response, version).decode(frame, position)
    except DecodeError:
        if key is not ApiKey.API_VERSIONS or version == FALLBACK:
            raise
        message, _ = codec(response, FALLBACK).decode(frame, position)
    return correlation_id, message
