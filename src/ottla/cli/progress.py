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
from typing import TYPE_CHECKING

from ottla.cli.output import count, grouped

if TYPE_CHECKING:
    from rich.progress import Progress

_WAIT = 1.0
_ERASE = "\r\x1b[2K"


class Bar:
    """Told how much is done by now and, where the work is counted in bytes, how many records."""

    def __call__(self, done: int, records: int | None = None) -> None:
        """This much is done."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away for as long as something is printed."""
        yield


class _Drawn(Bar):
    """A bar that somebody sees; `words` says what is done, and how fast."""

    def __init__(
        self, drawn: Progress, what: str, total: int, words: Callable[..., tuple[str, str]]
    ) -> None:
        self._drawn = drawn
        self._words = words
        self._task = drawn.add_task(what, total=total, shown="", rate="")

    def __call__(self, done: int, records: int | None = None) -> None:
        shown, rate = self._words(done, records, self._drawn.tasks[0].elapsed)
        self._drawn.update(self._task, completed=done, shown=shown, rate=rate)

    @contextmanager
    def aside(self) -> Iterator[None]:
        if not sys.stdout.isatty():
            yield
            return
        self._drawn.stop()
        yield
        sys.stdout.flush()
        self._drawn.start()


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()


@contextmanager
def records_progress(what: str, total: int) -> Iterator[Bar]:
    """A bar over a number of records."""

    def words(done: int, _records: int | None, elapsed: float | None) -> tuple[str, str]:
        rate = f"{done / elapsed:,.0f}/s" if elapsed else ""
        return f"{grouped(done)} of {count(total, 'record')}", rate

    with _bar(what, total, words) as bar:
        yield bar


@contextmanager
def bytes_progress(what: str, total: int) -> Iterator[Bar]:
    """A bar over a number of bytes, with the records so far and their rate."""

    def words(done: int, records: int | None, elapsed: float | None) -> tuple[str, str]:
        from ottla.cli.live import in_bytes

        shown = f"{in_bytes(done)} of {in_bytes(total)}, {count(records or 0, 'record')}"
        return shown, f"{(records or 0) / elapsed:,.0f} records/s" if elapsed else ""

    with _bar(what, total, words) as bar:
        yield bar


@contextmanager
def copies_progress(what: str, total: int) -> Iterator[Bar]:
    """A bar over bytes that others copy."""

    def words(done: int, _records: int | None, elapsed: float | None) -> tuple[str, str]:
        from ottla.cli.live import in_bytes

        rate = f"{in_bytes(done / elapsed)}/s" if elapsed else ""
        return f"{in_bytes(done)} of {in_bytes(total)}", rate

    with _bar(what, total, words) as bar:
        yield bar


@contextmanager
def _bar(what: str, total: int, words: Callable[..., tuple[str, str]]) -> Iterator[Bar]:
    if not on_terminal():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as drawn:
        yield _Drawn(drawn, what, total, words)


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
def signals_kill() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the program at once, also inside of librdkafka: for the end of a
    command that was stopped already, where a broker that does not answer may hold it up."""
    before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does to what is inside."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
