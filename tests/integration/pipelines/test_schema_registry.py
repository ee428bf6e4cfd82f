"""Avro with a schema registry: the one of the test kit, over HTTP."""

from __future__ import annotations

import io
import itertools
import json
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.formats import columns, plain, registry_client
from ottla.pipelines.connectors.formats.avro import Avro, FramedReader
from ottla.pipelines.connectors.formats.avro_schema import parse, struct_of
from ottla.pipelines.connectors.formats.avro_write import node_of
from ottla.pipelines.connectors.formats.failure import (
    DAMAGED,
    MISSING,
    NEW_FIELDS,
    SCHEMA_CHANGED,
    SCHEMA_MISMATCH,
    UNKNOWN_SCHEMA,
    Undecodable,
)
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.formats.registry_client import Client, Registry, UnknownSchema
from ottla.pipelines.connectors.formats.schema_text import read as ddl
from ottla.testing import SchemaRegistry


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


def kind_of(read: Callable[[], Any]) -> str:
    with pytest.raises(Undecodable) as failure:
        read()
    return failure.value.kind


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        yield made
    registry_client.client.cache_clear()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def errors(read: Callable[[bytes], Any], schema: t.StructType, *values: bytes) -> list[Any]:
    found = columns.decode_array(pa.array(values, pa.binary()), plain.loose(schema), read)
    return [row["error"] and row["error"]["kind"] for row in found.to_pylist()]


V1 = record(("id", "long"), name="v1")
V2 = record(("id", "long"), ("note", ["null", "string"], None), name="v2")
A = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}
B = {"type": "record", "name": "B", "fields": [{"name": "y", "type": "int"}]}
C = {"type": "record", "name": "C", "fields": [{"name": "z", "type": "int"}]}


def test_each_record_is_read_with_the_schema_it_was_written_with(registry: SchemaRegistry) -> None:
    first, second = registry.register("s", V1), registry.register("s", V2)
    read = FramedReader(Registry((registry.url,)), parse(V2), NEW_FIELDS)
    assert read(framed(first, written(V1, {"id": 1}))) == (1, None)
    assert read(framed(second, written(V2, {"id": 2, "note": "x"}))) == (2, "x")
    assert read(framed(first, written(V1, {"id": 3}))) == (3, None)
    assert registry.requests == ["GET /schemas/ids/1", "GET /schemas/ids/2"]


def test_many_records_of_several_schemas_are_read_at_once(registry: SchemaRegistry) -> None:
    first, second = registry.register("s", V1), registry.register("s", V2)
    read = FramedReader(Registry((registry.url,)), parse(V2), NEW_FIELDS)
    data = []
    for number in range(50):
        data.append(framed(first, written(V1, {"id": number})))
        data.append(framed(second, written(V2, {"id": number, "note": str(number)})))
        data.append([None, b"", b"\0\0", b"\1abcde", framed(99, b"x"), data[-1][:-1]][number % 6])
    array = pa.array(data, pa.binary())
    assert sum(len(part.rows) for part in read.many(array)) == 100
    assert registry.requests[:2] == ["GET /schemas/ids/1", "GET /schemas/ids/2"]
    schema = plain.loose(struct_of(parse(V2)))
    at_once = columns.decode_array(array, schema, read)
    assert at_once.to_pylist() == columns.decode_array(array, schema, read.__call__).to_pylist()
    values = at_once.field("value").to_pylist()
    assert values[0::3] == [{"id": number, "note": None} for number in range(50)]
    assert values[1::3] == [{"id": number, "note": str(number)} for number in range(50)]
    assert values[2::3] == [None] * 50


