"""Formats in Spark itself: the same rows come back, errors stand beside them, one pass does it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.formats import registry_client, writing
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.formats.reading import NothingToInfer, Reading
from ottla.pipelines.connectors.formats.schema_text import read as ddl
from ottla.testing import SchemaRegistry

WIDE = """
    select cast(1 as tinyint) as a, cast(-32768 as smallint) as b, 2147483647 as c,
      -9223372036854775808 as d, cast(1.5 as float) as e, cast('-Infinity' as double) as f,
      true as g, 'text "with" , \\n ü' as h, x'00ff' as i, cast(-12.34 as decimal(38, 10)) as j,
      date'0001-01-01' as k, timestamp_micros(-1) as l,
      timestamp_ntz'2026-03-01 12:00:00.123456' as m
    union all select cast(null as tinyint), null, null, null, null, cast('NaN' as double), null, '',
      x'', null, date'9999-12-31', timestamp_micros(253402300799999999), null
"""
NESTED = f"""
    select *, array(1, null) as n, named_struct('x', a, 'y', array(h)) as o,
      map('k', l, 'null', null) as p, array(named_struct('z', j)) as q,
      cast(null as struct<x: int>) as r from ({WIDE})
"""


@pytest.fixture
def far_away(spark: Any) -> Iterator[Any]:
    """A session whose time zone is not the one of the wire."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        yield made
    registry_client.client.cache_clear()


def bytes_of(spark: Any, *values: bytes | None) -> Any:
    rows = [(number, None if v is None else bytearray(v)) for number, v in enumerate(values)]
    return spark.createDataFrame(rows, "number int, value binary").coalesce(1)


@pytest.mark.parametrize(
    ("name", "query"),
    [("json", NESTED), ("json_envelope", NESTED), ("avro", NESTED), ("csv", WIDE)],
)
def test_rows_come_back_as_they_were(
    far_away: Any, registry: SchemaRegistry, name: str, query: str
) -> None:
    rows = far_away.sql(query)
    if name == "json_envelope":  # Connect has no time without a zone
        rows = rows.withColumn("m", rows["l"])
    options: dict[str, dict[str, Any]] = {
        "avro": {"registry": registry.url},
        "json_envelope": {"timestamps": "micros"},
    }
    form = read_format({name: options.get(name, {})}).bound("wide", "value")
    data = rows.select(writing.encoded_value(form, rows, rows.schema).alias("value"))
    found = data.withColumn("_decoded", form.column(data["value"], rows.schema))
    assert found.where("_decoded.error is not null").collect() == []
    # NaN is no number and equals none: as texts, rows are the same or are not.
    assert str(found.select("_decoded.value.*").collect()) == str(rows.collect())


def test_errors_stand_beside_the_rows_and_everything_is_decoded_once(spark: Any) -> None:
    form = read_format({"json": {"schema": "id int, name string", "evolution": "ignore"}})
    batch = bytes_of(
        spark, b'{"id": 1, "name": "a"}', None, b"nonsense", b'{"id": "x"}', b"null", b'{"id": 2}'
    )
    found = Reading(form).decoded(batch, "value", "_decoded")
    rows = found.select("number", "_decoded.value.id", "_decoded.error.kind").orderBy("number")
    assert [tuple(row) for row in rows.collect()] == [
        (0, 1, None),
        (1, None, None),
        (2, None, "Damaged"),
        (3, None, "WrongType"),
        (4, None, "WrongType"),
        (5, 2, None),
    ]
    parted = found.select("_decoded.value.*", found["_decoded.error"].alias("error"))
    good = parted.where("error is null").where("id > 0").select("id", "name")
    assert [tuple(row) for row in good.collect()] == [(1, "a"), (2, None)]
    plan = good._jdf.queryExecution().executedPlan().toString()
    assert plan.count("ArrowEvalPython [") == 1
    assert plan.count("decode(") == 1


