"""The rules of an append that need the records of a batch, not only its header (see `validate`).

Each record is judged by itself: a missing key, a timestamp out of range. All of them are looked at,
so that the producer is told of every one that is wrong. The same walk gives the newest timestamp,
and the same bytes are recompressed where the topic has a codec of its own.

`walker` does the walking. With its native code that costs next to nothing beside (de)compression,
which lets go of the interpreter: what takes longer than the loop may wait is then for a thread.
Without it the walk is for a child process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.config.setting import MAX_LONG
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP
from ottla.records import walker
from ottla.records.batch import APPEND_TIME_FLAG, COMPRESSION_MASK, HEADER_SIZE, InvalidBatch
from ottla.records.builder import assemble
from ottla.records.compression import Compression, compress
from ottla.records.errors import TooLarge
from ottla.records.reader import payload
from ottla.records.walker import Rules
from ottla.storage.producers import Origin

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig
    from ottla.model.ids import TopicPartition
    from ottla.records.batch import BatchHeader


class Limits(NamedTuple):
    """What is looked at in one place: a batch of at most so much."""

    walked: int
    """Bytes, where the records are only walked."""
    content: int
    """Bytes when decompressed."""
    recompressed: int
    """Bytes, where they are compressed again."""
    records: int


NATIVE_LIMITS: Final = Limits(2 << 20, 256 << 10, 64 << 10, 1 << 18)
PLAIN_LIMITS: Final = Limits(16 << 10, 64 << 10, 16 << 10, 1000)
"""On the spot: within either, the loop waits half a millisecond or so."""
IN_A_THREAD: Final = Limits(1 << 31, 16 << 20, 16 << 20, 1 << 31)
"""In a thread with native code. What is beyond would need too much of the broker's own memory."""

_ERRORS_KEPT = 1000


class TakesLong(Exception):
    """The batch is more than is looked at on the spot: `validate.prepare` it elsewhere."""


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


def must_walk(
    header: BatchHeader, config: TopicConfig, origin: Origin, *, prepared: bool = False
) -> bool:
    """Whether the records themselves must be looked at before a batch is stored. Nobody else
    decides that.

    Only a client's are, and only once: `prepared` ones have been through `validate.prepare`. And
    only where the header cannot answer: the topic wants a key in every record, or none too old, or
    another codec; or the header's newest timestamp cannot be true.
    """
    if prepared or origin is not Origin.CLIENT:
        return False
    return (
        "compact" in config.cleanup_policy
        or (
            config.compression_type != "producer"
            and _target(header, config) != header.attributes & COMPRESSION_MASK
        )
        or header.max_timestamp < header.base_timestamp
        or (
            config.message_timestamp_before_max_ms != MAX_LONG
            and config.message_timestamp_type == "CreateTime"
        )
    )


def on_the_spot() -> Limits:
    """What is walked on the event loop."""
    return NATIVE_LIMITS if walker.NATIVE else PLAIN_LIMITS


def in_a_thread() -> Limits | None:
    """What is walked in a thread; None: nothing, because it would hold the interpreter. The rest
    is for a child process."""
    return IN_A_THREAD if walker.NATIVE else None


def _content(
    records: memoryview, header: BatchHeader, limits: Limits | None, *, recompressed: bool
) -> bytes | memoryview:
    """The records, decompressed. TakesLong if they are more than the limits."""
    codec = header.compression
    if limits is not None:
        most = limits.recompressed if recompressed else limits.content if codec else limits.walked
        if header.record_count > limits.records or records.nbytes > most:
            raise TakesLong
        if codec:
            try:
                return payload(records, header, max_decompressed=most)
            except TooLarge:
                raise TakesLong from None
    return payload(records, header) if codec else records[HEADER_SIZE:]


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
    limits: Limits | None,
) -> memoryview:
    """Apply the rules that need records; `records` itself, or a new batch where they change it.

    Raises TakesLong if that is more than `limits` allow.
    """
    source = header.compression
    target = Compression(_target(header, config))
    try:
        data = _content(records, header, limits, recompressed=source is not target)
        newest, in_order = _check(data, header, config, now_ms, partition)
        # Some clients send compressed batches with wrong offset deltas, which Kafka numbers anew;
        # it does not look at those of uncompressed ones, which its cleaner then fails over.
        plain = source is target is Compression.NONE
        renumber = not in_order and ("compact" in config.cleanup_policy or not plain)
        if source is target and not renumber:
            if newest == header.max_timestamp:
                return records
            body: bytes | memoryview = records[HEADER_SIZE:]
        else:
            # To Kafka the time of each record is the one that the flag names, so that is what a
            # batch that is written anew has; one that is kept gets its producer's times back.
            same_time = header.attributes & APPEND_TIME_FLAG != 0
            if renumber or same_time:
                data = walker.renumber(data, header.record_count, same_time=same_time)
                if same_time:
                    header = header._replace(base_timestamp=newest)
            body = compress(target, data, _level(target, config))
    except InvalidBatch as error:
        raise invalid_record(f"{error} in topic partition {partition}") from None
    fields = header._asdict()
    for computed in ("length", "magic", "crc"):
        del fields[computed]
    fields["attributes"] = header.attributes & ~COMPRESSION_MASK | target
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


