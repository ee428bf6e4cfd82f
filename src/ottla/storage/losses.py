"""Which partitions lack records that they may have had before this start.

Three signs of that: a log that had records is missing, as the checkpoints of its data folder tell;
a log ends below its high watermark; or opening it found a loss (`recovery`). Where there is a log,
the loss is marked in its folder, so that a broker which is killed tells of it once more. The
controller has to know before the broker is admitted (`broker/loaded_logs.py`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.storage import paths
from ottla.storage.recovery import mark_lost
from ottla.storage.topic_checkpoints import id_text

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from ottla.model.ids import TopicId, TopicPartition
    from ottla.runtime.files import FileSystem
    from ottla.storage.directory import LogDirectories
    from ottla.storage.loader import Loaded
    from ottla.storage.log import Log

logger = logging.getLogger(__name__)


class Losses:
    """Those of all logs of a broker."""

    __slots__ = ("_directories", "_fs", "missing")

    def __init__(self, directories: LogDirectories, fs: FileSystem) -> None:
        self._directories = directories
        self._fs = fs
        self.missing: set[TopicPartition] = set()
        """Partitions of ours whose folder is gone, though it was there at the last stop."""

    def note_missing(
        self,
        loaded: Iterable[Loaded],
        topic_ids: Mapping[str, TopicId],
        here: Container[TopicPartition],
    ) -> None:
        """Find partitions of which the checkpoints know records, and whose folder is gone."""
        for result in loaded:
            for name in (paths.RECOVERY_POINT_CHECKPOINT, paths.HIGH_WATERMARK_CHECKPOINT):
                for partition, entry in result.entries[name].items():
                    topic_id = topic_ids.get(partition.topic)
                    if partition in here or topic_id is None or not entry.offset:
                        continue
                    if id_text(topic_id) in entry.topic_ids:
                        self.missing.add(partition)
        for partition in sorted(self.missing):
            logger.warning(
                "the log of %s is missing, though it had records; it begins anew", partition
            )

    def compare_high_watermarks(self) -> None:
        """What was below the high watermark was there once."""
        for partition, mark in self._directories.high_watermarks.items():
            log = self._directories.logs.get(partition)
            if log is None or log.log_end_offset >= mark or log.lost_records:
                continue
            logger.warning(
                "%s ends at %d, below its high watermark %d: records are gone that it once had",
                log.folder,
                log.log_end_offset,
                mark,
            )
            log.lost_records = True
            try:
                mark_lost(self._fs, log.folder)
            except OSError as error:
                self._failed(log, error, "marking a loss")

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Partitions whose logs lack records which they may have had before this start."""
        logs = self._directories.logs
        cut = (partition for partition, log in logs.items() if log.lost_records)
        return frozenset((*cut, *self._directories.damaged, *self.missing))

    def are_known(self) -> None:
        """The controller knows of them: the next start need not tell it once more."""
        self.missing.clear()
        for log in [log for log in self._directories.logs.values() if log.lost_records]:
            log.lost_records = False
            if log.has_gap:
                continue
            try:
                self._fs.remove(f"{log.folder}/{paths.LOST_RECORDS}")
            except FileNotFoundError:
                pass
            except OSError as error:
                self._failed(log, error, "removing a mark")

    def _failed(self, log: Log, error: OSError, doing: str) -> None:
        folder = log.folder.rpartition("/")[0]
        self._directories.file_failed(folder, error, doing, log.folder)
