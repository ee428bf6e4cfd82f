"""A streaming source of Spark from anything that can be asked "what is new since then?".

    frame = staged_stream(spark, place, poller, schema)

A `Poller` is asked on the driver, by the process that Spark keeps for the query. What it finds is
staged (`staging.py`) before Spark is told of it. The tasks read the staged rows and ask nobody.

An exception in any call of Spark's ends the query. So an outage is none here: it is logged once
and again from time to time, "nothing new" is returned, the folder says what is waited for, and
progress events carry the reason under `unreachable`. With Trigger.AvailableNow and Trigger.Once
"nothing new" would mean "finished": these wait. Everything else is raised with the pipeline's name.

The poller comes to Spark pickled inside the data source's class, not among the options: options are
shown in plans and logs, and a poller knows passwords.

Two columns are beside the poller's own: `ROW`, the number of the row since the beginning of the
pipeline, and `ERROR`, text or null, if the poller's tables have it.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ottla.pipelines.connectors.contract import Outage, Place
from ottla.pipelines.connectors.sources.staging import (
    Folder,
    Staged,
    Standing,
    local_folder,
    parts,
    read_part,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOGGER = logging.getLogger("ottla.pipelines")

ROW: Final = "_ottla_row"
ERROR: Final = "_ottla_error"

_ANY_NUMBER: Final = ReadMaxRows((1 << 63) - 1)
_REMIND: Final = 30.0
_LONGEST_PAUSE: Final = 5.0
_LONGEST_WAIT: Final = 60.0
"""Seconds until what was away is asked again, however seldom it is asked otherwise."""
_PASSING: Final = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
)
"""What becomes of the staging folder's disk, and is waited for."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a poller has found.

    tables   one for each batch, none of them larger than a batch should be; may be a generator
    cursor   where to go on after all of them, as JSON
    more     whether to ask again at once
    keep     whether the cursor has to survive this process although there are no rows
    """

    tables: Iterable[pa.Table]
    cursor: Any
    more: bool = False
    keep: bool = False


class Poller(Protocol):
    """Asks a system for what is new. Pickled; making one connects to nothing."""

    @property
    def every(self) -> float:
        """Seconds between two questions."""

    def end(self) -> Any:
        """What is there now, as JSON: where a run that ends by itself ends."""

    def poll(self, cursor: Any, end: Any) -> Found | None:
        """What is new since `cursor`, which is None at first, and not after `end`, if not None.

        None: nothing. Raises `Outage` if nobody can be asked. A cursor that comes without rows is
        kept while this process lives, no longer, unless `keep` is set.
        """


class SourceError(Exception):
    """What ends a pipeline's source; the text names the pipeline, the place and the way out."""


def staged_stream(
    spark: SparkSession, place: Place, poller: Poller, schema: StructType
) -> DataFrame:
    """The rows of a poller as a streaming DataFrame: its columns, and `ROW`."""
    from pyspark.sql.types import LongType, StructField, StructType

    folder = local_folder(place.staging)
    whole = StructType([*schema.fields, StructField(ROW, LongType(), False)])
    kind = type(
        "StagedSource",
        (StagedDataSource,),
        {
            "source_name": f"ottla_staged_{uuid.uuid4().hex}",
            "source_schema": whole,
            "poller": poller,
            "folder": str(folder),
            "pipeline": place.pipeline,
        },
    )
    spark.dataSource.register(kind)
    return spark.readStream.format(kind.source_name).load()  # type: ignore[attr-defined]  # made above


class StagedDataSource(DataSource):
    """What Spark is given; its subclasses hold the rest."""

    source_name: str
    source_schema: StructType
    poller: Poller
    folder: str
    pipeline: str

    @classmethod
    def name(cls) -> str:
        return cls.source_name

    def schema(self) -> StructType:
        return self.source_schema

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name for it
        return StagedReader(self.pipeline, self.folder, self.poller, schema)


class StagedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls. Making one touches nothing."""

    def __init__(self, pipeline: str, folder: str, poller: Poller, schema: StructType) -> None:
        self._pipeline = pipeline
        self._folder = folder
        self._poller = poller
        self._schema = schema
        self._driver: Driver | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name for it
        return Standing().offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name for it
        return _ANY_NUMBER

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name for it
        self._on_driver().run_to_the_end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name for it
        driver = self._on_driver()
        if isinstance(limit, ReadAllAvailable):
            driver.run_to_the_end()
        return driver.latest(Standing.of(start)).offset()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name for it
        return self._on_driver().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [
            InputPartition(each) for each in parts(Folder(Path(self._folder)), Standing.of(end))
        ]

    def commit(self, end: dict[str, Any]) -> None:
        Folder(Path(self._folder)).remove_up_to(Standing.of(end).seq)

    def stop(self) -> None:
        pass

    def _on_driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._pipeline, Folder(Path(self._folder)), self._poller)
        return self._driver

    def __getstate__(self) -> dict[str, Any]:
        # Into the tasks goes what they need: no connection, and no password.
        return {**self.__dict__, "_driver": None, "_poller": None}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        own = pa.schema([field for field in schema if field.name != ROW])
        sequence = partition.value.sequence
        for batch in read_part(partition.value, own):
            numbers = pa.array(range(sequence, sequence + batch.num_rows), pa.int64())
            sequence += batch.num_rows
            yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema)


class Driver:
    """What the process of a query keeps from batch to batch; no part of Spark is in it."""

    def __init__(
        self, pipeline: str, folder: Folder, poller: Poller, *, pause: float = 0.2
    ) -> None:
        self._pipeline = pipeline
        self._folder = folder
        self._poller = poller
        self._pause = pause
        self._spark = os.getppid()
        # for the life of the process
        self._swept = False
        self._once = False
        self._end: Any = None
        self._asked_end = False
        # since the last batch
        self._base: Standing | None = None
        self._told: Standing | None = None
        self._cursor: Any = None
        # the next question
        self._due = 0.0
        self._missed = 0
        """Questions without an answer, since the last that had one."""
        self._out: str | None = None
        self._reminded = 0.0

    def run_to_the_end(self) -> None:
        """What is there now is all that this run reads."""
        self._once = True

    def latest(self, start: Standing) -> Standing:
        """Where the next batch ends; `start`, the end of a finished batch, if there is none."""
        if start != self._base:
            self._base, self._told, self._cursor = start, None, start.cursor
        if not self._swept:
            self._folder.sweep(start)
            self._swept = True
        if self._told is None:
            if start.pending:
                self._told = start.next()
            else:
                self._told = self._ask(start)
        return start if self._told is None else self._told

    def report(self) -> dict[str, Any] | None:
        """For progress events."""
        standing = self._told or self._base
        if standing is None:
            return None
        shown: dict[str, Any] = {"rows": standing.total}
        return shown if self._out is None else {**shown, "unreachable": self._out}

    def _ask(self, start: Standing) -> Standing | None:
        if self._once:
            return self._ask_until_answered(start)
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + self._poller.every
        try:
            return self._answer(start)
        except Outage:
            # Who asks once an hour does not wait an hour for what is back in a minute.
            self._missed += 1
            pause = min(2.0**self._missed, _LONGEST_WAIT)
            self._due = min(self._due, time.monotonic() + pause)
            return None

    def _ask_until_answered(self, start: Standing) -> Standing | None:
        pause = self._pause
        while True:
            try:
                return self._answer(start)
            except Outage:
                if os.getppid() != self._spark:
                    raise SystemExit from None  # Spark has died, and nobody waits for us any more
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _answer(self, start: Standing) -> Standing | None:
        """Raises Outage, having told of it, or SourceError."""
        try:
            found = self._find(start)
        except Outage as outage:
            self._note(str(outage))
            raise
        except OSError as error:
            if error.errno not in _PASSING:
                raise SourceError(f"pipeline {self._pipeline}: {error}") from error
            sentence = f"{self._folder.path}: {error.strerror}"
            self._note(sentence)
            raise Outage(str(self._folder.path), sentence) from error
        except Exception as error:
            raise SourceError(f"pipeline {self._pipeline}: {error}") from error
        self._over()
        self._missed = 0
        return found

    def _find(self, start: Standing) -> Standing | None:
        if self._once and not self._asked_end:
            self._end = self._poller.end()
            self._asked_end = True
        while True:
            found = self._poller.poll(self._cursor, self._end)
            if found is None:
                return None
            files = self._staged(start.seq + 1, found.tables)
            if found.more:
                self._due = 0.0
            if files:
                return start.found(files, found.cursor)
            if found.keep:
                return start.moved(found.cursor)
            self._cursor = found.cursor
            if not found.more:
                return None

    def _staged(self, seq: int, tables: Iterable[pa.Table]) -> tuple[Staged, ...]:
        """A file for each table, or, if they do not all come, none: they will be asked for again,
        and a table that is cut off each time would fill the disk."""
        files: list[Staged] = []
        try:
            for table in tables:
                if table.num_rows:
                    files.append(self._folder.write(seq + len(files), table))
        except BaseException:
            self._folder.remove(files)
            raise
        return tuple(files)

    def _note(self, why: str) -> None:
        now = time.monotonic()
        if self._out is None or now - self._reminded >= _REMIND:
            self._reminded = now
            LOGGER.warning("Pipeline %s waits for its source: %s", self._pipeline, why)
        if why != self._out:
            self._folder.wait_for(why)
        self._out = why

    def _over(self) -> None:
        if self._out is not None:
            LOGGER.warning("Pipeline %s: its source is back.", self._pipeline)
            self._folder.wait_for(None)
            self._out = None
