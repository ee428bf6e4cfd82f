"""One data folder: its lock, whose it is, and whether it can be used.

`meta.properties` names the node and the cluster a folder belongs to, as in Kafka, so that a wrong
path in a configuration does not mix two brokers' logs. The lock keeps a second process out.
"""

from __future__ import annotations

import base64
import contextlib
import posixpath
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.model.ids import TopicPartition
from ottla.storage import paths
from ottla.storage.checkpoints import (
    CheckpointError,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from ottla.storage.topic_checkpoints import Entry, TopicCheckpoint

if TYPE_CHECKING:
    from ottla.runtime.files import FileSystem, Lock


class StorageUnavailable(Exception):
    """No data folder can be used, or one belongs to somebody else: the broker cannot start."""


@dataclass(slots=True)
class DataFolder:
    """A folder of `log.dirs`. `failure` says why it is offline, if it is; `clean`, once its logs
    are loaded, whether the last broker to use it stopped cleanly."""

    path: str
    lock: Lock | None = None
    meta: MetaProperties | None = None
    failure: str | None = None
    clean: bool = True
    partitions: set[TopicPartition] = field(default_factory=set)
    kept_entries: dict[str, dict[TopicPartition, Entry]] = field(default_factory=dict)
    """What the checkpoints say about partitions here that cannot be used, by checkpoint. It is
    written again with the others', for the day the partition is repaired: without its recovery
    point the next start would take damage in flushed records for a torn write, and cut it off."""
    checkpoints: dict[str, TopicCheckpoint] = field(default_factory=dict)

    def open(self, fs: FileSystem) -> None:
        """Make the folder if need be, lock it, and read whose it is. Raises StorageUnavailable
        when somebody else has it, and OSError."""
        _make_to_stay(fs, self.path)
        try:
            self.lock = fs.lock(f"{self.path}/{paths.LOCK}")
            self.meta = read_meta_properties(fs, self.path)
        except BlockingIOError:
            raise StorageUnavailable(
                f"the data folder {self.path} is in use by another process; stop that broker, or "
                f"give this one a folder of its own with --data-dir (log.dirs in the file)"
            ) from None
        except CheckpointError as error:
            raise StorageUnavailable(str(error)) from None

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def claim(self, fs: FileSystem, node_id: int, cluster_id: str, rng: random.Random) -> None:
        """Write down that the folder is this node's. Raises StorageUnavailable when it is
        another's, and OSError."""
        meta = self.meta
        directory_id = None
        if meta is not None:
            for name, theirs, ours in (
                ("node", meta.node_id, node_id),
                ("cluster", meta.cluster_id, cluster_id),
            ):
                if theirs is not None and theirs != ours:
                    raise StorageUnavailable(
                        f"the data folder {self.path} belongs to {name} {theirs}, and this is "
                        f"{name} {ours}: use the right folder, or remove its "
                        f"{paths.META_PROPERTIES} if you mean to take it over"
                    )
            directory_id = meta.directory_id
            if directory_id and meta.cluster_id and meta.node_id is not None:
                return
        self.meta = MetaProperties(node_id, cluster_id, directory_id or _new_id(rng))
        write_meta_properties(fs, self.path, self.meta)

    def checkpoint(self, fs: FileSystem, name: str) -> TopicCheckpoint:
        found = self.checkpoints.get(name)
        if found is None:
            found = self.checkpoints[name] = TopicCheckpoint(fs, f"{self.path}/{name}")
        return found

    def forget(self, partition: TopicPartition) -> None:
        """The partition is not here any more."""
        self.partitions.discard(partition)
        for entries in self.kept_entries.values():
            entries.pop(partition, None)


def _new_id(rng: random.Random) -> str:
    """A random UUID as Kafka writes it."""
    raw = bytearray(rng.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _make_to_stay(fs: FileSystem, path: str) -> None:
    """Make a folder, with those above it, so that a power cut leaves it and what will be in it."""
    made = []
    above = path
    while above and not fs.exists(above):
        made.append(above)
        above = posixpath.dirname(above)
    fs.makedirs(path)
    for each in made:
        # Who may write to a folder may still not be allowed to open it.
        with contextlib.suppress(PermissionError):
            fs.sync_dir(posixpath.dirname(each) or ".")
