"""From a folder to a `Log`: tidy, look, recover, assemble.

    survey(folder)            leftovers of interrupted work removed, segments and indexes listed
    plan(survey, …)           which segments must be scanned: a `RecoveryTask`
    recovery.recover(task)    here or in a child process: a `Recovered`
    assemble(recovered, …)    the `Log`

`open_log` does all four in place; `loader` runs the third elsewhere when it is long. A folder
that Kafka wrote is read like our own.
"""

from __future__ import annotations

import contextlib
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.errors import KafkaError
from ottla.model.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from ottla.records.batch import HEADER_SIZE, read_header
from ottla.storage import paths
from ottla.storage.checkpoints import CheckpointError, read_partition_metadata
from ottla.storage.deferred import DeferredSync
from ottla.storage.epochs import LeaderEpochs
from ottla.storage.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    offset_index_fault,
    time_index_fault,
)
from ottla.storage.log import Log
from ottla.storage.producers import ProducerStates
from ottla.storage.recovery import (
    GAP,
    LogCorrupted,
    Recovered,
    RecoveryTask,
    SegmentFiles,
    mark_lost,
    recover,
    scanning_all,
    set_segments_aside,
)
from ottla.storage.scan import walk
from ottla.storage.segment import OpenFiles, Segment
from ottla.storage.segments import Segments
from ottla.storage.snapshots import ProducerSnapshots
from ottla.storage.topic_checkpoints import Entry
from ottla.storage.txn_index import TransactionIndex, TxnIndexError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.config.topic import TopicConfig
    from ottla.runtime.clock import Clock
    from ottla.runtime.files import FileSystem
    from ottla.storage.log_host import LogHost

logger = logging.getLogger(__name__)

_INDEX_SUFFIXES = (paths.INDEX_SUFFIX, paths.TIME_INDEX_SUFFIX, paths.TXN_INDEX_SUFFIX)
_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogContext:
    """What every log of a broker shares."""

    files: OpenFiles
    host: LogHost
    clock: Clock
    rng: random.Random
    producer_expiration_ms: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies in a partition's folder. Segments whose indexes cannot be used ask for a scan."""

    folder: str
    segments: tuple[SegmentFiles, ...]
    notes: tuple[str, ...]
    index_faults: Mapping[int, Sequence[str]]
    """What is wrong with which segment's indexes."""
    names: tuple[str, ...] = ()
    """Every name in the folder, so that nobody has to look for what is not there."""
    snapshots: tuple[int, ...] = ()
    """Where snapshots of the producers were taken, ascending."""
    lost: bool = False
    """The folder is marked as one that has lost records, or a segment file is gone."""
    gap: bool = False
    """They are missing in the middle of the log."""


def survey(fs: FileSystem, folder: str) -> Survey:
    """Finish or undo what a crash interrupted, then list the segments."""
    notes: list[str] = []
    names = _finish_swaps(fs, folder, notes)
    logs: list[int] = []
    snapshots: list[int] = []
    indexes: dict[int, list[str]] = {}
    for name in names:
        parsed = paths.parse_offset_file(name)
        if parsed is None:
            continue
        base_offset, suffix = parsed
        if suffix == paths.LOG_SUFFIX:
            logs.append(base_offset)
        elif suffix in _INDEX_SUFFIXES:
            indexes.setdefault(base_offset, []).append(suffix)
        else:
            snapshots.append(base_offset)
    segments: list[SegmentFiles] = []
    faults: dict[int, list[str]] = {}
    for base_offset in logs:
        present = indexes.pop(base_offset, [])
        segments.append(_look(fs, folder, base_offset, present, faults))
    mark = f"{folder}/{paths.LOST_RECORDS}"
    gap = paths.LOST_RECORDS in names and fs.read_bytes(mark) == GAP
    if indexes:
        gap = gap or min(indexes) < max(logs, default=0)
        mark_lost(fs, folder, gap=gap)
    for base_offset, suffixes in sorted(indexes.items()):
        notes.append(
            f"{folder}/{paths.log_name(base_offset)} is missing, only its index is there: the "
            f"records of that segment are gone. Restore the file from a copy if you have one"
        )
        for suffix in suffixes:
            fs.remove(f"{folder}/{base_offset:020d}{suffix}")
    return Survey(
        folder,
        tuple(segments),
        tuple(notes),
        faults,
        tuple(names),
        tuple(snapshots),
        lost=bool(indexes) or paths.LOST_RECORDS in names,
        gap=gap,
    )


