"""What sinks make of sizes, of a full disk, and of their tasks' answers."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ottla.pipelines.connectors.contract import Outage, RefusedRow, RowsRefused
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sinks import tasks
from ottla.pipelines.connectors.sinks.http import key_of
from ottla.pipelines.connectors.sinks.postgres import SINK as POSTGRES
from ottla.pipelines.connectors.sinks.sqlite import SINK as SQLITE
from ottla.pipelines.connectors.sinks.sqlite import SqliteDialect, SqliteSession
from ottla.pipelines.connectors.units import seconds, size
from ottla.testing.connectors import made


def test_durations_and_sizes_are_read_as_people_write_them():
    assert [seconds(text) for text in ("500ms", "30s", "5m", "2h", "1d")] == [
        0.5, 30, 300, 7200, 86400,
    ]  # fmt: skip
    assert [size(text) for text in ("64KiB", "1GB", "1.5 MiB", 10)] == [65536, 10**9, 1572864, 10]
    for wrong in (5, "5", "soon", "-1s"):
        with pytest.raises(ValueError, match="a time has a unit"):
            seconds(wrong)
    with pytest.raises(ValueError, match="a size is expected"):
        size("large")


def test_refused_rows_of_all_tasks_come_before_an_outage():
    refused = {"refused": [["p1", "23505", "twice"]]}
    away = {"outage": ["PostgreSQL", "gone"]}
    with pytest.raises(RowsRefused) as told:
        tasks._settled([away, refused, {"refused": [["p2", "22001", "long"]]}])
    assert told.value.rows == (
        RefusedRow("p1", "23505", "twice"),
        RefusedRow("p2", "22001", "long"),
    )
    with pytest.raises(Outage, match="gone"):
        tasks._settled([away])


def test_a_full_file_is_an_outage_and_not_the_fault_of_a_row(tmp_path: Path):
    session = SqliteSession(SqliteDialect(str(tmp_path / "rows.db")))
    try:
        session.execute("create table people (name text)")
        session.execute("pragma max_page_count = 3")
        with pytest.raises(Outage, match="full"):
            session.execute(f"insert into people values ('{'x' * 100_000}')")
    finally:
        session.close()


def test_a_file_that_another_program_writes_is_an_outage(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("ottla.pipelines.connectors.sinks.sqlite._WAIT", 0.01)
    dialect = SqliteDialect(str(tmp_path / "rows.db"))
    other = sqlite3.connect(dialect.path, isolation_level=None)
    other.execute("begin immediate")
    session = SqliteSession(dialect)
    with pytest.raises(Outage, match="locked"):
        session.begin()
    session.close()
    other.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "upsert"}, "give key, too"),
        ({"key": ["id"]}, "give mode: upsert"),
        ({"delete_when": "true"}, "deleting needs a key"),
    ],
)
@pytest.mark.parametrize(
    ("declaration", "where"), [(SQLITE, {"path": "x.db"}), (POSTGRES, {"dsn": "postgresql://x"})]
)
def test_options_that_do_not_fit_together_are_refused(declaration, where, options, told):
    with pytest.raises(Mistake, match=told):
        made(declaration, table="people", **where, **options)


def test_a_key_is_the_same_for_the_same_row_of_the_same_pipeline_alone():
    assert key_of("a", "p") == key_of("a", "p")
    assert len({key_of("a", "p"), key_of("a", "q"), key_of("b", "p")}) == 3
