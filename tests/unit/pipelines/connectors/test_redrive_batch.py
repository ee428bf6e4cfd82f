"""The batch that dead letters are redriven as shares nothing with another that a sink remembers."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ottla.pipelines.connectors.contract import Batch
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.redrive import batch_of
from ottla.pipelines.connectors.sinks import slots
from ottla.pipelines.connectors.sinks.files import _final
from ottla.pipelines.connectors.sinks.sqlite import SqliteDialect, SqliteSession
from ottla.pipelines.connectors.spec.values import Connector, PipelineSpec

SINK = Connector("files", {}, Declaration("files", "", (), lambda values: None))
SPEC = PipelineSpec("orders", "127.0.0.1:9092", SINK, SINK)
OF_SPARK = "part-00000-0f0f0f0f-0000-4000-8000-000000000000-c000.snappy.parquet"


def test_files_of_two_redrives_have_different_names() -> None:
    assert _final(OF_SPARK, batch_of(SPEC)) != _final(OF_SPARK, batch_of(SPEC))


def test_a_redrive_leaves_the_slots_of_an_unfinished_batch_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    session = SqliteSession(SqliteDialect(str(path)))
    try:
        session.execute(slots.CREATE)
        unfinished = slots.Slot.of(Batch("orders", "files", "run-1", 12, replayed=False), 2)
        assert slots.take(session, unfinished, 0)  # task 0 has committed, task 1 was killed
        assert slots.take(session, slots.Slot.of(batch_of(SPEC), 2), 0)
        assert not slots.take(session, unfinished, 0)  # so the replay skips task 0
        assert slots.take(session, unfinished, 1)
    finally:
        session.close()
    assert sqlite3.connect(path).execute("select count(*) from ottla_slots").fetchone() == (3,)
