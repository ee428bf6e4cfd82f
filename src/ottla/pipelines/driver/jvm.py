"""A JVM that leaves signals to its driver.

Who stops a service tells all of its processes (systemd does, and `timeout`), and a JVM that is
told ends at once, under the batch that the driver wants to finish. So it is started with SIGTERM
and SIGHUP ignored, which it then leaves alone; it ends when the driver does, as it reads that from
the pipe between them, however the driver ends.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ignore() -> None:
    for each in _IGNORED:
        signal.signal(each, signal.SIG_IGN)


def _launch(command: Any, **given: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, **{**given, "preexec_fn": _ignore})


@contextmanager
def undisturbed() -> Iterator[None]:
    """A JVM that PySpark starts meanwhile is left alone by signals."""
    from pyspark import java_gateway

    # PySpark has no setting for it: its launcher ignores SIGINT and nothing else.
    before = vars(java_gateway)["Popen"]
    vars(java_gateway)["Popen"] = _launch
    try:
        yield
    finally:
        vars(java_gateway)["Popen"] = before
