"""Which rows of a table of SQLite are read, and as what."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.databases import Missing
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sinks.postgres import PostgresDialect
from ottla.pipelines.connectors.sinks.sqlite import SINK, SqliteDialect
from ottla.pipelines.connectors.sources import table_poller
from ottla.pipelines.connectors.sources.sqlite import SOURCE, SqliteEngine
from ottla.pipelines.connectors.sources.table_plan import plan
from ottla.pipelines.connectors.sources.table_poller import TablePoller
from ottla.testing.connectors import made

DEFAULTS = {option.name: option.default for option in SOURCE.options}
OLD = "datetime('now', '-1 hour')"


class Pull:
    """Asks again and again, as a query does, its cursor going through JSON each time."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.plan = plan({**DEFAULTS, "table": "orders", "delay": 0.0, **options})
        engine = SqliteEngine(str(path))
        with engine.open() as database:
            table = engine.describe(database, self.plan)
        self.poller = TablePoller(engine, self.plan, table)
        self.cursor: Any = None

    def rows(self, *, end: Any = None, column: str = "id") -> list[Any]:
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def sql(path: Path) -> Callable[[str], None]:
    """Runs statements, by Python's own driver."""

    def run(text: str) -> None:
        with closing(sqlite3.connect(path)) as opened:
            opened.executescript(text)

    return run


@pytest.fixture
def pulls(path: Path) -> Iterator[Callable[..., Pull]]:
    made: list[Pull] = []

    def make(**options: Any) -> Pull:
        made.append(Pull(path, **options))
        return made[-1]

    yield make
    for each in made:
        each.poller.drop()


ORDERS = (
    "create table orders (id integer primary key, name text, at text default current_timestamp);"
)


def test_inserts_are_read_once(sql: Callable[[str], None], pulls: Callable[..., Pull]) -> None:
    sql(ORDERS)
    pull = pulls(mode="incrementing", columns=["id"], max_rows=2)
    assert pull.rows() == []
    sql("insert into orders (name) values ('a'), ('b'), ('c')")
    assert pull.rows(column="name") == ["a", "b", "c"]
    end = pull.poller.end()
    sql("insert into orders (name) values ('d')")
    assert pull.rows(end=end) == []
    assert pull.rows() == [4]


