"""Fetch (1) without sessions, seen on the wire: waiting, limits, epochs and errors."""

from __future__ import annotations

import struct
import time
import uuid

import pytest

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION = 1, 3
UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID = 75, 100
LONG = 120_000  # milliseconds; longer than `wire` waits for an answer


def bases(records):
    """The base offsets of the whole batches in a fetch's records."""
    found, position = [], 0
    while position + 12 <= len(records or b""):
        base, size = struct.unpack_from(">qi", records, position)
        if position + 12 + size > len(records):
            break
        found.append(base)
        position += 12 + size
    return found


@pytest.fixture
def filled(wire, topic, batch, produce):
    """Partition 0 holds five batches of two records each, partition 1 one of one."""
    connection = wire()
    for i in range(5):
        produce(connection, topic, batch([b"%d" % i * 100, b"second"]))
    produce(connection, topic, batch([b"other"]), partition=1)
    return topic


def test_a_fetch_from_the_middle_of_a_batch_starts_with_that_batch(wire, filled, fetch):
    assert bases(fetch(wire(), filled, offset=5).records) == [4, 6, 8]


def test_the_end_of_the_log_is_empty_and_beyond_it_is_an_error(wire, filled, fetch):
    connection = wire()
    at_end = fetch(connection, filled, offset=10)
    assert (at_end.error_code, at_end.high_watermark, at_end.records or b"") == (0, 10, b"")
    for offset in (11, -1):
        beyond = fetch(connection, filled, offset=offset)
        assert (beyond.error_code, beyond.high_watermark) == (OFFSET_OUT_OF_RANGE, -1)
        assert (beyond.last_stable_offset, beyond.log_start_offset) == (-1, -1)
        assert not beyond.records


def test_the_first_batch_is_whole_however_small_the_limit(wire, filled, fetch):
    connection = wire()
    assert bases(fetch(connection, filled, partition_max_bytes=1).records) == [0]
    assert bases(fetch(connection, filled, max_bytes=1).records) == [0]
    assert bases(fetch(connection, filled, partition_max_bytes=0).records) == [0]


def test_only_the_first_partition_with_data_may_exceed_the_limit(wire, filled, fetch_fields):
    answer = wire().ask("fetch", 12, **fetch_fields((filled, {0: 0, 1: 0}), max_bytes=1))
    first, second = answer.responses[0].partitions
    assert bases(first.records) == [0]
    assert not second.records
    assert (second.error_code, second.high_watermark) == (0, 1)


def test_a_fetch_stays_within_its_limits(wire, new_topic, batch, produce, fetch):
    topic, connection = new_topic(), wire()
    sizes = []
    for _ in range(10):
        records = batch([b"x" * 1000])
        produce(connection, topic, records)
        sizes.append(len(records))
    got = fetch(connection, topic, partition_max_bytes=sum(sizes[:4]) + 20)
    assert bases(got.records) == [0, 1, 2, 3]
    assert len(got.records) <= sum(sizes[:4]) + 20


def test_a_fetch_waits_for_data_and_no_longer(wire, topic, batch, produce, fetch_fields):
    waiting, writer = wire(), wire()
    waiting.send("fetch", 12, **fetch_fields((topic, {0: 0, 1: 0}), max_wait=LONG))
    produce(writer, topic, batch([b"here"]), partition=1)
    partitions = waiting.receive().responses[0].partitions
    assert [bases(p.records) for p in partitions] == [[], [0]]


def test_a_fetch_waits_for_min_bytes(wire, topic, batch, produce, fetch_fields):
    waiting, writer = wire(), wire()
    waiting.send("fetch", 12, **fetch_fields((topic, {0: 0}), max_wait=LONG, min_bytes=3_000))
    for _ in range(3):
        produce(writer, topic, batch([b"x" * 1_000]))
    assert bases(waiting.receive().responses[0].partitions[0].records) == [0, 1, 2]


@pytest.mark.parametrize("limit", ["max_bytes", "min_bytes"])
def test_a_fetch_waits_for_the_smaller_of_min_bytes_and_max_bytes(
    limit, wire, topic, batch, produce, fetch
):
    connection = wire()
    for _ in range(3):
        produce(connection, topic, batch([b"x" * 1_000]))
    limits = {"max_bytes": 50_000_000, "min_bytes": 50_000_000} | {limit: 2_500}
    got = fetch(connection, topic, max_wait=LONG, **limits)
    assert bases(got.records) == ([0, 1] if limit == "max_bytes" else [0, 1, 2])


