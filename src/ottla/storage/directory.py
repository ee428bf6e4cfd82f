"""All logs under the data folders: who owns a folder, what is in it, and what became of it.

Start, in order: take each folder's lock (a second broker on it is refused by name), read its
`meta.properties`, remove the clean-shutdown mark and make that durable, load every partition. From
then on the folder counts as unclean until `close` has flushed everything, written the checkpoints
and, last of all, the mark.

A folder fails as a whole, as in Kafka: the first OSError in any of its files takes it offline with
one line in the log, its partitions answer KAFKA_STORAGE_ERROR, the other folders go on. A partition
whose log is damaged (`recovery.LogCorrupted`) is offline alone.

Logs can be moved from one folder to another (`moving`). Which folder a new one is made in can be
said beforehand (`prefer`), else it is the one with the fewest partitions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_TOPIC_ID, TopicId, TopicPartition, topic_id_text
from ottla.runtime.tasks import Tasks
from ottla.storage import paths
from ottla.storage.checkpointing import Checkpointing
from ottla.storage.cleaner import Cleaner, CleanerSettings
from ottla.storage.faults import describe, is_shortage, not_made, short_of_descriptors
from ottla.storage.flush import GroupCommit
from ottla.storage.folder import DataFolder, StorageUnavailable
from ottla.storage.loader import Loaded, Loader, Progress
from ottla.storage.log import Log
from ottla.storage.losses import Losses
from ottla.storage.move_marks import Arrivals, is_unfinished, throw_away
from ottla.storage.moving import Moves
from ottla.storage.open_log import LogContext, open_log
from ottla.storage.recovery import mark_lost
from ottla.storage.schedule import Schedule
from ottla.storage.segment import OpenFiles
from ottla.storage.truncation import Cut, truncate

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig
    from ottla.runtime.clock import Clock
    from ottla.runtime.files import FileSystem
    from ottla.runtime.workers import Workers
    from ottla.storage.checkpoints import MetaProperties
    from ottla.storage.retention import Positions

__all__ = [
    "LogDirectories",
    "OfflineListener",
    "StorageSettings",
    "StorageStatistics",
    "StorageUnavailable",
]

logger = logging.getLogger(__name__)

_MOST_PREFERENCES = 10_000


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The broker's settings that concern all logs, with Kafka's defaults."""

    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    retention_check_interval_ms: int = 300_000
    recovery_point_checkpoint_interval_ms: int = 60_000
    log_start_checkpoint_interval_ms: int = 60_000
    high_watermark_checkpoint_interval_ms: int = 5_000
    initial_task_delay_ms: int = 30_000
    recovery_children: int = 2
    """`num.recovery.threads.per.data.dir`: logs of one folder scanned at the same time."""
    child_scan_bytes: int = 8 * 1024 * 1024
    """A scan of more than this is done in a child process."""
    max_open_files: int = 2_048
    """Descriptors held for segment files; more are closed and opened again when needed."""
    cleaner: CleanerSettings = field(default_factory=CleanerSettings)


@dataclass(frozen=True, slots=True)
class StorageStatistics:
    """The logs, counted."""

    partitions: int
    open_files: int
    offline_partitions: int
    offline_folders: int
    flushes: int


OfflineListener = Callable[[str, tuple[TopicPartition, ...]], None]
"""Called when a folder has gone offline: its path, and the partitions that were in it."""


