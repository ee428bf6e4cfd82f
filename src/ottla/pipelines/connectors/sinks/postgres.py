"""Rows into a table of PostgreSQL, each exactly once.

Rows travel as Arrow, through COPY into a temporary table, and from there into the table with one
statement. A value is cast to the type of its column, so text becomes jsonb or uuid where the table
says so; the cast is to the type without its length, and of a domain to the type below it, since a
value that is too long is to be refused and not cut.

Arrays of plain values are arrays of PostgreSQL; structs, maps and other arrays are JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import EXACT_JSON
from ottla.pipelines.connectors.databases import identifier, literal, place, table_name
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.sinks.postgres_session import PostgresSession
from ottla.pipelines.connectors.sinks.tables import OPTIONS, Stored, TableSink, writing_of
from ottla.pipelines.connectors.sinks.transaction import Session

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

_TYPES: Final = {
    "boolean": "boolean",
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_COLUMNS: Final = """with recursive c as (
    select a.attnum, a.attname, a.attcollation, a.atttypid as type, a.atttypmod as length
        from pg_attribute a
        where a.attrelid = to_regclass({}) and a.attnum > 0 and not a.attisdropped
    union all
    select c.attnum, c.attname, c.attcollation, t.typbasetype, t.typtypmod
        from c join pg_type t on t.oid = c.type where t.typtype = 'd')
    select c.attname, format_type(c.type, -1), format_type(c.type, c.length),
        (select format('%I.%I', n.nspname, l.collname) from pg_collation l
            join pg_namespace n on n.oid = l.collnamespace
            where l.oid = c.attcollation and not l.collisdeterministic)
    from c join pg_type t on t.oid = c.type where t.typtype <> 'd' order by c.attnum"""
_WHOLE: Final = ("byte", "short", "integer", "long")
_VARCHAR: Final = "character varying"
_CHAR: Final = "bpchar"
_LENGTHS: Final = (_CHAR, '"bit"', "bit varying")
"""Types of which a cast to their length would cut a value."""
_SAME: Final = {
    "boolean": ("boolean",),
    "float": ("real", "double precision"),
    "double": ("double precision",),
    "string": ("text", _VARCHAR),
    "binary": ("bytea",),
    "date": ("date",),
    "timestamp": ("timestamp with time zone",),
    "timestamp_ntz": ("timestamp without time zone",),
    **dict.fromkeys(_WHOLE, ("smallint", "integer", "bigint", "numeric", "text", _VARCHAR)),
}
"""Columns in which values of a kind are equal only if they were before."""
_SCALE: Final = re.compile(r"numeric\(\d+,(-?\d+)\)")
_MOST_TASKS: Final = 8
"""Each is a connection, of which a server has about a hundred."""


@dataclass(frozen=True, slots=True)
class PostgresDialect:
    """One database."""

    dsn: str

    def __repr__(self) -> str:
        return f"PostgresDialect({self.what})"

    @property
    def what(self) -> str:
        return f"PostgreSQL at {place(self.dsn)}"

    @property
    def local_paths(self) -> tuple[PurePath, ...]:
        return ()

    def connect(self) -> Session:
        return PostgresSession(self.dsn)

    def name(self, table: str) -> str:
        return identifier(*table_name(table))

    def columns(self, session: Session, table: str) -> dict[str, Stored] | None:
        found = session.rows(_COLUMNS.format(literal(self.name(table))))
        return {name: Stored(*rest) for name, *rest in found} or None

    def type_of(self, kind: DataType) -> str:
        from pyspark.sql.types import ArrayType, DecimalType

        if isinstance(kind, DecimalType):
            return f"numeric({kind.precision}, {kind.scale})"
        if isinstance(kind, ArrayType) and _is_plain(kind.elementType):
            return f"{self.type_of(kind.elementType)}[]"
        return _TYPES.get(kind.typeName(), "jsonb")

    def staged(self, column: Column, kind: DataType) -> Column:
        from pyspark.sql import functions as f
        from pyspark.sql.types import ArrayType, MapType, StructType

        if isinstance(kind, ArrayType) and _is_plain(kind.elementType):
            return column
        if isinstance(kind, ArrayType | MapType | StructType):
            return f.to_json(column, EXACT_JSON)
        return column if _is_plain(kind) else column.cast("string")

    def value(self, column: str, into: Stored) -> str:
        return f"cast({column} as {into.type})"

    def key(self, column: str, kind: DataType, into: Stored) -> str:
        collate = f" collate {into.collation}" if into.collation else ""
        if into.type == _VARCHAR and into.whole != _VARCHAR:
            # Only spaces are cut without a word where there are too many characters.
            length = int(re.findall(r"\d+", into.whole)[0])
            text = self.value(column, into)
            cut = f"substr({text}, 1, {length})"
            rest = f"rtrim(substr({text}, {length + 1}), ' ')"
            return f"(case when {rest} = '' then {cut} else {text} end){collate}"
        if into.type in _LENGTHS:
            return self.value(column, into) + collate
        return f"cast({column} as {into.whole}){collate}"

    def spread(self, column: Column, kind: DataType, into: Stored) -> Column | None:
        from pyspark.sql import functions as f
        from pyspark.sql.types import DecimalType

        name, whole = kind.typeName(), into.whole == into.type
        if into.collation is not None:
            return None
        if name == "string" and into.type in (_VARCHAR, _CHAR) and not whole:
            return f.rtrim(column)
        if name == "string" and into.type == "uuid":
            return f.lower(f.regexp_replace(column, "[{}-]", ""))
        if into.type == "numeric" and (isinstance(kind, DecimalType) or name in _WHOLE):
            scale = _SCALE.fullmatch(into.whole)
            given = kind.scale if isinstance(kind, DecimalType) else 0
            return column if scale is None or given <= int(scale[1]) else None
        return column if whole and into.type in _SAME.get(name, ()) else None

    def tasks(self, spark: SparkSession) -> int:
        return max(1, min(spark.sparkContext.defaultParallelism, _MOST_TASKS))


def _is_plain(kind: DataType) -> bool:
    """Whether ADBC has a type of PostgreSQL for it."""
    return kind.typeName() in (*_TYPES, "decimal")


def _check_tasks(value: int) -> None:
    if value < 1:
        raise ValueError("there must be at least one task")


def _make(options: Mapping[str, Any]) -> TableSink:
    return TableSink(PostgresDialect(options["dsn"]), writing_of(options))


SINK: Final = Declaration(
    "postgres",
    "a table of PostgreSQL; exactly once",
    (
        Option(
            "dsn",
            Kind.TEXT,
            "the database, `postgresql://user:password@host:port/name`",
            required=True,
            secret=True,
            place=place,
        ),
        *OPTIONS,
        Option(
            "tasks",
            Kind.INTEGER,
            "over how many tasks a batch is spread, each with a connection and a transaction of "
            "its own; as many as Spark has cores, but at most 8, unless this is given",
            check=_check_tasks,
        ),
    ),
    _make,
)
