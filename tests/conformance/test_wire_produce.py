"""Produce (0), seen on the wire: what is assigned, what is refused, and with which code."""

from __future__ import annotations

import struct
import time
import uuid

import crc32c
import pytest

CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION = 2, 3
MESSAGE_TOO_LARGE, INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP = 10, 21, 32
OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 45, 47
# a batch of a transaction in a request without a transactional id
NO_SUCH_TRANSACTION = 53
CONTROL, TRANSACTIONAL = 0x20, 0x10
UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, UNKNOWN_TOPIC_ID = 76, 87, 100


def end_offset(connection, topic, partition=0):
    asked = [{"partition_index": partition, "timestamp": -1}]
    (found,) = connection.ask(
        "list_offsets", 7, replica_id=-1, topics=[{"name": topic.name, "partitions": asked}]
    ).topics
    return found.partitions[0].offset


def test_offsets_follow_each_other(wire, topic, batch, produce):
    connection = wire()
    first = produce(connection, topic, batch([b"a", b"b", b"c"]))
    second = produce(connection, topic, batch([b"d"]), acks=1)
    assert (first.error_code, first.base_offset, first.log_start_offset) == (0, 0, 0)
    assert (second.error_code, second.base_offset) == (0, 3)
    assert (first.log_append_time, second.log_append_time) == (None, None)
    assert end_offset(connection, topic) == 4


def test_log_append_time_is_answered(wire, new_topic, batch, produce):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    answer = produce(wire(), topic, batch([b"a"], timestamps=[5]))
    assert abs(answer.log_append_time.timestamp() - time.time()) < 60


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_stored_as_it_was_sent(codec, wire, topic, batch, produce, fetch):
    connection = wire()
    sent = batch([b"word " * 100] * 10, codec=codec)
    produce(connection, topic, batch([b"before"]))
    assert produce(connection, topic, sent).base_offset == 1
    stored = fetch(connection, topic, offset=1).records
    # base offset and leader epoch are the broker's; the rest, checksum included, the client's
    assert struct.unpack_from(">q", stored) == (1,)
    assert stored[8:12] == sent[8:12]
    assert struct.unpack_from(">i", stored, 12) == (0,)
    assert stored[16:] == sent[16:]


def test_what_the_broker_compresses_itself_can_be_read_by_java(
    wire, new_topic, batch, produce, fetch
):
    # Java's lz4 reader refuses frames whose blocks depend on each other: bit 5 of the flags
    connection, topic = wire(), new_topic(compression_type="lz4")
    assert produce(connection, topic, batch([b"word " * 100] * 10)).error_code == 0
    stored = fetch(connection, topic).records
    assert struct.unpack_from(">h", stored, 21) == (3,)
    assert stored[61:65] == bytes.fromhex("04224d18")
    assert stored[65] & 0x20


