"""Rows into a table of a database, each exactly once: what PostgreSQL and SQLite have in common.

A batch is spread over tasks by the hash of the key, or of the row's position where rows are only
inserted, so that every task has the same rows whenever the batch is run; `transaction` says what a
task does with them. Of several rows with one key the last counts, by line and sequence: all of them
are in one task.

What one key is, is for the database to say: '1' and '01' are one in a column of integers. So rows
are spread only by columns of the key of which Spark can tell as much (`Dialect.spread`), and if
there is none, all of them are in one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.pipelines.connectors.contract import HIDDEN, Batch, Guarantee, Needs, Outage, Place
from ottla.pipelines.connectors.databases import check_table, identifier
from ottla.pipelines.connectors.option import Kind, Mistake, Option
from ottla.pipelines.connectors.sinks import slots
from ottla.pipelines.connectors.sinks.tasks import in_tasks, spread
from ottla.pipelines.connectors.sinks.transaction import (
    DELETE,
    LINE,
    OURS,
    POSITION,
    SEQUENCE,
    Session,
    Target,
    Transact,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

INSERT: Final = "insert"
UPSERT: Final = "upsert"


@dataclass(frozen=True, slots=True)
class Stored:
    """How a table stores a column.

    type       its type without a length: "character varying", "numeric"
    whole      with its length, if it has one: "numeric(10,2)"
    collation  the rule by which it takes different texts for the same; None if it does not
    """

    type: str
    whole: str
    collation: str | None = None


class Dialect(Protocol):
    """A database: where it is, and what its types are. Travels to the tasks."""

    @property
    def what(self) -> str:
        """What an outage calls it."""

    @property
    def local_paths(self) -> tuple[PurePath, ...]: ...

    def connect(self) -> Session: ...

    def name(self, table: str) -> str:
        """The name of a table in SQL."""

    def columns(self, session: Session, table: str) -> dict[str, Stored] | None:
        """The columns of a table; None if there is no such table."""

    def type_of(self, kind: DataType) -> str:
        """The type of a column that is made for such values; ValueError if there is none."""

    def staged(self, column: Column, kind: DataType) -> Column:
        """The value in a type that can be staged."""

    def value(self, column: str, into: Stored) -> str:
        """What is inserted into a column `into`: an expression of the staged column."""

    def key(self, column: str, kind: DataType, into: Stored) -> str:
        """The same as the database has it then: equal for two rows if they are one to it.

        ValueError with a sentence if that cannot be said.
        """

    def spread(self, column: Column, kind: DataType, into: Stored) -> Column | None:
        """Something that is the same for all staged values that are one key to the database; None
        if Spark cannot tell."""

    def tasks(self, spark: SparkSession) -> int:
        """Over how many tasks a batch is spread."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What the user has asked for."""

    table: str
    mode: str
    key: tuple[str, ...]
    delete_when: str | None
    create: bool
    tasks: int | None


