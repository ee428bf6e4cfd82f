from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
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
        return Consumed(Taken(500, 50_000, 7.0, 1.0), False, {}, idle=5.0)

    monkeypatch.setattr("ottla.client.load.produce_load", produce)
    monkeypatch.setattr("ottla.client.load.consume_load", consume)
    monkeypatch.setattr("ottla.client.load.latency_load", lambda *_a, **_o: iter([1.0, 3.0]))
    return made


def test_produce_shows_rates_and_latencies(ottla: Run, calls: list[Any]) -> None:
    result = ottla("perf", "produce", TOPIC, "--records", "1000", "--acks", "1")
    assert result.output == (
        "RECORDS  SECONDS  RECORDS/S  MB/S  MEAN MS   P50   P95   P99  P99.9   MAX\n"
        "  1,000     2.00        500  0.05     1.50  1.00  2.00  3.00   4.00  9.00\n"
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


@pytest.mark.parametrize("arguments", [[], ["--json"]])
@pytest.mark.parametrize(
    ("verb", "measured", "said"),
    [
        (
            "produce",
            Sent(Window(0, 0, 3.0, 0.0, 0.0, (0.0,) * 4), None, 0, None, {}, stopped=True),
            "stopped before the first record was acknowledged",
        ),
        (
            "consume",
            Consumed(Taken(0, 0, 3.0, 0.0), False, {}, idle=3.0, stopped=True),
            "stopped before the first record came",
        ),
        (
            "consume",
            Consumed(Taken(0, 0, 5.1, 0.0), False, {}, idle=5.1),
            "no record came within 5 s",
        ),
    ],
)
def test_without_a_record_there_are_no_figures(
    ottla: Run,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    measured: Any,
    said: str,
    arguments: list[str],
) -> None:
    monkeypatch.setattr(f"ottla.client.load.{verb}_load", lambda *_a, **_o: measured)
    result = ottla("perf", verb, TOPIC, *arguments)
    assert (result.exit_code, result.output) == (1, f"Error: {said}: nothing was measured\n")


def test_what_was_measured_before_ctrl_c_is_shown_as_that(
    ottla: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(WINDOW, None, 0, None, {}, stopped=True, abandoned=7)
    monkeypatch.setattr("ottla.client.load.produce_load", lambda *_a, **_o: sent)
    result = ottla("perf", "produce", TOPIC, "--records", "5000")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[0] == "1,000"
    assert result.stderr == "stopped after 1,000 of 5,000 records; 7 more may be stored or not\n"
    taken = Consumed(Taken(500, 50_000, 3.0, 1.0), False, {}, idle=1.0, stopped=True)
    monkeypatch.setattr("ottla.client.load.consume_load", lambda *_a, **_o: taken)
    result = ottla("perf", "consume", TOPIC, "--json", "--timeout", "60")
    assert json.loads(result.stdout)["records_per_second"] == 500.0
    assert result.stderr == "stopped after 500 of 100,000 records\n"


@pytest.mark.parametrize("verb", ["produce", "consume", "latency"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_before_the_load_began_is_one_line(
    ottla: Run, scene: Any, monkeypatch: pytest.MonkeyPatch, verb: str, number: signal.Signals
) -> None:
    monkeypatch.setattr(scene.topics, "partitions", lambda _topics: signal.raise_signal(number))
    result = ottla("perf", verb, TOPIC)
    assert result.output == "Error: stopped before the first record: nothing was measured\n"


def test_latency_stopped_early(ottla: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_arguments: Any, **_options: Any) -> Iterator[float]:
        yield 1.0
        raise KeyboardInterrupt

    monkeypatch.setattr("ottla.client.load.latency_load", load)
    result = ottla("perf", "latency", TOPIC)
    assert result.stdout.splitlines()[1].split() == ["1", *["1.00"] * 6]
    assert result.stderr == "stopped after 1 of 1,000 records\n"


def test_latency(ottla: Run, calls: list[Any]) -> None:
    found = json.loads(ottla("perf", "latency", TOPIC, "--records", "2", "--json").output)
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