def test_one_bad_partition_never_fails_its_neighbour(wire, topic, batch):
    connection = wire()
    answer = connection.ask(
        "produce",
        9,
        acks=-1,
        timeout=10_000,
        topic_data=[
            {
                "name": topic.name,
                "partition_data": [
                    {"index": 0, "records": batch([b"bad"], crc_delta=1)},
                    {"index": 1, "records": batch([b"good"])},
                    {"index": 7, "records": batch([b"nowhere"])},
                ],
            },
            {"name": "no-such-topic", "partition_data": [{"index": 0, "records": batch([b"x"])}]},
        ],
    )
    codes = {
        (response.name, part.index): part.error_code
        for response in answer.responses
        for part in response.partition_responses
    }
    assert codes == {
        (topic.name, 0): CORRUPT_MESSAGE,
        (topic.name, 1): 0,
        (topic.name, 7): UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert end_offset(connection, topic, 0) == 0
    assert end_offset(connection, topic, 1) == 1


def test_an_unknown_topic_id(wire, topic, batch):
    answer = wire().ask(
        "produce",
        13,
        acks=-1,
        timeout=10_000,
        topic_data=[
            {
                "topic_id": uuid.uuid4(),
                "partition_data": [{"index": 0, "records": batch([b"x"])}],
            }
        ],
    )
    assert answer.responses[0].partition_responses[0].error_code == UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_are_minus_one_zero_or_one(acks, wire, topic, batch, produce):
    answer = produce(wire(), topic, batch([b"x"]), acks=acks)
    assert (answer.error_code, answer.base_offset) == (INVALID_REQUIRED_ACKS, -1)


def test_refused_batches(wire, topic, batch, produce):
    connection = wire()
    good = batch([b"x"])
    future = batch([b"x"], timestamps=[_now(7_200)])
    unsequenced = batch([b"x"], producer_id=5, producer_epoch=0, base_sequence=-1)
    for what, records, code in (
        ("a checksum that does not fit", batch([b"x"], crc_delta=1), CORRUPT_MESSAGE),
        ("the magic of Kafka 0.9", batch([b"x"], magic=0), INVALID_RECORD),
        ("the magic of Kafka 0.10", batch([b"x"], magic=1), INVALID_RECORD),
        ("a magic of the future", batch([b"x"], magic=3), CORRUPT_MESSAGE),
        ("no batch", b"", INVALID_RECORD),
        ("the beginning of a header", good[:10], INVALID_RECORD),
        ("all but the last bytes", good[:-3], INVALID_RECORD),
        ("a negative size", good[:8] + struct.pack(">i", -5) + good[12:], CORRUPT_MESSAGE),
        ("a size below a header's", good[:8] + struct.pack(">i", 10) + good[12:], CORRUPT_MESSAGE),
        ("two batches", good + good, INVALID_RECORD),
        ("a batch without records", batch([]), INVALID_RECORD),
        ("a control batch", batch([b"x"], attributes=CONTROL), INVALID_RECORD),
        ("a transaction's batch", batch([b"x"], attributes=TRANSACTIONAL), NO_SUCH_TRANSACTION),
        ("a producer without a sequence", unsequenced, INVALID_RECORD),
        ("two hours into the future", future, INVALID_TIMESTAMP),
    ):
        answer = produce(connection, topic, records)
        assert (answer.error_code, answer.base_offset) == (code, -1), what
    assert end_offset(connection, topic) == 0


def test_null_records_are_refused(ours_only, wire, topic, produce):
    # Apache Kafka 4.2 never answers this one
    assert produce(wire(), topic, None).error_code == INVALID_RECORD


def _now(plus_seconds):
    return time.time_ns() // 1_000_000 + plus_seconds * 1000


def test_a_batch_over_max_message_bytes(wire, new_topic, batch, produce):
    topic = new_topic(max_message_bytes="1000")
    connection = wire()
    answer = produce(connection, topic, batch([b"x" * 2000]))
    assert answer.error_code == MESSAGE_TOO_LARGE
    assert produce(connection, topic, batch([b"x" * 2000], codec="zstd")).error_code == 0


def test_zstd_needs_version_7(wire, topic, batch, produce):
    zstd = batch([b"x"], codec="zstd")
    answer = produce(wire(), topic, zstd, version=6)
    assert answer.error_code == UNSUPPORTED_COMPRESSION_TYPE
    assert produce(wire(), topic, zstd, version=7).error_code == 0


def test_a_compacted_topic_wants_keys_and_names_the_records_without(
    wire, new_topic, batch, produce
):
    topic = new_topic(cleanup_policy="compact")
    connection = wire()
    refused = produce(connection, topic, batch([b"1", b"2", b"3"], keys=[b"k", None, None]))
    assert refused.error_code == INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1, 2]
    assert refused.error_message
    assert produce(connection, topic, batch([b"1"], keys=[b"k"])).error_code == 0


def test_the_last_offset_must_agree_with_the_number_of_records(wire, topic, batch, produce):
    whole = bytearray(batch([b"a", b"b"]))
    struct.pack_into(">i", whole, 23, 5)
    struct.pack_into(">I", whole, 17, crc32c.crc32c(bytes(whole[21:])))
    assert produce(wire(), topic, bytes(whole)).error_code == INVALID_RECORD


