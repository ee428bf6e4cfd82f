"""What an operator is told when a disk fails: which file, what happened, what to do."""

from __future__ import annotations

import errno

_RESTART = "then restart the broker"
_ADVICE = {
    errno.ENOSPC: f"the disk is full: free some space, {_RESTART}",
    errno.EDQUOT: f"the quota is used up: free some space, {_RESTART}",
    errno.EROFS: f"the file system is read-only: check the disk, remount it, {_RESTART}",
    errno.EIO: f"the disk reported an error: check or replace it, {_RESTART}",
    errno.EACCES: f"permission is denied: give the broker's user access, {_RESTART}",
    errno.EPERM: f"permission is denied: give the broker's user access, {_RESTART}",
    errno.EMFILE: f"too many open files: raise the limit (ulimit -n), {_RESTART}",
    errno.ENFILE: f"too many open files: raise the system's limit (fs.file-max), {_RESTART}",
    errno.EISDIR: f"a folder lies where a file should be: move it away, {_RESTART}",
    errno.ENOTDIR: f"a file lies where a folder should be: move it away, {_RESTART}",
    errno.ENOENT: f"a file or folder was removed from outside: put it back, {_RESTART}",
}


def describe(error: OSError, doing: str, where: str) -> str:
    """One line: `appending failed in …/00000000000000000000.log: No space left on device; …`"""
    path = error.filename or where
    advice = _ADVICE.get(error.errno or 0, f"check the disk, {_RESTART}")
    return f"{doing} failed in {path}: {error.strerror or error}; {advice}"


# Something else lies where a file should be, or it may not be touched. The disk is as good as ever.
_ONE_FILE = frozenset(
    (
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.ENXIO,
        errno.ENODEV,
    )
)


def concerns_one_file(error: OSError) -> bool:
    """Whether an error speaks of a single file or name, and not of the disk it is on."""
    return error.errno in _ONE_FILE
