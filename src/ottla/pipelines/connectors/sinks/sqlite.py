"""Rows into a table of a SQLite file, each exactly once.

SQLite has one writer at a time, so a batch is one task and one transaction: it is in the table as a
whole or not at all. The file is on this machine, so Spark's master must be a local one.

Text, integers, floating-point numbers and bytes are stored as such; times as text in UTC
("2026-03-01 12:00:00.000000") and dates as text, which SQLite's own functions understand; decimals
as text, which loses nothing; arrays, structs and maps as JSON. SQLite has no NaN: a row with one is
refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import EXACT_JSON, Outage, Place
from ottla.pipelines.connectors.databases import check_main, identifier, literal, table_name
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.sinks.tables import OPTIONS, Stored, TableSink, writing_of
from ottla.pipelines.connectors.sinks.transaction import STAGED, RowError, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType, StructType

_WAIT: Final = 30.0
"""Seconds to wait for another program that writes to the file."""
_ROW: Final = ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG", "SQLITE_RANGE")
_AWAY: Final = (
    "SQLITE_BUSY",
    "SQLITE_CANTOPEN",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_LOCKED",
    "SQLITE_NOMEM",
    "SQLITE_PERM",
    "SQLITE_READONLY",
)
_TYPES: Final = {
    "boolean": "integer",
    "byte": "integer",
    "short": "integer",
    "integer": "integer",
    "long": "integer",
    "float": "real",
    "double": "real",
    "binary": "blob",
}
_NESTED: Final = ("array", "map", "struct", "variant")
_COLLATIONS: Final = """select x.name, x.coll from pragma_index_list({0}) as l,
    pragma_index_xinfo(l.name{1}) as x where l."unique" and x.key and x.coll <> 'BINARY'"""
_EXACT_DIGITS: Final = 15
"""Of a decimal number that differs from all others as a floating-point number, too."""


@dataclass(frozen=True, slots=True)
class SqliteDialect:
    """One file."""

    path: str

    @property
    def what(self) -> str:
        return f"SQLite file {self.path}"

    @property
    def local_paths(self) -> tuple[PurePath, ...]:
        return (PurePath(self.path),)

    def connect(self) -> Session:
        return SqliteSession(self)

    def name(self, table: str) -> str:
        return identifier(*table_name(table))

    def columns(self, session: Session, table: str) -> dict[str, Stored] | None:
        *schema, name = table_name(table)
        within = f", {literal(schema[0])}" if schema else ""
        told = f"{literal(name)}{within}"
        found = session.rows(f"select name, type from pragma_table_info({told})")
        rules = dict(session.rows(_COLLATIONS.format(told, within)))
        return {name: Stored(kind, kind, rules.get(name)) for name, kind in found} or None

    def type_of(self, kind: DataType) -> str:
        return _TYPES.get(kind.typeName(), "text")

    def staged(self, column: Column, kind: DataType) -> Column:
        from pyspark.sql import functions as f

        return f.to_json(column, EXACT_JSON) if kind.typeName() in _NESTED else column

    def value(self, column: str, into: Stored) -> str:
        return column

    def key(self, column: str, kind: DataType, into: Stored) -> str:
        """The staged column itself: it has no type of which SQLite could say what it would be."""
        if not keeps_apart(kind, into):
            rule = f" collate {into.collation}" if into.collation else ""
            raise ValueError(
                f"{self.what}: the key {column} is {kind.simpleString()} in the pipeline and "
                f"{into.type}{rule} in the table, where different values may be the same key: give "
                f"it the table's type in the transform, as in `cast(id as bigint) as id`."
            )
        return column

    def spread(self, column: Column, kind: DataType, into: Stored) -> Column | None:
        return column

    def tasks(self, spark: SparkSession) -> int:
        return 1


class Affinity(Enum):
    """What a column makes of the values that it is given."""

    NONE = "leaves them as they are"
    TEXT = "makes texts of numbers"
    NUMBER = "makes numbers of texts that look like one"
    REAL = "makes floating-point numbers of them, too"


def affinity_of(declared: str) -> Affinity:
    """By SQLite's rules, which look for words in the type."""
    words = declared.upper()
    if "INT" in words:
        return Affinity.NUMBER
    if any(word in words for word in ("CHAR", "CLOB", "TEXT")):
        return Affinity.TEXT
    if not words or "BLOB" in words:
        return Affinity.NONE
    if any(word in words for word in ("REAL", "FLOA", "DOUB")):
        return Affinity.REAL
    return Affinity.NUMBER


