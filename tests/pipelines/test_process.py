"""The way of a batch: what reaches the sink, what becomes a dead letter, and what stops it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors.assemble import way_of
from ottla.pipelines.connectors.blame import NoRow
from ottla.pipelines.connectors.contract import (
    HIDDEN,
    HIDDEN_TYPE,
    Batch,
    Guarantee,
    Outage,
    Place,
    RefusedRow,
    RowsRefused,
)
from ottla.pipelines.connectors.errors.letters import Letter
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.process import (
    Event,
    Note,
    Outcome,
    RowsFailed,
    Stopped,
    Way,
    process,
)
from ottla.pipelines.connectors.sinks.spark import SINK as SPARK
from ottla.pipelines.connectors.sources.files import SOURCE as FILES
from ottla.pipelines.connectors.sources.topic import SOURCE as TOPIC
from ottla.pipelines.connectors.spec.values import Connector, ErrorPolicy, PipelineSpec
from ottla.pipelines.connectors.transform import transform_of

BATCH = Batch("orders", "memory", "run-1", 7, replayed=False)
POLICY = ErrorPolicy(attempts=2, backoff=(0.1, 1.0), dead_letter="orders.dlq")


class Texts:
    """A source of numbers as text; what is no number is not decoded."""

    def stream(self, spark: Any, place: Any) -> Any:
        raise NotImplementedError

    def sample(self, spark: Any, place: Any, count: int) -> Any:
        raise NotImplementedError

    def rows(self, batch: Any) -> Any:
        json = (
            "to_json(named_struct('h', named_struct('position', cast(place as string), 'error', "
            "if(text like 'undecodable%', named_struct('stage', 'decode', 'kind', 'NotANumber', "
            "'message', text), null))))"
        )
        return batch.selectExpr(
            "if(text like 'undecodable%', null, text) as text",
            f"from_json({json}, 'h {HIDDEN_TYPE}').h as {HIDDEN}",
        )


@dataclass
class Memory:
    """A sink that keeps rows; `refuse` may raise for what it is given."""

    refuse: Callable[[list[str]], None] = lambda texts: None
    kept: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    probes: int = 0

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.NONE

    def prepare(self, spark: Any, schema: Any, place: Any) -> None:
        pass

    def write(self, rows: Any, batch: Batch) -> None:
        self.batches.append(batch)
        texts = [str(row[0]) for row in rows.collect()]
        self.refuse(texts)
        self.kept = sorted(texts)

    def probe(self, rows: Any, batch: Batch) -> None:
        self.probes += 1
        self.refuse([str(row[0]) for row in rows.collect()])


@dataclass
class Box:
    letters: dict[str, Letter] = field(default_factory=dict)
    writes: int = 0
    trouble: list[Exception] = field(default_factory=list)

    def known(self, batch: Batch) -> set[str]:
        return set(self.letters)

    def write(self, letters: Sequence[Letter], batch: Batch) -> int:
        self.writes += 1
        if self.trouble:
            raise self.trouble.pop()
        for letter in letters:
            self.letters.setdefault(letter.position, letter)
        return len(letters)


@dataclass
class Told:
    notes: list[Note] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    stop_after: int = 100

    def pause(self, seconds: float) -> bool:
        if seconds:  # else it only asks whether it is to stop
            self.pauses.append(seconds)
        return len(self.pauses) < self.stop_after

    def events(self) -> list[Event]:
        return [note.event for note in self.notes]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def box() -> Box:
    return Box()


def frame(spark: Any, texts: Sequence[str]) -> Any:
    rows = ", ".join(f"({number}, '{text}')" for number, text in enumerate(texts))
    return spark.sql(f"select * from values {rows} as t(place, text)")


def way(
    sink: Memory, told: Told, box: Box | None, policy: ErrorPolicy = POLICY, **more: Any
) -> Way:
    return Way(
        source=Texts(),
        transform=more.pop("transform", None) or transform_of(None),
        sink=sink,
        policy=policy,
        letters=box,
        pause=told.pause,
        tell=told.notes.append,
        **more,
    )


def no_fives(texts: list[str]) -> None:
    """A sink that fails for a row without naming it."""
    if any(text.startswith("5") for text in texts):
        raise RuntimeError("ERROR: value out of range (SQLSTATE 22003)")


@dataclass
class Explained(Memory):
    """A sink that uses nothing of the hidden column, and keeps what Spark makes of that."""

    plan: str = ""
    whole: str = ""

    def write(self, rows: Any, batch: Batch) -> None:
        self.plan = _optimized(rows.drop(HIDDEN))
        self.whole = _optimized(rows)
        super().write(rows.drop(HIDDEN), batch)


def _optimized(rows: Any) -> str:
    return str(rows._jdf.queryExecution().optimizedPlan().toString())


@pytest.mark.parametrize(
    ("declaration", "options", "read"),
    [
        (FILES, {"format": "text"}, "text"),
        (FILES, {"format": "csv", "schema": "value int"}, "csv"),
        (FILES, {"format": "json", "schema": "value int"}, "text"),
        (TOPIC, {"format": "string"}, ""),
    ],
)
def test_a_sink_does_not_pay_for_positions_that_it_does_not_use(
    spark: Any, told: Told, tmp_path: Path, declaration: Any, options: Any, read: str
) -> None:
    """Making the JSON of a position takes longer than all the rest of a row's way."""
    (tmp_path / "part.txt").write_text('{"value": 5}\n' if "json" in options.values() else "5\n")
    given = {option.name: option.default for option in declaration.options}
    source = declaration.make({**given, "path": str(tmp_path), "name": ["t"], **options})
    if read:
        reader = spark.read.format(read)
        if read == "csv":
            reader = reader.schema("value int, _ottla_corrupt string")
        batch = reader.load(str(tmp_path))
    else:
        columns = (
            "key binary, value binary, topic string, partition int, offset bigint, "
            "timestamp timestamp"
        )
        batch = spark.createDataFrame([(None, b"5", "t", 0, 0, None)], columns)
    sink = Explained()
    outcome = process(batch, replace(way(sink, told, None), source=source), BATCH)
    assert outcome == Outcome(rows=1, written=1, letters=0)
    assert "StructsToJson" in sink.whole
    assert "StructsToJson" not in sink.plan