def _look(
    fs: FileSystem,
    folder: str,
    base_offset: int,
    present: list[str],
    all_faults: dict[int, list[str]],
) -> SegmentFiles:
    stem = f"{folder}/{base_offset:020d}"
    size = fs.size(stem + paths.LOG_SUFFIX)
    faults: list[str] = []
    entries = times = 0
    for suffix in (paths.INDEX_SUFFIX, paths.TIME_INDEX_SUFFIX):
        path = stem + suffix
        if suffix not in present:
            if size:
                faults.append(f"{path} is missing")
            continue
        if suffix == paths.INDEX_SUFFIX:
            fault = offset_index_fault(fs, path, size)
            entries = fs.size(path) // OFFSET_ENTRY.size
        else:
            fault = time_index_fault(fs, path)
            times = fs.size(path) // TIME_ENTRY.size
        if fault is not None:
            faults.append(f"{path} cannot be used, {fault}")
    if paths.TXN_INDEX_SUFFIX in present:
        try:
            TransactionIndex(fs, stem + paths.TXN_INDEX_SUFFIX).check(base_offset)
        except TxnIndexError as error:
            faults.append(str(error))
    if not faults:
        return SegmentFiles(base_offset, size, entries, times, scan=False)
    all_faults[base_offset] = faults
    return SegmentFiles(base_offset, size, 0, 0, scan=True)


def _finish_swaps(fs: FileSystem, folder: str, notes: list[str]) -> list[str]:  # noqa: C901 - the steps of one repair, whose order is the point
    """Remove temporary files; put segments in place that compaction had finished writing. Returns
    what is in the folder then.

    `.cleaned` files are unfinished work. A `.swap` file is finished, and replaces the segments in
    its range, unless an unfinished one at or below it shows that its group is not complete. The
    range ends with the last batch of the new segment, which compaction keeps for that. Each step
    leaves what it takes to do it again: unfinished files go last, and a `.log` gets its name before
    its indexes do.
    """
    cleaned: list[str] = []
    swaps: list[str] = []
    names = fs.listdir(folder)
    tidy = True
    for name in names:
        path = f"{folder}/{name}"
        if name.endswith((paths.DELETED_SUFFIX, ".tmp")):
            if not fs.is_dir(path):
                fs.remove(path)
                tidy = False
        elif name.endswith(paths.CLEANED_SUFFIX):
            cleaned.append(name)
        elif name.endswith(paths.SWAP_SUFFIX):
            swaps.append(name)
    if tidy and not cleaned and not swaps:
        return names
    unfinished = min(map(_offset_in, cleaned), default=_LAST)
    complete = [name for name in swaps if _offset_in(name) < unfinished]
    for name in (*sorted(set(swaps) - set(complete)), *cleaned):
        fs.remove(f"{folder}/{name}")
    logs = [name for name in complete if name.endswith(paths.LOG_SUFFIX + paths.SWAP_SUFFIX)]
    if logs:
        first = min(map(_offset_in, logs))
        end = max(_end_of_file(fs, f"{folder}/{name}", _offset_in(name)) for name in logs)
        for name in fs.listdir(folder):
            parsed = paths.parse_offset_file(name)
            if parsed is None or not (first <= parsed[0] < end or _offset_in(name) == first):
                continue
            if parsed[1] in paths.SEGMENT_SUFFIXES:
                fs.remove(f"{folder}/{name}")
        notes.append(
            f"{folder}: finished replacing the segments from {first} to {end} (compaction)"
        )
    for name in (*logs, *(name for name in complete if name not in logs)):
        fs.rename(f"{folder}/{name}", f"{folder}/{name.removesuffix(paths.SWAP_SUFFIX)}")
    return fs.listdir(folder)


