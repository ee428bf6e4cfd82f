"""Tables of PostgreSQL as a source.

The ceiling. A transaction's `now()` is the moment it began, and its rows are seen when it commits.
So in the timestamp modes only rows older than every transaction that still runs are read: older
than the least `xact_start` of `pg_stat_activity`, less `delay`. A prepared transaction is in no
session any more, and PostgreSQL does not tell when it began. It cannot have begun before what was
the least `xact_start` at the last look at which it was not yet prepared: that is held for it until
it ends. One that was prepared before the very first look counts from the time of its PREPARE.

In mode incrementing an id is taken before its row is seen. The largest id that is visible is noted
together with the transactions that are writing; ids up to it are read once all of these have ended.

What neither catches: a row that is deleted; a timestamp that a client's clock has made; an id that
was taken with `nextval` before its transaction has written anything. Change data capture does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.databases import (
    Database,
    Missing,
    identifier,
    literal,
    open_postgres,
    place,
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

_MOMENTS: Final = ("timestamptz", "timestamp", "date")
_TEXTS: Final = ("text", "varchar", "bpchar", "name", "citext")
_LARGEST: Final = 38
_SCALE: Final = 18
"""Digits after the point of a `numeric` that does not say how many it has."""

_OTHERS: Final = "('autovacuum worker', 'autovacuum launcher', 'walsender', 'checkpointer')"
"""Processes whose transactions write no rows of users."""
_SEES: Final = (
    "pg_has_role(current_user, 'pg_read_all_stats', 'usage') as stats, "
    "current_user::text as me, pg_is_in_recovery() as standby"
)
"""What a session knows of those that write."""


@dataclass(frozen=True, slots=True)
class PostgresEngine:
    """PostgreSQL at an address (`table_plan.Engine`)."""

    dsn: str
    timezone: str | None = None

    @property
    def ties(self) -> bool:
        return True

    @property
    def typed(self) -> bool:
        return True

    def open(self) -> Database:
        database = open_postgres(self.dsn, application="ottla pipeline")
        database.execute("set datestyle = 'ISO'")
        if self.timezone is not None:
            database.execute(f"set timezone = {literal(self.timezone)}")
        return database

    def read(self, database: Database, sql: str, limit: int) -> pa.Table:
        return database.read(sql)

    # -- what there is

    def describe(self, database: Database, plan: Plan) -> Table:
        named = literal(identifier(*plan.table))
        found = database.read(
            "select a.attname as name, coalesce(b.typname, t.typname) as native, "
            "case when t.typtype = 'd' then t.typtypmod else a.atttypmod end as modifier, "
            "coalesce(b.typcategory, t.typcategory)::text as category, "
            "coalesce(array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum), -1)::int "
            "as place "
            "from pg_attribute a join pg_type t on t.oid = a.atttypid "
            "left join pg_type b on b.oid = nullif(t.typbasetype, 0) "
            "left join pg_index i on i.indrelid = a.attrelid and i.indisprimary "
            f"where a.attrelid = to_regclass({named}) and a.attnum > 0 and not a.attisdropped "
            "order by a.attnum"
        ).to_pylist()
        if not found:
            raise Missing(
                f"{database.where} has no table {plan.shown} that this user can see: create it, "
                "grant usage on its schema, or name another"
            )
        columns = tuple(
            _column(row["name"], row["native"], row["modifier"], row["category"]) for row in found
        )
        first = sorted((row["place"], row["name"]) for row in found if row["place"] >= 0)
        table = Table(columns, plan.key or tuple(name for _, name in first))
        for name in (*plan.columns, *plan.key):
            table.column(name)
        if plan.timestamp is not None:
            self._check_moment(plan, table.column(plan.timestamp))
        if plan.mode is not Mode.BULK:
            sees = database.read(f"select {_SEES}").to_pylist()[0]
            if sees["standby"]:
                raise ValueError(_of_a_standby(database, plan))
            self._check_sight(database, plan, sees)
        return table

    def _check_moment(self, plan: Plan, column: Column) -> None:
        if column.native not in _MOMENTS:
            raise ValueError(
                f"{plan.shown}.{column.name} is {column.native}, and mode {plan.mode.value} needs "
                "a timestamp: name another column"
            )

    def _check_sight(self, database: Database, plan: Plan, sees: Mapping[str, Any]) -> None:
        """Whether all that write are seen: asked with every look at them, since a right may be
        revoked, and a lost connection may lead to another server."""
        if sees["standby"]:
            raise Outage(database.where, _of_a_standby(database, plan))
        if plan.timestamp is not None and not sees["stats"]:
            raise Outage(
                database.where,
                f"{database.where}: {sees['me']} does not see when the transactions of others "
                f"began, and mode {plan.mode.value} would lose their rows: grant pg_read_all_stats "
                f"to {identifier(sees['me'])}",
            )

    # -- up to where

    def ceiling(
        self, database: Database, plan: Plan, table: Table, state: Any, end: Any
    ) -> Ceiling:
        if plan.mode is Mode.INCREMENTING:
            return self._id_ceiling(database, plan, table, state or {}, end)
        return self._moment_ceiling(database, plan, table, state or {}, end)

    def _moment_ceiling(
        self, database: Database, plan: Plan, table: Table, state: Mapping[str, Any], end: Any
    ) -> Ceiling:
        delay = f"interval '{plan.delay:f} seconds'"
        # One statement looks at sessions and prepared transactions, and the rows are read by a
        # later one: a transaction that has ended in between is only seen better.
        sessions = database.read(
            f"select (least(now(), min(xact_start)) - {delay})::text as active, {_SEES} "
            "from pg_stat_activity where datname = current_database() "
            f"and pid <> pg_backend_pid() and backend_type not in {_OTHERS}"
        ).to_pylist()[0]
        self._check_sight(database, plan, sessions)
        prepared = database.read(
            f"select transaction::text as id, (prepared - {delay})::text as at "
            "from pg_prepared_xacts where database = current_database()"
        ).to_pylist()
        before: Mapping[str, str] = state.get("prepared", {})
        held = {
            row["id"]: before.get(row["id"]) or state.get("active") or row["at"] for row in prepared
        }
        bounds = [sessions["active"], *held.values()]
        if end is not None:
            bounds.append(end)
        least = ", ".join(f"{literal(bound)}::timestamptz" for bound in bounds)
        kept = {"active": sessions["active"], **({"prepared": held} if held else {})}
        assert plan.timestamp is not None
        column = table.column(plan.timestamp)
        name = identifier(column.name)
        return Ceiling(f"{name} < least({least})::{column.native} and isfinite({name})", kept)

    def _id_ceiling(
        self, database: Database, plan: Plan, table: Table, state: Mapping[str, Any], end: Any
    ) -> Ceiling:
        largest, writers = self._writers(database, plan)
        column = table.column(plan.columns[0])
        if end is not None:
            if not writers.isdisjoint(end["writers"]):
                raise Outage(
                    database.where,
                    f"{database.where}: waits for transactions to end that were writing when this "
                    "run began: their rows may belong before others",
                )
            return Ceiling(self._up_to(column, end["largest"]), state)
        if not writers:
            return Ceiling(self._up_to(column, largest), {"released": largest})
        released, fence = state.get("released"), state.get("fence")
        if fence is None:
            fence = [largest, sorted(writers)]
        elif writers.isdisjoint(fence[1]):
            released, fence = fence[0], [largest, sorted(writers)]
        return Ceiling(self._up_to(column, released), {"released": released, "fence": fence})

    def _writers(self, database: Database, plan: Plan) -> tuple[str | None, set[int]]:
        """The largest id that is visible, and the transactions that are writing.

        These are told by the locks that they have on themselves, which anybody may see. A snapshot
        would not do: it leaves out all that are younger than the last one that has ended. The locks
        are looked at after the statement's snapshot was taken, so who has ended in between is not
        among them, and is visible to the statement that reads the rows.
        """
        name = identifier(plan.columns[0])
        found = database.read(
            f"select (select {name}::text from {identifier(*plan.table)} "
            f"where {name} is not null order by {name} desc limit 1) as largest, "
            "(select string_agg(l.transactionid::text, ',') from pg_locks l "
            "left join pg_stat_activity a on a.pid = l.pid "
            "left join pg_prepared_xacts p on p.transaction = l.transactionid "
            "where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted "
            "and coalesce(a.datname, p.database, current_database()) = current_database() "
            f") as writers, {_SEES}"
        ).to_pylist()[0]
        self._check_sight(database, plan, found)
        return found["largest"], {int(word) for word in (found["writers"] or "").split(",") if word}

    def _up_to(self, column: Column, largest: str | None) -> str:
        if largest is None:
            return "false"
        return f"{identifier(column.name)} <= {self.literal(column, largest)}"

    def end(self, database: Database, plan: Plan, table: Table) -> Any:
        if plan.mode is Mode.INCREMENTING:
            largest, writers = self._writers(database, plan)
            return {"largest": largest, "writers": sorted(writers)}
        moment = database.value("select clock_timestamp()::text")
        time.sleep(plan.delay)  # so that rows of this moment are as old as they must be
        return moment

    def newest(self, database: Database, plan: Plan, table: Table) -> list[Any] | None:
        if plan.mode is Mode.INCREMENTING:
            largest, _ = self._writers(database, plan)
            return None if largest is None else [largest]
        return [database.value("select clock_timestamp()::text")]

    # -- words of SQL

    def value_sql(self, column: Column) -> str:
        return f"{identifier(column.name)}::text"

    def value(self, text: str) -> Any:
        return text

    def literal(self, column: Column, value: Any) -> str:
        return f"{literal(str(value))}::{identifier(column.native)}"

    def moment_sql(self, timestamp: str) -> str:
        return (
            f"case when isfinite({timestamp}) "
            f"then (extract(epoch from {timestamp}) * 1000000)::int8 end"
        )

    def row_sql(self, table: Table) -> str:
        texts = ", ".join(f"{identifier(each.name)}::text" for each in table.columns)
        return f"md5(row({texts})::text)"

    def joined_sql(self, texts: Iterable[str]) -> str:
        return " || chr(31) || ".join(texts)


def _of_a_standby(database: Database, plan: Plan) -> str:
    return (
        f"{database.where} is a standby, which does not know the transactions of its primary: "
        f"mode {plan.mode.value} would lose rows. Read from the primary"
    )


def _column(name: str, native: str, modifier: int, category: str) -> Column:
    """How a column is read: as it is where Spark has its type, as text else."""
    import pyarrow as pa

    sql = identifier(name)
    plain: dict[str, pa.DataType] = {
        "int2": pa.int16(),
        "int4": pa.int32(),
        "int8": pa.int64(),
        "float4": pa.float32(),
        "float8": pa.float64(),
        "bool": pa.bool_(),
        "bytea": pa.binary(),
        **dict.fromkeys(_TEXTS, pa.string()),
    }
    moments: dict[str, pa.DataType] = {
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
    }
    if native in plain:
        select = f"{sql}::text" if native in ("name", "citext", "bpchar") else sql
        return Column(name, select, plain[native], native)
    shown = literal(f"{name} is ")
    if native in moments:
        return Column(
            name,
            f"case when isfinite({sql}) then {sql} end",
            moments[native],
            native,
            f"case when not isfinite({sql}) then {shown} || {sql}::text end",
        )
    if native == "numeric":
        return _numeric(name, modifier)
    if category == "A":
        return Column(name, f"to_json({sql})::text", pa.string(), native)
    return Column(name, f"{sql}::text", pa.string(), native)


def _numeric(name: str, modifier: int) -> Column:
    import pyarrow as pa

    sql = identifier(name)
    shown = literal(f"{name} is ")
    precision, scale = _LARGEST, _SCALE
    if modifier >= 4:
        precision = (modifier - 4) >> 16
        scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    if precision > _LARGEST or scale < 0 or scale > precision:
        return Column(name, f"{sql}::text", pa.string(), "numeric")
    fits = f"{sql} not in ('NaN', 'Infinity', '-Infinity')"
    if modifier < 4:
        fits += f" and abs({sql}) < 1e{precision - scale} and scale(trim_scale({sql})) <= {scale}"
    return Column(
        name,
        f"case when {fits} then {sql}::text end",
        pa.decimal128(precision, scale),
        "numeric",
        f"case when not ({fits}) then {shown} || {sql}::text end",
    )


def _make(values: Mapping[str, Any]) -> TableSource:
    made = plan(values)
    return TableSource(
        PostgresEngine(values["dsn"], values["timezone"]),
        made,
        f"PostgreSQL at {place(values['dsn'])}",
    )


SOURCE: Final = Declaration(
    "postgres",
    "rows of a table of PostgreSQL",
    (
        Option(
            "dsn",
            Kind.TEXT,
            "the database, as every client of PostgreSQL takes it: "
            "`postgresql://user:password@host:5432/name`, or `host=… dbname=…`",
            required=True,
            secret=True,
            place=place,
        ),
        *OPTIONS,
        Option(
            "timezone",
            Kind.TEXT,
            "whose time a `timestamp` without a time zone is; the database's when not given",
        ),
    ),
    _make,
)
