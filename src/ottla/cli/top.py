"""`ottla top`: what a cluster does right now: throughput, lag, partitions.

On a terminal a screen that renews itself and answers to keys: figures are asked for in a thread,
so that a key or a signal never waits for a broker. Elsewhere, and with --once and --json, plain
output.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.live import show
from ottla.cli.options import bootstrap_option, json_option, open_groups
from ottla.cli.output import broker_errors, explain, json_text
from ottla.cli.top_figures import SORTS, Monitor, Snapshot, frame
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.cli.terminal import Terminal
    from ottla.cli.top_screen import Status, View
    from ottla.client.groups import Groups

_MOST = 20  # topics, where nothing else limits them
_FIRST_INTERVAL = 1.0  # seconds until the first rates
_PATIENCE = 10.0  # seconds for one answer
_TERMINATED = 143  # as a shell tells of SIGTERM


@click.command(cls=Command)
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True,
              metavar="SECONDS", help="Between two looks.")  # fmt: skip
@click.option("--sort", type=click.Choice(tuple(SORTS)), default="in", show_default=True,
              help="What to sort by at first; keys change it.")  # fmt: skip
@click.option("--warn", type=click.FloatRange(0), default=10.0, show_default=True,
              metavar="SECONDS", help="Lag is yellow when the next record is so old.")  # fmt: skip
@click.option("--alarm", type=click.FloatRange(0), default=60.0, show_default=True,
              metavar="SECONDS", help="Lag is red when the next record is so old.")  # fmt: skip
@click.option("--topics", "most", type=click.IntRange(1), metavar="N",
              help="Show so many topics.  [default: as many as fit, or 20 in a pipe]")  # fmt: skip
@click.option("--internal", is_flag=True, help="Also topics that brokers keep for themselves.")
@click.option("--once", is_flag=True, help="Print one interval, and end; as in a pipe.")
@click.option("--repeat", type=click.IntRange(0), default=1, show_default=True, metavar="N",
              help="In a pipe or as JSON: print N intervals; 0 until stopped.")  # fmt: skip
@bootstrap_option
@json_option
def top(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    interval: float,
    sort: str,
    warn: float,
    alarm: float,
    most: int | None,
    internal: bool,
    once: bool,
    repeat: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Show live throughput, lag and partitions.

    A screen until q or Ctrl-C; ? shows the keys for sorting, filtering and scrolling. In a pipe
    what happened in one interval.

    IN/S are records written a second, OUT/S those that groups commit, LAG is of the group that is
    farthest behind. It is green when everything is read, yellow and red when the next record is old
    (--warn, --alarm), without colours where NO_COLOR is set.

    \b
    JSON: {"cluster", "brokers", "partitions", "offline", "under_replicated", "lag",
     "records_per_second", "bytes_per_second", "read_per_second",
     "topics": [{"topic", "partitions", "offline", "records", "bytes", "records_per_second",
                 "bytes_per_second", "read_per_second", "lag", "lag_seconds"}],
     "groups": [{"group", "state", "members", "partitions", "lag", "lag_seconds", "rate"}]}
    With --repeat a line per interval.
    """
    from ottla.cli.terminal import usable

    def groups() -> Groups:
        return open_groups(bootstrap, timeout=_PATIENCE)

    with broker_errors(bootstrap), closing(Monitor(groups, internal=internal)) as monitor:
        monitor.connect()  # with nobody there, no screen
        if as_json or once or not usable():
            _print(monitor, interval, most or _MOST, 1 if once else repeat, as_json=as_json)
            return
        from ottla.cli.top_screen import Status, View

        view = View(sort=sort, warn=warn, alarm=alarm)
        draw(monitor, interval, Status(bootstrap), view, most)


