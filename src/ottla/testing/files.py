"""A disk in memory that can fail in the ways disks fail.

`MemoryFileSystem` is a `runtime.files.FileSystem` for tests that must crash at a chosen moment:

- Every change to the disk is one numbered operation. `crash_at(n, torn=k)` lets operation `n`
  write its first `k` bytes (if it is a write) and then raises `Crashed`, as does everything after
  it: the process is dead. `Crashed` is a `BaseException`, so no error handling of the code under
  test can survive its own death.
- `killed()` is the disk a new process finds after kill -9: every byte that `write(2)` accepted is
  there, locks are gone.
- `power_lost()` is the disk after a power cut: file contents are what the last `sync()` of each
  file left, names are what the last `sync_dir()` of each folder left. What was not synced may
  still have reached the platter, wholly, partly or as zeros: the arguments choose.
- `fail()` makes chosen operations on chosen paths raise ENOSPC, EIO, EROFS or any other errno,
  after some successes, for a number of times or for good, with a torn write if wanted.

The model is deliberately the strict one: fdatasync(2) of a file does not make its name durable.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

Survivor = Callable[[str, int], int]
"""(path, unsynced bytes at the end of the file) -> how many of them survive a power cut."""


class Crashed(BaseException):
    """The simulated process is dead; nothing it does reaches the disk any more."""


@dataclass(slots=True)
class _FileNode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    mtime_ms: int = 0


@dataclass(slots=True)
class _Folder:
    entries: dict[str, _FileNode | _Folder] = field(default_factory=dict)
    durable: dict[str, _FileNode | _Folder] = field(default_factory=dict)


@dataclass(slots=True)
class _Fault:
    pattern: str
    error: int
    operations: frozenset[str] | None
    after: int
    times: int | None
    torn: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of the journal: what was done to which path, and with how many bytes."""

    kind: str
    path: str
    size: int = 0


