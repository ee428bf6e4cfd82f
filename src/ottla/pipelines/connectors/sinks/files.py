"""Rows into files of a folder, each row in exactly one: parquet, csv or json, written by Spark.

A batch is committed in two steps. Spark writes all of it into a hidden folder (`_ottla`, which
readers leave out). Then one small file, the manifest, lists what was written and under which name
it is to be seen; from the moment at which it is there, the batch counts. The files are then renamed
one by one. A batch that is run again and finds its manifest writes nothing: it renames what is
still to be renamed. One that finds none begins anew, since nothing of it was seen.

The final name says pipeline, checkpoint, batch and task, and a file that is there is never
replaced. While the files are renamed, a reader may see a part of the batch.

    orders-5f3a9c01-0000000012-00000-0.snappy.parquet

A file is as large as a batch, or as `roll` says: a pipeline whose sink has `roll.interval` is
triggered so often, unless it has a trigger of its own, and `roll.size` cuts the rows of a batch
into files of about that size. Nothing waits anywhere else: what is not in a file yet is still lag.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ottla.pipelines.connectors.contract import (
    EXACT_JSON,
    HIDDEN,
    Batch,
    Guarantee,
    Needs,
    Place,
)
from ottla.pipelines.connectors.errors.outages import outage_of
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.sinks.folders import Folder
from ottla.pipelines.connectors.units import seconds, size
from ottla.pipelines.points import Point, reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS: Final = ("parquet", "json", "csv")
HOME: Final = "_ottla"

_SPARK_NAME: Final = re.compile(r"part-(\d+)-[0-9a-f-]{36}[-.]c(\d+)(\..*)?")
_MOST_NAMED: Final = 8  # characters of a checkpoint's id in a file's name
_FEWEST_ROWS: Final = 1
_EXACT_TIMES: Final = {name: EXACT_JSON[name] for name in ("timestampFormat", "timestampNTZFormat")}
"""Of csv and json: by itself Spark cuts times to milliseconds."""
_EXACT_TEXTS: Final = {
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
"""Of csv: by itself Spark writes a quote within quotes in a way of its own, and cuts spaces off."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a batch has written: where each file is, and where it is to be seen."""

    moves: tuple[tuple[str, str], ...]
    rows: int
    bytes: int

    def text(self) -> str:
        return json.dumps({"moves": self.moves, "rows": self.rows, "bytes": self.bytes})

    @classmethod
    def of(cls, text: str) -> Manifest:
        found = json.loads(text)
        moves = tuple((source, target) for source, target in found["moves"])
        return cls(moves, found["rows"], found["bytes"])


class FilesSink(Needs):
    """Appends files to one folder."""

    def __init__(
        self,
        path: str,
        form: str,
        partition_by: Sequence[str],
        roll: tuple[int | None, float | None],
        options: Mapping[str, str],
        tasks: int | None,
    ) -> None:
        self._path = path
        self._form = form
        self._partition_by = tuple(partition_by)
        self._roll_size, self.interval = roll
        """`interval`: seconds between two batches that this sink would have, or None."""
        self._options = dict(options)
        self._tasks = tasks
        self._row_bytes: float | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def local_paths(self) -> Sequence[PurePath]:
        parts = urlsplit(self._path)
        return (PurePath(unquote(parts.path)),) if parts.scheme in ("", "file") else ()

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        missing = [name for name in self._partition_by if name not in schema.names]
        if missing:
            raise ValueError(
                f"files in {self._path}: there is no column {', '.join(missing)} to partition by; "
                f"there are {', '.join(name for name in schema.names if name != HIDDEN)}."
            )
        if set(schema.names) <= {*self._partition_by, HIDDEN}:
            raise ValueError(
                f"files in {self._path}: every column is in partition_by, so there is none left "
                "for the files."
            )

    def write(self, rows: DataFrame, batch: Batch) -> None:
        try:
            self._commit(rows, batch)
        except Exception as error:
            raise self._judged(error) from error

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        """Into a hidden folder, which is removed."""
        folder = Folder(rows.sparkSession, self._path)
        trial = f"{_home(batch)}/probe"
        try:
            folder.remove(trial)
            self._write(rows.drop(HIDDEN), folder.path(trial))
        except Exception as error:
            raise self._judged(error) from error
        finally:
            folder.remove(trial)

    def _commit(self, rows: DataFrame, batch: Batch) -> None:
        folder = Folder(rows.sparkSession, self._path)
        home = _home(batch)
        listed = f"{home}/{batch.number:010}.json"
        known = folder.get(listed)
        if known is None:
            manifest = self._stage(rows, batch, folder)
            reach(Point.BEFORE_COMMIT)
            if folder.put(listed, manifest.text()):
                reach(Point.AFTER_COMMIT)
            else:  # a driver that was believed dead has come first
                known = folder.get(listed)
        if known is not None:
            manifest = Manifest.of(known)
        for source, target in manifest.moves:
            if folder.exists(source):
                if not folder.move(source, target) and folder.exists(source):
                    raise FileExistsError(
                        f"{folder.path(target)} is another file than the one that batch "
                        f"{batch.number} has written: its rows are in {folder.path(source)}"
                    )
                reach(Point.AFTER_COMMIT)
        self._clean(folder, batch)
        if manifest.rows:
            self._row_bytes = manifest.bytes / manifest.rows

    def _stage(self, rows: DataFrame, batch: Batch, folder: Folder) -> Manifest:
        """Have Spark write everything where nobody looks."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        # Each attempt has a folder of its own: one that is not over yet does no harm.
        staged = f"{_home(batch)}/{batch.number:010}-{uuid.uuid4().hex}"
        seen = Observation()
        counted = rows.drop(HIDDEN).observe(seen, f.count(f.lit(1)).alias("rows"))
        reach(Point.BEFORE_WRITE)
        self._write(counted, folder.path(staged))
        reach(Point.AFTER_WRITE)
        count = int(seen.get["rows"])
        # A batch without rows leaves a file without rows, and so may the first of its tasks.
        found = [each for each in folder.files(staged) if each.size] if count else []
        moves = tuple((f"{staged}/{each.name}", _final(each.name, batch)) for each in found)
        return Manifest(moves, count, sum(each.size for each in found))

    def _write(self, rows: DataFrame, path: str) -> None:
        if self._tasks is not None:
            rows = rows.coalesce(self._tasks)
        writer = rows.write.format(self._form).mode("overwrite")
        if self._form == "csv":
            writer = writer.options(**_EXACT_TEXTS)
        writer = writer.options(**_EXACT_TIMES).options(**self._options)
        if self._roll_size is not None:
            writer = writer.option("maxRecordsPerFile", self._records_per_file(rows))
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(path)

    def _records_per_file(self, rows: DataFrame) -> int:
        """From the size of the rows of the batch before; of the first, from Spark's estimate."""
        guess = self._row_bytes or float(rows._jdf.schema().defaultSize())
        return max(_FEWEST_ROWS, int((self._roll_size or 0) / max(guess, 1.0)))

    def _clean(self, folder: Folder, batch: Batch) -> None:
        """Remove what the batches before have left; this one's manifest stays."""
        home = _home(batch)
        for name in folder.names(home):
            number, _, attempt = name.removesuffix(".json").partition("-")
            if not number.isdigit():
                continue
            if int(number) < batch.number or (int(number) == batch.number and attempt):
                folder.remove(f"{home}/{name}")

    def _judged(self, error: Exception) -> Exception:
        return outage_of(error, f"the folder {self._path}") or error


