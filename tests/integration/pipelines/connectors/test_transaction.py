"""One task's transaction in a real PostgreSQL and in SQLite, without Spark around it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipelines.connectors.contract import Batch, Outage, RowsRefused
from ottla.pipelines.connectors.sinks import slots, transaction
from ottla.pipelines.connectors.sinks.postgres_session import PostgresSession
from ottla.pipelines.connectors.sinks.sqlite import SqliteDialect
from ottla.pipelines.connectors.sinks.transaction import (
    DELETE,
    LINE,
    POSITION,
    SEQUENCE,
    Target,
    Transact,
)

COLUMNS = (("id", '"id"'), ("name", '"name"'))


@dataclass
class Store:
    connect: Callable[[], Any]
    query: Callable[[str], list[Any]]

    def work(
        self, *, batch: int = 0, run: str = "run-1", keep: bool = True, **target: Any
    ) -> Transact:
        shape = {"keys": (), "deletes": False} | target
        shape["compared"] = tuple(f'"{key}"' for key in shape["keys"])
        slot = slots.Slot("shop", "sink", run, batch, 2)
        return Transact(self.connect, Target('"people"', COLUMNS, **shape), slot, keep)

    def rows(self) -> list[tuple[int, str]]:
        found = self.query("select id, name from people order by id, name")
        return [(int(number), name) for number, name in found]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        dsn = server.new_database()
        made = Store(lambda: PostgresSession(dsn), lambda sql: server.sql(sql, dsn))
    else:
        path = tmp_path / "rows.db"

        def query(sql: str) -> list[Any]:
            connection = sqlite3.connect(path)
            try:
                with connection:
                    return connection.execute(sql).fetchall()
            finally:
                connection.close()

        made = Store(SqliteDialect(str(path)).connect, query)
    made.query(slots.CREATE)
    made.query(
        "create table people (id bigint primary key, name varchar(100) check (name <> 'bad'))"
    )
    return made


def given(*values: tuple[Any, ...], line: int = 0) -> Iterator[Any]:
    """(id, name), or (id, name, whether it is a tombstone), two rows a batch."""
    for start in range(0, len(values), 2):
        part = values[start : start + 2]
        columns = {
            "id": pa.array([value[0] for value in part], pa.int64()),
            "name": pa.array([value[1] for value in part], pa.string()),
            POSITION: [f"row {number}" for number in range(start, start + len(part))],
            LINE: pa.array([line] * len(part), pa.int64()),
            SEQUENCE: pa.array(range(start, start + len(part)), pa.int64()),
        }
        if len(part[0]) > 2:
            columns[DELETE] = pa.array([value[2] for value in part], pa.bool_())
        yield pa.RecordBatch.from_pydict(columns)


def test_rows_and_slot_are_committed_together_and_once(store):
    assert store.work()(0, given((1, "a"), (2, "b"), (3, "c"))).rows == 3
    assert store.work()(0, given((1, "a"), (2, "b"), (3, "c"))).skipped
    assert store.work()(1, given((4, "d"))).rows == 1, "another task has another slot"
    assert store.work(batch=1)(0, given((5, "e"))).rows == 1
    assert store.work(batch=0)(0, given((6, "f"))).skipped, "an older batch comes too late"
    assert store.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]


def test_pipelines_of_one_name_have_slots_of_their_own(store):
    """Two clusters, or two folders: each has a checkpoint, and counts its batches from 0."""
    for number, run in enumerate(["run-1", "run-2"]):
        assert store.work(run=run)(0, given((number, "a"))).rows == 1
    for run in ("run-1", "run-2"):
        assert store.work(run=run)(0, given((8, "again"))).skipped
    assert store.work(run="run-2", batch=5)(0, given((2, "b"))).rows == 1
    assert store.work(run="run-1", batch=1)(0, given((3, "c"))).rows == 1
    assert store.rows() == [(0, "a"), (1, "a"), (2, "b"), (3, "c")]


def test_a_slot_of_the_name_alone_still_says_what_its_checkpoint_has_written(store):
    store.query("insert into ottla_slots values ('shop', 'sink', 0, 'run-1', 5, 3)")
    session = store.connect()
    try:
        assert slots.tasks_of(session, Batch("shop", "sink", "run-1", 5, replayed=True)) == 3
        assert slots.tasks_of(session, Batch("shop", "sink", "run-2", 5, replayed=True)) is None
    finally:
        session.close()
    assert store.work(batch=5)(0, given((1, "again"))).skipped
    assert store.work(batch=5)(1, given((2, "b"))).rows == 1, "this task was killed before"
    assert store.work(batch=6)(0, given((3, "c"))).rows == 1
    assert store.work(batch=6)(0, given((3, "c"))).skipped
    assert store.work(batch=5, run="run-2")(0, given((4, "d"))).rows == 1
    assert store.rows() == [(2, "b"), (3, "c"), (4, "d")]


def test_a_number_that_sqlite_would_make_a_null_is_refused(tmp_path):
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as shop:
        shop.execute(slots.CREATE)
        shop.execute("create table prices (id bigint, price real)")
    values = [1.5, float("nan"), None, float("inf")]
    rows = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(4), pa.int64()),
            "price": pa.array(values, pa.float64(), from_pandas=False),
            POSITION: [f"row {number}" for number in range(4)],
            LINE: pa.array([0] * 4, pa.int64()),
            SEQUENCE: pa.array(range(4), pa.int64()),
        }
    )
    target = Target('"prices"', (("id", '"id"'), ("price", '"price"')), (), (), deletes=False)
    connect = SqliteDialect(str(path)).connect
    slot = slots.Slot("shop", "sink", "run-1", 0, 1)
    with pytest.raises(RowsRefused) as refused:
        Transact(connect, target, slot)(0, iter([rows]))
    [(position, kind)] = [(row.position, row.kind) for row in refused.value.rows]
    assert (position, kind) == ("row 1", "NaN")
    left = rows.filter(pa.array([True, False, True, True]))
    assert Transact(connect, target, slot)(0, iter([left])).rows == 3
    with sqlite3.connect(path) as shop:
        found = shop.execute("select id, price from prices order by id").fetchall()
    assert found == [(0, 1.5), (2, None), (3, float("inf"))]


def test_a_task_without_rows_connects_to_nobody(store):
    def refuse() -> Any:
        raise AssertionError("it has connected")

    assert replace(store.work(), connect=refuse)(0, iter([])).rows == 0


def test_all_refused_rows_are_named_and_nothing_is_kept(store):
    values = [(number, "bad" if number in (3, 8) else "good") for number in range(20)]
    values[15] = (2, "again")
    with pytest.raises(RowsRefused) as refused:
        store.work()(0, given(*values))
    assert [row.position for row in refused.value.rows] == ["row 3", "row 8", "row 15"]
    assert "people" in refused.value.rows[0].message or "CHECK" in refused.value.rows[0].message
    assert store.rows() == []
    assert store.work()(0, given((1, "a"))).rows == 1, "the slot was rolled back, too"


def test_the_last_row_of_a_key_counts_by_line_and_sequence(store):
    upsert = store.work(keys=("id",), deletes=True)
    upsert(0, given((1, "first", False), (1, "last", False), (2, "x", False), (2, None, True)))
    assert store.rows() == [(1, "last")]
    store.work(keys=("id",), deletes=True, batch=1)(
        0, given((1, None, True), (1, "back", False), (3, None, True), (4, "new", False))
    )
    assert store.rows() == [(1, "back"), (4, "new")]


def test_a_row_without_a_key_is_refused(store):
    with pytest.raises(RowsRefused) as refused:
        store.work(keys=("id",))(0, given((1, "a"), (None, "b")))
    assert [(row.position, row.kind) for row in refused.value.rows] == [("row 1", "NullKey")]


def test_a_probe_finds_the_same_and_leaves_nothing(store):
    assert store.work(keep=False)(0, given((1, "a"))).rows == 1
    assert store.rows() == []
    with pytest.raises(RowsRefused):
        store.work(keep=False)(0, given((1, "bad")))
    store.work()(0, given((1, "a")))
    assert store.work(keep=False)(0, given((1, "a"))).skipped, "what is written is right"


def test_a_second_copy_of_a_task_waits_for_the_first_and_finds_its_work_done(store):
    """As with speculation, or when a driver that was believed dead is still writing."""
    locked, go_on = threading.Event(), threading.Event()
    first, second = store.work(), store.work()
    skipped: dict[str, bool] = {}

    def slow() -> Iterator[Any]:
        yield from given((1, "a"))
        locked.set()
        go_on.wait(30)

    def run(name: str, work: Transact, batches: Iterator[Any]) -> None:
        skipped[name] = work(0, batches).skipped

    one = threading.Thread(target=run, args=("first", first, slow()))
    one.start()
    assert locked.wait(30)
    two = threading.Thread(target=run, args=("second", second, given((1, "a"))))
    two.start()
    two.join(0.5)
    assert two.is_alive(), "it did not wait"
    go_on.set()
    one.join()
    two.join()
    assert skipped == {"first": False, "second": True}
    assert store.rows() == [(1, "a")]


def test_a_table_that_is_gone_is_an_outage(store):
    store.query("drop table people")
    with pytest.raises(Outage, match="people"):
        store.work()(0, given((1, "a")))


def test_a_text_that_postgresql_cannot_hold_is_a_refused_row(request):
    server = request.getfixturevalue("postgres")
    dsn = server.new_database()
    server.sql(slots.CREATE, dsn)
    server.sql("create table people (id bigint, name text)", dsn)
    store = Store(lambda: PostgresSession(dsn), lambda sql: server.sql(sql, dsn))
    with pytest.raises(RowsRefused) as refused:
        store.work()(0, given((1, "a"), (2, "zero \0 byte"), (3, "c")))
    assert [row.position for row in refused.value.rows] == ["row 1"]


def test_a_value_that_is_too_long_is_refused_and_not_cut(request):
    server = request.getfixturevalue("postgres")
    dsn = server.new_database()
    server.sql(slots.CREATE, dsn)
    server.sql("create table people (id int, name varchar(3))", dsn)
    target = Target(
        '"people"',
        (("id", 'cast("id" as integer)'), ("name", 'cast("name" as character varying)')),
        keys=(),
        compared=(),
        deletes=False,
    )
    work = Transact(lambda: PostgresSession(dsn), target, slots.Slot("shop", "sink", "run-1", 0, 1))
    with pytest.raises(RowsRefused) as refused:
        work(0, given((1, "abc"), (2, "abcd"), (2**40, "x")))
    assert [row.position for row in refused.value.rows] == ["row 1", "row 2"]
    assert [row.kind for row in refused.value.rows] == ["22001", "22003"]


def test_a_task_names_only_so_many_rows(store, monkeypatch):
    monkeypatch.setattr(transaction, "MOST_NAMED", 3)
    with pytest.raises(RowsRefused) as refused:
        store.work()(0, given(*[(number, "bad") for number in range(20)]))
    assert len(refused.value.rows) == 3
