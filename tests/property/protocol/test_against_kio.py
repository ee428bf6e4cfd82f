"""Every message in every version against kio, whose classes are generated from Kafka's schemas.

One strategy draws a message twice, as ours and as kio's, field by field from both declarations;
so a field that is missing, misplaced, of another type or of another tag fails before a byte is
compared. Then: the bytes are equal, and each side reads the other's.

kio has types where the wire has numbers (error codes, durations, instants, ids); values are
drawn from what both can express.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import types
import typing
import uuid
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from ottla.protocol.apis import APIS
from ottla.protocol.compiler import codec
from ottla.protocol.decoder import MAX_ELEMENTS
from ottla.protocol.primitives import Part
from ottla.protocol.schema import Field, schema_of

NOT_IN_KIO = {("Produce", 0), ("Produce", 1), ("Produce", 2)}
"""Kafka 4 has no schema for these any more; the unit tests hold their bytes."""


def cases() -> list[Any]:
    found = []
    for api in APIS.values():
        if api.key.is_own:
            continue  # Kafka has no schema for what is ours; the codecs are those of all messages
        for version in range(api.min_version, api.max_version + 1):
            if (api.name, version) in NOT_IN_KIO:
                continue
            for kind in ("request", "response"):
                name = f"{api.name}{kind.title()}-v{version}"
                found.append(pytest.param(api.key, kind, version, id=name))
    return found


@pytest.mark.parametrize(("key", "kind", "version"), cases())
def test_bytes_and_values_agree_with_kio(key: int, kind: str, version: int) -> None:
    api = APIS[key]
    ours = api.request if kind == "request" else api.response
    load = load_request_schema if kind == "request" else load_response_schema
    theirs = load(key, version)
    ours_codec = codec(ours, version)
    write, read = entity_writer(theirs), entity_reader(theirs)

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],  # shrinking takes minutes, and a failure is legible without
        suppress_health_check=list(HealthCheck),
    )
    @given(both(ours, theirs, version))
    def agree(pair: tuple[Any, Any]) -> None:
        our_message, their_message = pair
        parts: list[Part] = []
        length = ours_codec.encode(our_message, parts)
        encoded = b"".join(parts)
        assert len(encoded) == length

        with io.BytesIO() as buffer:
            write(buffer, their_message)
            expected = buffer.getvalue()
        if encoded != expected:
            pytest.fail(first_difference(encoded, expected))

        pieces: list[Part] = []
        assert drained(ours_codec.encode_in_turns(our_message, pieces)) == length
        assert b"".join(pieces) == encoded

        decoded, end = ours_codec.decode(memoryview(b"\xff" + encoded), 1)
        if is_request(ours):
            steps = ours_codec.decode_in_turns(memoryview(b"\xff" + encoded), 1, MAX_ELEMENTS)
            assert drained(steps) == (decoded, end)
        reread = read(encoded, 0)
        # Compared out of pytest's sight: its diffs of large messages take minutes.
        same = (
            end == len(encoded) + 1,
            decoded == our_message,
            reread == (their_message, len(encoded)),
        )
        assert same == (True, True, True), f"{decoded!r:.2000} is not {our_message!r:.2000}"

    agree()


def is_request(message_class: type) -> bool:
    return schema_of(message_class).kind == "request"


def drained(steps: Generator[int, None, Any]) -> Any:
    """What a codec in turns returns when it has had them all."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def first_difference(ours: bytes, theirs: bytes) -> str:
    same = 0
    while ours[same : same + 1] == theirs[same : same + 1]:
        same += 1
    here = slice(max(same - 8, 0), same + 8)
    return f"bytes differ from {same} on: {ours[here].hex()}, kio has {theirs[here].hex()}"


# --- one value, twice ---------------------------------------------------------------------------

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
INSTANTS = st.integers(0, 1 << 41)
DURATIONS = st.integers(-(1 << 31), (1 << 31) - 1)
TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(["x" * 126, "x" * 127, "ö" * 200]))
BLOBS = st.one_of(
    st.binary(max_size=8), st.sampled_from([bytes(126), bytes(127), bytes(16383), bytes(70_000)])
)


