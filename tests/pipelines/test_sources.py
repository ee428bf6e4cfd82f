"""The sources of pipelines in a real query: columns, positions, errors, and the same rows again."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.contract import HIDDEN, HIDDEN_TYPE, Outage, Place
from ottla.testing.postgres import PostgresProcess


class Killed(Exception):
    pass


class Run:
    """A source in a query, as the driver of a pipeline runs it: `batches` is what it gave."""

    def __init__(self, spark: Any, ended: Any, place: Place, kind: str, /, **options: Any) -> None:
        self.spark = spark
        self.ended = ended
        self.place = place
        self.declaration = catalog.source(kind)
        self.options = options
        self.batches: list[list[Any]] = []
        self.columns: list[str] = []

    def source(self) -> Any:
        defaults = {option.name: option.default for option in self.declaration.options}
        return self.declaration.make({**defaults, **self.options})

    def once(self, *, die_in: int | None = None) -> list[Any]:
        """Run to the end; `die_in` is the number of a batch that ends the query unfinished."""
        source = self.source()
        raw = source.stream(self.spark, self.place)
        schema = source.rows(raw).schema
        assert schema[HIDDEN].dataType.simpleString() == _plain(HIDDEN_TYPE)
        self.columns = [name for name in schema.names if name != HIDDEN]
        self.batches = []

        def take(batch: Any, number: int) -> None:
            rows = source.rows(batch)
            assert rows.schema.names == schema.names
            self.batches.append(rows.collect())
            if number == die_in:
                raise Killed

        writer = (
            raw.writeStream.foreachBatch(take)
            .option("checkpointLocation", self.place.checkpoint)
            .trigger(availableNow=True)
        )
        self.ended(writer.start)
        return [row for batch in self.batches for row in batch]

    def dies(self, *, batch: int) -> list[Any]:
        """What was in a batch that was not finished."""
        with pytest.raises(Exception, match="Killed"):
            self.once(die_in=batch)
        return self.batches[-1]


def _plain(text: str) -> str:
    return text.replace(": ", ":").replace(", ", ",").replace("long", "bigint")


def positions(rows: list[Any]) -> list[Any]:
    return [json.loads(row[HIDDEN].position) for row in rows]


def kept(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows]


@pytest.fixture
def run(spark: Any, ended: Any, tmp_path: Path, bootstrap: str) -> Callable[..., Run]:
    place = Place("orders", str(tmp_path / "checkpoint"), str(tmp_path / "staging"), bootstrap)

    def make(kind: str, /, **options: Any) -> Run:
        return Run(spark, ended, place, kind, **options)

    return make


# -- databases


def test_a_batch_that_was_not_finished_has_the_same_rows_again(
    run: Callable[..., Run], postgres: PostgresProcess, database: str, tmp_path: Path
) -> None:
    postgres.sql(
        "create table orders (id int primary key, amount numeric, at timestamp, tz timestamptz); "
        "insert into orders values (1, 1.5, '2026-01-02', '2026-01-02Z'), (2, 'NaN', null, null)",
        database,
    )
    made = run("postgres", dsn=database, table="orders", mode="incrementing", columns=["id"])
    first = made.dies(batch=0)
    postgres.sql("update orders set amount = 7; insert into orders values (3, 3)", database)
    rows = made.once()
    assert kept(made.batches[0]) == kept(first)
    assert made.columns == ["id", "amount", "at", "tz"]
    assert [row.id for row in rows] == [1, 2, 3]
    good, bad, new = rows
    assert (float(good.amount), str(good["at"]), float(new.amount)) == (
        1.5,
        "2026-01-02 00:00:00",
        3,
    )
    assert good.tz.timestamp() == 1767312000
    assert good[HIDDEN].error is None
    assert bad[HIDDEN].error.asDict() == {
        "stage": "decode",
        "kind": "ValueOutOfRange",
        "message": "amount is NaN",
    }
    assert positions(rows)[0] == {"table": "orders", "key": {"id": 1}}
    assert [row[HIDDEN].sequence for row in rows] == [0, 1, 2]
    assert json.loads(new[HIDDEN].value) == {"id": 3, "amount": 3.0, "at": None, "tz": None}
    assert made.once() == []
    assert len(list((tmp_path / "staging").glob("*.arrow"))) <= 1


def test_a_table_that_vanishes_ends_the_query_with_its_name(
    run: Callable[..., Run], postgres: PostgresProcess, database: str
) -> None:
    made = run("postgres", dsn=database, table="orders", mode="incrementing", columns=["id"])
    with pytest.raises(Exception, match=r"pipeline orders: .*has no table orders .*: create it"):
        made.once()
    postgres.sql("create table orders (id int primary key)", database)
    source = made.source()
    raw = source.stream(made.spark, made.place)
    postgres.sql("drop table orders", database)
    writer = raw.writeStream.foreachBatch(lambda *_: None).trigger(availableNow=True)
    with pytest.raises(Exception, match=r'pipeline orders: .*relation "orders" does not exist'):
        made.ended(writer.start)


def test_a_preview_of_a_table_leaves_no_trace(
    run: Callable[..., Run], postgres: PostgresProcess, database: str, tmp_path: Path
) -> None:
    postgres.sql("create table orders (id int primary key, at timestamptz default now())", database)
    postgres.sql("insert into orders select generate_series(1, 50)", database)
    made = run("postgres", dsn=database, table="orders")
    source = made.source()
    rows = source.rows(source.sample(made.spark, made.place, 10)).collect()
    assert len(rows) == 10
    assert list(tmp_path.iterdir()) == []


def test_no_password_is_in_a_plan(run: Callable[..., Run], postgres: PostgresProcess) -> None:
    dsn = postgres.dsn().replace("postgres@", "postgres:s3cret@")
    made = run("postgres", dsn=dsn, table="pg_class")
    raw = made.source().stream(made.spark, made.place)
    assert "s3cret" not in raw._jdf.queryExecution().toString()


# -- files


def test_csv_that_does_not_fit_is_an_error_of_its_line(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a b.csv").write_text('id,name\n1,"one, two"\nx,bad\n3\n')
    (folder / "c.csv").write_text("id,name\n4,four\n5,five\n")
    (folder / "_half.csv").write_text("id,name\n9,not yet\n")
    made = run("files", path=str(folder), format="csv", header=True, schema="id int, name string")
    rows = sorted(made.once(), key=lambda row: row[HIDDEN].position)
    assert made.columns == ["id", "name"]
    assert [(row.id, row.name) for row in rows if row[HIDDEN].error is None] == [
        (1, "one, two"),
        (4, "four"),
        (5, "five"),
    ]
    bad = [row for row in rows if row[HIDDEN].error is not None]
    assert [bytes(row[HIDDEN].value) for row in bad] == [b"x,bad", b"3"]
    assert bad[0][HIDDEN].error.message == "the line does not fit the schema: x,bad"
    named = [(at["file"].rpartition("/")[2], at["row"]) for at in positions(rows)]
    assert named == [
        ("a%20b.csv", 0),
        ("a%20b.csv", 1),
        ("a%20b.csv", 2),
        ("c.csv", 0),
        ("c.csv", 1),
    ]
    (folder / "d.csv").write_text("id,name\n6,six\n")
    again = made.dies(batch=1)
    assert kept(made.once()) == kept(again)
    assert [row.id for row in again] == [6]
    (folder / "e.csv").write_text("name,id\nseven,7\n")
    with pytest.raises(Exception, match="CSV header does not conform to the schema"):
        made.once()


def test_a_preview_of_files_names_the_file_of_a_row(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("1,one\nx,bad\n")
    made = run("files", path=str(tmp_path / "*.csv"), format="csv", schema="id int, name string")
    source = made.source()
    rows = source.rows(source.sample(made.spark, made.place, 10)).collect()
    named = [(at["file"].rpartition("/")[2], at["row"]) for at in positions(rows)]
    assert sorted(named) == [("a.csv", 0), ("a.csv", 1)]


def test_json_lines_are_counted_before_any_is_left_out(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(
            f'{{"id": 1, "n": "{name}"}}\n\n{{bad\n{{"id": 2}}\n'
        )
    made = run("files", path=str(tmp_path / "*.json"), format="json", schema="id long, n string")
    rows = made.once()
    assert made.columns == ["id", "n"]
    found = {
        (at["file"].rpartition("/")[2], at["row"]): (row.id, row.n, row[HIDDEN].error is not None)
        for at, row in zip(positions(rows), rows, strict=True)
    }
    assert found == {
        ("a.json", 0): (1, "a", False),
        ("a.json", 2): (None, None, True),
        ("a.json", 3): (2, None, False),
        ("b.json", 0): (1, "b", False),
        ("b.json", 2): (None, None, True),
        ("b.json", 3): (2, None, False),
    }


def test_one_file_of_text_and_a_folder_of_parquet(
    run: Callable[..., Run], spark: Any, ended: Any, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text("first\nsecond\n")
    rows = run("files", path=str(tmp_path / "log.txt")).once()
    assert [row.value for row in rows] == ["first", "second"]
    assert [bytes(row[HIDDEN].value) for row in rows] == [b"first", b"second"]
    spark.range(5).write.parquet(str(tmp_path / "p"))
    place = Place("other", str(tmp_path / "c2"), str(tmp_path / "s2"), "")
    made = Run(spark, ended, place, "files", path=str(tmp_path / "p"), format="parquet")
    rows = made.once()
    assert sorted(row.id for row in rows) == [0, 1, 2, 3, 4]
    assert len({row[HIDDEN].position for row in rows}) == 5
    assert (tmp_path / "s2" / "schema").read_text().strip().endswith("id bigint")


def test_a_file_that_is_older_than_what_was_read_is_read_all_the_same(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    """Who moves or copies a file may keep its time: `mv`, `cp -p`, `rsync -a`."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "new.txt").write_text("new\n")
    assert [row.value for row in run("files", path=str(folder)).once()] == ["new"]
    (folder / "newer.txt").write_text("newer\n")
    assert [row.value for row in run("files", path=str(folder)).once()] == ["newer"]
    (folder / "old.txt").write_text("old\n")
    os.utime(folder / "old.txt", (1_600_000_000, 1_600_000_000))
    assert [row.value for row in run("files", path=str(folder)).once()] == ["old"]
    assert run("files", path=str(folder)).once() == []


