"""Whether a batch may enter a log: the rules of Kafka 4.2, in Kafka's order, with its answers.

The header decides almost everything, so almost nothing else is looked at: 61 bytes are unpacked,
the CRC is checked, and the batch is stored as it came. Three settings of a topic need the records
themselves, and only then are they decompressed and walked (`record_rules.must_walk`):

- `cleanup.policy` with `compact`: every record must have a key;
- `message.timestamp.before.max.ms` other than its endless default: the header tells the newest
  timestamp, not the oldest;
- `compression.type` other than `producer` and other than the batch's codec: recompressed.

That is a matter of microseconds for most batches and is then done on the spot. For one that is
large, or large inside, `judge` raises `TakesLong`, having changed nothing; the batch is given to
`prepare`, a pure function for a thread or a child process, and its result is judged with
`prepared=True`. A thread does what native code can do (`in_a_thread`), a child the rest.

Not done: what is inside of a batch whose header and CRC are right is not read when no rule needs it
(Kafka walks every batch). A producer that sends garbage in good wrapping gets it stored, and its
consumers will complain; a max timestamp in the header is believed unless it is before the first.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import (
    APPEND_TIME_FLAG,
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    read_header,
    set_append_time,
    set_max_timestamp,
)
from ottla.records.checksum import crc32c
from ottla.records.compression import Compression
from ottla.storage.producers import Origin
from ottla.storage.record_rules import (
    RecordError,
    RecordsRejected,
    TakesLong,
    append_time_from_producer,
    future_timestamps,
    in_a_thread,
    invalid_record,
    judge_records,
    must_walk,
    on_the_spot,
)

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig
    from ottla.model.ids import TopicPartition
    from ottla.storage.record_rules import Limits

__all__ = [
    "RecordError",
    "RecordsRejected",
    "TakesLong",
    "in_a_thread",
    "judge",
    "judge_replicated",
    "prepare",
]

_SMALLEST_LENGTH = 14  # of the oldest message format; Kafka's first test of any length
_CODECS = len(Compression)
_LENGTH = struct.Struct(">i")

_unpack = HEADER.unpack_from
_new = tuple.__new__  # half the time of BatchHeader._make


def judge(
    records: memoryview,
    config: TopicConfig,
    now_ms: int,
    *,
    partition: TopicPartition,
    origin: Origin = Origin.CLIENT,
    prepared: bool = False,
) -> tuple[BatchHeader, memoryview]:
    """Check one append and make it ready: the header, and the bytes to give an offset and write.

    The bytes are `records` itself, without what may stand behind the one batch; its header is
    rewritten in place where the topic stamps append times. Only recompression makes new ones.
    Raises KafkaError, or TakesLong.
    """
    header, records = _judge_header(records, config, partition, origin)
    if must_walk(header, config, origin, prepared=prepared):
        records = judge_records(records, header, config, now_ms, partition, on_the_spot())
        header = read_header(records)

    if config.message_timestamp_type == "LogAppendTime":
        if header.attributes & APPEND_TIME_FLAG:
            raise append_time_from_producer(header)
        set_append_time(records, 0, now_ms)
        header = read_header(records)
    elif header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise future_timestamps(records, header, config, now_ms, partition)
    elif header.attributes & APPEND_TIME_FLAG:
        # Kafka takes such a batch's max timestamp for its records' create time.
        if header.max_timestamp == NO_TIMESTAMP:
            raise append_time_from_producer(header)
        set_max_timestamp(records, 0, header.max_timestamp)
        header = read_header(records)

    if header.length + LOG_OVERHEAD > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {header.size} bytes in append to partition {partition}, "
            f"which exceeds the maximum configured segment size of {config.segment_bytes}.",
        )
    return header, records


def _judge_header(
    records: memoryview, config: TopicConfig, partition: TopicPartition, origin: Origin
) -> tuple[BatchHeader, memoryview]:
    try:
        header = _new(BatchHeader, _unpack(records))
    except struct.error:
        raise _no_batch(records) from None
    base_offset, length, _, magic, crc, attributes, last_offset_delta = header[:7]
    size = length + LOG_OVERHEAD
    if size != records.nbytes or magic != MAGIC:
        records = _only_batch(records, size, magic)
    by_client = origin is Origin.CLIENT

    if by_client and base_offset != 0:
        raise invalid_record(
            f"The baseOffset of the record batch in the append to {partition} should be 0, but it "
            f"is {base_offset}"
        )
    if by_client and size > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append to {partition} is {size} bytes which exceeds "
            f"the maximum configured value of {config.max_message_bytes}.",
        )
    if size < HEADER_SIZE or crc32c(records[ATTRIBUTES_POSITION:]) != crc:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record is corrupt (stored crc = {crc}) in topic partition {partition}.",
        )
    if attributes & COMPRESSION_MASK >= _CODECS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Unknown compression type id: {attributes & COMPRESSION_MASK}",
        )
    if by_client and (
        last_offset_delta < 0
        or header.record_count != last_offset_delta + 1
        or attributes & CONTROL_FLAG
        or header.base_sequence < 0 <= header.producer_id
    ):
        raise _wrong_client_batch(header, partition)
    return header, records


def prepare(
    records: bytes,
    config: TopicConfig,
    now_ms: int,
    *,
    partition: TopicPartition,
    limits: Limits | None = None,
) -> bytes:
    """The part of judging a client's batch that takes time: a batch that needs it no more.

    Pure, and all that goes in and out can be pickled. Raises what `judge` would.
    """
    header, view = _judge_header(memoryview(records), config, partition, Origin.CLIENT)
    return bytes(judge_records(view, header, config, now_ms, partition, limits))


def judge_replicated(
    records: memoryview, *, partition: TopicPartition, leader_epoch: int
) -> list[tuple[int, BatchHeader]]:
    """The whole batches that a leader sent, with their positions, checked for damage on the way.

    A batch cut off at the end (a fetch has a size limit) is left out. So are, as in Kafka, the
    first one of an epoch after the leader's own and what follows it: the answer is that of a
    broker which has become a follower itself, and may yet have to drop them.
    """
    found: list[tuple[int, BatchHeader]] = []
    position = 0
    last_offset = -1
    size = records.nbytes
    while size - position > MAGIC_POSITION:
        (length,) = _LENGTH.unpack_from(records, position + 8)
        _check_frame(length, records[position + MAGIC_POSITION])
        end = position + LOG_OVERHEAD + length
        if end > size:
            break
        header = None
        if length + LOG_OVERHEAD >= HEADER_SIZE:
            header = _new(BatchHeader, _unpack(records, position))
        if (
            header is None
            or header.magic != MAGIC
            or crc32c(records[position + ATTRIBUTES_POSITION : end]) != header.crc
        ):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Record is corrupt at byte {position} of a fetch for topic partition {partition}.",
            )
        base_offset, delta = header.base_offset, header.last_offset_delta
        if base_offset <= last_offset or delta < 0:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Out of order offsets found in append to {partition}: {base_offset} after "
                f"{last_offset}",
            )
        if header.leader_epoch > leader_epoch:
            break
        last_offset = base_offset + delta
        found.append((position, header))
        position = end
    return found


# The frame around the batch


def _no_batch(records: memoryview) -> KafkaError:
    """The answer to bytes that are too few for a header."""
    if records.nbytes > MAGIC_POSITION:
        (length,) = _LENGTH.unpack_from(records, 8)
        try:
            _only_batch(records, length + LOG_OVERHEAD, records[MAGIC_POSITION])
        except KafkaError as error:
            return error
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record batch is corrupt (the size {length + LOG_OVERHEAD} is smaller than the "
            f"minimum allowed overhead {HEADER_SIZE})",
        )
    return invalid_record("Record batch has no batches at all")


def _only_batch(records: memoryview, size: int, magic: int) -> memoryview:
    """The batch at the start of `records`, if it is whole, of our version, and the only one.

    Bytes behind it that are not a whole batch are cut off in silence, as Kafka does.
    """
    _check_frame(size - LOG_OVERHEAD, magic)
    rest = records.nbytes - size
    if rest < 0:
        raise invalid_record("Record batch has no batches at all")
    if magic != MAGIC:
        raise invalid_record(
            "Produce requests are only allowed to contain record batches with magic version 2"
        )
    if rest > MAGIC_POSITION:
        (length,) = _LENGTH.unpack_from(records, size + 8)
        _check_frame(length, records[size + MAGIC_POSITION])
        if rest >= length + LOG_OVERHEAD:
            raise invalid_record(
                "Produce requests are only allowed to contain exactly one record batch per "
                "partition"
            )
    return records[:size]


def _check_frame(length: int, magic: int) -> None:
    if length < _SMALLEST_LENGTH:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"Record size {length} is less than the minimum record overhead ({_SMALLEST_LENGTH})",
        )
    if not 0 <= magic <= MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")


def _wrong_client_batch(header: BatchHeader, partition: TopicPartition) -> KafkaError:
    span = f"[{header.base_offset}, {header.last_offset}]"
    if header.last_offset_delta < 0:
        return invalid_record(
            f"Batch has an invalid offset range: {span} in topic partition {partition}"
        )
    if header.record_count <= 0:
        return invalid_record(
            f"Invalid reported count for record batch: {header.record_count} in topic partition "
            f"{partition}"
        )
    if header.record_count != header.last_offset_delta + 1:
        return invalid_record(
            f"Inconsistent batch offset range {span} and count of records {header.record_count} "
            f"in topic partition {partition}"
        )
    if header.is_control:
        return invalid_record(
            f"Clients are not allowed to write control records in topic partition {partition}"
        )
    return invalid_record(
        f"Invalid sequence number {header.base_sequence} in record batch with producerId "
        f"{header.producer_id} in topic partition {partition}"
    )
