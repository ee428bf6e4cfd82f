"""Generated codecs: exact bytes, zero-copy records, version rules, and what bad input gets.

The comparison with another implementation, for every message and version, is in
tests/property/protocol. Here are the things it cannot say.
"""

from __future__ import annotations

import itertools
import random
import traceback
import tracemalloc
from collections.abc import Callable, Generator
from typing import Any

import pytest

from ottla.protocol.compiler import codec
from ottla.protocol.decoder import MAX_ELEMENTS, TooManyElements
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from ottla.protocol.messages.groups import HeartbeatResponse
from ottla.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.primitives import MAX_TAGS, DecodeError, EncodeError, Part, uvarint
from ottla.protocol.schema import (
    array,
    boolean,
    float64,
    int32,
    message,
    nested,
    struct,
    uint16,
)

Fill = Callable[[type, int], Any]


def encode(value: Any, version: int) -> bytes:
    parts: list[Part] = []
    length = codec(type(value), version).encode(value, parts)
    encoded = b"".join(parts)
    assert length == len(encoded)
    return encoded


def decode(cls: type[Any], version: int, data: str | bytes) -> Any:
    raw = bytes.fromhex(data) if isinstance(data, str) else data
    value, end = codec(cls, version).decode(memoryview(raw), 0)
    assert end == len(raw)
    return value


# --- bytes worked out by hand -------------------------------------------------------------------


def produce_request(**changes: Any) -> ProduceRequest:
    partition = PartitionProduceData(index=7, records=memoryview(b"BATCH"))
    topic = TopicProduceData(name="tp", topic_id=bytes(range(16)), partition_data=[partition])
    values: dict[str, Any] = {"acks": -1, "timeout_ms": 1500, "topic_data": [topic]}
    return ProduceRequest(**(values | changes))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_requests_before_3_have_no_transactional_id(version: int) -> None:
    # acks, timeout, 1 topic, "tp", 1 partition, index 7, 5 bytes
    expected = "ffff 000005dc 00000001 0002 7470 00000001 00000007 00000005 4241544348"

    assert encode(produce_request(), version) == bytes.fromhex(expected)
    decoded = decode(ProduceRequest, version, expected)
    assert decoded.topic_data[0].name == "tp"
    assert decoded.topic_data[0].partition_data[0].records == b"BATCH"


def test_a_produce_request_of_version_3() -> None:
    expected = "ffff ffff 000005dc 00000001 0002 7470 00000001 00000007 00000005 4241544348"

    assert encode(produce_request(), 3) == bytes.fromhex(expected)


def test_a_produce_request_of_version_9_is_compact() -> None:
    expected = "00 ffff 000005dc 02 03 7470 02 00000007 06 4241544348 00 00 00"

    assert encode(produce_request(), 9) == bytes.fromhex(expected)


def test_a_produce_request_of_version_13_names_topics_by_id() -> None:
    topic_id = bytes(range(16)).hex()
    expected = f"00 ffff 000005dc 02 {topic_id} 02 00000007 06 4241544348 00 00 00"

    assert encode(produce_request(), 13) == bytes.fromhex(expected)
    assert decode(ProduceRequest, 13, expected).topic_data[0].topic_id == bytes(range(16))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, "00000001 0002 7470 00000001 00000007 0023 ffffffffffffffff"),
        (1, "00000001 0002 7470 00000001 00000007 0023 ffffffffffffffff 00000064"),
        (2, "00000001 0002 7470 00000001 00000007 0023 ffffffffffffffff 0000000000000005 00000064"),
    ],
)
def test_produce_responses_before_3_can_carry_an_error(version: int, expected: str) -> None:
    partition = PartitionProduceResponse(
        index=7, error_code=35, base_offset=-1, log_append_time_ms=5
    )
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="tp", partition_responses=[partition])],
        throttle_time_ms=100,
    )

    assert encode(response, version) == bytes.fromhex(expected)


