"""The files of a data folder as rows: what `ottla log dump` prints, and what --verify checks.

Files are read by `log_files` and the packages that own the formats; here rows are made of them. A
row is a mapping that goes out as JSON as it is. Nothing is written, and a file that a running
broker appends to may be read: a batch that is only half there ends it.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import accumulate
from typing import cast

from ottla.cli import log_files
from ottla.cli.log_files import FS, UNREADABLE, base_offset, compression_name, mapped
from ottla.model.ids import NO_TIMESTAMP, topic_id_text
from ottla.records.batch import BatchHeader, InvalidBatch, batches, checksum_ok
from ottla.records.control import read_end_marker
from ottla.records.reader import Record, iter_records
from ottla.runtime.files import OsFile
from ottla.storage import paths
from ottla.storage.check import check_segment
from ottla.storage.checkpoints import (
    OffsetCheckpoint,
    read_meta_properties,
    read_partition_metadata,
)
from ottla.storage.epochs import LeaderEpochs

Row = dict[str, object]

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

_CHECKPOINTS = (
    paths.RECOVERY_POINT_CHECKPOINT,
    paths.LOG_START_CHECKPOINT,
    paths.HIGH_WATERMARK_CHECKPOINT,
    paths.CLEANER_CHECKPOINT,
)


class UnknownFileError(Exception):
    """A file whose name says nothing about what is in it."""


def find(path: str) -> list[str]:
    """The files to look into: this one, or those of a partition's folder or a data folder."""
    if not os.path.isdir(path):
        return [path]
    found: list[str] = []
    folders: list[str] = []
    for name in sorted(os.listdir(path)):
        inner = os.path.join(path, name)
        if os.path.isdir(inner):
            if paths.parse_partition_dir(name) is not None:
                folders.append(inner)
        elif _reader(inner) is not None:
            found.append(inner)
    for folder in folders:
        found.extend(find(folder))
    return found


def rows(path: str, *, records: bool = False) -> Iterator[Row]:
    """What is in a file; a damaged place is a row of kind `damage` and the last one."""
    if path.endswith(paths.LOG_SUFFIX):
        yield from _segment(path, records)
        return
    reader = _reader(path)
    if reader is None:
        raise UnknownFileError(
            f"{path} is none of Kafka's files; give a segment (.log), an index (.index, "
            f".timeindex, .txnindex), a .snapshot, a checkpoint, or a folder of them"
        )
    try:
        yield from reader(path)
    except UNREADABLE as error:
        yield {"kind": "damage", "problem": str(error)}


def verify(
    path: str,
    number: Callable[[int], str] = str,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, list[str]]:
    """A summary of a file in a few words, and what is wrong with it.

    `number` writes counts, offsets and places; `progress` is told how many bytes of a segment are
    done, and how many of its records have been looked at."""
    if path.endswith(paths.LOG_SUFFIX):
        return _verify_segment(path, number, progress or (lambda _done, _records: None))
    everything = list(rows(path))
    problems = [str(row["problem"]) for row in everything if row["kind"] == "damage"]
    found = [row for row in everything if row["kind"] != "damage"]
    problems += _index_problems(path, found, number)
    return f"{number(len(found))} {'entry' if len(found) == 1 else 'entries'}", problems


