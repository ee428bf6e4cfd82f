"""The way of one micro-batch: decode, transform, write, and what fails to the dead letters.

    way = Way(source, transform, sink, policy, letters)
    outcome = process(frame, way, batch, so_far)

`run` calls it in `foreachBatch`; `preview`, `test` and `redrive` call the same function with other
sinks, so that what they show is what a run does.

It returns when every row of the batch is durable, in the sink or as a dead letter. It waits for
outages as long as they last, and raises `Stopped` when it is told to stop meanwhile. Every other
exception ends the pipeline with the batch undone: the next run begins with this batch, under the
same number.

A row that could not be decoded goes past the transform and the sink. How many there are is counted
while the sink reads the others, so a batch without failures is read once. When the sink fails and
does not name the row, `blame.py` looks for it.

A sink that writes each row exactly once skips a batch that it has. So it never gets one of which a
row is not settled: that row may be decoded when the batch is run again, after its schema was
corrected, and would be neither in the sink nor a dead letter. Its reading of a batch fails at the
first row that cannot be decoded; such rows become letters, or end the run, before it is written.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.pipelines.connectors.contract import (
    HIDDEN,
    Batch,
    Guarantee,
    RowsRefused,
    Sink,
    Source,
)
from ottla.pipelines.connectors.errors.letters import Failure, Letter, letter_of
from ottla.pipelines.connectors.errors.outages import Verdict, judge
from ottla.pipelines.connectors.errors.policy import allowed, wait_before
from ottla.pipelines.connectors.formats.failure import STOPPING
from ottla.pipelines.connectors.spec.values import STOP, ErrorPolicy
from ottla.pipelines.connectors.transform import NotRowWise

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FAILED: Final = f"{HIDDEN}_failed"
_UNSETTLED: Final = "ottla: a row cannot be decoded"
_PATIENCE: Final = 10.0
"""Seconds for Spark to tell what it has counted, after the write has returned."""


class Event(Enum):
    """What happens to a batch besides going well."""

    OUTAGE = "outage"
    """Something is not there; it is waited for."""
    RETRY = "retry"
    SEARCH = "search"
    """The rows to blame are being looked for."""
    LETTERS = "letters"
    """Rows have become dead letters."""
    GIVEN_UP = "given up"
    """The pipeline was told to stop, and the batch waits for what may never come."""
    RECOVERED = "recovered"
    """The batch went through after one of the others."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a person is told while a batch is under way; one sentence."""

    event: Event
    sentence: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of a batch, or of all batches of a run so far."""

    rows: int = 0
    """Read from the source."""
    written: int = 0
    """Given to the sink, and kept by it."""
    letters: int = 0
    """Written to the dead-letter topic."""

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.rows + other.rows, self.written + other.written, self.letters + other.letters
        )


NOTHING: Final = Outcome()


class Stopped(Exception):
    """The pipeline was told to stop while it waited; the batch is undone."""


class RowsFailed(Exception):
    """Rows failed, and the pipeline is to stop: nothing takes them, or there are too many.

    letters   some of them, for whoever wants to see more than the sentence
    """

    def __init__(self, sentence: str, letters: Sequence[Letter] = ()) -> None:
        super().__init__(sentence)
        self.letters = tuple(letters)


class Letters(Protocol):
    """Where rows go that fail."""

    def known(self, batch: Batch) -> set[str]:
        """The positions of rows of this batch that are there from an earlier attempt."""

    def write(self, letters: Sequence[Letter], batch: Batch) -> int:
        """Write each row once, also when the batch is replayed; returns how many there are."""


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _nobody(_note: Note) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Way:
    """What every batch of a run goes through.

    pause         waits so many seconds; False if the pipeline is to stop instead
    tell          hears of everything that is not as usual
    counts_apart  count rows in a pass of its own: for a sink whose first action may not read all
    """

    source: Source
    transform: Callable[[DataFrame], DataFrame]
    sink: Sink
    policy: ErrorPolicy = STOP
    letters: Letters | None = None
    pause: Callable[[float], bool] = _sleep
    tell: Callable[[Note], None] = _nobody
    counts_apart: bool = False


def process(frame: DataFrame, way: Way, batch: Batch, so_far: Outcome = NOTHING) -> Outcome:
    """Take the batch through; `frame` has the source's own columns. Returns its own counts.

    so_far  the counts of the run's earlier batches, for the limits on dead letters
    """
    run = _Process(frame, way, batch, so_far)
    try:
        return run.go()
    finally:
        run.release()


class _Process:
    """One batch on its way; its attributes are what is known of it so far."""

    def __init__(self, frame: DataFrame, way: Way, batch: Batch, so_far: Outcome) -> None:
        self._frame = frame
        self._way = way
        self._batch = batch
        self._so_far = so_far
        self._blamed: dict[str, Failure] = {}
        self._known: set[str] = set()
        """Positions of letters that an earlier attempt at this batch has written."""
        # A sink of the user's own need not say.
        self._once = getattr(way.sink, "guarantee", None) is Guarantee.EXACTLY_ONCE
        self._settled: frozenset[str] | None = None
        """The positions of the rows that could not be decoded, once all of them are letters."""
        self._attempts = 0
        self._outages = 0
        self._probes = 0
        self._kept: DataFrame | None = None

    def go(self) -> Outcome:
        to = self._way.letters
        if self._batch.replayed and to is not None:
            self._known = self._patient(lambda: to.known(self._batch))
        if self._once and (self._way.counts_apart or self._batch.replayed or self._so_far.letters):
            self._settle()  # else a batch is taken for sound until it is found out
        while True:
            try:
                counted = self._write()
                break
            except RowsRefused as refused:
                self._refused(refused)
            except Exception as error:  # judged below; what cannot be is raised again
                if _UNSETTLED in str(error):
                    self._settle()
                else:
                    self._failed(error)
            self._batch = dataclasses.replace(self._batch, replayed=True)
        outcome = Outcome(counted.rows, counted.written, self._letters(counted))
        if self._outages or self._attempts:
            self._tell(Event.RECOVERED, f"batch {self._batch.number} went through")
        return outcome

    def release(self) -> None:
        if self._kept is not None:
            self._kept.unpersist()

    # -- the happy path

    def _rows(self) -> DataFrame:
        return self._way.source.rows(self._frame)

    def _sound(self, rows: DataFrame) -> DataFrame:
        """Without the rows that are letters."""
        return self._without_letters(rows.where(~_is_error()))

    def _without_letters(self, decoded: DataFrame) -> DataFrame:
        out = {*self._blamed, *self._known, *(self._settled or ())}
        return decoded.where(~_is_at(out)) if out else decoded

    def _write(self) -> _Counted:
        rows = self._rows()
        if self._way.counts_apart:
            self._way.sink.write(self._way.transform(self._sound(rows)), self._batch)
            return _Counted.apart(rows, self._way.transform(self._sound(rows)))
        # A column of its own: Spark counts with whole columns, and would make all of `HIDDEN`.
        read = _Count(rows.withColumn(_FAILED, _is_error()), _FAILED)
        sound = read.frame.where(self._taken()).drop(_FAILED)
        written = _Count(self._way.transform(self._without_letters(sound)))
        self._way.sink.write(written.frame, self._batch)
        found, kept = read.get(), written.get()
        if found is None or kept is None:  # the sink has not run a query of Spark's with them
            return _Counted.apart(rows, self._way.transform(self._sound(rows)))
        return _Counted(found["rows"], found["failed"], kept["rows"])

    def _taken(self) -> str:
        """Which rows a sink gets; of one that is to have settled rows only, the first other fails.

        A sink of ours that writes exactly once has read all rows before it keeps any: tables behind
        a shuffle, files before there is a manifest.
        """
        if self._once and self._settled is None:
            return f"if({_FAILED}, cast(raise_error('{_UNSETTLED}') as boolean), true)"
        return f"not {_FAILED}"

    def _settle(self) -> None:
        """Make letters of the rows that cannot be decoded, before the sink has the others."""
        counted = self._patient(lambda: _Counted.read(self._rows()))
        letters = self._post_undecoded(counted) if counted.failed else []
        self._settled = frozenset(letter.position for letter in letters)
        if letters:  # whatever is written from now on, some of it may be there
            self._batch = dataclasses.replace(self._batch, replayed=True)

    def _letters(self, counted: _Counted) -> int:
        """Those that could not be decoded; those that were found are there already."""
        if counted.failed > len(self._settled or ()):
            self._post_undecoded(counted)
        return self._count(counted)

    def _count(self, counted: _Counted) -> int:
        if self._known:  # some of which may not have been decoded, and are counted already
            count: int = self._patient(self._failing().count)
            return count
        return counted.failed + len(self._blamed)

    def _post_undecoded(self, counted: _Counted) -> list[Letter]:
        """Make them letters, if there may be so many, and none of them is to end the run."""
        some = self._undecoded().limit(5)
        self._check(self._count(counted), counted.rows, lambda: self._collect(some))
        letters: list[Letter] = self._patient(lambda: self._collect(self._undecoded()))
        ending = [letter for letter in letters if letter.failure.kind in STOPPING]
        if ending:
            raise RowsFailed(
                f"{_first(ending)}{_and_others(len(ending))}; with `evolution: fail` such a row "
                "stops the pipeline. Add what is new to the schema, or choose another evolution",
                ending,
            )
        self._post(letters)
        return letters

    def _post(self, letters: list[Letter]) -> None:
        """Make them durable as dead letters."""
        to = self._way.letters
        if to is None:
            raise AssertionError("without a topic for letters, the first stops the pipeline")
        count = self._patient(lambda: to.write(letters, self._batch))
        rows, became = ("row", "is a dead letter") if count == 1 else ("rows", "are dead letters")
        self._tell(Event.LETTERS, f"{count} {rows} of batch {self._batch.number} {became}")

    def _failing(self) -> DataFrame:
        """The rows that are letters."""
        return self._rows().where(_is_error() | _is_at({*self._blamed, *self._known}))

    def _undecoded(self) -> DataFrame:
        return self._rows().where(_is_error())

    def _collect(self, rows: DataFrame) -> list[Letter]:
        hidden = [row[HIDDEN] for row in rows.select(HIDDEN).toArrow().to_pylist()]
        return [
            letter_of(each, None if each["error"] else self._blamed[each["position"]])
            for each in hidden
        ]

    def _check(self, count: int, rows: int, some: Callable[[], list[Letter]]) -> None:
        """Whether a run may have so many letters more."""
        policy = self._way.policy
        if self._way.letters is None:
            letters = some()
            raise RowsFailed(
                f"{_first(letters)}{_and_others(count)}; no dead_letter topic is set. Correct what "
                "is wrong, or give on_error.dead_letter: such rows go there, and the others on",
                letters,
            )
        most = allowed(policy, self._so_far.rows + rows)
        if self._so_far.letters + count > most:
            letters = some()
            raise RowsFailed(
                f"{self._so_far.letters + count} of {self._so_far.rows + rows} rows failed, and "
                f"on_error.stop_at allows {most}; the last to fail: {_first(letters)}",
                letters,
            )

    # -- when something fails

    def _refused(self, refused: RowsRefused) -> None:
        """A sink that names its rows is believed, once for each row."""
        found = {row.position: Failure("sink", row.kind, row.message) for row in refused.rows}
        new = {position: each for position, each in found.items() if position not in self._blamed}
        if not new:
            raise refused
        self._blame(new)

    def _blame(self, found: Mapping[str, Failure]) -> None:
        """These become letters, if there may be so many.

        They are durable before the batch is tried without them: a sink that has finished a batch
        skips it when it is run again, and would not say a second time what it has not taken.
        """
        self._blamed |= found
        count = len(self._blamed)
        if self._way.letters is None:
            self._check(count, 0, lambda: self._named(found))
        elif self._so_far.letters + count > self._way.policy.most_letters:
            self._check(count, self._patient(self._rows().count), lambda: self._named(found))
        rows = self._rows() if self._kept is None else self._kept
        self._post(self._patient(lambda: self._collect(rows.where(_is_at(found)))))

    def _named(self, failures: Mapping[str, Failure]) -> list[Letter]:
        return [Letter(position, failure) for position, failure in failures.items()]

    def _failed(self, error: Exception) -> None:
        """Wait, try again or look for the rows; raises what none of that helps against."""
        if isinstance(error, (Stopped, RowsFailed)):
            raise error
        verdict = judge(error)
        if verdict.verdict is Verdict.OUTAGE:
            self._wait_for(verdict.sentence)
            return
        if verdict.verdict is Verdict.MISTAKE or isinstance(error, NotRowWise):
            raise error
        if verdict.verdict is Verdict.UNKNOWN:
            self._attempts += 1
            if self._attempts < self._way.policy.attempts:
                wait = wait_before(self._way.policy, self._attempts + 1)
                self._tell(Event.RETRY, f"{verdict.sentence}; attempt {self._attempts + 1} follows")
                self._pause(wait)
                return
        self._search(error, verdict.sentence)

    def _search(self, error: Exception, sentence: str) -> None:
        from ottla.pipelines.connectors.blame import Blame, Unfinished

        self._pause(0.0)  # a batch that fails after a stop is left to the next run
        self._tell(Event.SEARCH, f"{sentence}; looking for the rows to blame")
        if self._kept is None:
            self._kept = self._rows().persist()
        blame = Blame(self._sound(self._kept), self._way, self._batch, self._probes, self._wait_for)
        try:
            found = self._patient(blame.find)
        except Unfinished as unfinished:
            self._blame(unfinished.found)
            raise RowsFailed(
                f"more rows fail than {unfinished.probes} probes can find: {unfinished.rows} of "
                f"the batch are still in doubt, and {len(unfinished.found)} are dead letters now. "
                f"The next run goes on from there. The failure: {sentence}"
            ) from error
        self._probes = blame.probes
        if not found:
            self._attempts += 1
            if self._attempts > self._way.policy.attempts:
                raise error
            return
        self._blame(found)

    def _patient(self, call: Callable[[], Any]) -> Any:
        """The result of a call that is repeated for as long as it meets an outage."""
        while True:
            try:
                return call()
            except (Stopped, RowsFailed):
                raise
            except Exception as error:
                verdict = judge(error)
                if verdict.verdict is not Verdict.OUTAGE:
                    raise
                self._wait_for(verdict.sentence)

    def _wait_for(self, sentence: str) -> None:
        self._outages += 1
        wait = wait_before(self._way.policy, self._outages + 1)
        self._tell(Event.OUTAGE, f"{sentence}; waiting, the next attempt is in {wait:g} s")
        self._pause(wait)

    def _pause(self, seconds: float) -> None:
        if not self._way.pause(seconds):
            # Alone: Spark's own pattern for errors overflows at the traces of those before it.
            raise Stopped(
                f"batch {self._batch.number} was not finished when the pipeline stopped"
            ) from None

    def _tell(self, event: Event, sentence: str) -> None:
        self._way.tell(Note(event, sentence))


@dataclass(frozen=True, slots=True)
class _Counted:
    rows: int
    failed: int
    written: int

    @classmethod
    def apart(cls, rows: DataFrame, out: DataFrame) -> _Counted:
        """In passes of their own."""
        return dataclasses.replace(cls.read(rows), written=out.count())

    @classmethod
    def read(cls, rows: DataFrame) -> _Counted:
        """Before anything is written."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        failed = F.count(F.col(f"{HIDDEN}.error"))
        [found] = rows.agg(F.count(F.lit(1)), failed).collect()
        return cls(found[0], found[1], 0)


