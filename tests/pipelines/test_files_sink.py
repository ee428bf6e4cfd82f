"""Rows into files: named by batch and task, never replaced, seen only when they count."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import HIDDEN, Outage
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sinks.files import SINK
from ottla.pipelines.connectors.sources.files import SOURCE as FILES
from ottla.testing.connectors import batch, made, numbers, place, sample_rows

NAME = re.compile(r"sample-run-1-(\d{10})-(\d{5})-(\d+)\.(snappy\.parquet|json|csv)")


def seen(folder: Path) -> list[Path]:
    """What a reader sees."""
    hidden = ("_", ".")
    return sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(hidden) for part in path.relative_to(folder).parts)
    )


def test_a_file_is_named_by_batch_and_task_and_never_replaced(spark, tmp_path):
    sink = made(SINK, path=str(tmp_path))
    frame = sample_rows(spark, numbers(100))
    sink.prepare(spark, frame.schema, place(tmp_path))
    sink.write(frame, batch(3))
    found = seen(tmp_path)
    assert all(NAME.fullmatch(path.name) for path in found)
    assert {NAME.fullmatch(path.name)[1] for path in found} == {"0000000003"}
    before = {path: (tmp_path / path).stat().st_ino for path in found}
    made(SINK, path=str(tmp_path)).write(frame, batch(3, replayed=True))
    assert {path: (tmp_path / path).stat().st_ino for path in seen(tmp_path)} == before
    assert spark.read.parquet(str(tmp_path)).count() == 100


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_time_keeps_its_microseconds(spark, tmp_path, form):
    moment = datetime(2026, 3, 1, 12, 0, 0, 123456, UTC)
    kinds = "id long, at timestamp, local timestamp_ntz"
    frame = sample_rows(spark, [(1, moment, moment.replace(tzinfo=None))], kinds, tasks=1)
    sink = made(SINK, path=str(tmp_path / "out"), format=form)
    sink.prepare(spark, frame.schema, place(tmp_path))
    sink.write(frame, batch(0))
    reader = spark.read.schema(kinds).format(form)
    [found] = reader.load(str(tmp_path / "out")).collect()
    assert found.at.astimezone(UTC) == moment
    assert found.local == moment.replace(tzinfo=None)


def test_a_text_of_csv_is_what_every_program_writes_and_reads(spark, tmp_path):
    """By the rules of RFC 4180, which are those of Python's module; Spark has others."""
    texts = ['say "hi" now', "C:\\dir\\", 'x"', ' "', '\\"', "  spaces ", "a,b", '1", 2", "', "\\"]
    rows = list(enumerate(texts))
    frame = sample_rows(spark, rows, "id int, text string", tasks=1)
    sink = made(SINK, path=str(tmp_path / "out"), format="csv")
    sink.prepare(spark, frame.schema, place(tmp_path))
    sink.write(frame, batch(0))
    [path] = seen(tmp_path / "out")
    with (tmp_path / "out" / path).open(newline="") as file:
        assert [(int(number), text) for number, text in csv.reader(file)] == rows
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "a.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    for folder in ("in", "out"):
        source = made(
            FILES, path=str(tmp_path / folder), format="csv", schema="id int, text string"
        )
        found = source.rows(source.sample(spark, place(tmp_path), 100)).orderBy("id").collect()
        assert [(row.id, row.text) for row in found] == rows


@pytest.mark.parametrize("form", ["csv", "json"])
def test_rows_of_partitions_are_in_folders_and_roll_cuts_files(spark, tmp_path, form):
    sink = made(
        SINK, path=str(tmp_path), format=form, partition_by=["part"], roll={"size": "2KiB"},
        tasks=1, options={"header": "true"} if form == "csv" else None,
    )  # fmt: skip
    values = [(n, f"{n:0100}", n % 2) for n in range(200)]
    schema = "id long, name string, part int"
    frame = sample_rows(spark, values, schema)
    sink.prepare(spark, frame.schema, place(tmp_path))
    sink.write(frame, batch(0))
    sink.write(frame, batch(1))  # by now the size of a row is known
    found = [tmp_path / path for path in seen(tmp_path)]
    assert {path.parent.name for path in found} == {"part=0", "part=1"}
    late = [path for path in found if NAME.fullmatch(path.name)[1] == "0000000001"]
    assert len(late) >= 10
    assert all(path.stat().st_size < 4096 for path in late)
    back = spark.read.format(form).option("header", "true").load(str(tmp_path))
    assert back.count() == 400
    assert {int(row.id) for row in back.select("id").distinct().collect()} == set(range(200))
    assert HIDDEN not in back.columns


def test_what_does_not_fit_is_told_before_anything_is_written(spark, tmp_path):
    schema = sample_rows(spark, []).schema
    with pytest.raises(ValueError, match="no column day to partition by; there are id, name"):
        made(SINK, path=str(tmp_path), partition_by=["day"]).prepare(spark, schema, place(tmp_path))
    sink = made(SINK, path=str(tmp_path), partition_by=["id", "name"])
    with pytest.raises(ValueError, match="none left for the files"):
        sink.prepare(spark, schema, place(tmp_path))
    for roll, wrong in [({"size": "big"}, "a size is expected"), ({"age": "1m"}, "no age")]:
        with pytest.raises(Mistake, match=wrong):
            made(SINK, path=str(tmp_path), roll=roll)


def test_a_folder_that_cannot_be_written_is_an_outage(spark, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    sink = made(SINK, path=str(blocked / "below"))
    frame = sample_rows(spark, numbers(5))
    with pytest.raises(Outage, match="cannot be written"):
        sink.write(frame, batch(0))
    blocked.unlink()
    sink.write(frame, batch(0, replayed=True))
    assert spark.read.parquet(str(blocked / "below")).count() == 5


def kept(folder: Path) -> list[Any]:
    return sorted(path.name for path in (folder / "_ottla").rglob("*.json"))


def test_only_the_last_manifest_is_kept(spark, tmp_path):
    sink = made(SINK, path=str(tmp_path), tasks=1)
    for number in range(3):
        sink.write(sample_rows(spark, numbers(3)), batch(number))
    assert kept(tmp_path) == ["0000000002.json"]


def test_a_partition_whose_column_begins_with_an_underscore_is_there(spark, tmp_path):
    sink = made(SINK, path=str(tmp_path), partition_by=["_day"])
    frame = sample_rows(spark, [(n, n % 2) for n in range(10)], "id long, _day int")
    sink.write(frame, batch(0))
    assert spark.read.parquet(str(tmp_path)).count() == 10


def test_a_file_in_the_way_is_told_and_its_rows_are_not_dropped(spark, tmp_path):
    other = replace(batch(0), run="run-1234-5")
    same = replace(batch(0), run="run-1234-6")  # named alike, by the first characters
    sink = made(SINK, path=str(tmp_path), tasks=1)
    sink.write(sample_rows(spark, numbers(5)), other)
    with pytest.raises(FileExistsError, match="its rows are in"):
        sink.write(sample_rows(spark, numbers(7)), same)
    for path in seen(tmp_path):
        (tmp_path / path).rename(tmp_path / "moved.parquet")
        (tmp_path / f".{path.name}.crc").unlink()
    sink.write(sample_rows(spark, numbers(7)), replace(same, replayed=True))
    assert spark.read.parquet(str(tmp_path)).count() == 12