def _offset_in(name: str) -> int:
    digits = name.partition(".")[0]
    return int(digits) if digits.isdigit() else _LAST


def _end_of_file(fs: FileSystem, path: str, base_offset: int) -> int:
    file = fs.open(path)
    try:
        end = base_offset
        for _, header in walk(file, 0, file.size()):
            end = header.next_offset
        return end
    finally:
        file.close()


def plan(  # noqa: PLR0913 - what is known of the log, by name
    found: Survey,
    partition: TopicPartition,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    latest_epoch: int,
    index_interval: int,
    now_ms: int,
    producer_expiration_ms: int,
    compacted: bool = False,
) -> RecoveryTask:
    """After an unclean stop every segment that reaches the recovery point or beyond is scanned."""
    segments = list(found.segments)
    if segments:
        log_start_offset = max(log_start_offset, segments[0].base_offset)
    if not clean:
        for slot, segment in enumerate(segments):
            last = slot + 1 == len(segments)
            if last or segments[slot + 1].base_offset > recovery_point:
                segments[slot] = SegmentFiles(
                    segment.base_offset,
                    segment.size,
                    segment.index_entries if not segment.scan else 0,
                    segment.time_entries if not segment.scan else 0,
                    scan=True,
                )
    return RecoveryTask(
        folder=found.folder,
        partition=partition,
        segments=tuple(segments),
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        latest_epoch=latest_epoch,
        index_interval=index_interval,
        now_ms=now_ms,
        producer_expiration_ms=producer_expiration_ms,
        compacted=compacted,
        snapshots=found.snapshots,
    )


def read_epochs(fs: FileSystem, folder: str, notes: list[str]) -> LeaderEpochs | None:
    """The partition's leader epochs; None, with the file removed, when it cannot be read: then
    every segment is to be scanned, which finds them again."""
    path = f"{folder}/{paths.LEADER_EPOCH_CHECKPOINT}"
    try:
        return LeaderEpochs(fs, path)
    except CheckpointError as error:
        notes.append(f"{error}; the epochs are taken from the records instead")
        fs.remove(path)
        return None


def _written_under_epochs(fs: FileSystem, found: Survey) -> bool:
    """Whether the newest segment with records begins with a batch that names a leader epoch. (Those
    of brokers before Kafka 0.11 name none, and have no file either.)"""
    newest = next((each for each in reversed(found.segments) if each.size >= HEADER_SIZE), None)
    if newest is None:
        return False
    file = fs.open(f"{found.folder}/{paths.log_name(newest.base_offset)}")
    try:
        return read_header(file.pread(HEADER_SIZE, 0)).leader_epoch >= 0
    finally:
        file.close()


