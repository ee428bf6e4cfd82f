from __future__ import annotations

from typing import Any

import pytest

from ottla.client.serializers import BYTES, JSON, STRING, decoder, encoder


def test_without_a_serializer_bytes_pass_and_text_becomes_utf8() -> None:
    encode = encoder("value", None)
    assert encode(b"\xff") == b"\xff"
    assert encode("ä") == b"\xc3\xa4"
    assert encode(bytearray(b"ab")) == b"ab"
    assert encode(memoryview(b"ab")) == b"ab"


@pytest.mark.parametrize("value", [1, 1.5, {"a": 1}, ["x"], True])
def test_without_a_serializer_everything_else_is_refused_with_what_to_do(value: Any) -> None:
    with pytest.raises(TypeError, match=r"a value is bytes or str.*Producer\(value=ottla.JSON\)"):
        encoder("value", None)(value)


def test_json_is_compact_utf8_and_comes_back() -> None:
    assert JSON.encode({"ä": [1, None]}) == '{"ä":[1,null]}'.encode()
    assert JSON.decode(JSON.encode({"a": [1, None, "ü"]})) == {"a": [1, None, "ü"]}


def test_strings_and_bytes_come_back() -> None:
    assert STRING.decode(STRING.encode("grüß")) == "grüß"
    assert BYTES.decode(BYTES.encode(b"\x00\xff")) == b"\x00\xff"


def test_a_serde_refuses_what_is_not_its_kind() -> None:
    with pytest.raises(TypeError, match="STRING takes str, not bytes"):
        STRING.encode(b"x")
    with pytest.raises(TypeError, match="BYTES takes bytes, not str"):
        BYTES.encode("x")


def test_a_function_takes_the_place_of_a_serde() -> None:
    assert encoder("key", lambda number: str(number).encode())(7) == b"7"
    decode = decoder("key", int)
    assert decode is not None
    assert decode(b"7") == 7


def test_bytes_are_not_decoded_at_all() -> None:
    assert decoder("value", None) is None
    assert decoder("value", BYTES) is None


@pytest.mark.parametrize("make", [encoder, decoder])
def test_a_name_is_not_a_serializer(make: Any) -> None:
    with pytest.raises(TypeError, match=r"key= takes a Serde .*not 'json'"):
        make("key", "json")
