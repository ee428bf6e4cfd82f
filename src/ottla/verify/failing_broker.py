"""A broker on a disk that fails when it is told to.

    python -m ottla.verify.failing_broker server start …

This is `ottla` itself, with a door between the broker and its files: while a file with the name of
a failure is in the folder that the process was started in, writes or syncs fail as a real disk
would make them. The product has no such door.
"""

from __future__ import annotations

import errno
import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.runtime.files import OsFile, OsFileSystem

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FULL: Final = "disk-full"
NO_SYNC: Final = "fsync-error"
_MET: Final = ".met"
"""Behind the name of a failure: it has happened."""


def break_disk(folder: Path, failure: str) -> None:
    """Let the disk of the broker in a folder fail from now on."""
    (folder / f"{failure}{_MET}").unlink(missing_ok=True)
    (folder / failure).touch()


def mend_disk(folder: Path, failure: str) -> bool:
    """Whether the disk has failed meanwhile: nobody may have written to it."""
    (folder / failure).unlink(missing_ok=True)
    met = folder / f"{failure}{_MET}"
    has_failed = met.exists()
    met.unlink(missing_ok=True)
    return has_failed


def fail_if(switch: str, code: int, path: str) -> None:
    """Fail as the disk does, while the file of a failure is there."""
    if os.path.exists(switch):
        Path(switch + _MET).touch()
        raise OSError(code, os.strerror(code), path)


def install(folder: str) -> None:
    """Put the door in."""
    full, no_sync = os.path.join(folder, FULL), os.path.join(folder, NO_SYNC)
    append, pwrite, sync = OsFile.append, OsFile.pwrite, OsFile.sync
    write_atomic = OsFileSystem.write_atomic

    def failing_append(self: OsFile, data: ReadableBuffer) -> None:
        fail_if(full, errno.ENOSPC, self.path)
        append(self, data)

    def failing_pwrite(self: OsFile, data: ReadableBuffer, position: int) -> None:
        fail_if(full, errno.ENOSPC, self.path)
        pwrite(self, data, position)

    def failing_sync(self: OsFile) -> None:
        fail_if(no_sync, errno.EIO, self.path)
        sync(self)

    def failing_write_atomic(self: OsFileSystem, path: str, data: bytes) -> None:
        fail_if(full, errno.ENOSPC, path)
        fail_if(no_sync, errno.EIO, path)
        write_atomic(self, path, data)

    for owner, name, method in (
        (OsFile, "append", failing_append),
        (OsFile, "pwrite", failing_pwrite),
        (OsFile, "sync", failing_sync),
        (OsFileSystem, "write_atomic", failing_write_atomic),
    ):
        setattr(owner, name, method)


if __name__ == "__main__":
    install(os.getcwd())
    runpy.run_module("ottla", run_name="__main__")  # as the command line runs it
