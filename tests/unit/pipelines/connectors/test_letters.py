"""What a dead letter says, in headers that users of Kafka Connect know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.pipelines.connectors.assemble import letters_of
from ottla.pipelines.connectors.contract import Batch
from ottla.pipelines.connectors.errors.letters import (
    Earlier,
    Failure,
    Letter,
    headers_of,
    letter_of,
)
from ottla.pipelines.connectors.errors.policy import allowed, wait_before
from ottla.pipelines.connectors.option import Declaration
from ottla.pipelines.connectors.spec.values import STOP, Connector, ErrorPolicy, PipelineSpec

BATCH = Batch("orders", "topic", "run-1", 7, replayed=False)
PLACE = '{"topic": "in", "partition": 2, "offset": 41}'
FAILURE = Failure("decode", "NotJson", "no JSON at all")


def said(letter: Letter, **more: object) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in headers_of(letter, BATCH, **more)}


def test_the_headers_are_those_of_kafka_connect_and_ours() -> None:
    assert said(Letter(PLACE, FAILURE)) == {
        "__connect.errors.topic": "in",
        "__connect.errors.partition": "2",
        "__connect.errors.offset": "41",
        "__connect.errors.connector.name": "orders",
        "__connect.errors.task.id": "0",
        "__connect.errors.stage": "VALUE_CONVERTER",
        "__connect.errors.exception.class.name": "NotJson",
        "__connect.errors.exception.message": "no JSON at all",
        "ottla.errors.pipeline": "orders",
        "ottla.errors.position": PLACE,
        "ottla.errors.first.position": PLACE,
        "ottla.errors.tries": "1",
        "ottla.errors.run": "run-1",
        "ottla.errors.batch": "7",
    }


def test_a_row_of_a_file_has_a_position_and_no_offset() -> None:
    headers = said(Letter('{"file": "a.csv", "row": 3}', FAILURE))
    assert "__connect.errors.topic" not in headers
    assert headers["ottla.errors.position"] == '{"file": "a.csv", "row": 3}'


def test_the_headers_of_the_record_come_first_and_old_ones_of_a_letter_go() -> None:
    own = (("trace", b"1"), ("ottla.errors.tries", b"9"), ("__connect.errors.topic", b"old"))
    names = [name for name, _ in headers_of(Letter(PLACE, FAILURE, headers=own), BATCH)]
    assert names[0] == "trace"
    assert len(names) == len(set(names)) == 15


def test_a_letter_that_fails_again_counts_its_tries_and_keeps_its_first_position() -> None:
    headers = said(Letter(PLACE, FAILURE), earlier=Earlier("the first", 2))
    assert (headers["ottla.errors.tries"], headers["ottla.errors.first.position"]) == (
        *("3", "the first"),
    )


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[[Failure], dict[str, str]]:
    """The headers of a letter as a pipeline with a secret would send it."""
    connector = Connector("x", {}, Declaration("x", "", (), dict))
    spec = PipelineSpec(
        "orders", "127.0.0.1:1", connector, connector, secrets=frozenset({"s3cret"}),
        on_error=ErrorPolicy(dead_letter="letters"),
    )  # fmt: skip
    found: list[Any] = []
    topic = letters_of(spec)
    assert topic is not None
    monkeypatch.setattr(topic, "_send", found.extend)

    def send(failure: Failure) -> dict[str, str]:
        topic.write([Letter(PLACE, failure, b"s3cret", b"the record: s3cret")], BATCH)
        [(key, value, headers, _)] = found
        assert (key, value) == (b"s3cret", b"the record: s3cret"), "the row is the user's own"
        return {name: (text or b"").decode() for name, text in headers}

    return send


def test_the_reason_of_a_letter_holds_no_secret(sent) -> None:
    message = "the host https://ada:s3cret@shop answers 422"
    headers = sent(Failure("sink", "HTTP422", message))
    assert "s3cret" not in "".join(headers.values())
    assert headers["__connect.errors.exception.message"] == message.replace("s3cret", "***")


def test_a_reason_that_repeats_a_large_value_is_cut(sent) -> None:
    headers = sent(Failure("sink", "22P02", 'invalid input for type integer: "' + "x" * 1_000_000))
    message = headers["__connect.errors.exception.message"]
    assert message.startswith("invalid input for type integer")
    assert message.endswith("x…")
    assert len(message) < 10_000


def test_a_letter_is_made_from_the_hidden_column() -> None:
    hidden = {
        "position": PLACE,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "a", "value": None}],
        "error": {"stage": "decode", "kind": "NotJson", "message": "no JSON at all"},
    }
    assert letter_of(hidden) == Letter(PLACE, FAILURE, b"k", b"v", (("a", None),))
    other = Failure("sink", "TooLarge", "x")
    assert letter_of(hidden | {"error": None}, other).failure == other
    with pytest.raises(ValueError, match="has not failed"):
        letter_of(hidden | {"error": None})


def test_a_run_may_have_a_hundred_letters_or_one_in_a_hundred_rows() -> None:
    assert [allowed(STOP, rows) for rows in (0, 10, 10_000, 10_001, 1_000_000)] == [
        *(100, 100, 100, 100, 10_000),
    ]


def test_waits_double_up_to_the_longest() -> None:
    policy = ErrorPolicy(backoff=(1.0, 10.0))
    assert [wait_before(policy, attempt) for attempt in (1, 2, 3, 4, 5, 6, 5000)] == [
        *(0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0),
    ]
