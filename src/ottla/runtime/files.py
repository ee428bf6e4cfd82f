"""The disk, handed in: what the log and the metadata store may do to files.

Two implementations: `OsFileSystem` here, and the crash-simulating one in `ottla.testing.files`
that can tear a write, forget an fsync or run full. Everything that must survive a crash is
written against this interface, so that a property test can crash it at every single write.

Lifetimes. A `File` closes its descriptor when the last reference goes. A response that is being
sent holds a `FileRegion`, which holds the `File`: a segment may be deleted or rolled away at any
moment and the bytes on their way to a client stay readable. `close()` is for shutdown.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ColdRead(Exception):
    """The bytes are not in the page cache: reading them would wait for the disk."""


class Readable(Protocol):
    """What looks things up in a file needs of it."""

    @property
    def path(self) -> str: ...

    def pread(self, size: int, position: int) -> bytes | bytearray:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...


class File(Protocol):
    """An open file. Appends go to the end; reads and patches name their position."""

    path: str

    def append(self, data: ReadableBuffer) -> None:
        """Write all of `data` at the end, or raise OSError (a part may then be on disk)."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def pread_cached(self, size: int, position: int) -> bytes | bytearray:
        """The same, or ColdRead when that would wait for the disk."""
        ...

    def pread_into(self, buffer: WriteableBuffer, position: int) -> int:
        """Fill `buffer` from `position`; returns how much there was."""
        ...

    def pwrite(self, data: ReadableBuffer, position: int) -> None:
        """Write all of `data` at `position`."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """fdatasync(2). Blocks: call it in a thread."""
        ...

    def fileno(self) -> int:
        """The descriptor for sendfile; a file without one raises OSError."""
        ...

    def close(self) -> None: ...


class FileRegion:
    """`length` bytes of `file` from `position`: a payload that is sent without being read."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: File, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        """The bytes themselves, for TLS and for tests."""
        return self.file.pread(self.length, self.position)

    def __repr__(self) -> str:
        return f"FileRegion({self.file.path!r}, {self.position}, {self.length})"


class CachedReads:
    """A file as `Readable`, of which only what is in the page cache is read; else ColdRead."""

    __slots__ = ("path", "pread")

    def __init__(self, file: File) -> None:
        self.path = file.path
        self.pread = file.pread_cached


class Lock(Protocol):
    """An exclusive claim on a folder that dies with the process."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """The operations on names. Paths are plain strings."""

    def open(self, path: str, *, create: bool = False) -> File: ...
    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def listdir(self, path: str) -> list[str]: ...
    def size(self, path: str) -> int: ...
    def mtime_ms(self, path: str) -> int: ...
    def set_mtime_ms(self, path: str, mtime_ms: int) -> None: ...
    def makedirs(self, path: str) -> bool:
        """Make the folder and those above it; False when it is there already."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a file at `target`."""
        ...

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def read_bytes(self, path: str) -> bytes: ...
    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace `path` so that a crash leaves the old or the new content, never a mixture."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make renames, creations and removals in this folder durable. Blocks."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file at `path`, or raise BlockingIOError when another process has it."""
        ...


class OsFile:
    """A descriptor of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def append(self, data: ReadableBuffer) -> None:
        view = memoryview(data)
        written = os.write(self._fd, view)
        while written < view.nbytes:
            count = os.write(self._fd, view[written:])
            if count == 0:
                raise OSError(errno.EIO, "write(2) made no progress", self.path)
            written += count

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._fd, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray:
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, (buffer,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            raise ColdRead(self.path) from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return self.pread(size, position)  # a file system that cannot say
        if count < size:
            if position + count < self.size():
                raise ColdRead(self.path)
            del buffer[count:]
        return buffer

    def pread_into(self, buffer: WriteableBuffer, position: int) -> int:
        view = memoryview(buffer)
        got = 0
        while got < view.nbytes:
            count = os.preadv(self._fd, [view[got:]], position + got)
            if count == 0:
                break
            got += count
        return got

    def pwrite(self, data: ReadableBuffer, position: int) -> None:
        # On Linux pwrite(2) to a descriptor opened with O_APPEND appends, so open() never sets it;
        # append() relies on the file position, which open() leaves at the end.
        view = memoryview(data)
        written = 0
        while written < view.nbytes:
            written += os.pwrite(self._fd, view[written:], position + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.lseek(self._fd, size, os.SEEK_SET)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsLock:
    """flock(2) on a file: released by the kernel however the process ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFileSystem:
    """The machine's file system."""

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        fd = os.open(path, flags, 0o644)
        os.lseek(fd, 0, os.SEEK_END)
        return OsFile(path, fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def makedirs(self, path: str) -> bool:
        try:
            os.mkdir(path)
        except FileNotFoundError:
            os.makedirs(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return False
        return True

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def read_bytes(self, path: str) -> bytes:
        # Not with open(): for a small file its buffer and its questions are most of the work.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            data = os.read(fd, size + 1)
            if len(data) == size:
                return data
            parts = [data]  # longer than a read may be, or it grows or shrinks meanwhile
            while data := os.read(fd, 1 << 20):
                parts.append(data)
            return b"".join(parts)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(fd)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self.sync_dir(os.path.dirname(path))

    def sync_dir(self, path: str) -> None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> OsLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return OsLock(fd)
