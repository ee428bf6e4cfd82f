"""Retention as one log sees it: its oldest segments go when `retention` says that they are due.

`retention` decides and touches nothing. Here its rules get what the log knows (where it starts, how
far everybody has its records, who holds it back), and what they say is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ottla.storage import retention

if TYPE_CHECKING:
    from ottla.storage.log import Log
    from ottla.storage.retention import Hold, Positions
    from ottla.storage.segments import Segments
    from ottla.storage.snapshots import ProducerSnapshots


class Aging:
    """One log's retention. Raises OSError as it comes, which `Log` turns into its own."""

    __slots__ = ("_log", "_segments", "_snapshots")

    def __init__(self, log: Log, segments: Segments, snapshots: ProducerSnapshots) -> None:
        self._log = log
        self._segments = segments
        self._snapshots = snapshots

    def delete_old(self, now_ms: int, positions: Positions | None) -> list[str]:
        """See `Log.delete_old`."""
        log, config = self._log, self._segments.config
        if not self._segments.size and len(self._segments) == 1:
            return []
        holds = retention.holds_of(config, log.partition, positions)
        due: dict[retention.Rule, int] = {}
        for fate in self._fates(holds):
            if fate.due_ms is None or fate.due_ms > now_ms:
                break
            due[fate.rule] = due.get(fate.rule, 0) + 1
        lines: list[str] = []
        for rule, count in due.items():
            before = log.log_start_offset
            freed = self._delete_oldest(count)
            lines.append(
                f"deleted {count} segments ({freed} bytes) of {log.partition} because of "
                f"{retention.reason(rule, config, before)}; the log starts at "
                f"{log.log_start_offset} now"
            )
            if rule is not retention.Rule.START:
                lines += retention.in_vain(
                    holds, log.partition, config, before, log.log_start_offset
                )
        return lines

    def explain(self, positions: Positions | None, segment_ms: int) -> retention.Explanation:
        """See `Log.explain_retention`; segments are rolled after `segment_ms`."""
        log = self._log
        holds = retention.holds_of(self._segments.config, log.partition, positions)
        return retention.explain(
            self._segments, self._fates(holds), holds, log.log_end_offset, segment_ms
        )

    def _fates(self, holds: Sequence[Hold]) -> Iterator[retention.Fate]:
        log = self._log
        return retention.fates(
            self._segments,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            limit=log.deletable_below,
            holds=holds,
        )

    def _delete_oldest(self, count: int) -> int:
        """How many bytes went with so many segments."""
        log = self._log
        before = log.size
        if count == len(self._segments):
            log.roll()
        log.advance_start(self._segments.bases[count])
        log.discard(log.compaction.withdraw())
        log.discard(self._segments.remove(0, count))
        self._snapshots.remove_before(log.first_base_offset)
        return before - log.size