def both(ours: type, theirs: type, version: int) -> st.SearchStrategy[tuple[Any, Any]]:
    """Draw one structure as (ours, kio's)."""
    our_fields = [f for f in schema_of(ours).fields if f.versions.includes(version)]
    their_fields = dataclasses.fields(theirs)
    assert len(our_fields) == len(their_fields), (ours, [f.name for f in their_fields])
    drawn = []
    for our_field, their_field in zip(our_fields, their_fields, strict=True):
        assert same_name(our_field.name, their_field.name)
        assert our_field.tag == their_field.metadata.get("tag")
        drawn.append(value(our_field, their_field, version))

    def build(pairs: tuple[tuple[Any, Any], ...]) -> tuple[Any, Any]:
        our_values = {f.name: pair[0] for f, pair in zip(our_fields, pairs, strict=True)}
        their_values = {f.name: pair[1] for f, pair in zip(their_fields, pairs, strict=True)}
        return ours(**our_values), theirs(**their_values)

    return st.tuples(*drawn).map(build)


def same_name(ours: str, theirs: str) -> bool:
    """kio drops the unit from a duration and an instant, which it has types for."""
    return theirs in (ours, ours.removesuffix("_ms"))


def value(field: Field, theirs: Any, version: int) -> st.SearchStrategy[tuple[Any, Any]]:
    their_type, optional = without_none(theirs.type)
    wire_type = theirs.metadata.get("kafka_type")
    nullable = field.nullable.includes(version)
    if field.type == "struct":
        assert isinstance(field.element, type)
        inner = both(field.element, their_type, version)
        if nullable:
            assert optional
            return st.one_of(st.just((None, None)), inner)
        if field.tag is not None:
            # Kafka's "default instance" is None here, whichever way it was arrived at.
            unset = their_type()
            return st.one_of(st.just((None, unset)), inner).map(
                lambda pair: (None if pair[1] == unset else pair[0], pair[1])
            )
        return inner
    if field.type == "array":
        assert typing.get_origin(their_type) is tuple
        element_type, element_optional = without_none(typing.get_args(their_type)[0])
        if isinstance(field.element, type):
            element = both(field.element, element_type, version)
        else:
            assert field.element is not None
            element = primitive(field.element, wire_type, element_optional)
        if isinstance(field.element, type):
            arrays = st.lists(element, max_size=3)
        else:
            many = element.map(lambda pair: [pair] * 200)
            arrays = st.one_of(st.lists(element, max_size=20), many)
        pairs = arrays.map(lambda drawn: ([a for a, _ in drawn], tuple(b for _, b in drawn)))
    else:
        pairs = primitive(field.type, wire_type, optional)
    if not nullable:
        return pairs
    assert optional, f"{field.name} may be null for us, not for kio"
    return st.one_of(st.just((None, None)), pairs)


def primitive(ours: str, theirs: str | None, optional: bool) -> st.SearchStrategy[tuple[Any, Any]]:
    if theirs in ("error_code", "timedelta_i32", "timedelta_i64", "datetime_i64"):
        assert ours == {"error_code": "int16", "timedelta_i32": "int32"}.get(theirs, "int64")
    else:
        assert ours == theirs
    if theirs == "error_code":
        return st.sampled_from(list(ErrorCode)).map(lambda code: (int(code), code))
    if theirs in ("timedelta_i32", "timedelta_i64"):
        return DURATIONS.map(lambda ms: (ms, datetime.timedelta(milliseconds=ms)))
    if theirs == "datetime_i64":
        instants = INSTANTS.map(lambda ms: (ms, instant(ms)))
        return st.one_of(st.just((-1, None)), instants) if optional else instants
    if ours == "uuid":
        zero = st.just((bytes(16), None if optional else uuid.UUID(int=0)))
        some = st.binary(min_size=16, max_size=16).filter(any)
        return st.one_of(zero, some.map(lambda raw: (raw, uuid.UUID(bytes=raw))))
    plain = {
        "bool": st.booleans(),
        "string": TEXTS,
        "bytes": BLOBS,
        "records": BLOBS,
        "uint16": st.integers(0, (1 << 16) - 1),
        "float64": st.floats(allow_nan=False, allow_infinity=False),
    }
    if ours in BITS:
        top = 1 << (BITS[ours] - 1)
        plain[ours] = st.one_of(st.integers(-top, top - 1), st.integers(-1, 3).map(int))
    return plain[ours].map(lambda drawn: (drawn, drawn))


def instant(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


def without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) is not types.UnionType:
        return annotation, False
    (inner,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
    return inner, True
