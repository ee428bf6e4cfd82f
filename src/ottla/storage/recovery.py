"""Opening a log after a crash: scan, cut what was torn, rebuild what is derived, refuse to guess.

What kill -9 or a power cut can leave behind, and what happens to it here:

- A torn tail: the last write was interrupted, so the last segment ends in something that is not a
  whole batch with a right checksum, and nothing after it is one either. It was never acknowledged
  (or, after a power cut, never flushed). It is cut off, and logged. A file that somebody has cut
  looks the same, and then records may be gone that others count on: the folder is marked first
  (`mark_lost`), so that a replica with more leads.
- Indexes that lag behind the log, or are padded with zeros: rebuilt from the log.
- Producer states: the newest snapshot, then the batches behind it.
- A damaged middle: bytes that are no batch although batches follow them, or although they lie
  below the recovery point, where everything was flushed. No interrupted write does that. Cutting
  there would silently drop acknowledged records, so the partition is refused (`LogCorrupted`)
  until somebody restores the file or accepts the loss with `repair`.

Only segments from the recovery point on are scanned: everything older was flushed after it was
rolled. `recover` is a plain function of picklable arguments because scanning holds the interpreter:
for more than a few megabytes it is run in a child process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.control import read_end_marker
from ottla.storage import paths
from ottla.storage.check import Checked, Damage, check_segment, index_entries
from ottla.storage.producers import CompletedTxn, ProducerStates
from ottla.storage.replay import forget_compacted, reload_producers, replay
from ottla.storage.scan import walk
from ottla.storage.segment import OpenFiles, Segment
from ottla.storage.snapshots import ProducerSnapshots

if TYPE_CHECKING:
    from ottla.records.batch import BatchHeader
    from ottla.runtime.files import FileSystem


GAP = b"gap\n"


class LogCorrupted(Exception):
    """A log that cannot be opened without losing records that may have been acknowledged."""

    def __init__(self, path: str, position: int, offset: int, problem: str) -> None:
        super().__init__(path, position, offset, problem)
        self.path = path
        self.position = position
        self.offset = offset
        self.problem = problem

    def __str__(self) -> str:
        folder = self.path.rpartition("/")[0]
        return (
            f"{self.path} is damaged at position {self.position} (offset {self.offset}): "
            f"{self.problem}. The partition is offline, the file is as it was. Restore it from a "
            f"copy, or accept the loss with: ottla log repair {folder}"
        )


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """A segment as it lies in the folder. `scan`: every batch is to be checked."""

    base_offset: int
    size: int
    index_entries: int
    time_entries: int
    scan: bool


@dataclass(frozen=True, slots=True)
class RecoveryTask:
    """Everything `recover` needs to know."""

    folder: str
    partition: TopicPartition
    segments: tuple[SegmentFiles, ...]
    recovery_point: int
    log_start_offset: int
    latest_epoch: int
    index_interval: int
    now_ms: int
    producer_expiration_ms: int
    compacted: bool = False
    """Apache Kafka's compaction leaves gaps between segments; they are no lost files."""
    snapshots: tuple[int, ...] | None = None
    """Where snapshots of the producers were taken; None: the folder is to be looked through."""

    def covers_flushed(self, base_offset: int) -> bool:
        """Whether a segment lies wholly below the recovery point."""
        later = (each.base_offset for each in self.segments if each.base_offset > base_offset)
        return next(later, self.recovery_point + 1) <= self.recovery_point

    @property
    def bytes_to_scan(self) -> int:
        return sum(segment.size for segment in self.segments if segment.scan)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state of the log's files afterwards."""

    segments: tuple[SegmentFiles, ...]
    end_offset: int
    producers: ProducerStates
    epochs: tuple[tuple[int, int], ...] = ()
    """Leader epochs found in scanned batches, newer than the latest known: (epoch, offset)."""
    notes: tuple[str, ...] = ()
    """One line for each thing that an operator should know."""
    snapshots: tuple[int, ...] | None = None
    """As in the task."""
    lost: bool = False
    """Something was cut off."""
    gap: bool = False
    """A whole segment is missing between others."""


def recover(fs: FileSystem, task: RecoveryTask) -> Recovered:
    """Check the segments that ask for it, repair their files, and load the producers.

    before: the files as a crash left them; after: as a clean shutdown leaves them, but for the
    snapshot at the end. Raises OSError, and LogCorrupted with the damaged segment untouched. May
    be interrupted and run again at any point.
    """
    files = OpenFiles(fs, 4)
    try:
        recovered = _recover(fs, task, files)
        if recovered.producers.open_transactions():
            kept = [_open(files, task.folder, segment) for segment in recovered.segments]
            forget_compacted(recovered.producers, kept, task.log_start_offset)
        return recovered
    finally:
        files.close()  # not when the collector comes by: thousands of logs are opened in a row