def test_all_rows_reach_the_sink_and_are_counted(spark: Any, told: Told, box: Box) -> None:
    sink = Memory()
    outcome = process(frame(spark, ["1", "2", "3"]), way(sink, told, box), BATCH)
    assert outcome == Outcome(rows=3, written=3, letters=0)
    assert sink.kept == ["1", "2", "3"]
    assert box.writes == 0
    assert told.notes == []


def test_an_undecodable_row_is_a_letter_even_where_the_transform_would_drop_it(
    spark: Any, told: Told, box: Box
) -> None:
    sink = Memory()
    upper = transform_of("select text from source where text <> '2'")
    texts = ["1", "undecodable", "2"]
    outcome = process(frame(spark, texts), way(sink, told, box, transform=upper), BATCH)
    assert outcome == Outcome(rows=3, written=1, letters=1)
    assert sink.kept == ["1"]
    [letter] = box.letters.values()
    assert (letter.position, letter.failure.stage, letter.failure.kind) == (
        *("1", "decode", "NotANumber"),
    )


def test_a_sink_that_names_its_rows_is_believed_without_a_probe(
    spark: Any, told: Told, box: Box
) -> None:
    def refuse(texts: list[str]) -> None:
        bad = [text for text in texts if text in ("11", "12")]
        if bad:
            raise RowsRefused([RefusedRow(bad[0][1:], "TooLarge", f"{bad[0]} is too large")])

    sink = Memory(refuse)
    outcome = process(frame(spark, ["10", "11", "12", "13"]), way(sink, told, box), BATCH)
    assert outcome == Outcome(rows=4, written=2, letters=2)
    assert (sink.kept, sink.probes) == (["10", "13"], 0)
    assert [each.replayed for each in sink.batches] == [False, True, True]
    assert box.letters["1"].failure.message == "11 is too large"


def test_letters_are_durable_before_the_batch_is_tried_without_them(
    spark: Any, told: Told, box: Box
) -> None:
    class Once(Memory):
        """Exactly once: a batch that it has is skipped, and it says nothing about its rows."""

        def write(self, rows: Any, batch: Batch) -> None:
            if not self.kept:
                super().write(rows, batch)
                raise KeyboardInterrupt  # killed between the sink's commit and all that follows

    sink = Once(no_fives)
    with pytest.raises(KeyboardInterrupt):
        process(frame(spark, ["1", "5", "2"]), way(sink, told, box), BATCH)
    assert sink.kept == ["1", "2"]
    assert list(box.letters) == ["1"]


def test_the_row_to_blame_is_found_by_probing(spark: Any, told: Told, box: Box) -> None:
    sink = Memory(no_fives)
    texts = [str(number) for number in range(10, 26)]
    texts[3], texts[12] = "51", "52"
    outcome = process(frame(spark, texts), way(sink, told, box), BATCH)
    assert outcome == Outcome(rows=16, written=14, letters=2)
    assert sorted(box.letters) == ["12", "3"]
    assert {each.failure.stage for each in box.letters.values()} == {"sink"}
    assert "out of range" in box.letters["3"].failure.message
    assert sink.probes <= 64
    assert told.pauses == []  # SQLSTATE 22 is a row's: nothing is tried again first


