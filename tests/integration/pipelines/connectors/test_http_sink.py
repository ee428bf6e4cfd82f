"""Requests for rows, and what is made of the answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipelines.connectors.contract import Outage, RowsRefused
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sinks import http as http_sink
from ottla.pipelines.connectors.sinks.http import SINK, Requests, Send
from ottla.testing.connectors import made
from ottla.testing.process import free_port


class Receiver:
    """Keeps what it is sent; answers by the body, which is a status, or 200."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, bytes]] = []
        self.connections = 0
        self.drop_after = 10**9
        self.conflicts = 0
        """How many requests are answered as if an earlier one with their key were processed."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                receiver.connections += 1
                self.served = 0
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.received.append(
                    (self.headers["Idempotency-Key"], self.headers["X-Shop"], body)
                )
                status = int(body) if body.isdigit() else 200
                if receiver.conflicts:
                    receiver.conflicts -= 1
                    status = 409
                self.send_response(status)
                answer = b"because" if status != 200 else b""
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.served += 1
                self.close_connection = self.served >= receiver.drop_after

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/rows?secret=1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made_receiver = Receiver()
    yield made_receiver
    made_receiver.close()


def sending(url: str, connections: int = 4) -> Send:
    return Send(
        Requests(url, "POST", (("X-Shop", "one"),), "Idempotency-Key", 30.0, connections), "p"
    )


def bodies(*values: bytes) -> Iterator[Any]:
    positions = [f"row {number}" for number in range(len(values))]
    yield pa.RecordBatch.from_pydict({"position": positions, "body": pa.array(values, pa.binary())})


def test_every_row_is_a_request_and_a_repeated_one_has_the_same_key(receiver):
    rows = [b"row %d!" % number for number in range(100)]
    assert sending(receiver.url)(0, bodies(*rows)).rows == 100
    first = {body: key for key, _, body in receiver.received}
    assert sorted(first) == sorted(rows)
    assert len(set(first.values())) == 100
    assert {shop for _, shop, _ in receiver.received} == {"one"}
    assert receiver.connections <= 4
    assert sending(receiver.url, 1)(0, bodies(*rows)).rows == 100
    assert {body: key for key, _, body in receiver.received[100:]} == first


def test_a_connection_that_the_receiver_closes_is_opened_again(receiver):
    receiver.drop_after = 3
    assert sending(receiver.url, 1)(0, bodies(*[b"x!"] * 10)).rows == 10
    assert receiver.connections == 4


def test_an_answer_about_the_row_refuses_it_and_the_others_are_sent(receiver):
    with pytest.raises(RowsRefused) as refused:
        sending(receiver.url)(0, bodies(b"a!", b"400", b"b!", b"422", b"c!"))
    assert [(row.position, row.kind) for row in refused.value.rows] == [
        ("row 1", "HTTP400"),
        ("row 3", "HTTP422"),
    ]
    assert "answers 400: because" in refused.value.rows[0].message
    assert len(receiver.received) == 5


def test_a_row_that_is_still_being_processed_under_its_key_is_asked_for_again(receiver):
    receiver.conflicts = 3
    assert sending(receiver.url, 1)(0, bodies(b"a!", b"b!")).rows == 2
    keys = [key for key, _, _ in receiver.received]
    assert len(keys) == 5
    assert len(set(keys[:4])) == 1, "the first row, until it is there"
    assert keys[4] != keys[0]


@pytest.fixture
def quick_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses pass at once; an answer may still take its time."""
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: passed[0], sleep=sleep)
    monkeypatch.setattr(http_sink, "time", clock)


@pytest.mark.usefixtures("quick_waits")
def test_a_conflict_that_does_not_end_refuses_the_row(receiver):
    with pytest.raises(RowsRefused) as refused:
        sending(receiver.url, 1)(0, bodies(b"a!", b"409", b"b!"))
    assert [(row.position, row.kind) for row in refused.value.rows] == [("row 1", "HTTP409")]
    assert "answers 409: because" in refused.value.rows[0].message
    assert [body for _, _, body in receiver.received].count(b"409") > 1


@pytest.mark.usefixtures("quick_waits")
def test_a_task_of_conflicts_names_some_before_it_has_waited_for_all(receiver):
    with pytest.raises(RowsRefused) as refused:
        sending(receiver.url, 2)(0, bodies(*[b"409"] * 100))
    assert 0 < len(refused.value.rows) <= 8


@pytest.mark.parametrize("status", [b"401", b"403", b"404", b"408", b"429", b"500", b"503"])
def test_an_answer_that_is_not_about_the_row_is_an_outage(receiver, status):
    with pytest.raises(Outage, match=f"answers {status.decode()}") as outage:
        sending(receiver.url)(0, bodies(b"a!", status))
    assert "secret" not in str(outage.value)


def test_nobody_who_answers_is_an_outage():
    with pytest.raises(Outage, match="Connection refused"):
        sending(f"http://127.0.0.1:{free_port()}/")(0, bodies(b"a!"))


@pytest.mark.parametrize(
    ("headers", "sent"),
    [(None, "Basic YWRhOnBAc3M="), ({"authorization": "Bearer t"}, None)],
)
def test_a_user_in_the_url_is_sent_as_a_header(headers, sent):
    """Without it, the receiver would answer 401, which is waited for without an end."""
    requests = made(SINK, url="http://ada:p%40ss@127.0.0.1:1/rows", headers=headers)._requests
    assert dict(requests.headers).get("Authorization") == sent
    assert requests.what == "http://127.0.0.1:1/rows"


def test_a_url_that_is_none_is_refused():
    with pytest.raises(Mistake, match="http:// or https://"):
        made(SINK, url="ftp://example.org/")
