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
    errno.ENOENT: f"a file or folder was removed from outside: put it back, {_RESTART}",
}


def describe(error: OSError, doing: str, where: str) -> str:
    """One line: `appending failed in …/00000000000000000000.log: No space left on device; …`"""
    path = error.filename or where
    advice = _ADVICE.get(error.errno or 0, f"check the disk, {_RESTART}")
    return f"{doing} failed in {path}: {error.strerror or error}; {advice}"
