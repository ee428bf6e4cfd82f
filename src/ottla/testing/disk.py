"""The disk of a test broker: the machine's own, made slow, full or forgetful when told to.

Files are real files, so that the broker sends them by the same system calls as always. Three things
differ from `OsFileSystem`:

- Nothing is ever synced to the platter: tests' data need not survive the machine, and an fsync is
  the slowest thing a broker does. What *would* have been durable is written down instead, so that
  `lose_unsynced` can leave what a power cut leaves: every file as long as at its last `sync()`, and
  no name that its folder's last `sync_dir()` did not cover. Renames and removals, and bytes changed
  below the synced length, are taken to be durable (`testing.files.MemoryFileSystem` is stricter).
- `slow` and `fill` make operations wait, or fail with ENOSPC after writing what still fits.
- A `DiskSession` is one broker's use of it and can be ended: `cut` is what kill -9 does. From then
  on nothing that the dead broker's leftovers try reaches the disk, and its locks are free.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from ottla.runtime.files import OsFile, OsFileSystem, OsLock
from ottla.testing.clock import ShiftedClock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

DiskOperation = Literal["write", "sync", "read"]
OPERATIONS: tuple[DiskOperation, ...] = ("write", "sync", "read")


class Disk:
    """What is wrong with the disk, and what of it is durable. Outlives the broker that uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # arranged by the test
        self._delay = 0.0
        self._slow: frozenset[str] = frozenset()
        self._room: int | None = None
        self._full_folder = ""
        self._hurry = threading.Event()
        # what a power cut would leave
        self._durable: dict[str, int] = {}
        self._unnamed: set[str] = set()

    # --- what the test arranges ---------------------------------------------------------------

    def slow(self, seconds: float, operations: Collection[DiskOperation]) -> None:
        unknown = set(operations) - set(OPERATIONS)
        if unknown:
            raise ValueError(f"a disk knows {', '.join(OPERATIONS)}, not {sorted(unknown)}")
        self._hurry.clear()
        self._delay, self._slow = seconds, frozenset(operations)

    def fill(self, room: int, folder: str = "") -> None:
        """Only `room` more bytes fit (below `folder`); then ENOSPC."""
        with self._lock:
            self._room, self._full_folder = room, folder

    def free(self) -> None:
        with self._lock:
            self._room = None

    def quicken(self) -> None:
        """Slow no more; who is waiting goes on at once."""
        self._delay, self._slow = 0.0, frozenset()
        self._hurry.set()

    def lose_unsynced(self) -> None:
        """Leave on the disk what was durable. For when no broker runs."""
        for path in sorted(self._unnamed, reverse=True):  # contents before their folders
            if os.path.isdir(path):
                OsFileSystem().remove_tree(path)
            elif os.path.exists(path):
                os.remove(path)
            self._forget(path)
        for path, size in self._durable.items():
            if os.path.exists(path) and os.path.getsize(path) > size:
                os.truncate(path, size)
        self._unnamed.clear()

    # --- what sessions tell -------------------------------------------------------------------

    def before(self, kind: DiskOperation) -> None:
        if kind in self._slow:
            self._hurry.wait(self._delay)

    def take(self, path: str, size: int) -> int:
        """How many of `size` bytes still fit."""
        if self._room is None:
            return size
        with self._lock:
            if self._room is None or not path.startswith(self._full_folder):
                return size
            fits = min(size, self._room)
            self._room -= fits
            return fits

    def opened(self, path: str, size: int, created: bool) -> None:
        with self._lock:
            if created:
                self._unnamed.add(path)
                self._durable[path] = 0
            else:
                self._durable.setdefault(path, size)

    def synced(self, path: str, size: int) -> None:
        with self._lock:
            self._durable[path] = size

    def truncated(self, path: str, size: int) -> None:
        with self._lock:
            self._durable[path] = min(size, self._durable.get(path, size))

    def named(self, folder: str) -> None:
        with self._lock:
            self._unnamed = {path for path in self._unnamed if os.path.dirname(path) != folder}

    def created_folder(self, path: str) -> None:
        with self._lock:
            self._unnamed.add(path)

    def renamed(self, source: str, target: str) -> None:
        with self._lock:
            self._durable = {_moved(p, source, target): n for p, n in self._durable.items()}
            self._unnamed = {_moved(p, source, target) for p in self._unnamed}

    def removed(self, path: str) -> None:
        with self._lock:
            self._forget(path)
            self._unnamed = {p for p in self._unnamed if not _below(p, path)}

    def _forget(self, path: str) -> None:
        self._durable = {p: size for p, size in self._durable.items() if not _below(p, path)}


