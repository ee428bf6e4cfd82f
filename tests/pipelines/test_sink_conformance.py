"""The published checks of sinks, against those that are there and some that are wrong."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import HIDDEN, Guarantee
from ottla.pipelines.connectors.sinks.files import SINK as FILES
from ottla.pipelines.connectors.sinks.postgres import SINK as POSTGRES
from ottla.pipelines.connectors.sinks.sqlite import SINK as SQLITE
from ottla.testing.connectors import SINK_CHECKS, SinkCase, check_sink, made


def files(spark: Any, folder: Path, _request: Any) -> SinkCase:
    path = folder / "rows"

    def stored() -> list[tuple[Any, ...]]:
        if not list(path.glob("*.parquet")):
            return []
        return [tuple(row) for row in spark.read.parquet(str(path)).collect()]

    return SinkCase(spark, lambda: made(FILES, path=str(path)), stored, folder)


def sqlite_table(spark: Any, folder: Path, _request: Any) -> SinkCase:
    path = folder / "rows.db"

    def stored() -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(path)
        try:
            return connection.execute("select id, name from people").fetchall()
        finally:
            connection.close()

    def make() -> Any:
        return made(SQLITE, path=str(path), table="people", create=True)

    return SinkCase(spark, make, stored, folder)


def postgres_table(spark: Any, folder: Path, request: Any) -> SinkCase:
    server = request.getfixturevalue("postgres")
    dsn = server.new_database()

    def stored() -> list[tuple[Any, ...]]:
        found = server.sql("select id, name from people", dsn)
        return [(int(number), name) for number, name in found]

    def make() -> Any:
        return made(POSTGRES, dsn=dsn, table="people", create=True)

    return SinkCase(spark, make, stored, folder)


@pytest.mark.parametrize("check", SINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("sink", [files, sqlite_table, postgres_table])
def test_a_sink_keeps_its_promise(spark, tmp_path, request, sink, check):
    check(sink(spark, tmp_path, request))


class Listing:
    """A sink into a list of this process, wrong in a way that can be chosen."""

    def __init__(self, rows: list[tuple[Any, ...]], fault: str, guarantee: Guarantee) -> None:
        self._rows = rows
        self._fault = fault
        self.guarantee = guarantee

    def prepare(self, spark: Any, schema: Any, place: Any) -> None:
        pass

    def write(self, rows: Any, batch: Any) -> None:
        found = [tuple(row) for row in rows.drop(HIDDEN).collect()]
        self._rows += found[1:] if self._fault == "loses" else found

    def probe(self, rows: Any, batch: Any) -> None:
        if self._fault == "keeps":
            self.write(rows, batch)


@pytest.mark.parametrize(
    ("fault", "guarantee", "told"),
    [
        ("repeats", Guarantee.EXACTLY_ONCE, "rows are there twice"),
        ("loses", Guarantee.AT_LEAST_ONCE, "rows are missing"),
        ("keeps", Guarantee.AT_LEAST_ONCE, "a probe has left 20 rows"),
    ],
)
def test_a_sink_that_promises_too_much_is_found_out(spark, tmp_path, fault, guarantee, told):
    with pytest.raises(AssertionError, match=told):
        check_sink(_fresh(spark, tmp_path, fault, guarantee))


def _fresh(spark: Any, folder: Path, fault: str, guarantee: Guarantee) -> Callable[[], SinkCase]:
    def fresh() -> SinkCase:
        rows: list[tuple[Any, ...]] = []
        return SinkCase(spark, lambda: Listing(rows, fault, guarantee), lambda: list(rows), folder)

    return fresh


class Table:
    """What the page calls so: rows in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[tuple[Any, ...]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [tuple(json.loads(line)) for line in lines]


class MySink(Listing):
    """What the page calls so: it appends every batch to a file."""

    def __init__(self, path: Path) -> None:
        super().__init__([], "", Guarantee.AT_LEAST_ONCE)
        self._path = path

    def write(self, rows: Any, batch: Any) -> None:
        with self._path.open("a") as file:
            for row in rows.drop(HIDDEN).collect():
                file.write(f"{json.dumps(list(row))}\n")


def test_the_test_on_the_page_checks_a_sink(spark, tmp_path):
    """python.md shows how the checks are used."""
    page = Path(__file__).parents[2] / "docs" / "pipelines" / "sinks" / "python.md"
    [program] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {"Table": Table, "MySink": MySink}
    exec(program, names)
    names["test_my_sink"](SINK_CHECKS[0], spark, tmp_path)
    assert Table(tmp_path / "rows").rows()
