"""Requests of the HTTP sink: their keys, what answers mean, and what is never printed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sinks.http import SINK, Requests, _Sender, key_of, rows_of
from ottla.testing.connectors import made

REQUESTS = Requests("http://127.0.0.1:9/rows?token=secret", "POST", (), "Idempotency-Key", 1.0, 1)


def test_rows_that_were_made_of_one_have_keys_of_their_own() -> None:
    parts = [[("p1", b"a"), ("p1", b"a")], [("p1", b"b"), ("p2", b"a")]]
    batches = [
        pa.RecordBatch.from_pydict(
            {"position": [each[0] for each in part], "body": [each[1] for each in part]}
        )
        for part in parts
    ]
    keys = [key_of("orders", position, nth) for position, nth, _ in rows_of(iter(batches))]
    assert len(set(keys)) == 4
    assert keys[0] == key_of("orders", "p1")
    again = [key_of("orders", position, nth) for position, nth, _ in rows_of(iter(batches))]
    assert again == keys


@pytest.mark.parametrize("status", [400, 410, 422])
def test_a_4xx_refuses_the_row(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(_Sender, "_exchange", lambda *_: (status, "no"))
    refused = _Sender(REQUESTS, "orders").send("p1", 0, b"{}")
    assert refused is not None
    assert (refused.position, refused.kind) == ("p1", f"HTTP{status}")


@pytest.mark.parametrize("status", [301, 302, 307, 308, 404, 429, 500, 503])
def test_an_answer_that_says_nothing_of_the_row_is_an_outage(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(_Sender, "_exchange", lambda *_: (status, ""))
    with pytest.raises(Outage, match=f"answers {status}"):
        _Sender(REQUESTS, "orders").send("p1", 0, b"{}")


@pytest.mark.parametrize("value", ["Bearer geheim\r", "Bearer geheim\nX: y", "geheim\u20ac"])
def test_a_header_that_cannot_be_sent_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(Mistake, match="Authorization") as told:
        made(SINK, url="http://127.0.0.1:9/", headers={"Authorization": value})
    assert "geheim" not in str(told.value)
