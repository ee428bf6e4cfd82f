"""Which segments may go: the decisions, without the deed.

Each rule counts how many segments, from the oldest on, it lets go, as Kafka does: the first segment
that has to stay ends the count. No rule lets a segment go that reaches the high watermark or beyond,
and none lets an empty active segment go. A rule may let the active segment go when it has records:
`Log` then rolls first, so that a log always has a segment to write to.

    start offset   every segment that lies wholly below the log start offset; always
    size           the oldest ones, as long as `retention.bytes` remain; cleanup.policy has `delete`
    time           those whose latest record is older than `retention.ms`; cleanup.policy has `delete`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.storage.segment import Segment


def below_start(segments: Sequence[Segment], log_start_offset: int, *, limit: int) -> int:
    """Segments that end before the log start offset. `limit` is the high watermark."""
    bases = [segment.base_offset for segment in segments]

    def goes(index: int) -> bool:
        return index + 1 < len(bases) and bases[index + 1] <= log_start_offset

    return _count(segments, goes, log_end=limit, limit=limit)


def over_size(
    segments: Sequence[Segment], retention_bytes: int, *, log_end: int, limit: int
) -> int:
    """Oldest segments without which the log still has `retention_bytes`; -1 keeps everything."""
    excess = sum(segment.size for segment in segments) - retention_bytes
    if retention_bytes < 0 or excess < 0:
        return 0

    def goes(index: int) -> bool:
        nonlocal excess
        if excess - segments[index].size < 0:
            return False
        excess -= segments[index].size
        return True

    return _count(segments, goes, log_end=log_end, limit=limit)


def over_age(
    segments: Sequence[Segment], retention_ms: int, now_ms: int, *, log_end: int, limit: int
) -> int:
    """Oldest segments whose latest record is more than `retention_ms` old; -1 keeps everything."""
    if retention_ms < 0:
        return 0

    def goes(index: int) -> bool:
        return now_ms - segments[index].largest_timestamp() > retention_ms

    return _count(segments, goes, log_end=log_end, limit=limit)


def _count(
    segments: Sequence[Segment], goes: Callable[[int], bool], *, log_end: int, limit: int
) -> int:
    last = len(segments) - 1
    for index, segment in enumerate(segments):
        end = segments[index + 1].base_offset if index < last else log_end
        if end > limit or (index == last and segment.size == 0) or not goes(index):
            return index
    return len(segments)
