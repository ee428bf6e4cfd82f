"""What the data folders' checkpoints say, and writing them.

A checkpoint (`checkpoints`) is a small file in a data folder with one offset for each of its logs:
how far it was flushed, where it starts, its high watermark, how far it was cleaned. Here is which
logs are in one, and with which offset; when they are written is `schedule`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.model.ids import ZERO_TOPIC_ID
from ottla.storage import paths
from ottla.storage.topic_checkpoints import id_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.model.ids import TopicPartition
    from ottla.runtime.files import FileSystem
    from ottla.runtime.workers import Workers
    from ottla.storage.directory import LogDirectories
    from ottla.storage.folder import DataFolder
    from ottla.storage.log import Log


class Checkpointing:
    """The checkpoints of these data folders."""

    __slots__ = ("_directories", "_folders", "_fs", "_stale", "_workers")

    def __init__(
        self,
        directories: LogDirectories,
        folders: Iterable[DataFolder],
        fs: FileSystem,
        workers: Workers,
    ) -> None:
        self._directories = directories
        self._folders = tuple(folders)
        self._fs = fs
        self._workers = workers
        self._stale: set[tuple[str, str]] = set()

    @property
    def stale_folders(self) -> set[str]:
        """Those with a checkpoint that is behind, because there was no descriptor for it."""
        return {path for path, _ in self._stale}

    async def write(self, name: str) -> bool:
        """Write one kind of checkpoint in every folder, off the loop; says whether they are up to
        date now: there may have been no descriptor for one."""
        missed: set[str] = set()
        for folder in [each for each in self._folders if each.failure is None]:
            checkpoint = folder.checkpoint(self._fs, name)
            async with checkpoint.lock:
                self._stale.add((folder.path, name))
                entries = self._entries(name, folder)
                try:
                    await self._workers.run_to_end(checkpoint.write, entries)
                except OSError as error:
                    missed.add(folder.path)
                    self._directories.file_failed(
                        folder.path, error, "writing checkpoints", checkpoint.path
                    )
                else:
                    self._stale.discard((folder.path, name))
        # Not by `_stale`: somebody else may be writing one once more by now.
        return not any(each.failure is None and each.path in missed for each in self._folders)

    def _entries(self, name: str, folder: DataFolder) -> list[tuple[TopicPartition, int, str]]:
        """What a checkpoint is to say now: partition, offset, and the id of its topic."""
        directories = self._directories
        entries = [
            (log.partition, offset, id_text(log.topic_id))
            for log in (
                *directories.logs_in(folder.path),
                *directories.moves.arriving_in(folder.path),
            )
            if (offset := _checkpointed(name, log)) is not None
        ]
        for partition, entry in folder.kept_entries.get(name, {}).items():
            if partition not in directories.logs:
                ids = entry.topic_ids or (id_text(ZERO_TOPIC_ID),)
                entries += [(partition, entry.offset, text) for text in ids]
        return entries


def _checkpointed(name: str, log: Log) -> int | None:
    """The offset that a checkpoint has for a log; None when the log is not in it. A truncation
    that is to come counts as made."""
    offset = _offset_for(name, log)
    if offset is None or log.truncating_to is None:
        return offset
    return min(offset, log.truncating_to)


def _offset_for(name: str, log: Log) -> int | None:
    if name == paths.RECOVERY_POINT_CHECKPOINT:
        return log.recovery_point
    if name == paths.LOG_START_CHECKPOINT:
        # As in Kafka, only where the name of the first segment does not say it.
        start = log.log_start_offset
        return start if start > log.first_base_offset else None
    if name == paths.HIGH_WATERMARK_CHECKPOINT:
        return log.high_watermark if log.high_watermark >= 0 else None
    if name == paths.CLEANER_CHECKPOINT:
        return log.compaction.cleaned_to
    raise ValueError(f"{name} is no checkpoint of the logs")
