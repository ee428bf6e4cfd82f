"""Files as a source: one, or a folder that is watched, on any file system that Hadoop knows.

Each file is read once, when it is there; Spark's checkpoint has the list. So a file has to be
complete when it appears: write it under a name that begins with a dot or an underscore, and rename
it. A file that grows later is not read again. How old it is does not matter.

A row's position is its file and its number in it, from 0. Spark counts no rows, but the rows of a
task can be counted, and a task reads from one file only: `spark.sql.files.openCostInBytes` is set
so high that no two files share one. A file larger than `BLOCK` is read by several tasks, if it can
be cut; then the position also has the byte at which the task's block begins, and the number is that
within the block. Nothing of this costs anything unless somebody asks for a position.

csv is parsed by Spark, json line by line by the format json. What does not fit the schema is an
error of its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ottla.pipelines.connectors.contract import EXACT_JSON, HIDDEN, Needs, Outage, Place
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.formats.schema_file import EVOLUTION, SCHEMA_FILE, SchemaPlace
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option, at_least
from ottla.pipelines.connectors.sources.decoding import SAMPLE, PartReading
from ottla.pipelines.connectors.sources.hidden import (
    CORRUPT,
    as_json,
    hidden,
    is_corrupt,
    letters_of_json,
    letters_of_text,
    quoted,
    with_corrupt,
)
from ottla.pipelines.connectors.sources.staging import local_folder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

BLOCK: Final = 32 << 20
"""Bytes that one task reads of a file, at most."""

_CORRUPT: Final = CORRUPT
_NUMBER: Final = "_ottla_number"
_FILE: Final = "_ottla_file"
_START: Final = "_ottla_start"
_ID: Final = "_ottla_id"
_OWN: Final = frozenset((_CORRUPT, _NUMBER, _FILE, _START, _ID))
_BYTES: Final = "_ottla_bytes"
_DECODED: Final = "_ottla_decoded"
_LINE: Final = "_ottla_line"
_WITHIN_TASK: Final = (1 << 33) - 1
"""The lower bits of `monotonically_increasing_id` are the number within the task."""
_GLOB: Final = set("*?[]{}")
_ANY_AGE: Final = "36500d"
"""By itself Spark passes over a file that is a week older than the newest that it has read, without
a word; and who moves or copies a file may keep its time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the options say."""

    path: str
    format: str
    reader: tuple[tuple[str, str], ...]
    schema: SchemaPlace
    max_files: int


class FilesSource(Needs):
    """Rows of files (`contract.Source`)."""

    def __init__(self, plan: Plan, reading: PartReading | None) -> None:
        self._plan = plan
        self._reading = reading

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        # Read when the query starts, which has its own copy of the session's settings from then on.
        for name in ("maxPartitionBytes", "openCostInBytes"):
            spark.conf.set(f"spark.sql.files.{name}", str(BLOCK))
        path = self._present(spark, place)
        reader = spark.readStream.format(self._spark_format()).option("maxFileAge", _ANY_AGE)
        reader = reader.options(**dict(self._plan.reader))
        schema = self._schema(spark, place)
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.option("maxFilesPerTrigger", self._plan.max_files).load(path)
        return self._numbered(frame)

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        path = self._present(spark, place)
        reader = spark.read.format(self._spark_format()).options(**dict(self._plan.reader))
        schema = self._schema(spark, place)
        if schema is not None:
            reader = reader.schema(schema)
        return _placed(self._numbered(reader.load(path))).limit(count)

    def rows(self, batch: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        batch = _placed(batch)
        names = [name for name in batch.columns if name not in _OWN]
        number = F.col(_ID).bitwiseAND(F.lit(_WITHIN_TASK))
        block = F.when(F.col(_START) > 0, F.col(_START))
        if _NUMBER in batch.columns:
            number, block = F.col(_NUMBER), F.lit(None).cast("long")
        position = {"file": F.col(_FILE), "block": block, "row": number}
        sequence = F.col(_ID)
        if self._plan.format == "json":
            return self._json(batch, position, sequence)
        value = as_json(names)
        error = None
        if self._plan.format == "text":
            value = F.col("value")
        if _CORRUPT in batch.columns:
            bad = F.col(_CORRUPT)
            value = F.coalesce(bad, value)
            error = F.when(bad.isNotNull(), _mismatch(bad))
        made = hidden(position, sequence=sequence, value=value, error=error)
        return batch.select(*(F.col(quoted(name)) for name in names), made)

    def _json(
        self, batch: DataFrame, position: Mapping[str, Column], sequence: Column
    ) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        assert self._reading is not None
        line = F.col("value")
        numbered = batch.select(
            line.cast("binary").alias(_BYTES),
            hidden(position, sequence=sequence, value=line).alias(HIDDEN),
        ).where(F.length(F.trim(F.col(_BYTES).cast("string"))) > 0)
        decoded = self._reading.decoded(numbered, _BYTES, _DECODED)
        error = F.col(f"{_DECODED}.error")
        failed = F.when(
            error.isNotNull(),
            F.struct(F.lit("decode").alias("stage"), error["kind"], error["message"]),
        )
        return decoded.select(
            f"{_DECODED}.value.*", F.col(HIDDEN).withField("error", failed).alias(HIDDEN)
        )

    def of_letters(self, letters: DataFrame, schema: StructType) -> DataFrame:
        """See `redrive`. A letter holds a line; of parquet, and of csv that was decoded, JSON."""
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        if self._plan.format == "text":
            return letters_of_text(letters)
        if self._reading is not None:
            return self._reading.letters(letters)
        read = letters_of_json(letters, schema)
        if self._plan.format != "csv":
            return read
        text = F.col("value").cast("string")
        reader = {**dict(self._plan.reader), "columnNameOfCorruptRecord": CORRUPT}
        read = read.withColumn(
            _LINE,
            # The other lines are of letters that were redriven by an Ottla that kept them.
            F.when(
                F.col("undecoded").isNotNull() | ~text.startswith("{"),
                F.from_csv(text, F.lit(with_corrupt(schema).toDDL()), reader),
            ),
        )
        line, row = F.col(_LINE), F.col(_LINE).dropFields(CORRUPT)
        is_line = line.isNotNull()
        why = F.when(is_corrupt(line), _mismatch(text))
        now = F.when(line[CORRUPT].isNull(), F.to_json(row, EXACT_JSON).cast("binary"))
        return read.select(
            *("key", "offset", "position"),
            F.when(is_line, F.coalesce(now, "value")).otherwise(F.col("value")).alias("value"),
            F.when(is_line, row).otherwise(F.col("row")).alias("row"),
            F.when(is_line, why).otherwise(F.col("error")).alias("error"),
        )

    # -- what `validate` asks

    def local_paths(self) -> Sequence[PurePath]:
        parts = urlsplit(self._plan.path)
        if parts.scheme in ("", "file"):
            return (Path(unquote(parts.path) if parts.scheme else self._plan.path),)
        return ()

    # -- what there is

    def _spark_format(self) -> str:
        return "text" if self._plan.format == "json" else self._plan.format

    def _numbered(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        if self._plan.format == "parquet":
            return frame.select("*", F.col("_metadata.row_index").alias(_NUMBER))
        return frame

    def _present(self, spark: SparkSession, place: Place) -> str:
        """The path as Spark's stream takes it; a single file has to look like a pattern."""
        path = self._plan.path
        if _GLOB & set(path):
            return path
        java: Any = spark._jvm
        hadoop = java.org.apache.hadoop.fs.Path(path)
        try:
            system = hadoop.getFileSystem(spark._jsc.hadoopConfiguration())
            status = system.getFileStatus(hadoop)
        except Exception as error:
            cause = getattr(error, "java_exception", None)
            if cause is not None and cause.getClass().getSimpleName() == "FileNotFoundException":
                raise ValueError(
                    f"pipeline {place.pipeline}: there is no {path}: create the folder, or correct "
                    "the path of its source"
                ) from None
            sentence = str(cause.getMessage() if cause is not None else error)
            raise Outage(path, f"pipeline {place.pipeline}: {path}: {sentence}") from None
        if status.isDirectory():
            return path
        folder, slash, name = path.rpartition("/")
        return f"{folder}{slash}[{name[0]}]{name[1:]}"

    def _schema(self, spark: SparkSession, place: Place) -> StructType | None:
        if self._plan.format == "text":
            return None
        if self._plan.format == "json":
            assert self._reading is not None
            self._reading.learn(lambda: self._lines(spark), place, self._plan.path)
            return None
        from pyspark.sql.types import StringType, StructField, StructType

        kept = self._plan.schema
        if kept.text is None and kept.file is None:
            # inferred once and kept beside the checkpoint: other files must not change it
            kept = SchemaPlace(None, str(local_folder(place.staging) / "schema"))
        try:
            found = kept.load()
        except ValueError as error:
            raise ValueError(f"pipeline {place.pipeline}: {error}") from None
        if found is None:
            found = self._inferred(spark, place)
            kept.pin(found)
        if self._plan.format == "parquet":
            return found
        return StructType([*found.fields, StructField(_CORRUPT, StringType())])

    def _inferred(self, spark: SparkSession, place: Place) -> StructType:
        from pyspark.errors import AnalysisException

        reader = spark.read.format(self._plan.format).options(**dict(self._plan.reader))
        try:
            found = reader.option("inferSchema", "true").load(self._plan.path).schema
        except AnalysisException:
            found = None
        if found is None or not found.fields:
            raise Outage(
                self._plan.path,
                f"pipeline {place.pipeline}: {self._plan.path} has no file yet from which a schema "
                "could be inferred: give a schema or schema_file, or wait for the first file",
            )
        return found

    def _lines(self, spark: SparkSession) -> list[bytes]:
        from pyspark.errors import AnalysisException

        try:
            lines = spark.read.text(self._plan.path).where("length(trim(value)) > 0").limit(SAMPLE)
        except AnalysisException:  # a pattern that nothing matches yet
            return []
        return [row["value"].encode() for row in lines.collect()]


