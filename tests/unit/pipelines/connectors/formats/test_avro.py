"""Avro: resolution between two schemas, logical types, and records with a registry's framing."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from ottla.pipelines.connectors.formats import columns, plain
from ottla.pipelines.connectors.formats.avro import BareReader
from ottla.pipelines.connectors.formats.avro_resolve import fields_read
from ottla.pipelines.connectors.formats.avro_schema import (
    AvroError,
    Field,
    Primitive,
    Record,
    parse,
    struct_of,
)
from ottla.pipelines.connectors.formats.avro_write import compile_writer, node_of, text_of
from ottla.pipelines.connectors.formats.failure import (
    MISSING,
    SCHEMA_MISMATCH,
    WRONG_TYPE,
    Undecodable,
)
from ottla.pipelines.connectors.formats.schema_text import read as ddl


def record(*fields: Any, name: str = "r", **more: Any) -> str:
    made = [
        {"name": field[0], "type": field[1]} | ({"default": field[2]} if len(field) > 2 else {})
        if isinstance(field, tuple)
        else field
        for field in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": made, **more})


def written(schema: str, value: Any) -> bytes:
    """By another implementation than ours."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


def resolved(writer: str, reader: str, value: Any) -> Any:
    return BareReader(parse(writer), parse(reader))(written(writer, value))


def kind_of(read: Callable[[], Any]) -> str:
    with pytest.raises(Undecodable) as failure:
        read()
    return failure.value.kind


PROMOTIONS = [
    ("int", "long", 5, 5),
    ("int", "double", 5, 5.0),
    ("long", "float", 5, 5.0),
    ("float", "double", 0.5, 0.5),
    ("string", "bytes", "é", "é".encode()),
    ("bytes", "string", "é".encode(), "é"),
    ("int", ["null", "long"], 5, 5),
    (["null", "int"], ["null", "long"], None, None),
    (["null", "int"], ["null", "long"], 7, 7),
    (["int", "null"], "long", 7, 7),
    (["int", "long"], ["int", "long"], 1 << 40, 1 << 40),
    (["int", "string"], ["int", "string"], "x", (None, "x")),
    (["null", "int", "string"], ["null", "int", "string"], 3, (3, None)),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [1, 2], [1, 2]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}, {"a": 1}, [("a", 1.0)]),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "string", "B", "B"),
    ({"type": "fixed", "name": "f", "size": 2}, "bytes", b"ab", b"ab"),
]


@pytest.mark.parametrize(("writer", "reader", "value", "read"), PROMOTIONS)
def test_a_value_is_promoted_as_avro_says(writer: Any, reader: Any, value: Any, read: Any) -> None:
    assert resolved(record(("f", writer)), record(("f", reader)), {"f": value}) == (read,)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("long", "int"),
        ("string", "int"),
        ("double", "float"),
        ("boolean", "int"),
        ("null", "int"),
        ({"type": "array", "items": "int"}, "int"),
        ("int", ["null", "string"]),
    ],
)
def test_what_cannot_be_read_is_refused_before_any_record(writer: Any, reader: Any) -> None:
    with pytest.raises(AvroError, match="field f"):
        BareReader(parse(record(("f", writer))), parse(record(("f", reader))))


def test_fields_are_found_by_name_and_alias_and_the_others_take_their_defaults() -> None:
    writer = record(
        ("gone", {"type": "map", "values": {"type": "array", "items": "string"}}),
        ("old", "int"),
        ("same", "string"),
        ("rest", ["null", "double"]),
    )
    reader = record(
        ("same", "string"),
        {"name": "new", "type": "long", "aliases": ["old"]},
        ("with_default", {"type": "array", "items": "int"}, [1, 2]),
        ("absent", ["null", "string"], None),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}, 5),
    )
    value = {"gone": {"a": ["x", "y"]}, "old": 9, "same": "s", "rest": 1.5}
    assert resolved(writer, reader, value) == ("s", 9, [1, 2], None, 5000)


def test_a_field_that_is_not_written_and_has_no_default_is_a_mismatch() -> None:
    with pytest.raises(AvroError, match=r"field b: .* no default"):
        BareReader(parse(record(("a", "int"))), parse(record(("a", "int"), ("b", "int"))))


ENUM = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}

DEFAULTS = [
    ("boolean", True, True),
    ("boolean", False, False),
    (["boolean", "null"], True, True),
    ("int", -5, -5),
    ("long", 1 << 62, 1 << 62),
    ("double", 1, 1.0),
    ("float", 0.5, 0.5),
    ("string", "x", "x"),
    ("bytes", "\xff", b"\xff"),
    (ENUM, "B", "B"),
    (DECIMAL, "\x05", 5),
    ({"type": "fixed", "name": "f", "size": 2}, "ab", b"ab"),
    ({"type": "map", "values": "boolean"}, {"a": True}, [("a", True)]),
    (
        {"type": "record", "name": "in", "fields": [{"name": "a", "type": "boolean"}]},
        {"a": True},
        (True,),
    ),
]


