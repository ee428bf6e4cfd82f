"""What a batch does while its sink's server is killed, or goes away, and comes back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ottla.pipelines.connectors import catalog
from ottla.pipelines.connectors.contract import HIDDEN
from ottla.pipelines.connectors.process import Event, Note, Way, process
from ottla.pipelines.connectors.spec.values import ErrorPolicy
from ottla.testing.connectors import batch, made, numbers, place, sample_rows
from ottla.testing.postgres import PostgresProcess, PostgresProcessError

HERE = Path(__file__).parent
COUNT = 60


class Given:
    """A source whose batches have their positions already."""

    def rows(self, frame: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        nothing = F.lit(None).cast("struct<stage: string, kind: string, message: string>")
        return frame.withColumn(HIDDEN, F.col(HIDDEN).withField("error", nothing))


class Told:
    """What a batch says, and who mends what it waits for."""

    def __init__(self, mend: Callable[[], None]) -> None:
        self.notes: list[Note] = []
        self._mend = mend

    def __call__(self, note: Note) -> None:
        self.notes.append(note)

    def pause(self, _seconds: float) -> bool:
        self._mend()
        return True

    def run(self, sink: Any, frame: Any, number: int) -> None:
        way = Way(Given(), lambda rows: rows, sink, ErrorPolicy(), pause=self.pause, tell=self)
        outcome = process(frame, way, batch(number))
        assert (outcome.rows, outcome.written, outcome.letters) == (COUNT, COUNT, 0)

    def waited_for(self, what: str) -> None:
        """It has said whom it waits for, blamed no row, and gone on."""
        events = [note.event for note in self.notes]
        assert set(events) == {Event.OUTAGE, Event.RECOVERED}
        assert events[-1] is Event.RECOVERED
        assert all(what in note.sentence for note in self.notes[:-1])


@pytest.fixture
def victim(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`victim(point, process)`: this process is killed when a task reaches the point."""
    file = tmp_path / "kill"
    variables = {
        "OTTLA_PIPELINE_POINTS": "kill_points:reached",
        "OTTLA_TEST_KILL": str(file),
        "PYTHONPATH": str(HERE),
    }
    before = dict(spark.sparkContext.environment)
    spark.sparkContext.environment.update(variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield lambda point, process: file.write_text(f"{point} 1 {process}") and file
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(before)


def test_a_database_that_is_killed_under_its_tasks_has_every_row_once(
    spark: Any, tmp_path: Path, victim: Any, eventually: Any
) -> None:
    with PostgresProcess(tmp_path) as server:
        server.start()
        dsn = server.new_database()

        def start_again() -> None:
            if not server.alive:
                # What served a connection outlives a kill -9 for a moment, and has its memory.
                eventually(lambda: _starts(server))

        frame = sample_rows(spark, [])
        sink = made(catalog.sink("postgres"), dsn=dsn, table="people", create=True, tasks=2)
        sink.prepare(spark, frame.schema, place(tmp_path))
        for number, point in enumerate(("before-write", "after-write", "after-commit")):
            armed = victim(point, server.process.pid)
            told = Told(start_again)
            rows = sample_rows(spark, numbers(COUNT, number * COUNT), start=number * COUNT)
            told.run(sink, rows, number)
            assert not armed.exists(), f"nobody has reached {point}"
            if told.notes or point != "after-commit":  # the other task may have been as fast
                told.waited_for(f"PostgreSQL at {server.where}")
            start_again()
        found = server.sql("select id, name from people order by id", dsn)
    assert [(int(key), name) for key, name in found] == numbers(3 * COUNT)


def _starts(server: PostgresProcess) -> bool:
    try:
        server.start()
    except PostgresProcessError:
        return False
    return True


class Receiver:
    """Heeds keys. It goes away after some requests, one of them read and not answered."""

    def __init__(self, leave_after: int) -> None:
        self.by_key: dict[str, Any] = {}
        self.requests = 0
        self._left = leave_after
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/rows"

    def open(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.take(self.headers["Idempotency-Key"], json.loads(body)):
                    self.send_response(204)
                    self.end_headers()
                else:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 100

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, key: str, row: Any) -> bool:
        """Whether it is answered."""
        with self._lock:
            self.requests += 1
            self.by_key.setdefault(key, row)
            self._left -= 1
            if self._left == 0 and self._server is not None:
                # Not from here: it waits for whoever serves.
                threading.Thread(target=self.close).start()
            return self._left > 0

    def close(self) -> None:
        server = self._server
        if server is not None:
            server.shutdown()
            server.server_close()
            with self._lock:  # not before: until then the port is taken
                if self._server is server:
                    self._server = None

    def back(self) -> None:
        """Once it is away."""
        with self._lock:
            if self._server is not None or self._left > 0:
                return
            self._left = 1_000_000
        self.open()


def test_a_receiver_that_is_away_for_a_while_has_every_row(spark: Any, tmp_path: Path) -> None:
    receiver = Receiver(leave_after=20)
    try:
        told = Told(receiver.back)
        sink = made(catalog.sink("http"), url=receiver.url, connections=4)
        frame = sample_rows(spark, numbers(COUNT))
        sink.prepare(spark, frame.schema, place(tmp_path))
        told.run(sink, frame, 0)
    finally:
        receiver.close()
    told.waited_for(receiver.url)
    assert sorted(tuple(row.values()) for row in receiver.by_key.values()) == numbers(COUNT)
    assert receiver.requests > COUNT, "nothing was sent again"