def _mismatch(line: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

    why = F.concat(F.lit("the line does not fit the schema: "), F.substring(line, 1, 200))
    return F.struct(F.lit("SchemaMismatch").alias("kind"), why.alias("message"))


def _placed(frame: DataFrame) -> DataFrame:
    """With what Spark knows only while it reads, in columns of their own: see `hidden`.

    They are taken before any row is left out, also by a limit, and before Python sees them.

    Spark refuses to read nothing but what it could not read, which is all that it takes to count
    such lines: so that column is made of another one, too, in a way that is not seen through.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

    if _FILE in frame.columns:
        return frame
    number = F.monotonically_increasing_id()
    columns = [F.col(quoted(name)) for name in frame.columns if name != _CORRUPT]
    if _CORRUPT in frame.columns:
        always = columns[0].isNotNull() | (number >= 0)
        columns.append(F.when(always, F.col(_CORRUPT)).alias(_CORRUPT))
    return frame.select(
        *columns,
        F.input_file_name().alias(_FILE),
        F.input_file_block_start().alias(_START),
        number.alias(_ID),
    )


def _make(values: Mapping[str, Any]) -> FilesSource:
    form = values["format"]
    if form != "csv":
        for name in ("header", "delimiter", "multiline"):
            if values[name]:
                raise Mistake(name, f"{name} is for csv, and the format is {form}")
    kept = SchemaPlace.from_options(values)
    reader: dict[str, str] = {}
    if form == "csv":
        reader = {
            "header": str(values["header"] or False).lower(),
            "sep": values["delimiter"] or ",",
            "multiLine": str(values["multiline"] or False).lower(),
            # a quote within quotes is written twice, as all but Spark do (RFC 4180)
            "escape": '"',
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": _CORRUPT,
            # every column is looked at whatever the query uses: a row is right or wrong for all
            "columnPruning": "false",
            # a header that is not what the schema says is an error, and not skipped
            "enforceSchema": "false",
        }
    reader |= {name: str(value) for name, value in (values["options"] or {}).items()}
    reading = None
    if form == "json":
        names = ("schema", "schema_file", "evolution")
        given = {name: values[name] for name in names if values[name] is not None}
        reading = PartReading(read_format({"json": given}, "schema"))
    plan = Plan(values["path"], form, tuple(reader.items()), kept, values["max_files"])
    return FilesSource(plan, reading)


SOURCE: Final = Declaration(
    "files",
    "a file, or the files of a folder that is watched",
    (
        Option(
            "path",
            Kind.PATH,
            "the file or folder, or a pattern such as `/data/*.csv`; any that Spark's Hadoop knows",
            required=True,
        ),
        Option(
            "format",
            Kind.TEXT,
            "what is in them; json is one object a line",
            default="text",
            choices=("text", "csv", "json", "parquet"),
        ),
        Option("schema", Kind.TEXT, "the columns, `id long, name string`; inferred when not given"),
        SCHEMA_FILE,
        EVOLUTION,
        Option("header", Kind.FLAG, "csv: the first line has the columns' names", default=False),
        Option("delimiter", Kind.TEXT, "csv: what is between two values; a comma when not given"),
        Option("multiline", Kind.FLAG, "csv: a quoted value may hold line breaks", default=False),
        Option(
            "max_files",
            Kind.INTEGER,
            "files of one batch, at most",
            default=1_000,
            check=at_least(1, "a batch has at least one file"),
        ),
        Option(
            "options",
            Kind.MAP,
            "options of Spark's reader, such as `recursiveFileLookup` or `cleanSource`",
        ),
    ),
    _make,
)
