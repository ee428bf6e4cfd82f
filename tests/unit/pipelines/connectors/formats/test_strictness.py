"""What Spark's own functions make nulls of, or change without a word, is an error that says why."""

from __future__ import annotations

import base64
import re
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import columns, csv, json_envelope, json_values, plain
from ottla.pipelines.connectors.formats.failure import (
    DAMAGED,
    MISSING,
    NEW_FIELDS,
    SCHEMA_CHANGED,
    SCHEMA_MISMATCH,
    WRONG_TYPE,
    Undecodable,
)
from ottla.pipelines.connectors.formats.json import grown_by
from ottla.pipelines.connectors.formats.schema_text import read as ddl

SCHEMA = ddl(
    "id bigint not null, small tinyint, price decimal(6, 2), ratio double, single float, "
    "ok boolean, name string, day date, at timestamp, local timestamp_ntz, data binary, "
    "tags array<int>, inner struct<a: int, b: string>, more map<string, int>"
)


def failure(text: str | bytes, schema: t.StructType = SCHEMA, new: str | None = NEW_FIELDS) -> str:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(Undecodable) as found:
        json_values.compile_row(schema, new)(data)
    return f"{found.value.kind}: {found.value}"


WRONG = [
    # No JSON, or more than one of it.
    ("", DAMAGED, "empty"),
    ("{", DAMAGED, "character 1"),
    ('{"id": 1', DAMAGED, "no JSON"),
    ('{"id": 1} x', DAMAGED, "Extra data"),
    ('{"id": 1}{"id": 2}', DAMAGED, "Extra data"),
    ('{"id": NaN}', DAMAGED, "NaN"),
    ('{"id": -Infinity}', DAMAGED, "Infinity"),
    ("{'id': 1}", DAMAGED, "no JSON"),
    ('{"id": 01}', DAMAGED, "no JSON"),
    ('{"id": 1, "name": "a\nb"}', DAMAGED, "control character"),
    (b'{"id": 1, "name": "\xff"}', DAMAGED, "no UTF-8 at byte 19"),
    (b"\xef\xbb\xbf{}", DAMAGED, "no JSON"),
    ('{"id": 1, "id": 2}', DAMAGED, "'id' is there twice"),
    ('{"id": 1, "inner": {"a": 1, "a": 1}}', DAMAGED, "'a' is there twice"),
    # No object.
    ("null", WRONG_TYPE, "null instead of an object"),
    ("5", WRONG_TYPE, "instead of an object"),
    ('[{"id": 1}]', WRONG_TYPE, "an array instead of an object"),
    ('"text"', WRONG_TYPE, "a text instead of an object"),
    # No row of nulls.
    ("{}", MISSING, "field id"),
    ('{"id": null}', MISSING, "field id"),
    # The wrong type.
    ('{"id": "1"}', WRONG_TYPE, "field id: '1' is no integer"),
    ('{"id": 1.0}', WRONG_TYPE, "field id"),
    ('{"id": 1e2}', WRONG_TYPE, "field id"),
    ('{"id": true}', WRONG_TYPE, "field id: true is no integer"),
    ('{"id": 9223372036854775808}', WRONG_TYPE, "64 bits"),
    ('{"id": 1, "small": 128}', WRONG_TYPE, "8 bits"),
    ('{"id": 1, "price": 1.234}', WRONG_TYPE, "behind the point"),
    ('{"id": 1, "price": 12345.00}', WRONG_TYPE, "decimal(6, 2)"),
    ('{"id": 1, "price": 1e999}', WRONG_TYPE, "field price"),
    ('{"id": 1, "price": "x"}', WRONG_TYPE, "no decimal"),
    ('{"id": 1, "price": true}', WRONG_TYPE, "no decimal"),
    ('{"id": 1, "ratio": 1e400}', WRONG_TYPE, "field ratio"),
    ('{"id": 1, "ratio": "1.5"}', WRONG_TYPE, "no number"),
    ('{"id": 1, "single": 1e39}', WRONG_TYPE, "too large"),
    ('{"id": 1, "ok": 1}', WRONG_TYPE, "neither true nor false"),
    ('{"id": 1, "ok": "true"}', WRONG_TYPE, "neither true nor false"),
    ('{"id": 1, "name": 5}', WRONG_TYPE, "no text"),
    ('{"id": 1, "name": {"a": 1}}', WRONG_TYPE, "no text"),
    ('{"id": 1, "day": "2026-02-30"}', WRONG_TYPE, "no date"),
    ('{"id": 1, "day": "2026-1-1"}', WRONG_TYPE, "no date"),
    ('{"id": 1, "day": 20000}', WRONG_TYPE, "no text"),
    ('{"id": 1, "at": "yesterday"}', WRONG_TYPE, "no time"),
    ('{"id": 1, "at": "2026-01-01T25:00:00Z"}', WRONG_TYPE, "no time"),
    ('{"id": 1, "at": 1700000000000}', WRONG_TYPE, "no text"),
    ('{"id": 1, "local": "2026-01-01T00:00:00Z"}', WRONG_TYPE, "without an offset"),
    ('{"id": 1, "data": "%%%"}', WRONG_TYPE, "no base64"),
    ('{"id": 1, "tags": [1, "2"]}', WRONG_TYPE, "field tags[]"),
    ('{"id": 1, "tags": {"a": 1}}', WRONG_TYPE, "no array"),
    ('{"id": 1, "inner": {"a": "x"}}', WRONG_TYPE, "field inner.a"),
    ('{"id": 1, "inner": []}', WRONG_TYPE, "no object"),
    ('{"id": 1, "more": {"a": 1.5}}', WRONG_TYPE, "field more[]"),
    # Fields that the schema does not have.
    ('{"id": 1, "new": 5}', NEW_FIELDS, "new"),
    ('{"id": 1, "inner": {"c": 5}}', NEW_FIELDS, "inner.c"),
]


