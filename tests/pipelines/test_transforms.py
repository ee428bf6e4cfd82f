"""Kafka Connect's single message transforms as SQL: every line of the page does what it says."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.formats.avro import Avro
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.sources.topic import INCLUDED

PAGE = Path(__file__).parents[2] / "docs" / "pipelines" / "transforms.md"
ROW = re.compile(r"\| (`.+) \| (.+) \| `(select .+)` \|")
IN_KAFKA = {
    "Cast", "DropHeaders", "ExtractField", "Filter", "Flatten", "HeaderFrom", "HoistField",
    "InsertField", "InsertHeader", "MaskField", "RegexRouter", "ReplaceField", "SetSchemaMetadata",
    "TimestampConverter", "TimestampRouter", "ValueToKey",
}  # fmt: skip

SOURCE = """
    select 1 as id, 'Ann' as name, 'ann@example.org' as email, '12.50' as price,
      1772366400000 as created, named_struct('street', 'Main', 'city', 'Ghent') as address,
      cast(null as string) as note, 'orders' as _topic, 7L as _offset,
      timestamp'2026-03-01 12:00:00Z' as _timestamp,
      array(named_struct('key', 'trace', 'value', x'01'),
        named_struct('key', 'kept', 'value', x'02')) as _headers
    union all select 2, 'Bob', 'bob@example.org', '9.99', 1772366400000,
      named_struct('street', 'High', 'city', 'Bruges'), 'n', 'test-orders', 8L,
      timestamp'2026-03-01 12:00:00Z', array()
    union all select null, null, null, null, null, null, null, 'orders', 9L,
      timestamp'2026-03-01 12:00:00Z', array()
"""
ALL = {
    "id", "name", "email", "price", "created", "address", "note",
    "_topic", "_offset", "_timestamp", "_headers",
}  # fmt: skip


def keys(row: Any) -> list[str]:
    return [header["key"] for header in row["_headers"]]


def last_header(row: Any) -> tuple[str, bytes]:
    return row["_headers"][-1]["key"], bytes(row["_headers"][-1]["value"])


NOON = datetime(2026, 3, 1, 12)
EXPECTED: dict[str, Any] = {
    "`Cast`": lambda rows: rows[0]["price"] == Decimal("12.50"),
    "`DropHeaders`": lambda rows: keys(rows[0]) == ["kept"],
    "`ExtractField`": lambda rows: rows[0].asDict() == {"city": "Ghent"},
    "`Filter`": lambda rows: [row["id"] for row in rows] == [1],
    "`Filter` with `HasHeaderKey`": lambda rows: [row["id"] for row in rows] == [2, None],
    "`Filter` with `TopicNameMatches`": lambda rows: [row["id"] for row in rows] == [1, None],
    "`Filter` with `RecordIsTombstone`": lambda rows: [row["id"] for row in rows] == [1, 2],
    "`Flatten`": lambda rows: (
        (rows[0]["address_street"], rows[0]["address_city"]) == ("Main", "Ghent")
    ),
    "`HeaderFrom`": lambda rows: last_header(rows[0]) == ("name", b"Ann"),
    "`HoistField`": lambda rows: rows[0].asDict(True) == {"line": {"id": 1, "name": "Ann"}},
    "`InsertField`": lambda rows: (rows[0]["origin"], rows[0]["record_offset"]) == ("shop", 7),
    "`InsertHeader`": lambda rows: last_header(rows[0]) == ("origin", b"shop"),
    "`MaskField`": lambda rows: rows[0]["email"] == "****",
    "`RegexRouter`": lambda rows: rows[0]["topic"] == "copy-of-orders",
    "`ReplaceField` with `exclude`": lambda rows: set(rows[0].asDict()) == ALL - {"email", "note"},
    "`ReplaceField` with `include`, `renames`": lambda rows: (
        rows[0].asDict() == {"id": 1, "customer": "Ann"}
    ),
    "`TimestampConverter`": lambda rows: rows[0]["created"] == NOON,
    "`TimestampConverter` to text": lambda rows: rows[0]["created"] == "2026-03-01",
    "`TimestampRouter`": lambda rows: rows[0]["topic"] == "orders-20260301",
    "`ValueToKey`": lambda rows: rows[0]["key"].asDict() == {"id": 1, "name": "Ann"},
}


def lines() -> dict[str, str]:
    found = {}
    for line in PAGE.read_text().splitlines():
        match = ROW.fullmatch(line)
        if match:
            found[match[1]] = match[3]
    return found


def test_columns_of_the_record_are_called_as_the_source_calls_them() -> None:
    given = re.search(r"`include: \[(.+?)\]`", PAGE.read_text())
    assert given is not None
    included = given[1].split(", ")
    assert set(included) <= set(INCLUDED)
    assert {f"_{each}" for each in included} == {each for each in ALL if each.startswith("_")}


def test_every_transform_of_kafka_is_on_the_page() -> None:
    assert set(lines()) == set(EXPECTED)
    assert set(re.findall(r"`([A-Z]\w+)`", PAGE.read_text())) >= IN_KAFKA


@pytest.mark.parametrize("name", EXPECTED)
def test_each_line_does_what_it_says(spark: Any, name: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        spark.sql(SOURCE).coalesce(1).createOrReplaceTempView("source")
        assert EXPECTED[name](spark.sql(lines()[name]).collect())
    finally:
        spark.catalog.dropTempView("source")
        spark.conf.set("spark.sql.session.timeZone", before)


def test_the_name_of_a_schema_is_an_option_of_the_format() -> None:
    form = read_format({"avro": {"schema": "id int", "name": "com.example.Order"}})
    assert isinstance(form, Avro)
    assert form.name == "com.example.Order"
    assert "format: {avro: {name: com.example.Order}}" in PAGE.read_text()
