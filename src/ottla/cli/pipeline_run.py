"""`ottla pipeline run`: one pipeline in this process, with what it does on the terminal."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.harmless import harmless
from ottla.cli.live import age
from ottla.cli.options import json_option
from ottla.cli.output import count, grouped, json_text, say
from ottla.cli.pipeline_places import pipeline_errors, read_spec, state_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ottla.pipelines.connectors.process import Note
    from ottla.pipelines.driver.progress import Figures
    from ottla.pipelines.driver.run import Driver

_LINES = 10.0  # seconds between two lines where nobody watches


@click.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--once", is_flag=True, help="Read what is there now, and end.")
@click.option("--master", metavar="URL",
              help="Spark's master, as spark://host:7077.  [default: this machine]")  # fmt: skip
@click.option("--shared-path", is_flag=True,
              help="The folders that it uses are mounted on all of its machines.")  # fmt: skip
@click.option("--from-group", "follow", flag_value="group",
              help="Go on where the group stands, if it was moved.")  # fmt: skip
@click.option("--from-checkpoint", "follow", flag_value="checkpoint",
              help="Go on where the pipeline stands, if its group was moved.")  # fmt: skip
@click.option("--accept-changes", is_flag=True,
              help="The pipeline has changed since its checkpoint was made, and may.")  # fmt: skip
@click.option("--metrics", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True,
              help="Where Prometheus finds /metrics; port 0 is any that is free.")  # fmt: skip
@state_option
@json_option
def run(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    file: str,
    once: bool,
    master: str | None,
    shared_path: bool,
    follow: str | None,
    accept_changes: bool,
    metrics: str,
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Run the pipeline of a file until Ctrl-C, SIGTERM or `ottla pipeline stop`.

    It finishes its batch then; a second Ctrl-C does not wait for it. Whatever is killed, the next
    run goes on with the first batch that was not finished.

    JSON, a line per second with something new: {"pipeline", "state", "process", "host", "master",
    "bootstrap", "started", "updated", "run", "batch", "rows", "written", "letters",
    "rows_per_second", "batch_seconds", "lag", "lag_seconds", "waiting", "error", "error_at",
    "metrics"}
    """
    address = _address(metrics)
    spec = read_spec(file)
    with pipeline_errors(spec.bootstrap):
        from ottla.pipelines.connectors.assemble import way_of
        from ottla.pipelines.driver.home import Home, state_folder
        from ottla.pipelines.driver.log_files import close_log, divert_stderr, open_log
        from ottla.pipelines.driver.run import Audience, Driver
        from ottla.pipelines.driver.start import Choices, Follow

        home = Home(state_folder(state_dir), spec.name)
        home.make()
        choices = Choices(
            once=once,
            master=master,
            shared_path=shared_path,
            follow=None if follow is None else Follow(follow),
            accept_changes=accept_changes,
            metrics=address,
        )
        display = _display(spec.name, as_json)
        logs = ExitStack()

        def locked() -> None:
            logs.callback(close_log, open_log(home.log_file))
            divert_stderr(home.spark_log)

        audience = Audience(display.show, display.tell, locked, lambda: _obey(driver))
        driver = Driver(spec, way_of(spec), home, choices, audience)
        _obey(driver)
        with logs, display.shown():
            outcome = driver.run()
    if not as_json:
        letters = f", {count(outcome.letters, 'dead letter')}" if outcome.letters else ""
        say(f"{spec.name} stopped: {count(outcome.rows, 'row')} read, "
            f"{grouped(outcome.written)} written{letters}")  # fmt: skip


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise click.UsageError(f"--metrics {text!r}: expected HOST:PORT, as 127.0.0.1:9404")
    return host.strip("[]"), int(port)


def _obey(driver: Driver) -> None:
    """Signals stop the driver. Spark takes Ctrl-C for itself when it starts: hence twice."""
    if threading.current_thread() is not threading.main_thread():
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        driver.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