class TableSink(Needs):
    """A sink into one table."""

    def __init__(self, dialect: Dialect, writing: Writing) -> None:
        self._dialect = dialect
        self._writing = writing
        self._target: Target | None = None
        self._spread: tuple[tuple[str, DataType, Stored], ...] = ()
        self._tasks = 1

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def local_paths(self) -> Sequence[PurePath]:
        return self._dialect.local_paths

    def keys(self) -> Sequence[str]:
        return self._writing.key

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        kinds = _kinds(schema)
        self._check_names(kinds)
        self._tasks = self._writing.tasks or self._dialect.tasks(spark)
        session = self._dialect.connect()
        try:
            # Whether it is there first: `if not exists` needs the right to make one.
            if self._dialect.columns(session, slots.TABLE) is None:
                session.execute(slots.CREATE)
            found = self._dialect.columns(session, self._writing.table)
            if found is None and self._writing.create:
                session.execute(self._create(kinds))
                found = self._dialect.columns(session, self._writing.table)
            if found is None:
                raise ValueError(
                    f"{self._dialect.what}: there is no table {self._writing.table}; create it, or "
                    "let the sink do that with create: true."
                )
            target = self._fitting(kinds, found)
            self._check_keys(session, target)
        finally:
            session.close()
        self._target = target
        self._spread = tuple(
            (name, kinds[name], found[name])
            for name in target.keys
            if self._dialect.spread(_column(name), kinds[name], found[name]) is not None
        )
        if target.keys and not self._spread:
            self._tasks = 1

    def write(self, rows: DataFrame, batch: Batch) -> None:
        self._run(rows, batch, keep=True)

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        """Rows of tasks that have written this batch are right, and are not tried again."""
        self._run(rows, batch, keep=False)

    def _run(self, rows: DataFrame, batch: Batch, *, keep: bool) -> None:
        if self._target is None:
            raise RuntimeError(f"{batch.sink} of {batch.pipeline} was not prepared")
        session = self._dialect.connect()
        try:
            target = self._target = self._grown(session, self._target, rows.schema)
            tasks = slots.tasks_of(session, batch) or self._tasks
        finally:
            session.close()
        slot = slots.Slot.of(batch, tasks)
        staged = self._staged(rows)
        work = Transact(self._dialect.connect, target, slot, keep)
        in_tasks(spread(staged, tasks, self._by(target)), work)

    def _grown(self, session: Session, target: Target, schema: StructType) -> Target:
        """With the columns that records have brought since the start; `Outage` until the table has
        them, too."""
        kinds = _kinds(schema)
        if kinds.keys() <= {name for name, _ in target.columns}:
            return target
        found = self._dialect.columns(session, self._writing.table)
        if found is None:  # it is gone, which the first task says
            return target
        try:
            return self._fitting(kinds, found)
        except ValueError as error:
            raise Outage(self._dialect.what, f"{self._dialect.what}: {error}") from None

    def _by(self, target: Target) -> list[Column]:
        """By what rows are spread over tasks."""
        from pyspark.sql import functions as f

        if not target.keys:
            return [_column(POSITION)]
        found = (self._dialect.spread(_column(n), kind, into) for n, kind, into in self._spread)
        return [each for each in found if each is not None] or [f.lit(0)]

    def _staged(self, rows: DataFrame) -> DataFrame:
        """The columns that are staged: those of the table, and what is needed of `HIDDEN`."""
        from pyspark.sql import functions as f

        dialect = self._dialect
        columns = [
            dialect.staged(_column(field.name), field.dataType).alias(field.name)
            for field in rows.schema.fields
            if field.name != HIDDEN
        ]
        columns += [
            f.col(f"{HIDDEN}.position").alias(POSITION),
            f.col(f"{HIDDEN}.line").alias(LINE),
            f.col(f"{HIDDEN}.sequence").alias(SEQUENCE),
        ]
        if self._writing.delete_when is not None:
            when = f.coalesce(f.expr(self._writing.delete_when), f.lit(False))
            columns.append(when.alias(DELETE))
        return rows.select(*columns)

    # -- before the first batch

    def _check_names(self, kinds: Mapping[str, DataType]) -> None:
        for name in self._writing.key:
            if name not in kinds:
                raise ValueError(
                    f"table {self._writing.table}: the key {name} is no column; there are "
                    f"{', '.join(kinds)}."
                )
        for name in OURS:
            if name in kinds:
                raise ValueError(
                    f"table {self._writing.table}: a column must not be called {name}."
                )

    def _create(self, kinds: Mapping[str, DataType]) -> str:
        columns = [
            f"{identifier(name)} {self._dialect.type_of(kind)}" for name, kind in kinds.items()
        ]
        if self._writing.mode == UPSERT:
            columns.append(f"primary key ({', '.join(map(identifier, self._writing.key))})")
        table = self._dialect.name(self._writing.table)
        return f"create table if not exists {table} ({', '.join(columns)})"

    def _fitting(self, kinds: Mapping[str, DataType], found: Mapping[str, Stored]) -> Target:
        missing = [name for name in kinds if name not in found]
        if missing:
            raise ValueError(
                f"table {self._writing.table} has no column {', '.join(missing)}; it has "
                f"{', '.join(found)}. Add it to the table, or leave it out in the transform."
            )
        keys = self._writing.key if self._writing.mode == UPSERT else ()
        return Target(
            table=self._dialect.name(self._writing.table),
            columns=tuple(
                (name, self._dialect.value(identifier(name), found[name])) for name in kinds
            ),
            keys=keys,
            compared=tuple(
                self._dialect.key(identifier(name), kinds[name], found[name]) for name in keys
            ),
            deletes=self._writing.delete_when is not None,
        )

    def _check_keys(self, session: Session, target: Target) -> None:
        """Let the database say whether the key is one, on a statement that writes nothing."""
        if not target.keys:
            return
        names = ", ".join(identifier(name) for name, _ in target.columns)
        keys = ", ".join(map(identifier, target.keys))
        session.execute(
            f"explain insert into {target.table} ({names}) select {names} from {target.table} "
            f"where 1 = 0 on conflict ({keys}) do nothing"
        )


def _kinds(schema: StructType) -> dict[str, DataType]:
    """The columns of the user, with their types."""
    return {field.name: field.dataType for field in schema.fields if field.name != HIDDEN}


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


OPTIONS: Final = (
    Option(
        "table",
        Kind.TEXT,
        "the table; `schema.table` for another schema",
        required=True,
        check=check_table,
    ),
    Option(
        "mode",
        Kind.TEXT,
        "insert: every row is a new one; upsert: a row replaces the one with the same key",
        default=INSERT,
        choices=(INSERT, UPSERT),
    ),
    Option("key", Kind.LIST, "the columns that identify a row, for upsert"),
    Option(
        "delete_when",
        Kind.TEXT,
        "SQL over the row's columns; where it is true, the row with this key is deleted",
    ),
    Option("create", Kind.FLAG, "make the table if it is not there", default=False),
)


def writing_of(options: Mapping[str, Any]) -> Writing:
    """The options that all databases have; `Mistake` if they do not fit together."""
    key = tuple(options["key"] or ())
    if options["mode"] == UPSERT and not key:
        raise Mistake("mode", "upsert needs the columns that identify a row: give key, too.")
    if options["mode"] == INSERT and key:
        raise Mistake("key", "insert looks at no key: leave key out, or give mode: upsert.")
    if options["delete_when"] is not None and not key:
        raise Mistake("delete_when", "deleting needs a key: give mode: upsert and key, too.")
    return Writing(
        table=options["table"],
        mode=options["mode"],
        key=key,
        delete_when=options["delete_when"],
        create=bool(options["create"]),
        tasks=options.get("tasks"),
    )