def test_what_is_wrong_with_a_framed_record_is_told_apart(registry: SchemaRegistry) -> None:
    good = registry.register("s", V1)
    text = registry.register("s", '"string"')
    read = FramedReader(Registry((registry.url,)), parse(V1), NEW_FIELDS)
    data = written(V1, {"id": 300})
    assert errors(
        read,
        struct_of(parse(V1)),
        framed(good, data),
        b"",
        b"\0\0\0",
        b"\1" + framed(good, data)[1:],
        framed(99, data),
        framed(good, data[:-1]),
        framed(good, data + b"\0"),
        framed(text, b"\x02x"),
        framed(good, b"\xff" * 11),
    ) == [
        None,
        DAMAGED,
        DAMAGED,
        DAMAGED,
        UNKNOWN_SCHEMA,
        DAMAGED,
        DAMAGED,
        SCHEMA_MISMATCH,
        DAMAGED,
    ]


@pytest.mark.parametrize(
    ("evolution", "kind"),
    [("dead_letter", NEW_FIELDS), ("fail", SCHEMA_CHANGED), ("ignore", None), ("add", NEW_FIELDS)],
)
def test_a_new_field_does_what_evolution_says(
    registry: SchemaRegistry, evolution: str, kind: str | None
) -> None:
    from ottla.pipelines.connectors.formats.schema_file import failure_kind

    number = registry.register("s", V2)
    read = FramedReader(Registry((registry.url,)), parse(V1), failure_kind(evolution))
    data = framed(number, written(V2, {"id": 1, "note": "x"}))
    assert errors(read, struct_of(parse(V1)), data) == [kind]


def test_a_record_with_none_of_the_fields_is_no_row_of_nulls(registry: SchemaRegistry) -> None:
    """As another kind of event is in the same topic."""
    other = record(("shipped", "int"), name="Shipped")
    number = registry.register("s", other)
    reader = parse(record(("id", ["null", "int"], None)))
    data = framed(number, written(other, {"shipped": 1}))
    for kind, says in ((None, MISSING), (NEW_FIELDS, NEW_FIELDS)):
        read = FramedReader(Registry((registry.url,)), reader, kind)
        assert errors(read, struct_of(reader), data) == [says]


def test_a_record_in_a_union_is_told_by_its_name(registry: SchemaRegistry) -> None:
    """It was read as the first record of the union, with nulls in all fields."""
    known = {**A, "fields": [{"name": "x", "type": ["null", "int"], "default": None}]}
    text = record(("u", [A, C, "string"]))
    number = registry.register("s", text)
    read = FramedReader(Registry((registry.url,)), parse(record(("u", [known, "string"]))), None)
    assert read(framed(number, written(text, {"u": ("A", {"x": 1})}))) == (((1,), None),)
    assert read(framed(number, written(text, {"u": "t"}))) == ((None, "t"),)
    data = framed(number, written(text, {"u": ("C", {"z": 1})}))
    assert kind_of(lambda: read(data)) == SCHEMA_MISMATCH


def test_the_schema_is_pinned_and_grows(registry: SchemaRegistry, tmp_path: Path) -> None:
    registry.register("orders-value", V1)
    file = tmp_path / "orders.avsc"
    given = {"registry": registry.url, "schema_file": str(file)}
    form = read_format({"avro": given}).bound("orders", "value")
    assert isinstance(form, Avro)
    assert form.schema() is None
    schema = form.infer([])
    form.pin(schema)
    assert form.schema() == schema == ddl("id bigint not null")
    second = registry.register("orders-value", V2)
    heads = [framed(second, b""), framed(77, b""), b"\1\0\0\0\0", b""]
    grown = form.grown(schema, heads)
    assert grown == ddl("id bigint not null, note string")
    form.pin(grown)
    assert form.schema() == grown
    assert "note" in file.read_text()


def test_a_file_in_sparks_notation_keeps_its_types_when_it_grows(
    registry: SchemaRegistry, tmp_path: Path
) -> None:
    """It became Avro's JSON, in which the tinyint was an int from the next start on."""
    number = registry.register("s", record(("small", "int"), ("note", "string")))
    file = tmp_path / "s.schema"
    file.write_text("small tinyint\n")
    form = read_format({"avro": {"registry": registry.url, "schema_file": str(file)}})
    assert isinstance(form, Avro)
    schema = form.schema()
    assert schema is not None
    grown = form.grown(schema, [framed(number, b"")])
    assert grown == ddl("small tinyint, note string")
    form.pin(grown)
    assert form.schema() == grown


