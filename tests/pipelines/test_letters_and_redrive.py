"""The dead-letter topic on a real broker: each letter once, and through the pipeline again."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.contract import (
    HIDDEN,
    HIDDEN_TYPE,
    Batch,
    Place,
    RefusedRow,
    RowsRefused,
)
from ottla.pipelines.connectors.errors.letters import Failure, Letter, LetterTopic
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.process import Outcome, Way, process
from ottla.pipelines.connectors.redrive import Redrive
from ottla.pipelines.connectors.sources.files import SOURCE as FILES
from ottla.pipelines.connectors.sources.hidden import as_json, hidden
from ottla.pipelines.connectors.sources.topic import SOURCE as TOPIC
from ottla.pipelines.connectors.spec.values import Connector, ErrorPolicy, PipelineSpec
from ottla.pipelines.connectors.transform import transform_of
from ottla.pipelines.connectors.trial import Shown
from ottla.testing import Broker

BATCH = Batch("orders", "shown", "run-1", 3, replayed=False)
WHY = Failure("sink", "TooOdd", "it is odd")
FOR_EVER = {"retention.ms": -1}
"""Records of 2017 are older than a topic keeps them by itself."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, unique: Callable[..., str]) -> str:
    name = unique()
    broker.create_topic(name, 2, config={"max.message.bytes": 2000, **FOR_EVER})
    return name


@pytest.fixture
def letters(spark: Any, broker: Broker, topic: str) -> LetterTopic:
    return LetterTopic(topic, broker.bootstrap, {})


def read(topic: LetterTopic) -> list[dict[str, Any]]:
    rows = topic.read().toArrow().to_pylist()
    return [
        {"key": row["key"], "value": row["value"]}
        | {each["key"]: (each["value"] or b"").decode() for each in row["headers"]}
        for row in rows
    ]


def test_a_letter_has_the_bytes_of_its_record_and_the_reason(letters: LetterTopic) -> None:
    place = '{"topic": "in", "partition": 1, "offset": 9}'
    assert letters.write([Letter(place, WHY, b"k", b"\xff\x00", (("h", b"x"),))], BATCH) == 1
    [found] = read(letters)
    assert (found["key"], found["value"], found["h"]) == (b"k", b"\xff\x00", "x")
    assert found["__connect.errors.offset"] == "9"
    assert found["__connect.errors.exception.message"] == "it is odd"


def times(topic: LetterTopic) -> list[int]:
    """Of all records of a topic, in milliseconds, in the order of the topic."""
    rows = topic.read().selectExpr("unix_millis(timestamp) as at", "partition", "offset").collect()
    return [row["at"] for row in sorted(rows, key=lambda row: (row["partition"], row["offset"]))]


def test_a_letter_has_the_time_of_its_record(letters: LetterTopic) -> None:
    letters.write([Letter("1", WHY, b"k", b"v", timestamp=1_500_000_000_123)], BATCH)
    assert times(letters) == [1_500_000_000_123]
    [found] = read(letters)
    assert found["ottla.errors.timestamp"] == "1500000000123"


def test_a_row_without_a_time_fails_now(letters: LetterTopic) -> None:
    before = time.time_ns() // 1_000_000
    # A record that was written without a time has -1.
    letters.write([Letter("1", WHY, b"k"), Letter("2", WHY, b"k", timestamp=-1)], BATCH)
    assert min(times(letters)) >= before


def test_a_time_that_the_topic_does_not_take_is_in_a_header_alone(
    broker: Broker, letters: LetterTopic
) -> None:
    before = time.time_ns() // 1_000_000
    later = before + 30 * 86_400_000  # a topic takes one hour from now
    batch = [Letter("1", WHY, b"k", b"v", timestamp=later), Letter("2", WHY, b"k", timestamp=5)]
    assert letters.write(batch, BATCH) == 2
    assert [each for each in times(letters) if each == later] == []
    found = {each["ottla.errors.position"]: each for each in read(letters)}
    assert {key: each["ottla.errors.timestamp"] for key, each in found.items()} == {
        "1": str(later),
        "2": "5",
    }


