"""The hidden column as sources make it: `contract.HIDDEN_TYPE` from what is known of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.pipelines.connectors.contract import EXACT_JSON, HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

DECODE: Final = "decode"
"""The stage at which a source's own errors happen."""

CORRUPT: Final = f"{HIDDEN}_corrupt"
_HEADERS: Final = "array<struct<key: string, value: binary>>"


def hidden(
    position: Mapping[str, Column],
    *,
    line: Column | None = None,
    sequence: Column,
    value: Column,
    timestamp: Column | None = None,
    key: Column | None = None,
    headers: Column | None = None,
    error: Column | None = None,
) -> Column:
    """The column, under its name.

    timestamp  milliseconds since 1970
    error      struct<kind: string, message: string>, null where nothing is wrong

    Each part has its type by itself, and the whole is a struct and no cast of one: so Spark takes a
    part that a query uses without making the others, of which `position` takes longest. For the
    same reason nothing in here may be nondeterministic; a column of its own is.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

    nothing = F.lit(None)
    failed: Column = nothing
    if error is not None:
        failed = F.when(
            error.isNotNull(),
            F.struct(
                F.lit(DECODE).alias("stage"),
                error["kind"].alias("kind"),
                error["message"].alias("message"),
            ),
        )
    # An empty array and no null: null arrays are slow on their way from the JVM into Python.
    told = F.array().cast(_HEADERS) if headers is None else headers
    return F.struct(
        F.to_json(
            F.struct(*(column.alias(name) for name, column in position.items())),
            EXACT_JSON | {"ignoreNullFields": "true"},
        ).alias("position"),
        (F.lit(0) if line is None else line).cast("long").alias("line"),
        sequence.cast("long").alias("sequence"),
        (nothing if timestamp is None else timestamp).cast("long").alias("timestamp"),
        (nothing if key is None else key).cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        told.cast(_HEADERS).alias("headers"),
        failed.cast("struct<stage: string, kind: string, message: string>").alias("error"),
    ).alias(HIDDEN)


def as_json(names: list[str]) -> Column:
    """The row itself as JSON, for a row that was no record."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

    if not names:
        return F.lit("{}")
    return F.to_json(
        F.struct(*(F.col(quoted(name)).alias(name) for name in names)),
        EXACT_JSON,
    )


def letters_of_json(letters: DataFrame, schema: StructType) -> DataFrame:
    """Dead letters, with `row` and `error` of the JSON that `as_json` has made of a row.

    letters  with a binary column `value`
    error    struct<kind, message>, null where nothing is wrong
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

    # Spark makes nulls of what it cannot read, and tells so in this column alone.
    told = with_corrupt(schema)
    options = EXACT_JSON | {"columnNameOfCorruptRecord": CORRUPT}
    read = letters.withColumn("row", F.from_json(F.col("value").cast("string"), told, options))
    why = F.struct(
        F.lit("NotJson").alias("kind"), F.lit("the letter holds no JSON of a row").alias("message")
    )
    return read.withColumn("error", F.when(is_corrupt(F.col("row")), why)).withColumn(
        "row", F.col("row").dropFields(CORRUPT)
    )


def letters_of_text(letters: DataFrame) -> DataFrame:
    """The same where a letter is the text of a row's only column `value`."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

    row = F.struct(F.col("value").cast("string").alias("value"))
    none = F.lit(None).cast("struct<kind: string, message: string>")
    return letters.withColumns({"row": row, "error": none})


def with_corrupt(schema: StructType) -> StructType:
    """A schema with a column for what Spark cannot read."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(CORRUPT, StringType())])


def is_corrupt(row: Column) -> Column:
    """Whether Spark could not read a row of such a schema."""
    return row.isNull() | row[CORRUPT].isNotNull()


def quoted(name: str) -> str:
    """A column's name as Spark takes it whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
