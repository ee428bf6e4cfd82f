"""Topics as a source: the records of `format("ottla")`, decoded.

A row's columns are the fields of the record's value, then those of its key that the value has not,
if there is a `key_format`. A field that both have is the value's, and the key's where the value has
none: so a tombstone, which has a key and no value, still says which row it is about. `include` adds
what else a record has, under a name with an underscore: `_topic`, `_timestamp`, …

The group of the pipeline is committed to by its driver, so the data source commits to none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import HIDDEN, Needs, Place
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option, at_least
from ottla.pipelines.connectors.sources.decoding import SAMPLE, PartReading
from ottla.pipelines.connectors.sources.hidden import hidden, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

INCLUDED: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")
_ALWAYS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_VALUE: Final = "_ottla_value"
_KEY: Final = "_ottla_key"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which records are read.

    start    earliest, latest, or milliseconds since 1970
    columns  what is read of a record: each costs something on its way to Spark
    """

    topics: tuple[str, ...]
    pattern: str | None
    start: str | int
    max_records: int | None
    kafka: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]

    def options(self, place: Place, *, streaming: bool) -> dict[str, str]:
        """For `format("ottla")`."""
        settings = {**dict(place.settings), **dict(self.kafka)}
        given = {f"kafka.{name}": value for name, value in settings.items()}
        given["kafka.bootstrap.servers"] = place.bootstrap
        if self.pattern is not None:
            given["subscribePattern"] = self.pattern
        else:
            given["subscribe"] = ",".join(self.topics)
        given["columns"] = ",".join(self.columns)
        if isinstance(self.start, int):
            given["startingTimestamp"] = str(self.start)
            given["startingOffsetsByTimestampStrategy"] = "latest"
        elif streaming:
            given["startingOffsets"] = self.start
        if streaming:
            given["commitOffsets"] = "false"
            if self.max_records is not None:
                given["maxOffsetsPerTrigger"] = str(self.max_records)
        return given

    @property
    def shown(self) -> str:
        if self.pattern is not None:
            return f"topics {self.pattern}"
        return ("topic " if len(self.topics) == 1 else "topics ") + ", ".join(self.topics)


