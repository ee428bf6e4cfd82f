from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from ottla.model.ids import TopicPartition
from ottla.pipelines.cluster import Cluster
from ottla.pipelines.source.offsets import Mark, Progress
from ottla.pipelines.source.options import ReadOptions
from ottla.pipelines.source.stream import PENDING, OttlaStreamReader

ORDERS = TopicPartition("orders", 0)
FIRST_ID = bytes([1] * 16)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[OttlaStreamReader]:
    asked: list[Any] = []
    monkeypatch.setattr(Cluster, "_asked", lambda _, question: asked.append(question))
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "orders"}
    reader = OttlaStreamReader(ReadOptions.of(given, streaming=True))
    yield reader
    reader.stop()
    assert not asked


def test_a_query_begins_without_asking_anybody(reader: OttlaStreamReader) -> None:
    assert reader.initialOffset() == PENDING
    assert reader.partitions(PENDING, PENDING) == []
    # Any number of rows: so that Spark's "all there are" can only be Trigger.Once.
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)


def test_the_tasks_follow_from_the_two_offsets_alone(reader: OttlaStreamReader) -> None:
    begin = Progress.initial({ORDERS: Mark(FIRST_ID, 5)})
    end = begin.advance({ORDERS: Mark(FIRST_ID, 11, 2)}, min_partitions=2)
    for start in (begin.to_json(), PENDING):
        parts = [part.value for part in reader.partitions(start, end.to_json())]
        assert [(part.start, part.end, part.epoch) for part in parts] == [(5, 8, 2), (8, 11, 2)]


def test_tasks_are_given_settings_and_no_connections(reader: OttlaStreamReader) -> None:
    reader._driver = lambda: None
    copy = pickle.loads(pickle.dumps(reader))
    reader._driver = None
    assert copy._driver is None
    assert copy._settings == reader._settings
    assert copy._settings.patience is None