def test_a_replayed_batch_adds_only_the_letters_that_are_missing(letters: LetterTopic) -> None:
    replay = replace(BATCH, replayed=True)
    assert letters.write([Letter("1", WHY), Letter("2", WHY), Letter("2", WHY)], BATCH) == 2
    assert letters.known(replay) == {"1", "2"}
    assert letters.known(replace(replay, number=4)) == set()
    assert letters.known(replace(replay, run="run-2")) == set()
    assert letters.write([Letter("1", WHY), Letter("2", WHY), Letter("3", WHY)], replay) == 3
    assert sorted(each["ottla.errors.position"] for each in read(letters)) == ["1", "2", "3"]


def test_a_letter_that_is_too_large_goes_without_its_value(letters: LetterTopic) -> None:
    large = Letter("2", WHY, b"k", bytes(5000))
    assert letters.write([Letter("1", WHY, None, b"v"), large, Letter("3", WHY)], BATCH) == 3
    found = {each["ottla.errors.position"]: each for each in read(letters)}
    assert sorted(found) == ["1", "2", "3"]
    assert found["1"]["value"] == b"v"
    assert (found["2"]["value"], found["2"]["ottla.errors.value.left.out"]) == (None, "5000")


def test_a_letter_that_is_too_large_by_its_headers_takes_no_value_of_others(
    letters: LetterTopic,
) -> None:
    large = Letter("1", WHY, b"k", b"v", (("h", bytes(5000)),))
    assert letters.write([large, Letter("2", WHY, b"k", b"value")], BATCH) == 2
    found = {each["ottla.errors.position"]: each for each in read(letters)}
    assert found["1"]["value"] == b"v"
    assert (found["1"].get("h"), found["1"]["ottla.errors.headers.left.out"]) == (None, "5001")
    assert found["2"]["value"] == b"value"


@pytest.mark.parametrize(
    ("key", "value", "kept", "told"),
    [
        (bytes(5000), b"v", (None, b"v"), {"key": "5000"}),
        (bytes(5000), None, (None, None), {"key": "5000"}),
        (bytes(5000), bytes(4000), (None, None), {"key": "5000", "value": "4000"}),
        (bytes(3000), bytes(4000), (None, None), {"key": "3000", "value": "4000"}),
    ],
)
def test_a_letter_whose_key_is_too_large_goes_without_it(
    letters: LetterTopic,
    key: bytes,
    value: bytes | None,
    kept: tuple[bytes | None, bytes | None],
    told: dict[str, str],
) -> None:
    other = Letter("2", WHY, b"k", b"w")
    assert letters.write([Letter("1", WHY, key, value), other], BATCH) == 2
    found = {each["ottla.errors.position"]: each for each in read(letters)}
    assert sorted(found) == ["1", "2"]
    assert (found["1"]["key"], found["1"]["value"]) == kept
    sizes = {part: found["1"].get(f"ottla.errors.{part}.left.out") for part in ("key", "value")}
    assert {part: size for part, size in sizes.items() if size is not None} == told
    assert (found["2"]["key"], found["2"]["value"]) == (b"k", b"w")


def test_a_letter_that_is_too_large_by_its_reason_keeps_its_record(letters: LetterTopic) -> None:
    long = Failure("sink", "TooLong", "because " * 400)
    assert letters.write([Letter("1", long, b"k", b"v")], BATCH) == 1
    [found] = read(letters)
    assert (found["key"], found["value"]) == (b"k", b"v")
    assert found["__connect.errors.exception.message"].startswith("because because")


