"""What the single tools make of lines, records, files and command lines, without a broker."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.cli.kafka_compat import run
from ottla.cli.kafka_compat.broker_api_versions import line as api_line
from ottla.cli.kafka_compat.client_properties import librdkafka_properties
from ottla.cli.kafka_compat.console_consumer import default_formatter
from ottla.cli.kafka_compat.console_producer import Line, LineReader
from ottla.cli.kafka_compat.features import level
from ottla.cli.kafka_compat.offset_records import decode
from ottla.cli.kafka_compat.options import Failure, guarded
from ottla.cli.kafka_compat.server import is_broker
from ottla.cli.kafka_compat.storage import random_uuid
from ottla.cli.kafka_compat.topics import topic_pattern
from ottla.cli.kafka_compat.transaction_records import decode as decode_transaction
from ottla.client.descriptions import ApiSupport
from ottla.client.records import Record
from ottla.coordinator.group import journal
from ottla.coordinator.group.group import CommittedOffset
from ottla.coordinator.transaction import journal as transaction_journal
from ottla.coordinator.transaction.state import State, Transaction
from ottla.model.ids import TopicPartition
from ottla.records.builder import BatchBuilder
from ottla.records.checksum import crc32c

# -- lines in


def test_a_line_is_split_into_headers_key_and_value() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "TRUE", "key.separator": ":"})
    assert reader.read("a:1,b:2\tkey:the:value", 1) == Line(
        b"key", b"the:value", [("a", b"1"), ("b", b"2")]
    )


def test_the_null_marker_makes_null_of_key_value_and_header() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "null.marker": "-"})
    assert reader.read("a:-\t-\t-", 1) == Line(None, None, [("a", None)])
    assert reader.read("-\tk\tv", 1) == Line(b"k", b"v", [])


def test_a_line_without_its_separator_is_said_with_its_number() -> None:
    reader = LineReader({"parse.key": "true"})
    with pytest.raises(Failure, match="No key separator found on line number 4: 'x'"):
        reader.read("x", 4)
    forgiving = LineReader({"parse.key": "true", "ignore.error": "true"})
    assert forgiving.read("x", 4) == Line(None, b"x", [])


def test_a_header_without_its_separator_is_said_with_its_line() -> None:
    reader = LineReader({"parse.headers": "true"})
    with pytest.raises(Failure, match="No header key separator found in pair 'a' on line number 2"):
        reader.read("a\tvalue", 2)


def test_separators_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(Failure, match=r"headers\.separator and headers\.key\.separator may not"):
        LineReader({"headers.separator": ":"})
    with pytest.raises(Failure, match=r"null\.marker and key\.separator may not be equal"):
        LineReader({"null.marker": "\t"})


def test_bytes_that_are_not_text_go_through_unchanged() -> None:
    raw = b"k\xff\t\xfe"
    parsed = LineReader({"parse.key": "true"}).read(raw.decode("utf-8", "surrogateescape"), 1)
    assert (parsed.key, parsed.value) == (b"k\xff", b"\xfe")


# -- records out

RECORD = Record("t", 3, 42, 1700000000000, "create", b"k", None, (("h", b"1"), ("i", None)), 5)


def test_columns_are_printed_in_kafkas_order_whatever_the_order_asked_for() -> None:
    names = ("key", "offset", "headers", "timestamp", "partition")
    show = default_formatter({f"print.{name}": "true" for name in names})
    expected = b"CreateTime:1700000000000\tPartition:3\tOffset:42\th:1,i:null\tk\tnull\n"
    assert show(RECORD) == expected


def test_only_the_value_is_printed_unless_more_is_asked_for() -> None:
    assert default_formatter({})(RECORD._replace(value=b"\xff")) == b"\xff\n"
    assert default_formatter({"print.value": "false"})(RECORD) == b""


def test_what_a_record_holds_reaches_no_terminal_raw(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    title = b"\x1b]0;owned\x07"
    evil = RECORD._replace(key=title, value=title, headers=((title.decode(), title),))
    names = {"print.key": "true", "print.headers": "true", "line.separator": "\r\n"}
    assert default_formatter(names)(evil).count(title) == 4
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert default_formatter(names)(evil).count(b"\\x1b]0;owned\\x07") == 4
    assert default_formatter(names)(evil).endswith(b"\r\n")

    def tool(_arguments: Sequence[str]) -> int:
        print(f"{title.decode()}\tend")
        return 0

    assert guarded("tool", tool, []) == 0
    assert capsys.readouterr().out == "\\x1b]0;owned\\x07\tend\n"


def test_values_can_be_numbers() -> None:
    name = "org.apache.kafka.common.serialization.LongDeserializer"
    show = default_formatter({"value.deserializer": name})
    assert show(RECORD._replace(value=struct.pack(">q", -7))) == b"-7\n"
    with pytest.raises(Failure, match="there is no deserializer Nope"):
        default_formatter({"value.deserializer": "Nope"})


# -- properties


def test_javas_properties_become_librdkafkas() -> None:
    given = {
        "request.required.acks": "1",
        "fetch.max.wait.ms": "7",
        "key.serializer": "x",
        "buffer.memory": "2048",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
    }
    assert librdkafka_properties(given) == {
        "acks": "1",
        "fetch.wait.max.ms": "7",
        "queue.buffering.max.kbytes": "2",
        "partition.assignment.strategy": "range",
    }


def test_impossible_properties_are_refused() -> None:
    with pytest.raises(Failure, match="configuration acks"):
        librdkafka_properties({"acks": "2"})
    with pytest.raises(Failure, match=r"when group\.protocol=CONSUMER"):
        librdkafka_properties({"group.protocol": "CONSUMER", "session.timeout.ms": "1"})


# -- files


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment with the batches 10-11 and 15, and no index."""
    data = b""
    for base, values in ((10, [b"a", b"b"]), (15, [b"c"])):
        builder = BatchBuilder(base_offset=base)
        for value in values:
            builder.append(key=None, value=value, timestamp=1700000000000)
        data += builder.build()
    path = tmp_path / "00000000000000000010.log"
    path.write_bytes(data)
    return path


