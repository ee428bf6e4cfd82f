"""The contracts of a pipeline's source and sink, as checks that one's own must pass.

    @pytest.mark.parametrize("check", SINK_CHECKS)
    def test_my_sink(check, spark, tmp_path):
        table = Table(tmp_path / "rows")                   # of one's own
        check(SinkCase(spark, lambda: MySink(table.path), table.rows, tmp_path))

    @pytest.mark.parametrize("check", SOURCE_CHECKS)
    def test_my_source(check, spark, tmp_path):
        check(SourceCase(spark, lambda: MySource(…), rows_that_it_has, tmp_path))

`check_sink` and `check_source` run all of them, each against what a new case from `fresh` leads to.
A sink is judged by the guarantee that it claims: one that claims `EXACTLY_ONCE` must have every row
once after its batch was cut off by a kill and run again, one that claims `AT_LEAST_ONCE` must have
every row. The kill is real: a process of Spark's tasks kills itself in the middle of its rows. A
session with `local[N, F]` tries a failed task again F - 1 times.

`sample_rows`, `batch` and `place` make what a sink is given; `made` makes a sink or source from its
declaration, with the defaults of the options that are not given.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from ottla.pipelines.connectors.contract import (
    HIDDEN,
    HIDDEN_TYPE,
    Batch,
    Guarantee,
    Place,
    Sink,
    Source,
)
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option

SCHEMA: Final = "id long, name string"
"""The columns of the rows that a checked sink is given."""

Row: TypeAlias = tuple[Any, ...]

_POSITIONED: Final = f"{HIDDEN} struct<position: string, line: long, sequence: long>"


# -- what a sink is given


def sample_rows(
    spark: Any, values: Iterable[Row], schema: str = SCHEMA, *, tasks: int = 2, start: int = 0
) -> Any:
    """A DataFrame of these rows, as records of a topic's partition 0 from offset `start` on."""
    numbered = [
        (*value, (position(offset), 0, offset)) for offset, value in enumerate(values, start)
    ]
    found = spark.createDataFrame(numbered, f"{schema}, {_POSITIONED}")
    return found.coalesce(1) if tasks == 1 else found.repartition(tasks, f"{HIDDEN}.sequence")


def position(offset: int, partition: int = 0) -> str:
    """Where a row of `sample_rows` came from."""
    return json.dumps({"topic": "sample", "partition": partition, "offset": offset})


def numbers(count: int, start: int = 0) -> list[Row]:
    """So many rows of `SCHEMA`, all different."""
    return [(number, f"name {number}") for number in range(start, start + count)]


def batch(number: int = 0, *, run: str = "run-1", replayed: bool = False) -> Batch:
    """The batch of that number of a pipeline `sample`."""
    return Batch("sample", "sink", run, number, replayed)


def place(folder: Path, bootstrap: str = "127.0.0.1:1") -> Place:
    """Where such a pipeline has its checkpoint."""
    return Place("sample", str(folder / "checkpoint"), str(folder / "staging"), bootstrap)


def made(declaration: Declaration, **options: Any) -> Any:
    """The source or sink with these options, and with the defaults of the others.

    `Mistake` for a value that an option does not take, or for values that do not fit together.
    """
    known = {option.name: option for option in declaration.options}
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise TypeError(f"{declaration.name} has no option {', '.join(unknown)}")
    for name, value in options.items():
        _check(known[name], value)
    return declaration.make({name: each.default for name, each in known.items()} | options)


def _check(option: Option, value: Any) -> None:
    if value is None:
        return
    for each in value if option.kind is Kind.LIST else [value]:
        if option.choices and each not in option.choices:
            raise Mistake(option.name, f"{each} is none of {', '.join(option.choices)}")
    if option.check is not None:
        try:
            option.check(value)
        except ValueError as error:
            raise Mistake(option.name, str(error)) from None


# -- sinks