def read_topic_id(fs: FileSystem, folder: str, notes: list[str]) -> TopicId:
    """The topic id a folder says it belongs to; all zeros when it does not say."""
    try:
        return read_partition_metadata(fs, folder) or ZERO_TOPIC_ID
    except CheckpointError as error:
        notes.append(f"{error}; the topic's id is written anew when the topic is known")
        return ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the data folder's checkpoints say about a partition of this name."""

    recovery_point: Entry | None = None
    log_start_offset: Entry | None = None

    def about(self, topic_id: TopicId, folder: str, notes: list[str]) -> tuple[int, int]:
        """Recovery point and log start offset, as far as they are this topic's."""
        offsets = []
        for what, entry in (
            ("recovery point", self.recovery_point),
            ("log start offset", self.log_start_offset),
        ):
            offsets.append(0)
            if entry is None:
                continue
            if entry.is_of(topic_id):
                offsets[-1] = entry.offset
            else:
                notes.append(
                    f"{folder}: the checkpoint's {what} {entry.offset} is that of an earlier topic "
                    f"of this name, and is ignored"
                )
        return offsets[0], offsets[1]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder that has been looked at and is ready to be recovered."""

    task: RecoveryTask
    topic_id: TopicId
    epochs: LeaderEpochs
    small_files: DeferredSync
    notes: tuple[str, ...]
    recovery_point: int
    lost: bool
    gap: bool


def prepare(  # noqa: PLR0913 - what is known of a folder, from five sources
    fs: FileSystem,
    folder: str,
    partition: TopicPartition,
    config: TopicConfig,
    *,
    clean: bool,
    remembered: Remembered,
    now_ms: int,
    producer_expiration_ms: int,
    is_new: bool = False,
) -> Prepared:
    """Everything up to recovery. In a folder that `is_new`, just made, nothing is looked for.
    Raises OSError."""
    found = Survey(folder, (), (), {}) if is_new else survey(fs, folder)
    notes = list(found.notes)
    topic_id = ZERO_TOPIC_ID
    if paths.PARTITION_METADATA in found.names:
        topic_id = read_topic_id(fs, folder, notes)
    recovery_point, log_start_offset = remembered.about(topic_id, folder, notes)
    small_files = DeferredSync(fs)
    noted = paths.LEADER_EPOCH_CHECKPOINT in found.names
    epochs = read_epochs(small_files, folder, notes) if noted else None
    found_anew = noted and epochs is None
    if epochs is None:
        path = f"{folder}/{paths.LEADER_EPOCH_CHECKPOINT}"
        epochs = LeaderEpochs(small_files, path, is_new=True)
    if not found_anew and not epochs.entries and _written_under_epochs(fs, found):
        # A power cut can leave a file that was replaced shortly before without its content.
        notes.append(
            f"{folder}/{paths.LEADER_EPOCH_CHECKPOINT} is missing or empty although the log has "
            f"records; the epochs are taken from these instead"
        )
        found_anew = True
    task = plan(
        found,
        partition,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        latest_epoch=-1 if epochs.latest is None else epochs.latest,
        index_interval=config.index_interval_bytes,
        now_ms=now_ms,
        producer_expiration_ms=producer_expiration_ms,
        compacted="compact" in config.cleanup_policy,
    )
    if found_anew:
        task = scanning_all(task)
    for base_offset, faults in found.index_faults.items():
        # After an unclean stop the indexes of unflushed segments are expected to be unfinished.
        if clean or task.covers_flushed(base_offset):
            notes.extend(f"{fault}; it is rebuilt from the log" for fault in faults)
    return Prepared(
        task,
        topic_id,
        epochs,
        small_files,
        tuple(notes),
        recovery_point,
        lost=found.lost,
        gap=found.gap,
    )


def run(fs: FileSystem, task: RecoveryTask) -> Recovered:
    """Recover, also a folder without a single segment.

    Segments that were flushed are not looked through, only what has to be read of them: the batches
    around a producer snapshot, the end. Whoever meets something unexpected there cannot tell a
    wrong index, which is rebuilt, from a damaged record, which is not. So the whole log is scanned
    then, which finds out and says where.
    """
    if not task.segments:
        states = ProducerStates(task.partition)
        return Recovered((), task.log_start_offset, states, snapshots=task.snapshots)
    try:
        return recover(fs, task)
    except (OSError, LogCorrupted):
        raise
    except Exception:
        if all(segment.scan for segment in task.segments):
            raise
        return recover(fs, scanning_all(task))


def assemble(
    context: LogContext,
    prepared: Prepared,
    recovered: Recovered,
    config: TopicConfig,
    *,
    clean: bool,
) -> Log:
    """The log over recovered files."""
    fs = context.files.fs
    task = prepared.task
    start = task.log_start_offset
    end = recovered.end_offset
    now_ms = context.clock.now_ms()
    for line in (*prepared.notes, *recovered.notes):
        logger.warning("%s", line)
    facts = recovered.segments
    lost, gap = _losses(fs, prepared, recovered)
    if facts and end < start:
        kept = set_segments_aside(fs, task.folder, [fact.base_offset for fact in facts])
        logger.warning(
            "%s: the log ends at %d, before its start offset %d: its files were cut or removed "
            "from outside. It goes on, empty, at %d; what was there is kept in %s",
            task.folder,
            end,
            start,
            start,
            ", ".join(kept),
        )
        facts = ()
    elif end < prepared.recovery_point:
        logger.warning(
            "%s: the log ends at %d although records up to %d were flushed: its files were cut "
            "from outside",
            task.folder,
            end,
            prepared.recovery_point,
        )
    opened = [
        Segment(
            context.files,
            task.folder,
            fact.base_offset,
            size=fact.size,
            index_entries=fact.index_entries,
            time_entries=fact.time_entries,
            now_ms=now_ms,
        )
        for fact in facts
    ]
    created = not opened
    if created:
        end = start
        first = Segment(
            context.files,
            task.folder,
            start,
            size=0,
            index_entries=None,
            time_entries=None,
            now_ms=now_ms,
        )
        first.create_file()
        opened.append(first)
        recovered.producers.reset(start)
    segments = Segments(context.files, task.folder, opened, config, context.clock, context.rng)
    epochs = prepared.epochs
    start = max(start, segments.bases[0])
    for epoch, offset in recovered.epochs:
        epochs.assign(epoch, offset)
    deleted = _last_epoch(opened) if 0 < start == end else -1
    if deleted >= 0:
        # Every record was deleted, and the last one is still in its file: its epoch ends here.
        epochs.truncate_from_end(end + 1)
        epochs.assign(deleted, end)
    else:
        epochs.truncate_from_end(end)
    epochs.truncate_from_start(start)
    snapshots = ProducerSnapshots(fs, task.folder, recovered.snapshots)
    if created:
        snapshots.clear()  # one may be at an offset that this log is still to reach
    else:
        snapshots.remove_strays(segments.bases)
    log = Log(
        partition=task.partition,
        topic_id=prepared.topic_id,
        segments=segments,
        small_files=prepared.small_files,
        producers=recovered.producers,
        snapshots=snapshots,
        epochs=epochs,
        log_start_offset=start,
        log_end_offset=end,
        recovery_point=end if clean else min(prepared.recovery_point, end),
        producer_expiration_ms=context.producer_expiration_ms,
        host=context.host,
        clock=context.clock,
    )
    log.lost_records, log.has_gap = lost, gap
    if created or not clean:
        # Whoever made these files may have died before he could sync their names.
        log.mark_new()
        prepared.small_files.unsynced.update(
            f"{task.folder}/{name}"
            for name in (paths.PARTITION_METADATA, paths.LEADER_EPOCH_CHECKPOINT)
        )
    return log


def _losses(fs: FileSystem, prepared: Prepared, recovered: Recovered) -> tuple[bool, bool]:
    """Whether records are gone, and whether in the middle. What was not marked before is now: the
    checkpoints, which tell of it too, are about to be written anew."""
    end, task = recovered.end_offset, prepared.task
    gap = prepared.gap or recovered.gap
    shorter = end < prepared.recovery_point
    if recovered.segments:
        shorter = shorter or end < task.log_start_offset
    if shorter or gap:
        mark_lost(fs, task.folder, gap=gap)
    return prepared.lost or recovered.lost or shorter or gap, gap


def _last_epoch(segments: Sequence[Segment]) -> int:
    """The leader epoch of the last batch in the files; -1 if there is none."""
    newest = next((each for each in reversed(segments) if each.size), None)
    if newest is None:
        return -1
    epoch = -1
    with contextlib.suppress(KafkaError):
        for _, header in walk(newest.file, newest.offset_index.last_position(), newest.size):
            epoch = header.leader_epoch
    newest.close_file()
    return epoch


def open_log(
    context: LogContext,
    folder: str,
    partition: TopicPartition,
    config: TopicConfig,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
) -> Log:
    """Open the log in `folder`, or make one; recovery is done in place."""
    fs = context.files.fs
    made = fs.makedirs(folder)
    prepared = prepare(
        fs,
        folder,
        partition,
        config,
        clean=clean,
        remembered=Remembered(Entry(recovery_point), Entry(log_start_offset)),
        now_ms=context.clock.now_ms(),
        producer_expiration_ms=context.producer_expiration_ms,
        is_new=made,
    )
    return assemble(context, prepared, run(fs, prepared.task), config, clean=clean)
