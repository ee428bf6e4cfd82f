"""Tables of SQLite as a source.

SQLite keeps a value as whatever it was given, whatever the column was declared as. A column is read
as the type that its declaration stands for by SQLite's own rules; a value of another type is an
error of its row, and never a zero or a null.

There is one writer at a time, so rows are seen in the order in which they were written and ids need
no ceiling; but without AUTOINCREMENT the id of a last row that was deleted is given again.
Timestamps have seconds, mostly: rows are read once `delay` has passed, which should be a second. A
timestamp is a text that SQLite's date functions read, or seconds or milliseconds since 1970; texts
have to be of one form, since they are compared as texts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.databases import (
    Database,
    Missing,
    check_main,
    identifier,
    literal,
    open_sqlite,
)
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.sources.table_plan import (
    OPTIONS,
    Ceiling,
    Column,
    Mode,
    Plan,
    Table,
    plan,
)
from ottla.pipelines.connectors.sources.table_source import TableSource

if TYPE_CHECKING:
    import pyarrow as pa

_MILLISECONDS: Final = 100_000_000_000
"""A number of seconds since 1970 is smaller for the next three thousand years."""
_LARGEST_REAL: Final = 2**63 - 1024
"""The largest integer of 64 bits that is a floating-point number."""
_BYTES: Final = "bytes"
"""Under which a cursor, which is JSON, has a key of bytes."""


@dataclass(frozen=True, slots=True)
class SqliteEngine:
    """A file of SQLite (`table_plan.Engine`)."""

    path: str

    @property
    def ties(self) -> bool:
        return False

    @property
    def typed(self) -> bool:
        return False

    def open(self) -> Database:
        return open_sqlite(self.path)

    def read(self, database: Database, sql: str, limit: int) -> pa.Table:
        return database.read(sql, rows_at_once=limit + 1)

    def describe(self, database: Database, plan: Plan) -> Table:
        *schema, name = plan.table
        named = ", ".join(literal(each) for each in (name, *schema))
        found = self.read(
            database,
            f"select name, type, pk from pragma_table_info({named}) order by cid",
            10_000,
        ).to_pylist()
        if not found:
            raise Missing(f"{database.where} has no table {plan.shown}: create it, or name another")
        columns = tuple(_column(row["name"], str(row["type"] or "")) for row in found)
        first = sorted((row["pk"], row["name"]) for row in found if row["pk"])
        table = Table(columns, plan.key or tuple(each for _, each in first))
        for each in (*plan.columns, *plan.key):
            table.column(each)
        if plan.mode is Mode.TIMESTAMP and not table.key:
            raise ValueError(
                f"{plan.shown} in {database.where} has no primary key, and rows of one moment "
                "cannot be told apart: name the columns that do with key"
            )
        return table

    # -- up to where

    def ceiling(
        self, database: Database, plan: Plan, table: Table, state: Any, end: Any
    ) -> Ceiling:
        if plan.timestamp is None:
            if end is None:
                return Ceiling("")
            return Ceiling(
                f"{identifier(plan.columns[0])} <= {literal(end[0])}" if end else "false"
            )
        moment = self.moment_sql(identifier(plan.timestamp))
        now = f"{self.moment_sql(_NOW)} - {round(plan.delay * 1e6)}"
        condition = f"({moment}) < {now}"
        if end is not None:
            condition += f" and ({moment}) <= {end}"
        return Ceiling(condition)

    def end(self, database: Database, plan: Plan, table: Table) -> Any:
        if plan.timestamp is None:
            return self.newest(database, plan, table) or []
        moment = database.value(f"select {self.moment_sql(_NOW)}")
        time.sleep(plan.delay)
        return moment

    def newest(self, database: Database, plan: Plan, table: Table) -> list[Any] | None:
        order = plan.columns if plan.timestamp is None else (plan.timestamp, *_tie(plan, table))
        values = ", ".join(
            f"quote({identifier(name)}) as v{number}" for number, name in enumerate(order)
        )
        down = ", ".join(f"{identifier(name)} desc" for name in order)
        present = " and ".join(f"{identifier(name)} is not null" for name in order)
        found = database.read(
            f"select {values} from {identifier(*plan.table)} where {present} "
            f"order by {down} limit 1"
        ).to_pylist()
        return [self.value(text) for text in found[0].values()] if found else None

    # -- words of SQL

    def value_sql(self, column: Column) -> str:
        return f"quote({identifier(column.name)})"

    def value(self, text: str) -> Any:
        if text.startswith("'"):
            return text[1:-1].replace("''", "'")
        if text.startswith("X"):
            return {_BYTES: text[2:-1]}
        return float(text) if set(text) & set(".eE") else int(text)

    def literal(self, column: Column, value: Any) -> str:
        return f"x'{value[_BYTES]}'" if isinstance(value, dict) else literal(value)

    def moment_sql(self, timestamp: str) -> str:
        # julianday() takes a number for a day: numbers are seconds or milliseconds since 1970 here.
        return (
            f"case when typeof({timestamp}) = 'text' "
            f"then cast(round((julianday({timestamp}) - 2440587.5) * 86400000000.0) as integer) "
            f"when abs({timestamp}) < {_MILLISECONDS} then cast({timestamp} * 1000000 as integer) "
            f"else cast({timestamp} * 1000 as integer) end"
        )

    def row_sql(self, table: Table) -> str:
        return self.joined_sql(f"quote({identifier(each.name)})" for each in table.columns)

    def joined_sql(self, texts: Iterable[str]) -> str:
        return " || char(31) || ".join(texts)


_NOW: Final = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


def _tie(plan: Plan, table: Table) -> tuple[str, ...]:
    if plan.increment is not None:
        return (plan.increment,)
    return tuple(name for name in table.key if name != plan.timestamp)


def _column(name: str, declared: str) -> Column:
    """How a column is read, by what its declaration contains."""
    import pyarrow as pa

    sql = identifier(name)
    word = declared.upper()
    whole, real = ("integer",), ("real", "integer")
    kinds: Sequence[tuple[tuple[str, ...], tuple[str, ...], str, pa.DataType]] = (
        (("BOOL",), whole, sql, pa.bool_()),
        (("INT",), whole, sql, pa.int64()),
        (("CHAR", "CLOB", "TEXT"), ("text",), sql, pa.string()),
        (("BLOB",), ("blob",), sql, pa.binary()),
        (("REAL", "FLOA", "DOUB", "DEC", "NUM"), real, f"cast({sql} as real)", pa.float64()),
    )
    for words, types, select, kind in kinds:
        if any(each in word for each in words):
            allowed = ", ".join(literal(each) for each in types)
            fits = f"typeof({sql}) in ({allowed})"
            if types is real:  # an integer may have more digits
                exact = f"{sql} <= {_LARGEST_REAL} and cast(cast({sql} as real) as integer) = {sql}"
                fits += f" and (typeof({sql}) = 'real' or {exact})"
            return Column(
                name,
                f"case when {fits} then {select} end",
                kind,
                declared,
                f"case when typeof({sql}) <> 'null' and not ({fits}) "
                f"then {literal(name + ' is ')} || typeof({sql}) || ' ' || quote({sql}) end",
            )
    return Column(name, f"cast({sql} as text)", pa.string(), declared)


class SqliteSource(TableSource):
    """Rows of a table of a file."""

    def __init__(self, path: str, plan: Plan) -> None:
        super().__init__(SqliteEngine(path), plan, f"SQLite in {path}")
        self._path = path

    def local_paths(self) -> Sequence[PurePath]:
        return (Path(self._path),)

    def only_here(self) -> bool:
        return True


def _make(values: Mapping[str, Any]) -> SqliteSource:
    check_main(values["table"])
    return SqliteSource(values["path"], plan(values))


SOURCE: Final = Declaration(
    "sqlite",
    "rows of a table of an SQLite file",
    (Option("path", Kind.PATH, "the file", required=True), *OPTIONS),
    _make,
)
