"""Which rows of a table of PostgreSQL are read, while others write to it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.databases import Database, Missing, open_postgres
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sources import seen
from ottla.pipelines.connectors.sources.postgres import SOURCE, PostgresEngine
from ottla.pipelines.connectors.sources.table_plan import plan
from ottla.pipelines.connectors.sources.table_poller import TablePoller
from ottla.testing.connectors import made
from ottla.testing.postgres import PostgresProcess

DEFAULTS = {option.name: option.default for option in SOURCE.options}


MADE: list[TablePoller] = []


@pytest.fixture(autouse=True)
def _connections_are_closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().drop()


class Pull:
    """Asks again and again, as a query does, its cursor going through JSON each time."""

    def __init__(self, dsn: str, **options: Any) -> None:
        values = {**DEFAULTS, "dsn": dsn, "table": "orders", "delay": 0.0, **options}
        self.plan = plan(values)
        self.engine = PostgresEngine(dsn, values["timezone"])
        self.cursor: Any = None
        self.connect()

    def connect(self) -> None:
        """As a new process does."""
        with self.engine.open() as database:
            self.table = self.engine.describe(database, self.plan)
        self.poller = TablePoller(self.engine, self.plan, self.table)
        MADE.append(self.poller)

    def rows(self, *, end: Any = None, column: str = "id") -> list[Any]:
        """What is new."""
        found: list[Any] = []
        while True:
            answer = self.poller.poll(self.cursor, end)
            if answer is None:
                return found
            for table in answer.tables:
                found += table.column(column).to_pylist()
            self.cursor = json.loads(json.dumps(answer.cursor))
            if not answer.more:
                return found

    def whole(self) -> list[dict[str, Any]]:
        answer = self.poller.poll(self.cursor, None)
        assert answer is not None
        self.cursor = answer.cursor
        return [row for table in answer.tables for row in table.to_pylist()]


@pytest.fixture
def sessions(database: str) -> Iterator[Callable[[], Database]]:
    """`sessions()`: one more connection to the database."""
    opened: list[Database] = []

    def session() -> Database:
        opened.append(open_postgres(database))
        return opened[-1]

    yield session
    for each in opened:
        each.close()


@pytest.fixture
def orders(postgres: PostgresProcess, database: str) -> str:
    postgres.sql(
        "create table orders (id bigserial primary key, name text, "
        "updated_at timestamptz not null default now())",
        database,
    )
    return database


@contextmanager
def left_open(session: Database) -> Iterator[Database]:
    """A transaction that is still open within the block, and committed after it."""
    with session.transaction():
        yield session


def add(postgres: PostgresProcess, dsn: str, *names: str) -> None:
    values = ", ".join(f"('{name}')" for name in names)
    postgres.sql(f"insert into orders (name) values {values}", dsn)


def test_inserts_are_read_once_in_the_order_of_their_ids(
    postgres: PostgresProcess, orders: str
) -> None:
    pull = Pull(orders, mode="incrementing", columns=["id"], max_rows=2)
    assert pull.rows() == []
    add(postgres, orders, "a", "b", "c", "d", "e")
    assert pull.rows() == [1, 2, 3, 4, 5]
    assert pull.rows() == []
    add(postgres, orders, "f")
    pull.connect()
    assert pull.rows(column="name") == ["f"]


def test_an_id_that_commits_late_is_not_passed_over(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database]
) -> None:
    pull = Pull(orders, mode="incrementing", columns=["id"])
    with left_open(sessions()) as late:
        late.execute("insert into orders (name) values ('late')")
        add(postgres, orders, "b")
        assert pull.rows() == []
        assert pull.rows() == []
    assert pull.rows() == [1, 2]


def test_an_id_of_a_younger_transaction_is_waited_for_when_an_older_one_takes_a_later_id(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database]
) -> None:
    """A snapshot of PostgreSQL does not name transactions younger than the last that has ended."""
    pull = Pull(orders, mode="incrementing", columns=["id"])
    older, younger = sessions(), sessions()
    with left_open(younger):
        with left_open(older):
            older.execute("create table mark ()")
            younger.execute("insert into orders (name) values ('first')")
            older.execute("insert into orders (name) values ('second')")
        assert pull.rows() == []
    assert pull.rows(column="name") == ["first", "second"]


def test_ids_are_read_up_to_what_was_there_before_the_oldest_writer(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database]
) -> None:
    """Where there is always somebody writing, one goes on all the same."""
    pull = Pull(orders, mode="incrementing", columns=["id"])
    first, second = sessions(), sessions()
    with left_open(second):
        with left_open(first):
            first.execute("insert into orders (name) values ('a')")
            assert pull.rows() == []  # notes who writes
            second.execute("insert into orders (name) values ('b')")
            add(postgres, orders, "c")
        assert pull.rows() == []  # the first has ended, but its id is not below what was noted
        pull.rows()
    assert pull.rows() == [1, 2, 3]


def test_an_id_taken_before_the_first_write_is_what_only_change_data_capture_catches(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database]
) -> None:
    pull = Pull(orders, mode="incrementing", columns=["id"])
    add(postgres, orders, "a")  # PostgreSQL logs ids by the dozen: the next one writes nothing
    with left_open(sessions()) as early:
        taken = early.value("select nextval('orders_id_seq')")
        add(postgres, orders, "b")
        assert pull.rows() == [1, 3]
        early.execute(f"insert into orders values ({taken}, 'lost')")
    assert pull.rows() == []
    assert taken == 2


def test_a_delete_is_what_only_change_data_capture_catches(
    postgres: PostgresProcess, orders: str
) -> None:
    pull = Pull(orders, mode="incrementing+timestamp", columns=["id", "updated_at"])
    add(postgres, orders, "a", "b")
    assert pull.rows() == [1, 2]
    postgres.sql("delete from orders where id = 1", orders)
    assert pull.rows() == []


def test_updates_are_read_again(postgres: PostgresProcess, orders: str) -> None:
    pull = Pull(orders, mode="incrementing+timestamp", columns=["id", "updated_at"], max_rows=2)
    add(postgres, orders, "a", "b", "c")
    assert pull.rows(column="name") == ["a", "b", "c"]
    postgres.sql("update orders set name = 'A', updated_at = now() where id = 1", orders)
    assert pull.rows(column="name") == ["A"]


@pytest.mark.parametrize("mode", ["timestamp", "incrementing+timestamp"])
def test_a_transaction_that_began_earlier_and_commits_later_is_not_passed_over(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database], mode: str
) -> None:
    columns = ["updated_at"] if mode == "timestamp" else ["id", "updated_at"]
    pull = Pull(orders, mode=mode, columns=columns)
    add(postgres, orders, "before")
    with left_open(sessions()) as slow:
        assert slow.value("select 1") == 1  # it has begun, and written nothing
        add(postgres, orders, "meanwhile")
        assert pull.rows(column="name") == ["before"]
        slow.execute("insert into orders (name) values ('slow')")
        assert pull.rows() == []
    assert pull.rows(column="name") == ["slow", "meanwhile"]


def test_a_prepared_transaction_is_waited_for(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database]
) -> None:
    """PostgreSQL tells when it was prepared; its rows are as old as its beginning."""
    pull = Pull(orders, mode="incrementing+timestamp", columns=["id", "updated_at"])
    add(postgres, orders, "before")
    assert pull.rows(column="name") == ["before"]
    session = sessions()
    session.execute("begin")
    session.execute("insert into orders (name) values ('prepared')")
    add(postgres, orders, "meanwhile")
    session.execute(f"prepare transaction 'p{orders[-12:]}'")
    add(postgres, orders, "after")
    assert pull.rows() == []
    pull.connect()
    assert pull.rows() == []
    session.execute(f"commit prepared 'p{orders[-12:]}'")
    assert pull.rows(column="name") == ["prepared", "meanwhile", "after"]


def test_rows_younger_than_the_delay_are_left_for_later(
    postgres: PostgresProcess, orders: str
) -> None:
    pull = Pull(orders, mode="incrementing+timestamp", columns=["id", "updated_at"], delay=3600.0)
    add(postgres, orders, "young")
    postgres.sql(
        "insert into orders (name, updated_at) values ('old', now() - interval '2 hours')", orders
    )
    assert pull.rows(column="name") == ["old"]


def test_the_overlap_finds_what_a_clients_clock_has_put_into_the_past(
    postgres: PostgresProcess, orders: str
) -> None:
    options = {"mode": "incrementing+timestamp", "columns": ["id", "updated_at"]}
    plain = Pull(orders, **options)
    pull = Pull(orders, **options, overlap=600.0)
    add(postgres, orders, "a", "b")
    assert plain.rows(column="name") == pull.rows(column="name") == ["a", "b"]
    postgres.sql(
        "insert into orders (name, updated_at) values ('late', now() - interval '5 minutes'), "
        "('too late', now() - interval '20 minutes')",
        orders,
    )
    assert plain.rows() == []
    assert pull.rows(column="name") == ["late"]
    assert pull.rows() == []
    pull.connect()
    add(postgres, orders, "c")
    assert pull.rows(column="name") == ["c"]
    postgres.sql("update orders set name = 'A', updated_at = now() where id = 1", orders)
    assert pull.rows(column="name") == ["A"]


def test_the_hour_that_comes_twice_is_what_an_overlap_or_a_time_zone_catches(
    postgres: PostgresProcess, database: str
) -> None:
    """When summer time ends, a timestamp without a time zone is put back by an hour."""
    postgres.sql(
        "create table orders (id bigserial primary key, at timestamp, moment timestamptz)", database
    )

    def add(moment: str) -> None:
        postgres.sql(
            "insert into orders (at, moment) select m at time zone 'Europe/Berlin', m "
            f"from (select timestamptz '{moment}' as m) as t",
            database,
        )

    both = {"mode": "incrementing+timestamp", "timezone": "Europe/Berlin"}
    plain = Pull(database, columns=["id", "at"], **both)
    overlapping = Pull(database, columns=["id", "at"], overlap=3700.0, **both)
    zoned = Pull(database, columns=["id", "moment"], **both)
    pulls = (plain, overlapping, zoned)
    add("2025-10-26 00:59:59Z")  # 02:59:59, in summer time
    assert [pull.rows() for pull in pulls] == [[1], [1], [1]]
    add("2025-10-26 01:00:01Z")  # 02:00:01, once more
    assert [pull.rows() for pull in pulls] == [[], [2], [2]]
    add("2025-10-26 02:30:00Z")
    assert [pull.rows() for pull in pulls] == [[3], [3], [3]]


def test_an_overlap_with_too_many_rows_is_refused(
    postgres: PostgresProcess, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "MOST", 2)
    pull = Pull(orders, mode="incrementing+timestamp", columns=["id", "updated_at"], overlap=60.0)
    add(postgres, orders, "a", "b", "c")
    with pytest.raises(ValueError, match="give a shorter overlap"):
        pull.rows()


def test_rows_of_one_moment_without_a_key_stay_together(
    postgres: PostgresProcess, database: str
) -> None:
    postgres.sql("create table orders (name text, updated_at timestamp)", database)
    postgres.sql("insert into orders values ('x', null)", database)
    postgres.sql("insert into orders values ('a', now()), ('b', now()), ('c', now())", database)
    postgres.sql("insert into orders values ('d', now()), ('d', now())", database)
    pull = Pull(database, mode="timestamp", columns=["updated_at"], max_rows=2)
    assert sorted(pull.rows(column="name")) == ["a", "b", "c", "d", "d"]
    assert pull.rows() == []


@pytest.mark.parametrize("key", [(), ("a", "b")])
def test_rows_that_differ_in_what_is_null_are_two_rows(
    postgres: PostgresProcess, database: str, key: tuple[str, ...]
) -> None:
    postgres.sql("create table orders (id int, a text, b text, at timestamptz)", database)
    postgres.sql("insert into orders values (1, 'x', null, now() - interval '1 hour')", database)
    pull = Pull(
        database, mode="incrementing+timestamp" if key else "timestamp",
        columns=["id", "at"] if key else ["at"], key=key, overlap=600.0,
    )  # fmt: skip
    assert pull.rows(column="a") == ["x"]
    postgres.sql("insert into orders select 1, null, a, at from orders", database)
    assert pull.rows(column="b") == ["x"]
    assert pull.rows() == []


def test_a_pipeline_may_begin_with_what_follows(postgres: PostgresProcess, orders: str) -> None:
    add(postgres, orders, "before")
    by_id = Pull(orders, mode="incrementing", columns=["id"], start="latest")
    by_time = Pull(
        orders, mode="incrementing+timestamp", columns=["id", "updated_at"], start="latest"
    )
    first = by_id.poller.poll(None, None)
    assert first is not None
    assert first.keep
    assert by_id.rows() == by_time.rows() == []
    add(postgres, orders, "after")
    assert by_id.rows(column="name") == by_time.rows(column="name") == ["after"]


def test_a_run_that_ends_reads_what_was_there_when_it_began(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database]
) -> None:
    by_id = Pull(orders, mode="incrementing", columns=["id"])
    by_time = Pull(orders, mode="incrementing+timestamp", columns=["id", "updated_at"])
    add(postgres, orders, "before")
    with left_open(sessions()) as writer:
        writer.execute("insert into orders (name) values ('under way')")
        ends = by_id.poller.end(), by_time.poller.end()
        with pytest.raises(Outage, match="waits for transactions to end"):
            by_id.rows(end=ends[0])
    add(postgres, orders, "after")
    assert by_id.rows(end=ends[0]) == [1]
    assert by_id.rows() == [2, 3]
    assert by_time.rows(end=ends[1]) == [1, 2]
    assert by_time.rows() == [3]


def test_the_whole_table_is_read_again_and_again(postgres: PostgresProcess, orders: str) -> None:
    add(postgres, orders, "a", "b")
    pull = Pull(orders, mode="bulk", every=0.0)
    assert pull.rows(column="name") == ["a", "b"]
    postgres.sql("delete from orders where id = 1", orders)
    assert pull.rows(column="name") == ["b"]
    hourly = Pull(orders, mode="bulk")
    assert hourly.rows() == [2]
    assert hourly.rows() == []
    end = hourly.poller.end()
    assert hourly.rows(end=end) == [2]
    assert hourly.rows(end=end) == []


def test_every_type_comes_as_what_it_is_or_as_text(
    postgres: PostgresProcess, database: str
) -> None:
    postgres.sql(
        "create type mood as enum ('sad', 'ok'); create domain percent as numeric(5,2); "
        "create table orders (id int primary key, i2 int2, f4 float4, f8 float8, b bool, "
        "d date, ts timestamp, tz timestamptz, n numeric, n2 numeric(10,2), p percent, u uuid, "
        "j jsonb, a int[], m mood, bin bytea, c char(3), t time, huge numeric(60,2))",
        database,
    )
    postgres.sql(
        "insert into orders values (1, 2, 0.5, 0.25, true, '2026-01-02', '2026-01-02 03:04:05.6', "
        "'2026-01-02 03:04:05+02', 1.5, 12.34, 99.5, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', "
        """'{"a": 1}', '{1,null,3}', 'ok', '\\x00ff', 'ab', '01:02:03', 7), """
        "(2" + ", null" * 18 + ")",
        database,
    )
    full, empty = Pull(database).whole()
    assert {name: str(value) for name, value in full.items()} == {
        "id": "1",
        "i2": "2",
        "f4": "0.5",
        "f8": "0.25",
        "b": "True",
        "d": "2026-01-02",
        "ts": "2026-01-02 03:04:05.600000",
        "tz": "2026-01-02 01:04:05+00:00",
        "n": "1.500000000000000000",
        "n2": "12.34",
        "p": "99.50",
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "j": '{"a": 1}',
        "a": "[1,null,3]",
        "m": "ok",
        "bin": "b'\\x00\\xff'",
        "c": "ab",
        "t": "01:02:03",
        "huge": "7.00",
        "_ottla_error": "None",
    }
    assert {name for name, value in empty.items() if value is not None} == {"id"}


def test_a_value_that_no_type_of_spark_can_hold_is_an_error_of_its_row(
    postgres: PostgresProcess, database: str
) -> None:
    postgres.sql("create table orders (id int primary key, n numeric, at timestamptz)", database)
    postgres.sql(
        "insert into orders values (1, 'NaN', now()), (2, 1e30, 'infinity'), "
        "(3, 0.0000000000000000001, now()), (4, 5, now())",
        database,
    )
    rows = Pull(database).whole()
    assert [(row["n"], row["_ottla_error"]) for row in rows[:3]] == [
        (None, "n is NaN"),
        (None, "n is 1000000000000000000000000000000; at is infinity"),
        (None, "n is 0.0000000000000000001"),
    ]
    assert rows[3]["_ottla_error"] is None


def test_what_a_user_may_not_see_is_said(postgres: PostgresProcess, orders: str) -> None:
    role = f"poor_{orders[-12:]}"
    postgres.sql(f"create role {role} login; grant select on orders to {role}", orders)
    poor = orders.replace("postgres@", f"{role}@")
    options = {"mode": "timestamp", "columns": ["updated_at"]}
    with pytest.raises(Outage, match=f'grant pg_read_all_stats to "{role}"'):
        Pull(poor, **options)
    postgres.sql(f"grant pg_read_all_stats to {role}", orders)
    pull = Pull(poor, **options)
    add(postgres, orders, "a")
    assert pull.rows(column="name") == ["a"]
    postgres.sql(f"revoke select on orders from {role}", orders)
    with pytest.raises(Outage, match="permission denied for table orders"):
        pull.rows()
    postgres.sql(f"grant select on orders to {role}", orders)
    add(postgres, orders, "b")
    assert pull.rows(column="name") == ["b"]


def test_a_right_that_is_revoked_later_is_said_before_a_row_is_passed_over(
    postgres: PostgresProcess, orders: str, sessions: Callable[[], Database]
) -> None:
    role = f"poor_{orders[-12:]}"
    postgres.sql(
        f"create role {role} login; grant select on orders to {role}; "
        f"grant pg_read_all_stats to {role}",
        orders,
    )
    poor = orders.replace("postgres@", f"{role}@")
    pull = Pull(poor, mode="timestamp", columns=["updated_at"])
    assert pull.rows() == []
    postgres.sql(f"revoke pg_read_all_stats from {role}", orders)
    with left_open(sessions()) as late:
        late.execute("insert into orders (name) values ('late')")
        add(postgres, orders, "b")
        with pytest.raises(Outage, match=f'grant pg_read_all_stats to "{role}"'):
            pull.rows()
    postgres.sql(f"grant pg_read_all_stats to {role}", orders)
    assert pull.rows(column="name") == ["late", "b"]


@pytest.fixture
def standby(postgres: PostgresProcess, orders: str, tmp_path: Path) -> Iterator[PostgresProcess]:
    """A server that follows the other one."""
    with tempfile.TemporaryDirectory(prefix="ottla-standby-") as home:
        if postgres.user is not None:
            os.chown(home, postgres.user, postgres.user)
        postgres.copy_to(Path(home) / "data")
        with PostgresProcess(tmp_path, home=Path(home)) as server:
            server.start()
            yield server


def test_a_standby_is_refused_since_it_does_not_know_who_is_writing(
    postgres: PostgresProcess,
    orders: str,
    standby: PostgresProcess,
    sessions: Callable[[], Database],
    eventually: Callable[..., Any],
) -> None:
    there = orders.replace(postgres.where, standby.where)
    modes: list[dict[str, Any]] = [
        {"mode": "incrementing", "columns": ["id"]},
        {"mode": "timestamp", "columns": ["updated_at"]},
        {"mode": "incrementing+timestamp", "columns": ["id", "updated_at"]},
    ]
    pulls = [Pull(orders, **options) for options in modes]
    with left_open(sessions()) as late:
        late.execute("insert into orders (name) values ('late')")
        add(postgres, orders, "b")
        eventually(lambda: standby.sql("select name from orders", there) == [["b"]])
        for pull, options in zip(pulls, modes, strict=True):
            with pytest.raises(ValueError, match=r"is a standby.*would lose rows"):
                Pull(there, **options)
            # a connection that was lost may lead to the standby the next time
            pull.poller = TablePoller(PostgresEngine(there), pull.plan, pull.table)
            MADE.append(pull.poller)
            with pytest.raises(Outage, match=r"is a standby.*would lose rows"):
                pull.rows()
    assert Pull(there).whole()  # the whole table is what it is


def test_a_table_that_vanishes_is_named(postgres: PostgresProcess, orders: str) -> None:
    pull = Pull(orders, mode="incrementing", columns=["id"])
    postgres.sql("drop table orders", orders)
    with pytest.raises(Missing, match='relation "orders" does not exist'):
        pull.rows()
    with pytest.raises(Missing, match="has no table orders that this user can see: create it"):
        pull.connect()


@pytest.mark.parametrize(
    ("before", "now", "value", "read"),
    [
        ("real", "double precision", "0.1", 0.1),
        ("date", "timestamp", "'2026-01-01 12:00'", datetime(2026, 1, 1, 12)),
        ("integer", "text", "'007'", "007"),
        ("boolean", "integer", "7", 7),
        ("integer", "bigint", "5000000000", 5_000_000_000),
        ("timestamp", "timestamptz", "'2026-01-01 12:00Z'", datetime(2026, 1, 1, 12, tzinfo=UTC)),
    ],
)
def test_a_type_that_changes_changes_no_value(
    postgres: PostgresProcess, database: str, before: str, now: str, value: str, read: Any
) -> None:
    postgres.sql(f"create table orders (id bigserial primary key, c {before})", database)
    pull = Pull(database, mode="incrementing", columns=["id"])
    assert pull.rows() == []
    postgres.sql(f"alter table orders alter c type {now} using null", database)
    postgres.sql(f"insert into orders (c) values ({value})", database)
    with pytest.raises(ValueError, match=r"column c of orders has another type .* start the pip"):
        pull.rows()
    pull.connect()
    assert pull.rows(column="c") == [read]


def test_columns_that_cannot_be_right_are_refused(postgres: PostgresProcess, orders: str) -> None:
    with pytest.raises(Missing, match="there is no column nr; there are id, name, updated_at"):
        Pull(orders, mode="incrementing", columns=["nr"])
    with pytest.raises(ValueError, match="name is text, and mode timestamp needs a timestamp"):
        Pull(orders, mode="timestamp", columns=["name"])


@pytest.mark.parametrize(
    ("options", "option", "sentence"),
    [
        ({"mode": "timestamp"}, "columns", "goes by one column, and 0 are given"),
        ({"mode": "bulk", "columns": ["id"]}, "columns", "goes by no columns"),
        (
            {"mode": "incrementing+timestamp", "columns": ["id"]},
            "columns",
            "two columns, the id and the timestamp",
        ),
        ({"mode": "incrementing+timestamp", "columns": ["a", "a"]}, "columns", "twice"),
        ({"mode": "incrementing", "columns": ["a"], "overlap": 5.0}, "overlap", "stretch of time"),
        ({"mode": "bulk", "start": "latest"}, "start", "whole table"),
        ({"max_rows": 0}, "max_rows", "at least one row"),
        ({"table": "a.b.c"}, "table", "table, or schema.table"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    options: dict[str, Any], option: str, sentence: str
) -> None:
    with pytest.raises(Mistake, match=sentence) as told:
        made(SOURCE, **{"dsn": "", "table": "t", **options})
    assert told.value.option == option


def test_names_are_quoted_whatever_is_in_them(postgres: PostgresProcess, database: str) -> None:
    postgres.sql(
        'create schema "my.schema"; create table "my.schema"."O rders" ("the ""id" int); '
        'insert into "my.schema"."O rders" values (1)',
        database,
    )
    pull = Pull(database, table='"my.schema"."O rders"', mode="incrementing", columns=['the "id'])
    assert pull.rows(column='the "id') == [1]


def test_what_is_read_fits_arrow(postgres: PostgresProcess, orders: str) -> None:
    add(postgres, orders, "a")
    pull = Pull(orders)
    assert [field.type for field in _first(pull).schema] == [
        pa.int64(),
        pa.string(),
        pa.timestamp("us", "UTC"),
        pa.string(),
    ]


def _first(pull: Pull) -> pa.Table:
    answer = pull.poller.poll(None, None)
    assert answer is not None
    return next(iter(answer.tables))
