"""The generator, a source of one's own, and what topics and files are told."""

from __future__ import annotations

import sys
import types
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.contract import Place
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sources import files, generator, python, topic
from ottla.pipelines.connectors.sources.generator import GeneratorReader, Stretch, make_rows
from ottla.testing.connectors import made

ANY = ReadMaxRows(1 << 40)
PLACE = Place("orders", "/c", "/s", "127.0.0.1:9092", (("security.protocol", "SSL"),))


def test_every_source_of_the_catalog_is_declared_under_its_name() -> None:
    for name in catalog.SOURCES:
        assert catalog.source(name).name == name


# -- the generator


def test_a_generated_row_follows_from_its_id() -> None:
    whole = make_rows(Stretch(0, 1000, 999, 10**15), 10.0, 7)
    parts = [make_rows(Stretch(at, at + 250, 999, 10**15), 10.0, 7) for at in range(0, 1000, 250)]
    assert (
        pa.Table.from_batches(parts)
        .combine_chunks()
        .equals(pa.Table.from_batches([whole]).combine_chunks())
    )
    assert whole.column("id").to_pylist() == list(range(1000))
    assert 80 < len(set(whole.column("customer").to_pylist())) <= 100
    amounts = whole.column("amount").to_pylist()
    assert 0 <= min(amounts) < 5
    assert 95 < max(amounts) < 100
    times = whole.column("time").to_pylist()
    assert (times[10] - times[0]).total_seconds() == 1
    assert make_rows(Stretch(0, 1000, 999, 10**15), 10.0, 8).column("amount").to_pylist() != amounts


def test_a_run_that_ends_makes_all_rows_or_those_of_a_second() -> None:
    unlimited = GeneratorReader(50.0, None, 0)
    unlimited.prepareForTriggerAvailableNow()
    start = unlimited.initialOffset()
    end = unlimited.latestOffset(start, ANY)
    assert end["rows"] == 50
    assert unlimited.latestOffset(end, ANY) == end
    limited = GeneratorReader(1.0, 30_000, 0)
    end = limited.latestOffset(start, ReadAllAvailable())
    assert end["rows"] == 30_000
    parts = limited.partitions(start, end)
    assert [(part.value.first, part.value.stop) for part in parts] == [
        (0, 10_000),
        (10_000, 20_000),
        (20_000, 30_000),
    ]
    rows = [batch.num_rows for part in parts for batch in limited.read(part)]
    assert sum(rows) == 30_000


def test_a_pipeline_that_goes_on_makes_no_burst() -> None:
    reader = GeneratorReader(1e-6, None, 0)
    start = {"v": 1, "rows": 5, "at": 0}
    assert reader.latestOffset(start, ANY) == start


@pytest.mark.parametrize("options", [{"rows_per_second": 0}, {"rows": 0}])
def test_no_rows_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Mistake):
        made(generator.SOURCE, **options)


# -- a source of one's own


class Own:
    def __init__(self, **options: Any) -> None:
        self.options = options

    def stream(self) -> None: ...
    def sample(self) -> None: ...
    def rows(self) -> None: ...


def _half() -> object:
    return object()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("my_shop")
    module.__dict__.update(Own=Own, ready=Own(), nothing=5, half=_half)
    monkeypatch.setitem(sys.modules, "my_shop", module)
    return module


def test_a_class_is_made_with_its_options_and_an_object_is_taken(own: types.ModuleType) -> None:
    assert made(python.SOURCE, object="my_shop:Own", options={"a": 1}).options == {"a": 1}
    assert made(python.SOURCE, object="my_shop:ready") is own.ready


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        ("my_shop", {}, "write module:object"),
        ("no_such_shop:Own", {}, "cannot be imported"),
        ("my_shop:Other", {}, "has no Other"),
        ("my_shop:nothing", {}, "neither a source nor a function"),
        ("my_shop:half", {}, "has no stream and no sample and no rows"),
        ("my_shop:half", {"a": 1}, "does not take these options"),
        ("my_shop:ready", {"a": 1}, "takes no options"),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_no_source_is_said(target: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Mistake, match=sentence):
        made(python.SOURCE, object=target, options=options)


# -- topics


def test_a_topic_is_read_with_the_settings_of_the_pipeline() -> None:
    source = made(
        topic.SOURCE,
        name=["a", "b"],
        start="2026-01-31T12:00:00Z",
        max_records=5,
        kafka={"isolation.level": "read_uncommitted"},
    )
    assert source._choice.options(PLACE, streaming=True) == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "kafka.security.protocol": "SSL",
        "kafka.isolation.level": "read_uncommitted",
        "subscribe": "a,b",
        "columns": "key,value,topic,partition,offset,timestamp",
        "startingTimestamp": "1769860800000",
        "startingOffsetsByTimestampStrategy": "latest",
        "commitOffsets": "false",
        "maxOffsetsPerTrigger": "5",
    }
    assert source.topics_read() == ("a", "b")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "name"),
        ({"name": ["a"], "pattern": "a.*"}, "name"),
        ({"name": ["a"], "include": ["colour"]}, "include"),
        ({"name": ["a"], "start": "soon"}, "start"),
        ({"name": ["a"], "max_records": 0}, "max_records"),
        ({"name": ["a"], "format": "jsn"}, "format"),
        ({"name": ["a"], "key_format": {"json": {"nonsense": 1}}}, "key_format.json.nonsense"),
    ],
)
def test_options_of_a_topic_that_cannot_be_right(options: dict[str, Any], option: str) -> None:
    with pytest.raises(Mistake) as told:
        made(topic.SOURCE, **options)
    assert told.value.option == option


# -- files


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"format": "json", "header": True}, "header"),
        ({"format": "text", "delimiter": ";"}, "delimiter"),
        ({"format": "csv", "max_files": 0}, "max_files"),
        ({"format": "csv", "schema": "id long", "schema_file": "a"}, "schema_file"),
    ],
)
def test_options_of_files_that_cannot_be_right(options: dict[str, Any], option: str) -> None:
    with pytest.raises(Mistake) as told:
        made(files.SOURCE, path="/data", **options)
    assert told.value.option == option


def test_only_folders_of_this_machine_are_local() -> None:
    assert [str(path) for path in made(files.SOURCE, path="file:///a%20b").local_paths()] == [
        "/a b"
    ]
    assert made(files.SOURCE, path="s3a://bucket/x").local_paths() == ()
