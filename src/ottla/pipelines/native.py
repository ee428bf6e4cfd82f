"""Warnings where Ottla's native code is missing: reading and writing are slow then, not wrong.

A worker may lack it while the driver has it, and whoever waits for a slow query looks at the
driver. A task that writes tells the driver with its counts (`sink.writer.Written`). A task that
reads has no way to send a word: it says so in its executor's log, and the driver speaks for itself
when it plans.
"""

from __future__ import annotations

import socket

from ottla.records import walker


def how_to_mend() -> str:
    """Why the native code is not there, and what to do about it."""
    if walker.TURNED_OFF:
        return f"{walker.WHY_PLAIN}; unset it"
    return (
        f"{walker.WHY_PLAIN}; install Ottla where there are a C compiler and Python's headers, or "
        "take such an installation there with python -m ottla.pipelines.pack"
    )


def missing_here() -> str:
    """For the driver: which machine lacks the native code, and what to do; empty if it has it."""
    return "" if walker.NATIVE else f"{socket.gethostname()} ({how_to_mend()})"


def driver_notices() -> tuple[str, ...]:
    """What a driver that plans a read has to say about its own installation."""
    if walker.NATIVE:
        return ()
    return (
        "Ottla's native code is missing on the driver; tasks whose installation lacks it too "
        f"decode records in plain Python, some thirty times slower: {how_to_mend()}.",
    )
