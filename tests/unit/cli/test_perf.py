from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from ottla.client.load import Consumed, Sent, Taken, Window
from ottla.errors import ErrorCode, KafkaError

Run = Callable[..., Result]
TOPIC = "orders-########"
WINDOW = Window(1000, 100_000, 2.0, 1.5, 9.0, (1.0, 2.0, 3.0, 4.0))


pytestmark = pytest.mark.usefixtures("over_the_scene")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def produce(*arguments: Any, **options: Any) -> Sent:
        made.append((arguments[:3], options))
        return Sent(WINDOW, None, 0, None, {})

    def consume(*arguments: Any, **options: Any) -> Consumed:
        made.append((arguments, options))
        return Consumed(Taken(500, 50_000, 7.0, 1.0), False, {})

    monkeypatch.setattr("ottla.client.load.produce_load", produce)
    monkeypatch.setattr("ottla.client.load.consume_load", consume)
    monkeypatch.setattr("ottla.client.load.latency_load", lambda *_a, **_o: iter([1.0, 3.0]))
    return made


def test_produce_shows_rates_and_latencies(ottla: Run, calls: list[Any]) -> None:
    result = ottla("perf", "produce", TOPIC, "--records", "1000", "--acks", "1")
    assert result.output == (
        "RECORDS  SECONDS  RECORDS/S  MB/S  MEAN MS   P50   P95   P99  P99.9   MAX\n"
        "   1000     2.00        500  0.05     1.50  1.00  2.00  3.00   4.00  9.00\n"
    )
    [(arguments, options)] = calls
    assert arguments == ("127.0.0.1:9092", TOPIC, 1000)
    assert options["config"]["acks"] == "1"


def test_produce_as_json(ottla: Run, calls: list[Any]) -> None:
    found = json.loads(ottla("perf", "produce", TOPIC, "--json").output)
    assert found["records_per_second"] == 500.0
    assert found["latency_ms"]["p999"] == 4.0


def test_records_that_failed_make_an_error(
    ottla: Run, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
    monkeypatch.setattr(
        "ottla.client.load.produce_load", lambda *_a, **_o: Sent(WINDOW, None, 2, failure, {})
    )
    result = ottla("perf", "produce", TOPIC)
    assert result.exit_code == 1
    assert "2 records were not stored; the first: too large" in result.output


def test_consume_does_not_count_the_time_it_waited_for_nothing(
    ottla: Run, calls: list[Any]
) -> None:
    found = json.loads(ottla("perf", "consume", TOPIC, "--json").stdout)
    assert found["records_per_second"] == 500.0
    assert found["enough"] is False


def test_latency(ottla: Run, calls: list[Any]) -> None:
    found = json.loads(ottla("perf", "latency", TOPIC, "--json").output)
    assert found["records"] == 2
    assert found["latency_ms"]["mean"] == 2.0


@pytest.mark.parametrize("verb", ["produce", "consume", "latency"])
def test_a_topic_that_is_not_there_is_not_made_by_accident(
    ottla: Run, calls: list[Any], verb: str
) -> None:
    result = ottla("perf", verb, "nowhere")
    assert result.exit_code == 1
    assert result.output == "Error: there is no topic 'nowhere'\n"
    assert calls == []


def test_a_property_that_librdkafka_does_not_know_is_said(
    ottla: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> Sent:
        raise ValueError('No such configuration property: "x"')

    monkeypatch.setattr("ottla.client.load.produce_load", refuse)
    result = ottla("perf", "produce", TOPIC, "--property", "x=1")
    assert result.exit_code == 2
    assert '--property: No such configuration property: "x"' in result.output