def keeps_apart(kind: DataType, into: Stored) -> bool:
    """Whether a column has different values where it was given different ones."""
    from pyspark.sql.types import DecimalType

    name, affinity = kind.typeName(), affinity_of(into.type)
    as_it_is = affinity in (Affinity.NONE, Affinity.TEXT)
    if name in ("string", *_NESTED):
        return as_it_is and into.collation is None
    if isinstance(kind, DecimalType):
        return as_it_is or kind.precision <= _EXACT_DIGITS
    if name in ("float", "double"):
        return affinity is not Affinity.TEXT
    # Bytes stay bytes, and a date looks like no number.
    return name != "long" or affinity is not Affinity.REAL


class SqliteSession:
    """A connection with transactions of its own making."""

    def __init__(self, dialect: SqliteDialect) -> None:
        self._what = dialect.what
        with self._judged():
            self._connection = sqlite3.connect(
                dialect.path, timeout=_WAIT, isolation_level=None, check_same_thread=False
            )

    def execute(self, sql: str) -> None:
        self.rows(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._judged():
            return self._connection.execute(sql).fetchall()

    def begin(self) -> None:
        # Immediate: who reads first and writes then may find that somebody else has written.
        self.execute("begin immediate")

    def create_staged(self, schema: Any) -> None:
        names = ", ".join(map(identifier, schema.names))
        self.execute(f"create temporary table {STAGED} ({names})")

    def stage(self, batch: Any) -> None:
        columns = [_plain(column) for column in batch.columns]
        marks = ", ".join("?" for _ in columns)
        with self._judged():
            self._connection.executemany(
                f"insert into {STAGED} values ({marks})", zip(*columns, strict=True)
            )

    def check_now(self) -> None:
        """A deferred foreign key is checked by the commit alone, and SQLite has no other way."""

    def close(self) -> None:
        self._connection.close()  # rolls back what is open

    @contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except OverflowError as error:
            raise RowError("OverflowError", str(error)) from None
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(_ROW):
                raise RowError(name, str(error)) from None
            if name.startswith(_AWAY) or "no such table" in str(error):
                raise Outage(self._what, f"{self._what}: {error}") from None
            raise


def _plain(column: Any) -> list[Any]:
    """The values of an Arrow column as those that SQLite stores."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        raise RowError("NaN", "SQLite has no NaN, and would keep it as a null")
    values: list[Any] = column.to_pylist()
    change: Callable[[Any], Any] | None = None
    if pa.types.is_timestamp(kind):
        change = _time_text
    elif pa.types.is_decimal(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        change = str
    if change is None:
        return values
    return [None if value is None else change(value) for value in values]


def _time_text(value: Any) -> str:
    whole = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    text: str = whole.isoformat(sep=" ", timespec="microseconds")
    return text


class SqliteSink(TableSink):
    """Refuses a master on which tasks would each have a file of their own."""

    def only_here(self) -> bool:
        return True

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        master = spark.sparkContext.master or "local"
        if not master.startswith("local"):
            raise ValueError(
                f"a SQLite file cannot be written by tasks on other machines, and the master is "
                f"{master}: use a local master, or the sink postgres."
            )
        super().prepare(spark, schema, place)


def _make(options: Mapping[str, Any]) -> SqliteSink:
    check_main(options["table"])
    return SqliteSink(SqliteDialect(str(Path(options["path"]).absolute())), writing_of(options))


SINK: Final = Declaration(
    "sqlite",
    "a table of a SQLite file; exactly once",
    (Option("path", Kind.PATH, "the file; it is made if it is not there", required=True), *OPTIONS),
    _make,
)