def test_a_row_that_fails_in_the_transform_never_reaches_the_sink(
    spark: Any, told: Told, box: Box
) -> None:
    sink = Memory()
    cast = transform_of("select cast(text as int) as number from source")
    texts = ["1", "2", "three", "4"]
    outcome = process(frame(spark, texts), way(sink, told, box, transform=cast), BATCH)
    assert outcome == Outcome(rows=4, written=3, letters=1)
    failure = box.letters["2"].failure
    assert (failure.stage, failure.kind) == ("transform", "CAST_INVALID_INPUT")
    assert sink.probes == 0


def test_a_bad_row_that_is_alone_in_its_batch_is_found(spark: Any, told: Told, box: Box) -> None:
    outcome = process(frame(spark, ["5"]), way(Memory(no_fives), told, box), BATCH)
    assert outcome == Outcome(rows=1, written=0, letters=1)


def test_a_sink_that_takes_no_row_at_all_blames_none(spark: Any, told: Told, box: Box) -> None:
    def refuse(texts: list[str]) -> None:
        raise RuntimeError("something is wrong with me")

    with pytest.raises(NoRow, match="so do all others: RuntimeError: something is wrong"):
        process(frame(spark, ["1", "2", "3", "4"]), way(Memory(refuse), told, box), BATCH)
    assert box.letters == {}
    assert told.pauses == [0.1]  # two attempts before the search


def test_an_outage_is_waited_for_in_growing_steps(spark: Any, told: Told, box: Box) -> None:
    trouble = [ConnectionRefusedError(111, "refused"), Outage("the database", "it is full")] * 3

    def refuse(texts: list[str]) -> None:
        if trouble:
            raise trouble.pop()

    sink = Memory(refuse)
    outcome = process(frame(spark, ["1", "2"]), way(sink, told, box), BATCH)
    assert outcome == Outcome(rows=2, written=2, letters=0)
    assert told.pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert told.events() == [Event.OUTAGE] * 6 + [Event.RECOVERED]
    assert "it is full" in told.notes[0].sentence
    assert box.letters == {}


def test_an_outage_during_the_search_blames_no_row(spark: Any, told: Told, box: Box) -> None:
    calls = 0

    def refuse(texts: list[str]) -> None:
        nonlocal calls
        calls += 1
        if calls > 1 and calls % 2:
            raise ConnectionResetError(104, "reset")
        no_fives(texts)

    outcome = process(frame(spark, ["1", "5", "3", "4"]), way(Memory(refuse), told, box), BATCH)
    assert outcome == Outcome(rows=4, written=3, letters=1)
    assert list(box.letters) == ["1"]


def test_an_outage_of_the_dead_letter_topic_is_waited_for(spark: Any, told: Told, box: Box) -> None:
    box.trouble = [ConnectionRefusedError(111, "refused")]
    outcome = process(frame(spark, ["undecodable", "1"]), way(Memory(), told, box), BATCH)
    assert outcome.letters == 1
    assert (box.writes, told.events()) == (*(2, [Event.OUTAGE, Event.LETTERS, Event.RECOVERED]),)


def test_a_stop_while_waiting_leaves_the_batch_undone(spark: Any, told: Told, box: Box) -> None:
    def refuse(texts: list[str]) -> None:
        raise ConnectionRefusedError(111, "refused")

    told.stop_after = 2
    with pytest.raises(Stopped):
        process(frame(spark, ["1"]), way(Memory(refuse), told, box), BATCH)


def test_without_a_dead_letter_topic_the_first_row_stops_the_pipeline(
    spark: Any, told: Told
) -> None:
    with pytest.raises(RowsFailed, match="the row at 1 could not be decoded: NotA") as raised:
        process(frame(spark, ["1", "undecodable"]), way(Memory(), told, None), BATCH)
    assert "NotANumber: undecodable; no dead_letter topic is set" in str(raised.value)
    with pytest.raises(RowsFailed, match=r" \(and 1 other\); no dead_letter topic is set"):
        process(frame(spark, ["undecodable"] * 2), way(Memory(), told, None), BATCH)
    with pytest.raises(RowsFailed, match="the row at 1 was not taken by the sink"):
        process(frame(spark, ["1", "5", "2"]), way(Memory(no_fives), told, None), BATCH)


@pytest.mark.parametrize(
    ("bad", "earlier", "stops"),
    [
        (3, Outcome(), False),
        (4, Outcome(), True),
        (4, Outcome(rows=390, letters=0), False),
        (1, Outcome(rows=10, letters=3), True),
    ],
)
def test_too_many_letters_stop_the_pipeline(
    spark: Any, told: Told, box: Box, bad: int, earlier: Outcome, stops: bool
) -> None:
    policy = ErrorPolicy(dead_letter="x", most_letters=3, most_share=0.01)
    texts = ["undecodable"] * bad + ["1"] * (10 - bad)
    if not stops:
        found = process(frame(spark, texts), way(Memory(), told, box, policy), BATCH, earlier)
        assert found.letters == bad
        return
    with pytest.raises(RowsFailed, match="stop_at allows 3"):
        process(frame(spark, texts), way(Memory(), told, box, policy), BATCH, earlier)
    assert box.letters == {}