class Display:
    """What a run shows of itself: here, lines for a log."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._last: Figures | None = None
        self._at = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """For as long as it is to be seen."""
        yield

    def show(self, figures: Figures) -> None:
        """New figures: a line when the state changes, and now and then while rows pass."""
        before, self._last = self._last, figures
        now = time.monotonic()
        same = before is not None and before.state is figures.state
        if same and (now - self._at < _LINES or before is None or before.rows == figures.rows):
            return
        self._at = now
        say(line(figures))

    def tell(self, note: Note) -> None:
        """Something is not as usual."""
        say(self._sentence(note))

    def _sentence(self, note: Note) -> str:
        return f"{time.strftime('%H:%M:%S')} {self._pipeline}: {harmless(note.sentence)}"


class JsonDisplay(Display):
    """A line of JSON for programs, whenever something but the time has changed."""

    def show(self, figures: Figures) -> None:
        document = figures.document()
        constant = {key: value for key, value in document.items() if key != "updated"}
        if self._last is not None:
            last = {key: value for key, value in self._last.document().items() if key != "updated"}
            if last == constant:
                return
        self._last = figures
        click.echo(json_text(document))
        sys.stdout.flush()

    def tell(self, note: Note) -> None:
        """It is in the figures."""


class LiveDisplay(Display):
    """A few lines at the bottom of a terminal that renew themselves."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        from rich.console import Console
        from rich.live import Live

        # What a sink prints goes above it. Standard error is exchanged while this is shown.
        console = Console(stderr=True, highlight=False)
        with Live(
            console=console, transient=True, auto_refresh=False, redirect_stderr=False
        ) as live:
            self._live = live
            yield

    def show(self, figures: Figures) -> None:
        self._live.update(picture(figures), refresh=True)

    def tell(self, note: Note) -> None:
        from rich.text import Text

        self._live.console.print(Text(self._sentence(note)))


def _display(pipeline: str, as_json: bool) -> Display:
    if as_json:
        return JsonDisplay(pipeline)
    return LiveDisplay(pipeline) if sys.stderr.isatty() else Display(pipeline)


def words(figures: Figures) -> list[tuple[str, str]]:
    """What is worth a look, by name."""
    behind = age(figures.lag_seconds)
    lag = "-" if figures.lag is None else grouped(figures.lag)
    return [
        ("rows/s", f"{figures.rows_per_second:,.0f}"),
        ("rows", grouped(figures.rows)),
        ("lag", f"{lag} ({behind})" if behind and figures.lag else lag),
        ("batch", "-" if figures.batch is None else str(figures.batch)),
        ("took", age(figures.batch_seconds) or "-"),
        ("dead letters", grouped(figures.letters)),
    ]


def line(figures: Figures) -> str:
    """All of it in one line."""
    numbers = "  ".join(f"{name} {value}" for name, value in words(figures))
    moment = time.strftime("%H:%M:%S", time.localtime(figures.updated))
    reason = figures.waiting or (figures.error if figures.state == "failed" else None)
    return f"{moment} {figures.pipeline} {figures.state}  {numbers}" + (
        f"  {harmless(reason)}" if reason else ""
    )


_COLOURS = {"running": "green", "waiting": "yellow", "failed": "red"}


def picture(figures: Figures) -> RenderableType:
    """The same for a terminal."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(
        (figures.pipeline, "bold"),
        "  ",
        (figures.state.value, _COLOURS.get(figures.state, "cyan")),
        "  ",
        "  ".join(f"{name} {value}" for name, value in words(figures)),
    )
    lines: list[RenderableType] = [head]
    if figures.waiting:
        lines.append(Text(f"waits: {harmless(figures.waiting)}", style="yellow"))
    elif figures.error:
        moment = time.strftime("%H:%M:%S", time.localtime(figures.error_at or 0))
        lines.append(Text(f"last error, {moment}: {harmless(figures.error)}", style="dim"))
    if figures.metrics:
        lines.append(Text(f"metrics {figures.metrics}   Ctrl-C stops", style="dim"))
    return Group(*lines)