# -- acks=0 ----------------------------------------------------------------------------------


def test_acks_zero_gets_no_response(wire, topic, batch, eventually):
    connection = wire()
    for value in (b"a", b"b"):
        data = [{"index": 0, "records": batch([value])}]
        connection.send(
            "produce",
            9,
            answered=False,
            acks=0,
            timeout=1_000,
            topic_data=[{"name": topic.name, "partition_data": data}],
        )
    # the next response on the connection belongs to the next request
    assert connection.ask("metadata", 12, topics=[{"name": topic.name}]).topics
    eventually(lambda: end_offset(connection, topic) == 2)


def test_an_error_under_acks_zero_closes_the_connection(wire, topic, batch):
    # the only way to tell a client that listens to no response that its metadata is stale
    connection = wire()
    data = [{"index": 99, "records": batch([b"x"])}]
    connection.send(
        "produce",
        9,
        answered=False,
        acks=0,
        timeout=1_000,
        topic_data=[{"name": topic.name, "partition_data": data}],
    )
    assert connection.closed_by_peer()


# -- idempotence -----------------------------------------------------------------------------


@pytest.fixture
def producer_id(wire):
    answer = wire().ask("init_producer_id", 4, transaction_timeout=60_000)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return answer.producer_id


def test_a_repeated_batch_is_answered_with_its_first_offset(
    wire, topic, batch, produce, producer_id
):
    connection = wire()
    batches = [
        batch([b"x", b"y"], producer_id=producer_id, producer_epoch=0, base_sequence=2 * i)
        for i in range(7)
    ]
    offsets = [produce(connection, topic, records).base_offset for records in batches]
    assert offsets == [0, 2, 4, 6, 8, 10, 12]
    for records, offset in list(zip(batches, offsets, strict=True))[-5:]:
        again = produce(connection, topic, records)
        assert (again.error_code, again.base_offset) == (0, offset)
    # only the last five are remembered
    assert produce(connection, topic, batches[0]).error_code == OUT_OF_ORDER_SEQUENCE
    assert end_offset(connection, topic) == 14


def test_sequences_have_no_gaps_and_epochs_never_go_back(wire, topic, batch, produce, producer_id):
    connection = wire()

    def send(epoch, sequence):
        records = batch(
            [b"x"], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        return produce(connection, topic, records).error_code

    assert send(0, 0) == 0
    assert send(0, 2) == OUT_OF_ORDER_SEQUENCE
    assert send(0, 1) == 0
    assert send(1, 7) == OUT_OF_ORDER_SEQUENCE
    assert send(1, 0) == 0
    assert send(0, 2) == INVALID_PRODUCER_EPOCH
    assert end_offset(connection, topic) == 3


def test_sequences_wrap_after_the_largest_int(wire, topic, batch, produce, producer_id):
    connection = wire()

    def send(sequence, count):
        records = batch(
            [b"x"] * count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        return produce(connection, topic, records).error_code

    # a producer the log knows nothing of may start anywhere (its state may have expired)
    assert send(2**31 - 2, 3) == 0
    assert send(1, 1) == 0
    assert send(3, 1) == OUT_OF_ORDER_SEQUENCE


def test_active_producers_are_described(wire, topic, batch, produce, producer_id):
    connection = wire()
    stamp = _now(0)
    records = batch(
        [b"x"] * 4,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        timestamps=[stamp],
    )
    produce(connection, topic, records)
    asked = [{"name": topic.name, "partition_indexes": [0]}]
    (found,) = connection.ask("describe_producers", 0, topics=asked).topics
    (state,) = found.partitions[0].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer_id, 0, 3)
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, -1)


def test_producer_ids_are_all_different(wire):
    connection = wire()
    ids = [
        connection.ask("init_producer_id", 4, transaction_timeout=60_000).producer_id
        for _ in range(50)
    ]
    assert len(set(ids)) == 50
