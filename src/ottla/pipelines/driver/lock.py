"""One driver of a pipeline at a time on this machine: a lock that ends with its process.

The group's static member keeps a second driver away wherever it runs; this lock does it at once,
before Spark is started, and knows the process. The system's lock is that of a process, so what this
process has taken is remembered as well.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from ottla.pipelines.driver.home import Home, Refused
from ottla.runtime import pid_file

_TAKEN: Final[set[Path]] = set()
_CHANGE: Final = threading.Lock()


class Lock:
    """Held from `take` until the process ends, or until `release`."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._descriptor: int | None = None

    def take(self) -> None:
        """`Refused` when another process runs the pipeline."""
        path = self._home.lock_file
        with _CHANGE:
            if path in _TAKEN:  # to open the file would end the lock that we have
                raise Refused(
                    self._home.name, "is run by this process already, in another of its threads"
                )
            self._take(path)
            _TAKEN.add(path)

    def _take(self, path: Path) -> None:
        try:
            self._descriptor = pid_file.hold(str(path))
        except BlockingIOError:
            process = pid_file.holder(str(path))
            who = "another process" if process is None else f"process {process}"
            raise Refused(
                self._home.name,
                f"is run by {who} on this machine already: `ottla pipeline status "
                f"{self._home.name}` shows it, `ottla pipeline stop {self._home.name}` ends it",
            ) from None
        except OSError as error:
            raise Refused(
                self._home.name,
                f"cannot lock its folder, {path}: {error.strerror}; name another folder with "
                "--state-dir",
            ) from None

    def release(self) -> None:
        if self._descriptor is not None:
            with _CHANGE:
                os.close(self._descriptor)
                self._descriptor = None
                _TAKEN.discard(self._home.lock_file)


def holder(path: Path) -> int | None:
    """The process that runs the pipeline of this lock; None when nobody does."""
    return pid_file.holder(str(path))
