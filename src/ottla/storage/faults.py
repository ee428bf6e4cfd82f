"""What an operator is told when a disk fails: which file, what happened, what to do.

That no descriptor was free is not a disk's fault, though every file operation may say so: nothing
is lost, the folder stays online, and what could not be done is done later (`is_shortage`).
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.runtime.clock import SystemClock
from ottla.runtime.logs import RateLimit

if TYPE_CHECKING:
    from ottla.runtime.files import FileSystem

_complaints = RateLimit(logging.getLogger(__name__), SystemClock())
_SHORTAGES = (errno.EMFILE, errno.ENFILE)
_ANOTHER = "name another with --data-dir (log.dirs in the file)"
_RESTART = "then restart the broker"
_ADVICE = {
    errno.ENOSPC: f"the disk is full: free some space, {_RESTART}",
    errno.EDQUOT: f"the quota is used up: free some space, {_RESTART}",
    errno.EROFS: f"the file system is read-only: check the disk, remount it, {_RESTART}",
    errno.EIO: f"the disk reported an error: check or replace it, {_RESTART}",
    errno.EACCES: f"permission is denied: give the broker's user access, {_RESTART}",
    errno.EPERM: f"permission is denied: give the broker's user access, {_RESTART}",
    errno.EMFILE: "it will be tried again; raise the limit on open files (ulimit -n)",
    errno.ENFILE: "it will be tried again; raise the system's limit on open files (fs.file-max)",
    errno.EISDIR: f"a folder lies where a file should be: move it away, {_RESTART}",
    errno.ENOTDIR: f"a file lies where a folder should be: move it away, {_RESTART}",
    errno.ENOENT: f"a file or folder was removed from outside: put it back, {_RESTART}",
}


class OutOfDescriptors(KafkaError):
    """Not done for want of a descriptor, and worth another try: KAFKA_STORAGE_ERROR, which clients
    repeat, though no disk has failed."""

    __slots__ = ()


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error says nothing about the disk, but that no descriptor was free."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def short_of_descriptors(error: OSError, doing: str, where: str) -> OutOfDescriptors:
    """Say so in the log, now and then; what to tell the client."""
    reason = describe(error, doing, where)
    _complaints.warning(doing, "%s", reason)
    return OutOfDescriptors(ErrorCode.KAFKA_STORAGE_ERROR, reason)


def describe(error: OSError, doing: str, where: str) -> str:
    """One line: `appending failed in …/00000000000000000000.log: No space left on device; …`"""
    path = error.filename or where
    advice = _ADVICE.get(error.errno or 0, f"check the disk, {_RESTART}")
    return f"{doing} failed in {path}: {error.strerror or error}; {advice}"


def not_made(fs: FileSystem, path: str, error: OSError) -> str:
    """The same for a data folder that could not be opened, perhaps since there can be none."""
    if fs.is_dir(path):
        return describe(error, "opening", path)
    parts = path.split("/")
    above = ["/".join(parts[:number]) or "/" for number in range(1, len(parts) + 1)]
    blocking = next((each for each in above if fs.exists(each) and not fs.is_dir(each)), None)
    if blocking == path:
        return f"the data folder {path} is a file; {_ANOTHER}"
    if blocking is not None:
        return f"the data folder {path} cannot be made: {blocking} is a file; {_ANOTHER}"
    where = next((each for each in reversed(above) if fs.is_dir(each)), ".")
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"the data folder {path} cannot be made: this user may not write in {where}; "
            f"allow it, or {_ANOTHER}"
        )
    why = error.strerror or error
    return f"the data folder {path} cannot be made in {where}: {why}; {_ANOTHER}"


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
