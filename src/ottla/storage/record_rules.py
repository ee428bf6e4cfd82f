"""The rules of an append that need the records of a batch, not only its header (see `validate`).

Each record is judged by itself: a missing key, a timestamp out of range. All of them are looked at,
so that the producer is told of every one that is wrong. The same walk gives the newest timestamp,
and the same bytes are recompressed where the topic has a codec of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.config.setting import MAX_LONG
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import (
    APPEND_TIME_FLAG,
    COMPRESSION_MASK,
    HEADER_SIZE,
    InvalidBatch,
    read_header,
)
from ottla.records.builder import BatchBuilder, assemble
from ottla.records.compression import Compression, compress
from ottla.records.reader import iter_outlines, iter_records, payload

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig
    from ottla.model.ids import TopicPartition
    from ottla.records.batch import BatchHeader

INLINE_BYTES = 16 * 1024
INLINE_CONTENT = 64 * 1024
INLINE_RECORDS = 1000
"""What is looked at on the spot: batches of this size, with this size and count inside. Walking
them takes about a millisecond, and so does recompressing them."""

_ERRORS_KEPT = 1000


class RecordError(NamedTuple):
    """What is wrong with one record, by its index in the batch (Produce v8+ returns these)."""

    batch_index: int
    message: str

    def __str__(self) -> str:
        return f"RecordError(batchIndex={self.batch_index}, message='{self.message}')"


class RecordsRejected(KafkaError):
    """A batch refused for what some of its records are. The one refusal whose message Kafka
    returns to the producer."""

    __slots__ = ("errors",)

    def __init__(
        self, code: ErrorCode, message: str | None, errors: tuple[RecordError, ...] = ()
    ) -> None:
        super().__init__(code, message)
        self.args = (code, message, errors)  # all of them, to survive the way out of a process
        self.errors = errors


def invalid_record(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def header_suffices(config: TopicConfig) -> bool:
    """Whether the topic has no rule at all that concerns records, so that only a header which
    contradicts itself can make `needs_records` true."""
    return (
        "compact" not in config.cleanup_policy
        and config.compression_type == "producer"
        and (
            config.message_timestamp_before_max_ms == MAX_LONG
            or config.message_timestamp_type != "CreateTime"
        )
    )


def needs_records(header: BatchHeader, config: TopicConfig) -> bool:
    """Whether this topic has a rule that the header alone cannot answer for this batch."""
    return (
        "compact" in config.cleanup_policy
        or (
            config.compression_type != "producer"
            and _target(header, config) != header.attributes & COMPRESSION_MASK
        )
        or header.max_timestamp < header.base_timestamp  # cannot be: the newest is to be found
        or (
            config.message_timestamp_before_max_ms != MAX_LONG
            and config.message_timestamp_type == "CreateTime"
        )
    )


def is_quick(header: BatchHeader, size: int, records: memoryview | None) -> bool:
    """Whether the records can be looked at on the spot: few, and small even when decompressed."""
    if size > INLINE_BYTES or header.record_count > INLINE_RECORDS:
        return False
    if header.attributes & COMPRESSION_MASK == Compression.NONE:
        return True
    if records is None:
        return False
    try:
        payload(records, header, max_decompressed=INLINE_CONTENT)
    except InvalidBatch:
        return False
    return True


def _target(header: BatchHeader, config: TopicConfig) -> int:
    """The codec in which this topic stores the batch."""
    if config.compression_type == "producer":
        return header.attributes & COMPRESSION_MASK
    return Compression.named(config.compression_type)


def judge_records(
    records: memoryview,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    partition: TopicPartition,
) -> memoryview:
    """Apply the rules that need records; `records` itself, or a new batch where they change it."""
    source = header.compression
    target = Compression(_target(header, config))
    base_timestamp = header.base_timestamp
    try:
        data = payload(records, header)
        newest, in_order = _walk(data, header, config, now_ms, partition)
        # Some clients send compressed batches with wrong offset deltas, which Kafka numbers anew;
        # it does not look at those of uncompressed ones.
        renumber = not in_order and not source is target is Compression.NONE
        if source is target and not renumber:
            if newest == header.max_timestamp:
                return records
            body: bytes | memoryview = records[HEADER_SIZE:]
        else:
            if renumber:
                data, base_timestamp = _renumbered(records, header)
            body = compress(target, data, _level(target, config))
    except InvalidBatch as error:
        raise invalid_record(f"{error} in topic partition {partition}") from None
    fields = header._asdict()
    for computed in ("length", "magic", "crc"):
        del fields[computed]
    fields["attributes"] = header.attributes & ~COMPRESSION_MASK | target
    fields["base_timestamp"] = base_timestamp
    fields["max_timestamp"] = newest
    batch = assemble(body, **fields)
    if len(batch) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"Message batch size is {len(batch)} bytes in append to partition {partition} which "
            f"exceeds the maximum configured size of {config.max_message_bytes}.",
        )
    return memoryview(bytearray(batch))


def _level(codec: Compression, config: TopicConfig) -> int | None:
    if codec is Compression.GZIP:
        return config.compression_gzip_level
    if codec is Compression.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec is Compression.ZSTD else None


def _renumbered(records: memoryview, header: BatchHeader) -> tuple[bytes, int]:
    """The records with offset deltas 0, 1, 2, …, and the base of their timestamps."""
    builder = BatchBuilder()
    builder.extend(
        (record.timestamp, record.key, record.value, record.headers)
        for record in iter_records(records, header)
    )
    batch = builder.build()
    return payload(batch), read_header(batch).base_timestamp


def _walk(
    data: bytes,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    partition: TopicPartition,
) -> tuple[int, bool]:
    """Judge each record; the newest timestamp, and whether the offset deltas are consecutive."""
    compacted = "compact" in config.cleanup_policy
    by_producer = config.message_timestamp_type == "CreateTime"
    oldest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    fixed = header.max_timestamp if header.attributes & APPEND_TIME_FLAG else None
    newest = NO_TIMESTAMP
    in_order = True
    errors: list[RecordError] = []
    total = 0
    late = False
    for index, (offset_delta, timestamp_delta, has_key) in enumerate(
        iter_outlines(data, header.record_count)
    ):
        timestamp = header.base_timestamp + timestamp_delta if fixed is None else fixed
        newest = max(newest, timestamp)
        if offset_delta != index:
            in_order = False
        if compacted and not has_key:
            message = (
                f"Compacted topic cannot accept message without key in topic partition {partition}"
            )
        elif by_producer and timestamp != NO_TIMESTAMP and not oldest <= timestamp <= latest:
            late = True
            message = _out_of_range(timestamp, offset_delta, oldest, latest)
        else:
            continue
        total += 1
        if len(errors) < _ERRORS_KEPT:
            errors.append(RecordError(index, message))
    if late:
        raise _rejected_timestamps(errors)
    if newest > MAX_LONG:
        raise InvalidBatch(f"a timestamp of {newest}")
    if total:
        shown = ", ".join(map(str, errors[:3]))
        raise RecordsRejected(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {total} record errors in total, and "
            f"only showing the first three errors at most: [{shown}]",
            tuple(errors),
        )
    return newest, in_order


# Timestamps


def future_timestamps(
    records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> KafkaError:
    """The refusal of a batch whose newest record is too far in the future, naming the records if
    that costs little."""
    oldest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    errors: list[RecordError] = []
    if is_quick(header, header.size, records):
        try:
            for index, record in enumerate(iter_records(records, header)):
                if record.timestamp > latest and len(errors) < _ERRORS_KEPT:
                    message = _out_of_range(record.timestamp, record.offset, oldest, latest)
                    errors.append(RecordError(index, message))
        except InvalidBatch as error:
            return invalid_record(str(error))
    return _rejected_timestamps(errors)


def _out_of_range(timestamp: int, offset: int, oldest: int, latest: int) -> str:
    return (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp "
        f"should be within [{oldest}, {latest}]"
    )


def append_time_from_producer(header: BatchHeader) -> KafkaError:
    message = "Producer should not set timestamp type to LogAppendTime."
    count = min(header.record_count, _ERRORS_KEPT)
    return _rejected_timestamps([RecordError(index, message) for index in range(count)])


def _rejected_timestamps(errors: list[RecordError]) -> KafkaError:
    return RecordsRejected(
        ErrorCode.INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
        tuple(errors),
    )
