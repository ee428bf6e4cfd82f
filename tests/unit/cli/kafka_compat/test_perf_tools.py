from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.kafka_compat import run
from ottla.cli.kafka_compat.consumer_perf import PARSER as CONSUMER_PARSER
from ottla.cli.kafka_compat.e2e_latency import PARSER as LATENCY_PARSER
from ottla.cli.kafka_compat.options import Failure
from ottla.cli.kafka_compat.perf_output import date_text, metric_lines
from ottla.cli.kafka_compat.producer_perf import parser as producer_parser
from ottla.cli.kafka_compat.producer_perf import total_line
from ottla.cli.kafka_compat.verifiable_consumer import parser as verifiable_consumer_parser
from ottla.cli.kafka_compat.verifiable_producer import parser as verifiable_producer_parser
from ottla.client.load import Consumed, Sent, Taken, Window

Tool = Callable[..., tuple[int, str, str]]
WINDOW = Window(1000, 104_857_600, 2.0, 1.234, 9.0, (1.9, 2.0, 3.0, 4.0))


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    def call(name: str, *arguments: str) -> tuple[int, str, str]:
        code = run(name, arguments)
        out, err = capsys.readouterr()
        return code, out, err

    for module in ("producer_perf", "consumer_perf", "e2e_latency"):
        monkeypatch.setattr(
            f"ottla.cli.kafka_compat.{module}.check_reachable", lambda *_arguments: None
        )
    return call


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def produce(*arguments: Any, **options: Any) -> Sent:
        made.append((arguments, options))
        options["on_window"](Window(10, 1_048_576, 1.0, 0.55, 2.0))
        return Sent(WINDOW, None, 0, None, {})

    def consume(*arguments: Any, **options: Any) -> Consumed:
        made.append((arguments, options))
        return Consumed(Taken(100, 1_048_576, 2.0, 1.0), True, {})

    monkeypatch.setattr("ottla.client.load.produce_load", produce)
    monkeypatch.setattr("ottla.client.load.consume_load", consume)
    return made


PRODUCE = ("--bootstrap-server", "h:1", "--topic", "t", "--num-records", "5", "--throughput", "-1")


def test_the_lines_of_the_producer_tool(tool: Tool, loads: list[Any]) -> None:
    code, out, err = tool("kafka-producer-perf-test", *PRODUCE, "--record-size", "10")
    assert (code, err) == (0, "")
    assert out == (
        "10 records sent, 10.0 records/sec (1.00 MB/sec), 0.6 ms avg latency, 2.0 ms max latency.\n"
        "1000 records sent, 500.000000 records/sec (50.00 MB/sec), 1.23 ms avg latency, 9.00 ms "
        "max latency, 1 ms 50th, 2 ms 95th, 3 ms 99th, 4 ms 99.9th.\n"
    )


def test_java_properties_are_translated_and_bootstrap_may_be_one(
    tool: Tool, loads: list[Any]
) -> None:
    code, _, _ = tool(
        "kafka-producer-perf-test", "--topic", "t", "--num-records", "5", "--throughput", "10",
        "--record-size", "10", "--command-property", "bootstrap.servers=h:7", "acks=1",
        "buffer.memory=1048576", "key.serializer=x",
    )  # fmt: skip
    assert code == 0
    [(arguments, options)] = loads
    assert arguments[0] == "h:7"
    assert options["rate"] == 10
    assert options["config"] == {
        "client.id": "perf-producer-client",
        "acks": "1",
        "queue.buffering.max.kbytes": "1024",
    }


def test_transactions_get_an_id_and_a_length(tool: Tool, loads: list[Any]) -> None:
    tool("kafka-producer-perf-test", *PRODUCE, "--record-size", "1", "--transactional-id", "x")
    tool("kafka-producer-perf-test", *PRODUCE, "--record-size", "1",
         "--transaction-duration-ms", "50")  # fmt: skip
    (_, named), (_, timed) = loads
    assert (named["config"]["transactional.id"], named["transaction"]) == ("x", 3.0)
    assert timed["config"]["transactional.id"].startswith("performance-producer-")
    assert timed["transaction"] == 0.05


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "are required"),
        (PRODUCE, "is required"),
        ((*PRODUCE, "--record-size", "0"), "--record-size should be greater than zero."),
        ((*PRODUCE, "--record-size", "x"), "invalid int value"),
        ((*PRODUCE, "--record-size", "1", "--payload-monotonic"), "not allowed with"),
        ((*PRODUCE, "--record-size", "1", "--warmup-records", "5"), "must be strictly fewer"),
        ((*PRODUCE, "--payload-file", "/nowhere"), "File does not exist or empty file provided."),
        ((*PRODUCE[2:], "--record-size", "1"), "At least one of --bootstrap-server"),
        ((*PRODUCE, "--record-size", "1", "--command-property", "x"), "Invalid property: x"),
    ],
)
def test_a_wrong_producer_command_line_sends_nothing(
    tool: Tool, loads: list[Any], arguments: tuple[str, ...], complaint: str
) -> None:
    code, _, err = tool("kafka-producer-perf-test", *arguments)
    assert code == 1
    assert complaint in err
    assert len(err.splitlines()) == 1
    assert loads == []


