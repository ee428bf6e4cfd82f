"""Request and response headers, and how little it takes to read the head of a strange request."""

from __future__ import annotations

import random
import struct

import pytest

from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.header import (
    RequestHeader,
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)
from ottla.protocol.primitives import DecodeError, EncodeError

FETCH = ApiKey.FETCH
API_VERSIONS = ApiKey.API_VERSIONS


def test_a_classic_request_has_header_1() -> None:
    frame = memoryview(bytes.fromhex("0001 000b 0000002a 0003 616263 ffff"))

    assert parse_request_header(frame) == RequestHeader(1, 11, 42, "abc", 13)


def test_a_flexible_request_has_header_2_with_a_classic_client_id() -> None:
    frame = memoryview(bytes.fromhex("0001 000c 0000002a 0003 616263 00 ffff"))

    assert parse_request_header(frame) == RequestHeader(1, 12, 42, "abc", 14)


def test_a_null_client_id_is_none_and_an_empty_one_is_empty() -> None:
    null = parse_request_header(memoryview(bytes.fromhex("0001 000b 0000002a ffff")))
    empty = parse_request_header(memoryview(bytes.fromhex("0001 000b 0000002a 0000")))

    assert (null.client_id, empty.client_id) == (None, "")
    assert null.body_position == empty.body_position == 10


def test_tagged_fields_of_a_header_are_skipped() -> None:
    frame = memoryview(bytes.fromhex("0001 000c 0000002a 0000 02 0002abcd 0701ee 99"))

    assert parse_request_header(frame).body_position == len(frame) - 1


@pytest.mark.parametrize("key", list(APIS))
def test_our_own_requests_read_back_in_every_version(key: ApiKey) -> None:
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        for client_id in (None, "", "klient ö"):
            head = request_header(key, version, -7, client_id)
            parsed = parse_request_header(memoryview(head + b"body"))

            assert parsed == (key, version, -7, client_id, len(head))


def test_an_unknown_key_is_reported_with_its_client_id() -> None:
    frame = memoryview(bytes.fromhex("03e7 0002 00000009 0003 616263 00 1234"))

    assert parse_request_header(frame) == RequestHeader(999, 2, 9, "abc", len(frame))


@pytest.mark.parametrize("rest", ["", "00", "7fff 61", "0002 c328"])
def test_an_unknown_key_without_readable_client_id_is_reported_all_the_same(rest: str) -> None:
    frame = memoryview(bytes.fromhex("03e7 0002 00000009" + rest))

    assert parse_request_header(frame) == RequestHeader(999, 2, 9, None, len(frame))


@pytest.mark.parametrize("rest", ["", "0003 616263 00 00", "0003 616263 ff", "7000 61", "0001 ff"])
def test_an_api_versions_request_from_the_future_is_always_readable(rest: str) -> None:
    frame = memoryview(bytes.fromhex("0012 0063 00000005" + rest))

    header = parse_request_header(frame)

    assert header[:3] == (18, 99, 5)
    assert header.body_position == len(frame)


def test_a_known_api_above_its_maximum_is_still_read_as_flexible() -> None:
    frame = memoryview(bytes.fromhex("0001 0063 00000005 0001 61 00 77"))

    assert parse_request_header(frame) == RequestHeader(1, 99, 5, "a", 12)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "0001",
        "0001 000b 0000",
        "0001 000b 0000002a",
        "0001 000b 0000002a 00",
        "0001 000b 0000002a 0003 6162",
        "0001 000b 0000002a 7fff",
        "0001 000b 0000002a 0002 c328",
        "0001 000c 0000002a 0000",
        "0001 000c 0000002a 0000 01",
        "0001 000c 0000002a 0000 01 00 ffffffff0f",
        "0001 000c 0000002a 0000 ffffffffffffff",
    ],
)
def test_what_is_no_request_is_a_decode_error(frame: str) -> None:
    with pytest.raises(DecodeError):
        parse_request_header(memoryview(bytes.fromhex(frame)))


def test_random_bytes_never_raise_anything_else() -> None:
    rng = random.Random(20)
    refused = 0
    for _ in range(20_000):
        prefix = struct.pack(">hh", rng.randrange(-1, 95), rng.randrange(-2, 20))
        frame = memoryview((prefix + rng.randbytes(rng.randrange(20)))[rng.choice((0, 0, 1)) :])
        try:
            header = parse_request_header(frame)
        except DecodeError:
            refused += 1
        else:
            assert header.body_position <= len(frame)
    assert 0 < refused < 20_000


def test_responses_have_header_1_from_the_flexible_version_on() -> None:
    assert response_header(FETCH, 11, 42) == bytes.fromhex("0000002a")
    assert response_header(FETCH, 12, 42) == bytes.fromhex("0000002a 00")


def test_an_api_versions_response_has_the_old_header_in_every_version() -> None:
    assert {response_header(API_VERSIONS, version, 42) for version in range(6)} == {b"\0\0\0\x2a"}


def test_offset_delete_never_became_flexible() -> None:
    assert response_header(ApiKey.OFFSET_DELETE, 0, 1) == b"\0\0\0\1"
    assert request_header(ApiKey.OFFSET_DELETE, 0, 1, None)[-2:] == b"\xff\xff"


@pytest.mark.parametrize("key", list(APIS))
def test_response_headers_read_back(key: ApiKey) -> None:
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        head = response_header(key, version, -3)

        assert parse_response_header(memoryview(head + b"b"), key, version) == (-3, len(head))


@pytest.mark.parametrize("frame", ["", "000000", "0000002a", "0000002a 01"])
def test_a_response_cut_inside_its_header_is_a_decode_error(frame: str) -> None:
    with pytest.raises(DecodeError):
        parse_response_header(memoryview(bytes.fromhex(frame)), FETCH, 12)


def test_a_client_id_too_long_for_its_length_field_is_refused() -> None:
    with pytest.raises(EncodeError):
        request_header(FETCH, 12, 1, "x" * 32768)
