"""Loading a data folder: every partition in it, small ones here, large scans in child processes.

Opening a log that was stopped cleanly takes a fraction of a millisecond, so thousands are opened in
one loop. A log that was not must be scanned from its recovery point; when that is more than a few
megabytes, children do it side by side while the loop goes on with the next ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.errors import KafkaError
from ottla.model.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from ottla.records.batch import InvalidBatch
from ottla.runtime.files import OsFileSystem
from ottla.runtime.workers import ChildDied
from ottla.storage import paths
from ottla.storage.faults import concerns_one_file, describe
from ottla.storage.folder import DataFolder
from ottla.storage.log import Log
from ottla.storage.move_marks import has_arrived, is_unfinished
from ottla.storage.open_log import (
    LogContext,
    Prepared,
    Remembered,
    assemble,
    prepare,
    read_topic_id,
    run,
)
from ottla.storage.recovery import LogCorrupted, Recovered
from ottla.storage.topic_checkpoints import Entry

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig
    from ottla.runtime.files import FileSystem
    from ottla.runtime.workers import Workers

logger = logging.getLogger(__name__)

_SLICE = 0.05
_REPORT_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the loading of one data folder has come."""

    folder: str
    loaded: int
    total: int
    scanned_bytes: int
    bytes_to_scan: int
    seconds: float


@dataclass(slots=True)
class Loaded:
    """What was in a data folder."""

    clean: bool
    logs: list[Log] = field(default_factory=list)
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    damaged: dict[TopicPartition, TopicId] = field(default_factory=dict)
    """Those whose files can be read, and are not what they should be, with the ids of their topics.
    They are offline; not so if a file is missing, and all others are whole."""
    deleted_folders: list[str] = field(default_factory=list)
    moving: list[TopicPartition] = field(default_factory=list)
    """Of which there are unfinished copies of logs that are in other folders; not opened."""
    arrived: set[TopicPartition] = field(default_factory=set)
    """Those that were moved here: what other folders have of them is older."""
    entries: dict[str, dict[TopicPartition, Entry]] = field(default_factory=dict)
    """What the folder's checkpoints say, by checkpoint."""


