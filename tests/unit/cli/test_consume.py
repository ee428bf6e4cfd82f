from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from click.testing import Result

from ottla.cli.consume import (
    Printed,
    choose,
    copy,
    parse_partitions,
    parse_time,
    reader_is_gone,
    starting_point,
    what_for,
    where_it_begins,
)
from ottla.cli.progress import WaitingLine
from ottla.cli.record_lines import for_terminal, json_line, line_writer
from ottla.client.records import Record
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

Run = Callable[..., Result]


def record(value: bytes | None = b"v", **fields: Any) -> Record[bytes, bytes]:
    given: dict[str, Any] = {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": 1_700_000_000_123,
        "timestamp_type": "create",
        "key": None,
        "value": value,
        **fields,
    }
    return Record(**given)


FULL = record(key=b"k", headers=(("a", b"1"), ("b", None)))
ALL = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2))


class FakeConsumer:
    """Gives batches of records; None stands for a moment in which nothing is there."""

    def __init__(self, *batches: list[Record[bytes, bytes]] | None) -> None:
        self.batches = list(batches)
        self.assigned: Any = None
        self.subscribed: Any = None
        self.options: dict[str, Any] = {}
        self.at_end = False
        self.first, self.end = 0, 10_000_000
        self.no_coordinator = False
        self.closed = False
        self.handlers: list[Any] = []
        self.group: str | None = None
        self.group_is_at: int | None = None
        self.group_has: tuple[TopicPartition, ...] = ()
        self.committed_offsets: dict[TopicPartition, int] = {}

    def __call__(self, bootstrap: str, **options: Any) -> FakeConsumer:
        self.options = {"bootstrap": bootstrap, **options}
        return self

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.committed_offsets = offsets
        self.handlers.append(signal.getsignal(signal.SIGINT))

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        if topic not in ("t", "other"):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
        return ALL if topic == "t" else (TopicPartition("other", 0),)

    def assign(self, partitions: Any, start: Any = None) -> None:
        if start is None:
            [start] = set(partitions.values())
        self.assigned = (list(partitions), start)

    def offsets(self, partitions: Any, at: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.first if at == "earliest" else self.end)

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        if self.no_coordinator:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "timed out")
        return dict.fromkeys(partitions, self.group_is_at)

    def subscribe(self, topics: tuple[str, ...], *, on_revoke: Any) -> None:
        self.subscribed = topics

    def assignment(self) -> tuple[TopicPartition, ...]:
        return self.group_has

    def take(self, most: int, timeout: float = 0.0) -> list[Record[bytes, bytes]]:
        if not self.batches:
            raise KeyboardInterrupt
        if self.batches[0] is None:
            if timeout:
                self.batches.pop(0)
            return []
        batch = self.batches.pop(0) or []
        if len(batch) > most:
            self.batches.insert(0, batch[most:])
        return batch[:most]

    joining = False

    def end_check(self) -> Callable[[], bool]:
        return lambda: self.at_end

    def __enter__(self) -> FakeConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.handlers.append(signal.getsignal(signal.SIGINT))
        self.closed = True


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    fake = FakeConsumer([record(b"a"), record(b"b")], None, [record(b"c")])
    monkeypatch.setattr("ottla.client.consumer.Consumer", fake)
    monkeypatch.setattr("ottla.cli.consume.connect", lambda bootstrap: None)
    monkeypatch.setattr("ottla.cli.consume.quiet_client_log", lambda: None)
    return fake


# -- what is read


def test_values_alone_until_ctrl_c_which_is_a_clean_end(ottla: Run, consumer: FakeConsumer) -> None:
    result = ottla("consume", "t")
    assert (result.exit_code, result.output) == (0, "a\nb\nc\n")
    assert consumer.assigned == (list(ALL), "latest")
    assert consumer.closed


