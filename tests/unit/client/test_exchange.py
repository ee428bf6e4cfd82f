from __future__ import annotations

from typing import Any

import pytest

from ottla.client.exchange import (
    FALLBACK,
    decode_response,
    greeting,
    newest_common,
    versions_of,
)
from ottla.errors import ErrorCode
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.primitives import DecodeError

FETCH = APIS[ApiKey.FETCH]


@pytest.mark.parametrize(
    ("theirs", "limit", "expected"),
    [
        ((FETCH.min_version, FETCH.max_version + 1), None, FETCH.max_version),
        ((0, 12), None, 12),
        ((0, FETCH.max_version), 7, 7),
        ((0, 6), 7, 6),
        ((0, FETCH.min_version - 1), None, None),
        ((FETCH.max_version + 1, FETCH.max_version + 2), None, None),
        ((9, FETCH.max_version), 8, None),
    ],
)
def test_the_newest_version_that_both_know_is_chosen(
    theirs: tuple[int, int], limit: int | None, expected: int | None
) -> None:
    assert newest_common(ApiKey.FETCH, {int(ApiKey.FETCH): theirs}, limit) == expected


def test_an_api_that_is_not_advertised_is_not_asked_unless_it_is_our_own() -> None:
    own = ApiKey.EXPLAIN_RETENTION
    assert newest_common(ApiKey.FETCH, {}) is None
    assert newest_common(own, {}) == APIS[own].max_version


def encoded(message: Any, version: int, correlation_id: int = 7) -> memoryview:
    """A response to ApiVersions, whose header is never flexible."""
    parts: list[Any] = [correlation_id.to_bytes(4, "big")]
    codec(type(message), version).encode(message, parts)
    return memoryview(b"".join(parts))


def test_a_broker_that_does_not_know_the_newest_greeting_is_understood() -> None:
    key = ApiKey.API_VERSIONS
    known = [ApiVersion(api_key=0, min_version=3, max_version=8)]
    answer = ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=known)
    newest = APIS[key].max_version
    number, found = decode_response(encoded(answer, FALLBACK), key, newest)
    assert (number, found.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert versions_of(found) == {0: (3, 8)}
    number, found = decode_response(encoded(answer, newest), key, newest)
    assert versions_of(found) == {0: (3, 8)}


@pytest.mark.parametrize("version", [FALLBACK, APIS[ApiKey.API_VERSIONS].max_version])
def test_what_is_no_response_is_refused(version: int) -> None:
    with pytest.raises(DecodeError):
        decode_response(memoryview(b"\0\0\0\7HTTP"), ApiKey.API_VERSIONS, version)


def test_the_greeting_names_the_client() -> None:
    request = greeting()
    assert request.client_software_name == "ottla"
    assert request.client_software_version