def test_without_a_subject_the_newest_schema_of_the_values_is_taken(
    registry: SchemaRegistry,
) -> None:
    registry.register("x", V1)
    second = registry.register("x", V2)
    form = read_format({"avro": {"registry": registry.url}}).bound("orders", "value")
    assert form.infer([framed(1, b""), framed(second, b""), b"?"]) == struct_of(parse(V2))
    with pytest.raises(ValueError, match="orders-value"):
        form.infer([b"?", framed(50, b"")])


def test_an_alias_in_the_file_is_no_new_field(registry: SchemaRegistry, tmp_path: Path) -> None:
    number = registry.register("s", V1)
    file = tmp_path / "s.avsc"
    file.write_text(record({"name": "key", "type": "long", "aliases": ["id"]}))
    form = read_format({"avro": {"registry": registry.url, "schema_file": str(file)}})
    assert isinstance(form, Avro)
    schema = form.schema()
    assert schema == ddl("key bigint not null")
    assert form.grown(schema, [framed(number, b"")]) == schema
    read = FramedReader(Registry((registry.url,)), form._reader(schema), NEW_FIELDS)
    assert read(framed(number, written(V1, {"id": 4}))) == (4,)


@pytest.mark.parametrize("around", [lambda kind: kind, lambda kind: ["null", kind]])
def test_an_alias_inside_of_a_struct_is_no_new_field(
    registry: SchemaRegistry, around: Callable[[Any], Any]
) -> None:
    """Beside a field that is new: the renamed one was added once more, and then it was null."""

    def address(*fields: dict[str, Any]) -> str:
        kind = {"type": "record", "name": "Address", "fields": list(fields)}
        return record(("address", around(kind)))

    old = {"name": "strasse", "type": "string"}
    text = address(old, {"name": "ort", "type": "string"})
    number = registry.register("s", text)
    renamed = {
        "name": "street",
        "type": ["null", "string"],
        "default": None,
        "aliases": ["strasse"],
    }
    form = read_format({"avro": {"registry": registry.url, "schema": address(renamed)}})
    assert isinstance(form, Avro)
    schema = form.schema()
    assert schema is not None
    grown = form.grown(schema, [framed(number, b"")])
    assert grown["address"].dataType == ddl("street string, ort string")
    read = FramedReader(Registry((registry.url,)), form._reader(grown), NEW_FIELDS)
    data = written(text, {"address": {"strasse": "s", "ort": "o"}})
    assert read(framed(number, data)) == (("s", "o"),)


@pytest.mark.parametrize(
    ("known", "wider", "value", "row"),
    [
        (
            {"type": "array", "items": A},
            {"type": "array", "items": {**A, "fields": A["fields"] + B["fields"]}},
            [{"x": 1, "y": 2}],
            [(1, 2)],
        ),
        (
            {"type": "map", "values": ["null", A]},
            {"type": "map", "values": ["null", {**A, "fields": A["fields"] + B["fields"]}]},
            {"k": {"x": 1, "y": 2}},
            [("k", (1, 2))],
        ),
    ],
)
def test_aliases_outlive_new_fields(
    registry: SchemaRegistry, tmp_path: Path, known: Any, wider: Any, value: Any, row: Any
) -> None:
    """A new field in an array's records took them all away: each record was a dead letter."""
    text = record(("id", "long"), ("old", "int"), ("more", wider))
    number = registry.register("s", text)
    file = tmp_path / "s.avsc"
    file.write_text(
        record(
            {"name": "key", "type": "long", "aliases": ["id"]},
            {"name": "new", "type": ["null", "int"], "default": None, "aliases": ["old"]},
            ("more", known),
            ("else", "int", 7),
        )
    )
    form = read_format({"avro": {"registry": registry.url, "schema_file": str(file)}})
    assert isinstance(form, Avro)
    schema = form.schema()
    assert schema is not None
    grown = form.grown(schema, [framed(number, b"")])
    assert grown != schema
    data = framed(number, written(text, {"id": 1, "old": 2, "more": value}))
    for _ in ("at once", "after a start"):
        read = FramedReader(Registry((registry.url,)), form._reader(grown), NEW_FIELDS)
        assert read(data) == (1, 2, row, 7)
        form.pin(grown)
        assert plain.loose(form.schema()) == plain.loose(grown)


