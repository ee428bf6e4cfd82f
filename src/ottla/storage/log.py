"""One partition's log: append, read, roll, truncate, delete, close.

A log is a list of segments in a folder `topic-partition/`; the last one is written to. Offsets:

    log_start_offset <= … records … < log_end_offset
                              recovery_point: below it everything has been flushed
                              high_watermark: kept by the replication layer; retention stops there

An append is judged (`validate`, `producers`), gets its offset and the leader's epoch patched into
the caller's buffer, and is handed to the kernel with one write(2). When that returns, kill -9
cannot take the records any more: there is no buffer of ours in between. What else an append changes
is in memory and rebuilt from the `.log` files after a crash: indexes, producer states, end offset.

Every method is synchronous, runs on the event loop's thread and never waits for the platter: fsync
is `flush.GroupCommit`'s, from the jobs that `begin_flush` makes. An OSError in any file takes the
whole data folder offline, as in Kafka, and becomes KafkaError(KAFKA_STORAGE_ERROR); after that the
log answers with nothing else. Only the want of a descriptor is no such fault: what was asked for is
then refused with the same code and has changed nothing that trying again would not mend.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP, TopicId
from ottla.records.batch import read_header, set_offset_and_epoch
from ottla.records.control import read_end_marker
from ottla.runtime.files import FileRegion
from ottla.storage import reads, retention
from ottla.storage.aging import Aging
from ottla.storage.checkpoints import write_partition_metadata
from ottla.storage.compaction import Compaction
from ottla.storage.faults import describe, is_shortage, short_of_descriptors
from ottla.storage.flush import FlushJob
from ottla.storage.following import Following
from ottla.storage.guarded import guarded
from ottla.storage.producers import Origin
from ottla.storage.reads import TimeLookUp
from ottla.storage.unsynced import Unsynced
from ottla.storage.validate import judge

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig
    from ottla.model.ids import TopicPartition
    from ottla.records.batch import BatchHeader
    from ottla.runtime.clock import Clock
    from ottla.storage.check import Checked
    from ottla.storage.deferred import DeferredSync
    from ottla.storage.epochs import LeaderEpochs
    from ottla.storage.log_host import LogHost
    from ottla.storage.producers import Guard, ProducerState, ProducerStates
    from ottla.storage.retention import Positions
    from ottla.storage.segment import Segment
    from ottla.storage.segments import Segments
    from ottla.storage.snapshots import ProducerSnapshots
    from ottla.storage.txn_index import AbortedTxn

logger = logging.getLogger(__name__)


class AppendInfo(NamedTuple):
    """What an append did."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    """The broker's timestamp with `message.timestamp.type=LogAppendTime`, else -1."""
    log_start_offset: int
    duplicate: bool
    """The batch was in the log already; the offsets are those it has there."""
    bytes: int


class ReadResult(NamedTuple):
    """Whole batches to send; the last one may be cut. `region` is None when there is nothing."""

    region: FileRegion | None
    segment: Segment | None = None


_NOTHING = ReadResult(None)


