"""What of a file is in memory, asked without touching it.

`cachestat(2)` (Linux 6.5) counts the pages of a range: one call of 2 µs for a megabyte. Where there
is none, `holds` says so and the caller has to probe with reads that do not wait. Those cost
six times as much, look only at samples, and the first that misses makes the kernel begin to read,
inside the loop.

Some file systems keep the pages elsewhere: on overlayfs, which a container without a volume has,
none is ever counted. `was_read` finds that out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_CACHESTAT = 451  # on every architecture
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")
    )


class PageCache:
    """The page cache, as far as this kernel tells."""

    def __init__(self) -> None:
        self._syscall: Callable[..., int] | None = None
        try:
            # The interpreter's lock is kept during the call, which never waits: letting it go for
            # two microseconds invites other threads to make the loop wait for it.
            self._syscall = ctypes.PyDLL(None).syscall
        except (OSError, AttributeError):
            pass
        self._range = _Range()
        self._counts = _Counts()
        self._arguments = (ctypes.byref(self._range), ctypes.byref(self._counts), 0)

    def holds(self, fd: int, position: int, length: int) -> bool | None:
        """Whether all of these bytes are in memory, or being read into it; None: unknown.

        For the thread of the event loop only.
        """
        if self._syscall is None:
            return None
        self._range.offset = position
        self._range.length = length
        if self._syscall(_CACHESTAT, fd, *self._arguments):
            self._syscall = None
            return None
        pages = (position + length - 1) // _PAGE - position // _PAGE + 1
        return int(self._counts.cache) >= pages

    def was_read(self, fd: int, position: int, length: int) -> None:
        """These bytes were read just now. If not one page of them is counted, the kernel is not
        asked any more."""
        if self.holds(fd, position, length) is False and not self._counts.cache:
            self._syscall = None
