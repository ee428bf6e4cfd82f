"""From a declared message and a version to the pair of functions that read and write it.

    produce = codec(ProduceRequest, 9)
    request, end = produce.decode(view, header.body_position)
    length = produce.encode(request, parts)

Each of its functions is generated, compiled and kept when it is first asked for: a broker never
decodes a response, and most versions are never spoken.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.protocol.decoder import FEW_ELEMENTS, compile_decoder
from ottla.protocol.encoder import compile_encoder
from ottla.protocol.primitives import Part
from ottla.protocol.schema import schema_of

M = TypeVar("M")


class Codec(Generic[M]):
    """How one version of one message is read and written.

    decode  (buffer, position) -> (message, end position); DecodeError. The buffer is a view of
            single bytes. Bytes after the message are left alone, as Kafka leaves them.
    encode  (message, parts) -> length; appends to `parts`, and leaves them as they were when
            it raises EncodeError.

    `decode_in_turns` and `encode_in_turns` are the same as generators, which yield now and then,
    so that others get their turn, and return the result; the former is also told how many elements
    there may be. `decode_few` is for a request of few
    elements; for one of many it raises TooManyElements, and that soon.
    """

    __slots__ = (
        "decode", "decode_few", "decode_in_turns", "encode", "encode_in_turns", "message_class",
        "version",
    )  # fmt: skip

    decode: Callable[[memoryview, int], tuple[M, int]]
    encode: Callable[[M, list[Part]], int]
    decode_few: Callable[[memoryview, int], tuple[M, int]]
    decode_in_turns: Callable[[memoryview, int, int], Generator[int, None, tuple[M, int]]]
    encode_in_turns: Callable[[M, list[Part]], Generator[int, None, int]]

    def __init__(self, message_class: type[M], version: int) -> None:
        self.message_class = message_class
        self.version = version

    if not TYPE_CHECKING:  # a checker would take it to mean that every name exists

        def __getattr__(self, name: str) -> Any:
            """Compile a half; reached once each, while its slot is still empty."""
            if name == "decode":
                self.decode = compile_decoder(self.message_class, self.version)
                return self.decode
            if name == "encode":
                self.encode = compile_encoder(self.message_class, self.version)
                return self.encode
            if name == "decode_few":
                made = compile_decoder(self.message_class, self.version, room=FEW_ELEMENTS)
                self.decode_few = made
                return made
            if name == "decode_in_turns":
                made = compile_decoder(self.message_class, self.version, in_turns=True)
                self.decode_in_turns = made
                return made
            if name == "encode_in_turns":
                made = compile_encoder(self.message_class, self.version, in_turns=True)
                self.encode_in_turns = made
                return made
            raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<Codec {self.message_class.__name__} v{self.version}>"


_codecs: dict[tuple[type, int], Codec[Any]] = {}


def codec(message_class: type[M], version: int) -> Codec[M]:
    """The codec of one version; always the same object. ValueError for a version it lacks."""
    found = _codecs.get((message_class, version))
    if found is None:
        schema = schema_of(message_class)
        if not schema.versions.includes(version):
            raise ValueError(f"{schema.name} has no version {version}")
        found = _codecs[message_class, version] = Codec(message_class, version)
    return found
