"""Rows are on the disk before anybody is told of them, and are the same again."""

from __future__ import annotations

import errno
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.sources import staged, staging
from ottla.pipelines.connectors.sources.staged import (
    Driver,
    Found,
    SourceError,
    StagedReader,
)
from ottla.pipelines.connectors.sources.staging import (
    Folder,
    Part,
    Standing,
    local_folder,
    parts,
    read_part,
)

SCHEMA = pa.schema([("n", pa.int64())])


class Script:
    """A poller that gives what it is told to; `asked` are the cursors it was asked with."""

    every = 0.0

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def end(self) -> Any:
        return "end"

    def poll(self, cursor: Any, end: Any) -> Found | None:
        self.asked.append(cursor)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def read(folder: Folder, standing: Standing) -> list[int]:
    return [
        number
        for part in parts(folder, standing)
        for batch in read_part(part, SCHEMA)
        for number in batch.column(0).to_pylist()
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "staging")


def driver(folder: Folder, poller: Script) -> Driver:
    return Driver("orders", folder, poller, pause=0.0)


def test_what_was_found_is_staged_and_read_again(folder: Folder) -> None:
    first = driver(folder, Script(Found([rows(1, 2)], {"id": 2}))).latest(Standing())
    assert (first.seq, first.before, first.total, first.cursor) == (1, 0, 2, {"id": 2})
    again = Standing.of(json.loads(json.dumps(first.offset())))
    assert again == first
    assert read(folder, again) == read(folder, again) == [1, 2]


def test_one_question_may_fill_many_batches(folder: Folder) -> None:
    poller = Script(Found(iter([rows(1, 2), rows(), rows(3)]), "all"), Found([rows(4)], "more"))
    asks = driver(folder, poller)
    first = asks.latest(Standing())
    assert len(first.pending) == 1
    second = asks.latest(first)
    assert poller.asked == [None]
    third = asks.latest(second)
    assert poller.asked == [None, "all"]
    assert [read(folder, each) for each in (first, second, third)] == [[1, 2], [3], [4]]
    assert [each.before for each in (first, second, third)] == [0, 2, 3]


def test_a_process_that_dies_between_staging_and_telling_leaves_nothing_behind(
    folder: Folder,
) -> None:
    driver(folder, Script(Found([rows(1)], 1))).latest(Standing())
    told = driver(folder, Script(Found([rows(1, 2)], 2))).latest(Standing())
    assert read(folder, told) == [1, 2]
    assert len(list(folder.path.iterdir())) == 1


def test_what_waits_for_later_batches_survives_a_new_process(folder: Folder) -> None:
    first = driver(folder, Script(Found([rows(1), rows(2), rows(3)], 3))).latest(Standing())
    assert read(folder, first) == [1]
    again = driver(folder, Script())
    second = again.latest(first)
    assert read(folder, second) == [2]
    folder.remove_up_to(second.seq)
    third = again.latest(second)
    assert read(folder, third) == [3]
    assert [path.name for path in folder.path.iterdir()] == [third.staged and third.staged.name]


def test_the_same_question_has_the_same_answer(folder: Folder) -> None:
    asks = driver(folder, Script(Found([rows(1)], 1), Found([rows(2)], 2)))
    assert asks.latest(Standing()) == asks.latest(Standing())


def test_a_cursor_without_rows_is_no_batch(folder: Folder) -> None:
    poller = Script(Found([], "a"), Found([], "b", more=True), Found([rows(1)], "c"))
    asks = driver(folder, poller)
    assert asks.latest(Standing()) == Standing()
    assert read(folder, asks.latest(Standing())) == [1]
    assert poller.asked == [None, "a", "b"]


def test_a_batch_is_cut_into_tasks_by_its_file_alone(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "ROWS_PER_PART", 2)
    many = pa.concat_tables([rows(0, 1, 2), rows(*range(3, 25))])  # chunks of other sizes
    told = driver(folder, Script(Found([many], 1))).latest(Standing(before=100))
    cut = parts(folder, told)
    assert [(each.first, each.stop, each.sequence) for each in cut] == [
        (0, 3, 100),
        (3, 6, 106),
        (6, 9, 112),
        (9, 13, 118),
    ]
    assert read(folder, told) == list(range(25))


def test_an_outage_is_nothing_new_and_is_said(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    down = Outage("PostgreSQL at db", "PostgreSQL at db: refused")
    asks = driver(folder, Script(down, down, Found([rows(1)], 1)))
    with caplog.at_level(logging.WARNING, "ottla.pipelines"):
        assert asks.latest(Standing()) == Standing()
        assert asks.report() == {"rows": 0, "unreachable": "PostgreSQL at db: refused"}
        asks.latest(Standing())
        assert read(folder, asks.latest(Standing())) == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "Pipeline orders waits for its source: PostgreSQL at db: refused",
        "Pipeline orders: its source is back.",
    ]
    assert asks.report() == {"rows": 1}


def test_a_run_that_ends_by_itself_waits_for_an_outage_to_pass(folder: Folder) -> None:
    down = Outage("a", "a: refused")
    asks = driver(folder, Script(down, down, Found([rows(1)], 1)))
    asks.run_to_the_end()
    assert read(folder, asks.latest(Standing())) == [1]