def test_references_are_followed(registry: SchemaRegistry) -> None:
    registry.register("address", record(("city", "string"), name="Address"))
    reference = {"name": "Address", "subject": "address", "version": 1}
    number = registry.register("s", record(("at", "Address"), name="Person"), [reference])
    found = Client(Registry((registry.url,))).schema(number)
    node = parse(found.text, found.references)
    assert struct_of(node) == ddl("at struct<city: string not null> not null")


def test_schemas_are_registered_once_and_looked_up_if_they_must_not_be(
    registry: SchemaRegistry,
) -> None:
    schema = ddl("id bigint")
    form = read_format({"avro": {"registry": registry.url}}).bound("orders", "key")
    assert isinstance(form, Avro)
    node = form._writer(schema)
    assert form.head(node) == form.head(node) == b"\0\0\0\0\1"
    assert registry.requests == ["POST /subjects/orders-key/versions"]
    strict = read_format({"avro": {"registry": registry.url, "register": False}})
    other = strict.bound("others", "value")
    assert isinstance(other, Avro)
    with pytest.raises(ValueError, match="others-value: register it"):
        other.head(node_of(schema, "x"))


def test_a_schema_that_was_given_is_registered_as_it_is(registry: SchemaRegistry) -> None:
    """Without its documentation it was another one, which `register: false` did not find."""
    given = record(
        {"name": "id", "type": "long", "doc": "unique", "order": "descending"},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis", "connect.version": 1}},
        name="Order",
        namespace="shop",
        doc="one order",
    )
    number = registry.register("orders-value", given)
    options = {"registry": registry.url, "schema": given}
    for more in ({"register": False}, {}):
        form = read_format({"avro": {**options, **more}}).bound("orders", "value")
        assert isinstance(form, Avro)
        node = form._writer(ddl("id bigint not null, at int not null"))
        assert form.head(node) == framed(number, b"")
    inline = read_format({"avro": {**options, "schema": "id bigint"}}).bound("t", "value")
    assert isinstance(inline, Avro)
    assert inline.head(inline._writer(ddl("id bigint"))) == framed(number + 1, b"")


def test_a_registry_that_is_away_is_an_outage_and_no_record_is_to_blame(
    registry: SchemaRegistry,
) -> None:
    number = registry.register("s", V1)
    read = FramedReader(Registry((registry.url,), timeout=60.0), parse(V1), NEW_FIELDS)
    data = framed(number, written(V1, {"id": 1}))
    for status in (500, 503, 401, 403, 429):
        registry.fail(status)
        with pytest.raises(Outage, match=str(status)):
            read(data)
    registry.fail(None)
    registry.stop()
    with pytest.raises(Outage, match="does not answer"):
        read(data)
    registry.start()
    assert read(data) == (1,)
    registry.stop()
    assert read(data) == (1,)  # what was read once is never asked for again


@contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """The address of a server that says this to everybody, whatever it is asked."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            with suppress(OSError):
                for piece in pieces:
                    self.request.sendall(piece)
                    if len(pieces) > 1 and ended.wait(0.02):
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()
            registry_client.client.cache_clear()


def http(status: int, body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} so\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x01\0\2\2\x16",  # an alert of TLS
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{"sch',
        b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"sch',
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n{}",
        http(200, {"status": "ok"}),
        http(200, {"schema": None}),
        http(200, {"schema": V1, "references": 5}),
        http(200, {"schema": V1, "references": [{"name": "x"}]}),
        http(200, []),
        http(301, b""),
        http(400, b"<html>The plain HTTP request was sent to HTTPS port</html>"),
        http(400, {"error_code": 400, "message": "of a gateway"}),
        http(404, b"<html>no such page</html>"),
        http(404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
        http(405, b""),
    ],
)
def test_what_no_registry_says_is_an_outage(answer: bytes) -> None:
    """A record was to blame for some of it, and others ended the task."""
    with answering(answer) as address:
        read = FramedReader(Registry((address,), timeout=60.0), parse(V1), NEW_FIELDS)
        data = framed(1, written(V1, {"id": 1}))
        with pytest.raises(Outage, match="registry"):
            read(data)
        with pytest.raises(Outage, match="registry"):
            read.many(pa.array([data] * 20, pa.binary()))


def test_an_answer_that_comes_in_drops_is_not_waited_for() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    clock = itertools.count(0.0, 25.0)
    with answering(head, *[b" "] * 100_000) as address, pytest.raises(Outage, match="too long"):
        Client(Registry((address,), timeout=60.0), lambda: next(clock)).schema(1)


def test_a_refused_schema_is_an_error_and_no_outage() -> None:
    refused = http(409, {"error_code": 409, "message": "incompatible"})
    with answering(refused) as address, pytest.raises(ValueError, match="incompatible"):
        Client(Registry((address,))).register("s", V1)


def test_an_id_that_no_registry_can_have_is_not_asked_for(registry: SchemaRegistry) -> None:
    """Confluent's answers as to a path that it does not have."""
    read = FramedReader(Registry((registry.url,)), parse(V1), NEW_FIELDS)
    assert kind_of(lambda: read(framed((1 << 32) - 1, b""))) == UNKNOWN_SCHEMA
    assert registry.requests == []


def test_what_one_registry_does_not_know_another_is_asked(registry: SchemaRegistry) -> None:
    """A follower has a new schema a little later than the one that has registered it."""
    registry.register("s", V1)
    with SchemaRegistry() as follower:
        asked = Client(Registry((follower.url, registry.url)))
        assert asked.schema(1).text == V1
        with pytest.raises(UnknownSchema):
            asked.schema(2)
        registry.stop()
        with pytest.raises(UnknownSchema):
            asked.schema(3)


def test_records_that_cannot_be_read_are_not_as_many_requests(registry: SchemaRegistry) -> None:
    other = registry.register("s", "message M {}", kind="PROTOBUF")
    gone = registry.register("t", V1, [{"name": "x", "subject": "gone", "version": 1}])
    read = FramedReader(Registry((registry.url,)), parse(V1), NEW_FIELDS)
    for number, kind, requests in ((other, SCHEMA_MISMATCH, 1), (gone, UNKNOWN_SCHEMA, 2)):
        registry.requests.clear()
        for _ in range(5):
            assert kind_of(lambda: read(framed(number, b""))) == kind  # noqa: B023 - called here
        assert len(registry.requests) == requests


def test_a_file_of_certificates_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"registry_ca /nowhere/ca\.pem: No such file"):
        Client(Registry(("https://127.0.0.1:1",), ca="/nowhere/ca.pem"))


def test_the_next_address_is_asked_when_one_is_away(registry: SchemaRegistry) -> None:
    registry.register("s", V1)
    with SchemaRegistry() as gone:
        away = gone.url
    assert Client(Registry((away, registry.url))).schema(1).text == V1


def test_that_an_id_is_unknown_is_believed_for_a_while(registry: SchemaRegistry) -> None:
    now = [0.0]
    asked = Client(Registry((registry.url,)), lambda: now[0])
    for _ in range(3):
        with pytest.raises(UnknownSchema):
            asked.schema(1)
    assert len(registry.requests) == 1
    registry.register("s", V1)
    now[0] = 31.0
    assert asked.schema(1).text == V1