@pytest.mark.parametrize(("text", "kind", "says"), WRONG)
def test_json_that_is_wrong_is_an_error(text: str | bytes, kind: str, says: str) -> None:
    said = failure(text)
    assert said.startswith(f"{kind}: ")
    assert says in said


def test_json_that_is_right_keeps_every_value() -> None:
    schema = ddl(
        "i bigint, d decimal(38, 10), x double, f float, at timestamp, local timestamp_ntz, "
        "day date, b binary, tags array<string>, inner struct<a: int>, more map<string, int>"
    )
    row = json_values.compile_row(schema)(
        b'{"i": -9223372036854775808, "d": 12345678901234567890.0123456789, "x": 5, "f": "NaN",'
        b'"at": "2026-03-01T13:00:00.5+01:00", "local": "2026-03-01T12:00:00", "day": "1969-12-31",'
        b'"b": "AP8=", "tags": ["a", null], "inner": {}, "more": {"k": 1}, "unknown": null}'
    )
    assert row[:3] == (-(1 << 63), 123456789012345678900123456789, 5.0)
    assert row[3] != row[3]
    noon = 1_772_366_400_000_000
    assert row[4:] == (
        noon + 500_000, noon, -1, b"\0\xff", ["a", None], (None,), [("k", 1)]
    )  # fmt: skip


def test_an_object_with_none_of_the_fields_is_no_row_of_nulls() -> None:
    schema = ddl("a int, b string")
    read = json_values.compile_row(schema)
    assert read(b'{"a": null}') == (None, None)
    assert failure("{}", schema).startswith(MISSING)
    assert failure('{"c": null}', schema).startswith(MISSING)


def test_a_new_field_does_what_evolution_says() -> None:
    schema = ddl("a int")
    assert failure('{"a": 1, "b": 2}', schema, SCHEMA_CHANGED).startswith(SCHEMA_CHANGED)
    assert json_values.compile_row(schema, None)(b'{"a": 1, "b": 2}') == (1,)
    for nothing in ("null", "[]", "{}", "[null, []]"):
        assert json_values.compile_row(schema)(f'{{"a": 1, "b": {nothing}}}'.encode()) == (1,)


