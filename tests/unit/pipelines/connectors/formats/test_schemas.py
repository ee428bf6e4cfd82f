"""Schemas as text, inferred, pinned in a file, and grown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from ottla.pipelines.connectors.formats import (
    FORMATS,
    columns,
    csv,
    declaration,
    inference,
    json_envelope,
    json_values,
    plain,
)
from ottla.pipelines.connectors.formats import json as json_format
from ottla.pipelines.connectors.formats.contract import Format
from ottla.pipelines.connectors.formats.failure import NEW_FIELDS
from ottla.pipelines.connectors.formats.options import mistakes_of, read_format
from ottla.pipelines.connectors.formats.reading import NothingToInfer, Reading
from ottla.pipelines.connectors.formats.schema_text import SchemaError, read, write
from ottla.pipelines.connectors.option import Mistake


def test_a_schema_is_written_as_spark_writes_it() -> None:
    text = """
    id BIGINT NOT NULL, -- the key
    `odd name` string, price decimal(10,2), whole decimal,
    inner struct<a: int, b array<struct<c: date>>>, more map<string, timestamp_ntz>,
    """
    schema = read(text)
    assert [f.simpleString() for f in schema.fields] == [
        "id:bigint",
        "odd name:string",
        "price:decimal(10,2)",
        "whole:decimal(10,0)",
        "inner:struct<a:int,b:array<struct<c:date>>>",
        "more:map<string,timestamp_ntz>",
    ]
    assert [f.nullable for f in schema.fields] == [False, True, True, True, True, True]
    assert read(write(schema)) == schema


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("-- nothing", "empty"),
        ("id", "'the end' is no type"),
        ("id bigint name string", "',' is expected, not 'name'"),
        ("id bigint,\nname text", "line 2 of the schema: 'text' is no type"),
        ("id bigint, ID int", "two fields ID"),
        ("a array<int", "'>' is expected"),
        ("a struct<>", "a field's name is expected"),
        ("a decimal(39, 2)", "1 to 38 digits"),
        ("a int not", "'null' is expected"),
        ("5 int", "a field's name is expected, not '5'"),
        ("a int; b int", "';"),
        ("a " + "array<" * 60 + "int" + ">" * 60, "too deeply"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(SchemaError) as found:
        read(text)
    assert says in str(found.value)


def test_a_schema_is_inferred_from_json() -> None:
    found = inference.infer(
        [
            {"id": 1, "x": 1, "tags": [], "gone": None},
            {"id": 2, "x": 1.5, "tags": ["a"], "inner": {"a": True}},
            {"id": 3, "inner": {"b": "x"}, "items": [{"n": 1}, {"m": "x"}], "big": 1 << 70},
        ]
    )
    assert found == read(
        "id bigint, x double, tags array<string>, inner struct<a: boolean, b: string>, "
        "items array<struct<n: bigint, m: string>>, big decimal(38, 0)"
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([{"a": 1}, {"a": "x"}], "field a is bigint in some values and string in others"),
        ([{"a": {"b": [1, True]}}], "field a.b[]"),
        ([{"a": 1}, {"A": 1}], "other capitals"),
        ([{"a": None}], "no field has a value"),
        ([[1]], "no JSON objects"),
    ],
)
def test_what_cannot_be_inferred_is_asked(values: list[Any], says: str) -> None:
    with pytest.raises(inference.Ambiguous) as found:
        inference.infer(values)
    assert says in str(found.value)


def test_a_schema_that_was_inferred_is_pinned_and_the_file_is_believed(tmp_path: Path) -> None:
    file = tmp_path / "made" / "orders.schema"
    form = read_format({"json": {"schema_file": str(file)}})
    reading = Reading(form)
    assert reading.schema() is None
    with pytest.raises(NothingToInfer):
        reading.learn([])
    values = [b'{"id": 1, "name": "x"}', b"broken", b"[1]"]
    assert reading.learn(values) == read("id bigint, name string")
    assert read(file.read_text()) == read("id bigint, name string")
    assert file.read_text().startswith("--")
    assert not list(file.parent.glob("*.tmp"))
    file.write_text("id int not null -- by hand\n")
    assert Reading(form).learn(values) == read("id int not null")


def test_a_file_that_is_no_schema_is_named(tmp_path: Path) -> None:
    file = tmp_path / "orders.schema"
    file.write_text("id nonsense")
    with pytest.raises(ValueError, match=r"orders\.schema: line 1 of the schema: 'nonsense'"):
        read_format({"json": {"schema_file": str(file)}}).schema()
    file.write_text("a map<int, string>")
    with pytest.raises(ValueError, match=r"orders\.schema: column a is a map from int"):
        read_format({"json": {"schema_file": str(file)}}).schema()


def test_new_fields_are_added_behind_the_others_and_no_type_changes() -> None:
    schema = read("id bigint not null, inner struct<a: int>, items array<struct<n: int>>")
    values: list[bytes | None] = [
        None,
        b"broken",
        b'{"id": 1}',
        b'{"id": "a text now"}',
        b'{"id": 1, "z": 1, "inner": {"a": 1, "b": "x"}, "items": [{"n": 1, "m": true}]}',
        b'{"id": 1, "z": 1.5, "nothing": null}',
    ]
    texts = json_format.news_of(values, schema)
    assert texts[:4] == [None] * 4
    found = json_format.grown_by(schema, sorted({text for text in texts if text}))
    assert found == read(
        "id bigint not null, inner struct<a: int, b: string>, "
        "items array<struct<n: int, m: boolean>>, z double"
    )
    assert json_format.news_of(values, found) == [None] * 6


def nested(depth: int, left: str, right: str) -> bytes:
    return f'{{"id": 1, "x": {left * depth}1{right * depth}}}'.encode()


POISON = [
    b'{"id": 1, "": 1}',
    rb'{"id": 1, "\ud800": 1}',
    rb'{"id": 1, "x": {"\ud800": 1, "": 2}}',
    b'{"id": 1, "x": {"a": 1, "A": 2}}',
    b'{"id": 1, "x": [{"a": 1}, {"A": 2}]}',
    *(nested(depth, "[", "]") for depth in (45, 60, 300, 600, 900)),
    *(nested(depth, '{"x": ', "}") for depth in (45, 60, 300, 600, 900)),
]


@pytest.mark.parametrize("data", POISON)
def test_a_new_field_that_no_schema_can_hold_is_its_own_records_fault(data: bytes) -> None:
    """With `add`, the default, each of these ended the pipeline, again at each start."""
    schema = read("id bigint")
    news = json_format.news_of([b'{"id": 1, "y": 1}', data], schema)
    pa.array(news, pa.string())  # as it goes to the driver
    grown = json_format.grown_by(schema, [text for text in news if text])
    assert grown.names[:2] in (["id", "y"], ["id", "x"])
    reader = json_values.compile_row(grown)
    found = columns.decode_array(pa.array([data], pa.binary()), plain.loose(grown), reader)
    assert found.to_pylist()[0]["error"]["kind"] == NEW_FIELDS


@pytest.mark.parametrize("data", POISON[:3])
def test_a_name_that_no_schema_can_hold_is_not_inferred(data: bytes) -> None:
    form = read_format("json")
    assert form.infer([data, b'{"id": 1}']) == read("id bigint")


def test_an_object_of_nulls_says_nothing_of_its_type() -> None:
    """It was struct<>, which no schema file can hold: an everyday record ended the pipeline."""
    values = [{"id": 1, "a": {"b": None}, "c": [{"d": []}], "e": {"f": {"g": {}}}}]
    assert inference.infer(values) == read("id bigint")
    data = json.dumps(values[0]).encode()
    assert json_format.news_of([data], read("id bigint")) == [None]
    assert json_values.compile_row(read("id bigint"))(data) == (1,)
    known = read("id bigint, a struct<b: int>")
    assert json_format.news_of([data], known) == [None]
    assert json_values.compile_row(known)(data) == (1, (None,))


def test_what_is_nested_too_deeply_is_asked() -> None:
    with pytest.raises(inference.Ambiguous, match="nested too deeply"):
        read_format("json").infer([nested(300, '{"x": ', "}")])


@pytest.mark.parametrize(
    "schema",
    [
        r'{"type": "struct", "fields": [{"field": "id", "type": "int64", "doc": "\ud800"}]}',
        r'{"type": "struct", "fields": [{"field": "\ud800", "type": "int64"}]}',
        '{"type": "struct", "fields": [{"field": "", "type": "int64"}]}',
        '{"type": "struct", "fields": [{"field": 5, "type": "int64"}]}',
        '{"type": "struct", "fields": [5]}',
        '{"type": "struct", "fields": 5}',
        '{"type": "struct"}',
        '{"type": "struct", "fields": [{"field": "id", "type": "int64"}, '
        '{"field": "id", "type": "string"}]}',
        '{"type": "struct", "fields": [{"field": "d", "type": "bytes", "name": '
        '"org.apache.kafka.connect.data.Decimal", "parameters": [1]}]}',
        '{"type": "struct", "x": ' + "[" * 900 + "]" * 900 + "}",
        "5",
        "null",
    ],
)
def test_a_schema_in_a_record_is_that_records_fault(schema: str) -> None:
    good = json_envelope.compile_writer(read("id bigint"), False)((1,))
    data = f'{{"schema": {schema}, "payload": {{"id": 1}}}}'.encode()
    wanted = read("id bigint")
    pa.array(json_envelope.news_of([data, good], wanted), pa.string())
    reader = json_envelope.compile_reader(wanted, NEW_FIELDS)
    found = columns.decode_array(pa.array([data, good], pa.binary()), wanted, reader).to_pylist()
    assert found[1] == {"value": {"id": 1}, "error": None}
    assert found[0]["error"] is not None or found[0]["value"] == {"id": 1}
    assert json_envelope.JsonEnvelope().infer([data, good]) == read("id bigint")


def test_the_order_of_new_fields_does_not_depend_on_the_order_of_rows() -> None:
    schema = read("id bigint")
    values = [b'{"b": 1}', b'{"a": 1}', b'{"a": "of two types"}']
    one = sorted(filter(None, json_format.news_of(list(values), schema)))
    other = sorted(filter(None, json_format.news_of(list(reversed(values)), schema)))
    assert json_format.grown_by(schema, one) == json_format.grown_by(schema, other)


def test_an_envelope_brings_its_new_fields_itself() -> None:
    wider = read("id bigint, note string")
    data = json_envelope.compile_writer(wider, False)((1, "x"))
    assert json_envelope.news_of([data, None, b"{}", data], read("id bigint")) == [
        "note string", None, None, "note string"
    ]  # fmt: skip
    assert json_envelope.JsonEnvelope().infer([b"{}", data]) == wider


def test_csv_is_inferred_as_texts() -> None:
    form = read_format({"csv": {"delimiter": ";"}})
    assert form.infer([b"1;a", b'2;"b"', b"\xff"]) == read("c0 string, c1 string")
    with pytest.raises(ValueError, match="same number of fields"):
        form.infer([b"1", b"1;2"])
    with pytest.raises(ValueError, match="csv has no place for"):
        csv.check_flat(read("a array<int>"))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_declared_and_made_from_its_options(name: str) -> None:
    found = declaration(name)
    assert found.name == name
    assert found.doc.endswith(".")
    assert all(option.doc for option in found.options)
    given = {"registry": "http://127.0.0.1:1"} if name == "avro" else {}
    form: Format = read_format({name: given})
    for method in ("bound", "schema", "infer", "pin", "grow", "column", "decode", "encode"):
        assert callable(getattr(form, method))
    assert hash(form) == hash(read_format({name: given}))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("jsn", "jsn is no format: did you mean json?"),
        ("protobuf", "protobuf is no format: there are json"),
        (5, "write a format's name"),
        ({"json": {}, "csv": {}}, "write a format's name"),
        ({"json": {"shema": "x"}}, "shema is no option of the format json: did you mean schema?"),
        ({"json": {"evolution": "ad"}}, "evolution of the format json is one of add, fail"),
        ({"json": {"schema": "a int", "schema_file": "f"}}, "not both"),
        ({"json": {"schema": 5}}, "schema of the format json: is a string"),
        ({"csv": {"delimiter": "ab"}}, "a delimiter is one character"),
        ({"csv": {"schema": "a array<int>"}}, "schema of the format csv"),
        ("avro", "give a registry, a schema or a schema_file"),
        ({"avro": {"schema": "{"}}, "schema of the format avro: no JSON"),
        ({"avro": {"registry": "nonsense"}}, "nonsense is no http:// address"),
        ({"avro": {"registry": "http://u:secret@h"}}, "into registry_auth"),
        ({"avro": {"registry": "http://h:port"}}, "http://h:port is no http:// address"),
        ({"avro": {"registry": "http://h:0"}}, "is no http:// address"),
        ({"avro": {"registry": "http://[::1"}}, "is no http:// address"),
        ({"avro": {"registry": "http://h/a b"}}, "is no http:// address"),
        ({"avro": {"registry": "http://h", "registry_auth": "token:x\n"}}, "has a line break"),
        ({"avro": {"registry": "http://h", "registry_auth": "u:x\r\nX: y"}}, "has a line break"),
        ({"avro": {"registry": "http://h", "registry_auth": "token:é"}}, "no header can have"),
        ({"avro": {"registry": "http://h", "registry_timeout": "soon"}}, "a time has a unit"),
    ],
)
def test_a_mistake_in_the_options_is_said_in_one_sentence(value: Any, says: str) -> None:
    with pytest.raises(Mistake) as found:
        read_format(value, "key_format")
    assert found.value.option.partition(".")[0] == "key_format"
    assert says in str(found.value)
    assert "secret" not in str(found.value)


def test_all_mistakes_of_a_format_are_found_each_at_its_option() -> None:
    found = mistakes_of({"json": {"shema": "x", "evolution": "ad"}}, "format")
    assert [each.option for each in found] == ["format.json.shema", "format.json.evolution"]
    assert mistakes_of({"json": {"schema": "a int"}}) == []


def test_text_and_bytes_write_one_column() -> None:
    two = read("a string, b string")
    for name in ("string", "bytes"):
        form = read_format({name: {"column": "line"}})
        assert form.schema().names == ["line"]
        with pytest.raises(ValueError, match="there are 2"):
            form.encode(None, two)
    for name, schema, says in (
        ("string", "a array<int>", "to_json"),
        ("string", "a binary", "use format bytes"),
        ("bytes", "a int", "binary or string"),
    ):
        with pytest.raises(ValueError, match=says):
            read_format(name).encode(None, read(schema))


def test_a_schema_of_avro_may_be_written_in_sparks_notation() -> None:
    form = read_format({"avro": {"schema": "id bigint not null, name string"}})
    assert form.schema() == t.StructType(
        [t.StructField("id", t.LongType(), False), t.StructField("name", t.StringType())]
    )
