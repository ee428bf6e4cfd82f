"""What of a log can be compacted, and how much it needs it. Decides only; `compaction` acts.

    clean part          dirty part, can be cleaned    cannot be cleaned yet
    |-------------------|-----------------------------|------------------------ log end
    first segment       first dirty offset            first uncleanable offset

The clean part has each key once. Cleaning removes from both parts what the dirty part supersedes.
The rules are Kafka's: never into the active segment, nor into one that reaches beyond the last
stable offset (and so the high watermark), nor into one with a record younger than
`min.compaction.lag.ms`. One rule is ours: nor beyond what was flushed, because a power cut must not
take a value together with the one it has replaced. A log is due when its dirty share is above
`min.cleanable.dirty.ratio`, or when a dirty record is older than `max.compaction.lag.ms`. The
dirtiest comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ottla.config.setting import MAX_LONG
from ottla.storage.index import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from ottla.storage.segments import Segments


class Source(NamedTuple):
    """A segment that is to be cleaned, as it was when the work was planned."""

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


@dataclass(frozen=True, slots=True)
class Cleanable:
    """How dirty a log is."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    """The base offset of the first segment that must be left alone."""
    clean_bytes: int
    cleanable_bytes: int
    min_ratio: float
    overdue_ms: int
    """How much longer than `max.compaction.lag.ms` the oldest dirty record has waited."""

    @property
    def ratio(self) -> float:
        """The dirty share of what could be cleaned now."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def due(self) -> bool:
        if self.cleanable_bytes == 0:
            return False
        return self.overdue_ms > 0 or self.ratio > self.min_ratio


def assess(
    segments: Segments,
    *,
    cleaned_to: int | None,
    log_start_offset: int,
    log_end_offset: int,
    stable_offset: int,
    now_ms: int,
) -> Cleanable:
    """How dirty a log is. `cleaned_to` is where the last cleaning ended; an offset that is outside
    of the log proves nothing, so then everything counts as dirty."""
    config = segments.config
    bases = segments.bases
    first_dirty = log_start_offset
    if cleaned_to is not None and log_start_offset <= cleaned_to <= log_end_offset:
        first_dirty = cleaned_to
    dirty_slot = segments.slot_of(first_dirty)
    active_slot = len(segments) - 1
    limit = min(stable_offset, bases[active_slot])
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        for slot in range(dirty_slot, active_slot):
            if segments[slot].largest_timestamp() > youngest:
                limit = min(limit, bases[slot])
                break
    stop_slot = segments.slot_of(max(first_dirty, limit))
    overdue = 0
    if config.max_compaction_lag_ms < MAX_LONG:
        moments = (segments[slot].first_timestamp() for slot in range(dirty_slot, active_slot))
        oldest = min((moment for moment in moments if moment > 0), default=MAX_LONG)
        overdue = max(0, now_ms - config.max_compaction_lag_ms - oldest)
    return Cleanable(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=bases[stop_slot],
        clean_bytes=sum(
            segment.size for segment in segments.from_slot(0) if segment.base_offset < first_dirty
        ),
        cleanable_bytes=sum(segments[slot].size for slot in range(dirty_slot, stop_slot)),
        min_ratio=config.min_cleanable_dirty_ratio,
        overdue_ms=overdue,
    )


def groups(
    sources: Iterable[Source], *, end_offset: int, max_bytes: int, max_index_bytes: int
) -> list[list[Source]]:
    """Neighbours that fit into one segment, by size, by their indexes, and by offsets.

    An index holds offsets as 31 bits above the segment's first, so segments far apart stay apart
    however small they are. `end_offset` is where the last segment ends.
    """
    listed = list(sources)
    found: list[list[Source]] = []
    size = index = times = 0
    for slot, source in enumerate(listed):
        last = (listed[slot + 1].base_offset if slot + 1 < len(listed) else end_offset) - 1
        if (
            found
            and size + source.size <= max_bytes
            and index + source.index_bytes <= max_index_bytes
            and times + source.time_index_bytes <= max_index_bytes
            # An empty segment has no offset that could be too far away.
            and (source.size == 0 or last - found[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        ):
            found[-1].append(source)
        else:
            found.append([source])
            size = index = times = 0
        size += source.size
        index += source.index_bytes
        times += source.time_index_bytes
    return found
