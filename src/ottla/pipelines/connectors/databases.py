"""PostgreSQL and SQLite, through ADBC: rows go in and out as Arrow. The one door to these drivers.

    with open_postgres(dsn) as database:
        table = database.read("select 1 as one")           # a pyarrow.Table
        with database.transaction():                       # committed at the end of the block
            database.execute("delete from t where id = $1", [5])
            database.ingest("t", table)

What goes wrong comes as one of three exceptions of ours, never as the driver's:

    Outage           nobody is to blame: refused, cut off, full, locked, not allowed any more
    Missing          a table or column is not there
    DatabaseError    everything else; `sqlstate` is PostgreSQL's five letters, or None

No text that comes from here has a password in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, unquote

import adbc_driver_manager as adbc
import pyarrow as pa

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.option import Mistake

_PORTS: Final = re.compile(r"((\[[^\]]*\]|[^:,\[\]]*)(:\d*)?(,|$))*")
"""Hosts, each with a port or without."""

CONNECT_SECONDS: Final = 10
"""How long a connection to PostgreSQL may take to come about, unless the address says."""

_PATIENCE: Final = {
    "connect_timeout": str(CONNECT_SECONDS),
    # A machine that has vanished without a word is noticed within a minute.
    "tcp_user_timeout": "30000",
    "keepalives_idle": "30",
}
_NAME: Final = re.compile(r'"(?:[^"]|"")+"|[^".]+')
_TABLE: Final = re.compile(rf"(?:{_NAME.pattern})(?:\.(?:{_NAME.pattern}))?")
_LOCKED_MS: Final = 5_000
"""How long SQLite waits for another writer before it says that the database is locked."""

_OUTAGES: Final = (
    "08",  # connection
    "28",  # who one is
    "53",  # no disk, memory or connections left
    "57",  # shut down, crashed, cancelled
    "58",  # the system's own errors
    "40001",  # could not serialize
    "40P01",  # deadlock
    "55P03",  # locked
    "25006",  # read only: a failover has happened
    "42501",  # not allowed
)
_MISSING: Final = ("42P01", "42703", "3F000", "42883")
_SQLITE_OUTAGE: Final = re.compile(
    r"database is locked|table is locked|disk is full|disk I/O error|readonly database"
    r"|unable to open|failed to open|failed to allocate|permission denied",
    re.IGNORECASE,
)
_SQLITE_MISSING: Final = re.compile(r"no such (table|column)|has no column", re.IGNORECASE)


class DatabaseError(Exception):
    """What a database has refused; `sqlstate` is PostgreSQL's code of it."""

    def __init__(self, sentence: str, sqlstate: str | None = None) -> None:
        super().__init__(sentence)
        self.sqlstate = sqlstate

    def __reduce__(self) -> tuple[type[DatabaseError], tuple[str, str | None]]:
        return type(self), (str(self), self.sqlstate)


class Missing(DatabaseError):
    """A table, schema or column that is not there."""