def _home(batch: Batch) -> str:
    """Where the unfinished files and the manifests of a checkpoint are."""
    return f"{HOME}/{batch.pipeline}/{batch.sink}/{batch.run}"


def _final(name: str, batch: Batch) -> str:
    """The name under which a file that Spark has written is seen, folders of partitions and all."""
    folder, slash, file = name.rpartition("/")
    parts = _SPARK_NAME.fullmatch(file)
    if parts is None:
        raise RuntimeError(f"Spark has called a file {file}, from which its task cannot be told")
    task, count, ending = parts.groups()
    start = f"{batch.pipeline}-{batch.run[:_MOST_NAMED]}-{batch.number:010}"
    return f"{folder}{slash}{start}-{task}-{int(count)}{ending or ''}"


def _rolled(given: Any) -> tuple[int | None, float | None]:
    roll = dict(given or {})
    limit = size(roll.pop("size")) if "size" in roll else None
    interval = seconds(roll.pop("interval")) if "interval" in roll else None
    if limit == 0 or interval == 0:
        raise ValueError("size and interval are above 0")
    if roll:
        raise ValueError(f"roll has size and interval, and no {', '.join(sorted(roll))}")
    return limit, interval


def _check_roll(given: Mapping[str, Any]) -> None:
    _rolled(given)


def _make(options: Mapping[str, Any]) -> FilesSink:
    return FilesSink(
        options["path"],
        options["format"],
        options["partition_by"] or (),
        _rolled(options["roll"]),
        {name: str(value) for name, value in (options["options"] or {}).items()},
        options["tasks"],
    )


def _check_tasks(value: int) -> None:
    if value < 1:
        raise ValueError("there must be at least one task")


SINK: Final = Declaration(
    "files",
    "files in a folder; exactly once",
    (
        Option("path", Kind.PATH, "the folder, on any file system of Spark", required=True),
        Option("format", Kind.TEXT, "what the files are", default="parquet", choices=FORMATS),
        Option("partition_by", Kind.LIST, "columns that become folders, `day=2026-03-01`"),
        Option(
            "roll",
            Kind.MAP,
            "`size`: cut a batch into files of about this size; `interval`: how often files are "
            "made, which is the pipeline's trigger where it has no other",
            check=_check_roll,
        ),
        Option(
            "options", Kind.MAP, "options of Spark's writer, such as `header: true` of csv files"
        ),
        Option(
            "tasks",
            Kind.INTEGER,
            "how many tasks write, and so how many files a batch has at the least; as many as the "
            "source has partitions, unless this is given",
            check=_check_tasks,
        ),
    ),
    _make,
)
