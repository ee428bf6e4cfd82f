"""What the broker asks of its process: the allocator, the garbage collector, descriptors.

glibc gives large freed blocks back to the kernel and asks for them again a moment later; with
requests of a megabyte the page faults of that cost more than decoding them. Raising its three
thresholds keeps such blocks. They can be set by environment variables, but only before the
process starts; `mallopt(3)` does it from within.

The collector's full passes walk every object the process ever made. What exists when the broker
has started lives until it ends, so it is frozen out of those passes.

A connection is a descriptor, and so is a segment that is being read. The usual soft limit of 1,024
is for programs that use select(2); the hard limit is what an administrator really allows. It is
divided: connections never take what files need, so that strangers cannot stop a log from rolling.

A signal that whoever starts the process has it ignore stays ignored, as with Kafka (the JVM does
that): a script's background has SIGINT ignored, `nohup` has SIGHUP. SIGTERM is the exception, so
that there is always a clean way to end it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

# Sockets that listen, locks, the journal, indexes and checkpoints while they are read or written,
# pipes to child processes, what a response on its way out still holds.
OTHER_FILES = 64
UNLIMITED = 1 << 30

SAME_SECONDS = 0.5
"""A signal that comes so soon after the first is the same one: timeout(1) sends it to its child and
to the group that this is in, `uv run` sends on what the terminal has sent to everybody."""

KEEP_BYTES = 64 << 20
TOP_PAD_BYTES = 4 << 20


def ending_signals() -> list[signal.Signals]:
    """The signals that end this process in order."""
    inherited = (signal.SIGINT, signal.SIGHUP)
    heard = [each for each in inherited if signal.getsignal(each) is not signal.SIG_IGN]
    return [signal.SIGTERM, *heard]


def ending(
    at_once: Callable[[], None], clock: Callable[[], float] = time.monotonic
) -> asyncio.Event:
    """What the first of these signals sets; a later one calls `at_once`."""
    loop = asyncio.get_running_loop()
    stop, since = asyncio.Event(), 0.0

    def on_signal() -> None:
        nonlocal since
        if not stop.is_set():
            since = clock()
            stop.set()
        elif clock() - since >= SAME_SECONDS:
            at_once()

    for number in ending_signals():
        loop.add_signal_handler(number, on_signal)
    return stop


def boot_id() -> str:
    """What tells this run of the machine from all others; empty where the system has no such."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def pin_malloc() -> bool:
    """Keep freed memory for reuse; False where the C library has no such option."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(
        mallopt(parameter, value)
        for parameter, value in (
            (_M_MMAP_THRESHOLD, KEEP_BYTES // 2),
            (_M_TRIM_THRESHOLD, KEEP_BYTES),
            (_M_TOP_PAD, TOP_PAD_BYTES),
        )
    )


def settle_collector() -> None:
    """Called once when everything long-lived exists."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@dataclass(frozen=True, slots=True)
class Descriptors:
    """How the process's descriptors are divided."""

    limit: int
    segments: int
    """Segment files held open."""
    connections: int


def divide_descriptors(limit: int, most_segments: int) -> Descriptors:
    """An eighth for segment files, `most_segments` at the most; some for everything else."""
    segments = max(1, min(most_segments, limit // 8))
    return Descriptors(limit, segments, max(1, limit - segments - OTHER_FILES))


def file_limit() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> int:
    """Take as many descriptors as the hard limit allows; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
