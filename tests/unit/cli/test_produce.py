from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from ottla.cli.produce import send
from ottla.cli.record_lines import BadLine, Line, Shape, parse, strip_ends
from ottla.client.errors import DeliveryFailedError
from ottla.errors import ErrorCode, KafkaError

Run = Callable[..., Result]


class FakeProducer:
    """Keeps what it is given; fails on close when told to."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.sent: list[tuple[Any, ...]] = []
        self.failures: list[KafkaError] = []
        self.known = 3
        self.closed = False

    def __call__(self, bootstrap: str, **options: Any) -> FakeProducer:
        self.options = {"bootstrap": bootstrap, **options}
        return self

    def partitions(self, topic: str, *, timeout: float) -> int:
        if not self.known:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none")
        return self.known

    def post(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Any = None,
        partition: int | None = None,
    ) -> None:
        self.sent.append((topic, value, key, headers, partition))

    def close(self) -> None:
        self.closed = True
        if self.failures:
            raise DeliveryFailedError(self.failures)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    fake = FakeProducer()
    monkeypatch.setattr("ottla.client.producer.Producer", fake)
    monkeypatch.setattr("ottla.cli.produce.connect", lambda bootstrap: None)
    monkeypatch.setattr("ottla.cli.produce.quiet_client_log", lambda: None)
    return fake


@pytest.mark.parametrize(
    ("text", "shape", "line"),
    [
        (b"v", Shape(), Line(b"v", None, [])),
        (b"", Shape(), Line(b"", None, [])),
        (b"k=v=w", Shape(b"="), Line(b"v=w", b"k", [])),
        (b"=v", Shape(b"="), Line(b"v", b"", [])),
        (b"k::", Shape(b"::"), Line(b"", b"k", [])),
        (b"NULL", Shape(null=b"NULL"), Line(None, None, [])),
        (b"NULL=NULL", Shape(b"=", null=b"NULL"), Line(None, None, [])),
        (b"a:1,b:\tv", Shape(None, True), Line(b"v", None, [("a", b"1"), ("b", b"")])),
        (b"\tv", Shape(None, True), Line(b"v", None, [])),
        (b"a:1\tk\tv", Shape(b"\t", True), Line(b"v", b"k", [("a", b"1")])),
        (
            b"a:1\tv",
            Shape(None, True, headers=[("z", b"9")]),
            Line(b"v", None, [("z", b"9"), ("a", b"1")]),
        ),
        (b"\xff", Shape(), Line(b"\xff", None, [])),
    ],
)
def test_a_line_is_headers_key_and_value(text: bytes, shape: Shape, line: Line) -> None:
    assert parse(text, shape) == line


@pytest.mark.parametrize(
    ("text", "shape", "complaint"),
    [
        (b"v", Shape(b"="), "has no key separator '='"),
        (b"a:1", Shape(None, True), "has no tab after its headers"),
        (b"a\tv", Shape(None, True), "has a header 'a', not NAME:VALUE"),
    ],
)
def test_a_line_of_another_shape_is_refused(text: bytes, shape: Shape, complaint: str) -> None:
    with pytest.raises(BadLine, match=complaint):
        parse(text, shape)


def test_line_ends_of_both_kinds_are_taken_off() -> None:
    assert list(strip_ends([b"a\n", b"b\r\n", b"\n", b"c\r", b"d"])) == [
        b"a",
        b"b",
        b"",
        b"c\r",
        b"d",
    ]


def test_every_line_is_a_record_and_the_summary_goes_to_stderr(
    ottla: Run, producer: FakeProducer
) -> None:
    result = ottla("produce", "t", input="a\nb\n\nlast")
    assert (result.exit_code, result.stdout) == (0, "")
    assert [record[1] for record in producer.sent] == [b"a", b"b", b"", b"last"]
    assert result.stderr.startswith("sent 4 records (6 bytes) to t in ")
    assert producer.closed


def test_options_become_keys_headers_and_partition(ottla: Run, producer: FakeProducer) -> None:
    result = ottla(
        "produce", "t", "--key-separator", r"\t", "--header", "h=1=2", "--partition", "2",
        "--null", "-", input="k\tv\n-\t-\n",
    )  # fmt: skip
    assert result.exit_code == 0
    assert producer.sent == [
        ("t", b"v", b"k", [("h", b"1=2")], 2),
        ("t", None, None, [("h", b"1=2")], 2),
    ]


def test_acks_compression_and_timeout_reach_the_producer(
    ottla: Run, producer: FakeProducer
) -> None:
    ottla(
        "produce", "t", "--acks", "1", "--compression", "zstd", "--timeout", "7",
        "--bootstrap", "b:1", input="",
    )  # fmt: skip
    assert producer.options["acks"] == 1
    assert producer.options["compression"] == "zstd"
    assert producer.options["delivery_timeout"] == 7
    assert producer.options["bootstrap"] == "b:1"


def test_a_file_takes_the_place_of_stdin(ottla: Run, producer: FakeProducer, tmp_path: Any) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xff\nb\n")
    assert ottla("produce", "t", "--file", str(path), input="x").exit_code == 0
    assert [record[1] for record in producer.sent] == [b"\xff", b"b"]


def test_undelivered_records_fail_the_command(ottla: Run, producer: FakeProducer) -> None:
    producer.failures = [KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")] * 2
    result = ottla("produce", "t", input="a\nb\nc\n")
    assert result.exit_code == 1
    assert "sent 1 record (" in result.stderr
    assert "Error: 2 records of 3 not delivered: too large" in result.stderr


def test_a_refused_record_is_told_what_compacted_topics_want(
    ottla: Run, producer: FakeProducer
) -> None:
    producer.failures = [KafkaError(ErrorCode.INVALID_RECORD, "Broker failed to validate record")]
    result = ottla("produce", "t", input="a\n")
    assert "in a compacted topic every record must have a key (--key-separator)" in result.stderr


def test_a_bad_line_ends_it_but_what_was_read_is_sent(ottla: Run, producer: FakeProducer) -> None:
    result = ottla("produce", "t", "--key-separator", "=", input="a=1\nb\nc=3\n")
    assert result.exit_code == 1
    assert [record[1] for record in producer.sent] == [b"1"]
    assert "line 2 has no key separator '='; the lines before it were sent" in result.stderr
    assert producer.closed


def test_the_summary_as_json(ottla: Run, producer: FakeProducer) -> None:
    producer.failures = [KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")]
    result = ottla("produce", "t", "--json", input="a\nb\n")
    document = json.loads(result.stdout)
    assert document.pop("seconds") >= 0
    assert document == {
        "topic": "t",
        "sent": 1,
        "failed": 1,
        "bytes": 2,
        "error": "1 record of 2 not delivered: too large",
    }
    assert result.exit_code == 1


def test_quiet_says_nothing(ottla: Run, producer: FakeProducer) -> None:
    assert ottla("produce", "t", "-q", input="a\n").output == ""


def test_ctrl_c_still_sends_what_was_read(producer: FakeProducer) -> None:
    def lines() -> Iterator[bytes]:
        yield b"a\n"
        raise KeyboardInterrupt

    report = send(producer, "t", lines(), Shape(), None, "b:1")  # type: ignore[arg-type]
    assert (report.sent, report.error) == (1, None)
    assert producer.closed


def test_a_missing_topic_is_an_error_before_anything_is_read(
    ottla: Run, producer: FakeProducer
) -> None:
    producer.known = 0
    result = ottla("produce", "t", input=io.BytesIO(b"a\n"))
    assert result.exit_code == 1
    assert "there is no topic 't'; create it with `ottla topic create t`" in result.stderr
    assert producer.sent == []


def test_a_missing_partition_is_an_error(ottla: Run, producer: FakeProducer) -> None:
    result = ottla("produce", "t", "--partition", "3", input="a\n")
    assert result.exit_code == 1
    assert "there is no partition 3 of topic 't'; it has 0 to 2" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--key-separator", ""], "--key-separator is empty"),
        (["--header", "x"], "--header 'x': expected NAME=VALUE"),
        (["--acks", "2"], "'all', '1', '0'"),
        (["--compression", "brotli"], "'zstd'"),
        (["--partition", "-1"], "-1 is not in the range"),
        (["--timeout", "0"], "0.0 is not in the range"),
    ],
)
def test_wrong_options_are_usage_errors(
    ottla: Run, producer: FakeProducer, arguments: list[str], complaint: str
) -> None:
    result = ottla("produce", "t", *arguments, input="a\n")
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert producer.sent == []
