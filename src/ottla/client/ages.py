"""How old the next record of a group is: its lag in seconds.

Lag in records says little about a topic that nobody has described to you. The age of the first
record that a group has not committed says how late it is. It is read from that record: one Fetch
for every few partitions, for little more than the batch that the record is in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.groups import PartitionLag
from ottla.client.retry import WRONG_BROKER
from ottla.client.router import Router, error_code
from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.records.batch import InvalidBatch, batches
from ottla.records.reader import iter_records

_AT_ONCE = 8  # partitions of one request
_OF_EACH = 8 << 10  # bytes of one partition
_AT_MOST = 1 << 20  # bytes of one answer; the first batch comes whole in any case


def record_times(router: Router, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The timestamp of the record at, or first after, an offset of each partition.

    In milliseconds since the epoch. A partition that has no such record, or nobody who would
    send it, is left out.
    """
    if not places:
        return {}
    try:
        return router.retried(lambda: _record_times(router, places, follow=True))
    except KafkaError as error:
        if error.code not in WRONG_BROKER:
            raise
        return _record_times(router, places, follow=False)


def _record_times(
    router: Router, places: Mapping[TopicPartition, int], *, follow: bool
) -> dict[TopicPartition, int]:
    """Ask once; with `follow`, raise when somebody is not the one to ask."""
    led, _ = router.by_leader(sorted(places))
    found: dict[TopicPartition, int] = {}
    for number, wanted in led.items():
        for start in range(0, len(wanted), _AT_ONCE):
            # A batch larger than what is wanted of its partition comes only as the first of an
            # answer, so what is missing is asked for again until nothing more comes. Each time all
            # of it is read: hence few at once.
            missing = {
                tp: FetchPartition(
                    partition=tp.partition, fetch_offset=places[tp], partition_max_bytes=_OF_EACH
                )
                for tp in wanted[start : start + _AT_ONCE]
            }
            while missing:
                answer = router.node(number).ask(_request(missing))
                before = len(missing)
                for tp, code, records in _answers(answer):
                    if code:
                        router.forget([tp])
                        if follow and error_code(code) in WRONG_BROKER:
                            raise KafkaError(error_code(code), str(tp))
                    time = _time_at(records, places[tp])
                    if time is not None:
                        found[tp] = time
                        missing.pop(tp, None)
                if len(missing) == before:
                    break
    return found


def lag_seconds(
    router: Router, rows: Iterable[PartitionLag], now_ms: int
) -> dict[TopicPartition, float]:
    """How late a group is in each partition: the age of its next record, 0 at the end."""
    late = {
        row.partition: row.committed
        for row in rows
        if row.committed is not None and row.lag is not None and row.lag > 0
    }
    times = record_times(router, late)
    seconds = {tp: max(0.0, (now_ms - time) / 1000) for tp, time in times.items()}
    return {row.partition: 0.0 for row in rows if row.lag == 0} | seconds


def _request(partitions: Mapping[TopicPartition, FetchPartition]) -> FetchRequest:
    topics: dict[str, list[FetchPartition]] = defaultdict(list)
    for tp, wanted in partitions.items():
        topics[tp.topic].append(wanted)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_AT_MOST,
        topics=[FetchTopic(topic=name, partitions=each) for name, each in topics.items()],
    )


def _answers(answer: Any) -> Iterable[tuple[TopicPartition, int, memoryview]]:
    for topic in answer.responses:
        for each in topic.partitions:
            tp = TopicPartition(topic.topic, each.partition_index)
            records = b"" if each.error_code else each.records or b""
            yield tp, each.error_code, memoryview(records)


def _time_at(records: memoryview, offset: int) -> int | None:
    try:
        for position, header in batches(records):
            if header.last_offset < offset:
                continue
            if header.is_control or position + header.size > len(records):
                return header.max_timestamp
            batch = bytes(records[position : position + header.size])
            for record in iter_records(batch):
                if record.offset >= offset:
                    return record.timestamp
            return header.max_timestamp
    except InvalidBatch:
        pass
    return None
