"""A file that tells which process does something, for exactly as long as that process lives.

The process locks the file; the lock ends with it, however it ends, and the system knows who has
it. So whoever asks is never told the number of a process that is gone, even if another has it now.
The number is also written into the file, for people. After a clean end the file is gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress

# struct flock of 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")


def hold(path: str) -> int:
    """Say that it is this process, until it ends; returns the descriptor that must stay open.

    Raises BlockingIOError when another process does, OSError when the file cannot be made.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A lock of the process, not of the descriptor: a child does not inherit it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, b"%d\n" % os.getpid())
                return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):  # POSIX allows both
                raise BlockingIOError(error.errno, "another process holds it", path) from None
            raise
        os.close(descriptor)  # its last holder has taken it away meanwhile


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def release(path: str, descriptor: int) -> None:
    """It is this process no more: take the file away. To be called by its holder."""
    with suppress(OSError):  # the folder may be read-only by now, and an old file harms nobody
        os.unlink(path)
    os.close(descriptor)


def clear(path: str) -> None:
    """Take away what a process has left that did not end by itself, if nobody holds it."""
    if os.path.exists(path):
        with suppress(OSError):
            release(path, hold(path))


def holder(path: str) -> int | None:
    """The process that holds the file; None when nobody does.

    Not to be asked by the holder itself: to close any descriptor of the file ends its lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return process if kind != fcntl.F_UNLCK and process > 0 else None