def test_files_that_are_not_there_are_said(run: Callable[..., Run], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"pipeline orders: there is no .*/nothing: create the folder"
    ):
        run("files", path=str(tmp_path / "nothing")).once()
    (tmp_path / "empty").mkdir()
    with pytest.raises(Outage, match="wait for the first file"):
        run("files", path=str(tmp_path / "empty"), format="parquet").once()
    with pytest.raises(Outage, match="nothing yet from which a schema could be inferred"):
        run("files", path=str(tmp_path / "empty" / "*.json"), format="json").once()


# -- topics


def test_records_are_decoded_with_their_keys(
    run: Callable[..., Run], spark: Any, bootstrap: str, unique: Callable[..., str]
) -> None:
    topic = unique()
    records = [
        ('{"id": 1}', '{"name": "a"}'),
        ('{"id": 1}', None),
        ('{"id": 2}', "nonsense"),
        ("broken", '{"name": "b"}'),
    ]
    frame = spark.createDataFrame(records, "key string, value string").coalesce(1)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    frame.write.format("ottla").options(**options).mode("append").save()
    made = run(
        "topic",
        name=[topic],
        format={"json": {"schema": "name string"}},
        key_format={"json": {"schema": "id long"}},
        include=["offset", "headers"],
    )
    rows = made.once()
    assert made.columns == ["name", "id", "_offset", "_headers"]
    assert [(row.id, row.name, row["_offset"]) for row in rows] == [
        (1, "a", 0),
        (1, None, 1),
        (2, None, 2),
        (None, "b", 3),
    ]
    assert [row[HIDDEN].error is not None for row in rows] == [False, False, True, True]
    assert [row[HIDDEN].value for row in rows][1] is None
    assert positions(rows)[2] == {"topic": topic, "partition": 0, "offset": 2}
    assert (rows[3][HIDDEN].line, rows[3][HIDDEN].sequence) == (0, 3)
    assert bytes(rows[2][HIDDEN].value) == b"nonsense"


