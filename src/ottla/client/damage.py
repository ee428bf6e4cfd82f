"""Records that a broker holds and nobody can read: found, named, and left behind if so wished.

librdkafka is of little help with them. Depending on which bytes are damaged it reports an error
once, tries again and again in silence, or takes garbage for an offset and goes on there. So a
partition that stands still although it has more records is looked at here, with a fetch of our own:

    examine(router, partition, offset)     what is wrong there; None when nothing is
    first_offset(router, partition, offset)    the next record there; None when nothing is known

The first offset behind the damage is found the same way: batches are tried, further and further
away, until one is whole, and then closer and closer.

Not done   Where the connection needs TLS or SASL, which `wire` does not speak, nothing is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ottla.client.errors import Damage
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, checksum_ok, read_header
from ottla.records.errors import InvalidBatch
from ottla.records.reader import iter_records

if TYPE_CHECKING:
    from ottla.client.router import Router
    from ottla.records.batch import BatchHeader

_BYTES = 1 << 20
"""What one look asks for; a broker sends a larger first batch whole."""


def examine(router: Router, partition: TopicPartition, offset: int) -> Damage | None:
    """What is wrong with the records at `offset`; None when they can be read, or there are none.

    Batches of which nothing is given to a reader at `offset` (compaction has removed the rest, or
    they are a transaction's markers) are passed. Raises KafkaError when no broker can be asked.
    """
    at: int | None = offset
    while at is not None:
        problem, end, onward = _look(router, partition, at)
        if problem is not None:
            return Damage(at, problem, _behind(router, partition, at, end))
        at = onward
    return None


def first_offset(router: Router, partition: TopicPartition, offset: int) -> int | None:
    """The offset of the first whole record at or behind `offset`; None when there is none yet, or
    damage comes first. Records of aborted transactions count."""
    at: int | None = offset
    while at is not None:
        data, end, problem = _fetch(router, partition, at)
        if problem is not None or not data.nbytes or _fault(data) is not None:
            return None
        header = read_header(data)
        if not header.is_control:
            for record in iter_records(data, header):
                if record.offset >= at:
                    return record.offset
        at = _onward(header, at, end)
    return None


def _behind(router: Router, partition: TopicPartition, damaged: int, end: int) -> int:
    """The first offset after `damaged` that can be read; `end` if there is none."""
    bad, step = damaged, 1
    while (good := min(bad + step, end)) < end and _look(router, partition, good)[0] is not None:
        bad = good
        step *= 2
    while good - bad > 1:
        middle = (bad + good) // 2
        if _look(router, partition, middle)[0] is None:
            good = middle
        else:
            bad = middle
    return good


def _look(
    router: Router, partition: TopicPartition, offset: int
) -> tuple[str | None, int, int | None]:
    """What is wrong with the batch that holds `offset`, if anything; the high watermark; and where
    to look next, if the batch gives a reader nothing."""
    data, end, problem = _fetch(router, partition, offset)
    if problem is None and data.nbytes:
        problem = _fault(data)
    if problem is not None or not data.nbytes:
        return problem, end, None
    header = read_header(data)
    if not header.is_control and any(
        record.offset >= offset for record in iter_records(data, header)
    ):
        return None, end, None
    return None, end, _onward(header, offset, end)


def _onward(header: BatchHeader, offset: int, end: int) -> int | None:
    """Where the next batch begins, if there is one."""
    return header.next_offset if offset < header.next_offset < end else None


def _fetch(
    router: Router, partition: TopicPartition, offset: int
) -> tuple[memoryview, int, str | None]:
    """The bytes that a broker sends for `offset`, the high watermark, and why there are none."""
    wanted = FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=_BYTES
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_BYTES,
        topics=[FetchTopic(topic=partition.topic, partitions=[wanted])],
    )
    part = router.ask_leader(partition, request, _answers)
    if part.error_code:
        return memoryview(b""), part.high_watermark, "the broker finds no record batch there"
    return memoryview(part.records or b""), part.high_watermark, None


def _answers(answer: Any) -> Iterator[tuple[TopicPartition, int, Any]]:
    """Damage that the broker itself has found is what we are looking for, and no failure."""
    for topic in answer.responses:
        for each in topic.partitions:
            damaged = each.error_code == ErrorCode.CORRUPT_MESSAGE
            tp = TopicPartition(topic.topic, each.partition_index)
            yield tp, 0 if damaged else each.error_code, each


def _fault(data: memoryview) -> str | None:
    """What is wrong with the batch at the start of a fetch's bytes."""
    if data.nbytes < HEADER_SIZE:
        return f"a batch of {data.nbytes} bytes, less than its header has"
    header = read_header(data)
    if header.magic != MAGIC:
        return f"a batch of version {header.magic}, where only {MAGIC} is known"
    if header.length + LOG_OVERHEAD > data.nbytes:
        return f"a batch of {header.size} bytes, of which {data.nbytes} were sent"
    if not checksum_ok(data, 0, header):
        return "the batch's checksum is wrong"
    try:
        for _ in iter_records(data, header):
            pass
    except InvalidBatch as error:
        return str(error)
    return None
