"""`ottla server start`: the one command that runs a broker."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla import __version__
from ottla.cli.command import Noun

if TYPE_CHECKING:
    from ottla.broker.app import Broker
    from ottla.config.load import Loaded

logger = logging.getLogger(__name__)

EXIT_FAILED = 1


@click.group(cls=Noun)
def server() -> None:
    """Run a broker."""


@server.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A server.properties file, with Kafka's names. Flags win over it.",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="HOST:PORT",
    help="Where to listen; may be given several times, and as NAME://HOST:PORT. "
    "Port 0 takes a free one.  [default: 127.0.0.1:9092]",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="HOST:PORT",
    help="The address clients are told to connect to, one for each --listen.",
)
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where the data is kept.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting; may be given several times. Wins over everything else.",
)
@click.option("--strict", is_flag=True, help="Refuse unknown settings instead of warning.")
@click.option(
    "--log-format",
    type=click.Choice(["human", "json"]),
    default="human",
    show_default=True,
    help="How log lines look.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least important lines to show.",
)
def start(
    config_file: Path | None,
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    data_dir: str | None,
    settings: tuple[str, ...],
    strict: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Run a broker in the foreground until Ctrl-C or SIGTERM.

    The first signal stops it cleanly, a second one at once.
    """
    started = time.perf_counter()
    from ottla.config.load import InvalidConfig, load
    from ottla.runtime import logs, loop, process

    process.pin_malloc()
    process.raise_file_limit()
    logs.setup("json" if log_format == "json" else "human", log_level)
    try:
        overrides = flag_settings(listen, advertise, data_dir, settings)
        loaded = load(config_file, overrides, strict=strict)
    except InvalidConfig as error:
        raise click.ClickException("\n  ".join(error.problems)) from None
    code = loop.run(serve(loaded, started, quiet=log_format == "json"))
    if code:
        sys.exit(code)


def flag_settings(
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    data_dir: str | None,
    settings: tuple[str, ...],
) -> dict[str, str]:
    """The flags as the settings they stand for."""
    overrides: dict[str, str] = {}
    names: list[str] = []
    if listen:
        endpoints = [_endpoint(text, number) for number, text in enumerate(listen)]
        names = [endpoint.partition("://")[0] for endpoint in endpoints]
        overrides["listeners"] = ",".join(endpoints)
        own = [name for name in names if name.startswith("PLAINTEXT")]
        if own != ["PLAINTEXT"] and own == names:
            overrides["listener.security.protocol.map"] = ",".join(
                f"{name}:PLAINTEXT" for name in own
            )
    if advertise:
        overrides["advertised.listeners"] = ",".join(
            text
            if "://" in text
            else f"{(names or ['PLAINTEXT'])[min(i, len(names) - 1)]}://{text}"
            for i, text in enumerate(advertise)
        )
    if data_dir is not None:
        overrides["log.dirs"] = data_dir
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--set {text!r}: expected KEY=VALUE")
        overrides[name.strip()] = value.strip()
    return overrides


def _endpoint(text: str, number: int) -> str:
    if "://" in text:
        return text
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise click.UsageError(f"--listen {text!r}: expected HOST:PORT or NAME://HOST:PORT")
    name = "PLAINTEXT" if number == 0 else f"PLAINTEXT{number + 1}"
    return f"{name}://{host}:{port}"


async def serve(loaded: Loaded, started: float, quiet: bool) -> int:
    """Start, wait for a signal, stop; returns the exit code."""
    from ottla.broker.app import Broker, StartFailed
    from ottla.runtime import process

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            # The second signal: no waiting, no checkpoints. Recovery is made for this.
            os._exit(EXIT_FAILED)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    say_what_was_read(loaded)
    say_how_records_are_walked()
    broker = Broker(loaded.config)
    try:
        await broker.start()
    except StartFailed as error:
        click.echo(f"Error: {error}", err=True)
        return EXIT_FAILED
    process.settle_collector()
    seconds = time.perf_counter() - started
    if quiet:
        logger.info("started in %.2f s, listening on %s", seconds, ", ".join(listening(broker)))
    else:
        click.echo(banner(broker, seconds))
    failed = asyncio.ensure_future(broker.wait_failed())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((failed, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failed.done():
        click.echo(f"Error: {failed.result()}", err=True)
    else:
        failed.cancel()
    await broker.stop()
    return EXIT_FAILED if failed.done() and not failed.cancelled() else 0


def say_what_was_read(loaded: Loaded) -> None:
    """One line for each thing in the settings that deserves it."""
    for warning in loaded.warnings:
        logger.warning("%s", warning)
    if loaded.ignored:
        logger.info("settings without a meaning here: %s", ", ".join(loaded.ignored))
    if loaded.later:
        logger.info("settings without an effect yet: %s", ", ".join(loaded.later))


def say_how_records_are_walked() -> None:
    """A line where that is slow, and what to do about it."""
    from ottla.records import walker

    if not walker.NATIVE:
        logger.warning(
            "records are walked in Python, some hundred times slower than by native code: %s. "
            "Compacted topics, look-ups by time and compaction feel it. %s",
            walker.WHY_PLAIN,
            "Unset it, and start again"
            if walker.TURNED_OFF
            else "To have it built, install a C compiler and Python's headers, then Ottla again "
            "(in a checkout: make clean, make run)",
        )


def banner(broker: Broker, seconds: float) -> str:
    """What is listening, where the data is, and what to type next."""
    program = command_name()
    first = broker.endpoints[0]
    where = "" if str(first.port) == "9092" else f" --bootstrap {first.host}:{first.port}"
    addresses = "\n              ".join(listening(broker))
    return f"""\
Ottla {__version__} started in {seconds:.2f} s
  listening   {addresses}
  data        {", ".join(broker.data_dirs)}
  node        {broker.node_id}, cluster {broker.cluster_id}
Try it from another terminal:
  {program} topic create hello{where}
  echo 'hello, world' | {program} produce hello{where}
  {program} consume hello --from-beginning{where}
Ctrl-C stops it.
"""


def listening(broker: Broker) -> list[str]:
    """Each address we listen on, and the one clients are told where that differs."""
    told = {endpoint.listener: endpoint for endpoint in broker.endpoints}
    lines = []
    for bound in broker.listening:
        line = f"{bound.name}://{bound.host or '*'}:{bound.port}"
        endpoint = told.get(bound.name)
        if endpoint is not None and (endpoint.host, endpoint.port) != (bound.host, bound.port):
            line += f" (advertised as {endpoint.host}:{endpoint.port})"
        lines.append(line)
    return lines


def command_name() -> str:
    """How a person in this folder would call us."""
    script = Path(sys.argv[0])
    if script.name != "ottla":
        return "ottla"
    found = shutil.which("ottla")
    if found and Path(found).resolve() == script.resolve():
        return "ottla"
    return os.path.relpath(script)
