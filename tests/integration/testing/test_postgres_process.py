"""A real PostgreSQL that is killed and comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ottla.testing.postgres import PostgresProcess, PostgresProcessError


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    with PostgresProcess(tmp_path) as postgres:
        postgres.start()
        database = postgres.new_database()
        postgres.sql(
            "create table orders (id int primary key, name text); "
            "insert into orders values (1, 'a'), (2, null)",
            database,
        )
        postgres.kill()
        assert not postgres.serves()
        postgres.start()
        assert postgres.sql("select * from orders order by id", database) == [["1", "a"], ["2", ""]]
        data = postgres.data_dir
        assert data.exists()
    assert not data.exists()


def test_a_home_that_it_is_given_stays(tmp_path: Path) -> None:
    # Root starts it as somebody else, who must be able to get there.
    with tempfile.TemporaryDirectory(prefix="ottla-postgres-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        for there in ([], [["orders"]]):
            with PostgresProcess(tmp_path, home=home / "kept") as postgres:
                postgres.start()
                find = "select relname from pg_class where relname = 'orders'"
                assert postgres.sql(find) == there
                postgres.sql("create table if not exists orders (id int)")


def test_a_statement_that_fails_says_why(postgres: PostgresProcess, database: str) -> None:
    with pytest.raises(PostgresProcessError, match='relation "nothing" does not exist'):
        postgres.sql("select * from nothing", database)
