"""One task's rows into a table of a database, in one transaction with the task's slot.

    begin
    slot            this (pipeline, sink, task) is at this batch; if it was before, nothing to do
    stage           the rows, as they come, into a temporary table of this connection
    apply           from there into the table, in one statement for all of them
    commit

The slot is locked first, so that a second copy of the task, or one of a driver that was believed
dead, waits for the first and then finds its work done. Rows and slot are there together or not at
all.

When the database does not take a row, the statement fails as a whole and does not say for which.
The staged rows are then applied in halves, each behind a savepoint, until the rows that fail are
alone; the transaction is rolled back, and they are named. The work is the database's, and nothing
is sent twice.

What differs between databases is behind `Session`; the SQL here is what both know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ottla.pipelines.connectors.contract import RefusedRow, RowsRefused
from ottla.pipelines.connectors.databases import identifier
from ottla.pipelines.connectors.sinks import slots
from ottla.pipelines.connectors.sinks.tasks import Written
from ottla.pipelines.points import Point, reach

STAGED: Final = "ottla_staged"
POSITION: Final = "_ottla_position"
LINE: Final = "_ottla_line"
SEQUENCE: Final = "_ottla_sequence"
DELETE: Final = "_ottla_delete"
ROW: Final = "_ottla_row"
OURS: Final = (POSITION, LINE, SEQUENCE, DELETE, ROW)

MOST_NAMED: Final = 1000
"""Rows that one task names before it gives up: a pipeline that goes on tries the rest again."""


class RowError(Exception):
    """The database does not take one of the rows that it was just given."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Session(Protocol):
    """A connection. Methods raise `RowError` if a row is to blame, and `Outage` if nobody is."""

    def execute(self, sql: str) -> None:
        """Run a statement."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query, or a statement that returns rows."""

    def begin(self) -> None:
        """Begin a transaction."""

    def create_staged(self, schema: Any) -> None:
        """Make `STAGED` for rows of this `pyarrow.Schema`; it goes with the transaction."""

    def stage(self, batch: Any) -> None:
        """Append a `pyarrow.RecordBatch` to `STAGED`."""

    def check_now(self) -> None:
        """Check what would else be checked at the commit."""

    def close(self) -> None:
        """Whatever was not committed is rolled back."""


@dataclass(frozen=True, slots=True)
class Target:
    """The table, as the statements need it.

    table     its name, quoted
    columns   their names and what is inserted into them, both quoted: ("id", 'cast("id" as int)')
    keys      names of the columns that identify a row; empty: rows are only inserted
    compared  expressions of the staged columns, one for each of `keys`: as the table will have them
    deletes   whether rows may be tombstones
    """

    table: str
    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]
    compared: tuple[str, ...]
    deletes: bool

    def insert(self, span: str) -> str:
        names = ", ".join(identifier(name) for name, _ in self.columns)
        values = ", ".join(value for _, value in self.columns)
        where = f"{span} and not {DELETE}" if self.deletes else span
        start = f"insert into {self.table} ({names}) select {values} from {STAGED} where {where}"
        if not self.keys:
            return start
        keys = ", ".join(map(identifier, self.keys))
        others = [identifier(name) for name, _ in self.columns if name not in self.keys]
        changes = ", ".join(f"{name} = excluded.{name}" for name in others)
        action = f"do update set {changes}" if others else "do nothing"
        return f"{start} on conflict ({keys}) {action}"

    def delete(self, span: str) -> str:
        names = ", ".join(map(identifier, self.keys))
        chosen = f"select {', '.join(self.compared)} from {STAGED} where {span} and {DELETE}"
        return f"delete from {self.table} where ({names}) in ({chosen})"

    def superseded(self) -> str:
        """Remove all but the last row of each key, since a statement may touch a row only once."""
        keys = ", ".join(self.compared)
        order = f"{LINE} desc, {SEQUENCE} desc, {ROW} desc"
        ranked = f"row_number() over (partition by {keys} order by {order}) as rank"
        older = f"select {ROW} from (select {ROW}, {ranked} from {STAGED}) as r where rank > 1"
        return f"delete from {STAGED} where {ROW} in ({older})"

    def comparing(self, span: str) -> str:
        """Compute the keys of some rows, which fails where a value is none of its column."""
        counted = ", ".join(f"count({key})" for key in self.compared)
        return f"select {counted} from {STAGED} where {span}"

    def keyless(self) -> str:
        missing = " or ".join(f"{identifier(key)} is null" for key in self.keys)
        return f"select {POSITION} from {STAGED} where {missing} order by {ROW} limit {MOST_NAMED}"