@pytest.mark.parametrize(("kind", "default", "read"), DEFAULTS)
def test_a_default_is_a_value_of_its_type(kind: Any, default: Any, read: Any) -> None:
    """Both of one record and of many at once."""
    writer, reader = parse(record(("b", "int"))), parse(record(("a", kind, default), ("b", "int")))
    schema = plain.loose(struct_of(reader))
    for count in (1, 20):
        data = pa.array([b"\x02"] * count, pa.binary())
        found = columns.decode_array(data, schema, BareReader(writer, reader))
        assert set(map(repr, plain.from_arrow(schema, found.field("value")))) == {repr((read, 1))}
    # What is written without the column has the same default.
    write = compile_writer(reader, ddl("b int not null"))
    assert repr(BareReader(reader, reader)(write((1,)))) == repr((read, 1))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("string", None),
        ("boolean", None),
        ("boolean", "false"),
        ("int", None),
        ("int", 1.5),
        ("int", True),
        ("int", 1 << 40),
        ("long", 1 << 63),
        ("double", None),
        ("string", 5),
        ("string", "\ud800"),
        ("bytes", 5),
        (ENUM, None),
        (ENUM, "C"),
        (DECIMAL, "\x7f\xff"),
        ({"type": "fixed", "name": "f", "size": 2}, "abc"),
        ({"type": "array", "items": "string"}, "abc"),
        ({"type": "map", "values": "string"}, []),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1 << 60),
    ],
)
def test_a_default_that_is_none_is_refused(kind: Any, default: Any) -> None:
    """ "None" was read where null stands as the default of a string."""
    with pytest.raises(AvroError, match=r"field a: .* is no default for"):
        BareReader(parse(record(("b", "int"))), parse(record(("a", kind, default), ("b", "int"))))


def test_a_symbol_that_the_reader_does_not_have_takes_its_default_or_fails() -> None:
    writer = record(("e", {"type": "enum", "name": "e", "symbols": ["A", "B"]}))
    other = {"type": "enum", "name": "e", "symbols": ["A", "Z"]}
    assert resolved(writer, record(("e", {**other, "default": "Z"})), {"e": "B"}) == ("Z",)
    assert resolved(writer, record(("e", other)), {"e": "A"}) == ("A",)
    assert kind_of(lambda: resolved(writer, record(("e", other)), {"e": "B"})) == SCHEMA_MISMATCH


def test_null_where_it_must_not_be_is_an_error() -> None:
    writer, reader = record(("a", ["null", "int"])), record(("a", "int"))
    assert resolved(writer, reader, {"a": 1}) == (1,)
    assert kind_of(lambda: resolved(writer, reader, {"a": None})) == MISSING


def test_a_branch_that_cannot_be_read_fails_only_its_own_records() -> None:
    writer, reader = record(("a", ["int", "string"])), record(("a", "long"))
    assert resolved(writer, reader, {"a": 5}) == (5,)
    assert kind_of(lambda: resolved(writer, reader, {"a": "x"})) == SCHEMA_MISMATCH


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


LOGICAL = [
    (logical("int", "date"), 19_000, "date", 19_000),
    (logical("long", "timestamp-millis"), 1_700_000_000_123, "timestamp", 1_700_000_000_123_000),
    (logical("long", "timestamp-micros"), 5, "timestamp", 5),
    (logical("long", "local-timestamp-millis"), 5, "timestamp_ntz", 5_000),
    (logical("long", "timestamp-nanos"), 5, "bigint", 5),
    (logical("int", "time-millis"), 5, "int", 5),
    (logical("string", "uuid"), "x", "string", "x"),
    (logical("bytes", "decimal", precision=4, scale=2), b"\x85", "decimal(4,2)", -123),
    (logical("bytes", "decimal", precision=2, scale=4), b"ab", "binary", b"ab"),
    (
        {
            "type": "fixed",
            "name": "d",
            "size": 3,
            "logicalType": "decimal",
            "precision": 6,
            "scale": 0,
        },
        b"\0\x01\0",
        "decimal(6,0)",
        256,
    ),
    (
        {"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"},
        b"x" * 12,
        "binary",
        b"x" * 12,
    ),
]


