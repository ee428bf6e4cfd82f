"""One partition's folder, looked through for what metadata can be made of.

Only headers are read, batch by batch, so that terabytes take minutes. Where a header makes no sense
the next whole batch is looked for, so that damage hides nothing behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.model.ids import TopicId, TopicPartition
from ottla.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, checksum_ok
from ottla.runtime.files import File, FileSystem
from ottla.storage import paths
from ottla.storage.check import check_segment
from ottla.storage.checkpoints import CheckpointError, read_lines, read_partition_metadata
from ottla.storage.producers import ProducerStates, SnapshotError

_NOBODY = TopicPartition("", 0)
_NO_INDEX = 2**31 - 1
_NEVER = 2**62
_MAX_EPOCH = 2**30
_MAX_PRODUCER_ID = 2**62
"""No broker reaches these. A higher number comes from damage, or from a client that made it up;
if it were believed, there would be no numbers left to go on with."""


@dataclass(slots=True)
class Traces:
    """The highest numbers found, -1 for none, and what was odd."""

    folder: str
    is_partition: bool = False
    """Whether any file of a partition is there."""
    topic_id: TopicId | None = None
    leader_epoch: int = -1
    producer_id: int = -1
    problems: list[str] = field(default_factory=list)


def read_traces(fs: FileSystem, folder: str) -> Traces:
    """What a partition's folder tells. OSError when it cannot be read."""
    traces = Traces(folder)
    try:
        traces.topic_id = read_partition_metadata(fs, folder)
        if traces.topic_id is None:
            traces.problems.append(f"{folder}: partition.metadata is missing")
    except CheckpointError as error:
        traces.problems.append(f"{error}; the topic id of its other partitions is used")
    try:
        for _, line in read_lines(fs, f"{folder}/{paths.LEADER_EPOCH_CHECKPOINT}"):
            _note(traces, epoch=int(line.split()[0]))
    except (CheckpointError, ValueError, IndexError) as error:
        traces.problems.append(f"{error}; the epochs are taken from the records")
    for name in fs.listdir(folder):
        parsed = paths.parse_offset_file(name)
        if parsed is not None or name in (paths.PARTITION_METADATA, paths.LEADER_EPOCH_CHECKPOINT):
            traces.is_partition = True
        if parsed is None:
            continue
        if parsed[1] == paths.LOG_SUFFIX:
            _read_segment(fs, f"{folder}/{name}", parsed[0], traces)
        elif parsed[1] == paths.SNAPSHOT_SUFFIX:
            _read_snapshot(fs, f"{folder}/{name}", parsed[0], traces)
    return traces


def _read_snapshot(fs: FileSystem, path: str, offset: int, traces: Traces) -> None:
    states = ProducerStates(_NOBODY)
    try:
        states.load(fs.read_bytes(path), offset, now_ms=0, expiration_ms=_NEVER)
    except SnapshotError:
        return  # torn: the batches tell the same
    for state in states.statistics():
        _note(traces, producer_id=state.producer_id)


def _note(traces: Traces, *, epoch: int = -1, producer_id: int = -1) -> None:
    """Take numbers into account, unless they cannot be real."""
    if epoch <= _MAX_EPOCH:
        traces.leader_epoch = max(traces.leader_epoch, epoch)
    if producer_id <= _MAX_PRODUCER_ID:
        traces.producer_id = max(traces.producer_id, producer_id)


def _read_segment(fs: FileSystem, path: str, base_offset: int, traces: Traces) -> None:
    file = fs.open(path)
    try:
        size, position, expected = file.size(), 0, base_offset
        while position < size:
            header = file.pread(HEADER_SIZE, position)
            end = -1
            if len(header) == HEADER_SIZE:
                fields = HEADER.unpack(header)
                end = position + LOG_OVERHEAD + fields[1]
                if fields[3] != MAGIC or end < position + HEADER_SIZE or fields[0] < expected:
                    end = -1
            if end < 0 or end > size:
                resume = _behind(file, position, size, expected)
                if resume is None:
                    return  # a torn end, or nothing but damage from here on
                traces.problems.append(
                    f"{path} is damaged at position {position}; the broker will keep the "
                    "partition offline until it is repaired"
                )
                position = resume
                continue
            epoch, producer_id = fields[2], fields[9]
            is_news = epoch > traces.leader_epoch or producer_id > traces.producer_id
            # A flipped bit must not raise a number that can never be lowered again.
            if is_news and checksum_ok(
                file.pread(end - position, position), 0, BatchHeader._make(fields)
            ):
                _note(traces, epoch=epoch, producer_id=producer_id)
            position, expected = end, fields[0]
    finally:
        file.close()


def _behind(file: File, position: int, size: int, offset: int) -> int | None:
    """Where the next whole batch begins."""
    part = _From(file, position)
    damage = check_segment(part, offset, size - position, index_interval=_NO_INDEX).damage
    if damage is None or damage.intact_at is None:
        return None
    return position + damage.intact_at


class _From:
    """A file from a position on."""

    def __init__(self, file: File, start: int) -> None:
        self._file = file
        self._start = start

    def pread(self, size: int, position: int) -> bytes:
        return self._file.pread(size, self._start + position)