@dataclass(frozen=True, slots=True)
class SinkCase:
    """A sink to check; it is empty when a check begins.

    make      the sink, as a driver that starts makes it
    stored    the rows that are in it now: (id, name), as often as they are there
    folder    an empty folder for the check
    bootstrap the brokers, if it needs any
    """

    spark: Any
    make: Callable[[], Sink]
    stored: Callable[[], Sequence[Row]]
    folder: Path
    bootstrap: str = "127.0.0.1:1"

    @property
    def place(self) -> Place:
        return place(self.folder, self.bootstrap)

    def started(self) -> Sink:
        """The sink of a driver that has just started."""
        sink = self.make()
        sink.prepare(self.spark, sample_rows(self.spark, []).schema, self.place)
        return sink

    def expect(self, values: Sequence[Row], why: str) -> None:
        """Whether the sink holds these rows, as often as it promises."""
        guarantee = self.make().guarantee
        if guarantee is Guarantee.NONE:
            return
        found = Counter(tuple(row) for row in self.stored())
        wanted = Counter(values)
        missing = wanted - found
        assert not missing, f"{why}: {sum(missing.values())} rows are missing: {_few(missing)}"
        strange = found.keys() - wanted.keys()
        assert not strange, f"{why}: there are rows that nobody wrote: {_few(strange)}"
        if guarantee is Guarantee.EXACTLY_ONCE:
            twice = found - wanted
            assert not twice, f"{why}: {sum(twice.values())} rows are there twice: {_few(twice)}"


def every_row_of_a_batch_is_there(case: SinkCase) -> None:
    sink = case.started()
    sink.write(sample_rows(case.spark, numbers(100)), batch(0))
    case.expect(numbers(100), "after the first batch")
    sink.write(sample_rows(case.spark, [], tasks=1), batch(1))
    case.expect(numbers(100), "after a batch without rows")
    sink.write(sample_rows(case.spark, numbers(50, 100), start=100), batch(2))
    case.expect(numbers(150), "after another batch")


def a_batch_that_is_run_again_changes_nothing(case: SinkCase) -> None:
    rows = sample_rows(case.spark, numbers(100))
    case.started().write(rows, batch(0))
    case.started().write(rows, batch(0, replayed=True))
    case.expect(numbers(100), "after the batch was run again by another driver")


def a_kill_in_the_middle_of_a_batch_loses_nothing(case: SinkCase) -> None:
    killed_once = _killing(sample_rows(case.spark, numbers(2000)), case.folder, at=1500)
    written = _attempt(case.started(), killed_once, batch(0))
    if not written:
        case.started().write(killed_once, batch(0, replayed=True))
    case.expect(numbers(2000), "after a process was killed and the batch was run again")


def a_batch_of_another_checkpoint_is_another_batch(case: SinkCase) -> None:
    case.started().write(sample_rows(case.spark, numbers(20)), batch(0))
    other = sample_rows(case.spark, numbers(20, 20), start=20)
    case.started().write(other, batch(0, run="run-2"))
    case.expect(numbers(40), "after a batch 0 of a pipeline that was reset")


def a_probe_leaves_nothing(case: SinkCase) -> None:
    sink = case.started()
    sink.probe(sample_rows(case.spark, numbers(20)), batch(0))
    found = list(case.stored())
    assert not found, f"a probe has left {len(found)} rows"
    sink.write(sample_rows(case.spark, numbers(20)), batch(0))
    case.expect(numbers(20), "after a probe and the batch itself")


SinkCheck: TypeAlias = Callable[[SinkCase], None]

SINK_CHECKS: Final[tuple[SinkCheck, ...]] = (
    every_row_of_a_batch_is_there,
    a_batch_that_is_run_again_changes_nothing,
    a_kill_in_the_middle_of_a_batch_loses_nothing,
    a_batch_of_another_checkpoint_is_another_batch,
    a_probe_leaves_nothing,
)


def check_sink(fresh: Callable[[], SinkCase]) -> None:
    """Run every check, each against the empty sink of a new case."""
    for check in SINK_CHECKS:
        check(fresh())


def _attempt(sink: Sink, rows: Any, which: Batch) -> bool:
    """Whether a write came through; a task that was killed may have been tried again."""
    try:
        sink.write(rows, which)
    except Exception:  # whatever a sink says of a killed process is right
        return False
    return True


def _killing(rows: Any, folder: Path, at: int) -> Any:
    """The same rows; whoever reads the row number `at` for the first time is killed there."""
    return rows.mapInArrow(_Kill(str(folder / f"killed-{uuid.uuid4().hex}"), at), rows.schema)