def test_half_a_surrogate_pair_is_found_although_no_reader_has_seen_it() -> None:
    schema = ddl("a string, b array<string>")
    values = [b'{"a": "ok"}', rb'{"a": "\ud800"}', rb'{"b": ["\udc00"]}', b'{"a": "fine"}', None]
    found = columns.decode_array(
        pa.array(values, pa.binary()), schema, json_values.compile_row(schema)
    ).to_pylist()
    assert [row["value"] and row["value"]["a"] for row in found] == ["ok", None, None, "fine", None]
    kinds = [row["error"] and row["error"]["kind"] for row in found]
    assert kinds == [None, WRONG_TYPE, WRONG_TYPE, None, None]
    assert "field a" in found[1]["error"]["message"]


def test_a_message_is_short_whatever_the_value() -> None:
    schema = ddl("a int")
    value = b'{"a": "' + b"x" * 100_000 + b'"}'
    found = columns.decode_array(pa.array([value]), schema, json_values.compile_row(schema))
    assert len(found[0]["error"]["message"].as_py()) < 200


FLAT = ddl("id int not null, name string, at timestamp")


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("1,a", WRONG_TYPE, "2 fields, and the schema has 3"),
        ("1,a,,", WRONG_TYPE, "4 fields"),
        ("", WRONG_TYPE, "1 fields"),
        (",a,", MISSING, "field id"),
        ("x,a,", WRONG_TYPE, "field id: 'x' is no integer"),
        ("1 ,a,", WRONG_TYPE, "no integer"),
        ("2147483648,a,", WRONG_TYPE, "32 bits"),
        ("1,a,noon", WRONG_TYPE, "no time"),
        ("1,a,\n2,b,", DAMAGED, "more than one line"),
        ('1,"a,', DAMAGED, "no CSV at character 2"),
        ('1,a"b,', DAMAGED, "no CSV"),
        ('1,"a"b,', DAMAGED, "no CSV"),
        (b"1,\xff,", DAMAGED, "no UTF-8"),
    ],
)
def test_a_line_that_is_wrong_is_an_error(text: str | bytes, kind: str, says: str) -> None:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(Undecodable, match=says) as found:
        csv.compile_reader(FLAT, ",")(data)
    assert found.value.kind == kind


def test_empty_and_null_are_different_in_a_line() -> None:
    read = csv.compile_reader(FLAT, ",")
    assert read(b'1,"",\r\n') == (1, "", None)
    assert read(b"1,,") == (1, None, None)
    assert read(b'1,"a ""b"", c\n",') == (1, 'a "b", c\n', None)


def envelope(kind: str, payload: str, **more: Any) -> bytes:
    field = {"field": "a", "type": kind, "optional": True, **more}
    import json

    schema = json.dumps({"type": "struct", "fields": [field]})
    return f'{{"schema": {schema}, "payload": {payload}}}'.encode()


@pytest.mark.parametrize(
    ("schema", "data", "kind"),
    [
        ("a int", b'{"a": 1}', DAMAGED),
        ("a int", b'{"schema": null, "payload": null}', MISSING),
        ("a int", b'{"schema": null, "payload": {"a": 1}}', SCHEMA_MISMATCH),
        ("a int", b'{"schema": {"type": "int32"}, "payload": 5}', SCHEMA_MISMATCH),
        ("a int", envelope("int32", '{"a": "x"}'), WRONG_TYPE),
        ("a int", envelope("string", '{"a": "x"}'), SCHEMA_MISMATCH),
        ("a int", envelope("int64", '{"a": 1}'), SCHEMA_MISMATCH),
        ("a int not null", envelope("int32", '{"a": null}'), MISSING),
        ("b int", envelope("int32", '{"a": 1}'), NEW_FIELDS),
        ("a int, b int not null", envelope("int32", '{"a": 1}'), SCHEMA_MISMATCH),
    ],
)
def test_an_envelope_that_is_wrong_is_an_error(schema: str, data: bytes, kind: str) -> None:
    with pytest.raises(Undecodable) as found:
        json_envelope.compile_reader(ddl(schema), NEW_FIELDS)(data)
    assert found.value.kind == kind


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("a struct<b: int>", "a.c"),
        ("a array<struct<b: int>>", "a[].c"),
        ("a map<string, struct<b: int>>", "a[].c"),
    ],
)
def test_new_fields_inside_of_an_envelope_do_what_evolution_says(schema: str, path: str) -> None:
    known = ddl(schema)
    wider = ddl(schema.replace("b: int", "b: int, c: int"))
    value = {"struct": (1, 2), "array<": [(1, 2)], "map<st": [("k", (1, 2))]}[schema[2:8]]
    data = json_envelope.compile_writer(wider, False)((value,))
    for kind in (NEW_FIELDS, SCHEMA_CHANGED):
        with pytest.raises(Undecodable, match=re.escape(path)) as found:
            json_envelope.compile_reader(known, kind)(data)
        assert found.value.kind == kind
    json_envelope.compile_reader(known, None)(data)  # `ignore` reads what it knows
    news = [text for text in json_envelope.news_of([data], known) if text]
    assert grown_by(known, news) == wider


