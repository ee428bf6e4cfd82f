"""Tables of databases as sources: what the options say, and what a kind of database has to know.

Modes:

    bulk                     the whole table, again and again
    incrementing             rows whose id is larger than the last one: inserts
    timestamp                rows whose timestamp is later: inserts and updates
    incrementing+timestamp   the same, with an id to tell rows of one moment apart

A row may become visible after a later one: ids and timestamps are taken while a transaction runs,
and it is seen when that ends. So there is a ceiling, above which rows are left for later; each
database has its own way to find it (`Engine.ceiling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.pipelines.connectors.databases import Database, Missing, check_table, table_name
from ottla.pipelines.connectors.option import Kind, Mistake, Option, at_least

if TYPE_CHECKING:
    import pyarrow as pa


class Mode(Enum):
    """How new rows are told from old ones."""

    BULK = "bulk"
    INCREMENTING = "incrementing"
    TIMESTAMP = "timestamp"
    BOTH = "incrementing+timestamp"


_COLUMNS: Final = {Mode.BULK: 0, Mode.INCREMENTING: 1, Mode.TIMESTAMP: 1, Mode.BOTH: 2}
_EVERY: Final = {Mode.BULK: 3600.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """What the options say.

    table       its name, with its schema's before it if that was given
    columns     of the mode: the id, or the timestamp, or both in this order
    key         what tells rows apart; empty: the primary key
    delay       seconds that a row has to be old
    overlap     seconds before the cursor that are read again
    """

    table: tuple[str, ...]
    mode: Mode
    columns: tuple[str, ...]
    key: tuple[str, ...]
    delay: float
    overlap: float
    every: float
    max_rows: int
    latest: bool

    @property
    def timestamp(self) -> str | None:
        return self.columns[-1] if self.mode in (Mode.TIMESTAMP, Mode.BOTH) else None

    @property
    def increment(self) -> str | None:
        return self.columns[0] if self.mode in (Mode.INCREMENTING, Mode.BOTH) else None

    @property
    def shown(self) -> str:
        return ".".join(self.table)


OPTIONS: Final = (
    Option(
        "table",
        Kind.TEXT,
        "the table or view; `schema.table` for another schema",
        required=True,
        check=check_table,
    ),
    Option(
        "mode",
        Kind.TEXT,
        "how new rows are told from old ones",
        default=Mode.BULK.value,
        choices=tuple(mode.value for mode in Mode),
    ),
    Option(
        "columns",
        Kind.LIST,
        "what the mode goes by: `[id]`, `[updated_at]`, or `[id, updated_at]` for both",
        default=(),
    ),
    Option("key", Kind.LIST, "what tells rows apart; the primary key when not given", default=()),
    Option(
        "delay",
        Kind.DURATION,
        "timestamp modes: how old a row must be to be read",
        default=1.0,
    ),
    Option(
        "overlap",
        Kind.DURATION,
        "timestamp modes: the stretch before the last row that is read again, for rows that came "
        "late; what was given already is left out",
        default=0.0,
    ),
    Option(
        "start",
        Kind.TEXT,
        "where a new pipeline begins: with the rows that are there, or with those that follow",
        default="earliest",
        choices=("earliest", "latest"),
    ),
    Option(
        "every",
        Kind.DURATION,
        "how often new rows are looked for; 1s when not given, with mode bulk 1h",
    ),
    Option(
        "max_rows",
        Kind.INTEGER,
        "rows of one batch, at most",
        default=100_000,
        check=at_least(1, "a batch has at least one row"),
    ),
)


def plan(values: Mapping[str, Any]) -> Plan:
    """The plan of checked options; raises Mistake where they do not fit together."""
    mode = Mode(values["mode"])
    columns = tuple(values["columns"] or ())
    if len(columns) != _COLUMNS[mode]:
        wanted = ("no columns", "one column", "two columns, the id and the timestamp")
        raise Mistake(
            "columns",
            f"mode {mode.value} goes by {wanted[_COLUMNS[mode]]}, and {len(columns)} are given",
        )
    if len(set(columns)) != len(columns):
        raise Mistake("columns", "the id and the timestamp are two columns, and one is given twice")
    if values["overlap"] and mode in (Mode.BULK, Mode.INCREMENTING):
        raise Mistake("overlap", f"an overlap is a stretch of time, and mode {mode.value} has none")
    if values["start"] == "latest" and mode is Mode.BULK:
        raise Mistake("start", "mode bulk reads the whole table: there is no later row to begin at")
    every = values["every"]
    return Plan(
        table=table_name(values["table"]),
        mode=mode,
        columns=columns,
        key=tuple(values["key"] or ()),
        delay=values["delay"],
        overlap=values["overlap"],
        every=_EVERY.get(mode, 1.0) if every is None else every,
        max_rows=values["max_rows"],
        latest=values["start"] == "latest",
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A column as it is read.

    select   the SQL of its value
    fault    the SQL of a sentence, null if the value can be had as `type`; empty: it always can
    type     Arrow's
    native   the database's own name of its type
    """

    name: str
    select: str
    type: pa.DataType
    native: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it was found."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise Missing(
            f"there is no column {name}; there are {', '.join(each.name for each in self.columns)}"
        )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Up to where rows are read now: SQL, or empty for no limit; and what to remember of it."""

    condition: str
    state: Any = None


class Engine(Protocol):
    """What one kind of database does in its own way. Pickled; making one connects to nothing."""

    @property
    def ties(self) -> bool:
        """Whether `fetch first n rows with ties` is understood."""

    @property
    def typed(self) -> bool:
        """Whether the type of a column that is read is its own, and not that of its values."""

    def open(self) -> Database: ...

    def describe(self, database: Database, plan: Plan) -> Table:
        """The table's columns and key; `Missing` if there is none."""

    def read(self, database: Database, sql: str, limit: int) -> pa.Table: ...

    def ceiling(
        self, database: Database, plan: Plan, table: Table, state: Any, end: Any
    ) -> Ceiling:
        """Up to where all is there; `end`, if not None, is what `end` said."""

    def end(self, database: Database, plan: Plan, table: Table) -> Any:
        """What is there now, as JSON."""

    def newest(self, database: Database, plan: Plan, table: Table) -> list[Any] | None:
        """The ordering values to begin after so that only later rows come; None: any row."""

    def value_sql(self, column: Column) -> str:
        """The SQL of a text that `value` turns into JSON."""

    def value(self, text: str) -> Any: ...

    def literal(self, column: Column, value: Any) -> str:
        """A value of JSON as SQL of that column's type."""

    def moment_sql(self, timestamp: str) -> str:
        """The SQL of a timestamp, itself SQL, in microseconds since 1970, as an integer."""

    def row_sql(self, table: Table) -> str:
        """The SQL of a text that tells rows without a key apart."""

    def joined_sql(self, texts: Iterable[str]) -> str:
        """The SQL of these texts as one."""
