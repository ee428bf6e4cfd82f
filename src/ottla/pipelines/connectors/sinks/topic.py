"""Rows into a topic: key, value and headers from columns; a tombstone where `delete_when` holds.

At least once. Requests are idempotent, so a repeated request writes nothing twice; but a batch that
is run again after a kill writes its rows again, under other sequence numbers. Rows of one key keep
the order in which one task has them, which is that of the source's partition.

The broker names the record that it does not take: it is too large, or has no key in a compacted
topic. What was sent before it is in the topic then, and is sent again with the rest of the batch.
So when a record is too large, all records of the batch that are not smaller are named with it,
which saves the others from being sent once more for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ottla.client.retry import ABSENT, passes
from ottla.errors import ErrorCode
from ottla.pipelines.cluster import Cluster, Unreachable
from ottla.pipelines.connectors.contract import (
    HIDDEN,
    Batch,
    Guarantee,
    Needs,
    Outage,
    Place,
    RefusedRow,
    RowsRefused,
)
from ottla.pipelines.connectors.formats.contract import Format
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.formats.writing import (
    chosen,
    encoded_value,
    visible,
    with_tombstones,
)
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option
from ottla.pipelines.connectors.sinks.tasks import Written, in_tasks
from ottla.pipelines.errors import OptionError
from ottla.pipelines.points import Point, reach
from ottla.pipelines.sink.failures import WriteFailed
from ottla.pipelines.sink.options import WriteOptions
from ottla.pipelines.sink.writer import write_rows
from ottla.records.compression import Compression

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TOO_LARGE: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE.name, ErrorCode.RECORD_LIST_TOO_LARGE.name}
)
_DENIED: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
_MOST_NAMED: Final = 1000
_PATIENCE: Final = 10.0  # seconds to wait for a broker before the first batch
_NO_HEADERS: Final = "cast(array() as array<struct<key: string, value: binary>>)"
_SIZE: Final = "coalesce(octet_length({}), 0)"
_SIZE_OF_HEADERS: Final = (
    "aggregate(headers, 0, (sum, each) -> sum + octet_length(each.key)"
    " + coalesce(octet_length(each.value), 0))"
)
_OVERHEAD: Final = 10
"""Bytes that lengths take at most, of a record and of each of its headers."""
_LIMITS: Final = {"kafka.max.block.ms": "60000", "kafka.delivery.timeout.ms": "120000"}
"""A write of a stream waits for a broker without an end; one of a pipeline ends after these, so
that the pipeline itself can say what it waits for, and can be stopped."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What becomes which part of a record."""

    key: tuple[str, ...]
    headers: str | None
    keep_headers: bool
    timestamp: str | None
    partition: str | None
    delete_when: str | None

    def apart(self) -> set[str]:
        """Columns that are no part of the value."""
        return {name for name in (self.headers, self.timestamp, self.partition) if name}


