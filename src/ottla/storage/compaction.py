"""Compaction as one log sees it: how dirty it is, what is to be cleaned, how the result gets in.

    assess(now)          how dirty is the log?
    plan(…)              a `CleanTask` for the process that does the work
    begin(cleaned)       `.cleaned` becomes `.swap`; the caller makes the names durable, then
    finish()             old segments out, the new one in, in the folder and in memory, in one turn

A log lives on while it is cleaned. What changes segments (retention, DeleteRecords, truncation)
never waits and calls `withdraw` or `truncated_to`: a replacement that has begun is taken back, and
one that was made from segments which are no longer what they were is refused by `begin`. A reader
that holds an old file reads it to its end. Everything here is called on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.config.setting import MAX_LONG
from ottla.storage import cleanable
from ottla.storage.cleanable import Cleanable, Source
from ottla.storage.cleaned_files import rename_to_swap, temporary_paths, withdraw
from ottla.storage.cleaning import CleanTask
from ottla.storage.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.storage.paths import CLEANED_SUFFIX

if TYPE_CHECKING:
    from ottla.storage.cleaning import CleanedSegment
    from ottla.storage.log import Log
    from ottla.storage.producers import ProducerStates
    from ottla.storage.segment import Segment
    from ottla.storage.segments import Segments
    from ottla.storage.snapshots import ProducerSnapshots

_DOING = "replacing segments by a compacted one"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one cleaning may use."""

    map_bytes: int
    load_factor: float
    buffer_bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be cleaned, and of which state of the log."""

    task: CleanTask
    segments: dict[int, Segment]
    generation: int


class Compaction:
    """One log's compaction. An OSError while files are renamed takes the data folder offline and
    becomes a KafkaError, as in `Log`."""

    __slots__ = (
        "_generation", "_log", "_pending", "_producers", "_segments", "_snapshots", "cleaned_to",
        "paused",
    )  # fmt: skip

    def __init__(
        self,
        log: Log,
        segments: Segments,
        producers: ProducerStates,
        snapshots: ProducerSnapshots,
    ) -> None:
        self._log = log
        self._segments = segments
        self._producers = producers
        self._snapshots = snapshots
        self._pending: tuple[CleanedSegment, list[Segment]] | None = None
        self._generation = 0
        self.cleaned_to: int | None = None
        """Where the last cleaning ended, as in `cleaner-offset-checkpoint`; None: nowhere yet."""
        self.paused = False
        """Nothing is cleaned while the log is copied: the copy could get a record from before and
        miss the tombstone that was still there then."""

    # --- choosing -----------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        return not self.paused and "compact" in self._segments.config.cleanup_policy

    def assess(self, now_ms: int) -> Cleanable:
        log = self._log
        limit = log.log_end_offset if log.high_watermark < 0 else log.high_watermark
        return cleanable.assess(
            self._segments,
            cleaned_to=self.cleaned_to,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            stable_offset=min(log.last_stable_offset(limit), log.recovery_point),
            now_ms=now_ms,
        )

    @property
    def awaits_flush(self) -> bool:
        """Whether something cannot be cleaned only because it has not been flushed."""
        return self.wanted and self._log.recovery_point < self._segments.active.base_offset

    def must_roll(self, now_ms: int) -> bool:
        """Whether a record in the active segment has waited for `max.compaction.lag.ms`: there it
        cannot be cleaned."""
        lag = self._segments.config.max_compaction_lag_ms
        active = self._segments.active
        if lag == MAX_LONG or active.size == 0 or not self.wanted:
            return False
        if self._log.has_unsynced_truncation:
            return False  # a power cut would bring back what the segment has lost
        return active.waited_ms(now_ms, now_ms) > lag

    def plan(self, found: Cleanable, resources: Resources, now_ms: int) -> Plan:
        config = self._segments.config
        self._segments.active.txn_index.write_out()  # the markers there are asked for
        stop = self._segments.slot_of(found.first_uncleanable_offset)
        chosen = [self._segments[slot] for slot in range(stop)]
        task = CleanTask(
            folder=self._log.folder,
            partition=self._log.partition,
            sources=tuple(_source(segment) for segment in chosen),
            later_bases=tuple(self._segments.bases[stop:]),
            first_dirty_offset=found.first_dirty_offset,
            first_uncleanable_offset=found.first_uncleanable_offset,
            last_records=self._producers.last_records(),
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.internal_segment_bytes or config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval=config.index_interval_bytes,
            map_bytes=resources.map_bytes,
            load_factor=resources.load_factor,
            buffer_bytes=resources.buffer_bytes,
            bytes_per_second=resources.bytes_per_second,
        )
        return Plan(task, {segment.base_offset: segment for segment in chosen}, self._generation)

    def holds(self, plan: Plan) -> bool:
        """Whether cleaning by this plan still makes sense."""
        return self._log.failure is None and self.wanted and plan.generation == self._generation

    def is_intact(self, plan: Plan) -> bool:
        """Whether the segments that were to be cleaned are still there."""
        return all(segment in self._segments for segment in plan.segments.values())

    # --- replacing ----------------------------------------------------------------------------

    def begin(self, plan: Plan, cleaned: CleanedSegment) -> bool:
        """Name the new files `.swap`, unless the log has changed in a way that forbids it. When
        the names are durable, `finish` is to be called."""
        old = [plan.segments[base] for base in cleaned.replaces]
        if not self.holds(plan) or self._slot(old) is None:
            return False
        fs, folder = self._segments.fs, self._log.folder
        path = temporary_paths(folder, cleaned.base_offset, CLEANED_SUFFIX)[0]
        try:
            if fs.size(path) != cleaned.size:
                raise RuntimeError(f"{path} does not have the {cleaned.size} bytes of its segment")
            rename_to_swap(fs, folder, cleaned.base_offset)
        except OSError as error:
            raise self._log.storage_failed(error, _DOING) from None
        self._pending = cleaned, old
        return True

    def finish(self) -> list[str] | None:
        """Let the new segment take its place. Returns the renamed files of the old ones, to be
        removed when that is durable; None when it was taken back in between."""
        if self._pending is None:
            return None
        cleaned, old = self._pending
        slot = self._slot(old)
        if slot is None or self._log.failure is not None:
            return None
        self._pending = None
        new = self._segments.make(
            cleaned.base_offset,
            size=cleaned.size,
            index_entries=cleaned.index_entries,
            time_entries=cleaned.time_entries,
        )
        try:
            files = self._segments.replace(slot, slot + len(old), new)
            self._snapshots.remove_strays(self._segments.bases)
        except OSError as error:
            raise self._log.storage_failed(error, _DOING) from None
        return files

    def withdraw(self) -> list[str]:
        """Take back a replacement that has begun; returns files to be removed."""
        if self._pending is None or self._log.failure is not None:
            return []
        cleaned, _ = self._pending
        self._pending = None
        try:
            return withdraw(self._segments.fs, self._log.folder, cleaned.base_offset)
        except OSError as error:
            raise self._log.storage_failed(error, _DOING) from None

    def truncated_to(self, offset: int) -> list[str]:
        """Records at and above `offset` are about to go: what was planned with them is void."""
        self._generation += 1
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, offset)
        return self.withdraw()

    def _slot(self, old: Sequence[Segment]) -> int | None:
        """Where these segments are, if all still are, in a row and rolled."""
        segments = self._segments
        slot = segments.slot_of(old[0].base_offset)
        stop = slot + len(old)
        if stop >= len(segments) or segments.from_slot(slot)[: len(old)] != list(old):
            return None
        return slot


def _source(segment: Segment) -> Source:
    return Source(
        segment.base_offset,
        segment.size,
        segment.offset_index.entries * OFFSET_ENTRY.size,
        segment.time_index.entries * TIME_ENTRY.size,
    )