@pytest.mark.parametrize(
    ("options", "start"),
    [
        (["--from-beginning"], "earliest"),
        (["--offset", "earliest"], "earliest"),
        (["--offset", "latest"], "latest"),
        (["--offset", "0"], 0),
        (["--offset", "42"], 42),
        (["--offset", "1,234,567"], 1_234_567),
        (["--offset", "-5"], -5),
        (["--timestamp", "1700000000123"], datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
        (["--timestamp", "2023-11-14T22:13:20Z"], datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    ],
)
def test_where_to_start(ottla: Run, consumer: FakeConsumer, options: list[str], start: Any) -> None:
    assert ottla("consume", "t", *options).exit_code == 0
    assert consumer.assigned == (list(ALL), start)


def test_only_some_partitions(ottla: Run, consumer: FakeConsumer) -> None:
    ottla("consume", "t", "--partitions", "2, 0,2")
    assert consumer.assigned[0] == [ALL[0], ALL[2]]


def test_a_group_subscribes(ottla: Run, consumer: FakeConsumer) -> None:
    ottla("consume", "t", "--group", "g")
    assert consumer.subscribed == ("t",)
    assert consumer.assigned is None
    assert consumer.options["group"] == "g"


def test_a_new_group_is_told_where_it_begins(ottla: Run, consumer: FakeConsumer) -> None:
    told = "the group 'g' has read nothing of 't' yet: it begins at the first record"
    assert told in ottla("consume", "t", "--group", "g").stderr
    consumer.group_is_at = 4
    assert told not in ottla("consume", "t", "--group", "g").stderr


@pytest.mark.parametrize(
    ("options", "reset", "said"),
    [
        (["--from-beginning"], "earliest", "it begins at the first record"),
        (["--offset", "earliest"], "earliest", "it begins at the first record"),
        (["--offset", "latest"], "latest", "it begins at the end, with what comes from now on"),
    ],
)
def test_a_start_that_is_asked_for_holds_where_the_group_has_none(
    ottla: Run, consumer: FakeConsumer, options: list[str], reset: str, said: str
) -> None:
    result = ottla("consume", "t", "--group", "g", *options)
    assert (result.exit_code, consumer.subscribed) == (0, ("t",))
    assert consumer.options["reset"] == reset
    assert said in result.stderr
    consumer.group_is_at = 4
    consumer.batches = [[record(b"a")]]
    assert ottla("consume", "t", "--group", "g", *options).stderr == (
        "the group 'g' has read 't' before and goes on where it was; to begin anew: "
        f"ottla group reset g --topic t --to {reset} --execute\n"
    )


def test_a_group_that_has_read_some_partitions_begins_in_the_others() -> None:
    committed = {ALL[0]: 4, ALL[1]: None, ALL[2]: None}
    assert where_it_begins("g", ("t",), committed, None) is None
    assert where_it_begins("g", ("t",), committed, "earliest") == (
        "the group 'g' begins at the first record in 2 partitions, and goes on where it was in the "
        "other 1; to begin anew: ottla group reset g --topic t --to earliest --execute"
    )


def test_several_topics(ottla: Run, consumer: FakeConsumer) -> None:
    assert ottla("consume", "t", "other", "t").exit_code == 0
    assert consumer.assigned == ([*ALL, TopicPartition("other", 0)], "latest")
    consumer.batches = [[record(b"a")]]
    ottla("consume", "t", "other", "--group", "g")
    assert consumer.subscribed == ("t", "other")
    consumer.assigned = None
    result = ottla("consume", "t", "nosuch")
    assert "there is no topic 'nosuch'; create it" in result.stderr
    assert consumer.assigned is None
    assert ottla("consume").exit_code == 2


def test_a_group_that_no_broker_coordinates_is_an_error(ottla: Run, consumer: FakeConsumer) -> None:
    consumer.no_coordinator = True
    result = ottla("consume", "t", "--group", "g")
    assert (result.exit_code, consumer.subscribed) == (1, None)
    assert "no broker coordinates the group 'g'; leave out --group" in result.stderr


def test_max_stops_in_the_middle_of_a_batch(ottla: Run, consumer: FakeConsumer) -> None:
    assert ottla("consume", "t", "--max", "1").output == "a\n"


def test_exit_at_end(ottla: Run, consumer: FakeConsumer) -> None:
    consumer.at_end = True
    assert ottla("consume", "t", "--exit-at-end").output == "a\nb\n"


def test_timeout_stops_when_nothing_comes(ottla: Run, consumer: FakeConsumer) -> None:
    consumer.batches = [[record(b"a")], *[None] * 1_000_000]
    assert ottla("consume", "t", "--timeout", "0.001").output == "a\n"


def test_a_missing_topic_is_an_error_that_says_what_to_do(
    ottla: Run, consumer: FakeConsumer
) -> None:
    result = ottla("consume", "nosuch")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: there is no topic 'nosuch'; create it with `ottla topic create nosuch`\n"
    )


def test_a_missing_partition_is_an_error(ottla: Run, consumer: FakeConsumer) -> None:
    result = ottla("consume", "t", "--partitions", "5")
    assert result.exit_code == 1
    assert "there is no partition 5 of topic 't'; it has 0 to 2" in result.stderr
    with pytest.raises(KafkaError, match="it has only partition 0"):
        choose(ALL[:1], [1])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--from-beginning", "--offset", "1"], "exclude each other"),
        (["--offset", "1", "--timestamp", "1"], "exclude each other"),
        (["--offset", "first"], "expected a number, -N for N before the end, earliest or latest"),
        (["--timestamp", "yesterday"], "expected a time as 2026-05-01T12:00:00Z"),
        (["--partitions", "0,x"], "expected numbers with commas, as 0,2"),
        (["--partitions", ""], "expected numbers with commas"),
        (["--json", "--format", "{key}"], "exclude each other"),
        (["--json", "--key"], "exclude each other"),
        (["--format", "{nosuch}"], "no field {nosuch}; there are {topic} {partition}"),
        (["--format", "{"], "--format"),
        (["--format", "{value.__class__}"], "no field {value.__class__}"),
        (
            ["--group", "g", "--offset", "1"],
            "a group goes on where it was; leave out --offset and --timestamp, or move the group "
            "first: ottla group reset g --topic t --to OFFSET|TIME --execute",
        ),
        (["--group", "g", "--timestamp", "1"], "a group goes on where it was"),
        (["--group", "g", "--partitions", "1"], "a group decides by itself who reads which"),
        (["--max", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_are_usage_errors(
    ottla: Run, consumer: FakeConsumer, options: list[str], complaint: str
) -> None:
    result = ottla("consume", "t", *options)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert consumer.assigned is None


def test_no_option_names_no_start() -> None:
    assert starting_point(False, None, None) is None


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("earliest", "earliest"),
        ("beginning", "earliest"),
        ("start", "earliest"),
        ("latest", "latest"),
        ("end", "latest"),
        ("-5", -5),
        ("1,200", 1200),
    ],
)
def test_the_words_of_kcat_and_rpk_for_a_place_are_understood(word: str, start: object) -> None:
    assert starting_point(False, word, None) == start


@pytest.mark.parametrize(
    ("wanted", "start", "said"),
    [
        ("10", 50, "begins at offset 50: 10 is deleted"),
        ("50", 50, ""),
        ("1200", 1200, ""),
        ("1201", 1200, "ends at offset 1,200: there is no 1,201 yet"),
    ],
)
def test_an_offset_that_is_not_there_is_the_nearest_one(
    ottla: Run, consumer: FakeConsumer, wanted: str, start: int, said: str
) -> None:
    consumer.first, consumer.end = 50, 1200
    result = ottla("consume", "t", "--offset", wanted)
    assert consumer.assigned == (list(ALL), start)
    assert [line.partition(" ")[2] for line in result.stderr.splitlines()] == [said] * 3 * bool(
        said
    )
    assert consumer.options["reset"] == "earliest", "what is deleted meanwhile hides nothing else"


@pytest.mark.parametrize(
    "options",
    [
        ["--offset", "9" * 30],
        ["--offset", "-" + "9" * 30],
        ["--timestamp", "9" * 30],
        ["--timestamp", "0001-01-01"],
    ],
)
def test_numbers_beyond_all_offsets_and_times_are_refused(ottla: Run, options: list[str]) -> None:
    result = ottla("consume", "t", *options)
    assert (result.exit_code, "expected a" in result.stderr) == (2, True), result.stderr


def test_what_is_no_list_and_no_time() -> None:
    assert parse_partitions("3,1") == [1, 3]
    with pytest.raises(click.UsageError):
        parse_time("")


# -- what is printed


@pytest.mark.parametrize(
    ("key", "headers", "expected"),
    [
        (False, False, b"v\n"),
        (True, False, b"k\tv\n"),
        (False, True, b"a:1,b:~\tv\n"),
        (True, True, b"a:1,b:~\tk\tv\n"),
    ],
)
def test_lines_are_headers_key_and_value(key: bool, headers: bool, expected: bytes) -> None:
    assert line_writer(False, None, key, headers, "~")(FULL) == expected


def test_null_is_shown_as_asked_for() -> None:
    assert line_writer(False, None, True, False, "null")(record(None)) == b"null\tnull\n"


def test_bytes_are_printed_as_they_are() -> None:
    odd = record(b"\xff\x00", key=b"\xfe")
    assert line_writer(False, None, True, False, "null")(odd) == b"\xfe\t\xff\x00\n"
    assert line_writer(False, "{key}={value}", False, False, "null")(odd) == b"\xfe=\xff\x00\n"


def test_a_template_has_every_field() -> None:
    template = r"{topic}-{partition}@{offset} {timestamp} {time}\t{key}={value} {headers}"
    assert line_writer(False, template, False, False, "~")(FULL) == (
        b"t-1@7 1700000000123 2023-11-14T22:13:20.123+00:00\tk=v a:1,b:~\n"
    )


def test_json_has_every_field() -> None:
    assert json.loads(json_line(FULL)) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": 1_700_000_000_123,
        "timestamp_type": "create",
        "key": "k",
        "value": "v",
        "headers": [["a", "1"], ["b", None]],
    }