def test_an_envelope_with_none_of_the_fields_is_no_row_of_nulls() -> None:
    for data in (
        envelope("int32", '{"a": 1}'),
        b'{"schema": {"type": "struct", "fields": []}, "payload": {"b": 1}}',
    ):
        with pytest.raises(Undecodable, match="none of the schema's fields") as found:
            json_envelope.compile_reader(ddl("b int"), None)(data)
        assert found.value.kind == MISSING


def test_an_envelope_is_read_as_connect_writes_it() -> None:
    """Decimals are base64 of their digits, or numbers; times are milliseconds; dates are days."""
    name = "org.apache.kafka.connect.data."
    decimal = {"name": f"{name}Decimal", "parameters": {"scale": "2"}}
    for payload in ('{"a": "MDk="}', '{"a": 123.45}'):
        read = json_envelope.compile_reader(ddl("a decimal(10, 2)"), None)
        assert read(envelope("bytes", payload, **decimal)) == (12345,)
    at = json_envelope.compile_reader(ddl("a timestamp"), None)
    assert at(envelope("int64", '{"a": 5}', name=f"{name}Timestamp")) == (5_000,)
    day = json_envelope.compile_reader(ddl("a date"), None)
    assert day(envelope("int32", '{"a": 5}', name=f"{name}Date")) == (5,)
    wide = json_envelope.compile_reader(ddl("a bigint"), None)
    assert wide(envelope("int16", '{"a": 5}')) == (5,)


def test_an_envelope_may_declare_more_digits_than_spark_has() -> None:
    """As PostgreSQL's numeric(40, 2): all records of such a table were dead letters."""
    parameters = {"scale": "2", "connect.decimal.precision": "40"}
    decimal = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": parameters}
    data = envelope("bytes", '{"a": "MDk="}', **decimal)
    assert json_envelope.JsonEnvelope().infer([data]) == ddl("a decimal(38, 2)")
    for wanted, value in (("a decimal(38, 2)", 12345), ("a decimal(10, 4)", 1234500)):
        assert json_envelope.compile_reader(ddl(wanted), None)(data) == (value,)
    large = base64.b64encode((10**39).to_bytes(17, "big")).decode()
    read = json_envelope.compile_reader(ddl("a decimal(38, 2)"), None)
    with pytest.raises(Undecodable) as found:
        read(envelope("bytes", f'{{"a": "{large}"}}', **decimal))
    assert found.value.kind == WRONG_TYPE


def test_types_that_no_format_has_are_refused_by_name() -> None:
    for kind, says in (
        (t.MapType(t.IntegerType(), t.StringType()), "column a is a map from int"),
        (t.DayTimeIntervalType(), "column a has the type interval"),
        (t.ArrayType(t.NullType()), r"column a\[\] has the type void"),
    ):
        with pytest.raises(plain.Unsuitable, match=says):
            plain.check(t.StructType([t.StructField("a", kind)]))
    with pytest.raises(plain.Unsuitable, match="two columns A"):
        plain.check(
            t.StructType([t.StructField("a", t.LongType()), t.StructField("A", t.LongType())])
        )