def test_a_gap_in_the_offsets_is_reported(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("kafka-dump-log", ["--files", str(segment), "--deep-iteration"]) == 0
    captured = capsys.readouterr()
    assert "Log starting offset: 10" in captured.out
    assert captured.err == f"Non-consecutive offsets in {segment}\n  11 is followed by 15\n"


def test_a_damaged_batch_is_not_valid(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(segment.read_bytes())
    data[-2] ^= 1
    segment.write_bytes(data)
    assert run("kafka-dump-log", ["--files", str(segment)]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.rpartition(" ")[2] for line in lines] == ["true", "false"]


def test_an_index_is_compared_with_its_segment(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = segment.read_bytes().index(struct.pack(">q", 15))
    index = segment.with_suffix(".index")
    index.write_bytes(struct.pack(">iiii", 5, second, 0, 0))
    assert run("kafka-dump-log", ["--files", str(index)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"offset: 15 position: {second}"]
    index.write_bytes(struct.pack(">ii", 4, second))
    assert run("kafka-dump-log", ["--files", str(index), "--verify-index-only"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"Dumping {index}\n"
    assert captured.err == f"Mismatches in :{index}\n  Index offset: 14, log offset: 15\n"


def test_a_time_index_is_compared_with_its_segment(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = segment.with_suffix(".timeindex")
    index.write_bytes(struct.pack(">qi", 1700000000000, 5) + struct.pack(">qi", 1600000000000, 1))
    assert run("kafka-dump-log", ["--files", str(index)]) == 0
    captured = capsys.readouterr()
    assert "timestamp: 1700000000000 offset: 15\n" in captured.out
    assert "Found timestamp mismatch" in captured.err
    assert "Found out of order timestamp" in captured.err


def test_an_index_cut_in_the_middle_of_an_entry_is_one_line(
    segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = segment.with_suffix(".index")
    index.write_bytes(b"\1\1\1")
    assert run("kafka-dump-log", ["--files", str(index)]) == 1
    assert "ends in the middle of an entry" in capsys.readouterr().err


def test_records_of_consumer_offsets_are_shown_as_kafka_shows_them() -> None:
    offset = CommittedOffset(7, 3, "note", 1700000000000, -1, bytes(16))
    key, value = journal.offset("g", "t", 2, offset)
    assert decode(key, None) == (
        '{"type":"1","data":{"group":"g","topic":"t","partition":2}}',
        "<DELETE>",
    )
    shown = decode(key, value)[1] or ""
    assert shown.startswith('{"version":"')
    assert '"data":{"offset":7,"leaderEpoch":3,"metadata":"note","commitTimestamp":17' in shown
    assert decode(b"\x7f\x7f", b"") == ("unknown::type 32639", None)


def test_records_of_transaction_state_are_shown_as_kafka_shows_them() -> None:
    open_one = Transaction(
        "payments",
        7,
        3,
        60_000,
        State.ONGOING,
        frozenset({TopicPartition("orders", 1), TopicPartition("orders", 0)}),
        1700000000000,
        1700000000001,
    )
    key, value = transaction_journal.transaction(open_one, 0)
    name = '{"type":"0","data":{"transactionalId":"payments"}}'
    shown = (
        '"producerEpoch":3,"transactionTimeoutMs":60000,"transactionStatus":1,'
        '"transactionPartitions":[{"topic":"orders","partitionIds":[0,1]}],'
        '"transactionLastUpdateTimestampMs":1700000000001,'
        '"transactionStartTimestampMs":1700000000000'
    )
    assert decode_transaction(key, value, 5) == (
        name,
        f'{{"version":"0","data":{{"producerId":7,{shown}}}}}',
    )
    newer = replace(open_one, previous_producer_id=5, next_producer_id=9, client_version=2)
    key, value = transaction_journal.transaction(newer, 2)
    assert decode_transaction(key, value, 5) == (
        name,
        '{"version":"1","data":{"producerId":7,"previousProducerId":5,"nextProducerId":9,'
        f'{shown},"clientTransactionVersion":2}}}}',
    )
    assert decode_transaction(key, None, 5) == (name, "<DELETE>")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        (None, b"", "Failed to decode message at offset 5 using the specified decoder"),
        (b"\0\7", b"", "Unknown record type 7 at offset 5, skipping."),
        (b"\0", b"", "Error at offset 5, skipping. "),
        (b"\0\0\0\1a", b"\0\1\0", "Error at offset 5, skipping. "),
        (b"\0\0\0\1a", b"\0\7\0", "Error at offset 5, skipping. version 7 of the value"),
    ],
)
def test_what_is_no_record_of_transaction_state_is_said(
    key: bytes | None, value: bytes, shown: str
) -> None:
    found, payload = decode_transaction(key, value, 5)
    assert (found or "").startswith(shown)
    assert payload is None


def test_a_producer_snapshot_is_shown_with_the_last_batch_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # sequence numbers begin anew after the greatest int: three records from 2147483646 on
    entry = struct.Struct(">qhiqiqiq")
    entries = entry.pack(4, 1, 0, 12, 2, 1700000000000, -1, 10)
    entries += entry.pack(5, 3, -1, -1, 0, 1700000000001, 8, -1)
    body = struct.pack(">i", 2) + entries
    path = tmp_path / "00000000000000000013.snapshot"
    path.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
    assert run("kafka-dump-log", ["--files", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"Dumping {path}\n"
        "producerId: 4 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: "
        "OptionalLong[10] lastTimestamp: 1700000000000 firstSequence: 2147483646 lastSequence: 0 "
        "lastOffset: 12 offsetDelta: 2 timestamp: 1700000000000\n"
        "producerId: 5 producerEpoch: 3 coordinatorEpoch: 8 currentTxnFirstOffset: "
        "OptionalLong.empty lastTimestamp: 1700000000001 \n"
    )


# -- small things


def test_apis_are_printed_as_java_prints_them() -> None:
    assert api_line(ApiSupport(0, "Produce", 0, 13, 13)) == "Produce(0): 0 to 13 [usable: 13]"
    assert api_line(ApiSupport(47, "OffsetDelete", 0, 0, 0)) == "OffsetDelete(47): 0 [usable: 0]"
    assert api_line(ApiSupport(17, "SaslHandshake")) == "SaslHandshake(17): UNSUPPORTED"
    assert api_line(ApiSupport(999, None, 0, 2)) == "UNKNOWN(999): 0 to 2"


def test_metadata_versions_are_named_by_their_release() -> None:
    assert level("metadata.version", 29) == "4.2-IV1"
    assert level("metadata.version", 7) == "3.3-IV3"
    assert level("metadata.version", 99) == "UNKNOWN 99"
    assert level("group.version", 1) == "1"


def test_topic_patterns_know_commas_and_quotes() -> None:
    assert topic_pattern("'a, b.*'").fullmatch("bcd")
    with pytest.raises(Failure, match="is an invalid regex"):
        topic_pattern("(")


def test_ids_never_look_like_options() -> None:
    ids = {random_uuid() for _ in range(200)}
    assert len(ids) == 200
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python3 -m ottla server start --data-dir x", True),
        ("/v/bin/python /v/bin/ottla server start", True),
        ("/v/bin/python3.11 /v/bin/kafka-server-start.sh server.properties", True),
        ("python -m ottla.cli.kafka_compat kafka-server-start x.properties", True),
        ("/v/bin/python /v/bin/ottla topic list", False),
        ("/v/bin/python /v/bin/kafka-server-stop", False),
        ("vim ottla server start", False),
        ("", False),
    ],
)
def test_a_broker_is_known_by_its_command_line(words: str, expected: bool) -> None:
    assert is_broker(words.split()) is expected


def test_server_start_refuses_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kafka-server-start", []) == 1
    assert run("kafka-server-start", ["absent.properties"]) == 1
    assert run("kafka-server-start", [__file__, "--override", "nonsense"]) == 1
    assert run("kafka-server-start", [__file__, "more"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("USAGE: ")
    assert lines[2].startswith("absent.properties: No such file")
    assert lines[3] == "--override nonsense: expected property=value"
    assert lines[4].startswith("Found non argument parameters: more")


# -- what listens is not a broker
