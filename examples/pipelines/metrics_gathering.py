"""Metrics from many places: a web service, CSV files and a database become one topic.

Each place tells its figures in its own way. A pipeline for each brings them into one shape: a
place, a name, a time and a value. Whoever wants them reads one topic; here a pipeline puts them
into a table, and SQL does the rest. The service and the device are asked twice, and no figure is
counted twice.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from stage import Stage, on_a_stage

SERVICE = [
    {"name": name, "at": f"2026-05-01T12:{minute:02}:00Z", "value": value}
    for minute, (requests, errors) in enumerate([(120, 0), (140, 3), (90, 1), (151, 0)])
    for name, value in (("requests", requests), ("errors", errors))
]
FILES = {
    "web-1.csv": [("web-1", 1777636800 + 60 * n, 0.25 * n, 512.0 + 8 * n) for n in range(5)],
    "web-2.csv": [("web-2", 1777636800 + 60 * n, 0.5, 256.0) for n in range(3)],
}
DEVICE = [("greenhouse", f"2026-05-01 12:0{n}:00", 68.0 + 1.8 * n) for n in range(6)]


class Outcome(NamedTuple):
    """For each place and name: how many values there are, and their mean."""

    board: dict[tuple[str, str], tuple[int, float]]


@contextmanager
def service(known: list[dict[str, object]]) -> Iterator[str]:
    """Answers with the figures from `since` on."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            since = parse_qs(urlsplit(self.path).query).get("since", [""])[0]
            body = json.dumps({"figures": [each for each in known if str(each["at"]) >= since]})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *words: object) -> None:
            """Nobody needs to know."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def measure(path: object, readings: list[tuple[str, str, float]]) -> None:
    with closing(sqlite3.connect(str(path))) as database, database:
        database.execute(
            "create table if not exists readings "
            "(id integer primary key, device text, at text, fahrenheit real)"
        )
        database.executemany(
            "insert into readings (device, at, fahrenheit) values (?, ?, ?)", readings
        )


def run(stage: Stage) -> Outcome:
    drops, device, board = (stage.folder / name for name in ("drops", "device.db", "board.db"))
    stage.create("metrics")
    drops.mkdir()
    for name, rows in FILES.items():
        text = "".join(f"{','.join(map(str, row))}\n" for row in rows)
        (drops / name).write_text(f"machine,seconds,cpu,memory\n{text}")
    stage.run("metrics_from_files.yaml", DROPS=drops)

    figures: list[dict[str, object]] = []
    with service(figures) as url:
        for half in (0, 1):
            figures += SERVICE[4 * half : 4 * half + 4]
            measure(device, DEVICE[3 * half : 3 * half + 3])
            stage.run("metrics_from_http.yaml", SERVICE=url)
            stage.run("metrics_from_database.yaml", DEVICE=device)
    stage.run("metrics_to_table.yaml", BOARD=board)

    with closing(sqlite3.connect(board)) as database:
        found = database.execute(
            "select place, name, count(*), avg(value) from metrics group by 1, 2 order by 1, 2"
        ).fetchall()
    for place, name, count, mean in found:
        print(f"{place:10} {name:11} {count} values, {mean:8.3f} on average")
    return Outcome({(place, name): (count, mean) for place, name, count, mean in found})


if __name__ == "__main__":
    with on_a_stage() as stage:
        run(stage)
