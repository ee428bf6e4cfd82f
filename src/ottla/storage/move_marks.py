"""The files by which a start knows how far a move between two data folders was.

A copy of `source/t-0` is made in `target/t-0`, under the name that it will have. A small file in it
says what it is, and one rename of that file makes it the partition's log:

    target/t-0/ottla.moving   an unfinished copy: the log is in the source's folder
    target/t-0/ottla.moved    the log: what is in the source's folder is older, and goes
    neither                   the log: there is no other

The folder gets its name with the mark in it, on the disk too: `make_marked` makes it under a name
that the next start removes. The mark goes when the old folder has gone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.storage import paths

if TYPE_CHECKING:
    from ottla.model.ids import TopicPartition
    from ottla.runtime.files import FileSystem
    from ottla.runtime.workers import Workers
    from ottla.storage.directory import LogDirectories
    from ottla.storage.folder import DataFolder
    from ottla.storage.loader import Loaded
    from ottla.storage.log import Log

logger = logging.getLogger(__name__)


def make_marked(
    fs: FileSystem, target: str, partition: TopicPartition, source: str, unique: str
) -> str:
    """Make the folder of a copy, with its mark; returns its path, which is to be renamed. Blocks;
    raises OSError.

    `source` is the data folder that the log is in."""
    temporary = f"{target}/{paths.delete_dir(partition, unique)}"
    fs.makedirs(temporary)
    mark = json.dumps({"version": 1, "from": source})
    fs.write_atomic(f"{temporary}/{paths.MOVING}", mark.encode())
    return temporary


def mark_moved(fs: FileSystem, folder: str) -> None:
    """The copy is the log from now on. Not synced here."""
    fs.rename(f"{folder}/{paths.MOVING}", f"{folder}/{paths.MOVED}")


def remove_mark(fs: FileSystem, folder: str) -> None:
    """Nothing is left where the log was. Not synced: the mark may come back, and does no harm until
    the log is moved again."""
    try:
        fs.remove(f"{folder}/{paths.MOVED}")
    except FileNotFoundError:
        pass


def is_unfinished(fs: FileSystem, folder: str) -> bool:
    return fs.exists(f"{folder}/{paths.MOVING}")


def has_arrived(fs: FileSystem, folder: str) -> bool:
    return fs.exists(f"{folder}/{paths.MOVED}")


def source_of(fs: FileSystem, folder: str) -> str | None:
    """The data folder that the log of an arrived copy was in; None if the mark does not say."""
    try:
        found = json.loads(fs.read_bytes(f"{folder}/{paths.MOVED}"))["from"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


class Arrivals:
    """The logs that a start has found moved, and what it has to do about where they were."""

    def __init__(self, loaded: Iterable[tuple[DataFolder, Loaded]]) -> None:
        listed = list(loaded)
        self._folders = {each: folder for folder, result in listed for each in result.arrived}
        self._unusable = {
            each for _, result in listed for each in result.offline if each in result.arrived
        }
        self._damaged: list[str] = []

    def ignore_damage(self, folder: DataFolder, result: Loaded) -> None:
        """What is wrong with a log that was moved away is nobody's concern."""
        for partition in list(result.offline):
            if self._folders.get(partition, folder) is not folder:
                del result.offline[partition]
                result.damaged.pop(partition, None)
                if partition not in self._unusable:  # else it may be all that can be rescued
                    self._damaged.append(f"{folder.path}/{paths.partition_dir(partition)}")

    def leave(
        self, directories: LogDirectories, fs: FileSystem, folder: DataFolder, log: Log
    ) -> bool:
        """Whether a log is one that was moved away: then it goes, or is left alone if the one that
        has its place cannot be used."""
        if self._folders.get(log.partition, folder) is folder:
            return False
        if log.partition in self._unusable:
            logger.warning("%s is not used: it is older than what was moved away", log.folder)
            log.deleted(log.folder)
            return True
        path = log.folder
        log.deleted(path)
        throw_away(directories, fs, path)
        return True

    async def settle(self, directories: LogDirectories, fs: FileSystem, workers: Workers) -> None:
        """Remove the marks of logs that have nothing left of them where they were."""
        if not self._folders:
            return
        for path in self._damaged:
            throw_away(directories, fs, path)
        settled: list[tuple[str, str]] = []
        for partition, folder in self._folders.items():
            path = f"{folder.path}/{paths.partition_dir(partition)}"
            try:
                source = source_of(fs, path)
            except OSError as error:
                directories.file_failed(folder.path, error, "reading a mark", path)
                continue
            if source not in directories.offline_folders and partition not in self._unusable:
                settled.append((folder.path, path))
        for name in directories.folders:
            try:
                await workers.run_in_thread(fs.sync_dir, name)
            except OSError as error:
                directories.file_failed(name, error, "removing what was moved", name)
                return
        for name, path in settled:
            try:
                remove_mark(fs, path)
            except OSError as error:
                directories.file_failed(name, error, "removing a mark", path)


def throw_away(
    directories: LogDirectories, fs: FileSystem, path: str, *, delay_ms: int = 0
) -> None:
    """Rename a partition's folder to a name that nothing takes for a log, and have it removed."""
    folder, _, name = path.rpartition("/")
    partition = paths.parse_partition_dir(name)
    assert partition is not None
    gone = f"{folder}/{paths.delete_dir(partition, directories.unique())}"
    try:
        fs.rename(path, gone)
    except FileNotFoundError:
        return
    except OSError as error:
        directories.file_failed(folder, error, f"removing {path}", path)
        return
    directories.discard([gone], delay_ms)