@dataclass(frozen=True, slots=True)
class _Kill:
    """Kills the process of the task once; `mark` is the file that says that it has."""

    mark: str
    at: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for found in batches:
            ids = found.column(0).to_pylist()
            if self.at in ids and not os.path.exists(self.mark):
                # What is before that row has gone on its way.
                yield found.slice(0, ids.index(self.at))
                with open(self.mark, "w"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            yield found


# -- sources


@dataclass(frozen=True, slots=True)
class SourceCase:
    """A source to check.

    make      the source, as a driver that starts makes it
    expected  the rows that it has, without `HIDDEN`, in any order
    folder    an empty folder for the check
    bootstrap the brokers, if it needs any
    """

    spark: Any
    make: Callable[[], Source]
    expected: Sequence[Row]
    folder: Path
    bootstrap: str = "127.0.0.1:1"

    @property
    def place(self) -> Place:
        return place(self.folder, self.bootstrap)

    def run(self, work: Callable[[Any, int], None]) -> None:
        """Everything that is there, batch by batch, as `run --once` reads it."""
        source = self.make()

        def each(frame: Any, number: int) -> None:
            work(source.rows(frame), number)

        query = (
            source.stream(self.spark, self.place)
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", self.place.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def every_row_is_read_once(case: SourceCase) -> None:
    found: list[Any] = []
    case.run(lambda rows, _: found.extend(rows.collect()))
    _same_rows(found, case.expected, "after everything was read")
    case.run(lambda rows, _: found.extend(rows.collect()))
    _same_rows(found, case.expected, "after a second run, which finds nothing new")


def rows_say_where_they_came_from(case: SourceCase) -> None:
    positions: list[str] = []
    wanted = case.spark.createDataFrame([], f"{HIDDEN} {HIDDEN_TYPE}").schema[HIDDEN].dataType

    def look(rows: Any, _number: int) -> None:
        kind = rows.schema[HIDDEN].dataType
        assert kind.simpleString() == wanted.simpleString(), (
            f"{HIDDEN} is {kind.simpleString()}: it must be {wanted.simpleString()}"
        )
        positions.extend(row[0] for row in rows.select(f"{HIDDEN}.position").collect())

    case.run(look)
    for each in positions:
        assert isinstance(json.loads(each), dict), f"{each} is no JSON object"
    twice = [where for where, count in Counter(positions).items() if count > 1]
    assert not twice, f"two rows say that they are from {twice[0]}"


def a_batch_that_is_run_again_has_the_same_rows(case: SourceCase) -> None:
    first: dict[int, list[Any]] = {}
    again: dict[int, list[Any]] = {}

    def fail(rows: Any, number: int) -> None:
        first[number] = rows.collect()
        raise RuntimeError("the batch is cut off here")

    try:
        case.run(fail)
    except Exception:  # Spark wraps what the batch raised
        pass
    assert first, "there was no batch, although there are rows"

    def keep(rows: Any, number: int) -> None:
        again[number] = rows.collect()

    case.run(keep)
    for number, rows in first.items():
        assert again.get(number) == rows, f"batch {number} had other rows when it was run again"


def a_sample_leaves_no_trace(case: SourceCase) -> None:
    source = case.make()
    taken = source.rows(source.sample(case.spark, case.place, 3)).collect()
    assert taken, "a sample of a source with rows has none"
    left = [path for path in case.folder.rglob("*") if path.is_file()]
    assert not left, f"a sample has left {left[0]}"
    found: list[Any] = []
    case.run(lambda rows, _: found.extend(rows.collect()))
    _same_rows(found, case.expected, "after a sample")


SourceCheck: TypeAlias = Callable[[SourceCase], None]

SOURCE_CHECKS: Final[tuple[SourceCheck, ...]] = (
    every_row_is_read_once,
    rows_say_where_they_came_from,
    a_batch_that_is_run_again_has_the_same_rows,
    a_sample_leaves_no_trace,
)


def check_source(fresh: Callable[[], SourceCase]) -> None:
    """Run every check, each with a new case."""
    for check in SOURCE_CHECKS:
        check(fresh())


def _same_rows(found: Iterable[Any], expected: Sequence[Row], why: str) -> None:
    plain = [
        tuple(value for name, value in row.asDict().items() if name != HIDDEN) for row in found
    ]
    have, want = Counter(map(repr, plain)), Counter(map(repr, expected))
    assert not want - have, f"{why}: rows are missing: {_few(want - have)}"
    assert not have - want, f"{why}: rows are too many: {_few(have - want)}"


def _few(rows: Iterable[Any]) -> str:
    shown = [str(row) for _, row in zip(range(5), rows)]  # noqa: B905 - the first five
    return ", ".join(shown)