def test_the_line_of_the_consumer_tool(
    tool: Tool, loads: list[Any], own_time: Callable[..., None]
) -> None:
    own_time("ottla.cli.kafka_compat.consumer_perf", time=lambda: 0.0)
    code, out, _ = tool(
        "kafka-consumer-perf-test", "--bootstrap-server", "h:1", "--topic", "t",
        "--num-records", "100", "--group", "g", "--from-latest",
        "--date-format", "ss.SSS",
    )  # fmt: skip
    assert code == 0
    assert out.splitlines()[1] == (
        "00.000, 02.000, 1.0000, 0.5000, 100, 50.0000, 1000, 1000, 1.0000, 100.0000"
    )
    [(arguments, options)] = loads
    assert arguments == ("h:1", ["t"], 100)
    assert options["group"] == "g"
    assert options["config"]["auto.offset.reset"] == "latest"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--bootstrap-server", "h:1", "--num-records", "1"), "[topic], [include]"),
        (("--bootstrap-server", "h:1", "--topic", "t"), "[messages], [num-records]"),
        (("--topic", "t", "--num-records", "1"), 'Missing required argument "[bootstrap-server]"'),
        (("--bootstrap-server", "h:1", "--topic", "t", "--num-records", "x"), "Cannot parse"),
    ],
)
def test_a_wrong_consumer_command_line_reads_nothing(
    tool: Tool, loads: list[Any], arguments: tuple[str, ...], complaint: str
) -> None:
    code, _, err = tool("kafka-consumer-perf-test", *arguments)
    assert code == 1
    assert complaint in err
    assert loads == []


def test_latency_prints_progress_and_percentiles(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.cli.kafka_compat.e2e_latency._ensure_topic", lambda *_a: None)
    monkeypatch.setattr("ottla.client.load.latency_load", lambda *_a, **_o: iter([0.5, 1.5, 7.9]))
    code, out, _ = tool("kafka-e2e-latency", "h:1", "t", "3", "all", "10")
    assert code == 0
    assert out.splitlines()[1:] == [
        "0\t0.5",
        "Avg latency: 3.3000 ms",
        "Percentiles: 50th = 1, 99th = 7, 99.9th = 7",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("h:1", "t", "3"), "Invalid number of arguments. Expected 5 or 6 positional arguments"),
        (("h:1", "t", "3", "0", "10"), "Invalid value for --producer-acks."),
        (("h:1", "t", "0", "1", "10"), "Value for --num-records must be a positive integer."),
        (("--topic", "t"), 'Missing required argument "[bootstrap-server]"'),
    ],
)
def test_a_wrong_latency_command_line(
    tool: Tool, arguments: tuple[str, ...], complaint: str
) -> None:
    code, _, err = tool("kafka-e2e-latency", *arguments)
    assert code == 1
    assert complaint in err


def test_the_flags_are_kafkas() -> None:
    expected = {
        producer_parser().format_help(): """--topic --num-records --record-size --payload-file
            --payload-monotonic --payload-delimiter --throughput --producer-props
            --command-property --producer.config --command-config --print-metrics
            --transactional-id --transaction-duration-ms --warmup-records --reporting-interval
            --bootstrap-server""",
        CONSUMER_PARSER.help(): """--bootstrap-server --topic --include --group --num-records
            --messages --fetch-size --socket-buffer-size --from-latest --timeout
            --reporting-interval --show-detailed-stats --hide-header --print-metrics
            --date-format --consumer.config --command-config --command-property""",
        LATENCY_PARSER.help(): """--bootstrap-server --topic --num-records --producer-acks
            --record-size --command-config --record-key-size --num-headers
            --record-header-key-size --record-header-size""",
        verifiable_producer_parser().format_help(): """--topic --max-messages --throughput --acks
            --producer.config --command-config --message-create-time --value-prefix
            --repeating-keys --bootstrap-server""",
        verifiable_consumer_parser().format_help(): """--topic --group-protocol
            --group-remote-assignor --group-id --group-instance-id --max-messages
            --session-timeout --verbose --enable-autocommit --reset-policy
            --assignment-strategy --consumer.config --command-config --bootstrap-server""",
    }
    for text, flags in expected.items():
        for flag in flags.split():
            assert re.search(rf"{re.escape(flag)}\b", text), flag


def test_dates_in_javas_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert date_text(1.5, "yyyy-MM-dd HH:mm:ss:SSS") == "1970-01-01 00:00:01:500"
    assert date_text(0, "dd/MM/yy 'at' hh") == "01/01/70 at 12"
    with pytest.raises(Failure, match="EEE is not understood"):
        date_text(0, "EEE")


def test_metrics_are_one_name_and_value_per_line() -> None:
    lines = list(metric_lines({"txmsgs": 5, "brokers": {"b:1/1": {"tx": 2}}, "x": "y"}, "me"))
    assert lines[0].split() == ["Metric", "Name", "Value"]
    assert lines[1:] == [
        "librdkafka:brokers:b:1/1:tx:{client-id=me} : 2.000",
        "librdkafka:txmsgs:{client-id=me}           : 5.000",
        "librdkafka:x:{client-id=me}                : y",
    ]


def test_a_summary_of_the_steady_part_says_so() -> None:
    assert total_line(WINDOW, " steady state").startswith("1000 steady state records sent, 500.0")


def test_payloads_of_a_file_are_split_and_empty_ends_dropped(
    tool: Tool, loads: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "payloads"
    path.write_text("one;two;;")
    _, out, _ = tool(
        "kafka-producer-perf-test", *PRODUCE, "--payload-file", str(path),
        "--payload-delimiter", ";",
    )  # fmt: skip
    assert f"Reading payloads from: {path}\nNumber of records read: 2\n" in out
    [(arguments, _)] = loads
    assert {next(arguments[3]) for _ in range(50)} == {b"one", b"two"}
