from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from ottla.cli.produce import Found
from ottla.cli.record_lines import (
    BadLine,
    Line,
    LongLine,
    Shape,
    bounded_lines,
    json_line,
    parse,
    parse_json,
    strip_end,
)
from ottla.cli.sending import Sender, Target
from ottla.client.errors import ClientError, DeliveryFailedError
from ottla.client.records import Record
from ottla.errors import ErrorCode, KafkaError

Run = Callable[..., Result]


class FakeProducer:
    """Keeps what it is given; fails on close when told to."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.sent: list[tuple[Any, ...]] = []
        self.timestamps: list[int | None] = []
        self.failures: list[KafkaError] = []
        self.found: Found | None = Found(3, 1_048_588)
        self.creates = 0
        self.full = 0
        self.under_way = 0
        self.closed = False

    def __call__(self, bootstrap: str, **options: Any) -> FakeProducer:
        self.options = {"bootstrap": bootstrap, **options}
        return self

    def partitions(self, topic: str, *, timeout: float) -> int:
        if not self.creates:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none")
        self.found = Found(self.creates, None)
        return self.creates

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __len__(self) -> int:
        return self.under_way

    def __bool__(self) -> bool:
        return True

    def post(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Any = None,
    ) -> None:
        if self.full:
            self.full -= 1
            raise ClientError(ErrorCode.REQUEST_TIMED_OUT, "no room", local="_QUEUE_FULL")
        self.sent.append((topic, value, key, headers, partition))
        self.timestamps.append(timestamp)
        if on_delivery is not None:
            on_delivery(None, self.refusal)

    refusal: KafkaError | None = None

    def close(self, timeout: float | None = None) -> None:
        self.closed = True
        if self.failures:
            raise DeliveryFailedError(self.failures)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    fake = FakeProducer()
    monkeypatch.setattr("ottla.client.producer.Producer", fake)
    monkeypatch.setattr("ottla.cli.produce.connect", lambda bootstrap: None)
    monkeypatch.setattr("ottla.cli.produce.look_up", lambda _bootstrap, _topic: fake.found)
    monkeypatch.setattr("ottla.cli.produce.quiet_client_log", lambda: None)
    return fake


def sender(producer: FakeProducer, **target: Any) -> Sender:
    where = Target("t", None, 3, 1_048_588, False)._replace(**target)
    return Sender(producer, where, "b:1")


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
    lines = [b"a\n", b"b\r\n", b"\n", b"c\r", b"d"]
    assert [strip_end(line) for line in lines] == [b"a", b"b", b"", b"c\r", b"d"]


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
    assert "in a compacted topic every record must have a key (--key-separator or" in result.stderr


def test_a_bad_line_ends_it_but_what_was_read_is_sent(ottla: Run, producer: FakeProducer) -> None:
    result = ottla("produce", "t", "--key-separator", "=", input="a=1\nb\nc=3\n")
    assert result.exit_code == 1
    assert [record[1] for record in producer.sent] == [b"1"]
    assert result.stderr.splitlines()[-1] == (
        "Error: line 2 has no key separator '='; the lines before it were sent, it and those "
        "behind it were not"
    )
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

    report = sender(producer).send_lines(lines(), Shape())
    assert (report.sent, report.error) == (1, None)
    assert producer.closed
    report = sender(producer).send_lines(lines(), Shape(), is_file=True)
    assert report.error == "stopped after 1 line: the rest was not sent"


def test_an_input_that_cannot_be_read_on_is_accounted_for(producer: FakeProducer) -> None:
    def lines() -> Iterator[bytes]:
        yield b"a\n"
        raise OSError(5, "Input/output error")

    report = sender(producer).send_lines(lines(), Shape(), is_file=True)
    assert (report.sent, report.error) == (
        1,
        "line 2 cannot be read: Input/output error; the lines before it were sent",
    )


def test_a_missing_topic_is_an_error_before_anything_is_read(
    ottla: Run, producer: FakeProducer
) -> None:
    producer.found = None
    result = ottla("produce", "t", input=io.BytesIO(b"a\n"))
    assert result.exit_code == 1
    assert "there is no topic 't'; create it with `ottla topic create t`" in result.stderr
    assert producer.sent == []


def test_a_topic_that_the_broker_creates_is_no_secret(
    ottla: Run, producer: FakeProducer, topics_there: list[str]
) -> None:
    topics_there += ["orders"]
    producer.found, producer.creates = None, 2
    result = ottla("produce", "order", "-q", input="a\n")
    assert (result.exit_code, result.stderr) == (
        0,
        "there was no topic 'order': the broker has created it, with 2 partitions; did you mean "
        "'orders'? `ottla topic delete order` removes it\n",
    )
    producer.found = None
    assert ottla("produce", "zebra", "-q", input="a\n").stderr == (
        "there was no topic 'zebra': the broker has created it, with 2 partitions\n"
    )


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
        (["--key", "k", "--key-separator", ":"], "--key and --key-separator exclude each other"),
        (["--format", "json", "--key", "k"], "--format json and --key exclude each other"),
        (["--format", "json", "--null", "-"], "--format json and --null exclude each other"),
        (["--whole-file", __file__, "--file", __file__], "--whole-file and --file exclude"),
        (["--whole-file", __file__, "--format", "json"], "--whole-file and --format json exclude"),
        (["--whole-file", "nosuch"], "'nosuch' does not exist"),
        (["--whole-file", "-", "--whole-file", "-"], "stdin can be read once"),
    ],
)
def test_wrong_options_are_usage_errors(
    ottla: Run, producer: FakeProducer, arguments: list[str], complaint: str
) -> None:
    result = ottla("produce", "t", *arguments, input="a\n")
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert producer.sent == []


# -- whole files


def test_a_whole_file_is_one_record(ottla: Run, producer: FakeProducer, tmp_path: Any) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"one\ntwo\n\xff")
    second.write_bytes(b"")
    result = ottla(
        "produce", "t", "--whole-file", str(first), "--whole-file", str(second),
        "--whole-file", "-", "--key", "k", "--header", "h=1", input="typed\n",
    )  # fmt: skip
    assert result.exit_code == 0
    headers = [("h", b"1")]
    assert producer.sent == [
        ("t", b"one\ntwo\n\xff", b"k", headers, None),
        ("t", b"", b"k", headers, None),
        ("t", b"typed\n", b"k", headers, None),
    ]
    assert result.stderr.startswith("sent 3 records (24 bytes) to t in ")


def test_a_file_that_is_too_large_is_not_even_read(producer: FakeProducer) -> None:
    class Huge:
        name, size, key, headers = "huge.bin", 2_000_000, None, ()

        def read(self) -> bytes:
            raise AssertionError

    report = sender(producer).send_files([Huge()])
    assert report.sent == 0
    assert report.error == (
        "huge.bin has 2,000,000 bytes, more than 't' takes with max.message.bytes=1048588; raise "
        "it with `ottla topic alter t --config max.message.bytes=N`; nothing was sent"
    )


# -- sizes


TOO_LARGE = (
    "line 2 has 5,000 bytes, more than 't' takes with max.message.bytes=1000; raise it with `ottla "
    "topic alter t --config max.message.bytes=N`"
)


def test_an_oversized_line_is_named_and_ends_it(ottla: Run, producer: FakeProducer) -> None:
    producer.found = Found(1, 1000)
    result = ottla("produce", "t", input="a\n" + "x" * 5000 + "\nc\n")
    assert [record[1] for record in producer.sent] == [b"a"]
    summary, error = result.stderr.splitlines()
    assert summary.startswith("sent 1 record (1 byte) to t")
    assert error == (
        f"Error: {TOO_LARGE}; the lines before it were sent, it and those behind it were not"
    )
    assert producer.options["config"]["batch.size"] == 1000


def test_a_record_that_only_the_broker_can_measure_is_named_when_it_refuses_it(
    ottla: Run, producer: FakeProducer
) -> None:
    producer.found = Found(1, 1000)
    producer.refusal = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "Broker: Message size too large")
    result = ottla(
        "produce", "t", "--compression", "zstd", "--json", input="a\n" + "x" * 5000 + "\nc\n"
    )
    document = json.loads(result.stdout)
    assert document.pop("seconds") >= 0
    assert document == {
        "topic": "t",
        "sent": 2,
        "failed": 1,
        "bytes": 2,
        "error": f"1 record of 3 not delivered: {TOO_LARGE}",
    }


def test_the_bytes_of_records_that_were_refused_are_not_counted(producer: FakeProducer) -> None:
    failure = ClientError(ErrorCode.INVALID_RECORD, "refused")
    failure.record_size = 4
    producer.failures = [failure]
    report = sender(producer).send_lines([b"ab\n", b"four\n", b"c\n"], Shape())
    assert (report.sent, report.failed, report.bytes) == (2, 1, 3)


def test_a_line_without_an_end_is_measured_and_not_kept() -> None:
    stream = io.BytesIO(b"short\n" + b"x" * 3_000_000 + b"\nnext\n")
    lines = bounded_lines(stream, 1000)
    assert next(lines) == b"short\n"
    with pytest.raises(LongLine) as caught:
        next(lines)
    assert caught.value.size == 3_000_001
    assert stream.readline() == b"next\n"


def test_a_full_buffer_is_waited_for_and_no_line_is_lost(producer: FakeProducer) -> None:
    producer.full = 3
    report = sender(producer).send_lines([b"a\n", b"b\n"], Shape())
    assert [record[1] for record in producer.sent] == [b"a", b"b"]
    assert report.sent == 2


def test_after_ctrl_c_a_long_wait_for_the_last_records_is_explained(
    producer: FakeProducer, own_time: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("ottla.cli.patience.AFTER", 0.0)
    monkeypatch.setattr("ottla.cli.patience.click.echo", lambda line, err: told.append(line))
    producer.under_way = 2

    def typed() -> Iterator[bytes]:
        yield b"a\n"
        yield b"b\n"
        signal.raise_signal(signal.SIGINT)
        yield b"c\n"

    def stored(_seconds: float) -> None:
        if told:
            producer.under_way = 0

    own_time("ottla.cli.sending", sleep=stored)
    report = sender(producer).send_lines(typed(), Shape())
    assert (report.sent, report.error) == (2, None)
    assert told == ["waiting until 2 records can be stored; Ctrl-C again gives up"]


def test_a_second_ctrl_c_says_what_may_be_stored_or_not(
    producer: FakeProducer, own_time: Callable[..., None]
) -> None:
    producer.under_way = 2
    producer.failures = [ClientError(ErrorCode.REQUEST_TIMED_OUT, "purged")] * 2
    own_time("ottla.cli.sending", sleep=lambda _seconds: signal.raise_signal(signal.SIGINT))
    report = sender(producer).send_lines([b"a\n", b"b\n", b"c\n"], Shape())
    assert (report.sent, report.failed) == (1, 2)
    assert report.error == "stopped while 2 records had no answer: they may be stored or not"


# -- JSON


@pytest.mark.parametrize(
    "given",
    [
        Record("t", 1, 7, 1_700_000_000_123, "create", b"k", b"v", (("a", b"1"), ("a", None))),
        Record("t", 0, 0, 5, "append", None, None, ()),
        Record("t", 2, 1, 5, "create", b"\xff\x00", b"\xfe", (("h", b"\xff"), ("\u00e9", b""))),
        Record("t", 0, 1, 5, "create", b"", b'a\nb"\t\\', ()),
        Record("t", 0, 1, -1, "none", "\U0001f600".encode(), b"{}", ()),
    ],
)
def test_what_consume_prints_as_json_is_read_back_exactly(given: Record[bytes, bytes]) -> None:
    line = parse_json(json_line(given))
    assert (line.value, line.key) == (given.value, given.key)
    assert tuple(line.headers) == given.headers
    assert line.partition == given.partition
    assert line.timestamp == (None if given.timestamp < 0 else given.timestamp)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"value": "v"', "is not JSON: Expecting ',' delimiter at character 14"),
        ("hello", "is not JSON: Expecting value at character 1"),
        ("\xff", "is not JSON: "),
        ("[1]", "is not a JSON object"),
        ('{"key": "k"}', 'has no value; one that is null is written "value": null'),
        ('{"vaule": "v"}', "has an unknown field 'vaule'; there are key, key_base64, value"),
        ('{"value": {"a": 1}}', "has a value that is not a string"),
        ('{"value": "v", "key": 1}', "has a key that is not a string"),
        ('{"value": "\\ud800"}', "has a value with half a surrogate pair"),
        ('{"value": "v", "value_base64": "/w=="}', "has both value and value_base64"),
        ('{"value_base64": "/w="}', "has a value_base64 that is not base64"),
        ('{"value_base64": 1}', "has a value_base64 that is not base64"),
        ('{"value": "v", "partition": "1"}', "has a partition that is not a whole number"),
        ('{"value": "v", "partition": true}', "has a partition that is not a whole number"),
        ('{"value": "v", "partition": -1}', "has a partition that is not a whole number"),
        ('{"value": "v", "partition": 3}', "names partition 3; 't' has 0 to 2"),
        ('{"value": "v", "timestamp": 1.5}', "has a timestamp that is not a whole number"),
        ('{"value": "v", "timestamp": 0}', "has the timestamp 0, which librdkafka takes for"),
        ('{"value": "v", "headers": {"a": 1}}', "has headers that are not a list"),
        ('{"value": "v", "headers": [["a"]]}', "has a header ['a'] that is not [name, value]"),
        ('{"value": "v", "headers": [["a", 1]]}', "has a header 'a' that is not a string"),
        (
            '{"value": "v", "headers": [["a", {"base64": "!"}]]}',
            "has a header 'a' that is not base",
        ),
    ],
)
def test_a_bad_line_of_json_is_named_with_what_is_wrong(
    ottla: Run, producer: FakeProducer, text: str, complaint: str
) -> None:
    lines = b'{"value": "first"}\n\n' + text.encode("latin-1") + b'\n{"value": "last"}\n'
    result = ottla("produce", "t", "--format", "json", input=lines)
    assert result.exit_code == 1
    assert [record[1] for record in producer.sent] == [b"first"]
    assert f"Error: line 3 {complaint}" in result.stderr
    assert "the lines before it were sent, it and those behind it were not" in result.stderr


def test_json_says_where_a_record_goes_unless_an_option_does(
    ottla: Run, producer: FakeProducer
) -> None:
    line = '{"topic": "other", "offset": 9, "value": "v", "partition": 1, "timestamp": 5}\n'
    ottla("produce", "t", "--format", "json", "--header", "h=1", input=line)
    ottla("produce", "t", "--format", "json", "--partition", "2", input=line)
    assert producer.sent == [("t", b"v", None, [("h", b"1")], 1), ("t", b"v", None, [], 2)]
    assert producer.timestamps == [5, 5]
