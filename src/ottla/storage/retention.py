"""Which segments may go: the decisions, without the deed.

Each rule counts how many segments, from the oldest on, it lets go, as Kafka does: the first segment
that has to stay ends the count. No rule lets a segment go that reaches beyond the high watermark,
and none lets an empty active segment go. A rule may let the active segment go when it has records:
`Log` then rolls first, so that a log always has a segment to write to.

    start offset   segments that lie wholly below the log start offset; always
    size           the oldest, as long as `retention.bytes` remain; with `delete` in cleanup.policy
    time           those whose latest record is older than `retention.ms`; likewise
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.storage.segments import Segments


def rules(
    segments: Segments, log_start_offset: int, log_end_offset: int, limit: int, now_ms: int
) -> Iterator[tuple[int, str]]:
    """How many of the oldest segments go, and why, rule by rule. `limit` is the high watermark.

    Each count holds for the segments at the moment it is given: delete before asking for the next.
    """
    config = segments.config
    yield below_start(segments, log_start_offset, limit), f"log start offset {log_start_offset}"
    if "delete" in config.cleanup_policy:
        size, age = config.retention_bytes, config.retention_ms
        yield over_size(segments, size, log_end_offset, limit), f"retention.bytes={size}"
        yield over_age(segments, age, now_ms, log_end_offset, limit), f"retention.ms={age}"


def below_start(segments: Segments, log_start_offset: int, limit: int) -> int:
    """Segments that end before the log start offset."""
    bases = segments.bases

    def goes(slot: int) -> bool:
        return slot + 1 < len(bases) and bases[slot + 1] <= log_start_offset

    return _count(segments, goes, limit, limit)


def over_size(segments: Segments, retention_bytes: int, log_end_offset: int, limit: int) -> int:
    """Oldest segments without which the log still has `retention_bytes`; -1 keeps everything."""
    excess = segments.size - retention_bytes
    if retention_bytes < 0 or excess < 0:
        return 0

    def goes(slot: int) -> bool:
        nonlocal excess
        excess -= segments[slot].size
        return excess >= 0

    return _count(segments, goes, log_end_offset, limit)


def over_age(
    segments: Segments, retention_ms: int, now_ms: int, log_end_offset: int, limit: int
) -> int:
    """Oldest segments whose latest record is more than `retention_ms` old; -1 keeps everything."""
    if retention_ms < 0:
        return 0

    def goes(slot: int) -> bool:
        return now_ms - segments[slot].largest_timestamp() > retention_ms

    return _count(segments, goes, log_end_offset, limit)


def _count(segments: Segments, goes: Callable[[int], bool], log_end_offset: int, limit: int) -> int:
    last = len(segments) - 1
    for slot, segment in enumerate(segments):
        end = segments.bases[slot + 1] if slot < last else log_end_offset
        if end > limit or (slot == last and segment.size == 0) or not goes(slot):
            return slot
    return len(segments)
