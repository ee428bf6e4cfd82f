"""ListOffsets (2), DeleteRecords (21) and OffsetForLeaderEpoch (23), seen on the wire."""

from __future__ import annotations

import time

import pytest

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION = 1, 3
UNSUPPORTED_VERSION, UNKNOWN_LEADER_EPOCH = 35, 75
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
# An hour ago: older records would be retention's to delete whenever its turn comes.
START = int(time.time() * 1000) - 3_600_000


@pytest.fixture
def filled(wire, new_topic, batch, produce):
    """Ten batches of two records; times run 0, 1, … 19 seconds after START; 0 to 5 deleted."""
    topic, connection = new_topic(2), wire()
    for i in range(10):
        times = [START + 2_000 * i, START + 2_000 * i + 1_000]
        produce(connection, topic, batch([b"a", b"b"], timestamps=times))
    asked = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": 6}]}]
    connection.ask("delete_records", 2, topics=asked, timeout=10_000)
    return topic


@pytest.fixture
def list_offset(wire):
    connection = wire()

    def ask(topic, timestamp, *, partition=0, version=11, epoch=-1, **more):
        asked = {
            "partition_index": partition,
            "timestamp": timestamp,
            "current_leader_epoch": epoch,
        }
        answer = connection.ask(
            "list_offsets",
            version,
            replica_id=-1,
            topics=[{"name": topic.name, "partitions": [asked]}],
            **more,
        )
        found = answer.topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp, found.leader_epoch

    return ask


@pytest.mark.parametrize("version", [4, 7, 11])
def test_the_ends_of_the_log(version, list_offset, filled):
    assert list_offset(filled, LATEST, version=version) == (0, 20, -1, 0)
    assert list_offset(filled, EARLIEST, version=version) == (0, 6, -1, 0)
    assert list_offset(filled, LATEST, version=version, isolation_level=1) == (0, 20, -1, 0)


def test_an_empty_partition(list_offset, filled):
    assert list_offset(filled, LATEST, partition=1) == (0, 0, -1, 0)
    assert list_offset(filled, EARLIEST, partition=1) == (0, 0, -1, 0)
    assert list_offset(filled, MAX_TIMESTAMP, partition=1)[:3] == (0, -1, -1)
    assert list_offset(filled, START, partition=1) == (0, -1, -1, -1)


@pytest.mark.parametrize("version", [4, 11])
def test_times_are_found_by_their_first_record_at_or_after(version, list_offset, filled):
    def at(stamp):
        return list_offset(filled, stamp, version=version)

    assert at(START + 12_000) == (0, 12, START + 12_000, 0)
    assert at(START + 13_000) == (0, 13, START + 13_000, 0)
    assert at(START + 12_001) == (0, 13, START + 13_000, 0)
    assert at(START + 19_000) == (0, 19, START + 19_000, 0)
    assert at(START + 19_001) == (0, -1, -1, -1)
    # nothing before the log's start is found, though its batch may still be on disk
    assert at(0) == (0, 6, START + 6_000, 0)


def test_the_largest_timestamp_wherever_it_is(list_offset, wire, new_topic, batch, produce):
    topic, connection = new_topic(), wire()
    produce(connection, topic, batch([b"a", b"b", b"c"], timestamps=[START, START + 50, START + 9]))
    produce(connection, topic, batch([b"d"], timestamps=[START + 10]))
    assert list_offset(topic, MAX_TIMESTAMP, version=7) == (0, 1, START + 50, 0)


def test_the_special_times_of_tiered_storage_without_it(list_offset, filled):
    assert list_offset(filled, EARLIEST_LOCAL)[:3] == (0, 6, -1)
    assert list_offset(filled, LATEST_TIERED)[:3] == (0, -1, -1)
    assert list_offset(filled, EARLIEST_PENDING_UPLOAD)[:3] == (0, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (EARLIEST_PENDING_UPLOAD, 10),
        (-7, 11),
    ],
)
def test_a_special_time_before_its_version(timestamp, version, list_offset, filled):
    assert list_offset(filled, timestamp, version=version)[:2] == (UNSUPPORTED_VERSION, -1)


def test_unknown_partitions_and_epochs(list_offset, filled):
    assert list_offset(filled, LATEST, partition=9)[:2] == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert list_offset(filled, LATEST, epoch=0)[0] == 0
    assert list_offset(filled, LATEST, epoch=9)[:2] == (UNKNOWN_LEADER_EPOCH, -1)


# -- DeleteRecords ---------------------------------------------------------------------------


def test_records_are_deleted_up_to_an_offset_and_never_undeleted(wire, filled):
    connection = wire()

    def delete(offset, partition=0):
        asked = [
            {"name": filled.name, "partitions": [{"partition_index": partition, "offset": offset}]}
        ]
        answer = connection.ask("delete_records", 2, topics=asked, timeout=10_000)
        found = answer.topics[0].partitions[0]
        return found.error_code, found.low_watermark

    assert delete(9) == (0, 9)
    assert delete(3) == (0, 9)
    assert delete(21) == (OFFSET_OUT_OF_RANGE, -1)
    assert delete(-2) == (OFFSET_OUT_OF_RANGE, -1)
    assert delete(0, partition=9) == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(-1) == (0, 20)


# -- OffsetForLeaderEpoch --------------------------------------------------------------------


def test_an_epoch_ends_where_the_next_begins(wire, filled):
    connection = wire()

    def end_of(epoch, partition=0, current=-1):
        asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        answer = connection.ask(
            "offset_for_leader_epoch",
            4,
            replica_id=-1,
            topics=[{"topic": filled.name, "partitions": [asked]}],
        )
        found = answer.topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert end_of(0) == (0, 0, 20)
    assert end_of(5) == (0, -1, -1)
    assert end_of(0, partition=9) == (UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert end_of(0, current=9) == (UNKNOWN_LEADER_EPOCH, -1, -1)
