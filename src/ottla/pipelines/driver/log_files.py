"""Where a driver's log lines go: into the pipeline's folder, and warnings to the terminal as well.

Spark's JVM and its Python workers write to the standard error that they inherit. They inherit
`spark.log`, so that the terminal is left to the pipeline's own words.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from ottla.runtime.logs import HumanFormatter

_LARGEST: Final = 10 << 20
_KEPT: Final = 3
_STDERR: Final = 2


class _LogFile(RotatingFileHandler):
    """A log whose disk is full has nothing to add to what the terminal says."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name for it
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def open_log(path: Path) -> logging.Handler:
    """Send what is logged to a file that does not grow without end: of Ottla all but details, of
    libraries only what is wrong."""
    handler = _LogFile(path, maxBytes=_LARGEST, backupCount=_KEPT, encoding="utf-8")
    handler.setFormatter(HumanFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("ottla").setLevel(logging.INFO)
    return handler


def is_open(path: Path) -> bool:
    """Whether what is logged goes to this file: where a program runs a pipeline, it does not."""
    handlers, whole = logging.getLogger().handlers, os.path.abspath(path)  # as a handler has it
    return any(isinstance(each, _LogFile) and each.baseFilename == whole for each in handlers)


def close_log(handler: logging.Handler) -> None:
    """Let go of the file, with what could not be written to it."""
    logging.getLogger().removeHandler(handler)
    with contextlib.suppress(OSError):
        handler.close()


def divert_stderr(path: Path) -> None:
    """What this process and its children write to standard error goes to a file from now on.

    `sys.stderr` itself stays with the terminal. The file of the run before is kept beside it.
    """
    if path.exists():
        os.replace(path, path.with_name(f"{path.name}.1"))
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    sys.stderr.flush()
    before = os.dup(_STDERR)
    os.dup2(target, _STDERR)
    os.close(target)
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    sys.stderr = open(  # noqa: SIM115 - for as long as the process runs
        before, "w", buffering=1, encoding=encoding, errors=errors, closefd=False
    )