def test_a_replayed_batch_leaves_its_letters_out_of_the_sink(
    spark: Any, told: Told, box: Box
) -> None:
    first = Memory(no_fives)
    process(frame(spark, ["1", "5", "undecodable"]), way(first, told, box), BATCH)
    again = Memory()  # takes everything now
    replay = Batch("orders", "memory", "run-1", 7, replayed=True)
    policy = ErrorPolicy(dead_letter="x", most_letters=2, most_share=0)
    texts = ["1", "5", "undecodable"]
    outcome = process(frame(spark, texts), way(again, told, box, policy), replay)
    assert outcome == Outcome(rows=3, written=1, letters=2)
    assert again.kept == ["1"]
    assert len(box.letters) == 2


def test_more_bad_rows_than_probes_can_find_are_found_over_several_runs(
    spark: Any, told: Told, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.pipelines.connectors.blame.MOST_PROBES", 12)
    texts = ["1"] * 5 + ["51"] + ["1"] * 5 + ["52"] + ["1"] * 4 + ["53"]
    batch, runs = BATCH, 0
    while runs < 5:
        runs += 1
        sink = Memory(no_fives)
        try:
            outcome = process(frame(spark, texts), way(sink, told, box), batch)
            break
        except RowsFailed:
            pass  # the next run goes on from there
        batch = Batch("orders", "memory", "run-1", 7, replayed=True)
    assert runs > 1
    assert outcome == Outcome(rows=17, written=14, letters=3)
    assert sorted(box.letters) == ["11", "16", "5"]


def test_a_sink_that_runs_no_query_is_counted_apart(
    spark: Any, told: Told, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.pipelines.connectors.process._PATIENCE", 0.0)

    class Lazy(Memory):
        def write(self, rows: Any, batch: Batch) -> None:
            pass

    outcome = process(frame(spark, ["1", "undecodable"]), way(Lazy(), told, box), BATCH)
    assert outcome == Outcome(rows=2, written=1, letters=1)


def test_a_sink_that_looks_at_a_part_first_loses_no_letter(
    spark: Any, told: Told, box: Box
) -> None:
    class Peeking(Memory):
        def write(self, rows: Any, batch: Batch) -> None:
            rows.limit(1).collect()
            super().write(rows, batch)

    texts = ["1"] * 20 + ["undecodable"]
    outcome = process(frame(spark, texts), way(Peeking(), told, box, counts_apart=True), BATCH)
    assert outcome == Outcome(rows=21, written=20, letters=1)


def test_a_format_of_spark_that_looks_at_some_rows_hides_no_failure(spark, box):
    values = {option.name: option.default for option in SPARK.options} | {"format": "console"}
    source = Connector("texts", {}, Declaration("texts", "", (), lambda _options: Texts()))
    spec = PipelineSpec("orders", "127.0.0.1:1", source, Connector("spark", values, SPARK),
                        on_error=POLICY)  # fmt: skip
    texts = [*map(str, range(100)), "undecodable"]
    way = replace(way_of(spec), letters=box)
    outcome = process(frame(spark, texts).repartitionByRange(4, "place"), way, BATCH)
    assert outcome == Outcome(101, 100, 1)
    assert list(box.letters) == ["100"]


def test_lines_of_csv_that_do_not_fit_are_counted_in_a_pass_of_their_own(
    spark: Any, told: Told, box: Box, tmp_path: Path
) -> None:
    """Spark refuses a query that needs nothing but the lines that it could not read."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1,a\nx,b\n2,c\n")
    given = {option.name: option.default for option in FILES.options}
    options = {"path": str(tmp_path / "in"), "format": "csv", "schema": "id int, name string"}
    source = FILES.make({**given, **options})
    place = Place("orders", str(tmp_path / "c"), str(tmp_path / "s"), "127.0.0.1:1")
    whole = replace(way(Memory(), told, box, counts_apart=True), source=source)
    outcomes = [process(source.sample(spark, place, 10), whole, BATCH)]
    query = source.stream(spark, place).writeStream.trigger(availableNow=True)
    query = query.foreachBatch(lambda rows, _: outcomes.append(process(rows, whole, BATCH)))
    query.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
    assert outcomes == [Outcome(rows=3, written=2, letters=1)] * 2
    assert {each.value for each in box.letters.values()} == {b"x,b"}