def record_row(record: Record, decode: Decoder | None = None) -> Row:
    """A record; text that is not UTF-8 goes into `…_base64`, what `decode` makes of it besides."""
    row: Row = {"offset": record.offset, "timestamp": record.timestamp}
    for name, data in (("key", record.key), ("value", record.value)):
        try:
            row[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            row[name] = None
            row[f"{name}_base64"] = b64encode(data or b"").decode()
    row["headers"] = [
        [name, None if data is None else data.decode("utf-8", "backslashreplace")]
        for name, data in record.headers
    ]
    if decode is not None:
        key, value = decode(record)
        row["decoded"] = {"key": _decoded(key), "value": _decoded(value)}
    return row


Decoder = Callable[[Record], tuple[str | None, str | None]]


def _decoder(path: str) -> Decoder | None:
    """How the records of a coordinator's log are read; None for everybody's topics."""
    place = paths.parse_partition_dir(os.path.basename(os.path.dirname(os.path.abspath(path))))
    topic = None if place is None else place.topic
    if topic == TRANSACTIONS_TOPIC:
        from ottla.cli.kafka_compat.transaction_records import decode as transaction

        return lambda record: transaction(record.key, record.value, record.offset)
    if topic == OFFSETS_TOPIC:
        from ottla.cli.kafka_compat.offset_records import decode as offset

        return lambda record: offset(record.key, record.value)
    return None


def _decoded(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text  # what is wrong with it


def moment(timestamp: object) -> str | None:
    """Milliseconds since the epoch as people read them."""
    if not isinstance(timestamp, int) or timestamp < 0:
        return None
    try:
        whole = datetime.fromtimestamp(timestamp // 1000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{timestamp % 1000:03d}Z"


# -- segments


def _segment(path: str, records: bool) -> Iterator[Row]:
    decode = _decoder(path) if records else None
    with mapped(path) as view:
        end = 0
        try:
            for position, header in batches(view):
                yield _batch(view, position, header, records, decode)
                end = position + header.size
        except InvalidBatch as error:
            yield {"kind": "damage", "position": end, "problem": str(error)}
            return
        if end < view.nbytes:
            yield {
                "kind": "damage",
                "position": end,
                "problem": f"the last {view.nbytes - end} bytes are not a whole batch",
            }


def _batch(
    view: memoryview,
    position: int,
    header: BatchHeader,
    records: bool,
    decode: Decoder | None = None,
) -> Row:
    whole = view[position : position + header.size]
    row: Row = {
        "kind": "batch",
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "compression": compression_name(header) or f"unknown ({header.attributes & 7})",
        "timestamp_type": "append" if header.timestamp_type else "create",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": None,
        "crc": header.crc,
        "crc_ok": checksum_ok(view, position, header),
    }
    try:
        if header.is_control:
            marker = read_end_marker(whole, header)
            row["control"] = "other" if marker is None else marker.type.name.lower()
        if records:
            reader = None if header.is_control else decode
            row["records"] = [record_row(record, reader) for record in iter_records(whole, header)]
    except InvalidBatch as error:
        row["problem"] = str(error)
    return row


class _Followed:
    """A file whose reading is followed."""

    def __init__(self, file: OsFile, at: Callable[[int], None]) -> None:
        self._file = file
        self._at = at

    def pread(self, size: int, position: int) -> bytes:
        self._at(position)
        return self._file.pread(size, position)


def _verify_segment(
    path: str, number: Callable[[int], str], progress: Callable[[int, int], None]
) -> tuple[str, list[str]]:
    # Two passes, each of which is half of the way: first the batches, then the records in them.
    file = OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    followed = _Followed(file, lambda position: progress(position // 2, 0))
    try:
        size = file.size()
        checked = check_segment(followed, base_offset(path), size, index_interval=4096)
    finally:
        file.close()
    problems: list[str] = []
    if checked.damage is not None:
        damage = checked.damage
        after = (
            "nothing readable follows, so a broker cuts it off here when it starts"
            if damage.intact_at is None
            else f"the next whole batch is at byte {number(damage.intact_at)}"
        )
        problems.append(
            f"at byte {number(damage.position)}, offset {number(damage.offset)}: {damage.problem}; "
            f"{after}"
        )
    found = records = 0
    with mapped(path) as view:
        for position, header in batches(view[: checked.size]):
            found += 1
            try:
                for _ in iter_records(view[position : position + header.size], header):
                    records += 1
            except InvalidBatch as error:
                problems.append(
                    f"at byte {number(position)}, offset {number(header.base_offset)}: {error}"
                )
            progress((size + position + header.size) // 2, records)
    first = base_offset(path)
    last = checked.end_offset - 1
    span = f"offsets {number(first)} to {number(last)}" if last >= first else "empty"
    return f"{number(found)} {'batch' if found == 1 else 'batches'}, {span}", problems


def _index_problems(path: str, found: list[Row], number: Callable[[int], str]) -> list[str]:
    """Where an index disagrees with itself or with its segment."""
    suffix = os.path.splitext(path)[1]
    segment = log_files.segment_of(path)
    if suffix not in (paths.INDEX_SUFFIX, paths.TIME_INDEX_SUFFIX) or not os.path.exists(segment):
        return []
    heads, complete = log_files.heads(segment)
    if not complete:
        return []  # reported where the segment itself is verified
    if suffix == paths.INDEX_SUFFIX:
        return [
            f"offset {number(cast(int, row['offset']))} is not the last of the batch at byte "
            f"{number(cast(int, row['position']))}"
            for row in found
            if (head := heads.get(cast(int, row["position"]))) is None
            or head.last_offset != row["offset"]
        ]
    ends = [head.last_offset for head in heads.values()]
    # Compaction leaves batches without records, which have no time to be found by.
    times = (head.max_timestamp if head.record_count else NO_TIMESTAMP for head in heads.values())
    latest = list(accumulate(times, max))
    problems: list[str] = []
    for row in found:
        timestamp, offset = cast(int, row["timestamp"]), cast(int, row["offset"])
        covered = bisect_right(ends, offset)
        if covered and latest[covered - 1] > timestamp:
            problems.append(
                f"timestamp {timestamp} is said to be the latest up to offset {number(offset)}, "
                f"but there is {latest[covered - 1]}"
            )
    return problems


# -- the other files


def _offset_index(path: str) -> Iterator[Row]:
    for offset, position in log_files.offset_entries(path):
        yield {"kind": "index", "offset": offset, "position": position}


def _time_index(path: str) -> Iterator[Row]:
    for timestamp, offset in log_files.time_entries(path):
        yield {"kind": "timeindex", "timestamp": timestamp, "offset": offset}


def _txn_index(path: str) -> Iterator[Row]:
    for aborted in log_files.aborted_transactions(path):
        yield {"kind": "txnindex", **aborted._asdict()}


def _snapshot(path: str) -> Iterator[Row]:
    for state in log_files.producers(path):
        yield {"kind": "producer", **state._asdict()}


def _epochs(path: str) -> Iterator[Row]:
    for entry in LeaderEpochs(FS, path).entries:
        yield {"kind": "epoch", "epoch": entry.epoch, "start_offset": entry.start_offset}


def _checkpoint(path: str) -> Iterator[Row]:
    for partition, offset in OffsetCheckpoint(FS, path).read().items():
        yield {
            "kind": "checkpoint",
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": offset,
        }


def _partition_metadata(path: str) -> Iterator[Row]:
    topic_id = read_partition_metadata(FS, os.path.dirname(path))
    yield {"kind": "partition", "topic_id": None if topic_id is None else topic_id_text(topic_id)}


def _meta_properties(path: str) -> Iterator[Row]:
    found = read_meta_properties(FS, os.path.dirname(path))
    if found is not None:
        yield {
            "kind": "folder",
            "version": found.version,
            "node_id": found.node_id,
            "cluster_id": found.cluster_id,
            "directory_id": found.directory_id,
        }


_BY_SUFFIX: dict[str, Callable[[str], Iterator[Row]]] = {
    paths.LOG_SUFFIX: lambda path: _segment(path, False),
    paths.INDEX_SUFFIX: _offset_index,
    paths.TIME_INDEX_SUFFIX: _time_index,
    paths.TXN_INDEX_SUFFIX: _txn_index,
    paths.SNAPSHOT_SUFFIX: _snapshot,
}
_BY_NAME: dict[str, Callable[[str], Iterator[Row]]] = {
    **dict.fromkeys(_CHECKPOINTS, _checkpoint),
    paths.LEADER_EPOCH_CHECKPOINT: _epochs,
    paths.PARTITION_METADATA: _partition_metadata,
    paths.META_PROPERTIES: _meta_properties,
}


def _reader(path: str) -> Callable[[str], Iterator[Row]] | None:
    name = os.path.basename(path)
    if name in _BY_NAME:
        return _BY_NAME[name]
    parsed = paths.parse_offset_file(name)
    return None if parsed is None else _BY_SUFFIX.get(parsed[1])