def test_a_topic_without_records_has_no_schema_yet(
    run: Callable[..., Run], bootstrap: str, unique: Callable[..., str]
) -> None:
    from ottla import Admin, NewTopic

    topic = unique()
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    with pytest.raises(Outage, match=f"topic {topic} has nothing yet"):
        run("topic", name=[topic]).once()


# -- the others


def test_generated_rows_go_on_where_they_ended(run: Callable[..., Run]) -> None:
    made = run("generator", rows_per_second=5, rows=12, seed=3)
    first = made.dies(batch=0)
    assert [row.id for row in first] == list(range(12))
    assert kept(made.once()) == kept(first)
    assert positions(first)[11] == {"row": 11}


@pytest.fixture
def served(tmp_path: Path, web_server: Callable[[Path], str]) -> str:
    """A web server's address; what it answers is the file `orders.json`."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "orders.json").write_text('[{"id": 1, "n": "a"}, {"id": "x"}, {"id": 3}]')
    return f"{web_server(folder)}/orders.json"


def test_a_web_page_that_has_changed_meanwhile_is_replayed_as_it_was(
    run: Callable[..., Run], served: str, tmp_path: Path
) -> None:
    made = run("http", url=served + "?key=s3cret", schema="id long, n string")
    first = made.dies(batch=0)
    (tmp_path / "served" / "orders.json").write_text("[]")
    assert kept(made.once()) == kept(first)
    assert made.columns == ["id", "n"]
    assert [(row.id, row.n, row[HIDDEN].error is not None) for row in first] == [
        (1, "a", False),
        (None, None, True),
        (3, None, False),
    ]
    assert positions(first)[1] == {"url": served, "page": 1, "row": 1, "number": 1}
    assert json.loads(first[1][HIDDEN].value) == {"id": "x"}
    plain = run("http", url=served).source()
    assert plain.rows(plain.sample(made.spark, made.place, 5)).columns == ["value", HIDDEN]


def test_any_format_of_spark(run: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    made = run("spark", format="text", path=str(tmp_path / "in"), options={"lineSep": "\n"})
    rows = made.once()
    assert [row.value for row in rows] == ["one", "two"]
    assert [at["row"] for at in positions(rows)] == [0, 1]
    (tmp_path / "in" / "b.txt").write_text("one\ntwo\n")
    again = made.dies(batch=1)
    assert [row.value for row in again] == ["one", "two"]
    assert kept(made.once()) == kept(again), "a batch that is run again has the same positions"
    assert len({row[HIDDEN].position for row in [*rows, *again]}) == 4, "and no other has them"


def test_rows_of_one_moment_in_a_table_without_a_key_have_positions_of_their_own(
    run: Callable[..., Run], postgres: PostgresProcess, database: str
) -> None:
    postgres.sql(
        "create table seen (who text, at timestamp); "
        "insert into seen values ('a', '2026-01-01'), ('b', '2026-01-01')",
        database,
    )
    rows = run("postgres", dsn=database, table="seen", mode="timestamp", columns=["at"]).once()
    assert sorted(row.who for row in rows) == ["a", "b"]
    assert len({row[HIDDEN].position for row in rows}) == 2


def test_a_row_that_comes_again_with_a_larger_number_has_another_position(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    """Where the column that grows is no part of the key: a version, which every change sets."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as shop:
        shop.execute("create table orders (id text primary key, state text, version integer)")
        shop.execute("insert into orders values ('a', 'new', 1), ('b', 'new', 2)")
    options = {
        "path": str(path), "table": "orders", "mode": "incrementing", "columns": ["version"],
    }  # fmt: skip
    rows = run("sqlite", **options).once()
    with sqlite3.connect(path) as shop:
        shop.execute("update orders set state = 'paid', version = 3 where id = 'a'")
    again = run("sqlite", **options).once()
    assert [(row.id, row.state) for row in [*rows, *again]] == [
        *(("a", "new"), ("b", "new"), ("a", "paid")),
    ]
    assert positions(again) == [{"table": "orders", "key": {"id": "a", "version": 3}}]
    assert len({row[HIDDEN].position for row in [*rows, *again]}) == 3
