"""Which pages of a file are in memory, and how to have none of them there.

The kernel drops only clean pages, so files are synced first; `mincore` then says whether the
eviction really happened, because a row that claims to read from the disk must not read from memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED = ctypes.c_void_p(-1).value
_RESIDENT = bytes(value for value in range(256) if value & 1)


def evict(files: Iterable[Path]) -> None:
    """Write the files back and ask the kernel to forget their pages."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(files: Iterable[Path]) -> float:
    """The share of the files' pages that is in memory, 0.0 to 1.0."""
    pages = resident = 0
    for file in files:
        size = file.stat().st_size
        if size == 0:
            continue
        count = -(-size // mmap.PAGESIZE)
        pages += count
        resident += _resident_pages(file, size, count)
    return resident / pages if pages else 0.0


def _resident_pages(file: Path, size: int, count: int) -> int:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(file))
    try:
        flags = ctypes.create_string_buffer(count)
        if _libc.mincore(address, size, flags) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(file))
        return count - len(flags.raw.translate(None, _RESIDENT))
    finally:
        _libc.munmap(address, size)
