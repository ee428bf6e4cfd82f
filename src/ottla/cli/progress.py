"""What a terminal shows while something takes its time: a bar for work, a line for waiting.

Both are on stderr, only where that is a terminal, and leave nothing behind: what a command prints
in the end is the same with and without them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ottla.cli.output import count, grouped

if TYPE_CHECKING:
    from rich.progress import Progress

_WAIT = 1.0
_ERASE = "\r\x1b[2K"


class Advance(Protocol):
    """Told how much is done by now and, where the work is counted in bytes, how many records."""

    def __call__(self, done: int, records: int | None = None) -> None: ...


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()


@contextmanager
def records_progress(what: str, total: int) -> Iterator[Advance]:
    """A bar over a number of records."""
    if not on_terminal():
        yield _nobody_watches
        return
    with _bar() as bar:
        task = bar.add_task(what, total=total, shown="", rate="")

        def advance(done: int, records: int | None = None) -> None:
            rate = _rate(bar, done)
            bar.update(
                task,
                completed=done,
                shown=f"{grouped(done)} of {count(total, 'record')}",
                rate="" if rate is None else f"{rate:,.0f}/s",
            )

        yield advance


@contextmanager
def bytes_progress(what: str, total: int) -> Iterator[Advance]:
    """A bar over a number of bytes, with the records so far and their rate if there are any."""
    if not on_terminal():
        yield _nobody_watches
        return
    from ottla.cli.live import in_bytes

    with _bar() as bar:
        task = bar.add_task(what, total=total, shown="", rate="")

        def advance(done: int, records: int | None = None) -> None:
            shown = f"{in_bytes(done)} of {in_bytes(total)}"
            rate = _rate(bar, done)
            speed = "" if rate is None else f"{in_bytes(rate)}/s"
            if records is not None:
                shown += f", {count(records, 'record')}"
                rate = _rate(bar, records)
                speed = "" if rate is None else f"{rate:,.0f} records/s"
            bar.update(task, completed=done, shown=shown, rate=speed)

        yield advance


def _nobody_watches(done: int, records: int | None = None) -> None:
    pass


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
    )


def _rate(bar: Progress, done: int) -> float | None:
    elapsed = bar.tasks[0].elapsed
    return done / elapsed if elapsed else None


class WaitingLine:
    """Says what is waited for, once that has lasted a moment, until something comes.

    `what` makes the line; it is cut where the window ends, because a line that wraps could not be
    taken back.
    """

    def __init__(self, what: Callable[[], str], after: float = _WAIT) -> None:
        self._what = what
        self._after = after
        self._since = time.monotonic()
        self._shown = ""
        self._terminal = on_terminal()

    def waiting(self) -> None:
        """Nothing has come until now."""
        if not self._terminal or time.monotonic() - self._since < self._after:
            return
        line = self._what()[: _columns() - 1]
        if line != self._shown:
            _write(f"{_ERASE}{line}")
            self._shown = line

    def over(self) -> None:
        """Something has come, or nothing will; to be called before anything else is written."""
        self._since = time.monotonic()
        if self._shown:
            _write(_ERASE)
            self._shown = ""


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does to what is inside."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
