"""Rows to a URL: one request for each, with a key by which the receiver knows a repetition.

At least once. Every request has a header (`Idempotency-Key`) that depends on the pipeline and the
row's position alone, such as topic, partition and offset, and, where a transform has made several
rows of one, on which of them it is: a row that is sent again, after a kill or a lost answer, has
the same one. A receiver that heeds it has every row once.

    2xx                                it has the row
    401 403 404 405 407 408 421 425    nobody is to blame in the row: not allowed, not there, busy;
    429, 1xx, 3xx, 5xx, no answer      an outage, which is waited for
    409                                the row is sent again under its key for as long as `timeout`,
                                       then it is refused
    every other answer                 the row is refused, and the pipeline goes on without it

409 has two meanings. By the draft of the header Idempotency-Key (draft-ietf-httpapi-idempotency-
key-header) a request with this key is still being processed: a driver that was killed,
or an answer that came too late, has left it there, and the row is about to be taken. Others say so
of a row that is in the way of another for good. Nothing tells which, but time does. A row that was
taken after all and is a dead letter, too, has the same key when it is redriven.

A task keeps a few connections open and sends over all of them, so rows are not received in order.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
import threading
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from ottla.pipelines.connectors.contract import (
    HIDDEN,
    Batch,
    Guarantee,
    Needs,
    Outage,
    Place,
    RefusedRow,
    RowsRefused,
)
from ottla.pipelines.connectors.formats.contract import Format
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.formats.writing import encoded_value, visible
from ottla.pipelines.connectors.option import Declaration, Kind, Option
from ottla.pipelines.connectors.sinks.tasks import Written, in_tasks
from ottla.pipelines.points import Point, reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CONFLICT: Final = 409
_PAUSES: Final = (0.1, 2.0)  # seconds before a row is sent again after a conflict: first, longest
_AWAY: Final = frozenset({401, 403, 404, 405, 407, 408, 421, 425, 429})
_SHOWN: Final = 200  # characters of an answer in a message
_LARGEST_ANSWER: Final = 64 << 10
_METHODS: Final = ("POST", "PUT", "PATCH")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_MOST_NAMED: Final = 1000


@dataclass(frozen=True, slots=True)
class Requests:
    """How a row becomes a request; travels to the tasks."""

    url: str
    method: str
    headers: tuple[tuple[str, str], ...]
    key_header: str
    timeout: float
    connections: int

    def __repr__(self) -> str:
        return f"Requests({self.method} {self.what})"

    @property
    def what(self) -> str:
        """What an outage calls it."""
        return shown(self.url)


class HttpSink(Needs):
    """Sends every row to one URL."""

    def __init__(self, requests: Requests, value: Format) -> None:
        self._requests = requests
        self._value = value

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def prepare(self, spark: SparkSession, schema: StructType, place: Place) -> None:
        """The first row tells whether somebody listens: a request without one might do harm."""
        self._bodies(spark.createDataFrame([], schema)).schema  # noqa: B018 - Spark analyses it

    def write(self, rows: DataFrame, batch: Batch) -> None:
        in_tasks(self._bodies(rows), Send(self._requests, batch.pipeline))

    def probe(self, rows: DataFrame, batch: Batch) -> None:
        """Encode everything, and send nothing: a receiver has nowhere to try a row."""
        self._bodies(rows).write.format("noop").mode("overwrite").save()

    def _bodies(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        body = encoded_value(self._value, rows, visible(rows.schema))
        return rows.select(f.col(f"{HIDDEN}.position").alias("position"), body.alias("body"))


@dataclass(frozen=True, slots=True)
class Send:
    """A task's way to the receiver."""

    requests: Requests
    pipeline: str

    def __call__(self, task: int, batches: Iterator[Any]) -> Written:
        sender = _Sender(self.requests, self.pipeline)
        count = 0
        refused: list[RefusedRow] = []
        waiting: deque[Future[RefusedRow | None]] = deque()
        reach(Point.BEFORE_WRITE)
        with ThreadPoolExecutor(self.requests.connections) as pool:
            try:
                for position, nth, body in rows_of(batches):
                    if len(waiting) >= 2 * self.requests.connections:
                        refused += _told(waiting.popleft())
                    waiting.append(pool.submit(sender.send, position, nth, body))
                    count += 1
                    if len(refused) >= _MOST_NAMED or any(map(_was_waited_for, refused)):
                        break
                while waiting:
                    refused += _told(waiting.popleft())
            finally:
                pool.shutdown(cancel_futures=True)
                sender.close()
        if refused:
            raise RowsRefused(refused)
        reach(Point.AFTER_WRITE)
        return Written(count)


def rows_of(batches: Iterator[Any]) -> Iterator[tuple[str, int, bytes]]:
    """Position, which row of this position it is, and body.

    All rows that a transform has made of one are in one task, in the same order each time.
    """
    seen: Counter[str] = Counter()
    for batch in batches:
        pairs = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        for position, body in pairs:
            yield position, seen[position], body
            seen[position] += 1


def _was_waited_for(refused: RefusedRow) -> bool:
    """Then the rest may take as long, row by row, and nobody has heard of the first yet."""
    return refused.kind == f"HTTP{_CONFLICT}"


def _told(answer: Future[RefusedRow | None]) -> list[RefusedRow]:
    refused = answer.result()
    return [] if refused is None else [refused]


