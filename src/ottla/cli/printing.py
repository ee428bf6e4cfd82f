"""Lines for whoever reads our output, so that it is known at any moment which of them are out.

A signal may come while a slow reader keeps us waiting. Python's buffered files then lose track of
what was written; here a line is out or it is not, and who counts the lines can commit exactly what
was printed.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator, Sequence
from typing import IO

from ottla.client.interrupts import Interrupts

# So many bytes are written to a pipe whole or not at all, and without waiting when it has room.
_WHOLE = select.PIPE_BUF
# Milliseconds between two looks at whether we are interrupted.
_LOOK = 100


class Printer:
    """Writes lines; `interrupts` are noted, not raised, while it does."""

    def __init__(self, output: IO[bytes], interrupts: Interrupts) -> None:
        self._output = output
        self._interrupts = interrupts
        self._pipe = _slow(output)

    def write(self, lines: Sequence[bytes]) -> int:
        """Write lines; how many are out. Fewer than all only after an interruption."""
        if self._pipe is None:
            self._output.write(b"".join(lines))
            self._output.flush()
            return len(lines)
        done = 0
        for count, chunk in _chunks(lines):
            if self._interrupts.count or not self._out(self._pipe, chunk):
                break
            done += count
        return done

    def _out(self, descriptor: int, chunk: bytes) -> bool:
        """Write a chunk; False when we are interrupted while nobody reads."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        rest = memoryview(chunk)
        while rest:
            if not poll.poll(_LOOK):
                if self._interrupts.count:
                    return False
                continue
            try:
                rest = rest[os.write(descriptor, rest[:_WHOLE]) :]
            except BlockingIOError:
                continue  # somebody else has filled it
        return True


def _slow(output: IO[bytes]) -> int | None:
    """The descriptor of an output that may keep us waiting: not of a file."""
    try:
        descriptor = output.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except (OSError, ValueError):
        return None


def _chunks(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines put together as far as they can be written at once, and how many they are."""
    chunk: list[bytes] = []
    size = 0
    for line in lines:
        if chunk and size + len(line) > _WHOLE:
            yield len(chunk), b"".join(chunk)
            chunk, size = [], 0
        chunk.append(line)
        size += len(line)
    if chunk:
        yield len(chunk), b"".join(chunk)
