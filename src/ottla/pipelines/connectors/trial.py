"""A pipeline tried without leaving a trace: `preview` and `test`.

Both take rows through `process`, the way that `run` takes them, with a sink that shows what it is
given. No group, no checkpoint and no sink is touched.
"""

from __future__ import annotations

import datetime
import decimal
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ottla.pipelines.connectors.blame import NoRow
from ottla.pipelines.connectors.contract import (
    HIDDEN,
    HIDDEN_TYPE,
    Batch,
    Guarantee,
    Outage,
    Place,
)
from ottla.pipelines.connectors.errors.letters import Letter
from ottla.pipelines.connectors.errors.outages import judge
from ottla.pipelines.connectors.process import Outcome, RowsFailed, Stopped, Way, process
from ottla.pipelines.connectors.spec.values import Case, ErrorPolicy, PipelineSpec
from ottla.pipelines.connectors.transform import NotRowWise, carry_code, transform_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_POLICY = ErrorPolicy(attempts=1, backoff=(0.1, 0.1), most_letters=1_000_000)
_HIDDEN = (
    "cast(named_struct('position', to_json(named_struct('test', number)), 'line', 0L, "
    "'sequence', number, 'timestamp', null, 'key', null, 'value', cast(line as binary), "
    f"'headers', null, 'error', null) as {HIDDEN_TYPE})"
)
"""The hidden column of a test's row."""


@dataclass
class Shown:
    """A sink that keeps what it is given, in memory; at most `most` rows of it."""

    most: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    columns: list[tuple[str, str]] = field(default_factory=list)
    """Names and types."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.NONE

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        """There is nothing to prepare."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        visible = rows.drop(HIDDEN)
        self.columns = visible.dtypes
        some = visible if self.most is None else visible.limit(self.most)
        self.rows = some.toArrow().to_pylist()

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        rows.write.format("noop").mode("overwrite").save()


@dataclass
class Kept:
    """Dead letters, in memory."""

    letters: list[Letter] = field(default_factory=list)

    def known(self, batch: Batch) -> set[str]:
        return set()

    def write(self, letters: Sequence[Letter], batch: Batch) -> int:
        """Those that fail in the transform come first, those that cannot be decoded later."""
        known = {letter.position for letter in self.letters}
        self.letters += [letter for letter in letters if letter.position not in known]
        return len(letters)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a preview has found."""

    columns: list[tuple[str, str]]
    rows: list[dict[str, Any]]
    letters: list[Letter]
    outcome: Outcome


class Away(Exception):
    """Something is not there, and a trial does not wait for it."""


def sentence_of(error: Exception) -> str | None:
    """What to tell of an exception that ended a trial; None if it is a fault of ours."""
    from pyspark.errors import PySparkException

    if isinstance(error, NotRowWise):
        return f"the transform is refused: {error}"
    if isinstance(error, (RowsFailed, NoRow, Away, Outage)):
        return str(error)
    return judge(error).sentence if isinstance(error, PySparkException) else None


def preview(spec: PipelineSpec, way: Way, spark: SparkSession, count: int) -> Preview:
    """About so many rows of the source, through the pipeline."""
    shown, kept = Shown(count), Kept()
    with tempfile.TemporaryDirectory(prefix="ottla-preview-") as folder:
        place = Place(
            spec.name,
            f"{folder}/checkpoint",
            f"{folder}/staging",
            spec.bootstrap,
            tuple(spec.kafka.items()),
        )
        frame = way.source.sample(spark, place, count)
        outcome = _through(frame, replace(way, sink=shown, letters=kept), spec)
    return Preview(shown.columns, shown.rows, kept.letters, outcome)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one test: what is wrong, one sentence each; nothing if it passed."""

    case: Case
    wrong: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.wrong


def run_case(spec: PipelineSpec, case: Case, spark: SparkSession) -> Verdict:
    """The case's rows through the pipeline's transform."""
    if not case.rows:
        return Verdict(case, tuple(_differences(case, (), ())))
    if callable(spec.transform):
        carry_code(spec.transform)
    shown, kept = Shown(), Kept()
    way = Way(_Given(), transform_of(spec.transform), shown, letters=kept)
    _through(_frame(case, spark), way, spec)
    return Verdict(case, tuple(_differences(case, shown.rows, kept.letters)))


def _through(frame: DataFrame, way: Way, spec: PipelineSpec) -> Outcome:
    told: list[str] = []
    quiet = replace(
        way,
        policy=_POLICY,
        pause=lambda seconds: seconds == 0,  # nobody waits here, and nobody stops it either
        tell=lambda note: told.append(note.sentence),
        counts_apart=True,
    )
    batch = Batch(spec.name, "preview", "preview", 0, replayed=False)
    try:
        return process(frame, quiet, batch)
    except Stopped:
        raise Away(told[-1].partition("; waiting")[0]) from None


class _Given:
    """The source of a test: rows that are there already."""

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        raise NotImplementedError("a test has rows, and no stream of them")

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        raise NotImplementedError("a test has rows, and no sample of them")

    def rows(self, batch: DataFrame) -> DataFrame:
        return batch


def _frame(case: Case, spark: SparkSession) -> DataFrame:
    """The rows of a test as Spark reads them from JSON, so that a text can be a timestamp."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    lines = [json.dumps(row) for row in case.rows]
    schema = case.schema
    if schema is None:
        whole = json.dumps(list(case.rows))
        [found] = spark.range(1).select(F.schema_of_json(F.lit(whole))).collect()
        schema = str(found[0]).removeprefix("ARRAY<").removesuffix(">")
    elif not schema.lower().startswith("struct<"):
        schema = f"struct<{schema}>"
    texts = spark.createDataFrame(list(enumerate(lines)), "number long, line string").coalesce(1)
    decoded = F.from_json("line", schema, {"mode": "FAILFAST"})
    return texts.select(decoded.alias("row"), F.expr(_HIDDEN).alias(HIDDEN)).select("row.*", HIDDEN)


def _differences(
    case: Case, rows: Sequence[Mapping[str, Any]], letters: Sequence[Letter]
) -> list[str]:
    wrong = []
    found = Counter(_line(row) for row in rows)
    expected = Counter(_line(row) for row in case.expected)
    wrong += [f"missing: {line}" for line in (expected - found).elements()]
    wrong += [f"unexpected: {line}" for line in (found - expected).elements()]
    if len(letters) != case.fails:
        named = "; ".join(f"{each.failure.kind}: {each.failure.message}" for each in letters[:3])
        wrong.append(
            f"{len(letters)} rows failed instead of {case.fails}" + (f" ({named})" if named else "")
        )
    return wrong


def _line(row: Mapping[str, Any]) -> str:
    """A row as JSON in one spelling: columns without a value are left out."""
    return json.dumps(_plain(row), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one return for each type
    """As YAML would have it: 5.0 is 5, a timestamp is a text."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value