@dataclass(frozen=True, slots=True)
class Transact:
    """A task's work; `keep` is False for a probe, which is rolled back."""

    connect: Callable[[], Session]
    target: Target
    slot: slots.Slot
    keep: bool = True

    def __call__(self, task: int, batches: Iterator[Any]) -> Written:
        # Not before there is a row: a batch of few rows has many empty tasks.
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return Written(0)
        session = self.connect()
        try:
            session.begin()
            if not slots.take(session, self.slot, task):
                session.execute("rollback")
                return Written(0, skipped=True)
            reach(Point.BEFORE_WRITE)
            count = self._stage(session, _chain(first, batches))
            self._apply(session, count)
            reach(Point.AFTER_WRITE)
            if not self.keep:
                session.execute("rollback")
                return Written(count)
            reach(Point.BEFORE_COMMIT)
            session.execute("commit")
            reach(Point.AFTER_COMMIT)
            return Written(count)
        finally:
            session.close()

    def _stage(self, session: Session, batches: Iterator[Any]) -> int:
        count = 0
        for batch in batches:
            numbered = _numbered(batch, count)
            if not count:
                session.create_staged(numbered.schema)

            def put(low: int, high: int, numbered: Any = numbered) -> None:
                session.stage(numbered.slice(low, high - low))

            def where(at: int, numbered: Any = numbered) -> str:
                return str(numbered.column(POSITION)[at].as_py())

            refused = _tried(session, 0, batch.num_rows, put, where)
            if refused:
                raise RowsRefused(refused)
            count += batch.num_rows
        return count

    def _apply(self, session: Session, count: int) -> None:
        if self.target.keys:
            keyless = session.rows(self.target.keyless())
            if keyless:
                why = f"a column of its key is null: {', '.join(self.target.keys)}"
                raise RowsRefused([RefusedRow(row[0], "NullKey", why) for row in keyless])
            self._keep_last(session, count)

        def put(low: int, high: int) -> None:
            span = _span(low, high)
            if self.target.deletes:
                session.execute(self.target.delete(span))
            session.execute(self.target.insert(span))
            session.check_now()

        refused = _tried(session, 0, count, put, lambda at: _position(session, at))
        if refused:
            raise RowsRefused(refused)

    def _keep_last(self, session: Session, count: int) -> None:
        """Of each key the last row; a value that can be no key is refused."""
        try:
            with _savepoint(session):
                session.execute(self.target.superseded())
        except RowError:

            def compare(low: int, high: int) -> None:
                session.rows(self.target.comparing(_span(low, high)))

            refused = _tried(session, 0, count, compare, lambda at: _position(session, at))
            if not refused:
                raise
            raise RowsRefused(refused) from None


def _span(low: int, high: int) -> str:
    return f"{ROW} >= {low} and {ROW} < {high}"


def _position(session: Session, at: int) -> str:
    return str(session.rows(f"select {POSITION} from {STAGED} where {ROW} = {at}")[0][0])


def _tried(
    session: Session,
    low: int,
    high: int,
    put: Callable[[int, int], None],
    where: Callable[[int], str],
) -> list[RefusedRow]:
    """`put` the rows from `low` to `high`; those that cannot be, in their order."""
    refused: list[RefusedRow] = []
    waiting = [(low, high)]
    while waiting and len(refused) < MOST_NAMED:
        start, end = waiting.pop()
        try:
            with _savepoint(session):
                put(start, end)
        except RowError as error:
            if end - start == 1:
                refused.append(RefusedRow(where(start), error.kind, str(error)))
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
    return refused


@contextmanager
def _savepoint(session: Session) -> Iterator[None]:
    session.execute("savepoint ottla")
    try:
        yield
    except RowError:
        session.execute("rollback to savepoint ottla")
        raise
    finally:
        # After an outage there may be nobody to tell.
        with suppress(Exception):
            session.execute("release savepoint ottla")


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from (batch for batch in rest if batch.num_rows)


def _numbered(batch: Any, start: int) -> Any:
    """With a column that counts the rows of the task."""
    import pyarrow as pa

    numbers = pa.array(range(start, start + batch.num_rows), pa.int64())
    return batch.append_column(ROW, numbers)