class Numbers:
    """A topic of numbers as text: what a topic source of a pipeline does, in a few lines."""

    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self._options = {**options, "subscribe": topic, "includeHeaders": "true"}

    def stream(self, spark: Any, place: Any) -> Any:
        raise NotImplementedError

    def sample(self, spark: Any, place: Any, count: int) -> Any:
        return spark.read.format("ottla").options(**self._options).load().limit(count)

    def rows(self, batch: Any) -> Any:
        position = "to_json(named_struct('topic', topic, 'partition', partition, 'offset', offset))"
        error = (
            "if(try_cast(cast(value as string) as int) is null, named_struct('stage', 'decode', "
            "'kind', 'NotANumber', 'message', cast(value as string)), null)"
        )
        hidden = (
            f"cast(named_struct('position', {position}, 'line', cast(partition as long), "
            f"'sequence', offset, 'timestamp', unix_millis(timestamp), 'key', key, 'value', value, "
            f"'headers', headers, 'error', {error}) as {HIDDEN_TYPE})"
        )
        number = "try_cast(cast(value as string) as int) as number"
        return batch.selectExpr(number, f"{hidden} as {HIDDEN}")


class Picky(Shown):
    """A sink that takes no number above its limit."""

    limit = 100

    def write(self, rows: Any, batch: Any) -> None:
        if rows.where(f"number > {self.limit}").count():
            raise RuntimeError("ERROR: out of range (SQLSTATE 22003)")
        super().write(rows, batch)

    probe = write


