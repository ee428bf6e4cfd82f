"""Rows into tables: each once, the last of each key, and rows that the database refuses by name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import HIDDEN, Outage, RowsRefused
from ottla.pipelines.connectors.sinks.postgres import SINK as POSTGRES
from ottla.pipelines.connectors.sinks.sqlite import SINK as SQLITE
from ottla.testing.connectors import batch, made, numbers, place
from ottla.testing.connectors import sample_rows as rows


@dataclass
class Store:
    """A database, and a way to look into it that is not ours."""

    declaration: Any
    options: dict[str, Any]
    query: Callable[[str], list[tuple[Any, ...]]]
    folder: Path

    def sink(self, spark: Any, frame: Any, **options: Any) -> Any:
        sink = made(self.declaration, **self.options, **options)
        sink.prepare(spark, frame.schema, place(self.folder))
        return sink

    def count(self, table: str = "people") -> int:
        return int(self.query(f"select count(*) from {table}")[0][0])


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        dsn = server.new_database()
        yield Store(POSTGRES, {"dsn": dsn}, lambda sql: server.sql(sql, dsn), tmp_path)
        return
    path = tmp_path / "rows.db"

    def query(sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(path)
        try:
            with connection:
                return connection.execute(sql).fetchall()
        finally:
            connection.close()

    yield Store(SQLITE, {"path": str(path)}, query, tmp_path)


def test_a_batch_that_is_run_again_writes_nothing_twice(spark, store):
    frame = rows(spark, numbers(50))
    sink = store.sink(spark, frame, table="people", create=True)
    sink.write(frame, batch(0))
    assert store.count() == 50
    sink.write(frame, batch(0, replayed=True))
    assert store.count() == 50
    sink.write(rows(spark, numbers(10, 50)), batch(1))
    assert store.count() == 60
    sink.write(frame, batch(0, run="run-2"))
    assert store.count() == 110, "a pipeline that was reset begins again"


def test_an_upsert_keeps_the_last_row_of_each_key_and_deletes_by_tombstone(spark, store):
    values = [(n % 5, f"version {n}") for n in range(40)] + [(3, None), (4, None), (4, "back")]
    frame = rows(spark, values, tasks=4)
    sink = store.sink(
        spark, frame, table="people", mode="upsert", key=["id"], delete_when="name is null",
        create=True,
    )  # fmt: skip
    sink.write(rows(spark, [(3, "before"), (9, "other")]), batch(0))
    sink.write(frame, batch(1))
    found = sorted((int(key), name) for key, name in store.query("select id, name from people"))
    assert found == [
        (0, "version 35"), (1, "version 36"), (2, "version 37"), (4, "back"), (9, "other"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "kind"),
    [("integer", "string"), ("uuid", "string"), ("numeric(10,0)", "decimal(9,1)")],
)
def test_rows_of_one_key_are_in_one_task_whatever_they_look_like(
    spark, postgres, tmp_path, column, kind
):
    dsn = postgres.new_database()
    postgres.sql(f"create table t (id {column} primary key, name text)", dsn)
    looks = {
        "integer": lambda n: str(n % 5).zfill(1 + n % 4),
        "uuid": lambda n: ("{:032x}" if n % 2 else "{:032X}").format(0xABCDEF << 8 | n % 5),
        "numeric(10,0)": lambda n: Decimal(n % 5) + Decimal(n % 4) / 10,
    }
    values = [(looks[column](n), f"version {n}") for n in range(60)]
    frame = rows(spark, values, f"id {kind}, name string", tasks=4)
    sink = made(POSTGRES, dsn=dsn, table="t", mode="upsert", key=["id"], tasks=4)
    sink.prepare(spark, frame.schema, place(tmp_path))
    sink.write(frame, batch(0))
    assert postgres.sql("select name from t order by id", dsn) == [
        [f"version {n}"] for n in range(55, 60)
    ]


def test_rows_that_a_constraint_refuses_are_named_and_nothing_of_their_task_is_kept(spark, store):
    store.query("create table people (id bigint primary key, name text check (length(name) < 9))")
    values = numbers(60)
    values[17] = (17, "much too long")
    values[41] = (5, "twice")
    frame = rows(spark, values)
    sink = store.sink(spark, frame, table="people")
    with pytest.raises(RowsRefused) as refused:
        sink.write(frame, batch(0))
    offsets = {json.loads(row.position)["offset"] for row in refused.value.rows}
    assert 17 in offsets
    assert len(offsets) == 2
    assert offsets - {17} <= {5, 41}, "one of the two rows with the same id"
    left = frame.where(~frame[f"{HIDDEN}.sequence"].isin(*offsets))
    with pytest.raises(RowsRefused):
        sink.probe(frame, batch(0))
    sink.probe(left, batch(0))
    sink.write(left, batch(0, replayed=True))
    assert store.count() == 58


def test_every_type_arrives_as_it_was(spark, store):
    schema = (
        "id int, flag boolean, small short, big long, real float, exact double, price decimal(9,2),"
        " name string, data binary, day date, at timestamp, local timestamp_ntz,"
        " tags array<string>, nested struct<a: int, b: string, at: timestamp, local: timestamp_ntz>"
    )
    one = spark.sql(
        "select 7 as id, true as flag, 8S as small, 9L as big, 1.5F as real, 2.25D as exact,"
        " cast(3.10 as decimal(9,2)) as price, 'name' as name, X'00FF' as data,"
        " date'2026-03-01' as day, timestamp'2026-03-01 12:00:00Z' as at,"
        " timestamp_ntz'2026-03-01 13:00:00' as local, array('x', 'y') as tags,"
        " named_struct('a', 1, 'b', cast(null as string),"
        " 'at', timestamp'2026-03-01 12:00:00.123456Z',"
        " 'local', timestamp_ntz'2026-03-01 13:00:00.123456') as nested"
    )
    values = [tuple(one.first()), (8, *[None] * 13)]
    frame = rows(spark, values, schema)
    sink = store.sink(spark, frame, table="kinds", create=True)
    sink.write(frame, batch(0))
    assert store.count("kinds") == 2
    [found] = store.query(
        "select id, big, real, exact, price, name, day, nested from kinds where id = 7"
    )
    number, big, real, exact, price, name, day, nested = found
    assert (int(number), int(big), float(real), float(exact)) == (7, 9, 1.5, 2.25)
    assert (Decimal(price), name, day) == (Decimal("3.10"), "name", "2026-03-01")
    assert json.loads(nested) == {
        "a": 1,
        "b": None,
        "at": "2026-03-01T12:00:00.123456Z",
        "local": "2026-03-01T13:00:00.123456",
    }
    [(at,)] = store.query("select at from kinds where id = 7")
    assert at.startswith("2026-03-01 12:00:00")
    assert store.query("select 1 from kinds where id = 8 and name is null and tags is null")


def test_a_table_that_is_not_there_and_columns_that_do_not_fit_are_told_before_the_first_batch(
    spark, store
):
    frame = rows(spark, numbers(1))
    with pytest.raises(ValueError, match="there is no table people; create it"):
        store.sink(spark, frame, table="people")
    store.query("create table people (id bigint)")
    with pytest.raises(ValueError, match="has no column name; it has id"):
        store.sink(spark, frame, table="people")
    with pytest.raises(Exception, match=r"(?i)unique"):
        store.sink(spark, frame.drop("name"), table="people", mode="upsert", key=["id"])


def test_a_field_that_comes_later_waits_for_its_column_and_is_not_left_out(spark, store):
    first = rows(spark, numbers(3))
    sink = store.sink(spark, first, table="people", mode="upsert", key=["id"], create=True)
    sink.write(first, batch(0))
    wider = rows(spark, [(3, "name 3", "Ada")], "id long, name string, nick string", start=3)
    for write in (sink.write, sink.probe):
        with pytest.raises(Outage, match="table people has no column nick; it has id, name"):
            write(wider, batch(1))
    assert store.count() == 3
    store.query("alter table people add column nick text")
    sink.write(wider, batch(1, replayed=True))
    assert [tuple(row) for row in store.query("select name, nick from people where id = 3")] == [
        ("name 3", "Ada")
    ]


def test_a_batch_is_spread_over_as_many_tasks_as_the_first_time(spark, postgres, tmp_path):
    dsn = postgres.new_database()
    store = Store(POSTGRES, {"dsn": dsn}, lambda sql: postgres.sql(sql, dsn), tmp_path)
    values = numbers(100)
    values[0] = (0, None)  # one task fails, others have committed
    frame = rows(spark, values)
    store.query("create table people (id bigint, name text not null)")
    sink = store.sink(spark, frame, table="people", tasks=4)
    with pytest.raises(RowsRefused):
        sink.write(frame, batch(0))
    assert 0 < store.count() < 99
    later = store.sink(spark, frame, table="people", tasks=3)
    later.write(frame.where("name is not null"), batch(0, replayed=True))
    assert store.count() == 99
    assert len(store.query("select distinct id from people")) == 99


def test_tasks_are_as_many_as_were_asked_for_whatever_adaptive_execution_thinks(
    spark, postgres, tmp_path
):
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    dsn = postgres.new_database()
    store = Store(POSTGRES, {"dsn": dsn}, lambda sql: postgres.sql(sql, dsn), tmp_path)
    frame = rows(spark, numbers(40))
    sink = store.sink(spark, frame, table="people", create=True, tasks=5)
    sink.write(frame, batch(0))
    assert sorted(int(task) for (task,) in store.query("select task from ottla_slots")) == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip


def test_a_server_that_is_away_and_a_right_that_is_gone_are_outages(spark, postgres, tmp_path):
    dsn = postgres.new_database()
    frame = rows(spark, numbers(5))
    store = Store(POSTGRES, {"dsn": dsn}, lambda sql: postgres.sql(sql, dsn), tmp_path)
    store.sink(spark, frame, table="people", create=True)
    role = dsn.rpartition("/")[2]
    store.query(f"create role {role} login")
    store.query(f"grant select, insert, update on ottla_slots, people to {role}")
    poor = Store(POSTGRES, {"dsn": dsn.replace("postgres@", f"{role}@")}, store.query, tmp_path)
    sink = poor.sink(spark, frame, table="people")
    store.query(f"revoke insert on people from {role}")
    with pytest.raises(Outage, match="permission denied"):
        sink.write(frame, batch(0))
    postgres.kill()
    with pytest.raises(Outage, match=r"PostgreSQL at 127\.0\.0\.1"):
        sink.write(frame, batch(0, replayed=True))
    postgres.start()
    store.query(f"grant insert on people to {role}")
    sink.write(frame, batch(0, replayed=True))
    assert store.count() == 5