def _check(
    data: bytes | memoryview,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    partition: TopicPartition,
) -> tuple[int, bool]:
    """Judge the records; the newest timestamp, and whether the offset deltas are consecutive."""
    keyed = "compact" in config.cleanup_policy
    timed = config.message_timestamp_type == "CreateTime"
    oldest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    summary = walker.summarize(data, header.record_count)
    if header.attributes & APPEND_TIME_FLAG:
        first = newest = header.max_timestamp
    else:
        first = header.base_timestamp + summary.oldest_delta
        newest = header.base_timestamp + summary.newest_delta
    rejected = None
    if (keyed and summary.keyless) or (timed and not oldest <= first <= newest <= latest):
        window = (oldest, latest) if timed else None
        rejected = _rejection(data, header, window, keyed, partition)
    if rejected is not None and rejected.code is ErrorCode.INVALID_TIMESTAMP:
        raise rejected
    if newest > MAX_LONG:
        raise InvalidBatch(f"a timestamp of {newest}")
    if rejected is not None:
        raise rejected
    return max(newest, NO_TIMESTAMP), summary.in_order


def _rejection(
    data: bytes | memoryview,
    header: BatchHeader,
    window: tuple[int, int] | None,
    keyed: bool,
    partition: TopicPartition,
) -> RecordsRejected | None:
    """The refusal for records without a key or with a timestamp outside of the window, if any."""
    base = header.base_timestamp
    everything = (-MAX_LONG - 1, MAX_LONG)
    times, exempt = everything, None
    if window is not None:
        if not header.attributes & APPEND_TIME_FLAG:
            times, exempt = (window[0] - base, window[1] - base), NO_TIMESTAMP - base
        elif header.max_timestamp != NO_TIMESTAMP:
            inside = window[0] <= header.max_timestamp <= window[1]
            times = everything if inside else (1, 0)
    rules = Rules(keyed, *times, exempt)
    total, late, found = walker.find_offenders(data, header.record_count, rules, _ERRORS_KEPT)
    if not total:
        return None
    errors = []
    for index, offset_delta, timestamp_delta, has_key in found:
        if window is None or (keyed and not has_key):
            message = (
                f"Compacted topic cannot accept message without key in topic partition {partition}"
            )
        else:
            timestamp = base + timestamp_delta
            if header.attributes & APPEND_TIME_FLAG:
                timestamp = header.max_timestamp
            message = _out_of_range(timestamp, offset_delta, *window)
        errors.append(RecordError(index, message))
    if late:
        return _rejected_timestamps(errors)
    shown = ", ".join(map(str, errors[:3]))
    return RecordsRejected(
        ErrorCode.INVALID_RECORD,
        f"One or more records have been rejected due to {total} record errors in total, and "
        f"only showing the first three errors at most: [{shown}]",
        tuple(errors),
    )


# Timestamps


def future_timestamps(
    records: memoryview,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    partition: TopicPartition,
) -> KafkaError:
    """The refusal of a batch whose newest record is too far in the future, naming the records if
    that costs little."""
    latest = now_ms + config.message_timestamp_after_max_ms
    window = (now_ms - config.message_timestamp_before_max_ms, latest)
    try:
        data = _content(records, header, on_the_spot(), recompressed=False)
        rejected = _rejection(data, header, window, False, partition)
    except TakesLong:
        rejected = None
    except InvalidBatch as error:
        return invalid_record(str(error))
    return rejected or _rejected_timestamps([])


def _out_of_range(timestamp: int, offset: int, oldest: int, latest: int) -> str:
    return (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp "
        f"should be within [{oldest}, {latest}]"
    )


def append_time_from_producer(header: BatchHeader) -> KafkaError:
    message = "Producer should not set timestamp type to LogAppendTime."
    count = min(header.record_count, _ERRORS_KEPT)
    return _rejected_timestamps([RecordError(index, message) for index in range(count)])


def _rejected_timestamps(errors: list[RecordError]) -> RecordsRejected:
    return RecordsRejected(
        ErrorCode.INVALID_TIMESTAMP,
        "One or more records have been rejected due to invalid timestamp",
        tuple(errors),
    )