class Database:
    """One connection; for one thread.

    where   the database as a message names it: "PostgreSQL at 127.0.0.1:5432/shop"
    """

    def __init__(self, where: str, connection: Any, secrets: Sequence[str] = ()) -> None:
        self.where = where
        self._connection = connection
        self._secrets = tuple(secrets)

    # -- reading

    def read(self, sql: str, *, rows_at_once: int | None = None) -> pa.Table:
        """All rows of a query.

        rows_at_once   of SQLite: over how many rows the type of a column is found out
        """
        with self._cursor() as cursor:
            if rows_at_once is not None:
                cursor.adbc_statement.set_options(
                    **{"adbc.sqlite.query.batch_rows": str(rows_at_once)}
                )
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    @contextmanager
    def stream(self, sql: str) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows of a query as they come, within the block."""
        with self._cursor() as cursor:
            cursor.execute(sql)
            yield self._guarded(cursor.fetch_record_batch())

    def value(self, sql: str) -> Any:
        """The first column of a query's only row; None if there is no row."""
        found = self.read(sql)
        return found.column(0)[0].as_py() if found.num_rows else None

    # -- writing

    def execute(self, sql: str, parameters: Sequence[object] | None = None) -> None:
        """Run one statement."""
        with self._cursor() as cursor:
            # not execute(): a statement with parameters runs there only as its rows are fetched
            cursor.executemany(sql, None if parameters is None else [tuple(parameters)])

    def execute_many(self, sql: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Run one statement for each row, whose columns are its parameters in order."""
        with self._cursor() as cursor:
            cursor.executemany(sql, rows)

    def ingest(
        self,
        table: str,
        rows: pa.RecordBatch | pa.Table | pa.RecordBatchReader,
        *,
        mode: str = "append",
        schema: str | None = None,
        temporary: bool = False,
    ) -> None:
        """Write rows into a table by their columns' names, the fastest way there is.

        mode   append, create, create_append, replace
        """
        more: dict[str, Any] = {"temporary": True} if temporary else {}
        if schema is not None:
            more["db_schema_name"] = schema
        with self._cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode=mode, **more)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements of the block or none: rolled back if it raises."""
        with self._told():
            self._connection.adbc_connection.set_autocommit(False)
        try:
            try:
                yield
            except BaseException:
                self._give_up()
                raise
            with self._told():
                self._connection.adbc_connection.commit()
        finally:
            self._leave_transaction()

    def _give_up(self) -> None:
        try:
            self._connection.adbc_connection.rollback()
        except adbc.Error:
            pass  # the connection is gone, and the transaction with it

    def _leave_transaction(self) -> None:
        try:
            self._connection.adbc_connection.set_autocommit(True)
        except adbc.Error:
            pass  # the next statement says what is wrong with the connection

    # -- the connection

    def close(self) -> None:
        try:
            self._connection.close()
        except adbc.Error:
            pass  # it is gone already

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._told():
            cursor = self._connection.cursor()
            try:
                yield cursor
            finally:
                try:
                    cursor.close()
                except adbc.Error:
                    pass  # what has happened before says more

    def _guarded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._told():
            yield from batches

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except adbc.Error as error:
            raise failure(self.where, error, self._secrets) from None
        except OSError as error:
            # What fails while rows are on their way comes through Arrow, as text.
            raise failure(self.where, error, self._secrets) from None


def open_postgres(dsn: str, *, application: str = "ottla") -> Database:
    """Connect. `dsn` is a URI or `name=value` pairs, as every client of PostgreSQL takes them."""
    from adbc_driver_postgresql import dbapi

    where = f"PostgreSQL at {place(dsn)}"
    secrets = passwords(dsn)
    return _connected(
        where, lambda: dbapi.connect(_patient(dsn, application), autocommit=True), secrets
    )


def open_sqlite(path: str | Path, *, create: bool = False) -> Database:
    """Open a file. Without `create` it has to be there, and is only read."""
    from adbc_driver_sqlite import dbapi

    where = f"SQLite in {path}"
    if not create and not Path(path).exists():
        raise Outage(where, f"{where}: there is no such file")
    mode = "rwc" if create else "ro"
    uri = f"file:{quote(str(Path(path).absolute()))}?mode={mode}"
    database = _connected(where, lambda: dbapi.connect(uri, autocommit=True), ())
    database.execute(f"pragma busy_timeout = {_LOCKED_MS}")
    return database


def _connected(where: str, connect: Callable[[], Any], secrets: Sequence[str]) -> Database:
    try:
        return Database(where, connect(), secrets)
    except adbc.Error as error:
        # PostgreSQL says why it lets nobody in without a code; whatever it is, it may pass.
        raise Outage(where, f"{where}: {_plain(str(error), secrets)}") from None


# -- names and values in SQL


def table_name(text: str) -> tuple[str, ...]:
    """`table` or `schema.table` as an option has it; ValueError if it is neither.

    As in SQL, a name in double quotes may hold anything, a quote twice. Capital letters count
    without quotes, too.
    """
    if _TABLE.fullmatch(text) is None:
        raise ValueError(
            "this is no name of a table: table, or schema.table. A name with a dot or a quote in "
            'it is written as in SQL: "my.table", "my""table"'
        )
    names = (found[0] for found in _NAME.finditer(text))
    return tuple(name[1:-1].replace('""', '"') if name.startswith('"') else name for name in names)


def check_table(text: str) -> None:
    """The same, for what only has to be right."""
    table_name(text)


def check_main(text: str) -> None:
    """`Mistake` for a table in a schema that a SQLite file has not: all but `main`.

    `temp` is one of each connection: what is made there is gone for the next.
    """
    *schema, _ = table_name(text)
    if schema and schema[0].lower() != "main":
        raise Mistake(
            "table",
            "a SQLite file has no schema but main; a name with a dot in it is written in double "
            'quotes: "my.table"',
        )


def identifier(*names: str) -> str:
    """A name as SQL takes it whatever is in it; several are joined by dots."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(value: str | int | float | None) -> str:
    """A value as SQL takes it."""
    if value is None:
        return "null"
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a text with a zero byte is nothing that SQL can hold")
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


# -- what goes wrong


def failure(where: str, error: Exception, secrets: Sequence[str] = ()) -> Exception:
    """The driver's exception as ours."""
    sentence = f"{where}: {_plain(str(error), secrets)}"
    code: str | None = getattr(error, "sqlstate", None) or _code_within(str(error))
    if code is not None:
        if code.startswith(_OUTAGES):
            return Outage(where, sentence)
        return (Missing if code in _MISSING else DatabaseError)(sentence, code)
    if _SQLITE_MISSING.search(sentence):
        return Missing(sentence)
    gone = getattr(error, "status_code", None) in (
        adbc.AdbcStatusCode.IO,
        adbc.AdbcStatusCode.TIMEOUT,
        adbc.AdbcStatusCode.CANCELLED,
    )
    if gone or isinstance(error, OSError) or _SQLITE_OUTAGE.search(sentence):
        return Outage(where, sentence)
    return DatabaseError(sentence)


def _code_within(text: str) -> str | None:
    found = re.search(r"SQLSTATE: ([0-9A-Z]{5})", text)
    return found[1] if found and found[1] != "00000" else None


_NOISE: Final = re.compile(
    r"^[A-Z_]+: |\[(?:libpq|SQLite)\] |could not begin COPY: |\bERROR: +|\bFATAL: +"
    r"|\n+(?:Query was|query):.*$|\nLINE \d+:.*$|\. SQLSTATE: \w+$",
    re.DOTALL,
)


def _plain(text: str, secrets: Sequence[str]) -> str:
    """The database's own words, on one line, without the query and without a password."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return " ".join(_NOISE.sub("", text).split())


# -- addresses of PostgreSQL


def place(dsn: str) -> str:
    """Host, port and database: what may be printed of an address."""
    if _is_uri(dsn):
        _, rest, _ = _split(dsn)
        # whoever has not encoded an @ or / of a password has it before the last @
        rest = rest.rpartition("@")[2]
        host, slash, name = rest.partition("/")
        if not _PORTS.fullmatch(host):
            return "an address that cannot be read"
        return unquote((host or "the local socket") + (slash + name).rstrip("/"))
    words = dict(_pairs(dsn))
    host = words.get("host") or words.get("hostaddr") or "the local socket"
    port = f":{words['port']}" if "port" in words else ""
    name = f"/{words['dbname']}" if "dbname" in words else ""
    return host + port + name


def passwords(dsn: str) -> tuple[str, ...]:
    """What of an address is never printed, as it is written and as it is meant."""
    found: list[str] = []
    if _is_uri(dsn):
        user, rest, parameters = _split(dsn)
        if ":" in user:
            found.append(user.partition(":")[2])
        found += re.findall(r"[?&](?:ssl)?password=([^&]*)", "?" + parameters)
        whole = dsn.partition("://")[2].partition(":")[2]
        if "@" in rest or ("@" in parameters and not _PORTS.fullmatch(rest.partition("/")[0])):
            # not encoded as it must be: libpq takes parts of it for something else, and prints them
            written = whole.rpartition("@")[0]
            found += [written, *re.split("[/?@#&=]", written)]
    else:
        found += [value for name, value in _pairs(dsn) if name in ("password", "sslpassword")]
    return tuple(dict.fromkeys(each for word in found if word for each in (word, unquote(word))))


def _patient(dsn: str, application: str) -> str:
    """The address with what keeps a dead server from being waited for without end."""
    more = {**_PATIENCE, "fallback_application_name": application}
    missing = {name: value for name, value in more.items() if name not in dsn}
    if _is_uri(dsn):
        joint = "&" if _split(dsn)[2] else "?"
        rest = "&".join(f"{name}={quote(value)}" for name, value in missing.items())
        return dsn + joint + rest if rest else dsn
    words = (
        "{}='{}'".format(name, value.replace("\\", "\\\\").replace("'", "\\'"))
        for name, value in missing.items()
    )
    return " ".join([dsn, *words])


def _split(uri: str) -> tuple[str, str, str]:
    """User with password, host with database, and parameters, by the rules of libpq.

    A user ends at the first @, unless there is a / before it; so a password may hold ? and #.
    """
    rest = uri.partition("://")[2]
    user = ""
    ends = re.search("[@/]", rest)
    if ends is not None and ends[0] == "@":
        user, rest = rest[: ends.start()], rest[ends.end() :]
    rest, _, parameters = rest.partition("?")
    return user, rest, parameters


def _is_uri(dsn: str) -> bool:
    return dsn.startswith(("postgresql://", "postgres://"))


def _pairs(dsn: str) -> list[tuple[str, str]]:
    found = re.findall(r"(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S*))", dsn)
    return [(name, re.sub(r"\\(.)", r"\1", quoted) or plain) for name, quoted, plain in found]
