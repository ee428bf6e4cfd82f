"""Rows of one key in one task, where the database decides what one key is. Without Spark."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
)

from ottla.pipelines.connectors.contract import RowsRefused
from ottla.pipelines.connectors.sinks.postgres import PostgresDialect
from ottla.pipelines.connectors.sinks.slots import CREATE, Slot
from ottla.pipelines.connectors.sinks.sqlite import SqliteDialect, keeps_apart
from ottla.pipelines.connectors.sinks.tables import Stored, TableSink, Writing
from ottla.pipelines.connectors.sinks.transaction import (
    DELETE,
    LINE,
    POSITION,
    SEQUENCE,
    Transact,
)

TEXT, LONG = StringType(), LongType()


def write(dialect: Any, kind: DataType, rows: Sequence[tuple[Any, str | None]]) -> int:
    """Upsert rows of a key and a name into the table t, in one task; a name that is null deletes.

    They come in another order than that of the source.
    """
    writing = Writing("t", "upsert", ("id",), "name is null", False, 1)
    sink = TableSink(dialect, writing)
    session = dialect.connect()
    try:
        session.execute(CREATE)
        target = sink._fitting({"id": kind, "name": TEXT}, dialect.columns(session, "t"))
    finally:
        session.close()
    numbered = list(enumerate(rows))[::-1]
    batch = pa.RecordBatch.from_pydict(
        {
            "id": [key for _, (key, _) in numbered],
            "name": pa.array([name for _, (_, name) in numbered], pa.string()),
            POSITION: [f"row {number}" for number, _ in numbered],
            LINE: [0 for _ in numbered],
            SEQUENCE: [number for number, _ in numbered],
            DELETE: [name is None for _, (_, name) in numbered],
        }
    )
    work = Transact(dialect.connect, target, Slot("p", "s", "r", 0, 1))
    return work(0, iter([batch])).rows


@pytest.fixture
def query(postgres: Any) -> Callable[[str], list[list[Any]]]:
    dsn = postgres.new_database()

    def ask(sql: str) -> list[list[Any]]:
        return postgres.sql(sql, dsn)

    ask.dialect = PostgresDialect(dsn)
    return ask


SAME = {
    "integer": (TEXT, ("1", "01", " 1 ")),
    "numeric(10,2)": (DecimalType(10, 3), (Decimal("1.001"), Decimal("0.999"))),
    "real": (DoubleType(), (0.1, 0.1000000001)),
    "uuid": (
        TEXT,
        ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}"),
    ),
    "character(5)": (TEXT, ("ab", "ab  ")),
    "character varying(3)": (TEXT, ("ab ", "ab    ")),
    "date": (TEXT, ("2026-03-01", "March 1, 2026")),
    "positive": (TEXT, ("7", "007")),
}
"""Columns, and values that are one in them."""


def test_keys_that_are_one_to_the_database_have_one_row_the_last(query):
    query("create domain positive as integer check (value > 0)")
    query("create table t (id integer primary key, name text)")
    for column, (kind, keys) in SAME.items():
        query(f"drop table t; create table t (id {column} primary key, name text)")
        query("drop table if exists ottla_slots")
        rows = [(key, f"version {number}") for number, key in enumerate(keys)]
        assert write(query.dialect, kind, rows) == len(rows)
        assert query("select name from t") == [[f"version {len(rows) - 1}"]], column


def test_a_collation_that_takes_texts_for_the_same_is_heeded():
    """The tests' PostgreSQL is built without the library that has such collations."""
    stored = Stored("text", "text", "public.nocase")
    assert (
        PostgresDialect("").key('"id"', TEXT, stored) == 'cast("id" as text) collate public.nocase'
    )


def test_a_tombstone_is_for_the_key_as_the_table_has_it(query):
    query("create table t (id numeric(10,2) primary key, name text)")
    query("insert into t values (2, 'two'), (1, 'one')")
    exact = DecimalType(10, 3)
    rows = [(Decimal("1.001"), None), (Decimal("2.004"), None), (Decimal("1.999"), "back")]
    write(query.dialect, exact, rows)
    assert query("select id, name from t") == [["2.00", "back"]]


def test_texts_that_are_no_key_are_refused_by_name_whatever_came_after(query):
    query("create table t (id character varying(2) primary key, name text)")
    with pytest.raises(RowsRefused) as refused:
        write(query.dialect, TEXT, [("abc", "too long"), ("ab", "fits"), ("abd", "too long")])
    assert {row.position for row in refused.value.rows} == {"row 0", "row 2"}
    query("drop table t")
    query("create table t (id integer primary key, name text)")
    with pytest.raises(RowsRefused) as refused:
        write(query.dialect, TEXT, [("1", "one"), ("two", "2"), ("3", "three"), ("", "none")])
    assert {row.position for row in refused.value.rows} == {"row 1", "row 3"}
    assert query("select count(*) from t") == [["0"]]


def test_a_value_that_is_too_long_for_a_domain_is_refused_and_not_cut(query):
    query("create domain short as character varying(3)")
    query("create domain shorter as short")
    query("create table t (id bigint primary key, name shorter)")
    with pytest.raises(RowsRefused, match="too long"):
        write(query.dialect, LONG, [(1, "abc"), (2, "abcdef")])
    write(query.dialect, LONG, [(1, "abc")])
    assert query("select id, name from t") == [["1", "abc"]]


@pytest.mark.parametrize(
    ("declared", "kind"), [("integer", TEXT), ("text collate nocase", TEXT), ("real", LONG)]
)
def test_sqlite_says_before_the_first_batch_that_keys_may_be_one(tmp_path: Path, declared, kind):
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"create table t (id {declared} primary key, name text)")
    with pytest.raises(ValueError, match=r'the key "id" is .* in the table, .*in the transform'):
        write(SqliteDialect(str(path)), kind, [(1, "x")])


@pytest.mark.parametrize(
    ("declared", "kind", "apart"),
    [
        ("varchar(10)", TEXT, True),
        ("", TEXT, True),
        ("timestamp", TEXT, False),
        ("bigint", IntegerType(), True),
        ("text", LONG, True),
        ("text", DoubleType(), False),
        ("double", DoubleType(), True),
        ("numeric", DecimalType(10, 2), True),
        ("numeric", DecimalType(38, 2), False),
        ("text", DecimalType(38, 2), True),
        ("date", DateType(), True),
        ("integer", BinaryType(), True),
    ],
)
def test_what_sqlite_keeps_apart(declared, kind, apart):
    assert keeps_apart(kind, Stored(declared, declared)) is apart