class LogDirectories:
    """The data folders of one broker and the logs in them. Used on the event loop's thread."""

    def __init__(
        self,
        fs: FileSystem,
        folders: Sequence[str],
        *,
        clock: Clock,
        workers: Workers,
        settings: StorageSettings | None = None,
        rng: random.Random | None = None,
        on_offline: OfflineListener | None = None,
        tasks: Tasks | None = None,
    ) -> None:
        self.settings = settings or StorageSettings()
        self.logs: dict[TopicPartition, Log] = {}
        """Every log that can be used."""
        self.offline_partitions: dict[TopicPartition, str] = {}
        """Partitions that are here but cannot be used, and why."""
        self.damaged: dict[TopicPartition, TopicId] = {}
        """Partitions whose log is on a usable disk and was found damaged, which takes it offline,
        or to lack a file, which does not; with the ids of the topics that they are of."""
        self.checkpointed: dict[str, dict[TopicPartition, int]] = {}
        """What the folders' checkpoints had at start for the partitions here, by checkpoint:
        those that are not used up in opening the logs."""
        tasks = tasks or Tasks()
        self.group_commit = GroupCommit(fs, workers, clock, tasks)
        self.positions: Positions | None = None
        """Where groups have got to; without it a topic that waits for one takes it to be behind."""

        self._fs = fs
        self._clock = clock
        self._workers = workers
        self._rng = rng or random.Random()
        self._on_offline = on_offline
        self._folders = {path: DataFolder(path) for path in _normal(folders)}
        self._checkpointing = Checkpointing(self, self._folders.values(), fs, workers)
        self._losses = Losses(self, fs)
        self._files = OpenFiles(fs, self.settings.max_open_files)
        self.context = LogContext(
            self._files, self, clock, self._rng, self.settings.producer_id_expiration_ms
        )
        self._preferred: dict[TopicPartition, str] = {}  # folders of logs that are to be made
        self._schedule = Schedule(self, fs, clock, workers, tasks)
        self._files.on_doubt = self._schedule.rebuild_indexes
        self.cleaner = Cleaner(self, fs, clock, self.settings.cleaner, tasks)
        self.moves = Moves(self, fs, clock, workers, tasks)

    # --- starting and stopping ----------------------------------------------------------------

    def open_folders(self) -> None:
        """Lock the folders and read whose they are. Raises StorageUnavailable."""
        for folder in self._folders.values():
            try:
                folder.open(self._fs)
            except StorageUnavailable:
                self._release_locks()
                raise
            except OSError as error:
                if is_shortage(error):
                    self._release_locks()
                    raise StorageUnavailable(describe(error, "opening", folder.path)) from None
                self._folder_failed(folder, not_made(self._fs, folder.path, error))
        self.require_folder()

    @property
    def meta(self) -> dict[str, MetaProperties | None]:
        """`meta.properties` of every usable folder; None where there is none yet."""
        return {folder.path: folder.meta for folder in self._online()}

    def identify(self, node_id: int, cluster_id: str) -> None:
        """Claim the folders for a node of a cluster. Raises StorageUnavailable when one belongs to
        another."""
        for folder in list(self._online()):
            try:
                folder.claim(self._fs, node_id, cluster_id, self._rng)
            except OSError as error:
                reason = describe(error, "writing meta.properties", folder.path)
                if is_shortage(error):
                    raise StorageUnavailable(reason) from None
                self._folder_failed(folder, reason)
        self.require_folder()

    async def load(  # noqa: C901, PLR0912 - the steps of a start, in their order
        self,
        config_for: Callable[[str], TopicConfig],
        *,
        progress: Callable[[Progress], None] | None = None,
        topic_ids: Mapping[str, TopicId] | None = None,
        ignore: Iterable[str] = ("__cluster_metadata",),
    ) -> None:
        """Open every log. `progress` is called each second once it has taken longer than one.

        `config_for` gives the settings of a topic by its name; topics in `ignore` are left alone.
        Of two logs with the same name, the one that is not of the topic with this id goes aside.
        """
        folders = list(self._online())
        loads = [
            Loader(
                self._fs,
                self.context,
                self._workers,
                config_for,
                frozenset(ignore),
                children=self.settings.recovery_children,
                child_scan_bytes=self.settings.child_scan_bytes,
                progress=progress,
            ).load(folder)
            for folder in folders
        ]
        results = await asyncio.gather(*loads, return_exceptions=True)
        loaded: list[tuple[DataFolder, Loaded]] = []
        for folder, result in zip(folders, results, strict=True):
            if isinstance(result, OSError):
                if is_shortage(result):
                    raise StorageUnavailable(describe(result, "loading", folder.path))
                self._folder_failed(folder, describe(result, "loading", folder.path))
                continue
            if isinstance(result, BaseException):
                raise result
            loaded.append((folder, result))
            folder.clean = result.clean
        arrivals = Arrivals(loaded)
        for folder, result in loaded:
            arrivals.ignore_damage(folder, result)
            for partition, reason in result.offline.items():
                self.offline_partitions[partition] = reason
                folder.partitions.add(partition)
            self.damaged.update(result.damaged)
            for log in result.logs:
                if not arrivals.leave(self, self._fs, folder, log):
                    self._adopt(folder, log, (topic_ids or {}).get(log.partition.topic))
            for leftover in result.deleted_folders:
                self._schedule.remove_later([leftover], 0)
        await arrivals.settle(self, self._fs, self._workers)
        here = {partition for folder in self._folders.values() for partition in folder.partitions}
        self._losses.note_missing([result for _, result in loaded], topic_ids or {}, here)
        for folder, result in loaded:
            result.logs = [log for log in result.logs if log.failure is None]
            await self._take_entries(folder, result)
        for partition, offset in self.checkpointed.get(paths.CLEANER_CHECKPOINT, {}).items():
            found = self.logs.get(partition)
            # Beyond the log's end it says nothing about what will be written there.
            if found is not None and offset <= found.log_end_offset:
                found.compaction.cleaned_to = offset
        self._losses.compare_high_watermarks()
        for name in (paths.RECOVERY_POINT_CHECKPOINT, paths.CLEANER_CHECKPOINT):
            if any(self._reaches_too_far(name, result) for _, result in loaded):
                await self.write_checkpoint(name)
        for folder, result in loaded:
            for partition in result.moving if folder.failure is None else ():
                self.moves.found(partition, folder.path, clean=self.were_clean)
        self.require_folder()

    def _reaches_too_far(self, name: str, loaded: Loaded) -> bool:
        """Whether a checkpoint has an offset behind the end of its log, which was cut. It must not
        be believed later, when the log has grown beyond it."""
        entries = loaded.entries[name]
        return any(
            entry.offset > log.log_end_offset
            for log in loaded.logs
            if (entry := entries.get(log.partition)) is not None
        )

    async def _take_entries(self, folder: DataFolder, loaded: Loaded) -> None:
        """Sort what a folder's checkpoints say: about its logs, and about what is here but cannot
        be used."""
        owners = dict.fromkeys(folder.partitions, ZERO_TOPIC_ID)
        owners.update((log.partition, log.topic_id) for log in loaded.logs)
        unusable = folder.partitions - self.logs.keys()
        for name, entries in loaded.entries.items():
            folder.kept_entries[name] = {
                partition: entry for partition, entry in entries.items() if partition in unusable
            }
            if name not in (paths.RECOVERY_POINT_CHECKPOINT, paths.LOG_START_CHECKPOINT):
                self.checkpointed.setdefault(name, {}).update(
                    (partition, entry.offset)
                    for partition, entry in entries.items()
                    if partition in owners and entry.is_of(owners[partition])
                )
            checkpoint = folder.checkpoint(self._fs, name)
            try:
                await self._workers.run_to_end(checkpoint.claim, entries, owners)
            except OSError as error:
                self._folder_failed(folder, describe(error, "writing checkpoints", checkpoint.path))
                return

    def _adopt(self, folder: DataFolder, log: Log, topic_id: TopicId | None) -> None:
        other = self.logs.get(log.partition)
        if other is not None and topic_id is not None and log.topic_id != other.topic_id:
            # A topic was deleted and made again while one of the folders was offline.
            if other.topic_id == topic_id:
                self._set_stray_aside(folder, log)
                return
            if log.topic_id == topic_id:
                self._set_stray_aside(self._folder_of(other), other)
                if self.logs.pop(log.partition, None) is not None:
                    other = None
        folder.partitions.add(log.partition)
        if other is None and log.partition not in self.offline_partitions:
            self.logs[log.partition] = log
            return
        self.damaged.pop(log.partition, None)  # which of the two is right nobody here can know
        reason = (
            f"{log.partition} is in more than one data folder, {folder.path} is one of them: "
            f"remove the copy you do not want, then restart the broker"
        )
        logger.error("%s", reason)
        self.offline_partitions[log.partition] = reason
        self.logs.pop(log.partition, None)

    def _set_stray_aside(self, folder: DataFolder, log: Log) -> None:
        target = f"{folder.path}/{paths.stray_dir(log.partition, self.unique())}"
        try:
            self._fs.rename(log.folder, target)
        except OSError as error:
            self._file_failed(folder, error, f"setting {log.partition} aside", log.folder)
            return
        logger.warning("%s is of an earlier topic of this name; kept in %s", log.folder, target)
        folder.forget(log.partition)
        log.deleted(target)

    def start_schedule(self) -> None:
        """Begin the background work: retention, flush.ms, expiry, checkpoints, compaction."""
        self._schedule.start()
        self.cleaner.start()
        self.moves.start()

    async def close(self, broker_epoch: int = -1, *, clean: bool = True) -> None:
        """Stop cleanly: flush every log, write the checkpoints, and the mark that says so.

        A folder with a failed or damaged log gets no mark, and is recovered at the next start; nor
        does any unless `clean`.
        """
        unsafe = await self.moves.stop()
        await self.cleaner.stop()
        await self._schedule.stop()
        unclean: set[TopicPartition] = set()
        for log in list(self.logs.values()):  # one that fails takes others out with its folder
            if not log.close():
                unclean.add(log.partition)
            if log.is_pristine:
                continue  # a power cut may take an empty folder: the next start makes it again
            if log.unflushed_messages > 0:
                self.group_commit.wait_flushed(log, log.log_end_offset)
            else:
                self.group_commit.request(log)
        await self.group_commit.wait_idle()
        unclean |= {log.partition for log in self.logs.values() if log.unflushed_messages > 0}
        await self.write_checkpoints()
        mark = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        for folder in list(self._online()) if clean else ():
            if folder.partitions & self.offline_partitions.keys():
                continue  # a damaged log was refused by the scan; the next start must scan again
            stale = self._checkpointing.stale_folders
            if folder.partitions & unclean or folder.path in stale | unsafe:
                continue  # something was not written, as for want of a descriptor
            path = f"{folder.path}/{paths.CLEAN_SHUTDOWN}"
            try:
                await self._workers.run_in_thread(self._fs.write_atomic, path, mark.encode())
            except OSError as error:
                self._file_failed(folder, error, "closing", folder.path)
        for log in self.logs.values():
            log.close_files()
        self._release_locks()

    def release(self) -> None:
        """Let go of the folders without claiming that they were closed cleanly."""
        self._release_locks()

    def _release_locks(self) -> None:
        for folder in self._folders.values():
            folder.release()

    @property
    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks that the folders' checkpoints had at start."""
        return self.checkpointed.get(paths.HIGH_WATERMARK_CHECKPOINT, {})

    @property
    def lost_partitions(self) -> frozenset[TopicPartition]:
        """Partitions whose logs lack records which they may have had before this start."""
        return self._losses.partitions

    def losses_are_known(self) -> None:
        """The controller knows of them: the next start need not tell it once more."""
        self._losses.are_known()

    # --- partitions ---------------------------------------------------------------------------

    def find(self, partition: TopicPartition) -> Log | None:
        """The partition's log, or None when it is not here. Raises KAFKA_STORAGE_ERROR when it is
        here but offline."""
        log = self.logs.get(partition)
        if log is None:
            reason = self.offline_partitions.get(partition)
            if reason is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        return log

    def create(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        is_new: bool = False,
    ) -> Log:
        """The partition's log, made if it does not exist, in the folder that was preferred for it
        or else in that with the fewest partitions.

        Unless the partition `is_new`, nothing is made while a folder is offline: the log may be in
        there. Raises KafkaError.
        """
        log = self.find(partition)
        if log is not None:
            if log.topic_id == ZERO_TOPIC_ID:
                log.set_topic_id(topic_id)
            elif log.topic_id != topic_id:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_TOPIC_ID,
                    f"{log.folder} belongs to topic id {topic_id_text(log.topic_id)}, not "
                    f"{topic_id_text(topic_id)}",
                )
            return log
        online = list(self._online())
        if not online or (not is_new and len(online) < len(self._folders)):
            offline = sorted(path for path, folder in self._folders.items() if folder.failure)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {partition} because log directories "
                f"{', '.join(offline)} are offline",
            )
        folder = min(online, key=lambda each: len(each.partitions))
        preferred = self._folders.get(self._preferred.pop(partition, ""))
        if preferred in online:
            folder = preferred
        path = f"{folder.path}/{paths.partition_dir(partition)}"
        if len(self._folders) > 1 and is_unfinished(self._fs, path):
            throw_away(self, self._fs, path)  # of a topic of that name that was deleted just now
        try:
            log = open_log(self.context, path, partition, config, clean=True)
            if partition in self._losses.missing:
                log.lost_records = True
                mark_lost(self._fs, path)
        except OSError as error:
            if is_shortage(error):
                raise short_of_descriptors(error, f"creating {partition}", path) from None
            reason = describe(error, f"creating {partition}", path)
            self._folder_failed(folder, reason)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from None
        log.set_topic_id(topic_id)
        log.mark_new()
        folder.partitions.add(partition)
        self.logs[partition] = log
        # Not flushed: a power cut may take an empty folder, and the next start makes it again.
        return log

    def prefer(self, partition: TopicPartition, folder: str) -> None:
        """Have the partition's log made in this data folder, if there is none yet. The newest ten
        thousand such wishes are remembered, until the broker stops."""
        if partition not in self.logs:
            self._preferred.pop(partition, None)
            self._preferred[partition] = folder
            if len(self._preferred) > _MOST_PREFERENCES:
                del self._preferred[next(iter(self._preferred))]

    def replace(self, log: Log, successor: Log) -> None:
        """A copy in another data folder takes a log's place."""
        self._folder_of(log).forget(log.partition)
        self._folder_of(successor).partitions.add(log.partition)
        self.logs[log.partition] = successor

    def delete(self, partition: TopicPartition) -> None:
        """Delete a partition's log: renamed at once, removed after `file.delete.delay.ms`."""
        self.moves.abandon(partition)
        log = self.logs.pop(partition, None)
        self.damaged.pop(partition, None)
        if log is None:
            self.find(partition)
            return
        folder = self._folder_of(log)
        folder.forget(partition)
        target = f"{folder.path}/{paths.delete_dir(partition, self.unique())}"
        delay_ms = log.config.file_delete_delay_ms
        try:
            self._fs.rename(log.folder, target)
        except OSError as error:
            raise log.storage_failed(error, f"deleting {partition}") from None
        log.deleted(target)
        self._schedule.checkpoint_soon()
        self._schedule.remove_later([target], delay_ms)

    def set_aside(self, partition: TopicPartition) -> str | None:
        """Rename a log that no topic claims out of the way (`-stray`, as Kafka does), usable or
        damaged. Its data stays on the disk; returns where, or None while its folder is offline."""
        self.moves.abandon(partition)
        folder = next((each for each in self._online() if partition in each.partitions), None)
        if folder is None:
            return None
        path = f"{folder.path}/{paths.partition_dir(partition)}"
        target = f"{folder.path}/{paths.stray_dir(partition, self.unique())}"
        try:
            self._fs.rename(path, target)
        except OSError as error:
            self._folder_failed(folder, describe(error, f"setting {partition} aside", path))
            return None
        folder.forget(partition)
        self._schedule.checkpoint_soon()
        self.offline_partitions.pop(partition, None)
        self.damaged.pop(partition, None)
        log = self.logs.pop(partition, None)
        if log is not None:
            log.deleted(target)
        return target

    def forget(self, partition: TopicPartition) -> None:
        """The partition is not one of ours any more, and its disk cannot be used now: if that is
        there again at a later start, the log belongs to no topic."""
        self.moves.abandon(partition)
        self.offline_partitions.pop(partition, None)
        self.damaged.pop(partition, None)
        for folder in self._folders.values():
            folder.forget(partition)

    async def truncate(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Drop every record at or above an offset, in each of these logs, and make that durable
        (`truncation`). Nothing may be appended to them meanwhile. Raises KafkaError."""
        await self.cut([Cut(*item) for item in offsets.items()])

    async def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        """Drop every record of a log, which goes on at `offset`; otherwise like `truncate`."""
        await self.cut([Cut(partition, offset, fully=True)])

    async def cut(self, cuts: Sequence[Cut]) -> None:
        """Cut several logs, one way or the other, together."""
        await truncate(cuts, self)

    def logs_in(self, folder: str) -> list[Log]:
        """The usable logs of one data folder."""
        found = self._folders[folder].partitions
        return [log for partition, log in self.logs.items() if partition in found]

    @property
    def folders(self) -> tuple[str, ...]:
        """The data folders that are online."""
        return tuple(folder.path for folder in self._online())

    @property
    def offline_folders(self) -> dict[str, str]:
        """The data folders that are offline, and why."""
        return {
            path: folder.failure
            for path, folder in self._folders.items()
            if folder.failure is not None
        }

    @property
    def directory_ids(self) -> tuple[str, ...]:
        """The ids of the usable folders."""
        found = (meta.directory_id for meta in self.meta.values() if meta is not None)
        return tuple(sorted(each for each in found if each is not None))

    @property
    def were_clean(self) -> bool:
        """Whether every folder was closed cleanly by the broker that used it last."""
        return all(folder.clean for folder in self._folders.values())

    def may_be_cut(self, partition: TopicPartition) -> bool:
        """Whether the log may have lost its end since it was last served: its folder was not closed
        cleanly, or it is in none (a power cut may take the name of a young folder with all that is
        in it, and a data folder may be missing), so that it begins anew."""
        for folder in self._folders.values():
            if partition in folder.partitions:
                return not folder.clean
        return True

    def statistics(self) -> StorageStatistics:
        return StorageStatistics(
            partitions=len(self.logs),
            open_files=len(self._files),
            offline_partitions=len(self.offline_partitions),
            offline_folders=len(self.offline_folders),
            flushes=self.group_commit.flushes,
        )

    # --- background work, also for whoever wants it now ---------------------------------------

    async def apply_retention(self) -> int:
        """One retention pass over all logs; how many rules deleted something."""
        return await self._schedule.apply_retention()

    async def write_checkpoints(self) -> bool:
        """Write every checkpoint of every folder; says whether all are up to date."""
        return all([await self.write_checkpoint(name) for name in paths.CHECKPOINTS])

    async def write_checkpoint(self, name: str) -> bool:
        """Write one kind of checkpoint in every folder, off the loop; says whether they are up to
        date now: there may have been no descriptor for one."""
        return await self._checkpointing.write(name)

    # --- LogHost ------------------------------------------------------------------------------

    def folder_failed(self, log: Log, error: OSError, doing: str) -> None:
        self._folder_failed(self._folder_of(log), describe(error, doing, log.folder))

    def flush_wanted(self, log: Log) -> None:
        self.group_commit.request(log)

    def discard(self, files: Sequence[str], delay_ms: int) -> None:
        self._schedule.remove_later(files, delay_ms)

    def retention_changed(self, log: Log) -> None:
        self._schedule.retain_soon(log)

    # --- for `moving` -------------------------------------------------------------------------

    def checkpoint_soon(self) -> None:
        self._schedule.checkpoint_soon()

    def file_failed(self, folder: str, error: OSError, doing: str, path: str) -> None:
        """A file operation failed in a data folder, which goes offline, unless it was for want of a
        descriptor."""
        self._file_failed(self._folders[folder], error, doing, path)

    def unique(self) -> str:
        """32 hex digits that no other folder's name has."""
        return f"{self._rng.getrandbits(128):032x}"

    # --- inside -------------------------------------------------------------------------------

    def _online(self) -> Iterable[DataFolder]:
        return (folder for folder in self._folders.values() if folder.failure is None)

    def _folder_of(self, log: Log) -> DataFolder:
        return self._folders[log.folder.rpartition("/")[0]]

    def _file_failed(self, folder: DataFolder, error: OSError, doing: str, path: str) -> None:
        if is_shortage(error):
            short_of_descriptors(error, doing, path)
        else:
            self._folder_failed(folder, describe(error, doing, path))

    def _folder_failed(self, folder: DataFolder, reason: str) -> None:
        if folder.failure is not None:
            return
        folder.failure = reason
        lost = tuple(sorted(folder.partitions & self.logs.keys()))
        logger.error(
            "data folder %s is offline with %d partitions: %s", folder.path, len(lost), reason
        )
        for partition in lost:
            log = self.logs.pop(partition)
            log.take_offline(reason)
            log.close_files()
            self.offline_partitions[partition] = reason
        for partition in folder.partitions & self.damaged.keys():
            del self.damaged[partition]
        self.moves.folder_failed(folder.path, lost)
        if self._on_offline is not None:
            self._on_offline(folder.path, lost)

    def require_folder(self) -> None:
        """Raises StorageUnavailable when no data folder can be used."""
        if not any(folder.failure is None for folder in self._folders.values()):
            self._release_locks()
            reasons = "; ".join(folder.failure or "" for folder in self._folders.values())
            raise StorageUnavailable(f"no data folder can be used: {reasons}")


def _normal(folders: Sequence[str]) -> list[str]:
    """Without trailing slashes and repetitions: log paths are made by joining with one."""
    unique = dict.fromkeys(path.rstrip("/") or "/" for path in folders)
    if not unique:
        raise ValueError("a broker needs at least one data folder")
    return list(unique)