def test_what_exceeds_a_partitions_limit_does_not_count_as_min_bytes(
    wire, topic, batch, produce, fetch_fields
):
    """Two partitions of which one is full: it is the other's bytes that are waited for."""
    waiting, writer = wire(), wire()
    waiting.send(
        "fetch",
        12,
        **fetch_fields(
            (topic, {0: 0, 1: 0}), max_wait=LONG, min_bytes=2_500, partition_max_bytes=1_500
        ),
    )
    for _ in range(5):
        produce(writer, topic, batch([b"x" * 1_000]))
    produce(writer, topic, batch([b"y" * 1_000]), partition=1)
    first, second = waiting.receive().responses[0].partitions
    assert (bases(first.records), bases(second.records)) == ([0], [0])


def test_a_reader_in_an_older_segment_does_not_wait_for_more(
    wire, new_topic, batch, produce, fetch
):
    topic, connection = new_topic(segment_bytes="1048576"), wire()
    for _ in range(3):
        produce(connection, topic, batch([bytes(600_000)]))
    got = fetch(connection, topic, max_wait=LONG, min_bytes=40_000_000, max_bytes=50_000_000)
    assert bases(got.records) == [0]


def test_a_fetch_that_finds_nothing_answers_after_max_wait(wire, topic, fetch):
    started = time.monotonic()
    assert not fetch(wire(), topic, max_wait=300).records
    assert time.monotonic() - started >= 0.25


def test_a_waiting_fetch_holds_back_later_requests_of_its_connection(
    wire, topic, batch, produce, fetch_fields
):
    connection, writer = wire(), wire()
    connection.send("fetch", 12, **fetch_fields((topic, {0: 0}), max_wait=LONG))
    connection.send("metadata", 12, topics=[])
    produce(writer, topic, batch([b"x"]))
    assert bases(connection.receive().responses[0].partitions[0].records) == [0]
    assert connection.receive().brokers


def test_an_error_is_answered_without_waiting(wire, topic, fetch):
    missing = fetch(wire(), topic, partition=9, max_wait=LONG)
    assert missing.error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(wire(), topic, offset=5, max_wait=LONG).error_code == OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("version", [12, 17])
def test_unknown_topics_and_partitions(version, wire, topic, fetch_fields):
    fields = fetch_fields((topic, {0: 0, 5: 0}))
    fields["topics"].append(
        {
            "topic": "no-such-topic",
            "topic_id": uuid.uuid4(),
            "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}],
        }
    )
    answer = wire().ask("fetch", version, **fields)
    assert answer.error_code == 0
    known = topic.id if version > 12 else topic.name
    codes = {
        (
            getattr(response, "topic_id" if version > 12 else "topic") == known,
            part.partition_index,
        ): part.error_code
        for response in answer.responses
        for part in response.partitions
    }
    assert codes == {
        (True, 0): 0,
        (True, 5): UNKNOWN_TOPIC_OR_PARTITION,
        (False, 0): UNKNOWN_TOPIC_ID if version > 12 else UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_the_leader_epoch_of_the_request_is_checked(wire, filled, fetch):
    connection = wire()
    assert fetch(connection, filled, current_leader_epoch=0).error_code == 0
    ahead = fetch(connection, filled, current_leader_epoch=5)
    assert ahead.error_code == UNKNOWN_LEADER_EPOCH


def test_committed_reads_see_everything_where_no_transaction_is_open(wire, filled, fetch):
    connection = wire()
    plain = fetch(connection, filled)
    assert (plain.last_stable_offset, plain.aborted_transactions) == (10, None)
    committed = fetch(connection, filled, isolation_level=1)
    assert (committed.last_stable_offset, committed.aborted_transactions) == (10, ())
    assert committed.records == plain.records


def test_deleted_records_are_out_of_range(wire, filled, fetch):
    connection = wire()
    asked = [{"name": filled.name, "partitions": [{"partition_index": 0, "offset": 5}]}]
    connection.ask("delete_records", 2, topics=asked, timeout=10_000)
    assert fetch(connection, filled, offset=4).error_code == OFFSET_OUT_OF_RANGE
    rest = fetch(connection, filled, offset=5)
    assert (rest.log_start_offset, bases(rest.records)) == (5, [4, 6, 8])
