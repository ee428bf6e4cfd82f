"""Real databases through the one door: rows as Arrow, transactions, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.databases import (
    Database,
    DatabaseError,
    Missing,
    open_postgres,
    open_sqlite,
)
from ottla.testing.postgres import PostgresProcess

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})


@pytest.fixture(params=["postgres", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        made = open_sqlite(tmp_path / "a b.db", create=True)
    else:
        made = open_postgres(request.getfixturevalue("database"))
    with made:
        made.execute("create table t (id bigint primary key, name text)")
        yield made


def test_what_was_ingested_is_read(opened: Database) -> None:
    opened.ingest("t", ROWS)
    assert opened.read("select id, name from t order by id").to_pylist() == ROWS.to_pylist()
    assert opened.value("select count(*) from t") == 2
    assert opened.value("select id from t where id > 5") is None
    with opened.stream("select id from t order by id") as batches:
        assert [row for batch in batches for row in batch.column(0).to_pylist()] == [1, 2]


def test_a_transaction_is_all_or_nothing(opened: Database) -> None:
    with opened.transaction():
        opened.ingest("t", ROWS)
        opened.execute("update t set name = $1 where id = $2", ["z", 2])

    def stopped_within() -> None:
        with opened.transaction():
            opened.execute("delete from t")
            raise ZeroDivisionError

    def refused_within() -> None:
        with opened.transaction():
            opened.execute("delete from t")
            opened.ingest("t", pa.concat_tables([ROWS, ROWS]))

    with pytest.raises(ZeroDivisionError):
        stopped_within()
    with pytest.raises(DatabaseError):
        refused_within()
    with opened.transaction():
        opened.execute_many("insert into t values ($1, $2)", pa.table({"a": [3], "b": ["c"]}))
    found = opened.read("select name from t order by id").column(0).to_pylist()
    assert found == ["a", "z", "c"]


def test_what_is_not_there_is_missing(opened: Database) -> None:
    with pytest.raises(Missing, match="elsewhere"):
        opened.read("select * from elsewhere")
    with pytest.raises(Missing, match="nowhere"):
        opened.read("select nowhere from t")


def test_nobody_listens(postgres: PostgresProcess) -> None:
    with pytest.raises(Outage, match=r"PostgreSQL at 127.0.0.1:1/shop: .*refused") as told:
        open_postgres("postgresql://ann:s3cret@127.0.0.1:1/shop")
    assert "s3cret" not in str(told.value)
    assert told.value.what == "PostgreSQL at 127.0.0.1:1/shop"
    with pytest.raises(Outage, match='database "elsewhere" does not exist'):
        open_postgres(postgres.dsn("elsewhere"))


def test_a_grant_that_was_taken_back_is_an_outage(postgres: PostgresProcess, database: str) -> None:
    role = f"reader_{database[-12:]}"
    postgres.sql(f"create table t (id int); create role {role} login", database)
    postgres.sql(f"grant select on t to {role}", database)
    with open_postgres(f"host=127.0.0.1 port={postgres.port} user={role} "
                       f"dbname={database.rpartition('/')[2]}") as opened:  # fmt: skip
        assert opened.value("select count(*) from t") == 0
        postgres.sql(f"revoke select on t from {role}", database)
        with pytest.raises(Outage, match="permission denied for table t"):
            opened.read("select * from t")


def test_a_server_that_dies_is_an_outage_and_the_next_connection_works(tmp_path: Path) -> None:
    with PostgresProcess(tmp_path) as server:
        server.start()
        opened = open_postgres(server.dsn())
        server.kill()
        with pytest.raises(Outage, match="closed the connection"):
            opened.value("select 1")
        opened.close()
        server.start()
        with open_postgres(server.dsn()) as again:
            assert again.value("select 1") == 1


def test_a_file_of_sqlite_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Outage, match="there is no such file"):
        open_sqlite(tmp_path / "no.db")
    assert list(tmp_path.iterdir()) == []


def test_sqlite_that_another_has_locked_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.pipelines.connectors.databases._LOCKED_MS", 10)
    first = open_sqlite(tmp_path / "a.db", create=True)
    second = open_sqlite(tmp_path / "a.db", create=True)
    first.execute("create table t (id int)")
    with first.transaction():
        first.execute("insert into t values (1)")
        with pytest.raises(Outage, match="locked"):
            second.execute("insert into t values (2)")
    first.close()
    second.close()