def _recover(fs: FileSystem, task: RecoveryTask, files: OpenFiles) -> Recovered:
    opened = [_open(files, task.folder, segment) for segment in task.segments]
    try:
        first = next((slot for slot, found in enumerate(task.segments) if found.scan), None)
        if first is not None:
            return _Recovery(fs, task, opened, first).run()
        end_offset = _end_of(opened[-1])
        if end_offset is None:
            # Stopped cleanly, yet the last segment does not end where a batch ends: look closely.
            return recover(fs, _scanning_last(task))
        states = ProducerStates(task.partition)
        snapshots = ProducerSnapshots(fs, task.folder, task.snapshots)
        notes = _load_states(task, states, snapshots, opened, end_offset)
        return Recovered(
            task.segments, end_offset, states, notes=tuple(notes), snapshots=snapshots.offsets
        )
    finally:
        # At once: thousands of logs are opened before the garbage collector comes by.
        for segment in opened:
            segment.close_file()


class _Recovery:
    """The scan of a log's segments from `first` on, in order: each continues the state that the
    one before it left."""

    def __init__(
        self, fs: FileSystem, task: RecoveryTask, opened: list[Segment], first: int
    ) -> None:
        self._fs = fs
        self._task = task
        self._opened = opened
        self._first = first
        self._snapshots = ProducerSnapshots(fs, task.folder, task.snapshots)
        self._states = ProducerStates(task.partition)
        self._aborted: list[CompletedTxn] = []
        self._kept = list(task.segments[:first])
        self._epochs: list[tuple[int, int]] = []
        self._end_offset = task.segments[first].base_offset
        self._notes: list[str] = []
        self._lost = False
        self._gap = False

    def run(self) -> Recovered:
        task = self._task
        self._notes += _load_states(
            task, self._states, self._snapshots, self._opened, self._end_offset
        )
        for slot in range(self._first, len(self._opened)):
            segment = self._opened[slot]
            self._note_gap(slot)
            if not task.segments[slot].scan:
                self._pass_over(segment, task.segments[slot])
            elif self._scan(segment, task.segments[slot + 1 :]):
                break
            if slot + 1 < len(self._opened):
                self._states.end_offset = self._opened[slot + 1].base_offset
                self._snapshots.take(self._states)
        self._states.end_offset = self._end_offset
        return Recovered(
            tuple(self._kept),
            self._end_offset,
            self._states,
            tuple(self._epochs),
            tuple(self._notes),
            self._snapshots.offsets,
            self._lost,
            self._gap,
        )

    def _note_gap(self, slot: int) -> None:
        if slot == 0 or self._task.compacted:
            return
        before = self._opened[slot - 1]
        end = self._end_offset if slot > self._first else _end_of(before)
        base = self._opened[slot].base_offset
        if end is not None and end < base:
            self._gap = True
            self._notes.append(
                f"{self._task.folder}: offsets {end} to {base - 1} are missing between "
                f"{paths.log_name(before.base_offset)} and {paths.log_name(base)}: a segment file "
                f"is gone. Restore it from a copy if you have one; consumers will skip the gap"
            )

    def _pass_over(self, segment: Segment, found: SegmentFiles) -> None:
        """A segment that was flushed lies behind one whose index had to be rebuilt."""
        end = _end_of(segment)
        self._end_offset = segment.base_offset if end is None else end
        replay(self._states, [segment], self._end_offset)
        self._kept.append(found)

    def _scan(self, segment: Segment, later: tuple[SegmentFiles, ...]) -> bool:
        """Check one segment and rewrite its indexes; True when the log ends here, cut off."""
        task = self._task
        self._aborted.clear()
        checked = check_segment(
            segment.file,
            segment.base_offset,
            segment.size,
            index_interval=task.index_interval,
            latest_epoch=self._epochs[-1][0] if self._epochs else task.latest_epoch,
            visit=self._visit,
        )
        damage = checked.damage
        if damage is not None:
            _refuse_unless_torn(segment.path, damage, task.recovery_point, later)
            self._notes.append(_torn(segment.path, damage, segment.size - checked.size))
            self._lost = True
            mark_lost(self._fs, task.folder)
            segment.file.truncate(checked.size)
            for empty in later:
                remove_segment(self._fs, task.folder, empty.base_offset)
        self._write_indexes(segment, checked)
        self._epochs += checked.epochs
        self._end_offset = checked.end_offset
        entries, times = index_entries(checked)
        self._kept.append(
            SegmentFiles(segment.base_offset, checked.size, entries, times, scan=False)
        )
        return damage is not None

    def _visit(self, header: BatchHeader, batch: memoryview) -> None:
        if header.last_offset < self._task.log_start_offset:
            return
        marker = read_end_marker(batch, header) if header.is_control else None
        completed = self._states.update(header, header.base_offset, marker)
        if completed is not None and completed.aborted:
            self._aborted.append(completed)

    def _write_indexes(self, segment: Segment, checked: Checked) -> None:
        replace_content(self._fs, segment.offset_index.path, checked.index)
        replace_content(self._fs, segment.time_index.path, checked.time_index)
        if self._aborted or segment.txn_index.exists():
            segment.txn_index.reset()
            for completed in self._aborted:
                segment.txn_index.append(completed)


