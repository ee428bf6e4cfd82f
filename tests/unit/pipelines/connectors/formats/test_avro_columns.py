"""Many Avro records at once: the same values as one by one, and no other rows left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from tests.unit.pipelines.connectors.formats.test_avro import record
from tests.unit.pipelines.connectors.formats.test_round_trips import SIMPLE, rows_of, structs

from ottla.pipelines.connectors.formats import avro_columns, columns, plain
from ottla.pipelines.connectors.formats.avro import BareReader
from ottla.pipelines.connectors.formats.avro_columns import compile_columns, values_of
from ottla.pipelines.connectors.formats.avro_read import compile_reader
from ottla.pipelines.connectors.formats.avro_schema import Node, parse, struct_of
from ottla.pipelines.connectors.formats.avro_write import compile_writer, node_of
from ottla.pipelines.connectors.formats.failure import Undecodable

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NESTED = structs(SIMPLE | structs(SIMPLE))


def one_by_one(writer: Node, reader: Node, data: list[bytes]) -> dict[int, Any]:
    """The rows that can be read, by their numbers."""
    read = compile_reader(writer, reader)
    found = {}
    for number, each in enumerate(data):
        try:
            found[number] = read(each, 0)
        except Undecodable:
            continue
    return found


def at_once(writer: Node, reader: Node, data: list[bytes]) -> dict[int, Any]:
    read = compile_columns(writer, reader)
    assert read is not None
    found = read(values_of(pa.array(data, pa.binary())))
    schema = plain.loose(struct_of(reader))
    assert found.array.type == plain.arrow_type(schema)
    found.array.validate(full=True)
    rows = plain.from_arrow(schema, found.array)
    return dict(zip(found.rows.tolist(), rows, strict=True))


@QUICK
@given(rows_of(NESTED), st.data())
def test_many_are_read_as_each_alone(case: tuple[t.StructType, list[Any]], more: Any) -> None:
    schema, rows = case
    node = node_of(schema, "row")
    written = [compile_writer(node, schema)(row) for row in rows]
    noise = more.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
    cut = [each[: more.draw(st.integers(0, len(each)))] for each in written]
    flipped = [_flip(each, more.draw(st.integers(0, 1 << 30))) for each in written]
    data = more.draw(st.permutations([*written, *noise, *cut, *flipped]))
    alone = one_by_one(node, node, data)
    assert _comparable(at_once(node, node, data)) == _comparable(alone)


def _flip(data: bytes, where: int) -> bytes:
    if not data:
        return data
    place, bit = where // 8 % len(data), where % 8
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def _comparable(found: dict[int, Any]) -> dict[int, str]:
    """With numbers that are none equal to each other."""
    return {number: repr(row) for number, row in found.items()}


NUMBERS = [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 1 << 20, 1 << 27, 1 << 34, 1 << 41, 1 << 48]
NUMBERS += [1 << 55, -(1 << 55), (1 << 55) - 1, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63)]


def test_numbers_of_every_length_are_read() -> None:
    schema = t.StructType([t.StructField("n", t.LongType(), False)])
    node = node_of(schema, "row")
    write = compile_writer(node, schema)
    data = [write((number,)) for number in NUMBERS]
    assert {len(each) for each in data} == set(range(1, 11))
    assert at_once(node, node, data) == {n: (number,) for n, number in enumerate(NUMBERS)}


@pytest.mark.parametrize(
    ("name", "data"),
    {
        "long": b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
        "int": b"\x80\x80\x80\x80\x10",
        "boolean": b"\x02",
        "string": b"\x04\xff\xff",
        "bytes": b"\x03abc",
    }.items(),
)
def test_what_a_type_has_no_room_for_is_left_out(name: str, data: bytes) -> None:
    node = parse(record(("a", name)))
    good = {"string": b"\x02x", "bytes": b"\x02x"}.get(name, b"\x00")
    assert one_by_one(node, node, [good, data, good]).keys() == {0, 2}
    assert at_once(node, node, [good, data, good]).keys() == {0, 2}


TIME = {"type": "long", "logicalType": "timestamp-millis"}
EXACT = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
COARSE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
SYMBOLS = {"type": "enum", "name": "e", "symbols": ["A", "B", "C"]}
FEWER = {"type": "enum", "name": "e", "symbols": ["A", "B"], "default": "A"}
FEWEST = {"type": "enum", "name": "e", "symbols": ["A"]}
INNER = {"type": "record", "name": "i", "fields": [{"name": "x", "type": ["null", "int"]}]}
PAIRS = [
    (record(("a", "int"), ("b", "string"), ("c", "int")), record(("c", "long"))),
    (record(("a", "int")), record(("a", "double"), ("b", ["null", "string"], None))),
    (record(("a", "int")), record(("b", "int", 7), ("a", "float"))),
    (record(("a", "int")), record({"name": "b", "type": "long", "aliases": ["a"]})),
    (record(("a", TIME)), record(("a", TIME))),
    (record(("a", EXACT)), record(("a", COARSE))),
    (record(("a", COARSE)), record(("a", EXACT))),
    (record(("a", SYMBOLS)), record(("a", FEWER))),
    (record(("a", SYMBOLS)), record(("a", FEWEST))),
    (record(("a", SYMBOLS)), record(("a", "bytes"))),
    (record(("a", ["int", "long"])), record(("a", ["int", "long"]))),
    (record(("a", ["null", "string"])), record(("a", "string"))),
    (record(("a", ["string", "null"])), record(("a", ["null", "bytes"]))),
    (record(("a", ["null", INNER])), record(("a", ["null", INNER]))),
    (record(("a", ["null", INNER]), ("b", SYMBOLS)), record(("b", "string"))),
    (
        record(("a", "int"), ("b", {"type": "fixed", "name": "f", "size": 3})),
        record(("b", "bytes")),
    ),
    (record(("a", "float"), ("b", "boolean"), ("c", "bytes")), record(("c", "string"))),
    (record(("a", "float"), ("b", "double")), record(("b", "double"), ("a", "double"))),
    ('"long"', '"double"'),
]


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
@settings(max_examples=20, deadline=None)
@given(
    data=st.lists(st.lists(st.integers(0, 255), max_size=12).map(bytes), min_size=1, max_size=40)
)
def test_schemas_are_resolved_alike(writer: str, reader: str, data: list[bytes]) -> None:
    pair = parse(writer), parse(reader)
    short = [bytes(byte % 8 for byte in each) for each in data]
    alone = {
        n: row if isinstance(row, tuple) else (row,)
        for n, row in one_by_one(*pair, data + short).items()
    }
    assert _comparable(at_once(*pair, data + short)) == _comparable(alone)


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        ["int", "string"],
    ],
)
def test_what_has_no_fixed_steps_is_read_one_by_one(kind: Any) -> None:
    node = parse(record(("a", kind)))
    assert compile_columns(node, node) is None
    other = parse(record(("b", "int", 1)))
    skipped = compile_columns(node, other)
    assert (skipped is None) == (not isinstance(kind, list))


def test_the_rows_that_are_left_are_read_one_by_one_in_their_places() -> None:
    node = parse(record(("a", "string")))
    schema = plain.loose(struct_of(node))
    read = BareReader(node, node)
    good = [b"\x02" + bytes([97 + n]) for n in range(26)]
    data = [*good, None, b"\x04a", b"\x02\xff", *good, b""]
    found = columns.decode_array(pa.array(data, pa.binary()), schema, read).to_pylist()
    letters = [chr(97 + n) for n in range(26)]
    values = [row["value"] and row["value"]["a"] for row in found]
    assert values == [*letters, None, None, None, *letters, None]
    failed = [number for number, row in enumerate(found) if row["error"]]
    assert failed == [27, 28, 55]
    sliced = columns.decode_array(pa.array(data, pa.binary()).slice(20, 30), schema, read)
    assert sliced.to_pylist() == found[20:50]


def test_many_rows_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    node = parse(record(("a", "string")))
    read = BareReader(node, node)
    monkeypatch.setattr(read, "_read", None)
    data = pa.array([b"\x02x"] * avro_columns._FEW, pa.binary())
    found = columns.decode_array(data, plain.loose(struct_of(node)), read)
    assert found.field("value").field("a").to_pylist() == ["x"] * avro_columns._FEW
    assert np.array_equal(read.many(data)[0].rows, np.arange(avro_columns._FEW))
