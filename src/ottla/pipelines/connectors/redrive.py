"""Dead letters through their pipeline again.

    found = Redrive(spec, way, letters, spark)
    found.chosen(where)            # what would go
    outcome = found.go(where)      # and it goes

A letter of a topic's record is put back into the shape that the source reads: its key, value and
headers, under its first topic, partition, offset and timestamp; so it is decoded as it was. A
letter of another row holds its columns as JSON, or what its source has read, which reads it again.
All take the way of every batch then, into the sink. A letter that was too large for its topic is
not whole, and stays where it is.

What fails again becomes a new letter, with its first position and one try more. When everything is
durable, the old letters are crossed off in the dead-letter topic, so the next redrive leaves them
out. Who is killed before that sends them again: at least once.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import (
    HIDDEN,
    HIDDEN_TYPE,
    Batch,
    Place,
    Source,
)
from ottla.pipelines.connectors.errors import letters as L  # noqa: N812 - names of headers
from ottla.pipelines.connectors.process import NOTHING, Outcome, Way, process
from ottla.pipelines.connectors.sources.hidden import letters_of_json
from ottla.pipelines.connectors.spec.values import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_RECORD: Final = frozenset({"value", "topic", "partition", "offset"})
"""A source whose rows have these columns reads records."""


@dataclass(frozen=True, slots=True)
class Found:
    """A letter as `--dry-run` shows it."""

    partition: int
    offset: int
    position: str
    first_position: str
    tries: int
    stage: str
    kind: str
    message: str


def batch_of(spec: PipelineSpec) -> Batch:
    """The batch that letters are redriven as: like no other, in all that a sink remembers of one.

    Its sink has a name of its own, so that the pipeline's slots stay as they are: those of a batch
    that is unfinished are needed when it is run again. Its run begins with what is unique in it,
    since files are named by the first characters.
    """
    return Batch(spec.name, f"{spec.sink.name}-redrive", f"{uuid.uuid4()}-redrive", 0, False)


def apart(found: Iterable[Found]) -> list[list[Found]]:
    """In parts in which no position is twice.

    A batch knows its rows by their positions. Letters of several runs may share one: a source that
    is read from its beginning again counts from 0 again, and a topic may have been made anew.
    """
    parts: list[list[Found]] = []
    seen: Counter[str] = Counter()
    for each in found:
        number = seen[each.first_position]
        seen[each.first_position] += 1
        if number == len(parts):
            parts.append([])
        parts[number].append(each)
    return parts


class Redrive:
    """Letters of one pipeline that have not been redriven."""

    def __init__(
        self, spec: PipelineSpec, way: Way, topic: L.LetterTopic, spark: SparkSession
    ) -> None:
        self._spec = spec
        self._way = way
        self._topic = topic
        self._spark = spark

    def chosen(self, where: str | None = None) -> list[Found]:
        """Those that `where` is true for and that can be sent, in the order of the topic.

        SQL over: partition, offset, timestamp, key, value (as text), position, first_position,
        tries, stage, kind, message.
        """
        rows = self._open()
        if where is not None:
            rows = rows.where(f"({where})")
        names = list(Found.__dataclass_fields__)
        table = rows.orderBy("partition", "offset").select(*names).toArrow()
        return [Found(**row) for row in table.to_pylist()]

    def without_value(self) -> int:
        """How many letters cannot be sent: something of them was too large for the topic."""
        return self._open(sendable=False).count()

    def go(self, found: list[Found]) -> Outcome:
        """Send them; returns when all are in the sink, or letters again."""
        outcome = NOTHING
        for part in apart(found):
            outcome += self._go(part, outcome)
        return outcome

    def _go(self, found: list[Found], so_far: Outcome) -> Outcome:
        earlier = {
            each.first_position: L.Earlier(each.first_position, each.tries) for each in found
        }
        spec = self._spec
        letters = L.LetterTopic(
            self._topic.topic, spec.bootstrap, spec.kafka, earlier, secrets=spec.secrets
        )
        places = [(each.partition, each.offset) for each in found]
        with tempfile.TemporaryDirectory(prefix="ottla-redrive-") as folder:
            place = Place(
                self._spec.name,
                f"{folder}/checkpoint",
                f"{folder}/staging",
                self._spec.bootstrap,
                tuple(self._spec.kafka.items()),
            )
            frame, source = self._shaped(self._at(places), place)
            way = replace(self._way, source=source, letters=letters, counts_apart=True)
            rows = source.rows(frame)
            way.sink.prepare(self._spark, way.transform(rows).schema, place)
            outcome = process(frame, way, batch_of(self._spec), so_far)
        self._topic.cross_off(places, self._spec.name)
        return outcome

    # -- reading

    def _letters(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        headers = F.col("headers")
        mine = L.header(headers, L.PIPELINE) == self._spec.name
        return self._topic.read().where(mine)

    def _open(self, *, sendable: bool = True) -> DataFrame:
        """Letters with their headers as columns, without those that are crossed off.

        A letter whose value was left out would be sent as a tombstone, which it never was; one
        without its key, as another row.
        """
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        every = self._letters()
        marks = every.select(_named(L.REDRIVEN).alias("done")).where("done is not null").toArrow()
        done = {
            tuple(place) for text in marks.column("done").to_pylist() for place in json.loads(text)
        }
        whole = F.coalesce(*(_named(name) for name in L.LEFT_OUT.values())).isNull()
        letters = every.where(_named(L.POSITION).isNotNull()).where(whole if sendable else ~whole)
        rows = letters.select(
            "partition",
            "offset",
            "timestamp",
            F.col("key").cast("string").alias("key"),
            F.col("value").cast("string").alias("value"),
            _named(L.POSITION).alias("position"),
            _named(L.FIRST).alias("first_position"),
            _named(L.TRIES).cast("int").alias("tries"),
            _named(L.CONNECT + "stage").alias("stage"),
            _named(L.CONNECT + "exception.class.name").alias("kind"),
            _named(L.CONNECT + "exception.message").alias("message"),
        )
        return rows.where(~_is_one_of(done)) if done else rows

    def _at(self, places: list[tuple[int, int]]) -> DataFrame:
        return self._letters().where(_is_one_of(set(places)))

    # -- back into the source's shape

    def _shaped(self, rows: DataFrame, place: Place) -> tuple[DataFrame, Source]:
        """The rows as the source would have given them, and what decodes them."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        sample = self._way.source.sample(self._spark, place, 1)
        kept = F.filter(
            "headers",
            lambda each: ~(each["key"].startswith(L.CONNECT) | each["key"].startswith(L.OURS)),
        )
        if set(sample.columns) >= _RECORD:
            first = F.from_json(_named(L.FIRST), "topic string, partition int, offset long")
            known = {
                "topic": first["topic"],
                "partition": first["partition"],
                "offset": first["offset"],
                "timestamp": F.coalesce(
                    F.timestamp_millis(_named(L.TIMESTAMP).cast("long")), F.col("timestamp")
                ),
                "headers": kept,
            }
            columns = [known.get(name, F.col(name)).alias(name) for name in sample.columns]
            return rows.select(*columns), self._way.source
        schema = self._way.source.rows(sample).drop(HIDDEN).schema
        return rows, _Rows(self._way.source, schema)