def _refuse_unless_torn(
    path: str, damage: Damage, recovery_point: int, later: tuple[SegmentFiles, ...]
) -> None:
    """A torn write is at the very end, was never flushed, and nothing comes after it."""
    if damage.offset < recovery_point:
        problem = f"{damage.problem}, in records that were flushed (up to {recovery_point})"
    elif damage.intact_at is not None:
        problem = f"{damage.problem}, and whole batches follow from position {damage.intact_at} on"
    elif any(segment.size for segment in later):
        problem = f"{damage.problem}, and later segments hold records"
    else:
        return
    raise LogCorrupted(path, damage.position, damage.offset, problem)


def _torn(path: str, damage: Damage, count: int) -> str:
    if damage.zeros:
        return f"{path}: cut off {count} bytes of unused space at offset {damage.offset}"
    return (
        f"{path}: cut off the last {count} bytes, from position {damage.position} on, an "
        f"interrupted write ({damage.problem}); the log ends at offset {damage.offset}"
    )


def _load_states(
    task: RecoveryTask,
    states: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: list[Segment],
    end_offset: int,
) -> list[str]:
    """Producer states up to `end_offset`; returns which snapshots had to be passed over."""
    problems = reload_producers(
        states,
        snapshots,
        segments,
        log_start_offset=task.log_start_offset,
        log_end_offset=end_offset,
        now_ms=task.now_ms,
        expiration_ms=task.producer_expiration_ms,
    )
    return [f"{problem}; an older snapshot was used" for problem in problems]


def _open(files: OpenFiles, folder: str, segment: SegmentFiles) -> Segment:
    return Segment(
        files,
        folder,
        segment.base_offset,
        size=segment.size,
        index_entries=segment.index_entries,
        time_entries=segment.time_entries,
        now_ms=0,
    )


def scanning_all(task: RecoveryTask) -> RecoveryTask:
    """The task with every batch of every segment to be checked, and every index rebuilt."""
    segments = (replace(segment, scan=True) for segment in task.segments)
    # Whoever tried before and failed may have removed snapshots.
    return replace(task, segments=tuple(segments), snapshots=None)


def _scanning_last(task: RecoveryTask) -> RecoveryTask:
    last = replace(task.segments[-1], scan=True)
    return replace(task, segments=(*task.segments[:-1], last))


def _end_of(segment: Segment) -> int | None:
    """The offset after a segment's last batch; None when the file ends with something else, or
    with a batch that cannot be there. That it was flushed does not mean that it is whole."""
    end_offset, end = segment.base_offset, 0
    if segment.size:
        try:
            start = segment.offset_index.last_position()
            for position, header in walk(segment.file, start, segment.size):
                delta = header.last_offset_delta
                if header.base_offset < end_offset or not 0 <= header.record_count <= delta + 1:
                    return None
                end_offset, end = header.next_offset, position + header.size
        except KafkaError:
            return None
    return end_offset if end == segment.size else None


def replace_content(fs: FileSystem, path: str, data: bytes) -> None:
    """Write an index anew. Not atomic: after a crash it is rebuilt once more."""
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        if data:
            file.append(data)
    finally:
        file.close()


def mark_lost(fs: FileSystem, folder: str, *, gap: bool = False) -> None:
    """Note in a partition's folder that its log lacks records which it may have had, with a `gap`
    in its middle. Not synced: a power cut, which may take the mark, tells as much."""
    file = fs.open(f"{folder}/{paths.LOST_RECORDS}", create=True)
    try:
        if gap and not file.size():
            file.append(GAP)
    finally:
        file.close()


def remove_segment(fs: FileSystem, folder: str, base_offset: int) -> None:
    """Remove a segment's files."""
    stem = f"{folder}/{base_offset:020d}"
    for suffix in paths.SEGMENT_SUFFIXES:
        if fs.exists(stem + suffix):
            fs.remove(stem + suffix)


def set_segments_aside(fs: FileSystem, folder: str, bases: list[int]) -> list[str]:
    """Rename segments so that nothing takes them for the log's, and keep them; returns where their
    records are. From the end, so that a crash in between leaves no gap."""
    kept: list[str] = []
    for base_offset in reversed(bases):
        stem = f"{folder}/{base_offset:020d}"
        number = 0
        while fs.exists(_aside(stem + paths.LOG_SUFFIX, number)):
            number += 1
        for suffix in reversed(paths.SEGMENT_SUFFIXES):  # the records last: they are looked for
            if fs.exists(stem + suffix):
                fs.rename(stem + suffix, _aside(stem + suffix, number))
        kept.insert(0, _aside(stem + paths.LOG_SUFFIX, number))
    return kept


def _aside(path: str, number: int) -> str:
    return f"{path}{paths.ASIDE_SUFFIX}" if number == 0 else f"{path}.{number}{paths.ASIDE_SUFFIX}"
