"""A connection to PostgreSQL for one transaction.

The driver's own transactions refuse every statement after one has failed, savepoint or not. So it
is left in autocommit, where it does not look, and `begin`, `savepoint` and `commit` are statements
like others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.databases import DatabaseError, Missing, open_postgres
from ottla.pipelines.connectors.sinks.transaction import STAGED, RowError

_ROW: Final = ("22", "23", "44", "54", "P0001")
"""Classes of SQLSTATE that are about a value: data, constraints, check options, limits of a row;
and what a trigger raises."""


class PostgresSession:
    """One connection."""

    def __init__(self, dsn: str) -> None:
        self._database = open_postgres(dsn)

    def execute(self, sql: str) -> None:
        with self._judged():
            self._database.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self._judged():
            found = self._database.read(sql)
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def begin(self) -> None:
        # Whoever waits for a slot must see what the one before has left.
        self.execute("begin isolation level read committed")

    def create_staged(self, schema: Any) -> None:
        with self._judged():
            self._database.ingest(STAGED, schema.empty_table(), mode="create", temporary=True)

    def stage(self, batch: Any) -> None:
        try:
            with self._judged():
                self._database.ingest(STAGED, batch, temporary=True)
        except DatabaseError as error:
            # What the driver itself cannot put into PostgreSQL's form has no code.
            if error.sqlstate is None:
                raise RowError(type(error).__name__, str(error)) from None
            raise

    def check_now(self) -> None:
        self.execute("set constraints all immediate")

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except Missing as error:
            sentence = f"{error}; what was there when the pipeline began is gone."
            raise Outage(self._database.where, sentence) from None
        except DatabaseError as error:
            if (error.sqlstate or "").startswith(_ROW):
                raise RowError(str(error.sqlstate), str(error)) from None
            raise