class Log:
    """Made by `open_log.open_log`."""

    def __init__(  # noqa: PLR0913 - the parts that open_log has made, by name
        self,
        *,
        partition: TopicPartition,
        topic_id: TopicId,
        segments: Segments,
        small_files: DeferredSync,
        producers: ProducerStates,
        snapshots: ProducerSnapshots,
        epochs: LeaderEpochs,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        producer_expiration_ms: int,
        host: LogHost,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.folder = segments.folder

        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.high_watermark = -1
        """Set by the replication layer; -1, as long as nobody has, stands for the log's end."""
        self.failure: str | None = None
        """Why the log is offline, if it is."""
        self.last_flush_ms = clock.now_ms()
        self.lost_records = False
        """It lacks records which it may have had before this start, and the controller does not
        know of that yet."""
        self.has_gap = False
        """They are missing in its middle, where following a leader does not bring them back."""

        self._host = host
        self._clock = clock
        self._segments = segments
        self._small_files = small_files
        self._producers = producers
        self._producer_expiration_ms = producer_expiration_ms
        self._snapshots = snapshots
        self._epochs = epochs
        self._epoch = -1
        """The latest epoch, as long as the file has it: an append under it writes no file."""
        self.truncations: list[int] = []
        """Where the log was cut, each time; their number is the generation of a flush."""
        self.truncating_to: int | None = None
        """Where the log is about to be cut: its checkpoints claim nothing from there on."""
        self._closed = False
        self._take_config(segments.config)
        self.epochs_changed()
        self._unsynced = Unsynced(self, segments, small_files)
        self._aging = Aging(self, segments, snapshots)
        self.compaction = Compaction(self, segments, producers, snapshots)
        self.following = Following(
            self,
            segments,
            producers,
            snapshots,
            epochs,
            producer_expiration_ms=producer_expiration_ms,
            clock=clock,
        )

    def __repr__(self) -> str:
        return (
            f"Log({self.partition}, {self.log_start_offset}..{self.log_end_offset}, "
            f"{len(self._segments)} segments, {self.size} bytes)"
        )

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._segments.bases[0]

    @property
    def is_pristine(self) -> bool:
        """Whether the log has never held a record."""
        return self.log_end_offset == 0

    @property
    def config(self) -> TopicConfig:
        """The topic's settings; assign to change them while the log is in use."""
        return self._segments.config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        changed = retention.concerns(self._config, config)
        self._segments.config = config
        self._segments.active.set_index_interval(config.index_interval_bytes)
        self._take_config(config)
        if changed:
            self._host.retention_changed(self)

    def _take_config(self, config: TopicConfig) -> None:
        self._config = config
        self._segment_bytes = config.internal_segment_bytes or config.segment_bytes
        self._segment_ms = config.segment_ms
        self._largest_batch = min(config.max_message_bytes, config.segment_bytes)
        if "compact" in config.cleanup_policy:
            # What is in the active segment cannot be compacted.
            self._segment_ms = min(config.segment_ms, config.max_compaction_lag_ms)
        self._stamps = config.message_timestamp_type == "LogAppendTime"

    # --- appending ----------------------------------------------------------------------------

    def append(  # noqa: C901, PLR0912 - runs for every batch, without a call too many
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        prepared: bool = False,
        header: BatchHeader | None = None,
        guard: Guard | None = None,
    ) -> AppendInfo:
        """Append one batch as the leader: judge it, give it its offset, write it.

        `records` is the (writable) receive buffer and is patched in place. `prepared` says that
        `validate.prepare` has been applied, after a `TakesLong` that came before anything was done.
        Whoever has built the batch knows its `header`, and with that there is nothing to judge but
        its size. The first batch of a transaction needs a `guard` (`begin_verification`).
        before: log_end_offset = n; after: records at n…, log_end_offset = last offset + 1.
        """
        if self.failure is not None:
            raise self.offline_error()
        if header is None or self._stamps or records.nbytes > self._largest_batch:
            header, records = judge(
                records,
                self._config,
                now_ms,
                partition=self.partition,
                origin=origin,
                prepared=prepared,
            )
        _, _, _, _, _, _, delta, _, max_timestamp, producer_id, _, _, _ = header
        marker = None
        if producer_id >= 0:
            if header.is_control:
                marker = read_end_marker(records, header)
                if marker is not None:
                    self._producers.check_marker(header, marker)
            else:
                known = self._producers.check(header, origin=origin)
                if known is not None:
                    stamp = known.timestamp if self._stamps else NO_TIMESTAMP
                    return AppendInfo(
                        known.base_offset, known.last_offset, stamp, self.log_start_offset, True, 0
                    )
                if header.is_transactional:
                    self._producers.check_begin(header, guard)
        base_offset = self.log_end_offset
        last_offset = base_offset + delta
        size = records.nbytes
        try:
            segments = self._segments
            segment = segments.active
            if segment.should_roll(
                size, last_offset, max_timestamp, now_ms, self._segment_bytes, self._segment_ms
            ):
                segment = self.roll()
            if leader_epoch != self._epoch:
                self.assign_epoch(leader_epoch, base_offset)
            if marker is not None:
                segment.txn_index.load()  # which may fail: better before the batch is written
            set_offset_and_epoch(records, 0, base_offset, leader_epoch)
            segment.append(records)
            # Written: from here on the batch is in the log, whatever else may fail.
            self.log_end_offset = last_offset + 1
            segments.size += size
            completed = self._producers.update(header, base_offset, marker)
            segment.note(size, base_offset, last_offset, max_timestamp)
            if completed is not None and completed.aborted:
                segment.txn_index.append(completed)
                self.wants_sync(segment.txn_index.path)
        except OSError as error:
            raise self.storage_failed(error, "appending") from None
        stamp = max_timestamp if self._stamps else NO_TIMESTAMP
        made = (base_offset, last_offset, stamp, self.log_start_offset, False, size)
        return tuple.__new__(AppendInfo, made)  # half the time of calling the class

    @guarded("appending")
    def append_replicated(self, records: memoryview, *, leader_epoch: int) -> AppendInfo:
        """Append what the leader of `leader_epoch` sent: offsets and epochs are in the batches
        already, and these are written as they are.

        A batch cut off at the end, and what comes from a later epoch than the leader's, is left
        out. Raises UnexpectedOffset, with nothing done, for what is below the log's end.
        before: every batch is at or above log_end_offset; after: log_end_offset follows the last.
        """
        first, last, size = self.following.append(records, leader_epoch)
        return AppendInfo(first, last, NO_TIMESTAMP, self.log_start_offset, False, size)

    def should_roll(self, header: BatchHeader, now_ms: int, *, ahead: int = 0) -> bool:
        """Whether a batch belongs into a new segment, with so many bytes still to be written
        before it."""
        return self._segments.active.should_roll(
            ahead + header.size,
            header.last_offset,
            header.max_timestamp,
            now_ms,
            self._segment_bytes,
            self._segment_ms,
        )

    def has_room(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether batches of so many bytes, up to this offset and this time, all belong into the
        active segment."""
        return not self._segments.active.should_roll(
            size, last_offset, max_timestamp, now_ms, self._segment_bytes, self._segment_ms
        )

    # --- reading ------------------------------------------------------------------------------

    def read(  # noqa: C901, PLR0912 - runs for every fetch, without a call too many
        self,
        offset: int,
        max_bytes: int,
        *,
        upper: int,
        min_one: bool = True,
        cached_only: bool = False,
    ) -> ReadResult:
        """Batches from the one that holds `offset`: at most `max_bytes`, nothing from `upper` on.

        The last batch may be cut, as in Kafka: clients skip it. The first one is whole: larger
        than `max_bytes` with `min_one`, and not there at all without.

        With `cached_only` it raises ColdRead when finding them would wait for the disk; then
        `warm_up` is to be run in a thread. The batches themselves are not read here.
        """
        if self.failure is not None:
            raise self.offline_error()
        if offset > self.log_end_offset or offset < self.log_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.partition}, but we only "
                f"have log segments in the range {self.log_start_offset} to {self.log_end_offset}.",
            )
        if offset >= upper:
            return _NOTHING
        try:
            segment = self._segments.active
            if offset >= segment.base_offset:
                place = segment.locate(offset, cached_only=cached_only)
                if place is None:
                    return _NOTHING
            else:
                found = reads.locate(self._segments, offset, cached_only=cached_only)
                if found is None:
                    return _NOTHING
                segment, place = found
            position, size = place
            limit = segment.size
            if upper < self.log_end_offset:
                end = self._segments.end_of(segment)
                if end is None or upper < end:
                    above = segment.locate(upper, cached_only=cached_only)
                    if above is not None:
                        limit = above[0]
            if size > max_bytes:
                if not min_one:
                    return _NOTHING
                max_bytes = size
            length = min(limit - position, max_bytes)
            if length <= 0:
                return _NOTHING
            return ReadResult(FileRegion(segment.file, position, length), segment)
        except OSError as error:
            raise self.storage_failed(error, "reading") from None

    def is_behind(self, offset: int, upper: int) -> bool:
        """Whether a reader at `offset` is in an older segment than `upper` is."""
        segments = self._segments
        return offset < segments.active.base_offset and (
            segments.slot_of(offset) < segments.slot_of(upper)
        )

    @guarded("reading")
    def bytes_from(self, offset: int, upper: int) -> int:
        """How many bytes a reader at `offset` could get below `upper`."""
        upper = min(upper, self.log_end_offset)
        return reads.bytes_between(self._segments, offset, upper) if offset < upper else 0

    @guarded("reading")
    def look_up_time(self, timestamp_ms: int | None) -> TimeLookUp:
        """A search, to be run in a thread, for the first record at or after a moment; with None
        for the record with the latest timestamp, the first of them if several share it."""
        return TimeLookUp(self._segments, timestamp_ms, self.log_start_offset)

    def warm_up(self, offset: int, upper: int, *, aborted: bool = False) -> Callable[[], None]:
        """What reads, in a thread, the bytes that `read` needs to find `offset` and `upper`, and
        those of `end_of` and `aborted_transactions` if these will be asked as well."""
        return reads.warm_up(self._segments, offset, upper, aborted=aborted)

    # --- transactions and producers -----------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below this every transaction is decided; never above the high watermark."""
        stable = self._producers.last_stable_offset(high_watermark)
        return max(stable, min(self.log_start_offset, high_watermark))

    @property
    def first_undecided_offset(self) -> int | None:
        """The start of the oldest transaction without a marker."""
        return self._producers.first_undecided_offset

    @guarded("reading")
    def aborted_transactions(
        self, first: int, upper: int, *, cached_only: bool = False
    ) -> list[AbortedTxn]:
        """The aborted transactions with records from `first` up to, not including, `upper`."""
        aborted: list[AbortedTxn] = []
        for segment in self._segments.from_slot(self._segments.slot_of(first)):
            found, complete = segment.txn_index.collect_aborted(
                first, upper, cached_only=cached_only
            )
            aborted += found
            if complete:
                break
        return aborted

    @guarded("rebuilding an index")
    def take_indexes(self, segment: Segment, checked: Checked) -> bool:
        """Take what a scan of a whole segment has found for its indexes; False, and nothing done,
        if the segment has changed or gone since."""
        slot = self._segments.slot_of(segment.base_offset)
        if self._segments[slot] is not segment or checked.size != segment.size:
            return False
        if segment is self._segments.active:
            return False
        self._segments.generation += 1  # threads have been told how long the old ones are
        segment.replace_indexes(checked.index, checked.time_index)
        return True

    @guarded("reading")
    def end_of(self, result: ReadResult, *, cached_only: bool = False) -> int:
        """An offset that nothing in a read region reaches: the bound for `aborted_transactions`."""
        if result.region is None or result.segment is None:
            return self.log_start_offset
        end = result.region.position + result.region.length
        above = result.segment.upper_bound(end, cached_only=cached_only)
        if above is None:
            above = self._segments.end_of(result.segment)
        return self.log_end_offset if above is None else above

    def begin_verification(self, producer_id: int, epoch: int, sequence: int) -> Guard | None:
        """To be called before the coordinator is asked whether a transaction includes this
        partition; what it returns goes into `append`. None: the transaction has begun here."""
        now_ms = self._clock.now_ms()
        return self._producers.begin_verification(producer_id, epoch, sequence, now_ms)

    def check_marker(self, marker: memoryview, *, raised: bool) -> BatchHeader:
        """Judge a control batch (`ProducerStates.check_marker`) by the rules of its origin."""
        header = read_header(marker)
        end = read_end_marker(marker, header)
        if end is not None:
            self._producers.check_marker(header, end, raised=raised)
        return header

    def producers(self) -> list[ProducerState]:
        """Every producer the log remembers, for DescribeProducers."""
        return self._producers.statistics()

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that have been silent for `producer.id.expiration.ms`."""
        return self._producers.expire(now_ms, self._producer_expiration_ms)

    # --- leader epochs ------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int | None:
        """The newest leader epoch; there may be no record under it yet."""
        return self._epochs.latest

    def begin_epoch(self, epoch: int) -> None:
        """A leader has been elected: what it writes begins at the log's end. The file follows with
        its first batch."""
        if self._epochs.latest is None or epoch > self._epochs.latest:
            self._epochs.begin(epoch, self.log_end_offset)
            self.epochs_changed()

    @guarded("noting a leader epoch")
    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note, on the disk too, that leader `epoch` begins at `start_offset`."""
        self._epochs.assign(epoch, start_offset)
        self.epochs_changed()

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to the given one, and where it ends; (-1, -1) if unknown."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for(self, offset: int) -> int | None:
        """The leader epoch under which `offset` was written."""
        return self._epochs.epoch_for(offset)

    def epochs_changed(self) -> None:
        """Look up what the append of a batch compares its leader's epoch with."""
        latest = self._epochs.latest
        self._epoch = -1 if latest is None or self._epochs.unwritten else latest

    # --- segments come and go -----------------------------------------------------------------

    @guarded("rolling")
    def roll(self, base_offset: int | None = None) -> Segment:
        """Close the active segment and go on in a new one; does nothing while that is empty.

        A snapshot of the producers is taken at the new segment's first offset, so that a restart
        replays one segment. All of it is flushed later, off the loop.
        """
        base = self.log_end_offset if base_offset is None else base_offset
        active = self._segments.active
        if active.size == 0 and active.base_offset == base:
            return active
        active.complete()
        segment = self._segments.add(base)
        active.seal()
        self._unsynced.names_changed()
        # Its records may have been flushed while it was active, without its indexes.
        self.wants_sync(*active.file_paths()[1:])
        self._producers.end_offset = base
        try:
            self._take_snapshot()
        except OSError as error:
            if not is_shortage(error):
                raise
            # The one before it serves as well: a restart has more to replay.
            short_of_descriptors(error, "writing a producer snapshot", self.folder)
        self._host.flush_wanted(self)
        return segment

    def _take_snapshot(self) -> None:
        path = self._snapshots.take(self._producers)
        if path is not None:
            self.wants_sync(path)

    @guarded("noting the log start")
    def advance_start(self, offset: int) -> None:
        """Raise the log start offset (DeleteRecords); files go with the next retention pass.

        Above the high watermark it is OFFSET_OUT_OF_RANGE; below the present start, nothing.
        """
        if offset > self.deletable_below:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {offset} of partition {self.partition} "
                f"since it is larger than the high watermark {self.deletable_below}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._producers.advance_start(offset)
            self._epochs.truncate_from_start(offset)

    @property
    def deletable_below(self) -> int:
        """Nothing at or above the high watermark may be deleted."""
        return self.log_end_offset if self.high_watermark < 0 else self.high_watermark

    @guarded("rolling")
    def roll_old(self, now_ms: int) -> bool:
        """Roll the active segment if its time is over and nobody writes to it; says whether."""
        if not retention.rolls(self._segments.active, now_ms, self._segment_ms):
            return False
        self.roll()
        return True

    @guarded("deleting old segments")
    def delete_old(self, now_ms: int, positions: Positions | None = None) -> list[str]:
        """Apply retention; returns what was deleted and why, one line for each rule that did, and
        one for each group that the topic waited for in vain.

        The segments' files are renamed to `.deleted` at once and removed after
        `file.delete.delay.ms`. Without `delete` in cleanup.policy only segments below the log
        start offset go.
        """
        return self._aging.delete_old(now_ms, positions)

    @guarded("reading")
    def explain_retention(self, positions: Positions | None = None) -> retention.Explanation:
        """What becomes of each segment. Looks at all of their files, unless `rolled_segments` have
        been made to `remember_age`, in a thread."""
        return self._aging.explain(positions, self._segment_ms)

    def rolled_segments(self) -> list[Segment]:
        """All segments but the active one, oldest first."""
        return self._segments.from_slot(0)[:-1]

    def discard(self, files: list[str]) -> None:
        """Have renamed files removed after `file.delete.delay.ms`."""
        if not files:
            return
        self._unsynced.names_changed()
        self._host.discard(files, self._config.file_delete_delay_ms)

    def wants_sync(self, *files: str) -> None:
        """These were written, and may be new: the next flush syncs them before it vouches for the
        records that they tell of."""
        self._small_files.unsynced.update(files)

    @guarded("truncating", by_halves=True)
    def truncate_to(self, offset: int) -> bool:
        """Drop every record at or above `offset`; says whether there was one.

        Everything that is known of them goes with them, as `following` says. In a broker this is
        called by `LogDirectories.truncate`, which sees to the folder's checkpoints.
        after: log_end_offset = offset, unless it was lower before. A batch around `offset` goes as
        a whole; the offsets in it up to there are then a gap.
        """
        return self.following.truncate_to(offset)

    @guarded("truncating", by_halves=True)
    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop every record; the log goes on at `offset`. For a replica too far behind, or ahead.

        after: log_start_offset = log_end_offset = offset.
        """
        self.following.truncate_fully_and_start_at(offset)

    def truncated(self, offset: int) -> None:
        """The log was cut at `offset`: no flush that began before vouches for what comes after."""
        self.truncations.append(offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self._unsynced.names_changed()  # and the cut file is to be synced, too

    # --- durability ---------------------------------------------------------------------------

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    @property
    def flush_due(self) -> bool:
        """Whether `flush.messages` asks for a flush before the last append is acknowledged."""
        return self.log_end_offset - self.recovery_point >= self._config.flush_messages

    @property
    def has_unsynced_truncation(self) -> bool:
        """Whether a power cut could bring back records that were truncated."""
        return self._unsynced.has_truncation

    def begin_flush(self) -> FlushJob | None:
        """What has to be synced to make everything appended so far durable; None if nothing."""
        return self._unsynced.begin_flush()

    def finish_flush(self, job: FlushJob, now_ms: int) -> None:
        """The job has run. What a truncation took meanwhile was not synced, nor was what has been
        appended in its place."""
        self._unsynced.finish_flush(job, now_ms)

    def undo_flush(self, job: FlushJob) -> None:
        """The job has not been run, or not all of it: the next one begins from the start."""
        self._unsynced.undo_flush(job)

    def mark_new(self) -> None:
        """The folder has just been made: the next flush syncs its name in the data folder too."""
        self._unsynced.folder_is_new()

    @guarded("writing the topic id")
    def set_topic_id(self, topic_id: TopicId) -> None:
        """Write `partition.metadata`; synced with the next flush."""
        write_partition_metadata(self._small_files, self.folder, topic_id)
        self.topic_id = topic_id

    def close(self) -> bool:
        """Write indexes and a producer snapshot as a clean shutdown leaves them; no fsync here.

        The caller flushes afterwards with one more `begin_flush`, then calls `close_files`. Says
        whether all is written: if not, the log must be recovered at the next start.
        """
        if self._closed or self.failure is not None:
            return self.failure is None
        self._closed = True
        active = self._segments.active
        try:
            if active.finish_indexes() or self.recovery_point < self.log_end_offset:
                self.wants_sync(*active.file_paths()[1:])
            if self.log_end_offset > 0:
                self._producers.end_offset = self.log_end_offset
                self._take_snapshot()
        except OSError as error:
            self.storage_failed(error, "closing")
            return False
        return True

    def close_files(self) -> None:
        """Let go of every descriptor. A region still being sent keeps its own."""
        self._segments.close_files()

    def deleted(self, folder: str) -> None:
        """The folder was renamed for deletion: nothing is read or written here any more."""
        self.folder = folder
        self.failure = f"{self.partition} has been deleted"
        self._segments.generation += 1  # threads that look for something in it look in vain
        self.close_files()

    # --- failure ------------------------------------------------------------------------------

    def storage_failed(self, error: OSError, doing: str) -> KafkaError:
        """A file operation failed: take the data folder offline. What to tell the client."""
        if is_shortage(error) and self.failure is None:
            return short_of_descriptors(error, doing, self.folder)
        if self.failure is None:
            self.failure = describe(error, doing, self.folder)
            self._host.folder_failed(self, error, doing)
        return self.offline_error()

    def take_offline(self, reason: str) -> None:
        """The data folder has failed elsewhere."""
        if self.failure is None:
            self.failure = reason

    def offline_error(self) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.failure)