class TopicSink(Needs):
    """Appends to one topic."""

    def __init__(
        self,
        name: str,
        parts: _Parts,
        value: Format,
        key: Format,
        kafka: Mapping[str, str],
    ) -> None:
        self._name = name
        self._parts = parts
        self._value = value
        self._key = key
        self._kafka = dict(kafka)
        self._settings: WriteOptions | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def topics_written(self) -> Sequence[str]:
        return (self._name,)

    def keys(self) -> Sequence[str]:
        parts = self._parts
        return (*parts.key, *([] if parts.partition is None else [parts.partition]))

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        timed = self._parts.timestamp is not None
        settings = dict(place.settings) | {n: str(value) for n, value in self._kafka.items()}
        self._settings = replace(
            write_options(self._name, place.bootstrap, settings), keep_timestamps=timed
        )
        chosen(schema, (*self._parts.key, *sorted(self._parts.apart())))
        # An empty table tells whether the expressions can be evaluated, without any row.
        self._records(spark.createDataFrame([], schema)).schema  # noqa: B018 - Spark analyses it
        try:
            with Cluster(place.bootstrap, timeout=_PATIENCE, settings=settings) as cluster:
                there = cluster.topics([self._name])
        except Unreachable as error:
            raise Outage(f"the brokers at {place.bootstrap}", str(error)) from None
        if self._name not in there:
            raise Outage(
                f"topic {self._name}",
                f"topic {self._name} is not there: create it with "
                f"`ottla topic create {self._name}`.",
            )

    def write(self, rows: DataFrame, batch: Batch) -> None:
        settings = self._settings_of(batch)
        records = self._records(rows)
        try:
            in_tasks(records.drop(HIDDEN), _Deliver(settings))
        except RowsRefused as refused:
            raise self._named(records, refused.rows, settings) from None

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        """Encode everything, and send nothing: a topic has nowhere to try a record."""
        self._records(rows).drop(HIDDEN).write.format("noop").mode("overwrite").save()

    def _settings_of(self, batch: Batch) -> WriteOptions:
        if self._settings is None:
            raise RuntimeError(f"{batch.sink} of {batch.pipeline} was not prepared")
        return self._settings

    def _records(self, rows: DataFrame) -> DataFrame:
        """Rows as records: the columns of `format("ottla")`, and `HIDDEN`."""
        from pyspark.sql import functions as f

        parts = self._parts
        whole = visible(rows.schema)
        names = [name for name in whole.names if name not in parts.apart()]
        value = encoded_value(self._value, rows, chosen(whole, names))
        value = with_tombstones(value, parts.delete_when, bool(parts.key))
        columns: list[Column] = [value.alias("value")]
        if parts.key:
            key = encoded_value(self._key, rows, chosen(whole, parts.key))
            columns.append(key.alias("key"))
        if parts.headers or parts.keep_headers:
            columns.append(self._headers(rows).alias("headers"))
        if parts.timestamp:
            columns.append(_column(parts.timestamp).cast("timestamp").alias("timestamp"))
        if parts.partition:
            columns.append(_column(parts.partition).cast("int").alias("partition"))
        if HIDDEN in rows.columns:
            columns.append(f.col(HIDDEN))
        return rows.select(*columns)

    def _headers(self, rows: DataFrame) -> Column:
        """Never null: Spark passes null arrays on ten times slower than empty ones."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import MapType

        none = f.expr(_NO_HEADERS)
        found = f.coalesce(f.col(f"{HIDDEN}.headers"), none) if self._parts.keep_headers else none
        name = self._parts.headers
        if name is None:
            return found
        kind = rows.schema[name].dataType
        column = _column(name)
        if isinstance(kind, MapType):
            column = f.transform(
                f.map_entries(column),
                lambda entry: f.struct(
                    entry["key"].cast("string").alias("key"),
                    entry["value"].cast("binary").alias("value"),
                ),
            )
        return f.concat(found, f.coalesce(column, none))

    def _named(
        self, records: DataFrame, refused: Sequence[RefusedRow], settings: WriteOptions
    ) -> RowsRefused:
        """The refused records by their positions, for which the batch is read once more."""
        from pyspark.sql import functions as f

        sized = _sized(records)
        places = {row.position: row for row in refused}
        named: dict[str, RefusedRow] = {}
        too_large: list[int] = []
        for answer in in_tasks(sized, _Find(frozenset(places))):
            for place, most, position in json.loads(answer.found or "[]"):
                row = places[place]
                named[position] = replace(row, position=position)
                if row.kind in _TOO_LARGE:
                    too_large.append(most)
        if too_large and settings.compression is Compression.NONE:
            smallest = min(too_large)
            for other in sized.where(f.col("size") >= smallest).limit(_MOST_NAMED).collect():
                why = f"it has {other.size} bytes, and a record of {smallest} was too large"
                kind = ErrorCode.MESSAGE_TOO_LARGE.name
                named.setdefault(other.position, RefusedRow(other.position, kind, why))
        return RowsRefused(list(named.values()))


@dataclass(frozen=True, slots=True)
class _Deliver:
    """A task's way to the brokers."""

    settings: WriteOptions

    def __call__(self, task: int, batches: Iterator[Any]) -> Written:
        reach(Point.BEFORE_WRITE)
        try:
            written = write_rows(batches, self.settings)
        except WriteFailed as failed:
            raise self._explained(task, failed) from None
        reach(Point.AFTER_WRITE)
        return Written(written.records)

    def _explained(self, task: int, failed: WriteFailed) -> Exception:
        code = failed.code
        if code is not None and (code in ABSENT or code in _DENIED or passes(code)):
            return Outage(f"topic {self.settings.topic}", str(failed))
        if failed.row is not None:
            kind = "Refused" if code is None else code.name
            return RowsRefused([RefusedRow(_place(task, failed.row), kind, str(failed))])
        return failed