class Loader:
    """Loads data folders one after another."""

    def __init__(
        self,
        fs: FileSystem,
        context: LogContext,
        workers: Workers,
        config_for: Callable[[str], TopicConfig],
        ignore: frozenset[str],
        *,
        children: int,
        child_scan_bytes: int,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._fs = fs
        self._context = context
        self._workers = workers
        self._config_for = config_for
        self._ignore = ignore
        self._children = asyncio.Semaphore(max(1, children))
        self._progress = progress
        # A child has only the machine's disk.
        self._child_scan_bytes = child_scan_bytes if isinstance(fs, OsFileSystem) else None

        self._started = 0.0
        self._reported = 0.0
        self._done = 0
        self._total = 0
        self._scanned = 0
        self._to_scan = 0

    async def load(self, data_folder: DataFolder) -> Loaded:
        """Every log in a data folder. OSError means that the folder cannot be used."""
        folder = data_folder.path
        self._started = self._reported = self._context.clock.monotonic()
        self._done = self._scanned = self._to_scan = 0
        result = Loaded(self._take_mark(folder))
        for name in paths.CHECKPOINTS:
            result.entries[name] = data_folder.checkpoint(self._fs, name).read()
        recovery_points = result.entries[paths.RECOVERY_POINT_CHECKPOINT]
        starts = result.entries[paths.LOG_START_CHECKPOINT]
        partitions = self._partitions(folder, result)
        self._total = len(partitions)
        configs: dict[str, TopicConfig] = {}
        scans: list[asyncio.Task[None]] = []
        turn = self._context.clock.monotonic()
        try:
            for name, partition in partitions:
                config = configs.get(partition.topic)
                if config is None:
                    config = configs[partition.topic] = self._config_for(partition.topic)
                remembered = Remembered(recovery_points.get(partition), starts.get(partition))
                prepared = self._prepare(f"{folder}/{name}", partition, remembered, config, result)
                if prepared is None:
                    self._done += 1
                    continue
                size = prepared.task.bytes_to_scan
                self._to_scan += size
                if self._child_scan_bytes is not None and size > self._child_scan_bytes:
                    scan = self._scan_in_child(folder, prepared, config, result)
                    scans.append(asyncio.create_task(scan))
                else:
                    self._scan_here(folder, prepared, config, result)
                now = self._context.clock.monotonic()
                if now - turn > _SLICE:
                    turn = now
                    await asyncio.sleep(0)
            while scans:
                finished, waiting = await asyncio.wait(
                    scans, timeout=_REPORT_EVERY, return_when=asyncio.FIRST_COMPLETED
                )
                self._report(folder)
                scans = list(waiting)
                for task in finished:
                    task.result()
        finally:
            for task in scans:
                task.cancel()
            await asyncio.gather(*scans, return_exceptions=True)
        return result

    def _take_mark(self, folder: str) -> bool:
        """Whether the folder was closed cleanly. Its mark is removed, durably: should it come back
        with the power, the next start would trust what this run leaves torn."""
        path = f"{folder}/{paths.CLEAN_SHUTDOWN}"
        if not self._fs.exists(path):
            return False
        self._fs.remove(path)
        self._fs.sync_dir(folder)
        return True

    def _partitions(self, folder: str, result: Loaded) -> list[tuple[str, TopicPartition]]:
        found: list[tuple[str, TopicPartition]] = []
        for name in self._fs.listdir(folder):
            path = f"{folder}/{name}"
            if not self._fs.is_dir(path):
                continue
            if paths.is_delete_dir(name):
                result.deleted_folders.append(path)
            elif paths.is_marked_dir(name):
                logger.warning(
                    "%s is left alone: a copy that was being moved here, or a stray one. Remove it "
                    "when you are sure that you do not need it",
                    path,
                )
            else:
                partition = paths.parse_partition_dir(name)
                if partition is None or partition.topic in self._ignore:
                    continue
                if is_unfinished(self._fs, path):
                    result.moving.append(partition)
                    continue
                if has_arrived(self._fs, path):
                    result.arrived.add(partition)
                found.append((name, partition))
        if found and not result.clean:
            logger.info("%s was not closed cleanly: checking %d logs", folder, len(found))
        return found

    def _prepare(
        self,
        path: str,
        partition: TopicPartition,
        remembered: Remembered,
        config: TopicConfig,
        result: Loaded,
    ) -> Prepared | None:
        with self._refusing(path, partition, result):
            return prepare(
                self._fs,
                path,
                partition,
                config,
                clean=result.clean,
                remembered=remembered,
                now_ms=self._context.clock.now_ms(),
                producer_expiration_ms=self._context.producer_expiration_ms,
            )
        return None

    def _scan_here(
        self, folder: str, prepared: Prepared, config: TopicConfig, result: Loaded
    ) -> None:
        with self._refusing(prepared.task.folder, prepared.task.partition, result):
            self._finish(prepared, run(self._fs, prepared.task), config, result)
        self._count(folder, prepared)

    async def _scan_in_child(
        self, folder: str, prepared: Prepared, config: TopicConfig, result: Loaded
    ) -> None:
        async with self._children:
            with self._refusing(prepared.task.folder, prepared.task.partition, result):
                recovered = await self._workers.run_in_child(run, self._fs, prepared.task)
                self._finish(prepared, recovered, config, result)
        self._count(folder, prepared)

    def _finish(
        self, prepared: Prepared, recovered: Recovered, config: TopicConfig, result: Loaded
    ) -> None:
        log = assemble(self._context, prepared, recovered, config, clean=result.clean)
        result.logs.append(log)
        if log.has_gap:
            result.damaged[log.partition] = log.topic_id

    @contextlib.contextmanager
    def _refusing(self, path: str, partition: TopicPartition, result: Loaded) -> Iterator[None]:
        """Whatever is wrong with one partition's files takes that partition offline, and no other.

        Only an error of the disk goes on, and takes the data folder offline."""
        try:
            yield
        except LogCorrupted as error:
            reason = str(error)
            logger.error("%s", reason)
            result.damaged[partition] = self._topic_id(path)
        except (InvalidBatch, KafkaError) as error:
            reason = f"{path} cannot be read: {error}"
            logger.error("%s", reason)
            result.damaged[partition] = self._topic_id(path)
        except ChildDied as error:
            reason = f"{path} cannot be read: {error}"
            logger.error("%s", reason)
        except OSError as error:
            if not concerns_one_file(error):
                raise
            reason = describe(error, f"opening {partition}", path)
            logger.error("%s", reason)
        except Exception as error:
            reason = f"{path} cannot be read: {type(error).__name__}: {error}"
            logger.exception("%s", reason)
        else:
            return
        result.offline[partition] = reason

    def _topic_id(self, path: str) -> TopicId:
        try:
            return read_topic_id(self._fs, path, [])
        except OSError:
            return ZERO_TOPIC_ID

    def _count(self, folder: str, prepared: Prepared) -> None:
        self._done += 1
        self._scanned += prepared.task.bytes_to_scan
        self._report(folder)

    def _report(self, folder: str) -> None:
        now = self._context.clock.monotonic()
        if self._progress is None or now - self._reported < _REPORT_EVERY:
            return
        self._reported = now
        self._progress(
            Progress(
                folder,
                self._done,
                self._total,
                self._scanned,
                self._to_scan,
                now - self._started,
            )
        )