def test_tagged_fields_follow_in_order_with_their_sizes() -> None:
    partition = PartitionData(
        partition_index=0,
        high_watermark=0,
        records=None,
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=3),
        diverging_epoch=EpochEndOffset(epoch=1, end_offset=4),
    )
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])

    encoded = encode(response, 12)

    # two tags; 0: 13 bytes (epoch, end offset, no tags); 1: 9 bytes (id, epoch, no tags)
    tags = "02 00 0d 00000001 0000000000000004 00 01 09 00000002 00000003 00"
    assert encoded.endswith(bytes.fromhex(tags) + b"\0\0")
    assert decode(FetchResponse, 12, encoded) == response


def test_a_tagged_structure_at_its_defaults_is_not_written() -> None:
    unset, explicit = (
        PartitionData(partition_index=0, high_watermark=0, records=None, current_leader=leader)
        for leader in (None, LeaderIdAndEpoch())
    )
    encoded = [
        encode(FetchResponse(responses=[FetchableTopicResponse(partitions=[data])]), 13)
        for data in (unset, explicit)
    ]

    assert encoded[0] == encoded[1]
    assert decode(FetchResponse, 13, encoded[1]).responses[0].partitions[0].current_leader is None


@struct
class Facet:
    number: int = int32(default=0)


@message(api_key=5, kind="data", versions="0", flexible="0+")
class Faceted:
    said: Facet | None = nested(Facet, nullable="0+", tag=0)
    assumed: Facet | None = nested(Facet, nullable="0+", tag=3, default=None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Faceted(said=None), "01 00 01 00"),
        (Faceted(said=Facet()), "00"),
        (Faceted(said=Facet(number=7)), "01 00 06 01 00000007 00"),
        (Faceted(said=Facet(), assumed=Facet()), "01 03 06 01 00000000 00"),
        (
            Faceted(said=None, assumed=Facet(number=7)),
            "02 00 01 00 03 06 01 00000007 00",
        ),
    ],
)
def test_null_in_a_tagged_structure_is_not_the_same_as_nothing(
    value: Faceted, expected: str
) -> None:
    """The bytes of Kafka's generated classes: a length, then 0 for null or 1 and the structure."""
    assert encode(value, 0) == bytes.fromhex(expected)
    assert decode(Faceted, 0, expected) == value


def test_a_structure_that_was_left_out_belongs_to_one_message() -> None:
    one, other = decode(Faceted, 0, "00"), decode(Faceted, 0, "00")
    one.said.number = 5
    assert other.said == Facet()
    assert decode(Faceted, 0, "01 03 01 00").assumed is None


@pytest.mark.parametrize(
    "damaged", ["01 00 01 01", "01 00 02 00 00", "01 00 05 01 00000007 00", "01 00 00"]
)
def test_a_tagged_structure_of_another_size_is_refused(damaged: str) -> None:
    with pytest.raises(DecodeError):
        decode(Faceted, 0, damaged)


def test_a_nullable_structure_is_preceded_by_a_byte() -> None:
    absent = decode(DescribeTopicPartitionsRequest, 0, "01 000007d0 ff 00")
    present = decode(DescribeTopicPartitionsRequest, 0, "01 000007d0 01 02 61 00000003 00 00")

    assert absent.cursor is None
    assert (present.cursor.topic_name, present.cursor.partition_index) == ("a", 3)
    assert encode(absent, 0) == bytes.fromhex("01 000007d0 ff 00")
    assert encode(present, 0) == bytes.fromhex("01 000007d0 01 02 61 00000003 00 00")


def test_numbers_no_api_uses_yet_have_their_kafka_layout() -> None:
    @message(versions="0", flexible="0+")
    class Odd:
        """Types that only other APIs carry."""

        port: int = uint16()
        ratio: float = float64()
        flag: bool = boolean()
        numbers: list[int] = array(int32)

    odd = Odd(port=65535, ratio=0.5, flag=True, numbers=list(range(200)))
    encoded = encode(odd, 0)

    assert encoded[:13] == bytes.fromhex("ffff 3fe0000000000000 01 c901")
    assert decode(Odd, 0, encoded) == odd


