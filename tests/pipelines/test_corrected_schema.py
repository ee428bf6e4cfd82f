"""A row that could not be decoded stops the pipeline, and is not lost when its schema is corrected.

A sink that writes each row exactly once skips a batch that it has: so it must not have one whose
rows are neither in it nor dead letters.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import Batch, Place
from ottla.pipelines.connectors.process import Outcome, RowsFailed, Way, process
from ottla.pipelines.connectors.sinks.files import SINK as FILES_SINK
from ottla.pipelines.connectors.sinks.sqlite import SINK as SQLITE_SINK
from ottla.pipelines.connectors.sources.files import SOURCE as FILES
from ottla.pipelines.connectors.spec.values import STOP, ErrorPolicy
from ottla.pipelines.connectors.transform import transform_of
from ottla.pipelines.connectors.trial import Kept
from ottla.testing.connectors import made

BATCH = Batch("orders", "sink", "0b6f3a9c-run", 0, replayed=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    lines = [f'{{"id": {number}}}\n' for number in range(20)]
    (tmp_path / "in" / "a.json").write_text("".join(lines) + '{"id": 20, "name": "new"}\n')
    (tmp_path / "schema").write_text("id bigint")
    return tmp_path


def into_sqlite(folder: Path) -> tuple[Any, Callable[[Any], list[Any]]]:
    with sqlite3.connect(folder / "out.db") as file:
        file.execute("create table orders (id integer, name text)")
    sink = made(SQLITE_SINK, path=str(folder / "out.db"), table="orders")

    def rows(spark: Any) -> list[Any]:
        with sqlite3.connect(folder / "out.db") as file:
            return [row[0] for row in file.execute("select id from orders order by id")]

    return sink, rows


def into_files(folder: Path) -> tuple[Any, Callable[[Any], list[Any]]]:
    def rows(spark: Any) -> list[Any]:
        found = spark.read.schema("id bigint, name string").json(str(folder / "out"))
        return [row["id"] for row in found.orderBy("id").collect()]

    (folder / "out").mkdir()
    return made(FILES_SINK, path=str(folder / "out"), format="json"), rows


def run(spark: Any, folder: Path, sink: Any, batch: Batch, **more: Any) -> Outcome:
    """One run of a driver: batch 0, whose rows are all that there are."""
    source = made(
        FILES, path=str(folder / "in"), format="json",
        schema_file=str(folder / "schema"), evolution=more.pop("evolution"),
    )  # fmt: skip
    place = Place("orders", str(folder / "checkpoint"), str(folder / "staging"), "127.0.0.1:1")
    frame = source.sample(spark, place, 1000)
    way = Way(source, transform_of(None), sink, **more)
    sink.prepare(spark, way.transform(source.rows(frame)).schema, place)
    return process(frame, way, batch)


@pytest.mark.parametrize("into", [into_sqlite, into_files])
@pytest.mark.parametrize(
    ("evolution", "policy"),
    [
        ("dead_letter", STOP),  # there is no topic for it
        ("fail", STOP),
        ("fail", ErrorPolicy(dead_letter="orders.dlq")),
        ("dead_letter", ErrorPolicy(dead_letter="orders.dlq", most_letters=0, most_share=0.0)),
    ],
)
def test_a_row_that_stops_the_pipeline_is_not_lost_when_the_schema_is_corrected(
    spark: Any, folder: Path, into: Any, evolution: str, policy: ErrorPolicy
) -> None:
    sink, rows = into(folder)
    letters = None if policy.dead_letter is None else Kept()
    more: Any = {"evolution": evolution, "policy": policy, "letters": letters}
    with pytest.raises(RowsFailed, match="name"):
        run(spark, folder, sink, BATCH, **more)
    (folder / "schema").write_text("id bigint, name string")
    run(spark, folder, sink, replace(BATCH, replayed=True), **more)
    kept = [] if letters is None else [int(each.value[7:9]) for each in letters.letters]
    assert sorted([*rows(spark), *kept]) == list(range(21))