def test_letters_go_through_the_pipeline_again_once(
    spark: Any, broker: Broker, unique: Callable[..., str], topic: str, letters: LetterTopic
) -> None:
    source_topic = unique("in")
    broker.create_topic(source_topic, 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    frame = spark.sql("select value from values ('1'), ('x'), ('500'), ('600') as t(value)")
    writer = frame.coalesce(1).write.format("ottla").options(**options)
    writer.option("topic", source_topic).mode("append").save()
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    sink = Picky()
    way = Way(
        Numbers(options, source_topic),
        transform_of("select number * 2 as number from source"),
        sink,
        ErrorPolicy(dead_letter=topic),
        letters,
        counts_apart=True,
    )
    batch = way.source.sample(spark, None, 10)
    assert process(batch, way, BATCH) == Outcome(rows=4, written=1, letters=3)

    again = Redrive(spec, way, letters, spark)
    found = again.chosen()
    assert sorted((each.kind, each.tries) for each in found) == [
        *(("NotANumber", 1), ("RuntimeError", 1), ("RuntimeError", 1)),
    ]
    chosen = again.chosen("stage = 'TASK_PUT' and value = '500'")
    assert [json.loads(each.position)["offset"] for each in chosen] == [2]
    assert len(again.chosen()) == 3  # looking changes nothing

    sink.limit = 1000
    assert again.go(chosen) == Outcome(rows=1, written=1, letters=0)
    assert [row["number"] for row in sink.rows] == [1000]
    rest = again.chosen()
    assert sorted(each.kind for each in rest) == ["NotANumber", "RuntimeError"]

    assert again.go(rest) == Outcome(rows=2, written=0, letters=2)  # 'x', and 1200 > 1000
    once_more = again.chosen()
    assert {(each.tries, each.first_position) for each in once_more} == {
        (2, each.first_position) for each in rest
    }
    assert again.go([]) == Outcome()


def test_a_record_keeps_its_time_however_often_it_fails(
    spark: Any, broker: Broker, unique: Callable[..., str], letters: LetterTopic
) -> None:
    source_topic = unique("in")
    broker.create_topic(source_topic, 1, config=FOR_EVER)
    with ottla.Producer(broker.bootstrap) as producer:
        producer.send(source_topic, "x", timestamp=1_500_000_000_123)
    place = Place("orders", "", "", broker.bootstrap)
    source = TOPIC.make(
        {option.name: option.default for option in TOPIC.options}
        | {
            "name": [source_topic],
            "format": {"json": {"schema": "number int"}},
            "include": ["timestamp"],
        }
    )
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    policy = ErrorPolicy(dead_letter=letters.topic)
    way = Way(source, transform_of(None), Shown(), policy, letters, counts_apart=True)
    assert process(source.sample(spark, place, 10), way, BATCH).letters == 1
    again = Redrive(spec, way, letters, spark)
    for tries in (1, 2):
        [found] = again.chosen("timestamp = timestamp_millis(1500000000123)")
        assert found.tries == tries
        assert again.go([found]) == Outcome(rows=1, written=0, letters=1)


class Rows:
    """A source of rows that were no records."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def stream(self, spark: Any, place: Any) -> Any:
        raise NotImplementedError

    def sample(self, spark: Any, place: Any, count: int) -> Any:
        return spark.sql("select 7 as number, 'row 7' as place")

    def rows(self, batch: Any) -> Any:
        hidden = (
            "cast(named_struct('position', place, 'line', 0L, 'sequence', 0L, "
            "'timestamp', null, 'key', null, 'value', cast(to_json(named_struct('number', "
            f"number)) as binary), 'headers', null, 'error', null) as {HIDDEN_TYPE})"
        )
        return batch.selectExpr("number", f"{hidden} as {HIDDEN}")


def test_a_row_that_was_no_record_comes_back_from_its_json(
    spark: Any, broker: Broker, topic: str, letters: LetterTopic
) -> None:
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    sink = Picky()
    sink.limit = 5
    policy = ErrorPolicy(dead_letter=topic)
    way = Way(Rows(spark), transform_of(None), sink, policy, letters, counts_apart=True)
    frame = way.source.sample(spark, None, 1)
    assert process(frame, way, BATCH).letters == 1
    sink.limit = 10
    again = Redrive(spec, way, letters, spark)
    assert again.go(again.chosen()) == Outcome(rows=1, written=1, letters=0)
    assert sink.rows == [{"number": 7}]


@pytest.mark.parametrize(
    ("options", "values", "written", "left"),
    [
        ({"format": "text"}, [b"a line", b"{}"], [{"value": "a line"}, {"value": "{}"}], 0),
        (
            {"format": "csv", "header": True, "delimiter": ";", "schema": "id string, name string"},
            [b'x;"a;b"', b'{"id": "2", "name": "two"}', b"1;2;3"],
            [{"id": "x", "name": "a;b"}, {"id": "2", "name": "two"}],
            1,
        ),
    ],
)  # fmt: skip
def test_a_line_of_a_file_comes_back_as_it_is(
    spark: Any, broker: Broker, topic: str, letters: LetterTopic, tmp_path: Path,
    options: dict[str, Any], values: list[bytes], written: list[dict[str, str]], left: int,
) -> None:  # fmt: skip
    """A line that did not fit the schema fits when the schema is corrected."""
    letters.write([Letter(f"{n}", WHY, None, value) for n, value in enumerate(values)], BATCH)
    (tmp_path / "a.txt").write_text("id;name\n1;one\n")
    defaults = {option.name: option.default for option in FILES.options}
    source = FILES.make({**defaults, "path": str(tmp_path / "a.txt"), **options})
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    sink = Shown()
    way = Way(source, transform_of(None), sink, ErrorPolicy(dead_letter=topic), letters)
    again = Redrive(spec, replace(way, counts_apart=True), letters, spark)
    again.go(again.chosen())
    assert sorted(sink.rows, key=str) == sorted(written, key=str)
    assert len(again.chosen()) == left


@pytest.fixture
def page(tmp_path: Path, web_server: Callable[[Path], str]) -> str:
    """The address of a page with two rows of JSON."""
    (tmp_path / "page").write_text('[{"id": 1, "amount": 1.50}, {"id": 2, "new": true}]')
    return f"{web_server(tmp_path)}/page"


LENIENT = {"format": "json", "schema": "id bigint", "evolution": "ignore"}
STRICT = {"schema": "id bigint, amount decimal(9,2)", "evolution": "dead_letter"}


@pytest.mark.parametrize(
    ("name", "options", "text", "kind"),
    [
        # a row of nulls, if Spark reads it
        ("files", LENIENT, '{"id": 1}\n{"idd": 2}\n', "Missing"),
        # the same: a line of csv with too few columns, which is JSON
        ("files", {"format": "csv", "schema": "id int, n string"}, '1,a\n{"x":1}\n',
         "SchemaMismatch"),
        # a field that Spark would leave out
        ("http", STRICT, "", "NewFields"),
        # a value that no column has room for, and that the letter has as a null
        ("sqlite", {"table": "t"}, "", "ValueOutOfRange"),
    ],
)  # fmt: skip
def test_what_could_not_be_decoded_fails_again_as_it_did(
    spark: Any, broker: Broker, topic: str, letters: LetterTopic, tmp_path: Path, page: str,
    name: str, options: dict[str, Any], text: str, kind: str,
) -> None:  # fmt: skip
    """Nothing was changed meanwhile."""
    (tmp_path / "a").write_text(text)
    with sqlite3.connect(tmp_path / "db") as file:
        file.execute("create table t (id integer primary key, n integer)")
        file.execute("insert into t values (1, 1), (2, 'many')")
    where = {"files": "a", "sqlite": "db"}.get(name)
    given = {"url": page} if where is None else {"path": str(tmp_path / where)}
    source = of_catalog(name, **given, **options)
    sink = Shown()
    policy = ErrorPolicy(dead_letter=topic)
    way = Way(source, transform_of(None), sink, policy, letters, counts_apart=True)
    place = Place("orders", str(tmp_path / "c"), str(tmp_path / "s"), broker.bootstrap)
    outcome = process(source.sample(spark, place, 10), way, BATCH)
    assert (outcome, [row["id"] for row in sink.rows]) == (Outcome(2, 1, 1), [1])
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    again = Redrive(PipelineSpec("orders", broker.bootstrap, nothing, nothing), way, letters, spark)
    [before] = again.chosen()
    assert again.go([before]) == Outcome(rows=1, written=0, letters=1)
    [after] = again.chosen()
    assert (before.kind, before.tries) == (kind, 1)
    assert (after.kind, after.tries, after.message) == (kind, 2, before.message)


def of_catalog(name: str, **options: Any) -> Any:
    declaration = catalog.source(name)
    defaults = {option.name: option.default for option in declaration.options}
    return declaration.make({**defaults, **options})


def test_a_row_of_a_page_comes_back_as_the_server_has_written_it(
    spark: Any, broker: Broker, topic: str, letters: LetterTopic, tmp_path: Path, page: str
) -> None:
    """Without a schema it is one column; with one, it is decoded again."""

    class Full(Shown):
        full = True

        def write(self, rows: Any, batch: Any) -> None:
            if self.full and rows.count():
                where = [row[0] for row in rows.select(f"{HIDDEN}.position").collect()]
                raise RowsRefused([RefusedRow(each, "Full", "it is full") for each in where])
            super().write(rows, batch)

    source, sink = of_catalog("http", url=page), Full()
    policy = ErrorPolicy(dead_letter=topic)
    way = Way(source, transform_of(None), sink, policy, letters, counts_apart=True)
    place = Place("orders", str(tmp_path / "c"), str(tmp_path / "s"), broker.bootstrap)
    assert process(source.sample(spark, place, 10), way, BATCH).letters == 2
    sink.full = False
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    again = Redrive(spec, way, letters, spark)
    first, second = sorted(again.chosen(), key=lambda each: json.loads(each.position)["row"])
    assert again.go([first]) == Outcome(rows=1, written=1, letters=0)
    assert sink.rows == [{"value": '{"id": 1, "amount": 1.50}'}]
    grown = of_catalog("http", url=page, schema="id bigint, new boolean", evolution="ignore")
    assert Redrive(spec, replace(way, source=grown), letters, spark).go([second]).written == 1
    assert sink.rows == [{"id": 2, "new": True}]


def test_rows_that_had_the_same_position_are_redriven_each_for_itself(
    spark: Any, broker: Broker, topic: str, letters: LetterTopic
) -> None:
    """A source that was read from its beginning again counts its rows from 0 again."""
    letters.write([Letter("row 7", WHY, None, b'{"number": 7}')], BATCH)
    letters.write([Letter("row 7", WHY, None, b'{"number": 700}')], replace(BATCH, run="run-2"))
    letters.write([Letter("row 8", WHY, None, b'{"number": 8}')], BATCH)
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    kept: list[int] = []

    class Keeping(Picky):
        def write(self, rows: Any, batch: Any) -> None:
            super().write(rows, batch)
            kept.extend(row["number"] for row in self.rows)

    policy = ErrorPolicy(dead_letter=topic)
    way = Way(Rows(spark), transform_of(None), Keeping(), policy, letters, counts_apart=True)
    again = Redrive(spec, way, letters, spark)
    assert again.go(again.chosen()) == Outcome(rows=3, written=2, letters=1)
    assert sorted(kept) == [7, 8]
    [left] = again.chosen()
    assert (left.first_position, left.tries) == ("row 7", 2)
    assert again.chosen("value = '{\"number\": 700}'") == [left]


def test_a_letter_without_its_value_or_key_stays_where_it_is(
    spark: Any, broker: Broker, unique: Callable[..., str], topic: str, letters: LetterTopic
) -> None:
    place = json.dumps({"topic": "in", "partition": 0, "offset": 9}, separators=(",", ":"))
    letters.write([Letter(place, WHY, b"k", bytes(5000))], BATCH)
    letters.write([Letter(place, WHY, bytes(5000), b"v")], replace(BATCH, number=4))
    source_topic = unique("in")
    broker.create_topic(source_topic, 1)
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    source = Numbers({"kafka.bootstrap.servers": broker.bootstrap}, source_topic)
    way = Way(source, transform_of(None), Shown(), ErrorPolicy(dead_letter=topic), letters)
    again = Redrive(spec, way, letters, spark)
    assert (again.chosen(), again.without_value()) == ([], 2)


def test_json_that_does_not_fit_the_columns_is_a_letter_and_no_row_of_nulls(
    spark: Any, broker: Broker, topic: str, letters: LetterTopic
) -> None:
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    sink = Shown()
    policy = ErrorPolicy(dead_letter=topic)
    way = Way(Rows(spark), transform_of(None), sink, policy, letters, counts_apart=True)
    bad = [b"{", b'{"number": "many"}', b"[]"]
    good = b'{"number": 8}'
    letters.write([Letter(str(n), WHY, None, value) for n, value in enumerate([*bad, good])], BATCH)
    again = Redrive(spec, way, letters, spark)
    assert again.go(again.chosen()) == Outcome(rows=4, written=1, letters=3)
    assert sink.rows == [{"number": 8}]


class Times(Rows):
    """A source whose rows have a time."""

    def sample(self, spark: Any, place: Any, count: int) -> Any:
        at = "timestamp'2026-03-01 12:00:00.123456Z'"
        return spark.sql(f"select 7 as number, {at} as at, date'0101-01-01' as day, 'a' as place")

    def rows(self, batch: Any) -> Any:
        names = ["number", "at", "day"]
        made = hidden({"at": batch["at"]}, sequence=batch["number"], value=as_json(names))
        return batch.select(*names, made)


def test_a_time_comes_back_to_the_microsecond(
    spark: Any, broker: Broker, topic: str, letters: LetterTopic
) -> None:
    nothing = Connector("shown", {}, Declaration("shown", "", (), lambda values: None))
    spec = PipelineSpec("orders", broker.bootstrap, nothing, nothing)
    sink = Picky()
    sink.limit = 5
    policy = ErrorPolicy(dead_letter=topic)
    way = Way(Times(spark), transform_of(None), sink, policy, letters, counts_apart=True)
    frame = way.source.sample(spark, None, 1)
    assert process(frame, way, BATCH).letters == 1
    sink.limit = 10
    again = Redrive(spec, way, letters, spark)
    found = again.chosen()
    assert ".123456" in found[0].position
    assert again.go(found) == Outcome(rows=1, written=1, letters=0)
    [row] = sink.rows
    assert (row["at"].microsecond, str(row["day"])) == (123456, "0101-01-01")
