"""The console, any format of Spark, a sink of one's own, and rows as requests."""

from __future__ import annotations

import io
import json
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ottla.pipelines.connectors.contract import Guarantee
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sinks.console import ConsoleSink
from ottla.pipelines.connectors.sinks.http import SINK as HTTP
from ottla.pipelines.connectors.sinks.python import SINK as PYTHON
from ottla.pipelines.connectors.sinks.spark import SINK as SPARK
from ottla.testing.connectors import batch, made, numbers, place, sample_rows


def test_the_console_shows_the_first_rows_and_all_if_asked(spark):
    rows = sample_rows(spark, [(1, "a"), (2, None), (3, "c")])
    for most, lines in [(2, 2), (0, 3)]:
        shown = io.StringIO()
        ConsoleSink(most, shown).write(rows, batch(0))
        found = [json.loads(line) for line in shown.getvalue().splitlines()]
        assert len(found) == lines
        assert all(row.keys() == {"id", "name"} for row in found)
    assert ConsoleSink(0).guarantee is Guarantee.NONE


def test_any_format_of_spark_can_be_written(spark, tmp_path):
    rows = sample_rows(spark, numbers(10))
    sink = made(SPARK, format="orc", path=str(tmp_path / "rows"))
    sink.probe(rows, batch(0))
    assert not (tmp_path / "rows").exists()
    sink.write(rows, batch(0))
    sink.write(rows, batch(1))
    assert spark.read.orc(str(tmp_path / "rows")).count() == 20
    with pytest.raises(Mistake, match="leave one of them out"):
        made(SPARK, format="orc", path="x", table="y")


def test_an_object_of_ones_own_is_a_sink(spark, monkeypatch):
    seen: list[tuple[int, int]] = []
    own = types.ModuleType("own_sinks")

    def write(rows: Any, batch: Any) -> None:
        assert rows.columns == ["id", "name"]
        seen.append((batch.number, rows.count()))

    own.write = write
    own.number = 5
    own.Console = ConsoleSink
    monkeypatch.setitem(sys.modules, "own_sinks", own)
    sink = made(PYTHON, object="own_sinks:write")
    rows = sample_rows(spark, numbers(10))
    sink.prepare(spark, rows.schema, None)
    sink.write(rows, batch(3))
    assert seen == [(3, 10)]
    assert isinstance(made(PYTHON, object="own_sinks:Console", options={"rows": 1}), ConsoleSink)
    for target, options, told in [
        ("own_sinks", {}, "write package.module:name"),
        ("not.there:x", {}, "cannot be imported"),
        ("own_sinks:absent", {}, "there is no absent"),
        ("own_sinks:number", {}, "is no sink"),
        ("own_sinks:Console", {"lines": 1}, "does not take these options"),
        ("own_sinks:write", {"rows": 1}, "takes no options"),
    ]:
        with pytest.raises(Mistake, match=told):
            made(PYTHON, object=target, options=options)


def test_rows_become_requests(spark, tmp_path):
    received: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers["Idempotency-Key"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 100

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        rows = sample_rows(spark, numbers(30))
        sink = made(HTTP, url=f"http://127.0.0.1:{server.server_port}/")
        sink.prepare(spark, rows.schema, place(tmp_path))
        sink.probe(rows, batch(0))
        assert not received
        sink.write(rows, batch(0))
        sink.write(rows, batch(0, replayed=True))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(received) == 60
    assert {key: body["id"] for key, body in received[:30]} == {
        key: body["id"] for key, body in received[30:]
    }