@pytest.mark.parametrize("count", [0, 126, 127, 128, 16_382, 16_383, 20_000])
@pytest.mark.parametrize("version", [8, 9])
def test_arrays_of_structures_of_any_length_read_back(version: int, count: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t") for _ in range(count)])

    assert decode(MetadataRequest, version, encode(request, version)) == request


def test_an_empty_message_has_no_parts() -> None:
    parts: list[Part] = []

    assert (
        codec(ApiVersionsRequest, 0).encode(
            ApiVersionsRequest(client_software_name="", client_software_version=""), parts
        )
        == 0
    )
    assert parts == []


# --- records -------------------------------------------------------------------------------------


class Region:
    """Stands for a piece of a file: it has a length, and nothing may look inside."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def fetch_response(*records: Any) -> FetchResponse:
    partitions = [
        PartitionData(partition_index=n, high_watermark=9, records=r) for n, r in enumerate(records)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_records_are_handed_on_as_parts_of_their_own(version: int) -> None:
    first, second = Region(100_000), Region(5)
    header = b"header"
    parts: list[Part] = [header]

    length = codec(FetchResponse, version).encode(fetch_response(first, second), parts)

    assert parts[0] is header
    assert parts[2] is first
    assert parts[4] is second
    assert length == sum(len(part) for part in parts) - len(header)


@pytest.mark.parametrize(("version", "null", "empty"), [(4, "ffffffff", "00000000")])
def test_null_and_empty_records_differ_in_classic_versions(
    version: int, null: str, empty: str
) -> None:
    assert encode(fetch_response(None), version).endswith(bytes.fromhex(null))
    assert encode(fetch_response(Region(0)), version).endswith(bytes.fromhex(empty))


def test_null_and_empty_records_differ_in_compact_versions() -> None:
    # ... preferred replica -1, records, and the tags of partition, topic and message
    assert encode(fetch_response(None), 12).endswith(bytes.fromhex("ffffffff 00 000000"))
    assert encode(fetch_response(b""), 12).endswith(bytes.fromhex("ffffffff 01 000000"))


@pytest.mark.parametrize("version", [3, 9])
def test_decoded_records_are_views_of_the_receive_buffer(version: int) -> None:
    buffer = bytearray(encode(produce_request(), version))

    request, _ = codec(ProduceRequest, version).decode(memoryview(buffer), 0)
    records = request.topic_data[0].partition_data[0].records
    assert records is not None
    records[0] = ord("b")

    assert b"bATCH" in buffer


def test_nothing_is_appended_when_encoding_fails_half_way() -> None:
    response = fetch_response(Region(10), Region(10))
    response.responses[0].partitions[1].partition_index = 1 << 40
    parts: list[Part] = [b"before"]

    with pytest.raises(EncodeError):
        codec(FetchResponse, 12).encode(response, parts)

    assert parts == [b"before"]


# --- versions ------------------------------------------------------------------------------------


def test_an_ignorable_field_is_dropped_where_the_version_lacks_it() -> None:
    topic = MetadataRequestTopic(name="a", topic_id=bytes(range(16)))

    assert encode(MetadataRequest(topics=[topic]), 9) == encode(
        MetadataRequest(topics=[MetadataRequestTopic(name="a")]), 9
    )


def test_another_field_is_refused_where_the_version_lacks_it() -> None:
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)

    with pytest.raises(EncodeError, match="allow_auto_topic_creation"):
        encode(request, 3)
    assert encode(request, 4) == bytes.fromhex("00000000 00")


def test_fields_of_other_versions_decode_to_their_defaults() -> None:
    request = decode(MetadataRequest, 0, "00000001 0001 61")

    assert request.allow_auto_topic_creation is True
    assert request.topics[0].topic_id == bytes(16)


def test_null_is_refused_where_it_may_not_be_written() -> None:
    assert encode(MetadataRequest(topics=None), 1) == bytes.fromhex("ffffffff")
    with pytest.raises(EncodeError):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(EncodeError):
        encode(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9)


@pytest.mark.parametrize(
    "change",
    [
        {"acks": 40_000},
        {"acks": "1"},
        {"topic_data": None},
        {"topic_data": [TopicProduceData(name="\ud800", partition_data=[])]},
        {"topic_data": [TopicProduceData(name="x" * 32_768, partition_data=[])]},
        {"transactional_id": "x" * 32_768},
    ],
)
def test_values_that_do_not_fit_are_encode_errors(change: dict[str, Any]) -> None:
    with pytest.raises(EncodeError):
        encode(produce_request(**change), 9)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_an_id_of_another_length_is_refused(size: int) -> None:
    topic = TopicProduceData(topic_id=bytes(size), partition_data=[])

    with pytest.raises(EncodeError, match="topic_id"):
        encode(produce_request(topic_data=[topic]), 13)


@pytest.mark.parametrize("version", [-1, 14, 99])
def test_there_is_no_codec_for_a_version_that_does_not_exist(version: int) -> None:
    with pytest.raises(ValueError, match=f"version {version}"):
        codec(ProduceRequest, version)


def test_a_codec_is_made_once() -> None:
    produce = codec(ProduceRequest, 9)

    assert codec(ProduceRequest, 9) is produce
    assert produce.decode is produce.decode
    assert repr(produce) == "<Codec ProduceRequest v9>"
    with pytest.raises(AttributeError):
        _ = produce.transcode


# --- bad input -----------------------------------------------------------------------------------


def test_every_message_reads_back_in_every_version(
    every_version: list[tuple[type[Any], int]], fill: Fill
) -> None:
    for cls, version in every_version:
        value = fill(cls, version)
        assert decode(cls, version, encode(value, version)) == value, (cls, version)


def test_a_message_cut_anywhere_is_a_decode_error(
    every_version: list[tuple[type[Any], int]], fill: Fill
) -> None:
    for cls, version in every_version:
        encoded = memoryview(encode(fill(cls, version), version))
        read = codec(cls, version).decode
        for cut in range(len(encoded)):
            with pytest.raises(DecodeError):
                read(encoded[:cut], 0)


def test_mutated_messages_raise_nothing_but_decode_errors(
    every_version: list[tuple[type[Any], int]], fill: Fill
) -> None:
    rng = random.Random(3)
    refused = accepted = 0
    for cls, version in every_version:
        encoded = encode(fill(cls, version), version)
        read = codec(cls, version).decode
        for _ in range(60 if encoded else 0):
            mutated = bytearray(encoded)
            for _ in range(rng.randrange(1, 4)):
                mutated[rng.randrange(len(mutated))] = rng.choice((0, 1, 127, 128, 255))
            try:
                _, end = read(memoryview(mutated), 0)
                accepted += 1
            except DecodeError:
                refused += 1
            else:
                assert end <= len(mutated)
    assert refused > 1000
    assert accepted > 1000


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 1, "7fffffff 0001 61"),
        (MetadataRequest, 9, "ffffffff0f 02 61"),
        (MetadataResponse, 0, "7fffffff"),
        (FetchRequest, 4, "ffffffff 00000000 00000000 00000000 00 7fffffff"),
        (DescribeTopicPartitionsRequest, 0, "ffffffff0f"),
    ],
)
def test_a_claimed_giant_array_fails_at_once_without_allocating(
    cls: type[Any], version: int, data: str
) -> None:
    read = codec(cls, version).decode
    buffer = memoryview(bytes.fromhex(data) + bytes(64))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="elements claimed"):
            read(buffer, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


def test_an_array_must_have_room_for_its_smallest_elements() -> None:
    # A classic FetchPartition of version 4 takes 16 bytes; three cannot lie in 47.
    head = "ffffffff 00000000 00000000 00000000 00 00000001 0001 61"

    with pytest.raises(DecodeError, match="3 elements claimed with 47 bytes left"):
        decode(FetchRequest, 4, bytes.fromhex(head + "00000003") + bytes(47))
    assert len(decode(FetchRequest, 4, bytes.fromhex(head + "00000003") + bytes(48)).topics) == 1


def test_a_request_made_of_nothing_but_empty_elements_is_refused_early() -> None:
    # Version 9: an empty name and no tags are two bytes, so the bytes for these are all there.
    empty = b"\x01\x00"
    fits = uvarint(MAX_ELEMENTS + 1) + empty * MAX_ELEMENTS + bytes(4)
    exceeds = uvarint(MAX_ELEMENTS + 2) + empty * (MAX_ELEMENTS + 1) + bytes(4)

    assert len(decode(MetadataRequest, 9, fits).topics) == MAX_ELEMENTS
    with pytest.raises(DecodeError, match="topics: 262145 elements are too many"):
        decode(MetadataRequest, 9, exceeds)


def test_the_bound_counts_all_arrays_of_a_request_together() -> None:
    # Version 12: topics of 1000 forgotten partitions each, in a FetchRequest
    head = bytes.fromhex("ffffffff 00000000 00000000 00000000 00 00000000 00000000 01")
    topic = b"\x01" + uvarint(1001) + bytes(4000) + b"\x00"

    def request(topics: int) -> bytes:
        return head + uvarint(topics + 1) + topic * topics + b"\x01\x00"

    assert len(decode(FetchRequest, 12, request(260)).forgotten_topics_data) == 260
    with pytest.raises(TooManyElements, match="partitions: 1000 elements are too many"):
        decode(FetchRequest, 12, request(262))
    few = codec(FetchRequest, 12).decode_few
    with pytest.raises(TooManyElements):
        few(memoryview(request(2)), 0)
    assert len(few(memoryview(request(1)), 0)[0].forgotten_topics_data) == 1


def test_a_codec_in_turns_gives_way_and_does_the_same() -> None:
    many = [MetadataRequestTopic(name=f"topic-{number}") for number in range(1000)]
    spoken = codec(MetadataRequest, 12)
    plain: list[Any] = []
    length = spoken.encode(MetadataRequest(topics=many), plain)
    parts: list[Any] = []
    assert drained(spoken.encode_in_turns(MetadataRequest(topics=many), parts)) == (3, length)
    assert parts == plain
    data = memoryview(b"".join(plain))
    pauses, (message, end) = drained(spoken.decode_in_turns(data, 0, 1000))
    assert (pauses, message, end) == (3, *spoken.decode(data, 0))
    with pytest.raises(TooManyElements):
        drained(spoken.decode_in_turns(data, 0, 999))
    with pytest.raises(DecodeError, match="the bytes end inside it"):
        drained(spoken.decode_in_turns(data[:-1], 0, 1000))


def test_a_codec_in_turns_is_one_also_without_an_array() -> None:
    spoken = codec(HeartbeatResponse, 4)
    parts: list[Any] = []
    response = HeartbeatResponse(error_code=5)
    assert drained(spoken.encode_in_turns(response, parts)) == (0, 7)
    assert spoken.decode(memoryview(parts[0]), 0)[0] == response


def drained(steps: Generator[int, None, Any]) -> tuple[int, Any]:
    """How often a generator yields, and what it returns."""
    for count in itertools.count():
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
    raise AssertionError


def test_more_tagged_fields_than_any_message_has_are_refused() -> None:
    head = bytes.fromhex("00000000 00000000 00000000 00 00000000 00000000 01 01 01")
    tags = uvarint(MAX_TAGS + 1) + b"\x63\x00" * (MAX_TAGS + 1)
    with pytest.raises(DecodeError, match="65 tagged fields in one place, more than 64"):
        decode(FetchRequest, 15, head[:-1] + b"\x01" + tags)


def test_responses_are_not_bounded() -> None:
    count = MAX_ELEMENTS + 5
    body = uvarint(count + 1) + b"\x00\x01\x00\x01\x00\x01\x00" * count

    response = decode(ApiVersionsResponse, 3, b"\x00\x00" + body + bytes(5))

    assert len(response.api_keys) == count


@pytest.mark.parametrize(
    ("version", "data", "complaint"),
    [
        (3, "ffff ffff 000005dc 00000001 ffff 00000000", "name: null"),
        (3, "ffff ffff 000005dc ffffffff", "topic_data: null"),
        (9, "00 ffff 000005dc 02 00 0000", "name: null"),
        (9, "00 ffff 000005dc 00", "topic_data: null"),
        (3, "0009 61", "transactional_id: a length of 9 with 1 bytes left"),
        (9, "00 ffff 000005dc 02 03 6161 02 00000001 c801 00", "records: a length of 199"),
        (9, "00 ffff 000005dc 02 03 c328 01 00 00", "not UTF-8"),
        (3, "0002 c328 ffff 000005dc 00000000", "not UTF-8"),
        (9, "ffffffffffff", "five bytes"),
    ],
)
def test_the_complaint_names_the_field(version: int, data: str, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        decode(ProduceRequest, version, data)


def test_a_compact_string_longer_than_a_short_can_say_is_refused() -> None:
    body = bytes.fromhex("818002") + b"x" * 32_768

    with pytest.raises(DecodeError, match="transactional_id: a length of 32768"):
        decode(ProduceRequest, 9, body + bytes(50))


def test_unknown_tagged_fields_are_skipped_at_every_level() -> None:
    unknown = "02 03 02 ffff 9901 00"  # two of them: tag 3 with two bytes, tag 153 with none
    data = f"00 ffff 000005dc 02 03 7470 02 00000007 06 4241544348 {unknown} {unknown} {unknown}"

    assert decode(ProduceRequest, 9, data) == decode(
        ProduceRequest, 9, "00 ffff 000005dc 02 03 7470 02 00000007 06 4241544348 00 00 00"
    )


def test_unknown_tags_among_known_ones_are_skipped() -> None:
    # ApiVersionsResponse v3: tag 1 is the epoch; tag 9 is news to us
    data = "0000 01 00000000 02 01 08 0000000000000007 09 03 616263"

    response = decode(ApiVersionsResponse, 3, data)

    assert response.finalized_features_epoch == 7
    assert response.supported_features == []


@pytest.mark.parametrize("size", ["07", "09"])
def test_a_known_tagged_field_of_another_size_is_refused(size: str) -> None:
    with pytest.raises(DecodeError, match="tagged field"):
        decode(ApiVersionsResponse, 3, f"0000 01 00000000 01 01 {size} 0000000000000007 00")


def test_bytes_after_the_message_are_left_alone() -> None:
    encoded = encode(produce_request(), 9)

    _, end = codec(ProduceRequest, 9).decode(memoryview(encoded + b"more"), 0)

    assert end == len(encoded)


def test_a_body_is_read_from_where_the_header_ended() -> None:
    encoded = encode(produce_request(), 9)

    request, end = codec(ProduceRequest, 9).decode(memoryview(b"header" + encoded), 6)

    assert request.timeout_ms == 1500
    assert end == 6 + len(encoded)


def test_a_traceback_shows_the_generated_line() -> None:
    request = FetchRequest(
        max_wait_ms=1,
        min_bytes=1,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=1)],
            )
        ],
    )
    encoded = encode(request, 11)

    with pytest.raises(DecodeError) as caught:
        decode(FetchRequest, 11, encoded[:-3])

    text = "".join(traceback.format_exception(caught.value))
    assert "unpack_" in text
    assert "<ottla.protocol FetchRequest v11 decoder>" in text