class _Rows:
    """Reads letters of rows that were no records: their columns are JSON.

    A source whose letters hold what it has read itself has

        of_letters(letters, schema)

    which decodes them as it would in a batch: JSON would be read less strictly here, and a line of
    csv is none. `letters` have a binary `value`, and `undecoded`, struct<kind, message>: why that
    could not be decoded, if it was that. It adds `row`, a struct of the columns of `schema` or of
    more, and `error`, of the type of `undecoded`; and may change `value` to what the next letter of
    this row should hold.
    """

    def __init__(self, source: Source, schema: StructType) -> None:
        self._source = source
        self._schema = schema

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        return self._source.stream(spark, place)

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        return self._source.sample(spark, place, count)

    def rows(self, batch: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        why = F.struct(
            _named(L.CONNECT + "exception.class.name").alias("kind"),
            _named(L.CONNECT + "exception.message").alias("message"),
        )
        undecoded = F.when(_named(L.CONNECT + "stage") == L.STAGES["decode"], why)
        named = batch.select(
            *("key", "value", "offset"),
            _named(L.FIRST).alias("position"),
            undecoded.alias("undecoded"),
        )
        read = getattr(self._source, "of_letters", letters_of_json)(named, self._schema)
        hidden = (
            "cast(named_struct('position', position, 'line', 0L, 'sequence', offset, "
            "'timestamp', null, 'key', key, 'value', value, 'headers', null, 'error', "
            "if(error is null, null, named_struct('stage', 'decode', 'kind', error.kind, "
            f"'message', error.message))) as {HIDDEN_TYPE}) as {HIDDEN}"
        )
        rows: DataFrame = read.selectExpr("row.*", hidden)
        return rows


def _named(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    found: Column = L.header(F.col("headers"), name)
    return found


def _is_one_of(places: set[Any]) -> Column:
    """Whether a record is at one of these places of the topic."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    def tests() -> Iterator[Column]:
        for partition in {partition for partition, _ in places}:
            offsets = [offset for each, offset in places if each == partition]
            yield (F.col("partition") == partition) & F.col("offset").isin(*offsets)

    condition = F.lit(False)
    for each in tests():
        condition = condition | each
    return condition
