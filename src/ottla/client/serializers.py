"""Keys and values as bytes, and back.

A `Serde` holds both directions, so a producer and a consumer are given the same one. In its
place any function will do: object to bytes for a producer, bytes to object for a consumer.

Without one a producer passes bytes on, encodes str as UTF-8 and refuses everything else: a
number silently written as its decimal digits is found out months later by whoever reads it.
A consumer without one gives bytes. None is always Kafka's null and never meets a serializer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """How values of one kind are written and read."""

    name: str
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


Serializer = Serde[T] | Callable[[T], bytes | None]
Deserializer = Serde[T] | Callable[[bytes], T]


def _encode_bytes(data: bytes) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"BYTES takes bytes, not {type(data).__name__}")


def _encode_string(text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"STRING takes str, not {type(text).__name__}")
    return text.encode()


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _decode_bytes(data: bytes) -> bytes:
    return data


def _decode_string(data: bytes) -> str:
    return data.decode()


def _decode_json(data: bytes) -> Any:
    return json.loads(data)


BYTES: Serde[bytes] = Serde("bytes", _encode_bytes, _decode_bytes)
STRING: Serde[str] = Serde("string", _encode_string, _decode_string)
JSON: Serde[Any] = Serde("json", _encode_json, _decode_json)


def encoder(part: str, given: Serializer[Any] | None) -> Callable[[Any], bytes | None]:
    """The function a producer calls for its keys or values (`part` says which)."""
    if given is None:

        def default(data: Any) -> bytes | None:
            if isinstance(data, bytes):
                return data
            if isinstance(data, str):
                return data.encode()
            if isinstance(data, bytearray | memoryview):
                return bytes(data)
            raise TypeError(
                f"a {part} is bytes or str unless the producer has a serializer, not "
                f"{type(data).__name__}; give Producer({part}=ottla.JSON) or a function to bytes"
            )

        return default
    if isinstance(given, Serde):
        return given.encode
    if callable(given):
        return given
    raise TypeError(
        f"{part}= takes a Serde (ottla.BYTES, ottla.STRING, ottla.JSON) or a function to bytes, "
        f"not {given!r}"
    )


def decoder(part: str, given: Deserializer[Any] | None) -> Callable[[bytes], Any] | None:
    """The function a consumer calls for its keys or values; None where bytes stay bytes."""
    if given is None or given is BYTES:
        return None
    if isinstance(given, Serde):
        return given.decode
    if callable(given):
        return given
    raise TypeError(
        f"{part}= takes a Serde (ottla.BYTES, ottla.STRING, ottla.JSON) or a function from bytes, "
        f"not {given!r}"
    )
