"""What of a log's files may not be on the disk yet, and the flush that brings it there.

Records are unsynced from the recovery point on. Besides them there are small files that were
written, names that have changed in the folder, and the folder's own name while it is new. A flush
takes all of it. It runs off the loop while the log goes on, so it vouches only for what was there
when it began, and for nothing that a truncation has taken since: the generation of a flush is the
number of truncations before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.storage.flush import FlushJob

if TYPE_CHECKING:
    from ottla.storage.deferred import DeferredSync
    from ottla.storage.log import Log
    from ottla.storage.segments import Segments


class Unsynced:
    """That of one log, whose `recovery_point` and `last_flush_ms` follow the flushes."""

    __slots__ = (
        "_is_new", "_log", "_names_changed", "_segments", "_small_files", "_synced_truncations",
    )  # fmt: skip

    def __init__(self, log: Log, segments: Segments, small_files: DeferredSync) -> None:
        self._log = log
        self._segments = segments
        self._small_files = small_files
        self._names_changed = False
        self._is_new = False
        self._synced_truncations = 0

    def names_changed(self) -> None:
        """Files were made, renamed or removed: the next flush syncs the folder."""
        self._names_changed = True

    def folder_is_new(self) -> None:
        """The folder has just been made: the next flush syncs its name in the data folder too."""
        self._is_new = self._names_changed = True

    @property
    def has_truncation(self) -> bool:
        """Whether a power cut could bring back records that were truncated."""
        return self._synced_truncations < len(self._log.truncations)

    def begin_flush(self) -> FlushJob | None:
        """What has to be synced to make everything appended so far durable; None if nothing."""
        log, small = self._log, self._small_files.unsynced
        end = log.log_end_offset
        if end <= log.recovery_point and not small and not self._names_changed:
            return None
        files, named = self._segments.unflushed(log.recovery_point)
        named = sorted({*named, *small})
        folders: list[str] = []
        if small or self._names_changed:
            folders.append(log.folder)
        if self._is_new:
            folders.append(log.folder.rpartition("/")[0])
        small.clear()
        self._names_changed = self._is_new = False
        return FlushJob(
            end,
            tuple(files),
            tuple(named),
            tuple(folders),
            generation=len(log.truncations),
            names_first=self.has_truncation,
        )

    def finish_flush(self, job: FlushJob, now_ms: int) -> None:
        """The job has run. What a truncation took meanwhile was not synced, nor was what has been
        appended in its place."""
        log = self._log
        end = min((job.end_offset, *log.truncations[job.generation :]))
        log.recovery_point = max(log.recovery_point, end)
        self._synced_truncations = max(self._synced_truncations, job.generation)
        log.last_flush_ms = now_ms

    def undo_flush(self, job: FlushJob) -> None:
        """The job has not been run, or not all of it: the next one begins from the start."""
        folder = self._log.folder
        self._small_files.unsynced.update(job.paths)
        self._names_changed = self._names_changed or folder in job.folders
        self._is_new = self._is_new or folder.rpartition("/")[0] in job.folders