@pytest.mark.parametrize(("kind", "wire", "spark", "read"), LOGICAL)
def test_logical_types_are_sparks(kind: dict[str, Any], wire: Any, spark: str, read: Any) -> None:
    bare = {name: item for name, item in kind.items() if name != "logicalType"}
    node = parse(record(("f", kind)))
    assert struct_of(node)["f"].dataType.simpleString() == spark
    data = written(record(("f", bare)), {"f": wire})
    assert BareReader(node, node)(data) == (read,)
    assert compile_writer(node, struct_of(node))((read,)) == data


@pytest.mark.parametrize(
    ("writer", "wanted"),
    [
        (logical("long", "timestamp-nanos"), "timestamp"),
        (logical("long", "local-timestamp-nanos"), "timestamp_ntz"),
        (logical("long", "time-micros"), "timestamp"),
        (logical("int", "time-millis"), "timestamp"),
        (logical("int", "time-millis"), "date"),
        (logical("int", "date"), "timestamp"),
        ("string", "decimal(10, 2)"),
        (logical("string", "uuid"), "decimal(10, 2)"),
        (ENUM, "decimal(10, 2)"),
        ({"type": "fixed", "name": "f", "size": 16, "logicalType": "uuid"}, "decimal(38, 2)"),
        (logical("bytes", "decimal", precision=4, scale=2), "string"),
        (logical("bytes", "decimal", precision=64, scale=2), "string"),
    ],
)
def test_bytes_that_mean_something_else_are_a_mismatch(writer: Any, wanted: str) -> None:
    """Nanoseconds were read as microseconds, and the letters of "12.5" as 8253722.13."""
    with pytest.raises(AvroError, match=r"field f: .* cannot be read as"):
        BareReader(parse(record(("f", writer))), node_of(ddl(f"f {wanted} not null"), "r"))


def test_the_scale_of_a_decimal_with_more_digits_than_spark_has_is_heeded() -> None:
    """Kafka Connect's Avro writes 64 digits wherever the database does not say how many."""
    reader = node_of(ddl("d decimal(10, 4) not null"), "r")
    for kind in ({"type": "bytes"}, {"type": "fixed", "name": "d", "size": 27}):
        writer = parse(
            record(("d", kind | {"logicalType": "decimal", "precision": 64, "scale": 2}))
        )
        assert struct_of(writer) == ddl("d binary not null")
        data = written(record(("d", kind)), {"d": (1250).to_bytes(27, "big")})
        assert BareReader(writer, reader)(data) == (125_000,)
        found = columns.decode_array(
            pa.array([data] * 20, pa.binary()),
            plain.loose(struct_of(reader)),
            BareReader(writer, reader),
        )
        assert set(plain.from_arrow(struct_of(reader), found.field("value"))) == {(125_000,)}


def test_logical_types_that_spark_does_not_have_stay_in_the_schema() -> None:
    """Whoever else reads what is written finds them in the registry."""
    kinds: list[Any] = [
        logical("string", "uuid"),
        logical("int", "time-millis"),
        logical("long", "timestamp-nanos"),
        logical("bytes", "decimal", precision=64, scale=2),
        {"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"},
    ]
    text = record(*((f"f{number}", kind) for number, kind in enumerate(kinds)))
    assert json.loads(text_of(parse(text))) == json.loads(text)


def test_no_digit_is_lost_and_no_time_wraps() -> None:
    fine = record(("d", logical("bytes", "decimal", precision=6, scale=4)))
    coarse = record(("d", logical("bytes", "decimal", precision=4, scale=2)))
    read = BareReader(parse(fine), parse(coarse))
    raw = record(("d", "bytes"))
    assert read(written(raw, {"d": (12_300).to_bytes(3, "big")})) == (123,)
    assert kind_of(lambda: read(written(raw, {"d": (12_301).to_bytes(3, "big")}))) == WRONG_TYPE
    assert kind_of(lambda: read(written(raw, {"d": (10**6).to_bytes(4, "big")}))) == WRONG_TYPE
    at = parse(record(("t", logical("long", "timestamp-millis"))))
    data = written(record(("t", "long")), {"t": (1 << 63) - 1})
    assert kind_of(lambda: BareReader(at, at)(data)) == WRONG_TYPE