class TopicSource(Needs):
    """Records of topics (`contract.Source`)."""

    def __init__(
        self,
        choice: Choice,
        value: PartReading,
        key: PartReading | None,
        include: tuple[str, ...],
    ) -> None:
        self._choice = choice
        self._value = value
        self._key = key
        self._include = include

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        self._learn(spark, place)
        options = self._choice.options(place, streaming=True)
        return spark.readStream.format("ottla").options(**options).load()

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        self._learn(spark, place)
        return self._some(spark, place, count)

    def rows(self, batch: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        decoded = self._value.decoded(batch, "value", _VALUE)
        error = F.col(f"{_VALUE}.error")
        columns = {
            name: F.col(f"{_VALUE}.value.{quoted(name)}") for name in _fields(decoded, _VALUE)
        }
        if self._key is not None:
            decoded = self._key.decoded(decoded, "key", _KEY)
            error = F.coalesce(error, F.col(f"{_KEY}.error"))
            for name in _fields(decoded, _KEY):
                own = F.col(f"{_KEY}.value.{quoted(name)}")
                columns[name] = _either(columns.get(name), own, F)
        for name in self._include:
            columns[f"_{name}"] = F.col(name)
        for name in columns:
            if name.startswith(HIDDEN):
                raise ValueError(
                    f"{self._choice.shown} has a field {name}, and names that begin with {HIDDEN} "
                    "are the pipeline's own"
                )
        made = hidden(
            {"topic": F.col("topic"), "partition": F.col("partition"), "offset": F.col("offset")},
            line=F.col("partition"),
            sequence=F.col("offset"),
            timestamp=F.unix_millis("timestamp"),
            key=F.col("key"),
            value=F.col("value"),
            headers=F.col("headers") if "headers" in batch.columns else None,
            error=error,
        )
        return decoded.select(*(column.alias(name) for name, column in columns.items()), made)

    # -- what `validate` asks

    def topics_read(self) -> Sequence[str]:
        return self._choice.topics

    def topic_pattern(self) -> str | None:
        """What the names of the topics match, if they are not named."""
        return self._choice.pattern

    def _learn(self, spark: SparkSession, place: Place) -> None:
        self._value.learn(lambda: self._bytes(spark, place, "value"), place, self._choice.shown)
        if self._key is not None:
            self._key.learn(lambda: self._bytes(spark, place, "key"), place, self._choice.shown)

    def _bytes(self, spark: SparkSession, place: Place, column: str) -> list[bytes]:
        some = self._some(spark, place, SAMPLE).select(column).where(f"{column} is not null")
        return [bytes(row[column]) for row in some.collect()]

    def _some(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        options = self._choice.options(place, streaming=False)
        return spark.read.format("ottla").options(**options).load().limit(count)


def _fields(frame: DataFrame, name: str) -> list[str]:
    """The fields of the value within a column that `PartReading.decoded` has made."""
    kind: Any = frame.schema[name].dataType
    return list(kind["value"].dataType.names)


def _either(value: Column | None, key: Column, functions: Any) -> Column:
    both: Column = key if value is None else functions.coalesce(value, key)
    return both


def _start(given: Any) -> str | int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = str(given)
    if text in ("earliest", "latest"):
        return text
    if text.isdigit():
        return int(text)
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "this is no beginning: earliest, latest, or a time, 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _check_start(given: str) -> None:
    _start(given)


def _columns(include: Sequence[str], *, headers: bool) -> tuple[str, ...]:
    """Those that make a row's place and bytes, and those that are asked for."""
    more = [name for name in (*include, *(["headers"] if headers else [])) if name not in _ALWAYS]
    return (*_ALWAYS, *dict.fromkeys(more))


def _make(values: Mapping[str, Any]) -> TopicSource:
    topics = tuple(values["name"] or ())
    pattern = values["pattern"]
    if bool(topics) == bool(pattern):
        raise Mistake("name", "name one or more topics, or give a pattern of their names")
    include = tuple(values["include"] or ())
    subject = topics[0] if topics else str(pattern)
    key_format = values["key_format"]
    choice = Choice(
        topics,
        pattern,
        _start(values["start"]),
        values["max_records"],
        tuple((name, str(value)) for name, value in (values["kafka"] or {}).items()),
        _columns(include, headers=values["headers"]),
    )
    return TopicSource(
        choice,
        PartReading(read_format(values["format"], "format").bound(subject, "value")),
        None
        if key_format is None
        else PartReading(read_format(key_format, "key_format").bound(subject, "key")),
        include,
    )


SOURCE: Final = Declaration(
    "topic",
    "the records of topics",
    (
        Option("name", Kind.LIST, "the topic, or several"),
        Option("pattern", Kind.TEXT, "a regular expression that whole names of topics match"),
        Option("format", Kind.CHOICE, "what the values are", default="json"),
        Option("key_format", Kind.CHOICE, "what the keys are; not decoded when not given"),
        Option(
            "start",
            Kind.TEXT,
            "where a new pipeline begins: `earliest`, `latest`, or a time",
            default="earliest",
            check=_check_start,
        ),
        Option(
            "include",
            Kind.LIST,
            "more columns, each with an underscore before its name",
            default=(),
            choices=INCLUDED,
        ),
        Option(
            "headers",
            Kind.FLAG,
            "keep the records' headers for a sink that passes them on, and for dead letters",
            default=False,
        ),
        Option(
            "max_records",
            Kind.INTEGER,
            "records of one batch, at most",
            check=at_least(1, "a batch has at least one record"),
        ),
        Option(
            "kafka",
            Kind.MAP,
            "settings of Kafka's consumer, such as isolation.level: read_uncommitted",
            secret=True,
        ),
    ),
    _make,
)
