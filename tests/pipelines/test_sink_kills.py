"""Each cell of docs/pipelines/guarantees.md: a kill -9 at every named point, and a count.

A batch is cut off at one point after another, by killing the process that has reached it: the
task's, or the driver's. Then a new driver runs it again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.pipelines.connectors.contract import Guarantee
from ottla.pipelines.points import Point
from ottla.testing.connectors import batch, made, numbers, place, sample_rows

HERE = Path(__file__).parent
DRIVER = HERE / "sink_driver.py"
COUNT = 60
POINTS = [
    point.value
    for point in (Point.BEFORE_WRITE, Point.AFTER_WRITE, Point.BEFORE_COMMIT, Point.AFTER_COMMIT)
]


@pytest.fixture
def arm(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """`arm(point)`: who reaches it next is killed; returns a file that is gone then."""
    file = tmp_path / "kill"
    variables = {
        "OTTLA_PIPELINE_POINTS": "kill_points:reached",
        "OTTLA_TEST_KILL": str(file),
        "PYTHONPATH": str(HERE),
    }
    # Processes of tasks get these; those that run without them are left alone.
    before = dict(spark.sparkContext.environment)
    spark.sparkContext.environment.update(variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def arm_point(point: str, times: int = 1) -> Path:
        file.write_text(f"{point} {times}")
        return file

    yield arm_point
    spark.sparkContext.environment.clear()
    spark.sparkContext.environment.update(before)


def judge(found: list[Any], wanted: list[Any], guarantee: Guarantee) -> None:
    have, want = Counter(found), Counter(wanted)
    assert not want - have, "rows are missing"
    assert not have.keys() - want.keys(), "there are rows that nobody wrote"
    if guarantee is Guarantee.EXACTLY_ONCE:
        assert have == want, "rows are there twice"


# -- the processes of tasks


def sqlite_table(folder: Path, _request: Any) -> tuple[dict[str, Any], Callable[[], list[Any]]]:
    path = folder / "rows.db"

    def stored() -> list[Any]:
        connection = sqlite3.connect(path)
        try:
            return connection.execute("select id, name from people").fetchall()
        finally:
            connection.close()

    return {"path": str(path), "table": "people", "create": True}, stored


def postgres_table(_folder: Path, request: Any) -> tuple[dict[str, Any], Callable[[], list[Any]]]:
    server = request.getfixturevalue("postgres")
    dsn = server.new_database()

    def stored() -> list[Any]:
        return [(int(row[0]), row[1]) for row in server.sql("select id, name from people", dsn)]

    return {"dsn": dsn, "table": "people", "create": True}, stored


def topic(_folder: Path, request: Any) -> tuple[dict[str, Any], Callable[[], list[Any]]]:
    bootstrap = request.getfixturevalue("bootstrap")
    name = request.getfixturevalue("unique")()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made_topic in admin.create_topics([NewTopic(name, 2)]).values():
        made_topic.result()

    def stored() -> list[Any]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look"})
        try:
            partitions = [TopicPartition(name, number, 0) for number in range(2)]
            end = sum(consumer.get_watermark_offsets(each)[1] for each in partitions)
            consumer.assign(partitions)
            found: list[Any] = []
            while len(found) < end:
                found += consumer.consume(end, 1.0)
        finally:
            consumer.close()
        return [tuple(json.loads(record.value()).values()) for record in found]

    return {"name": name, "key": ["id"]}, stored


def receiver(_folder: Path, request: Any) -> tuple[dict[str, Any], Callable[[], list[Any]]]:
    """One that heeds the key, and so has every row once."""
    by_key: dict[str, list[Any]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            by_key.setdefault(self.headers["Idempotency-Key"], []).append(json.loads(body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 100

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    request.addfinalizer(server.server_close)
    request.addfinalizer(server.shutdown)

    def stored() -> list[Any]:
        assert all(each == sent[0] for sent in by_key.values() for each in sent)
        assert any(len(sent) > 1 for sent in by_key.values()), "nothing was sent again"
        return [tuple(sent[0].values()) for sent in by_key.values()]

    return {"url": f"http://127.0.0.1:{server.server_port}/"}, stored


@pytest.mark.parametrize(
    ("name", "store", "points"),
    [
        pytest.param("sqlite", sqlite_table, POINTS, id="sqlite"),
        pytest.param("postgres", postgres_table, POINTS, id="postgres"),
        pytest.param("topic", topic, POINTS[:2], id="topic"),
        pytest.param("http", receiver, POINTS[:2], id="http"),
    ],
)
def test_a_task_is_killed_at_each_point(spark, tmp_path, request, arm, name, store, points):
    from ottla.pipelines.connectors import catalog

    options, stored = store(tmp_path, request)
    where = place(tmp_path, request.getfixturevalue("bootstrap")) if name == "topic" else None

    def started() -> Any:
        sink = made(catalog.sink(name), **options)
        sink.prepare(spark, sample_rows(spark, []).schema, where or place(tmp_path))
        return sink

    for number, point in enumerate(points):
        rows = sample_rows(spark, numbers(COUNT, number * COUNT), start=number * COUNT)
        armed = arm(point)
        with suppress(Exception):  # or Spark has tried the task again, and it came through
            started().write(rows, batch(number))
        assert not armed.exists(), f"nobody has reached {point}"
        started().write(rows, batch(number, replayed=True))
    # Who heeds the key has every row once.
    guarantee = Guarantee.EXACTLY_ONCE if name == "http" else started().guarantee
    judge(stored(), numbers(COUNT * len(points)), guarantee)


# -- the driver


def run_driver(spark: Any, **order: Any) -> subprocess.CompletedProcess[str]:
    parameters = spark.sparkContext._gateway.gateway_parameters
    environment = os.environ | {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
    }
    return subprocess.run(
        [sys.executable, str(DRIVER), json.dumps(order)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_driver_that_writes_files_is_killed_at_each_point(spark, tmp_path, arm):
    folder = tmp_path / "rows"
    # After the commit the files are renamed, and each of them is a point of its own.
    points = [*((point, 1) for point in POINTS), ("after-commit", 2)]
    for number, (point, times) in enumerate(points):
        armed = arm(point, times)
        order = {
            "sink": "files",
            "options": {"path": str(folder)},
            "folder": str(tmp_path),
            "batch": number,
            "count": COUNT,
        }
        killed = run_driver(spark, **order, replayed=False)
        assert killed.returncode == -9, killed.stderr
        assert not armed.exists()
        again = run_driver(spark, **order, replayed=True)
        assert again.returncode == 0, again.stderr
    found = [tuple(row) for row in spark.read.parquet(str(folder)).collect()]
    judge(found, numbers(COUNT * len(points)), Guarantee.EXACTLY_ONCE)
