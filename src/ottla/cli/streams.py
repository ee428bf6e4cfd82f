"""Standard streams that are not as a program expects them: closed, full, or read by nobody."""

from __future__ import annotations

import errno
import os
import sys

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write says to a file that takes no more."""


def drop_output() -> None:
    """What is left of our output goes nowhere, in silence."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_if_read(text: str) -> None:
    """Print what is no more than good to know: what runs on does so also where nobody reads it, or
    the file is full."""
    try:
        print(text, flush=True)
    except OSError:
        drop_output()


def open_missing() -> None:
    """Whoever started us may have closed standard streams: then Python has none, and the next
    socket would get the number of one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as we run


def not_written(error: OSError) -> str:
    """What to say about a file that takes no more."""
    return f"not everything could be written: {error.strerror}"