class MemoryFile:
    """An open file of a `MemoryFileSystem`; it has no descriptor."""

    __slots__ = ("__weakref__", "_fs", "_node", "path")

    def __init__(self, fs: MemoryFileSystem, path: str, node: _FileNode) -> None:
        self.path = path
        self._fs = fs
        self._node: _FileNode | None = node
        fs.open_files += 1

    def _opened(self) -> _FileNode:
        if self._node is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        return self._node

    def append(self, data: ReadableBuffer) -> None:
        node = self._opened()
        self._fs._write(self.path, node, len(node.data), bytes(data), "append")

    def pread(self, size: int, position: int) -> bytes:
        node = self._opened()
        self._fs._check("read", self.path)
        return bytes(node.data[position : position + size])

    def pread_cached(self, size: int, position: int) -> bytes:
        return self.pread(size, position)

    def pread_into(self, buffer: WriteableBuffer, position: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self.pread(view.nbytes, position)
        view[: len(data)] = data
        return len(data)

    def pwrite(self, data: ReadableBuffer, position: int) -> None:
        self._fs._write(self.path, self._opened(), position, bytes(data), "pwrite")

    def truncate(self, size: int) -> None:
        node = self._opened()
        self._fs._change("truncate", self.path)
        if size <= len(node.data):
            del node.data[size:]
        else:
            node.data.extend(bytes(size - len(node.data)))
        node.mtime_ms = self._fs.now_ms

    def size(self) -> int:
        return len(self._opened().data)

    def sync(self) -> None:
        node = self._opened()
        self._fs._change("sync", self.path)
        node.durable = bytes(node.data)

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor", self.path)

    def close(self) -> None:
        if self._node is not None:
            self._node = None
            self._fs.open_files -= 1

    def __del__(self) -> None:
        self.close()


class _MemoryLock:
    __slots__ = ("_fs", "_path")

    def __init__(self, fs: MemoryFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def release(self) -> None:
        self._fs._locks.discard(self._path)


class MemoryFileSystem:
    """The whole tree, its faults, and the count of what was done to it."""

    def __init__(self) -> None:
        self._root = _Folder()
        self._locks: set[str] = set()
        self._faults: list[_Fault] = []
        self._crash_at: int | None = None
        self._crash_torn = 0
        self._crashed = False
        self.now_ms = 0
        self.open_files = 0
        self.operations = 0
        self.journal: list[Operation] = []

    # --- what the test arranges ---------------------------------------------------------------

    @property
    def crashed(self) -> bool:
        """Whether the operation to crash at has come."""
        return self._crashed

    def crash_at(self, operation: int, *, torn: int = 0) -> None:
        """Die in the given operation (counted from 0 over the disk's life), after `torn` bytes."""
        self._crash_at = operation
        self._crash_torn = torn

    def fail(
        self,
        pattern: str,
        error: int,
        *,
        operations: Collection[str] | None = None,
        after: int = 0,
        times: int | None = None,
        torn: int = 0,
    ) -> None:
        """Let matching operations raise OSError(`error`): fnmatch `pattern` over the whole path.

        `operations` are journal kinds, or "read" for pread and read_bytes; None means every change.
        """
        kinds = None if operations is None else frozenset(operations)
        self._faults.append(_Fault(pattern, error, kinds, after, times, torn))

    def read_only(self, folder: str) -> None:
        """Remount a folder read-only: every change below it is EROFS."""
        self.fail(posixpath.join(_normal(folder), "*"), errno.EROFS)

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def killed(self) -> MemoryFileSystem:
        """The disk as the next process finds it after kill -9 of this one."""
        other = MemoryFileSystem()
        other.now_ms = self.now_ms
        other._root = _copy_written(self._root, {})
        return other

    def power_lost(
        self, *, survives: Survivor | None = None, zeros: bool = False, names: bool = False
    ) -> MemoryFileSystem:
        """The disk after a power cut.

        `survives` says how much of each file's unsynced end is kept (none by default); with
        `zeros` the file keeps its length but the lost part reads as zeros, as after an allocation
        that was journalled before its data. `names` keeps unsynced creations, renames and removals.
        """
        other = MemoryFileSystem()
        other.now_ms = self.now_ms
        other._root = _copy_durable(self._root, "", survives, zeros, names, {})
        return other

    # --- FileSystem ---------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        path = _normal(path)
        self._check("open", path)
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            self._change("create", path)
            node = folder.entries[name] = _FileNode(mtime_ms=self.now_ms)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(_normal(path)) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(_normal(path)), _Folder)

    def listdir(self, path: str) -> list[str]:
        path = _normal(path)
        self._check("read", path)
        return sorted(self._folder(path).entries)

    def size(self, path: str) -> int:
        return len(self._file(_normal(path)).data)

    def mtime_ms(self, path: str) -> int:
        return self._file(_normal(path)).mtime_ms

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        path = _normal(path)
        node = self._file(path)
        self._change("utime", path)
        node.mtime_ms = mtime_ms

    def makedirs(self, path: str) -> bool:
        path = _normal(path)
        folder = self._root
        made = False
        walked = ""
        for name in path.strip("/").split("/"):
            walked = f"{walked}/{name}"
            node = folder.entries.get(name)
            if node is None:
                self._change("mkdir", walked)
                node = folder.entries[name] = _Folder()
                made = True
            if isinstance(node, _FileNode):
                raise _error(errno.ENOTDIR, walked)
            folder = node
        return made

    def rename(self, source: str, target: str) -> None:
        source, target = _normal(source), _normal(target)
        old_folder, old_name = self._parent(source)
        new_folder, new_name = self._parent(target)
        if old_name not in old_folder.entries:
            raise _error(errno.ENOENT, source)
        self._check("rename", target)
        self._change("rename", source)
        new_folder.entries[new_name] = old_folder.entries.pop(old_name)

    def remove(self, path: str) -> None:
        path = _normal(path)
        self._file(path)
        self._change("remove", path)
        folder, name = self._parent(path)
        del folder.entries[name]

    def remove_tree(self, path: str) -> None:
        path = _normal(path)
        for name, node in sorted(self._folder(path).entries.items()):
            child = f"{path}/{name}"
            if isinstance(node, _Folder):
                self.remove_tree(child)
            else:
                self.remove(child)
        self._change("remove", path)
        folder, name = self._parent(path)
        del folder.entries[name]

    def read_bytes(self, path: str) -> bytes:
        path = _normal(path)
        self._check("read", path)
        return bytes(self._file(path).data)

    def write_atomic(self, path: str, data: bytes) -> None:
        path = _normal(path)
        temporary = f"{path}.tmp"
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.append(data)
        file.sync()
        file.close()
        self.rename(temporary, path)
        self.sync_dir(posixpath.dirname(path))

    def sync_dir(self, path: str) -> None:
        path = _normal(path)
        folder = self._folder(path)
        self._change("sync_dir", path)
        folder.durable = dict(folder.entries)

    def lock(self, path: str) -> _MemoryLock:
        path = _normal(path)
        self.open(path, create=True).close()
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self._locks.add(path)
        return _MemoryLock(self, path)

    # --- inside -------------------------------------------------------------------------------

    def _check(self, kind: str, path: str) -> _Fault | None:  # noqa: C901 - one condition of a fault after another
        """Raise the arranged error for this operation; a fault with a torn write is returned."""
        if self._crashed:
            raise Crashed
        for fault in self._faults:
            if fault.operations is None:
                if kind in ("read", "open"):
                    continue
            elif kind not in fault.operations:
                continue
            if not fnmatch.fnmatchcase(path, fault.pattern):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            if fault.times is not None:
                if fault.times == 0:
                    continue
                fault.times -= 1
            if fault.torn and kind in ("append", "pwrite"):
                return fault
            raise _error(fault.error, path)
        return None

    def _change(self, kind: str, path: str, size: int = 0) -> tuple[int, OSError | None]:
        """Count one change. Returns how many bytes of a write happen, and the error after them."""
        fault = self._check(kind, path)
        if self.operations == self._crash_at:
            self._crashed = True
            if size == 0 or self._crash_torn == 0:
                raise Crashed
            return min(self._crash_torn, size), None
        self.operations += 1
        self.journal.append(Operation(kind, path, size))
        if fault is not None:
            return min(fault.torn, size), _error(fault.error, path)
        return size, None

    def _write(self, path: str, node: _FileNode, position: int, data: bytes, kind: str) -> None:
        count, error = self._change(kind, path, len(data))
        if position > len(node.data):
            node.data.extend(bytes(position - len(node.data)))
        node.data[position : position + count] = data[:count]
        node.mtime_ms = self.now_ms
        if error is not None:
            raise error
        if self._crashed:
            raise Crashed

    def _find(self, path: str) -> _FileNode | _Folder | None:
        node: _FileNode | _Folder | None = self._root
        for name in path.strip("/").split("/") if path != "/" else ():
            if not isinstance(node, _Folder):
                return None
            node = node.entries.get(name)
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, _Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> _FileNode:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        return self._folder(posixpath.dirname(path)), posixpath.basename(path)


def _normal(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _copy_written(folder: _Folder, seen: dict[int, _FileNode]) -> _Folder:
    """A folder as the page cache has it; what is durable stays known, for a later power cut."""
    copy = _Folder()
    for name, node in folder.entries.items():
        copy.entries[name] = _copy_node(node, seen)
    for name, node in folder.durable.items():
        if isinstance(node, _FileNode):
            copy.durable[name] = _copy_node(node, seen)
        elif folder.entries.get(name) is node:
            copy.durable[name] = copy.entries[name]
    return copy


def _copy_node(node: _FileNode | _Folder, seen: dict[int, _FileNode]) -> _FileNode | _Folder:
    if isinstance(node, _Folder):
        return _copy_written(node, seen)
    if id(node) not in seen:
        seen[id(node)] = _FileNode(bytearray(node.data), node.durable, node.mtime_ms)
    return seen[id(node)]


def _copy_durable(
    folder: _Folder,
    path: str,
    survives: Survivor | None,
    zeros: bool,
    names: bool,
    seen: dict[int, _FileNode],
) -> _Folder:
    copy = _Folder()
    for name, node in (folder.entries if names else folder.durable).items():
        child = f"{path}/{name}"
        if isinstance(node, _Folder):
            copy.entries[name] = _copy_durable(node, child, survives, zeros, names, seen)
            continue
        if id(node) not in seen:
            data = bytearray(node.durable)
            extra = len(node.data) - len(data)
            if extra > 0 and node.data.startswith(data):
                kept = 0 if survives is None else min(extra, max(0, survives(child, extra)))
                data += node.data[len(data) : len(data) + kept]
                if zeros:
                    data += bytes(len(node.data) - len(data))
            seen[id(node)] = _FileNode(data, bytes(data), node.mtime_ms)
        copy.entries[name] = seen[id(node)]
    copy.durable = dict(copy.entries)
    return copy
