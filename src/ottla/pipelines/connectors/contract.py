"""What a source and a sink of a pipeline are, and what goes from one to the other.

A pipeline is one streaming query of Spark. Every micro-batch takes the same way, in
`foreachBatch` on the driver:

    source.stream(spark)         the rows as they come, once, when the query starts
    source.rows(batch)           decoded: the user's columns, and `HIDDEN`
    the transform                row by row; it keeps `HIDDEN`
    sink.write(rows, batch)      all of them, or an exception

`HIDDEN` is one column with what the pipeline itself must know of a row: where it came from, where
it stands in the order of its key, its original bytes, and why it could not be decoded. A row whose
`error` is not null never reaches a sink: it is a dead letter. A query that uses no part of `HIDDEN`
does not pay for it, since Spark removes what is not used.

A micro-batch that was not finished is run again with the same id and the same rows in the same
order, whatever has happened in between. That is the source's promise, and every guarantee of a sink
rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import PurePath

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

HIDDEN: Final = "_ottla"
"""The column that a pipeline keeps to itself; `HIDDEN_TYPE` is its type."""

HIDDEN_TYPE: Final = (
    "struct<position: string, line: long, sequence: long, timestamp: long, key: binary, "
    "value: binary, headers: array<struct<key: string, value: binary>>, "
    "error: struct<stage: string, kind: string, message: string>>"
)
"""In Spark's own notation.

position   where the row came from, as JSON: {"topic", "partition", "offset"}, {"file", "row"},
           {"table", "key": {…}}, {"url", "page", "row"}; unique within the pipeline's source
line       rows of one line are in order: the partition of a topic, otherwise 0
sequence   the order within a line: the offset of a topic's record
timestamp  that of a topic's record, in milliseconds since 1970; null for a row that was none
key, value, headers   the original bytes of a record; of a row that was none, its JSON as value
error      null, or why this row is a dead letter: where it failed (decode, transform, sink), the
           class of the failure, and a sentence
"""

EXACT_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
}
"""How Spark writes JSON of a row that loses nothing; by itself it cuts times to milliseconds."""


class Guarantee(Enum):
    """How often a row that a source has given once is in a sink, whoever is killed meanwhile."""

    AT_LEAST_ONCE = "at least once"
    EXACTLY_ONCE = "exactly once"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run of a pipeline keeps what must survive it.

    pipeline    its name
    checkpoint  the folder of the query's checkpoint; any path that Spark's Hadoop knows
    staging     the folder beside it for what a source cannot read again the same way
    bootstrap   the cluster's addresses
    settings    settings of Kafka clients (security.protocol, …), for every connection of the run
    """

    pipeline: str
    checkpoint: str
    staging: str
    bootstrap: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Which micro-batch a sink is asked to write.

    pipeline, sink   their names; a pipeline may have the same batch written by two sinks
    run              the checkpoint's id: a pipeline that was reset begins again with batch 0 and
                     must not find what an earlier one has left
    number           Spark's id of the batch
    replayed         whether this batch may have been written before, in part or whole
    """

    pipeline: str
    sink: str
    run: str
    number: int
    replayed: bool


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a sink names as the one that it does not take; `position` is that of `HIDDEN`."""

    position: str
    kind: str
    message: str


class RowsRefused(Exception):
    """A sink knows which rows of this batch it will never take, and has kept none of them.

    Others it may have kept; it does not write them twice when it promises exactly once. The named
    rows must be durable somewhere else before the batch is written without them: a sink that has
    finished a batch is not asked again what it thinks of rows that it was not given.
    """

    def __init__(self, rows: Sequence[RefusedRow]) -> None:
        super().__init__(f"{len(rows)} rows were refused; the first: {rows[0].message}")
        self.rows = tuple(rows)

    def __reduce__(self) -> tuple[type[RowsRefused], tuple[tuple[RefusedRow, ...]]]:
        return type(self), (self.rows,)


class Outage(Exception):
    """No row is to blame: something is not there, or full, or not allowed. It may pass.

    what   what is away, in a few words ("PostgreSQL at 127.0.0.1:5432")
    """

    def __init__(self, what: str, sentence: str) -> None:
        super().__init__(sentence)
        self.what = what

    def __reduce__(self) -> tuple[type[Outage], tuple[str, str]]:
        return type(self), (self.what, str(self))


class Source(Protocol):
    """Made from its checked options; making one connects to nothing."""

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        """The rows as a streaming DataFrame, in the source's own columns."""

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        """About `count` real rows in the same columns, now, without leaving a trace anywhere."""

    def rows(self, batch: DataFrame) -> DataFrame:
        """What `stream` or `sample` gave, decoded: the user's columns and `HIDDEN`."""


class Sink(Protocol):
    """Made from its checked options; making one connects to nothing."""

    @property
    def guarantee(self) -> Guarantee:
        """What these options promise."""

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        """Before the first batch: is everything there, and does `schema` fit? `HIDDEN` is in it."""

    def write(self, rows: DataFrame, batch: Batch) -> None:
        """Write all rows, or raise `RowsRefused`, `Outage`, or anything else.

        After anything else the batch is bisected with `probe`. `rows` have `HIDDEN`, whose `error`
        is null in all of them. The first action on `rows` reads all of them: rows that could not
        be decoded are counted while it does.
        """

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        """The same, and keep nothing of it: rolled back, or given to a sink that keeps nothing."""


class Needs(Protocol):
    """What `validate` tells of a source or sink before anything runs: nothing, unless it says so.

    A source or sink that is a subclass says only what it needs.
    """

    def topics_read(self) -> Sequence[str]:
        """Topics that must exist, and that are read."""
        return ()

    def topics_written(self) -> Sequence[str]:
        """Topics that are written."""
        return ()

    def keys(self) -> Sequence[str]:
        """Columns by which a sink knows its rows, or spreads them over partitions: they must be the
        same when a batch is run again, so no transform may make them by chance."""
        return ()

    def local_paths(self) -> Sequence[PurePath]:
        """Folders of this machine, which executors elsewhere do not see."""
        return ()

    def stages(self) -> bool:
        """Whether rows are kept in `Place.staging`, for the tasks to read them there."""
        return False

    def only_here(self) -> bool:
        """Whether no cluster can do this, whatever its machines see."""
        return False
