"""Small files that are replaced on the event loop, where nothing may wait for the disk.

A log's `leader-epoch-checkpoint` and `partition.metadata` change when a partition is created or
gets a new leader: two thousand partitions at once would be two thousand fsyncs, seconds in which
the broker does nothing else. So a log is handed this view of the file system. `write_atomic`
replaces the file by a rename, which is all it takes to survive kill -9, but only notes that it is
not synced. The log's next flush syncs it together with the records (`Log.begin_flush`), before any
of them is called flushed: a power cut takes such a file only with the unflushed records that
needed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.runtime.files import File, FileSystem, Lock


class DeferredSync:
    """A `FileSystem` whose atomic writes are synced by the next flush."""

    __slots__ = ("_fs", "unsynced")

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.unsynced: set[str] = set()

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        file = self._fs.open(temporary, create=True)
        try:
            if file.size():  # left by one that failed
                file.truncate(0)
            file.append(data)
        finally:
            file.close()
        self._fs.rename(temporary, path)
        self.unsynced.add(path)

    def open(self, path: str, *, create: bool = False) -> File:
        return self._fs.open(path, create=create)

    def exists(self, path: str) -> bool:
        return self._fs.exists(path)

    def is_dir(self, path: str) -> bool:
        return self._fs.is_dir(path)

    def listdir(self, path: str) -> list[str]:
        return self._fs.listdir(path)

    def size(self, path: str) -> int:
        return self._fs.size(path)

    def mtime_ms(self, path: str) -> int:
        return self._fs.mtime_ms(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self._fs.set_mtime_ms(path, mtime_ms)

    def makedirs(self, path: str) -> bool:
        return self._fs.makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self._fs.rename(source, target)

    def remove(self, path: str) -> None:
        self._fs.remove(path)

    def remove_tree(self, path: str) -> None:
        self._fs.remove_tree(path)

    def read_bytes(self, path: str) -> bytes:
        return self._fs.read_bytes(path)

    def sync_dir(self, path: str) -> None:
        self._fs.sync_dir(path)

    def lock(self, path: str) -> Lock:
        return self._fs.lock(path)
