"""Where to start reading a partition, and what that is as an offset.

Everything is resolved to an offset before librdkafka is told. It would resolve "latest" by
itself, but later, when its first fetch goes out: a record written in between would be skipped,
and the partitions of one topic would start one by one, each after a fetch that waits for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

import confluent_kafka as rd

from ottla.client.errors import ClientError, translate, translated
from ottla.client.settings import timestamp_ms
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition

Position = int | datetime | Literal["earliest", "latest"]
"""An offset; -N for N records before the end; a moment; "earliest" or "latest"."""

_LATEST = -1  # ListOffsets' own numbers, in place of a timestamp
_EARLIEST = -2
_NOT_YET = 0.05  # seconds before a new leader is asked again


def check_partition(given: TopicPartition | tuple[str, int]) -> TopicPartition:
    """A (topic, partition) pair, or an error that says so."""
    match given:
        case (str() as topic, int() as partition) if topic and partition >= 0:
            return TopicPartition(topic, partition)
    raise TypeError(
        f"a partition is given as (topic, number), such as ('orders', 0), not {given!r}"
    )


def check_position(position: Position) -> Position:
    """A position, or an error that lists what one can be."""
    if isinstance(position, datetime) or position in ("earliest", "latest"):
        return position
    if isinstance(position, int) and not isinstance(position, bool):
        return position
    raise ValueError(
        f'a position is an offset, -N for N records before the end, a datetime, "earliest" or '
        f'"latest", not {position!r}'
    )


def check_offset(offset: int) -> int:
    """An offset that can be committed."""
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ValueError(f"an offset to commit is a number from 0 on, not {offset!r}")
    return offset


def look_up(
    client: rd.Consumer, asked: Mapping[TopicPartition, int], timeout: float
) -> dict[TopicPartition, int]:
    """One ListOffsets for timestamps (or -1, -2); -1 where no record is that young.

    A leader that was just elected does not know at first where its log ends for readers
    (KIP-207). librdkafka does not ask again; this does, until the time is up.
    """
    deadline = time.monotonic() + timeout
    while asked:
        try:
            return _look_up(client, asked, timeout)
        except ClientError as error:
            if error.code is not ErrorCode.OFFSET_NOT_AVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(_NOT_YET)
    return {}


def _look_up(
    client: rd.Consumer, asked: Mapping[TopicPartition, int], timeout: float
) -> dict[TopicPartition, int]:
    with translated():
        answers = client.offsets_for_times(
            [rd.TopicPartition(tp.topic, tp.partition, moment) for tp, moment in asked.items()],
            timeout=timeout,
        )
    found: dict[TopicPartition, int] = {}
    for answer in answers:
        if answer.error is not None:
            raise translate(answer.error)
        found[TopicPartition(answer.topic, answer.partition)] = max(answer.offset, -1)
    return found


def earliest(
    client: rd.Consumer, partitions: Iterable[TopicPartition], timeout: float
) -> dict[TopicPartition, int]:
    """The first offset of each partition that is still there."""
    return look_up(client, dict.fromkeys(partitions, _EARLIEST), timeout)


def latest(
    client: rd.Consumer, partitions: Iterable[TopicPartition], timeout: float
) -> dict[TopicPartition, int]:
    """The offset that the next record of each partition will get."""
    return look_up(client, dict.fromkeys(partitions, _LATEST), timeout)


def resolve(
    client: rd.Consumer, wanted: Mapping[TopicPartition, Position], timeout: float
) -> dict[TopicPartition, int]:
    """Offsets for positions, in at most three requests however many partitions there are.

    A moment after the last record, and -N in a shorter log, give the end and the beginning.
    """
    moments = {
        tp: timestamp_ms(position)
        for tp, position in wanted.items()
        if isinstance(position, datetime)
    }
    by_time = look_up(client, moments, timeout)
    from_end = [
        tp
        for tp, position in wanted.items()
        if position == "latest"
        or (isinstance(position, int) and position < 0)
        or by_time.get(tp, 0) < 0
    ]
    ends = latest(client, from_end, timeout)
    from_start = [
        tp
        for tp, position in wanted.items()
        if position == "earliest" or (isinstance(position, int) and position < 0)
    ]
    starts = earliest(client, from_start, timeout)
    offsets: dict[TopicPartition, int] = {}
    for tp, position in wanted.items():
        if isinstance(position, datetime):
            offsets[tp] = by_time[tp] if by_time[tp] >= 0 else ends[tp]
        elif position == "latest":
            offsets[tp] = ends[tp]
        elif position == "earliest":
            offsets[tp] = starts[tp]
        else:
            offset = int(position)
            offsets[tp] = offset if offset >= 0 else max(starts[tp], ends[tp] + offset)
    return offsets
