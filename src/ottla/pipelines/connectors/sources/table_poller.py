"""Asks a database for rows that are new, and leaves out those that were given already.

What the ceiling of a database cannot know (`table_plan.Engine`), `overlap` catches: the stretch
before the cursor is read again, and what was given already (`seen.Seen`) is left out.

A cursor is JSON:

    last    the values of the ordering columns of the last row, as the database writes them; empty
            for a pipeline that began with what follows while there was no row
    seen    the rows of the overlap that were given already
    state   what the engine's ceiling wants to remember
    load    of bulk: how many times the table was read, and when it was read last
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.databases import Database, identifier
from ottla.pipelines.connectors.sources import seen as memory
from ottla.pipelines.connectors.sources.seen import Seen
from ottla.pipelines.connectors.sources.staged import ERROR, Found
from ottla.pipelines.connectors.sources.table_plan import Engine, Mode, Plan, Table

if TYPE_CHECKING:
    import pyarrow as pa

_LAST: Final = "_ottla_last_"
_WHO: Final = "_ottla_who"
_WHEN: Final = "_ottla_when"


class TablePoller:
    """Asks a database for new rows (`staged.Poller`)."""

    def __init__(self, engine: Engine, plan: Plan, table: Table) -> None:
        self._engine = engine
        self._plan = plan
        self._table = table
        self._database: Database | None = None

    @property
    def every(self) -> float:
        return self._plan.every

    def end(self) -> Any:
        if self._plan.mode is Mode.BULK:
            return time.time()
        database = self._open()
        with _dropping(self):
            return self._engine.end(database, self._plan, self._table)

    def poll(self, cursor: Any, end: Any) -> Found | None:
        cursor = cursor or {}
        if self._plan.mode is Mode.BULK:
            return self._bulk(cursor, end)
        with _dropping(self):
            return self._ordered(self._open(), cursor, end)

    def some(self, count: int) -> pa.Table:
        """A few rows, whichever they are."""
        sql = f"select {self._selected()} from {self._named()} limit {count}"
        return self._typed(self._engine.read(self._open(), sql, count))

    # -- the whole table

    def _bulk(self, cursor: Mapping[str, Any], end: float | None) -> Found | None:
        number, at = cursor.get("load", (0, None))
        now = time.time()
        due = now - self._plan.every if end is None else end
        if at is not None and at >= due:
            return None
        return Found(self._whole(), {"load": [number + 1, max(now, end or 0.0)]})

    def _whole(self) -> Iterator[pa.Table]:
        import pyarrow as pa

        with _dropping(self):
            database = self._open()
            if not self._engine.ties:
                # SQLite finds out a type from the rows of one batch, so its tables come in pages.
                yield from self._pages(database)
                return
            kept: list[pa.RecordBatch] = []
            count = 0
            with database.stream(f"select {self._selected()} from {self._named()}") as batches:
                for batch in batches:
                    kept.append(batch)
                    count += batch.num_rows
                    if count >= self._plan.max_rows:
                        yield self._typed(pa.Table.from_batches(kept))
                        kept, count = [], 0
            if kept:
                yield self._typed(pa.Table.from_batches(kept))

    def _pages(self, database: Database) -> Iterator[pa.Table]:
        limit = self._plan.max_rows
        with database.transaction():  # so that all pages are of one moment
            skipped = 0
            while True:
                page = self._engine.read(
                    database,
                    f"select {self._selected()} from {self._named()} "
                    f"limit {limit} offset {skipped}",
                    limit,
                )
                if page.num_rows:
                    yield self._typed(page)
                if page.num_rows < limit:
                    return
                skipped += limit

    # -- what is new

    def _ordered(self, database: Database, cursor: Mapping[str, Any], end: Any) -> Found | None:
        plan, engine = self._plan, self._engine
        ceiling = engine.ceiling(database, plan, self._table, cursor.get("state"), end)
        last: list[Any] | None = cursor.get("last")
        if last is None and plan.latest:
            last = engine.newest(database, plan, self._table)
            kept = {**cursor, "last": last or [], "state": ceiling.state}
            return Found((), kept, keep=True)
        seen = Seen.of(cursor.get("seen"))
        pieces: list[pa.Table] = []
        if last and plan.overlap:
            pieces.append(self._late(database, last, seen))
        # nothing was there when a pipeline began that starts with what follows: all is new
        after = self._after(last) if last else ""
        found = self._select(database, [after, ceiling.condition], limited=True)
        pieces.append(found)
        if found.num_rows:
            last = self._last(found)
        rows = _joined(pieces)
        if plan.overlap and rows.num_rows:
            assert plan.timestamp is not None
            seen = seen.with_rows(rows.column(_WHO).to_pylist(), rows.column(_WHEN).to_pylist())
            seen = seen.since(seen.newest - round(plan.overlap * 1e6))
            if len(seen.moments) > memory.MOST:
                raise ValueError(
                    f"{plan.shown} has more than {memory.MOST:,} rows within its overlap of "
                    f"{plan.overlap:g} s, too many to remember: give a shorter overlap",
                )
        then = {"last": last, "seen": seen.text(), "state": ceiling.state}
        kept = {name: value for name, value in then.items() if value is not None}
        more = found.num_rows >= plan.max_rows
        return Found((self._typed(rows),) if rows.num_rows else (), kept, more=more)

    def _late(self, database: Database, last: Sequence[Any], seen: Seen) -> pa.Table:
        """Rows of the overlap that were not given yet."""
        assert self._plan.timestamp is not None
        column = self._table.column(self._plan.timestamp)
        edge = self._engine.moment_sql(self._engine.literal(column, last[0]))
        moment = self._engine.moment_sql(identifier(column.name))
        back = round(self._plan.overlap * 1e6)
        rows = self._select(
            database,
            [f"({moment}) >= ({edge}) - {back}", f"not ({self._after(last)})"],
            limited=False,
        )
        import pyarrow as pa

        new = [not seen.has(who) for who in rows.column(_WHO).to_pylist()]
        return rows.filter(pa.array(new, pa.bool_()))

    def _select(self, database: Database, where: Sequence[str], *, limited: bool) -> pa.Table:
        plan, engine = self._plan, self._engine
        wanted = [self._selected()]
        for number, name in enumerate(self._order()):
            wanted.append(f"{engine.value_sql(self._table.column(name))} as {_LAST}{number}")
        if plan.overlap:
            assert plan.timestamp is not None
            wanted.append(f"{self._who()} as {_WHO}")
            wanted.append(f"{engine.moment_sql(identifier(plan.timestamp))} as {_WHEN}")
        present = [f"{identifier(name)} is not null" for name in self._order()]
        conditions = " and ".join(f"({each})" for each in [*where, *present] if each)
        order = ", ".join(identifier(name) for name in self._order())
        limit = ""
        if limited:
            limit = f" limit {plan.max_rows}"
            if not self._tie() and plan.mode is Mode.TIMESTAMP and engine.ties:
                limit = f" fetch first {plan.max_rows} rows with ties"
        return engine.read(
            database,
            f"select {', '.join(wanted)} from {self._named()} where {conditions} "
            f"order by {order}{limit}",
            plan.max_rows if limited else memory.MOST * 2,
        )

    def _order(self) -> tuple[str, ...]:
        """The ordering columns: those of the cursor."""
        plan = self._plan
        if plan.mode is Mode.INCREMENTING:
            return plan.columns
        assert plan.timestamp is not None
        return (plan.timestamp, *self._tie())

    def _tie(self) -> tuple[str, ...]:
        if self._plan.mode is Mode.BOTH:
            assert self._plan.increment is not None
            return (self._plan.increment,)
        return tuple(name for name in self._table.key if name != self._plan.timestamp)

    def _after(self, last: Sequence[Any]) -> str:
        names = self._order()[: len(last)]
        columns = [self._table.column(name) for name in names]
        values = [
            self._engine.literal(column, value) for column, value in zip(columns, last, strict=True)
        ]
        left = ", ".join(identifier(name) for name in names)
        return f"({left}) > ({', '.join(values)})"

    def _who(self) -> str:
        names = [*self._order(), *(n for n in self._table.key if n not in self._order())]
        if not self._tie() and not self._table.key:
            return self._engine.row_sql(self._table)
        texts = (self._engine.value_sql(self._table.column(name)) for name in names)
        # a null is told from every text: it would make all of it null
        return self._engine.joined_sql(f"coalesce('=' || {text}, '')" for text in texts)

    def _last(self, rows: pa.Table) -> list[Any]:
        count = rows.num_rows - 1
        return [
            self._engine.value(rows.column(f"{_LAST}{number}")[count].as_py())
            for number in range(len(self._order()))
        ]

    # -- both

    def _named(self) -> str:
        return identifier(*self._plan.table)

    def _selected(self) -> str:
        wanted = [f"{each.select} as {identifier(each.name)}" for each in self._table.columns]
        faults = [each.fault for each in self._table.columns if each.fault]
        if faults:
            joined = " || ".join(f"coalesce(({fault}) || '; ', '')" for fault in faults)
            wanted.append(f"nullif(rtrim({joined}, '; '), '') as {ERROR}")
        return ", ".join(wanted)

    def _typed(self, rows: pa.Table) -> pa.Table:
        """The rows in the columns' own types, without what was only for us."""
        import pyarrow as pa

        names = [each.name for each in self._table.columns]
        if self._engine.typed:
            self._check_types(rows.schema)
        arrays = [_cast(rows.column(each.name), each.type) for each in self._table.columns]
        if ERROR in rows.column_names:
            names.append(ERROR)
            arrays.append(_cast(rows.column(ERROR), pa.string()))
        return pa.table(arrays, names=names)

    def _check_types(self, found: pa.Schema) -> None:
        """A value of another type than a column had at the start may fit, and be another then: a
        time in a column of dates."""
        import pyarrow as pa

        for column in self._table.columns:
            as_text = pa.types.is_decimal(column.type)
            expected = pa.string() if as_text else column.type
            if _stored(found.field(column.name).type) != expected:
                raise ValueError(
                    f"the column {column.name} of {self._plan.shown} has another type than it had "
                    f"when the pipeline started, {column.native}: start the pipeline again, and it "
                    "goes on with the type that the column has now"
                )

    def _open(self) -> Database:
        if self._database is None:
            self._database = self._engine.open()
        return self._database

    def drop(self) -> None:
        """Connect anew for the next question."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_database": None}


class _dropping:  # noqa: N801 - a word of the `with` statement
    """A connection on which something has failed is not used again."""

    def __init__(self, poller: TablePoller) -> None:
        self._poller = poller

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._poller.drop()


def _stored(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa

    if column.type != _stored(column.type):
        column = column.cast(_stored(column.type))
    if column.type == wanted:
        return column
    if column.null_count == len(column):  # a type that was guessed from nothing
        return pa.chunked_array([pa.nulls(len(column), wanted)])
    return column.cast(wanted)


def _joined(pieces: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    filled = [piece for piece in pieces if piece.num_rows] or pieces[-1:]
    return pa.concat_tables(filled, promote_options="permissive")