class _Sender:
    """One connection for each thread that sends."""

    def __init__(self, requests: Requests, pipeline: str) -> None:
        self._requests = requests
        self._pipeline = pipeline
        parts = urlsplit(requests.url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._context = ssl.create_default_context() if self._secure else None
        self._own = threading.local()
        self._lock = threading.Lock()
        self._open: list[http.client.HTTPConnection] = []

    def send(self, position: str, nth: int, body: bytes) -> RefusedRow | None:
        """Send a row; what it is refused for, if it is. Raises Outage."""
        requests = self._requests
        headers = dict(requests.headers)
        headers[requests.key_header] = key_of(self._pipeline, position, nth)
        try:
            status, text = self._settled(body or b"", headers)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise Outage(requests.what, f"{requests.what} does not answer: {why}") from None
        if 200 <= status < 300:
            return None
        said = (
            f"{requests.what} answers {status}: {text}"
            if text
            else f"{requests.what} answers {status}"
        )
        if status in _AWAY or not 400 <= status < 500:
            raise Outage(requests.what, said)
        return RefusedRow(position, f"HTTP{status}", said)

    def close(self) -> None:
        with self._lock:
            for connection in self._open:
                connection.close()

    def _settled(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """The answer, when it is not that an earlier request with this key is being processed."""
        pause, longest = _PAUSES
        until: float | None = None
        while True:
            status, text = self._exchange(body, headers)
            now = time.monotonic()
            until = now + self._requests.timeout if until is None else until
            if status != _CONFLICT or now + pause > until:
                return status, text
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _exchange(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """One request and its answer. A connection that was closed meanwhile is opened again."""
        connection = getattr(self._own, "connection", None)
        fresh = connection is None
        if connection is None:
            connection = self._connect()
        try:
            return self._asked(connection, body, headers)
        except (ConnectionError, http.client.RemoteDisconnected):
            connection.close()
            if fresh:
                raise
            return self._asked(connection, body, headers)
        except BaseException:
            connection.close()
            raise

    def _asked(
        self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, str]:
        connection.request(self._requests.method, self._target, body, headers)
        answer = connection.getresponse()
        text = answer.read(_LARGEST_ANSWER)[:_SHOWN].decode(errors="replace")
        if not answer.isclosed():  # nobody wants the rest of it
            connection.close()
        return answer.status, " ".join(text.split())

    def _connect(self) -> http.client.HTTPConnection:
        timeout = self._requests.timeout
        made: http.client.HTTPConnection
        if self._secure:
            made = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._context
            )
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        self._own.connection = made
        with self._lock:
            self._open.append(made)
        return made


def shown(url: str) -> str:
    """A URL without what may be secret: user, password and parameters."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def key_of(pipeline: str, position: str, nth: int = 0) -> str:
    """The same for the same row of the same pipeline, and for no other."""
    row = f"{position}\n{nth}" if nth else position
    return hashlib.sha256(f"{pipeline}\n{row}".encode()).hexdigest()


def _make(options: Mapping[str, Any]) -> HttpSink:
    parts = urlsplit(options["url"])
    given = {str(name): str(value) for name, value in (options["headers"] or {}).items()}
    if parts.username is not None and not any(n.lower() == "authorization" for n in given):
        user = unquote(parts.netloc.rpartition("@")[0])
        given["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
    if not any(name.lower() == "content-type" for name in given):
        given["Content-Type"] = options["content_type"]
    requests = Requests(
        options["url"],
        options["method"],
        tuple(given.items()),
        options["key_header"],
        options["timeout"],
        options["connections"],
    )
    return HttpSink(requests, read_format(options["format"]))


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:  # whose sentence shows user and password
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL begins with http:// or https:// and names a host")


def _check_headers(headers: Mapping[str, Any]) -> None:
    for name, value in headers.items():
        # The sentence of Python's own library shows the value, which may be a secret.
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(str(value)):
            raise ValueError(
                f"the header {name!r} has a character that none may have: a line break?"
            )


def _check_connections(value: int) -> None:
    if not 1 <= value <= 100:
        raise ValueError("connections must be from 1 to 100")


SINK: Final = Declaration(
    "http",
    "a URL, one request for each row; at least once, with a key that tells repetitions",
    (
        Option(
            "url",
            Kind.TEXT,
            "where the requests go",
            required=True,
            secret=True,
            place=shown,
            check=_check_url,
        ),
        Option("method", Kind.TEXT, "the method", default="POST", choices=_METHODS),
        Option(
            "format",
            Kind.CHOICE,
            "how the columns become the body: a name, or a name with its options",
            default="json",
        ),
        Option(
            "headers",
            Kind.MAP,
            "headers of every request, such as `Authorization`",
            secret=True,
            check=_check_headers,
        ),
        Option("content_type", Kind.TEXT, "the header Content-Type", default="application/json"),
        Option(
            "key_header",
            Kind.TEXT,
            "the header with the key by which a repeated row is known",
            default="Idempotency-Key",
        ),
        Option("timeout", Kind.DURATION, "how long an answer may take", default=30.0),
        Option(
            "connections",
            Kind.INTEGER,
            "how many requests of a task are on their way at a time",
            default=8,
            check=_check_connections,
        ),
    ),
    _make,
)