def test_all_rows_of_the_overlap_may_be_gone(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    sql(ORDERS + f"insert into orders values (1, 'a', {OLD})")
    pull = pulls(mode="timestamp", columns=["at"], overlap=60.0)
    assert pull.rows() == [1]
    sql("delete from orders")
    assert pull.rows() == []
    sql("insert into orders values (2, 'b', datetime('now', '-1 minute'))")
    assert pull.rows() == [2]


@pytest.mark.parametrize(
    ("now", "later"),
    [
        ("datetime('now', '-1 hour')", "datetime('now', '-1 minute')"),
        ("unixepoch('now', '-1 hour')", "unixepoch('now', '-1 minute')"),
        ("unixepoch('now', '-1 hour') * 1000", "unixepoch('now', '-1 minute') * 1000"),
    ],
)
def test_updates_are_read_again_and_what_came_late_within_the_overlap(
    sql: Callable[[str], None], pulls: Callable[..., Pull], now: str, later: str
) -> None:
    sql("create table orders (id integer primary key, name text, at datetime)")
    sql(f"insert into orders values (1, 'a', {now}), (2, 'b', {now}), (3, 'none', null)")
    pull = pulls(mode="incrementing+timestamp", columns=["id", "at"], max_rows=1, overlap=7200.0)
    assert pull.rows(column="name") == ["a", "b"]
    sql(f"update orders set name = 'A', at = {later} where id = 1")
    assert pull.rows(column="name") == ["A"]
    sql(f"insert into orders values (4, 'late', {now})")
    assert pull.rows(column="name") == ["late"]
    assert pull.rows() == []


def test_rows_of_this_second_wait(sql: Callable[[str], None], pulls: Callable[..., Pull]) -> None:
    sql(ORDERS)
    sql(f"insert into orders (name, at) values ('old', {OLD}), ('new', datetime('now', '+1 hour'))")
    pull = pulls(mode="timestamp", columns=["at"], delay=1.0)
    assert pull.rows(column="name") == ["old"]
    assert pull.rows(end=pull.poller.end()) == []


def test_a_pipeline_may_begin_with_what_follows(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    sql(ORDERS)
    sql(f"insert into orders (name, at) values ('before', {OLD})")
    pull = pulls(mode="incrementing+timestamp", columns=["id", "at"], start="latest")
    assert pull.rows() == []
    sql("insert into orders (name, at) values ('after', datetime('now', '-1 second'))")
    assert pull.rows(column="name") == ["after"]


def test_the_whole_table_comes_in_pages_of_one_moment(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    sql("create table orders (id int, name text)")
    sql("insert into orders values (1, null), (2, null), (3, 'c')")
    answer = pulls(max_rows=2).poller.poll(None, None)
    assert answer is not None
    assert [table.to_pylist() for table in answer.tables] == [
        [
            {"id": 1, "name": None, "_ottla_error": None},
            {"id": 2, "name": None, "_ottla_error": None},
        ],
        [{"id": 3, "name": "c", "_ottla_error": None}],
    ]


def test_a_clock_that_is_set_back_reads_no_table_twice(
    sql: Callable[[str], None], pulls: Callable[..., Pull], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql("create table orders (id integer primary key); insert into orders values (1), (2)")
    pull = pulls()
    end = pull.poller.end()
    monkeypatch.setattr(table_poller, "time", SimpleNamespace(time=lambda: end - 3600))
    assert (pull.rows(end=end), pull.rows(end=end)) == ([1, 2], [])


def test_an_integer_that_is_no_floating_point_number_is_not_rounded(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    exact = [0, -5, 2**53, 2**53 + 2, -(2**63), 2**63 - 1024]
    others = [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63 - 1023]
    sql("create table orders (id integer primary key, n numeric)")
    rows = ", ".join(f"({number})" for number in [*exact, *others, "1.5", "null"])
    sql(f"insert into orders (n) values {rows}")
    pull = pulls()
    assert pull.rows(column="n") == [*map(float, exact), *[None] * len(others), 1.5, None]
    pull.cursor = None
    said = pull.rows(column="_ottla_error")
    assert [each is not None for each in said] == [False] * 6 + [True] * 4 + [False] * 2
    assert "9007199254740993" in said[6]


def test_rows_without_an_id_are_no_end(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    """They are never read, also where there are no others."""
    sql("create table orders (id int); insert into orders values (null)")
    pull = pulls(mode="incrementing", columns=["id"])
    assert pull.rows(end=pull.poller.end()) == []
    latest = pulls(mode="incrementing", columns=["id"], start="latest")
    assert latest.rows() == []
    sql("insert into orders values (1)")
    assert (pull.rows(end=pull.poller.end()), latest.rows()) == ([1], [1])


def test_a_value_of_another_type_is_an_error_of_its_row(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    sql(
        "create table orders (id int, n real, b boolean, t text, x blob, d date, m numeric(9,2), u)"
    )
    sql("insert into orders values (1, 1, true, 'a', x'00', '2026-01-02', 1.25, 'any')")
    sql("insert into orders values ('one', 'two', 'yes', x'01', 'y', 5, 'much', 7)")
    answer = pulls().poller.poll(None, None)
    assert answer is not None
    good, bad = next(iter(answer.tables)).to_pylist()
    assert good == {
        "id": 1, "n": 1.0, "b": True, "t": "a", "x": b"\0", "d": "2026-01-02", "m": 1.25,
        "u": "any", "_ottla_error": None,
    }  # fmt: skip
    assert bad["_ottla_error"] == (
        "id is text 'one'; n is text 'two'; b is text 'yes'; t is blob X'01'; x is text 'y'; "
        "m is text 'much'"
    )
    assert (bad["id"], bad["d"], bad["u"]) == (None, "5", "7")


def test_what_is_not_there_is_said(
    sql: Callable[[str], None], pulls: Callable[..., Pull], path: Path
) -> None:
    with pytest.raises(Outage, match="there is no such file"):
        pulls()
    sql("create table other (id int, at text)")
    with pytest.raises(Missing, match="has no table orders: create it, or name another"):
        pulls()
    with pytest.raises(ValueError, match=r"no primary key, .*: name the columns that do with key"):
        pulls(table="other", mode="timestamp", columns=["at"])
    pull = pulls(table="other", mode="timestamp", columns=["at"], key=["id"])
    sql("drop table other")
    with pytest.raises(Missing, match="no such table"):
        pull.rows()


def test_an_id_that_sqlite_gives_again_is_what_only_change_data_capture_catches(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    for kind, read in (("", []), ("autoincrement", [3])):
        sql(
            "drop table if exists orders; "
            f"create table orders (id integer primary key {kind}, name text); "
            "insert into orders (name) values ('a'), ('b')"
        )
        pull = pulls(mode="incrementing", columns=["id"])
        assert pull.rows() == [1, 2]
        sql("delete from orders where id = 2; insert into orders (name) values ('c')")
        assert pull.rows() == read


def test_rows_of_one_moment_may_have_keys_of_bytes(
    sql: Callable[[str], None], pulls: Callable[..., Pull]
) -> None:
    sql(f"""create table orders (id blob primary key, at text);
        insert into orders values (x'00ff', {OLD}), (x'01', {OLD}), (x'', {OLD})""")
    pull = pulls(mode="timestamp", columns=["at"], max_rows=1)
    assert pull.rows() == [b"", b"\x00\xff", b"\x01"]
    assert pull.rows() == []


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ('"Or""ders"', '"Or""ders"'),
        ('main."Or.ders"', '"Or.ders"'),
        ("Or ders", '"Or ders"'),
    ],
)
def test_a_source_and_a_sink_mean_the_same_table_by_the_same_name(name, table, path, sql, pulls):
    """`"Or""ders"` was the table Orders for a source, and one with four quotes for a sink."""
    sql("create table Orders (Id integer)")
    sql(f"create table {table} (Id integer primary key, n text collate nocase unique)")
    sql(f"insert into {table} values (7, 'x')")
    assert pulls(table=name).rows(column="Id") == [7]
    dialect = SqliteDialect(str(path))
    session = dialect.connect()
    try:
        found = dialect.columns(session, name)
        assert session.rows(f"select Id from {dialect.name(name)}") == [(7,)]
    finally:
        session.close()
    assert {column: each.collation for column, each in found.items()} == {"Id": None, "n": "nocase"}


@pytest.mark.parametrize("name", ['Or"ders', '"Orders', "a.b.c", "", ".a", '""', '"a"b'])
@pytest.mark.parametrize("declaration", [SOURCE, SINK])
def test_what_is_no_name_of_a_table_is_a_mistake_that_says_how_to_write_one(name, declaration):
    with pytest.raises(Mistake, match=r'is no name of a table.*"my""table"'):
        made(declaration, path="shop.db", table=name)


@pytest.mark.parametrize("name", ["shop.orders", "temp.orders", '"TEMP".orders'])
@pytest.mark.parametrize("declaration", [SOURCE, SINK])
def test_a_schema_that_no_file_has_is_a_mistake(name, declaration):
    """A table of `temp`, made by one connection, was waited for in the next without an end."""
    with pytest.raises(Mistake, match=r'no schema but main; .* in double quotes: "my\.table"'):
        made(declaration, path="shop.db", table=name)
    made(declaration, path="shop.db", table='Main."shop.orders"')


def test_a_table_of_another_schema_is_quoted_for_postgresql():
    assert PostgresDialect("postgresql://h/d").name('shop."Or.d""ers"') == '"shop"."Or.d""ers"'
