"""Which batches enter a log, and what the others are told.

The expectations were compared with Apache Kafka 4.2's own log, fed with the same bytes.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records import walker
from ottla.records.batch import (
    BatchHeader,
    TimestampType,
    checksum_ok,
    read_header,
    set_offset_and_epoch,
)
from ottla.records.builder import BatchBuilder, build_batch
from ottla.records.checksum import crc32c
from ottla.records.compression import Compression
from ottla.records.control import ControlType, end_marker
from ottla.records.reader import iter_records
from ottla.storage.producers import Origin
from ottla.storage.record_rules import on_the_spot
from ottla.storage.validate import (
    RecordsRejected,
    TakesLong,
    judge,
    judge_replicated,
    prepare,
)

PARTITION = TopicPartition("orders", 3)
NOW = 1_700_000_000_000
HOUR = 3_600_000
CODECS = [codec for codec in Compression if codec is not Compression.NONE]

DEFAULT = TopicConfig()
COMPACT = TopicConfig(cleanup_policy=frozenset({"compact"}))
STAMPED = TopicConfig(message_timestamp_type="LogAppendTime")
RECENT_ONLY = TopicConfig(message_timestamp_before_max_ms=HOUR)


@pytest.fixture(params=["native", "plain"], autouse=True)
def walked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(walker, "_native", None)
        monkeypatch.setattr(walker, "NATIVE", False)


def records(
    count: int = 5, *, keys: bool = True, time: int = NOW
) -> list[tuple[int, bytes | None, bytes | None, tuple[()]]]:
    return [(time + n, b"k%d" % n if keys else None, b"v" * 50, ()) for n in range(count)]


def batch(count: int = 5, *, keys: bool = True, time: int = NOW, **fields: Any) -> bytearray:
    return bytearray(build_batch(records(count, keys=keys, time=time), **fields))


def with_crc(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def patched(layout: str, position: int, value: int, **fields: Any) -> bytearray:
    """A batch with one field of its header changed, and the CRC to match."""
    data = batch(**fields)
    struct.pack_into(layout, data, position, value)
    return with_crc(data)


def judged(
    data: bytes | bytearray, config: TopicConfig, **how: Any
) -> tuple[BatchHeader, memoryview]:
    """What becomes of a batch, as Produce goes about it."""
    try:
        return judge(memoryview(bytearray(data)), config, NOW, partition=PARTITION, **how)
    except TakesLong:
        data = prepare(bytes(data), config, NOW, partition=PARTITION)
        how["prepared"] = True
        return judge(memoryview(bytearray(data)), config, NOW, partition=PARTITION, **how)


def accept(
    data: bytes | bytearray, config: TopicConfig = DEFAULT, **how: Any
) -> tuple[BatchHeader, memoryview]:
    header, got = judged(data, config, **how)
    assert got.nbytes == header.size
    assert not got.readonly
    assert read_header(got) == header
    assert checksum_ok(got, 0, header)
    return header, got


def refuse(
    data: bytes | bytearray, config: TopicConfig = DEFAULT, **how: Any
) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        judged(data, config, **how)
    return caught.value.code, caught.value.message or ""


class TestFrame:
    @pytest.mark.parametrize("codec", Compression)
    def test_a_good_batch_is_taken_as_it_is(self, codec: Compression) -> None:
        data = memoryview(batch(compression=codec))
        header, got = judge(data, DEFAULT, NOW, partition=PARTITION)
        assert got is data
        assert header == read_header(data)

    @pytest.mark.parametrize("size", [0, 1, 11, 12, 16])
    def test_too_few_bytes_for_any_batch_are_none(self, size: int) -> None:
        assert refuse(batch()[:size])[0] is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("size", [17, 60, 61, 62, 355])
    def test_a_batch_cut_off_is_none(self, size: int) -> None:
        code, message = refuse(batch()[:size])
        assert code is ErrorCode.INVALID_RECORD
        assert message == "Record batch has no batches at all"

    @pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
    def test_a_length_below_any_format_is_corrupt(self, length: int) -> None:
        code, message = refuse(patched(">i", 8, length))
        assert code is ErrorCode.CORRUPT_MESSAGE
        assert message == f"Record size {length} is less than the minimum record overhead (14)"

    @pytest.mark.parametrize("length", [14, 48])
    def test_a_length_below_ours_is_corrupt(self, length: int) -> None:
        data = batch()
        struct.pack_into(">i", data, 8, length)
        assert refuse(data[: length + 12])[0] is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("magic", [0, 1])
    def test_the_old_formats_are_refused(self, magic: int) -> None:
        code, message = refuse(patched(">b", 16, magic))
        assert code is ErrorCode.INVALID_RECORD
        assert "magic version 2" in message

    @pytest.mark.parametrize("magic", [-1, 3, 127])
    def test_an_unknown_format_is_corrupt(self, magic: int) -> None:
        code, message = refuse(patched(">b", 16, magic))
        assert code is ErrorCode.CORRUPT_MESSAGE
        assert message == f"Invalid magic found in record: {magic}"

    def test_a_second_batch_is_refused(self) -> None:
        code, message = refuse(batch() + batch())
        assert code is ErrorCode.INVALID_RECORD
        assert "exactly one record batch" in message

    @pytest.mark.parametrize("extra", [1, 11, 12, 16, 17, 100])
    def test_a_piece_of_a_batch_behind_the_first_is_cut_off(self, extra: int) -> None:
        data = batch()
        _, got = accept(data + batch()[:extra])
        assert got == data

    def test_zeros_behind_the_batch_are_corrupt(self) -> None:
        assert refuse(batch() + bytes(20))[0] is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("position", [17, 22, 30, 61, 100])
    def test_a_flipped_bit_is_corrupt(self, position: int) -> None:
        data = batch()
        data[position] ^= 0x10
        code, message = refuse(data)
        assert code is ErrorCode.CORRUPT_MESSAGE
        assert "in topic partition orders-3." in message

    def test_a_batch_over_the_limit_is_too_large(self) -> None:
        data = batch()
        accept(data, TopicConfig(max_message_bytes=len(data)))
        code, message = refuse(data, TopicConfig(max_message_bytes=len(data) - 1))
        assert code is ErrorCode.MESSAGE_TOO_LARGE
        assert f"is {len(data)} bytes" in message

    def test_a_batch_larger_than_a_segment_is_a_list_too_large(self) -> None:
        config = TopicConfig(max_message_bytes=3_000_000, segment_bytes=1_048_576)
        data = build_batch([(NOW, b"k", bytes(1_100_000), ())])
        assert refuse(data, config)[0] is ErrorCode.RECORD_LIST_TOO_LARGE

    @pytest.mark.parametrize("number", [5, 6, 7])
    def test_an_unknown_codec_is_unsupported(self, number: int) -> None:
        code, message = refuse(patched(">h", 21, number))
        assert code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert message == f"Unknown compression type id: {number}"


class TestClientRules:
    @pytest.mark.parametrize(
        ("layout", "position", "value", "message"),
        [
            (">q", 0, 5, "The baseOffset of the record batch in the append to orders-3 should be"),
            (">i", 23, -1, "Batch has an invalid offset range: [0, -1] in topic partition"),
            (">i", 23, 9, "Inconsistent batch offset range [0, 9] and count of records 5"),
            (">i", 57, 0, "Invalid reported count for record batch: 0 in topic partition"),
            (">i", 57, -5, "Invalid reported count for record batch: -5 in topic partition"),
            (">i", 57, 4, "Inconsistent batch offset range [0, 4] and count of records 4"),
            (">h", 21, 0x20, "Clients are not allowed to write control records in topic partition"),
            (">i", 53, -1, "Invalid sequence number -1 in record batch with producerId 5"),
        ],
    )
    def test_what_clients_must_not_send(
        self, layout: str, position: int, value: int, message: str
    ) -> None:
        data = patched(layout, position, value, producer_id=5, producer_epoch=0, base_sequence=0)
        code, text = refuse(data)
        assert code is ErrorCode.INVALID_RECORD
        assert text.startswith(message)

    def test_without_producer_id_no_sequence_is_needed(self) -> None:
        accept(batch(producer_id=-1, base_sequence=-1))

    def test_a_coordinator_may_write_markers(self) -> None:
        data = end_marker(
            ControlType.COMMIT, producer_id=5, producer_epoch=0, coordinator_epoch=1, timestamp=NOW
        )
        header, _ = accept(data, COMPACT, origin=Origin.COORDINATOR)
        assert header.is_control

    def test_a_coordinator_may_exceed_the_message_limit(self) -> None:
        accept(batch(), TopicConfig(max_message_bytes=100), origin=Origin.COORDINATOR)


class TestTimestamps:
    def test_a_timestamp_within_the_hour_is_taken(self) -> None:
        accept(batch(1, time=NOW + HOUR))
        accept(batch(1, time=0))

    @pytest.mark.parametrize("codec", Compression)
    def test_a_timestamp_too_far_ahead_is_refused(self, codec: Compression) -> None:
        code, message = refuse(batch(1, time=NOW + HOUR + 1, compression=codec))
        assert code is ErrorCode.INVALID_TIMESTAMP
        assert message == "One or more records have been rejected due to invalid timestamp"

    def test_the_records_at_fault_are_named(self) -> None:
        data = bytearray(build_batch([(NOW, b"k", b"v", ()), (NOW + HOUR + 7, b"k", b"v", ())]))
        with pytest.raises(RecordsRejected) as caught:
            judge(memoryview(data), DEFAULT, NOW, partition=PARTITION)
        ((index, message),) = caught.value.errors
        assert index == 1
        assert message.startswith(f"Timestamp {NOW + HOUR + 7} of message with offset 1 is out of")
        assert message.endswith(f"{NOW + HOUR}]")

    @pytest.mark.parametrize("codec", Compression)
    def test_one_old_record_is_enough_where_the_past_is_limited(self, codec: Compression) -> None:
        good = records(3, time=NOW - HOUR)
        accept(build_batch(good, compression=codec), RECENT_ONLY)
        bad = [*good, (NOW - HOUR - 1, b"k", b"v", ())]
        code, _ = refuse(build_batch(bad, compression=codec), RECENT_ONLY)
        assert code is ErrorCode.INVALID_TIMESTAMP

    def test_a_record_without_timestamp_is_no_old_record(self) -> None:
        accept(build_batch([(-1, b"k", b"v", ())]), RECENT_ONLY)

    def test_the_logs_own_time_replaces_the_producers(self) -> None:
        header, got = accept(batch(time=1), STAMPED)
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert header.max_timestamp == NOW
        assert {record.timestamp for record in iter_records(got)} == {NOW}

    def test_the_logs_own_time_knows_no_limits(self) -> None:
        config = TopicConfig(
            message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=HOUR
        )
        accept(batch(time=NOW + 99 * HOUR), config)
        accept(batch(time=0), config)

    def test_a_producer_must_not_claim_to_be_the_log(self) -> None:
        data = batch(timestamp_type=TimestampType.LOG_APPEND_TIME)
        assert refuse(data, STAMPED)[0] is ErrorCode.INVALID_TIMESTAMP

    def test_elsewhere_such_a_claim_is_dropped(self) -> None:
        header, _ = accept(batch(timestamp_type=TimestampType.LOG_APPEND_TIME))
        assert header.timestamp_type is TimestampType.CREATE_TIME

    @pytest.mark.parametrize("source", Compression)
    def test_a_batch_written_anew_has_the_time_that_such_a_claim_names(
        self, source: Compression
    ) -> None:
        target = Compression.GZIP if source is not Compression.GZIP else Compression.ZSTD
        config = TopicConfig(compression_type=target.name.lower())
        claim = batch(timestamp_type=TimestampType.LOG_APPEND_TIME, compression=source)
        header, got = accept(claim, config)
        assert header.timestamp_type is TimestampType.CREATE_TIME
        assert (header.base_timestamp, header.max_timestamp) == (NOW + 4, NOW + 4)
        assert [record.timestamp for record in iter_records(got)] == [NOW + 4] * 5
        assert [record.value for record in iter_records(got)] == [b"v" * 50] * 5

    def test_a_batch_that_is_numbered_anew_has_the_time_that_such_a_claim_names(self) -> None:
        builder = BatchBuilder(
            compression=Compression.LZ4, timestamp_type=TimestampType.LOG_APPEND_TIME
        )
        builder.append(NOW, b"a", b"1")
        builder.append(NOW + 2, b"b", b"2", offset=3)
        data = bytearray(builder.build())
        struct.pack_into(">i", data, 23, 1)
        _, got = accept(with_crc(data), COMPACT)
        found = [(record.offset, record.timestamp) for record in iter_records(got)]
        assert found == [(0, NOW + 2), (1, NOW + 2)]

    def test_a_max_timestamp_before_the_first_is_found_anew(self) -> None:
        header, _ = accept(patched(">q", 35, NOW - 1))
        assert header.max_timestamp == NOW + 4


class TestKeys:
    @pytest.mark.parametrize("codec", Compression)
    def test_a_compacted_topic_wants_keys(self, codec: Compression) -> None:
        accept(batch(compression=codec), COMPACT)
        code, message = refuse(batch(2, keys=False, compression=codec), COMPACT)
        assert code is ErrorCode.INVALID_RECORD
        error = "Compacted topic cannot accept message without key in topic partition orders-3"
        assert message == (
            "One or more records have been rejected due to 2 record errors in total, and only "
            "showing the first three errors at most: "
            f"[RecordError(batchIndex=0, message='{error}'), "
            f"RecordError(batchIndex=1, message='{error}')]"
        )

    def test_an_empty_key_is_a_key(self) -> None:
        accept(build_batch([(NOW, b"", b"v", ())]), COMPACT)

    def test_each_record_without_key_is_named(self) -> None:
        mixed = [(NOW, b"k" if n % 2 else None, b"v", ()) for n in range(9)]
        with pytest.raises(RecordsRejected) as caught:
            judge(memoryview(bytearray(build_batch(mixed))), COMPACT, NOW, partition=PARTITION)
        assert [error.batch_index for error in caught.value.errors] == [0, 2, 4, 6, 8]
        assert str(caught.value.message).count("RecordError(") == 3

    def test_twenty_thousand_errors_are_not_all_kept(self) -> None:
        many = build_batch([(NOW, None, b"", ())] * 20_000, compression=Compression.ZSTD)
        with pytest.raises(RecordsRejected, match="20000 record errors") as caught:
            judged(many, COMPACT)
        assert len(caught.value.errors) == 1000

    def test_a_bad_timestamp_outweighs_a_missing_key(self) -> None:
        config = TopicConfig(
            cleanup_policy=frozenset({"compact", "delete"}), message_timestamp_before_max_ms=HOUR
        )
        data = build_batch([(NOW, None, b"v", ()), (0, b"k", b"v", ())])
        assert refuse(data, config)[0] is ErrorCode.INVALID_TIMESTAMP

    def test_other_topics_do_not_want_keys(self) -> None:
        accept(batch(keys=False))


class TestRecompression:
    @pytest.mark.parametrize("source", Compression)
    @pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
    def test_a_batch_is_stored_in_the_topics_codec(self, source: Compression, name: str) -> None:
        content = records(20)
        data = build_batch(
            content,
            compression=source,
            producer_id=5,
            producer_epoch=2,
            base_sequence=7,
            transactional=True,
        )
        header, got = accept(data, TopicConfig(compression_type=name))
        assert header.compression is Compression.named(name)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 7)
        assert header.is_transactional
        assert header.max_timestamp == NOW + 19
        assert [tuple(r[1:]) for r in iter_records(got)] == content

    def test_the_same_codec_is_left_alone(self) -> None:
        data = memoryview(batch(compression=Compression.GZIP))
        config = TopicConfig(compression_type="gzip")
        assert judge(data, config, NOW, partition=PARTITION)[1] is data

    def test_the_level_is_the_topics(self) -> None:
        data = build_batch([(NOW, b"k", b"%d" % (n * n), ()) for n in range(3000)])
        sizes = [
            accept(data, TopicConfig(compression_type="gzip", compression_gzip_level=level))[0].size
            for level in (1, 9)
        ]
        assert sizes[1] < sizes[0]

    def test_a_batch_that_grows_over_the_limit_is_too_large(self) -> None:
        data = batch(200, compression=Compression.ZSTD)
        config = TopicConfig(compression_type="uncompressed", max_message_bytes=len(data) + 10)
        assert refuse(data, config)[0] is ErrorCode.MESSAGE_TOO_LARGE

    def test_it_goes_together_with_the_logs_own_time(self) -> None:
        config = TopicConfig(compression_type="zstd", message_timestamp_type="LogAppendTime")
        header, got = accept(batch(), config)
        assert header.compression is Compression.ZSTD
        assert {record.timestamp for record in iter_records(got)} == {NOW}

    def test_wrong_offset_deltas_are_numbered_anew(self) -> None:
        builder = BatchBuilder(compression=Compression.LZ4)
        builder.append(NOW, b"a", b"1", [("h", b"x")])
        builder.append(NOW + 2, b"b", b"2", offset=3)
        data = bytearray(builder.build())
        struct.pack_into(">i", data, 23, 1)
        struct.pack_into(">q", data, 27, NOW - 10)  # a base that no record has
        header, got = accept(with_crc(data), TopicConfig(compression_type="zstd"))
        assert header.last_offset_delta == 1
        assert header.max_timestamp == NOW - 8
        assert [tuple(record) for record in iter_records(got)] == [
            (0, NOW - 10, b"a", b"1", (("h", b"x"),)),
            (1, NOW - 8, b"b", b"2", ()),
        ]

    @pytest.mark.parametrize("second", [3, 10**9])
    def test_a_compacted_topic_numbers_those_of_a_plain_batch_anew(self, second: int) -> None:
        # The cleaner would take records that are not at this batch's offsets for damage.
        builder = BatchBuilder()
        builder.append(NOW, b"a", b"1")
        builder.append(NOW + 2, b"b", b"2", offset=second)
        data = bytearray(builder.build())
        struct.pack_into(">i", data, 23, 1)
        header, got = accept(with_crc(data), COMPACT)
        assert header.last_offset_delta == 1
        assert [tuple(record) for record in iter_records(got)] == [
            (0, NOW, b"a", b"1", ()),
            (1, NOW + 2, b"b", b"2", ()),
        ]

    @pytest.mark.parametrize("codec", Compression)
    @pytest.mark.parametrize("count", [4, 6])
    def test_a_wrong_record_count_is_found_out(self, codec: Compression, count: int) -> None:
        data = batch(5, compression=codec)
        struct.pack_into(">i", data, 57, count)
        struct.pack_into(">i", data, 23, count - 1)
        assert refuse(with_crc(data), COMPACT)[0] is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("codec", CODECS)
    def test_compressed_garbage_is_found_out(self, codec: Compression) -> None:
        data = batch(compression=codec)
        data[61:] = b"\x07" * (len(data) - 61)
        assert refuse(with_crc(data), COMPACT)[0] is ErrorCode.INVALID_RECORD

    def test_a_timestamp_beyond_all_numbers_is_found_out(self) -> None:
        builder = BatchBuilder()
        builder.append(2**62, b"k", b"v")
        builder.append(2**63 + 5, b"k", b"v")
        builder._max_timestamp = 2**62
        config = TopicConfig(
            cleanup_policy=frozenset({"compact"}), message_timestamp_after_max_ms=2**63 - 1
        )
        assert refuse(builder.build(), config)[0] is ErrorCode.INVALID_RECORD


def takes_long(data: bytes | bytearray, config: TopicConfig) -> bool:
    try:
        judge(memoryview(bytearray(data)), config, NOW, partition=PARTITION)
    except TakesLong:
        return True
    except KafkaError:
        pass
    return False


class TestWhatTakesLong:
    def test_the_common_batch_never_does(self) -> None:
        big = batch(15_000)
        assert not takes_long(big, DEFAULT)
        assert not takes_long(big, STAMPED)
        assert not takes_long(big, TopicConfig(compression_type="uncompressed"))

    @pytest.mark.parametrize("config", [COMPACT, RECENT_ONLY])
    def test_walking_a_large_batch_does_only_without_native_code(self, config: TopicConfig) -> None:
        assert not takes_long(batch(5), config)
        assert takes_long(batch(3000), config) is not walker.NATIVE

    def test_walking_megabytes_does(self) -> None:
        config = TopicConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=1 << 30)
        assert takes_long(build_batch([(NOW, b"k", bytes(1 << 20), ())] * 3), config)

    def test_compressing_anew_what_is_not_small_does(self) -> None:
        config = TopicConfig(compression_type="gzip")
        assert not takes_long(batch(5), config)
        assert takes_long(batch(3000), config)

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_compressed_batch_does_if_it_is_large_inside(self, codec: Compression) -> None:
        most = on_the_spot().content
        cases = [
            (batch(5, compression=codec), False),
            (build_batch([(NOW, b"k", bytes(most - 100), ())], compression=codec), False),
            (build_batch([(NOW, b"k", bytes(most), ())], compression=codec), True),
        ]
        for data, slow in cases:
            assert takes_long(data, COMPACT) == slow

    def test_nothing_has_happened_to_a_batch_that_does(self) -> None:
        data = batch(3000)
        before = bytes(data)
        config = TopicConfig(message_timestamp_type="LogAppendTime", compression_type="zstd")
        with pytest.raises(TakesLong):
            judge(memoryview(data), config, NOW, partition=PARTITION)
        assert data == before

    def test_a_prepared_batch_passes_without_being_looked_at_again(self) -> None:
        config = TopicConfig(
            cleanup_policy=frozenset({"compact"}),
            compression_type="zstd",
            message_timestamp_type="LogAppendTime",
        )
        content = records(3000)
        data = prepare(build_batch(content), config, NOW, partition=PARTITION)
        header, got = accept(data, config, prepared=True)
        assert header.compression is Compression.ZSTD
        assert [tuple(r[2:]) for r in iter_records(got)] == [r[1:] for r in content]

    def test_prepared_batches_are_not_walked_twice(self) -> None:
        keyless = batch(3000, keys=False)
        accept(keyless, COMPACT, prepared=True)

    def test_what_needs_no_change_comes_back_the_same(self) -> None:
        data = bytes(batch(3000, compression=Compression.LZ4))
        assert prepare(data, COMPACT, NOW, partition=PARTITION) == data

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (batch(3000, keys=False), ErrorCode.INVALID_RECORD),
            (batch()[:-1], ErrorCode.INVALID_RECORD),
            (batch() + batch(), ErrorCode.INVALID_RECORD),
            (b"", ErrorCode.INVALID_RECORD),
            (patched(">b", 16, 9), ErrorCode.CORRUPT_MESSAGE),
            (patched(">h", 21, 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
            (batch(time=NOW + 2 * HOUR), ErrorCode.INVALID_TIMESTAMP),
        ],
    )
    def test_preparing_refuses_what_judging_would(self, data: bytes, code: ErrorCode) -> None:
        with pytest.raises(KafkaError) as caught:
            prepare(bytes(data), COMPACT, NOW, partition=PARTITION)
        assert caught.value.code is code

    def test_all_that_goes_to_a_child_process_and_back_can_be_pickled(self) -> None:
        function, config, partition = pickle.loads(pickle.dumps((prepare, COMPACT, PARTITION)))
        with pytest.raises(RecordsRejected) as caught:
            function(bytes(batch(keys=False)), config, NOW, partition=partition)
        error = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(error, RecordsRejected)
        assert error.code is ErrorCode.INVALID_RECORD
        assert error.message == caught.value.message
        assert error.errors == caught.value.errors

    def test_a_zstd_bomb_is_refused(self) -> None:
        run = struct.pack("<I", 128 * 1024 << 3 | 1 << 1)[:3] + b"\0"  # one byte, 131,072 times
        frame = struct.pack("<IBB", 0xFD2FB528, 0, 0x38) + run * 80_000  # ten gigabytes
        data = batch(compression=Compression.ZSTD)
        data[61:] = frame
        struct.pack_into(">i", data, 8, len(data) - 12)
        assert takes_long(with_crc(data), COMPACT)
        with pytest.raises(KafkaError, match="more than 134217728 bytes") as caught:
            prepare(bytes(data), COMPACT, NOW, partition=PARTITION)
        assert caught.value.code is ErrorCode.INVALID_RECORD


class TestReplicated:
    @staticmethod
    def at(offset: int, count: int = 3, **fields: Any) -> bytearray:
        data = batch(count, **fields)
        set_offset_and_epoch(data, 0, offset, 4)
        return data

    def test_every_whole_batch_is_given_with_its_position(self) -> None:
        first, second = self.at(10), self.at(20, compression=Compression.ZSTD)
        for torn in (0, 5, 12, 16, 40, 61):
            found = judge_replicated(
                memoryview(first + second + self.at(30)[:torn]), partition=PARTITION, leader_epoch=4
            )
            assert found == [(0, read_header(first)), (len(first), read_header(second))]

    def test_nothing_is_nothing(self) -> None:
        assert judge_replicated(memoryview(b""), partition=PARTITION, leader_epoch=4) == []

    def test_damage_on_the_way_is_corrupt(self) -> None:
        data = self.at(10) + self.at(20)
        data[-1] ^= 1
        with pytest.raises(KafkaError) as caught:
            judge_replicated(memoryview(data), partition=PARTITION, leader_epoch=4)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize(("layout", "position", "value"), [(">i", 8, 5), (">b", 16, 1)])
    def test_what_is_no_batch_is_corrupt(self, layout: str, position: int, value: int) -> None:
        data = self.at(10)
        struct.pack_into(layout, data, position, value)
        with pytest.raises(KafkaError) as caught:
            judge_replicated(memoryview(data), partition=PARTITION, leader_epoch=4)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("offset", [0, 10, 12])
    def test_offsets_that_go_back_are_refused(self, offset: int) -> None:
        with pytest.raises(KafkaError, match="Out of order offsets"):
            judge_replicated(
                memoryview(self.at(10) + self.at(offset)), partition=PARTITION, leader_epoch=4
            )