def test_a_password_is_sent_and_never_shown() -> None:
    with SchemaRegistry(auth="user:secret") as registry:
        registry.register("s", V1)
        given = Registry((registry.url,), "user:secret")
        assert "secret" not in repr(given)
        assert Client(given).schema(1).text == V1
        with pytest.raises(Outage, match="401"):
            Client(Registry((registry.url,))).schema(1)


def test_a_schema_that_is_no_avro_is_a_mismatch(registry: SchemaRegistry) -> None:
    number = registry.register("s", "message M {}", kind="PROTOBUF")
    read = FramedReader(Registry((registry.url,)), parse(V1), NEW_FIELDS)
    assert kind_of(lambda: read(framed(number, b""))) == SCHEMA_MISMATCH


def test_a_key_that_is_no_record_is_one_column(registry: SchemaRegistry) -> None:
    number = registry.register("orders-key", '"long"')
    form = read_format({"avro": {"registry": registry.url}}).bound("orders", "key")
    assert isinstance(form, Avro)
    schema = form.infer([])
    assert schema == ddl("value bigint not null")
    read = FramedReader(Registry((registry.url,)), form._reader(schema), NEW_FIELDS)
    assert read(framed(number, b"\x04")) == (2,)


def test_a_union_of_several_types_is_read_into_its_members(registry: SchemaRegistry) -> None:
    text = record(("u", ["null", "int", "string"]))
    number = registry.register("s-value", text)
    form = read_format({"avro": {"registry": registry.url}}).bound("s", "value")
    assert isinstance(form, Avro)
    schema = form.infer([])
    assert schema == ddl("u struct<member0: int, member1: string>")
    read = FramedReader(Registry((registry.url,)), form._reader(schema), NEW_FIELDS)
    for value, found in ((None, (None,)), (5, ((5, None),)), ("x", ((None, "x"),))):
        assert read(framed(number, written(text, {"u": value}))) == found


@pytest.mark.parametrize(
    ("types", "new", "old_value", "new_value", "old_row", "new_row"),
    [
        (["int", "string"], "boolean", 5, True, (5, None), (None, None, True)),
        ([A, B], C, ("A", {"x": 1}), ("C", {"z": 2}), ((1,), None), (None, None, (2,))),
    ],
)
def test_a_union_gains_a_type(
    registry: SchemaRegistry,
    types: list[Any],
    new: Any,
    old_value: Any,
    new_value: Any,
    old_row: Any,
    new_row: Any,
) -> None:
    """All records of one of the two were dead letters, or rows of nulls."""
    short, long = record(("u", ["null", *types])), record(("u", ["null", *types, new]))
    first = registry.register("s-value", short)
    form = read_format({"avro": {"registry": registry.url}}).bound("s", "value")
    assert isinstance(form, Avro)
    schema = form.infer([])
    second = registry.register("s-value", long)
    old = framed(first, written(short, {"u": old_value}))
    old_in_new = framed(second, written(long, {"u": old_value}))
    newest = framed(second, written(long, {"u": new_value}))

    grown = form.grown(schema, [newest[:5]])
    assert [len(each["u"].dataType.fields) for each in (schema, grown)] == [2, 3]
    read = FramedReader(Registry((registry.url,)), form._reader(grown), NEW_FIELDS)
    assert read(old) == read(old_in_new) == ((*old_row, None),)
    assert read(newest) == (new_row,)

    strict = FramedReader(Registry((registry.url,)), form._reader(schema), NEW_FIELDS)
    assert strict(old) == (old_row,)
    assert kind_of(lambda: strict(newest)) == NEW_FIELDS
    ignoring = FramedReader(Registry((registry.url,)), form._reader(schema), None)
    assert ignoring(old_in_new) == (old_row,)
    assert kind_of(lambda: ignoring(newest)) == SCHEMA_MISMATCH


def test_the_page_about_formats_shows_a_registry_that_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipelines" / "formats.md").read_text()
    typed = page.partition("test_schema_registry.py -->")[2]
    exec(typed.partition("```python\n")[2].partition("```")[0], {})
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+ 1\n", capsys.readouterr().out)