def test_json_keeps_what_is_not_text_as_base64() -> None:
    document = json.loads(json_line(record(b"\xff", headers=(("h", b"\xff"),))))
    assert (document["value"], document["value_base64"]) == (None, "/w==")
    assert document["headers"] == [["h", {"base64": "/w=="}]]
    assert "key_base64" not in document


def test_json_lines_are_lines_whatever_is_in_them() -> None:
    assert json_line(record(b"a\nb")).count(b"\n") == 1


# -- the flow


class Watched(io.BytesIO):
    """Remembers how much had been written at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[int] = []

    def flush(self) -> None:
        self.flushed.append(len(self.getvalue()))


def test_output_is_flushed_before_more_is_asked_for() -> None:
    consumer = FakeConsumer([record(b"a")], [record(b"b")], None, [record(b"c")])
    output = Watched()
    write = line_writer(False, None, False, False, "null")
    copied = copy(consumer, output, write, most=3)
    assert copied == 3
    assert output.flushed == [2, 4, 6]


def test_what_a_terminal_would_obey_is_spelt_out() -> None:
    write = for_terminal(line_writer(False, None, False, False, "null"))
    title = b"\x1b]0;owned\x07 tab\t 8-bit \xc2\x9b31m del\x7f \xc3\xa9\xe2\x82\xac"
    assert write(record(title)) == (
        b"\\x1b]0;owned\\x07 tab\t 8-bit \\x9b31m del\\x7f \xc3\xa9\xe2\x82\xac\n"
    )


@pytest.mark.parametrize(("on_terminal", "shown"), [(True, "\\x1b[31m\n"), (False, "\x1b[31m\n")])
def test_on_a_terminal_records_are_harmless_and_in_a_pipe_as_stored(
    ottla: Run,
    consumer: FakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    on_terminal: bool,
    shown: str,
) -> None:
    consumer.batches = [[record(b"\x1b[31m")]]
    monkeypatch.setattr("ottla.cli.consume.is_terminal", lambda: on_terminal)
    assert ottla("consume", "t").output == shown


def test_idle_time_begins_when_the_group_has_given_us_partitions() -> None:
    consumer = FakeConsumer(None, None, [record(b"a")])
    consumer.joining = True
    write = line_writer(False, None, False, False, "null")
    assert copy(consumer, io.BytesIO(), write, most=1, idle=1e-9) == 1


def test_an_interruption_commits_what_was_printed_and_nothing_else() -> None:
    consumer = FakeConsumer([record(b"a")], [record(b"b")])
    consumer.group = "g"
    output = Watched()
    copied: list[bytes] = []

    def write(one: Any) -> bytes:
        if copied:
            raise KeyboardInterrupt
        copied.append(one.value)
        return bytes(one.value)

    with pytest.raises(KeyboardInterrupt):
        copy(consumer, output, write)
    assert output.getvalue() == b"a"
    assert output.flushed[-1] == 1
    assert list(consumer.committed_offsets.values()) == [record(b"a").offset + 1]


def test_what_another_member_reads_now_is_not_committed() -> None:
    consumer = FakeConsumer([record(b"a", partition=0), record(b"b", partition=1)])
    consumer.group = "g"
    printed = Printed()

    def write(one: Any) -> bytes:
        return bytes(one.value)

    class Output(io.BytesIO):
        def flush(self) -> None:
            consumer.batches = []

    with pytest.raises(KeyboardInterrupt):
        copy(consumer, Output(), write, printed=printed)
    assert [tp.partition for tp in consumer.committed_offsets] == [0, 1]
    printed.forget((TopicPartition("t", 0),))
    with pytest.raises(KeyboardInterrupt):
        copy(consumer, Output(), write, printed=printed)
    assert [tp.partition for tp in consumer.committed_offsets] == [1]


def test_a_second_signal_ends_it_whatever_a_broker_does(ottla: Run, consumer: FakeConsumer) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    consumer.batches, consumer.group = [[record(b"a")]], "g"
    assert ottla("consume", "t", "--group", "g").exit_code == 0
    assert consumer.handlers == [signal.SIG_DFL, signal.SIG_DFL], "committing, and closing"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_what_is_waited_for() -> None:
    consumer: Any = FakeConsumer()
    names = ("t", "other")
    assert what_for(consumer, names, 4, False)() == (
        "waiting for new records of t, other (4 partitions); Ctrl-C ends"
    )
    assert what_for(consumer, ("t",), 1, True)() == (
        "waiting for new records of t (1 partition); --from-beginning shows the old ones; "
        "Ctrl-C ends"
    )
    consumer.group, consumer.joining = "g", True
    assert what_for(consumer, names, 4, False)() == (
        "waiting for the group g to assign partitions of t, other; Ctrl-C ends"
    )
    consumer.joining = False
    assert what_for(consumer, ("t",), 3, False)() == (
        "waiting for a partition of t: other members of g read all of them; Ctrl-C ends"
    )
    consumer.group_has = ALL[:2]
    assert what_for(consumer, ("t",), 3, False)() == (
        "waiting for new records of t (2 of 3 partitions); Ctrl-C ends"
    )


def test_the_line_about_waiting_is_gone_before_a_record_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ottla.cli.progress.on_terminal", lambda: True)
    consumer: Any = FakeConsumer(None, None, [record(b"a")])
    seen: list[str] = []

    class Output(io.BytesIO):
        def write(self, data: Any) -> int:
            seen.append(capsys.readouterr().err)
            return super().write(data)

    line = WaitingLine(lambda: "waiting", after=0.0)
    write = line_writer(False, None, False, False, "null")
    with pytest.raises(KeyboardInterrupt):
        copy(consumer, Output(), write, waiting=line)
    assert seen == ["\r\x1b[2Kwaiting\r\x1b[2K"]
    assert capsys.readouterr().err == ""


def test_a_reader_that_is_gone_is_noticed_without_writing() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as output:
        assert not reader_is_gone(output)
        os.close(reader)
        assert reader_is_gone(output)
        consumer = FakeConsumer(*[None] * 5)
        assert copy(consumer, output, lambda one: b"") == 0
    assert not reader_is_gone(io.BytesIO())