def test_narrow_integers_are_checked() -> None:
    schema = ddl("a tinyint, b smallint")
    node = node_of(schema, "r")
    read = BareReader(node, node)
    wide = record(("a", ["null", "int"]), ("b", ["null", "int"]))
    assert read(written(wide, {"a": 127, "b": -32768})) == (127, -32768)
    assert kind_of(lambda: read(written(wide, {"a": 128, "b": 0}))) == WRONG_TYPE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ('{"type": "record", "name": "r"}', "list of fields"),
        ('{"type": "record", "name": "1", "fields": []}', "no name"),
        ('"nonsense"', "no type"),
        ('["int", "int"]', "two types"),
        ('{"type": "enum", "name": "e", "symbols": []}', "symbols"),
        ('{"type": "fixed", "name": "f", "size": -1}', "size"),
        (record(("a", "r")), "contains itself"),
        (record(("a", "int"), ("a", "int")), "two fields"),
        (record((True, "int")), "field of r has no name"),
        (record(("a", "int"), aliases=5), "aliases of r"),
        (record(("a", "int"), aliases=[5]), "aliases of r"),
        (record({"name": "a", "type": "int", "aliases": "b"}), "aliases of a"),
        ('{"type": "enum", "name": "e", "symbols": 5}', "symbols of e"),
        ('{"type": "enum", "name": "e", "symbols": "AB"}', "symbols of e"),
        (r'{"type": "enum", "name": "e", "symbols": ["\ud800"]}', "symbols of e"),
        ('{"type": ' * 100 + '"int"' + "}" * 100, "deeply"),
    ],
)
def test_what_is_no_schema_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(AvroError, match=says):
        struct_of(parse(text))


def nested_by_name(count: int, *fields: str) -> str:
    """Records that hold those before them, so flat that no text is nested."""
    made: list[Any] = [("f", {"type": "record", "name": "R0", "fields": []})]
    for number in range(1, count):
        inner = [{"name": name, "type": f"R{number - 1}"} for name in fields]
        made.append((f"f{number}", {"type": "record", "name": f"R{number}", "fields": inner}))
    return record(*made)


@pytest.mark.parametrize(
    "text", [nested_by_name(400, "a"), nested_by_name(5_000, "a"), nested_by_name(60, "a", "b")]
)
def test_a_schema_that_grows_by_its_names_is_refused_at_once(text: str) -> None:
    """The first took minutes and ended in a RecursionError, the last would take for ever."""
    with pytest.raises(AvroError, match=r"too deeply|too large"):
        parse(text)


def test_types_may_be_used_by_their_names_often() -> None:
    text = nested_by_name(10, "a", "b")
    assert len(struct_of(parse(text)).fields) == 10


def test_a_record_of_thousands_of_fields_is_resolved_in_its_time() -> None:
    """Each field was looked for in all others: 15,000 of them took two minutes."""
    fields = tuple(Field(f"f{number}", Primitive("int")) for number in range(20_000))
    node = Record("r", fields)
    began = time.process_time()
    assert len(fields_read(node, node)) == 20_000
    assert time.process_time() - began < 5


def test_the_digits_of_a_large_fixed_take_no_memory() -> None:
    text = logical("fixed", "decimal", precision=9) | {"name": "f", "size": (1 << 31) - 1}
    tracemalloc.start()
    try:
        parse(json.dumps(text))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_name_in_a_schema_never_becomes_code() -> None:
    """Names, symbols and defaults come from a registry that others write to."""
    evil = '"); import os; os._exit(1); ("'
    writer = record(("s", {"type": "enum", "name": "e", "symbols": [evil]}), ("d", "string", evil))
    node = parse(writer)
    assert BareReader(node, node)(b"\0\x02x") == (evil, "x")


def test_rows_are_written_with_a_schema_that_was_given() -> None:
    given = record(
        ("id", "int"),
        ("size", {"type": "enum", "name": "e", "symbols": ["S", "M"]}),
        ("extra", "string", "none"),
    )
    write = compile_writer(parse(given), ddl("size string, id smallint"))
    read = BareReader(parse(given), parse(given))
    assert read(write(("M", 7))) == (7, "M", "none")
    with pytest.raises(ValueError, match="no symbol"):
        write(("XL", 7))
    with pytest.raises(ValueError, match="column id is null"):
        write(("M", None))
    with pytest.raises(AvroError, match="no place for weight"):
        compile_writer(parse(given), ddl("size string, id int, weight double"))
    with pytest.raises(AvroError, match="column id is bigint"):
        compile_writer(parse(given), ddl("size string, id bigint"))
    with pytest.raises(AvroError, match="no column size"):
        compile_writer(parse(given), ddl("id int"))


def test_a_column_whose_name_avro_does_not_allow_is_refused() -> None:
    with pytest.raises(AvroError, match="select … as …"):
        node_of(ddl("`a b` int"), "r")


def test_a_schema_as_text_is_read_back() -> None:
    text = record(
        ("e", {"type": "enum", "name": "n.e", "symbols": ["A"], "default": "A"}),
        ("again", "n.e"),
        ("d", logical("bytes", "decimal", precision=4, scale=2), "\x01"),
        {"name": "x", "type": {"type": "fixed", "name": "f", "size": 2}, "aliases": ["y"]},
        aliases=["old"],
    )
    assert parse(text_of(parse(text))) == parse(text)
