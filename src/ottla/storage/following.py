"""What a follower does to its log: append what the leader sent, and drop what the leader lacks.

A follower's log is to become the leader's, byte for byte. So batches are written as they come, with
the offsets and epochs that the leader gave them; only what would not fit (a wrong CRC, an offset
that goes back, an epoch after the leader's own) is kept out. Where the two logs have gone apart,
which the leader's answer to OffsetForLeaderEpoch tells, the follower's end is cut off.

A truncation takes back everything that the log knows of the dropped records: indexes, aborted
transactions, producers, leader epochs, the recovery point, the high watermark. Files go from the
end of the log to its start, so that kill -9 at any moment leaves a log without a gap, which ends at
or after the offset asked for. A power cut asks for more: the checkpoints of the data folder must
not claim what is about to go, and the cut must be on the disk before anything is written behind it.
That needs fsync, and is `truncation`'s.

A copy of a log in another data folder (`moving`) is filled in the same way, and `succeed`s it.

`Log` has the other methods under the same names; they are here for its size.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.records.batch import CONTROL_FLAG, LOG_OVERHEAD
from ottla.records.control import EndMarker, read_end_marker
from ottla.storage.index import MAX_RELATIVE_OFFSET
from ottla.storage.replay import reload_producers
from ottla.storage.validate import judge_replicated

if TYPE_CHECKING:
    from ottla.records.batch import BatchHeader
    from ottla.runtime.clock import Clock
    from ottla.storage.epochs import LeaderEpochs
    from ottla.storage.log import Log
    from ottla.storage.producers import ProducerStates
    from ottla.storage.segments import Segments
    from ottla.storage.snapshots import ProducerSnapshots

logger = logging.getLogger(__name__)


class UnexpectedOffset(KafkaError):
    """The leader sent batches from an offset that the log has already.

    A log that is empty may begin anew there (`truncate_fully_and_start_at`): after DeleteRecords
    the leader's first offset can lie inside of a batch, which is sent whole."""

    __slots__ = ("first_offset", "last_offset")

    def __init__(
        self, code: ErrorCode, message: str | None, first_offset: int = -1, last_offset: int = -1
    ) -> None:
        super().__init__(code, message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class Following:
    """The follower's side of one log. Raises OSError as it comes, which `Log` turns into its own.

    What is changed of the log itself: `log_start_offset`, `log_end_offset`, `recovery_point` and
    `high_watermark`."""

    __slots__ = (
        "_clock", "_epochs", "_expiration_ms", "_log", "_producers", "_segments", "_snapshots",
    )  # fmt: skip

    def __init__(
        self,
        log: Log,
        segments: Segments,
        producers: ProducerStates,
        snapshots: ProducerSnapshots,
        epochs: LeaderEpochs,
        *,
        producer_expiration_ms: int,
        clock: Clock,
    ) -> None:
        self._log = log
        self._segments = segments
        self._producers = producers
        self._snapshots = snapshots
        self._epochs = epochs
        self._expiration_ms = producer_expiration_ms
        self._clock = clock

    # --- appending ----------------------------------------------------------------------------

    def append(self, records: memoryview, leader_epoch: int) -> tuple[int, int, int]:
        """Append whole batches; returns the first and the last offset and the number of bytes.

        As many batches as fit into a segment are one write(2)."""
        log = self._log
        batches = judge_replicated(records, partition=log.partition, leader_epoch=leader_epoch)
        end = log.log_end_offset
        if not batches:
            return end, end - 1, 0
        first, last = batches[0][1].base_offset, batches[-1][1].last_offset
        if first < end:
            raise UnexpectedOffset(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Unexpected offset in append to {log.partition}. First offset {first} is less "
                f"than the next offset {end}.",
                first,
                last,
            )
        now_ms = self._clock.now_ms()
        headers = [header for _, header in batches]
        size = batches[-1][0] + headers[-1].size
        newest = max(header.max_timestamp for header in headers)
        if log.has_room(size, last, newest, now_ms):  # for all of them, as nearly always
            self._write(records[:size], headers)
            return first, last, size
        run: list[BatchHeader] = []
        start = stop = 0
        for position, header in batches:
            if log.should_roll(header, now_ms, ahead=stop - start):
                self._write(records[start:stop], run)
                if log.should_roll(header, now_ms):
                    log.roll(self._next_base(header))
                run, start = [], position
            run.append(header)
            stop = position + header.size
        self._write(records[start:stop], run)
        return first, last, stop

    def _next_base(self, header: BatchHeader) -> int:
        """Where the segment begins that is to hold this batch first. Batches that compaction has
        removed before it count to that segment: a gap between two looks like a lost file."""
        end = self._log.log_end_offset
        return end if header.last_offset - end <= MAX_RELATIVE_OFFSET else header.base_offset

    def _write(self, records: memoryview, run: list[BatchHeader]) -> None:  # noqa: C901 - runs for every batch, without a call too many
        """Write adjacent batches to the active segment, then account for each of them."""
        if not run:
            return
        log, segment = self._log, self._segments.active
        epochs, position = self._epochs, 0
        markers: dict[int, EndMarker] = {}  # by the offset of their batch
        for header in run:
            base_offset, length, epoch, _, _, attributes, _, _, _, _, _, _, _ = header
            if epoch >= 0 and (epoch != epochs.latest or epochs.unwritten):
                log.assign_epoch(epoch, base_offset)
            size = length + LOG_OVERHEAD
            if attributes & CONTROL_FLAG:
                marker = read_end_marker(records[position : position + size], header)
                if marker is not None:
                    markers[base_offset] = marker
            position += size
        if markers:
            segment.txn_index.load()  # which may fail: better before anything is written
        segment.append(records)
        # Written: from here on the batches are in the log, whatever else may fail.
        log.log_end_offset = run[-1].next_offset
        self._segments.size += records.nbytes
        failure: OSError | None = None
        update, note = self._producers.update, segment.note
        for header in run:
            base_offset, length, _, _, _, _, delta, _, max_timestamp, _, _, _, count = header
            completed = update(header, base_offset, markers.get(base_offset))
            try:
                note(length + LOG_OVERHEAD, base_offset, base_offset + delta, max_timestamp, count)
                if completed is not None and completed.aborted:
                    segment.txn_index.append(completed)
                    log.wants_sync(segment.txn_index.path)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # --- truncating ---------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop every record at or above `offset`; says whether there was one."""
        log = self._log
        if offset >= log.log_end_offset:
            # An epoch may have begun at the end without a record under it.
            self._epochs.truncate_from_end(log.log_end_offset)
            log.epochs_changed()
            return False
        logger.info("truncating %s from %d to %d", log.partition, log.log_end_offset, offset)
        if offset < log.first_base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        log.discard(log.compaction.truncated_to(offset))
        log.discard(self._segments.truncate_to(offset))
        # Also if it is rolled before the next flush, which then begins with the segment after it.
        log.wants_sync(self._segments.active.path)
        index = self._segments.active.txn_index
        if index.exists():
            # With the segment rolled, a start trusts it: an abort that was cut off would hide what
            # the producer writes there now.
            log.wants_sync(index.path)
        log.log_end_offset = offset
        log.log_start_offset = min(log.log_start_offset, offset)
        log.truncated(offset)
        self._epochs.truncate_from_end(offset)
        log.epochs_changed()
        problems = reload_producers(
            self._producers,
            self._snapshots,
            self._segments,
            log_start_offset=log.log_start_offset,
            log_end_offset=offset,
            now_ms=self._clock.now_ms(),
            expiration_ms=self._expiration_ms,
        )
        for problem in problems:
            logger.warning("%s; an older snapshot was used", problem)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop every record; the log goes on, empty, at `offset`."""
        log = self._log
        logger.info("%s begins anew at %d, it was at %d", log.partition, offset, log.log_end_offset)
        # First: a start that finds records and no epochs takes these from the records.
        self._epochs.clear()
        log.epochs_changed()
        log.discard(log.compaction.truncated_to(0))
        log.discard(self._segments.remove(0, len(self._segments)))
        self._segments.add(offset)
        log.log_start_offset = log.log_end_offset = offset
        log.truncated(offset)
        log.recovery_point = offset
        if log.high_watermark >= 0:
            log.high_watermark = offset
        self._snapshots.clear()
        self._producers.reset(offset)

    # --- succeeding ---------------------------------------------------------------------------

    def succeed(self, before: Log) -> None:
        """Take over what another log of the same records knows besides them: who may write what,
        epochs without records, where it starts, how far it is safe. That log is dead then.

        Only what was durable there is called durable, until the next flush: this one's name may
        not be, yet.
        """
        log, known = self._log, before.following
        log.config = before.config
        log.high_watermark = before.high_watermark
        log.advance_start(before.log_start_offset)
        log.log_end_offset = before.log_end_offset  # a truncation may have left a gap before it
        self._producers.succeed(known._producers)
        self._snapshots.remove_from(log.log_end_offset)
        path = self._snapshots.take(self._producers)
        if path is not None:
            log.wants_sync(path)
        self._epochs.succeed(known._epochs)
        log.epochs_changed()
        log.recovery_point = min(log.recovery_point, before.recovery_point)
        log.last_flush_ms = before.last_flush_ms
        log.lost_records, log.has_gap = before.lost_records, before.has_gap
        log.compaction.cleaned_to = before.compaction.cleaned_to
        log.mark_new()