@dataclass(frozen=True, slots=True)
class _Find:
    """Which positions the rows have at these places, and how large they are at most."""

    places: frozenset[str]

    def __call__(self, task: int, batches: Iterator[Any]) -> Written:
        wanted = {
            int(row) for number, row in (p.split("/") for p in self.places) if int(number) == task
        }
        found: list[tuple[str, int, str]] = []
        seen = 0
        for batch in batches:
            for row in wanted:
                at = row - seen
                if 0 <= at < batch.num_rows:
                    position, most = batch.column(0)[at].as_py(), batch.column(2)[at].as_py()
                    found.append((_place(task, row), most, position))
            seen += batch.num_rows
        return Written(seen, found=json.dumps(found))


def _sized(records: DataFrame) -> DataFrame:
    """position; size, without the lengths that are part of a record; most, with all of them."""
    from pyspark.sql import functions as f

    size, count = f.lit(0), f.lit(0)
    for name in ("key", "value"):
        if name in records.columns:
            size = size + f.expr(_SIZE.format(name))
    if "headers" in records.columns:
        size, count = size + f.expr(_SIZE_OF_HEADERS), f.size("headers")
    return records.select(
        f.col(f"{HIDDEN}.position").alias("position"),
        size.alias("size"),
        (size + _OVERHEAD * (1 + count)).alias("most"),
    )


def _place(task: int, row: int) -> str:
    """How a task calls a row whose position it does not have."""
    return f"{task}/{row}"


def _column(name: str) -> Column:
    """A column by its whole name, dots and all."""
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def write_options(topic: str, bootstrap: str, kafka: Mapping[str, str]) -> WriteOptions:
    """How a pipeline writes to a topic; OptionError for settings that cannot be followed."""
    given = {f"kafka.{name}": str(value) for name, value in kafka.items()}
    given |= {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    return WriteOptions.parse(_LIMITS | given)


def _make(options: Mapping[str, Any]) -> TopicSink:
    kafka = dict(options["kafka"] or {})
    try:
        write_options(options["name"], "127.0.0.1:9092", kafka)
    except OptionError as error:
        raise Mistake("kafka", str(error)) from None
    parts = _Parts(
        key=tuple(options["key"] or ()),
        headers=options["headers"],
        keep_headers=bool(options["keep_headers"]),
        timestamp=options["timestamp"],
        partition=options["partition"],
        delete_when=options["delete_when"],
    )
    if parts.delete_when is not None and not parts.key:
        raise Mistake("delete_when", "a tombstone without a key deletes nothing: give key, too.")
    key_format = options["key_format"] or ("string" if len(parts.key) < 2 else "json")
    return TopicSink(
        options["name"],
        parts,
        read_format(options["format"]).bound(options["name"], "value"),
        read_format(key_format, "key_format").bound(options["name"], "key"),
        kafka,
    )


SINK: Final = Declaration(
    "topic",
    "a topic; at least once",
    (
        Option("name", Kind.TEXT, "the topic", required=True),
        Option("key", Kind.LIST, "the columns that make the key; without them there is none"),
        Option(
            "format",
            Kind.CHOICE,
            "how the columns become the record's value: a name, or a name with its options",
            default="json",
        ),
        Option(
            "key_format",
            Kind.CHOICE,
            "the same for its key; `string` for a key of one column, `json` for more, unless this "
            "is given",
        ),
        Option(
            "delete_when",
            Kind.TEXT,
            "SQL over the row's columns; where it is true, the record is a tombstone: its value "
            "is null",
        ),
        Option(
            "headers",
            Kind.TEXT,
            "the column with the headers: map<string, string> or map<string, binary>, or "
            "array<struct<key: string, value: binary>>; it is no part of the value",
        ),
        Option(
            "keep_headers",
            Kind.FLAG,
            "begin with the headers that the record had in the source topic",
            default=False,
        ),
        Option(
            "timestamp",
            Kind.TEXT,
            "the column with the record's time, no part of the value; the time of writing else",
        ),
        Option(
            "partition", Kind.TEXT, "the column with the partition's number, no part of the value"
        ),
        Option(
            "kafka",
            Kind.MAP,
            "settings of Kafka's producer, such as compression.type: zstd; see "
            "[Topics as Spark tables](../../spark.md)",
        ),
    ),
    _make,
)