class DiskFile(OsFile):
    """A file of a `DiskSession`."""

    __slots__ = ("_session",)

    def __init__(self, path: str, fd: int, session: DiskSession) -> None:
        super().__init__(path, fd)
        self._session = session

    def append(self, data: ReadableBuffer) -> None:
        self._session.before("write")
        view = memoryview(data).cast("B")
        fits = self._session.disk.take(self.path, view.nbytes)
        super().append(view[:fits])
        self._session.stamp(self.fileno())
        if fits < view.nbytes:
            raise _error(errno.ENOSPC, self.path)

    def pwrite(self, data: ReadableBuffer, position: int) -> None:
        self._session.before("write")
        view = memoryview(data).cast("B")
        fits = self._session.disk.take(self.path, view.nbytes)
        super().pwrite(view[:fits], position)
        if fits < view.nbytes:
            raise _error(errno.ENOSPC, self.path)

    def pread(self, size: int, position: int) -> bytes:
        self._session.disk.before("read")
        return super().pread(size, position)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray:
        self._session.disk.before("read")
        return super().pread_cached(size, position)

    def pread_into(self, buffer: WriteableBuffer, position: int) -> int:
        self._session.disk.before("read")
        return super().pread_into(buffer, position)

    def truncate(self, size: int) -> None:
        self._session.before("write")
        super().truncate(size)
        self._session.disk.truncated(self.path, size)

    def sync(self) -> None:
        size = self.size()  # before the wait: what is appended meanwhile belongs to the next one
        self._session.before("sync")
        self._session.disk.synced(self.path, size)


class DiskSession:
    """A `runtime.files.FileSystem`: one broker's use of a `Disk`, from its start to its end."""

    def __init__(self, disk: Disk, clock: ShiftedClock | None = None) -> None:
        self.disk = disk
        self._clock = clock
        self._os = OsFileSystem()
        self._locks: list[OsLock] = []
        self._cut = False

    def cut(self) -> None:
        """The broker is dead: none of its changes arrives any more, its locks are free."""
        self._cut = True
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def before(self, kind: DiskOperation) -> None:
        """A change is about to be made."""
        self.disk.before(kind)
        if self._cut:
            raise OSError(errno.EIO, "the broker that writes this is dead")

    def stamp(self, fd: int) -> None:
        """Let a file that was written have the time of the broker's clock, as it does where the
        machine's own is wrong."""
        if self._clock is not None and self._clock.shifted:
            moment = self._clock.now_ms() * 1_000_000
            os.utime(fd, ns=(moment, moment))

    # --- FileSystem ---------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        created = create and not os.path.exists(path)
        if created:
            self.before("write")
            self._need_room(path)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        size = os.lseek(fd, 0, os.SEEK_END)
        self.disk.opened(path, size, created)
        return DiskFile(path, fd, self)

    def exists(self, path: str) -> bool:
        return self._os.exists(path)

    def is_dir(self, path: str) -> bool:
        return self._os.is_dir(path)

    def listdir(self, path: str) -> list[str]:
        return self._os.listdir(path)

    def size(self, path: str) -> int:
        return self._os.size(path)

    def mtime_ms(self, path: str) -> int:
        return self._os.mtime_ms(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self.before("write")
        self._os.set_mtime_ms(path, mtime_ms)

    def makedirs(self, path: str) -> bool:
        self.before("write")
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            self._need_room(folder)
            os.mkdir(folder)
            self.disk.created_folder(folder)
        return bool(missing)

    def rename(self, source: str, target: str) -> None:
        self.before("write")
        self._os.rename(source, target)
        self.disk.renamed(source, target)

    def remove(self, path: str) -> None:
        self.before("write")
        self._os.remove(path)
        self.disk.removed(path)

    def remove_tree(self, path: str) -> None:
        self.before("write")
        self._os.remove_tree(path)
        self.disk.removed(path)

    def read_bytes(self, path: str) -> bytes:
        self.disk.before("read")
        return self._os.read_bytes(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self.before("write")
        temporary = f"{path}.tmp"
        fits = self.disk.take(temporary, len(data))
        with open(temporary, "wb") as file:
            file.write(data[:fits])
        if fits < len(data):
            raise _error(errno.ENOSPC, temporary)
        self.before("sync")
        os.replace(temporary, path)
        self.disk.synced(path, len(data))

    def sync_dir(self, path: str) -> None:
        if not os.path.isdir(path):
            raise _error(errno.ENOENT, path)
        self.before("sync")
        self.disk.named(path)

    def lock(self, path: str) -> OsLock:
        self.before("write")
        lock = self._os.lock(path)
        self._locks.append(lock)
        return lock

    def _need_room(self, path: str) -> None:
        """A name takes space as well."""
        if self.disk.take(path, 1) < 1:
            raise _error(errno.ENOSPC, path)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _moved(path: str, source: str, target: str) -> str:
    return target + path[len(source) :] if _below(path, source) else path