class _Count:
    """Counts the rows of a DataFrame while somebody else reads it; also those with a flag."""

    def __init__(self, frame: DataFrame, flag: str | None = None) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        failed = [] if flag is None else [F.count_if(F.col(flag)).alias("failed")]
        self._observation = Observation()
        self.frame = frame.observe(self._observation, F.count(F.lit(1)).alias("rows"), *failed)

    def get(self) -> dict[str, int] | None:
        """None if nobody has read it."""
        observed: Any = self._observation
        end = time.monotonic() + _PATIENCE
        while not observed._jo.future().isCompleted():  # `get` would wait without an end
            if time.monotonic() > end:
                return None
            time.sleep(0.005)
        found: dict[str, int] = observed.get
        return found


def _is_error() -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return F.col(f"{HIDDEN}.error").isNotNull()


def _is_at(positions: Iterable[str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return F.col(f"{HIDDEN}.position").isin(*positions)


def _first(letters: Sequence[Letter]) -> str:
    if not letters:
        return "a row failed"
    letter = letters[0]
    failure = letter.failure
    where = {"decode": "could not be decoded", "transform": "failed in the transform"}
    what = where.get(failure.stage, "was not taken by the sink")
    return f"the row at {letter.position} {what}: {failure.kind}: {failure.message}"


def _and_others(count: int) -> str:
    if count <= 1:
        return ""
    return " (and 1 other)" if count == 2 else f" (and {count - 1} others)"
