"""Every name in a data folder, as Kafka spells them.

    <log.dir>/
      meta.properties  .lock  .kafka_cleanshutdown
      recovery-point-offset-checkpoint  log-start-offset-checkpoint  replication-offset-checkpoint
      cleaner-offset-checkpoint    and beside each of these four, ours: <name>.topic-ids
      <topic>-<partition>/
        partition.metadata  leader-epoch-checkpoint
        <base offset, 20 digits>.log .index .timeindex .txnindex
        <end offset, 20 digits>.snapshot
        records-lost                            ours: see `LOST_RECORDS`
        ottla.moving, ottla.moved               ours: see `MOVING` and `MOVED`
      <topic>-<partition>.<unique>-delete/      renamed first, removed later
      <topic>-<partition>.<unique>-stray/       of a topic that nobody knows, kept

Files on their way out carry `.deleted`; `.cleaned` and `.swap` are the two halves of replacing
segments by compacted ones. `.aside` is ours: segments that contradict the log's start offset, kept.
"""

from __future__ import annotations

import re

from ottla.model.ids import TopicPartition

META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
"""Those that `LogDirectories` reads and writes."""
TOPIC_IDS_SUFFIX = ".topic-ids"

PARTITION_METADATA = "partition.metadata"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
LOST_RECORDS = "records-lost"
"""A file in the folder of a log that has lost records: from before they are cut off until the
controller knows. Without it a broker that dies in between would not know any more. It is empty, or
says "gap": then records are missing in the middle, and it stays as long as the log does."""

MOVING = "ottla.moving"
"""A file in the folder of an unfinished copy of a log that is in another data folder."""
MOVED = "ottla.moved"
"""What that file is called from when the copy is the partition's log until the other is gone."""

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
ASIDE_SUFFIX = ".aside"

DELETE_DIR_SUFFIX = "-delete"
STRAY_DIR_SUFFIX = "-stray"

MAX_NAME = 255  # what file systems allow

_PARTITION_DIR = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]{0,9})")
_MARKED_DIR = re.compile(r"(\S+)-(\S+)\.(\S+)-(delete|future|stray)")
_OFFSET_FILE = re.compile(r"([0-9]{20})(\.(?:log|index|timeindex|txnindex|snapshot))")
_MAX_PARTITION = 0x7FFFFFFF


def log_name(base_offset: int) -> str:
    return f"{base_offset:020d}{LOG_SUFFIX}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:020d}{INDEX_SUFFIX}"


def timeindex_name(base_offset: int) -> str:
    return f"{base_offset:020d}{TIME_INDEX_SUFFIX}"


def txnindex_name(base_offset: int) -> str:
    return f"{base_offset:020d}{TXN_INDEX_SUFFIX}"


def snapshot_name(end_offset: int) -> str:
    """Producer state up to, not including, `end_offset`."""
    return f"{end_offset:020d}{SNAPSHOT_SUFFIX}"


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """The offset and the suffix in a segment file's or snapshot's name; None for other names."""
    match = _OFFSET_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def partition_dir(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The partition whose log lives in a folder of this name.

    None for everything else, also for folders marked for deletion (`is_delete_dir`). A topic's
    name may hold dashes and digits, so the last dash counts.
    """
    match = _PARTITION_DIR.fullmatch(name)
    if match is None or is_marked_dir(name) or int(match[2]) > _MAX_PARTITION:
        return None
    return TopicPartition(match[1], int(match[2]))


def is_delete_dir(name: str) -> bool:
    """Whether this is the folder of a deleted partition, to be removed."""
    return name.endswith(DELETE_DIR_SUFFIX) and _MARKED_DIR.fullmatch(name) is not None


def is_marked_dir(name: str) -> bool:
    """A partition's folder that is not its log: deleted, a copy being moved here, or stray."""
    return _MARKED_DIR.fullmatch(name) is not None


def delete_dir(partition: TopicPartition, unique: str) -> str:
    """The name a partition's folder gets when it is deleted: `topic-0.<32 hex digits>-delete`.

    A long topic name is cut, as Kafka does, so that the whole stays within what file systems allow;
    `unique` keeps such names apart.
    """
    return _marked_dir(partition, unique, DELETE_DIR_SUFFIX)


def stray_dir(partition: TopicPartition, unique: str) -> str:
    """The name a folder gets when no topic claims it: `topic-0.<32 hex digits>-stray`."""
    return _marked_dir(partition, unique, STRAY_DIR_SUFFIX)


def _marked_dir(partition: TopicPartition, unique: str, suffix: str) -> str:
    tail = f"-{partition.partition}.{unique}{suffix}"
    return partition.topic[: MAX_NAME - len(tail)] + tail
