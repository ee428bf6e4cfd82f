"""A temporary folder that goes with its owner, however the owner ends.

Normally `close` removes it. A test run that is killed (SIGKILL, SIGTERM, out of memory) cannot do
so; the next one on the machine does. Each folder holds a lock file that the kernel frees when its
process is gone, so that "gone" is known for sure, in containers that share a /tmp as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time

from ottla.runtime.files import OsFileSystem

PREFIX = "ottla-test-"
LOCK = ".in-use"
SETTLED_SECONDS = 60.0
"""A folder younger than this may not have been locked yet by the process that makes it."""

_swept = False


class TemporaryFolder:
    """Made at once; `close` removes it with everything in it."""

    def __init__(self) -> None:
        global _swept
        if not _swept:
            _swept = True
            sweep(tempfile.gettempdir())
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = OsFileSystem().lock(os.path.join(self.path, LOCK))

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def sweep(place: str) -> None:
    """Remove the folders in `place` whose owners are dead."""
    oldest = time.time() - SETTLED_SECONDS
    with os.scandir(place) as entries:
        found = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in found:
        path = os.path.join(entry.path, LOCK)
        try:
            if not os.path.exists(path) or entry.stat(follow_symlinks=False).st_mtime > oldest:
                continue
            lock = OsFileSystem().lock(path)
        except OSError:
            continue  # in use, gone meanwhile, or somebody else's
        shutil.rmtree(entry.path, ignore_errors=True)
        lock.release()