def draw(
    monitor: Monitor, interval: float, status: Status, view: View, most: int | None = None
) -> None:
    """Show what a monitor sees, on the terminal, until somebody leaves."""
    from ottla.cli.terminal import Terminal

    with Terminal() as terminal:
        screen = Screen(terminal, replace(status, keys=terminal.has_keys), view, most)
        code = screen.run(Looker(monitor, interval, screen.tell))
    if code:
        raise click.exceptions.Exit(code)


def _print(monitor: Monitor, interval: float, most: int, times: int, *, as_json: bool) -> None:
    """Plain pictures, one below the other."""
    try:
        monitor.look()
        number = 0
        while not times or number < times:
            time.sleep(interval)
            found = frame(monitor.look(), most)
            if as_json and times != 1:
                show_line(found.document)
            else:
                click.echo("\n" * (number > 0), nl=False)
                show(found, as_json=as_json)
            number += 1
    except KeyboardInterrupt:
        pass


class Looker(threading.Thread):
    """Looks at the cluster again and again, and tells what it sees, or what is wrong."""

    def __init__(
        self, monitor: Monitor, interval: float, tell: Callable[[Snapshot | Exception], None]
    ) -> None:
        super().__init__(name="looker", daemon=True)
        self._monitor = monitor
        self._interval = interval
        self._tell = tell
        self._now = threading.Event()
        self._ended = False

    def run(self) -> None:
        pause = min(self._interval, _FIRST_INTERVAL)
        while not self._ended:
            self._now.clear()
            try:
                self._tell(self._monitor.look())
            except Exception as error:  # whatever it is, it is told on the screen's thread
                self._tell(error)
            self._now.wait(pause)
            pause = self._interval

    def look(self) -> None:
        """Look at once."""
        self._now.set()

    def end(self) -> None:
        """Look no more."""
        self._ended = True
        self._now.set()


class Screen:
    """The screen, its keys, and what was told last."""

    def __init__(self, terminal: Terminal, status: Status, view: View, most: int | None) -> None:
        from ottla.cli.terminal import coloured

        self._terminal = terminal
        self._status = status
        self._most = most
        self._colour = coloured()
        self._view = view
        self._snapshot: Snapshot | None = None
        self._error: Exception | None = None
        self._since = ""
        self._time = ""

    def tell(self, news: Snapshot | Exception) -> None:
        """Take news from another thread."""
        if isinstance(news, Exception):
            self._since = self._since or time.strftime("%H:%M:%S")
            self._error = news
        else:
            self._snapshot = news
            self._error, self._since = None, ""
            self._time = time.strftime("%H:%M:%S")
        self._terminal.wake()

    def run(self, looker: Looker) -> int:
        """Until somebody leaves; returns the exit code."""
        from ottla.cli.top_screen import press, settled

        looker.start()
        try:
            while True:
                error = self._error
                if error is not None and not isinstance(error, KafkaError):
                    raise error
                self._draw()
                for event in self._terminal.wait(None):
                    if event in ("interrupt", "terminate"):
                        return 0 if event == "interrupt" else _TERMINATED
                    if event == " " and not self._view.typing:
                        looker.look()
                        continue
                    view = press(self._view, event, self._terminal.size()[1] // 2)
                    if view is None:
                        return 0
                    self._view = settled(view, self._shown(), self._terminal.size()[1])
        finally:
            looker.end()

    def _shown(self) -> Snapshot | None:
        """What was told last, as far as it is wanted."""
        told = self._snapshot
        if told is None or self._most is None:
            return told
        return replace(told, topics=told.topics[: self._most])

    def _draw(self) -> None:
        from ottla.cli.top_screen import painted, render

        error, since = self._error, self._since
        problem = None
        if isinstance(error, KafkaError):
            what = explain(error, self._status.place).partition(";")[0]
            problem = f"{what} (since {since}; trying again)"
        status = replace(self._status, time=self._time, problem=problem)
        lines = render(self._view, self._shown(), status, *self._terminal.size())
        self._terminal.draw([painted(line, colour=self._colour) for line in lines])


def show_line(document: object) -> None:
    """A document as one line, at once."""

    click.echo(json_text(document))