def test_a_batch_brings_its_new_fields_with_it(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "orders.schema"
    reading = Reading(read_format({"json": {"schema_file": str(file)}}))
    with pytest.raises(NothingToInfer):
        reading.decoded(bytes_of(spark, None), "value", "_decoded")
    first = reading.decoded(bytes_of(spark, b'{"id": 1}', b"?"), "value", "_decoded")
    assert first.schema["_decoded"].dataType["value"].dataType.names == ["id"]
    batch = bytes_of(spark, b'{"id": 2, "note": "x"}', b'{"id": 3}')
    second = reading.decoded(batch, "value", "_decoded").select("_decoded.value.*")
    assert [tuple(row) for row in second.collect()] == [(2, "x"), (3, None)]
    assert ddl(file.read_text()) == ddl("id bigint, note string")


def test_avro_grows_by_the_schemas_in_a_batch(spark: Any, registry: SchemaRegistry) -> None:
    form = read_format({"avro": {"registry": registry.url}}).bound("orders", "value")
    reading = Reading(form)
    written = []
    for query in ("select 1 as id", "select 2 as id, 'x' as note"):
        rows = spark.sql(query)
        value = rows.select(writing.encoded_value(form, rows, rows.schema)).collect()[0][0]
        written.append(bytes(value))
        reading.learn(written)  # it is pinned before the second schema is there
    rows = reading.decoded(bytes_of(spark, *written, b"\0bad"), "value", "_decoded")
    found = rows.select("_decoded.value.*", "_decoded.error.kind").collect()
    assert [tuple(row) for row in found] == [
        (1, None, None),
        (2, "x", None),
        (None, None, "Damaged"),
    ]


def test_texts_and_bytes(spark: Any) -> None:
    batch = bytes_of(spark, "ü".encode(), b"\xff\xfe", b"", None)
    text = Reading(read_format("string")).decoded(batch, "value", "d")
    assert [tuple(row) for row in text.select("d.value.value", "d.error.kind").collect()] == [
        ("ü", None),
        (None, "Damaged"),
        ("", None),
        (None, None),
    ]
    raw = Reading(read_format({"bytes": {"column": "data"}})).decoded(batch, "value", "d")
    found = [row[0] for row in raw.where("d.error is null").select("d.value.data").collect()]
    assert found == ["ü".encode(), b"\xff\xfe", b"", None]
    number = spark.sql("select 42 as id")
    key = writing.encoded_value(read_format("string"), number, number.schema)
    assert bytes(number.select(key).collect()[0][0]) == b"42"


def test_a_condition_makes_tombstones(spark: Any) -> None:
    rows = spark.sql("select * from values (1, 'd'), (2, 'u'), (3, null) as t(id, op)")
    columns = writing.chosen(rows.schema, ["ID"])
    value = writing.encoded_value(read_format("json"), rows, columns)
    value = writing.with_tombstones(value, "op = 'd'", has_key=True)
    found = [row[0] and bytes(row[0]) for row in rows.select(value).collect()]
    assert found == [None, b'{"id":2}', b'{"id":3}']
    with pytest.raises(ValueError, match="needs a key"):
        writing.with_tombstones(value, "op = 'd'", has_key=False)
    with pytest.raises(ValueError, match="there is no column gone; there are id, op"):
        writing.chosen(rows.schema, ["gone"])


def test_a_registry_that_is_away_stops_the_task_and_names_itself(
    spark: Any, registry: SchemaRegistry
) -> None:
    number = registry.register("orders-value", '"long"')
    form = read_format({"avro": {"registry": registry.url}}).bound("orders", "value")
    reading = Reading(form)
    reading.learn([])
    batch = bytes_of(spark, b"\0" + number.to_bytes(4, "big") + b"\2")
    registry.fail(503)
    rows = batch.select(form.column(batch["value"], ddl("value bigint not null")).alias("d"))
    with pytest.raises(Exception, match=r"contract\.Outage: the schema registry at .* with 503"):
        rows.collect()
    registry.fail(None)
    assert rows.select("d.value.value").collect()[0][0] == 1