def test_rows_that_do_not_all_come_are_not_kept_for_each_attempt(folder: Folder) -> None:
    def cut_off() -> Iterator[pa.Table]:
        yield rows(1)
        yield rows(2)
        raise Outage("PostgreSQL", "the server closed the connection")

    asks = driver(folder, Script(Found(cut_off(), 2), Found(cut_off(), 2), Found([rows(1)], 1)))
    assert asks.latest(Standing()) == Standing()
    assert asks.latest(Standing()) == Standing()
    assert not list(folder.path.glob("*.arrow"))
    assert read(folder, asks.latest(Standing())) == [1]


def test_whoever_watches_the_folder_sees_what_is_waited_for(folder: Folder) -> None:
    away = Outage("PostgreSQL", "PostgreSQL at db: refused")
    source = driver(folder, Script(away, Found((rows(1),), {"at": 1})))
    assert folder.waits_for() is None
    start = source.latest(Standing())
    assert folder.waits_for() == "PostgreSQL at db: refused"
    folder.sweep(start)
    assert folder.waits_for() == "PostgreSQL at db: refused"
    assert source.latest(start).staged is not None
    assert folder.waits_for() is None


def test_a_full_disk_is_an_outage_and_leaves_no_half_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    asks = driver(folder, Script(Found([rows(1)], 1), Found([rows(1)], 1)))
    with monkeypatch.context() as patch:
        patch.setattr(staging.os, "fsync", full)
        assert asks.latest(Standing()) == Standing()
    shown = asks.report()
    assert shown is not None
    assert shown["unreachable"].endswith("staging: No space left on device")
    assert list(folder.path.glob("*.arrow*")) == list(folder.path.glob(".*")) == []
    assert read(folder, asks.latest(Standing())) == [1]


def test_anything_else_ends_the_query_and_names_the_pipeline(folder: Folder) -> None:
    with pytest.raises(SourceError, match="pipeline orders: the table is gone"):
        driver(folder, Script(ValueError("the table is gone"))).latest(Standing())


def test_the_source_is_asked_no_more_often_than_it_wants(folder: Folder) -> None:
    poller = Script()
    poller.every = 3600.0
    asks = driver(folder, poller)
    asks.latest(Standing())
    asks.latest(Standing())
    assert poller.asked == [None]
    asks.run_to_the_end()
    asks.latest(Standing())
    assert poller.asked == [None, None]


def test_what_was_away_is_asked_again_soon_also_by_who_asks_once_an_hour(
    folder: Folder, own_time: Callable[..., None]
) -> None:
    now = 1000.0
    own_time(staged.__name__, monotonic=lambda: now)
    poller = Script(Outage("shop", "refused"), Found([rows(1)], 1), Found([rows(2)], 2))
    poller.every = 3600.0
    asked = driver(folder, poller)
    start = Standing()
    assert asked.latest(start) == start
    assert asked.latest(start) == start
    assert len(poller.asked) == 1, "but not at once"
    now += 10
    first = asked.latest(start)
    assert read(folder, first) == [1]
    now += 3000
    assert asked.latest(first) == first, "and then once an hour"
    now += 1000
    assert read(folder, asked.latest(first)) == [2]


def test_no_task_learns_what_the_poller_knows(tmp_path: Path) -> None:
    schema = StructType([StructField("n", LongType())])
    reader = StagedReader("orders", str(tmp_path), Script("s3cret"), schema)
    assert b"s3cret" not in pickle.dumps(reader)


def test_staged_rows_fit_a_table_that_has_changed_meanwhile(folder: Folder) -> None:
    staged = folder.write(1, pa.table({"n": pa.array([1], pa.int32()), "gone": ["x"]}))
    wanted = pa.schema([("n", pa.int64()), ("new", pa.string())])
    (batch,) = _read(folder, staged.name, wanted)
    assert batch.to_pylist() == [{"n": 1, "new": None}]


def _read(folder: Folder, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return read_part(Part(str(folder.path / name), 0, 1, 0), schema)


def test_a_staged_file_that_is_gone_is_named(folder: Folder) -> None:
    with pytest.raises(FileNotFoundError, match="cannot be read again the same way"):
        list(_read(folder, "nothing.arrow", SCHEMA))


def test_staging_is_a_folder_that_all_can_see(tmp_path: Path) -> None:
    assert local_folder(str(tmp_path)) == tmp_path
    assert local_folder(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    with pytest.raises(ValueError, match="s3a://bucket/x is none"):
        local_folder("s3a://bucket/x")


def test_an_offset_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        Standing.of({"v": 2})


def test_columns_of_spark_are_numbered_through(tmp_path: Path) -> None:
    from pyspark.sql.datasource import InputPartition

    folder = Folder(tmp_path)
    staged = folder.write(1, rows(7, 8))
    schema = StructType(
        [
            StructField("n", LongType()),
            StructField("s", StringType()),
            StructField("_ottla_row", LongType(), False),
        ]
    )
    reader = StagedReader("orders", str(tmp_path), Script(), schema)
    part = InputPartition(Part(str(tmp_path / staged.name), 0, 1, 40))
    (batch,) = reader.read(part)
    assert batch.to_pylist() == [
        {"n": 7, "s": None, "_ottla_row": 40},
        {"n": 8, "s": None, "_ottla_row": 41},
    ]
