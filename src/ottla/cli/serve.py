"""`ottla server start`: the one command that runs a broker."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla import __version__
from ottla.cli.command import Noun
from ottla.cli.options import BEGUN_ANEW
from ottla.cli.processes import AtLeast, Told, process_count
from ottla.cli.streams import show_if_read

if TYPE_CHECKING:
    from ottla.broker.app import Broker
    from ottla.broker.cluster_folder import Seat
    from ottla.cli.processes import Plan
    from ottla.cluster.store import MetadataStore
    from ottla.config.load import Given, Loaded

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
_LAST_PORT = 65_535
_COLOURS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red
_ONLY_IN_A_FILE = ("zookeeper.digest.password", "zookeeper.ssl.keystore.password")


class _Server(Noun):
    """`server`, which runs in a terminal."""

    def how_to_end(self, arguments: Sequence[str]) -> str:
        return (
            "Ctrl-C in the terminal of a broker stops it; `kafka-server-stop` stops all brokers of "
            "this user"
        )


@click.group(cls=_Server)
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
@click.option(
    "--data-dir",
    "data_dirs",
    multiple=True,
    metavar="FOLDER",
    help="Where the data is kept; may be given several times, as for several disks.  "
    "[default: data]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting; may be given several times. Wins over everything else.",
)
@click.option("--strict", is_flag=True, help="Refuse unknown settings instead of warning.")
@click.option(
    "--processes",
    metavar="N|auto",
    callback=process_count,
    help="Run so many brokers, each a process with an id, ports and folders of its own, counted on "
    "from the first one's; auto is one for each core.",
)
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
@click.option("--member-of", metavar="FOLDER", hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
@click.option(BEGUN_ANEW, is_flag=True, hidden=True)
def start(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    config_file: Path | None,
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    data_dirs: tuple[str, ...],
    settings: tuple[str, ...],
    strict: bool,
    processes: int | None,
    log_format: str,
    log_level: str,
    member_of: str | None,
    ready_fd: int | None,
    begun_anew: bool,
) -> None:
    """Run a broker in the foreground until Ctrl-C or SIGTERM.

    The first signal stops it cleanly, a second one at once.

    With --processes the brokers form a cluster on this machine, which has its metadata in the data
    folder. One that crashes is started again. A data folder that was begun so stays so; with auto
    all brokers that were there before are there again.
    """
    started = time.perf_counter()
    from ottla.config.load import InvalidConfig, load
    from ottla.runtime import logs, loop, process

    process.pin_malloc()
    process.raise_file_limit()
    logs.setup("json" if log_format == "json" else "human", log_level)
    try:
        overrides = [*flag_settings(listen, advertise, data_dirs, settings)]
        loaded = load(config_file, overrides, strict=strict)
    except InvalidConfig as error:
        raise click.ClickException("\n  ".join(error.problems)) from None
    quiet = log_format == "json"
    if processes is not None:
        refuse_zookeeper(loaded)
        if begun_anew:
            processes = AtLeast(processes)
        told = Told(config_file, overrides, strict, log_format, log_level)
        code = run_processes(loaded, told, processes, started)
    elif member_of is not None:
        logs.setup("json" if quiet else "human", log_level, label=log_label(loaded, quiet))
        code = loop.run(serve_member(loaded, started, member_of, ready_fd))
    else:
        refuse_cluster_folders(loaded)
        code = loop.run(serve(loaded, started, quiet=quiet))
    if code:
        sys.exit(code)


def flag_settings(
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    data_dirs: tuple[str, ...],
    settings: tuple[str, ...],
) -> Iterator[Given]:
    """The flags as the settings they stand for, each with the flag as it was typed."""
    from ottla.config.load import Given

    names: list[str] = []
    if listen:
        endpoints = [
            _endpoint("--listen", text, _listener_name(number))
            for number, text in enumerate(listen)
        ]
        names = [endpoint.partition("://")[0] for endpoint in endpoints]
        typed = f"--listen {' --listen '.join(listen)}"
        yield Given("listeners", ",".join(endpoints), typed)
        own = [name for name in names if name.startswith("PLAINTEXT")]
        if own != ["PLAINTEXT"] and own == names:
            protocols = ",".join(f"{name}:PLAINTEXT" for name in own)
            yield Given("listener.security.protocol.map", protocols, typed)
    if advertise:
        if len(advertise) > (len(names) or 1):
            raise click.UsageError(
                f"--advertise is given {len(advertise)} times and --listen {len(names)}: "
                f"give one for each, in the same order"
            )
        told = [
            _endpoint("--advertise", text, name)
            for text, name in zip(advertise, names or ["PLAINTEXT"], strict=False)
        ]
        yield Given(
            "advertised.listeners", ",".join(told), f"--advertise {' --advertise '.join(advertise)}"
        )
    if data_dirs:
        if not all(folder.strip() for folder in data_dirs):
            raise click.UsageError("--data-dir is empty; name a folder, as --data-dir data")
        yield Given("log.dirs", ",".join(data_dirs), f"--data-dir {' --data-dir '.join(data_dirs)}")
    for text in settings:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise click.UsageError(f"--set {text!r}: expected KEY=VALUE")
        if name in _ONLY_IN_A_FILE:
            raise click.UsageError(
                f"--set {name}: everybody on this machine can read a command line; put it into a "
                "file, and name that with --config"
            )
        yield Given(name, value, f"--set {name}")


def _listener_name(number: int) -> str:
    return "PLAINTEXT" if number == 0 else f"PLAINTEXT{number + 1}"


def _endpoint(flag: str, text: str, name: str) -> str:
    """NAME://HOST:PORT, of a flag that may leave out the name."""
    given, scheme, place = text.rpartition("://")
    host, colon, port = place.rpartition(":")
    if not colon:
        example = f"{flag} :{place}" if place.isdigit() else f"{flag} {place or 'localhost'}:9092"
        raise click.UsageError(f"{flag} {text!r}: expected HOST:PORT, as {example}")
    lowest = 0 if flag == "--listen" else 1
    if not (port.isascii() and port.isdigit() and lowest <= int(port) <= _LAST_PORT):
        raise click.UsageError(
            f"{flag} {text!r}: a port is a number from {lowest} to {_LAST_PORT}, not {port!r}"
        )
    return f"{given if scheme else name}://{host}:{port}"


def log_label(loaded: Loaded, quiet: bool) -> str:
    """What tells this broker's lines from those of its neighbours."""
    from ottla.cli.terminal import coloured

    node = loaded.config.node_id
    if quiet or not sys.stderr.isatty() or not coloured():
        return f"broker {node}"
    return f"\x1b[{_COLOURS[node % len(_COLOURS)]}mbroker {node}\x1b[m"


def refuse_zookeeper(loaded: Loaded) -> None:
    """Brokers of one process each share a ZooKeeper by themselves."""
    if loaded.config.zookeeper_connect is not None:
        raise click.UsageError(
            "--processes keeps the metadata of its brokers itself: leave out zookeeper.connect, or "
            "start each broker that is to share that ZooKeeper by itself, without --processes"
        )


def run_processes(
    loaded: Loaded, told: Told, count: int, started: float, zookeeper_port: int | None = None
) -> int:
    """Several brokers under a supervisor; returns the exit code."""
    from ottla.cli.processes import make_plan, run

    known = known_seats(loaded.config.log_dirs)
    if isinstance(count, AtLeast):
        count = max(count, len(known))
    plan = make_plan(loaded, told, count, zookeeper_port, known)
    say_what_was_read(loaded)
    say_how_records_are_walked()
    quiet = told.log_format == "json"
    return run(plan, lambda seconds: cluster_banner(plan, seconds), quiet=quiet, started=started)


def known_seats(folders: Sequence[str]) -> tuple[Seat, ...]:
    """The brokers of the last run in these folders."""
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.broker.start_failed import StartFailed
    from ottla.runtime.files import OsFileSystem

    try:
        return ClusterFolder(tuple(folders)).seats(OsFileSystem())
    except StartFailed as error:
        raise click.ClickException(str(error)) from None


def refuse_cluster_folders(loaded: Loaded) -> None:
    """A folder with the brokers of a cluster is no data folder of one broker."""
    from ottla.broker.cluster_folder import belongs_to_cluster
    from ottla.runtime.files import OsFileSystem

    why = belongs_to_cluster(OsFileSystem(), loaded.config.log_dirs)
    if why is not None:
        raise click.ClickException(
            f"{why}: start them with --processes, or with `ottla cluster up`, or name another "
            "folder with --data-dir"
        )


async def serve_member(loaded: Loaded, started: float, folder: str, ready_fd: int | None) -> int:
    """The same as `serve`, as a broker of a cluster whose supervisor lends the metadata."""
    # Loaded before the lender counts on hearing from this process: on a busy machine that may take
    # longer than a session lasts.
    import ottla.broker.app  # noqa: F401 - loaded for `serve`
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.cluster.lent import LentStore
    from ottla.cluster.store import StoreError
    from ottla.runtime.pid_file import hold

    cluster = ClusterFolder((folder,))
    store: MetadataStore | None = None
    try:
        hold(cluster.process(loaded.config.node_id))
        if loaded.config.zookeeper_connect is None:
            store = await LentStore.connect(cluster.socket)
    except (OSError, StoreError) as error:
        logger.error("%s", error)
        return EXIT_FAILED
    return await serve(loaded, started, quiet=True, store=store, supervised=True, ready_fd=ready_fd)


async def serve(
    loaded: Loaded,
    started: float,
    quiet: bool,
    *,
    store: MetadataStore | None = None,
    supervised: bool = False,
    ready_fd: int | None = None,
) -> int:
    """Start, wait for a signal, stop; returns the exit code."""
    from ottla.broker.app import Broker, StartFailed
    from ottla.runtime import process

    # The second signal: no waiting, no checkpoints. Recovery is made for this.
    stop = process.ending(lambda: os._exit(EXIT_FAILED))
    if not supervised:  # otherwise the supervisor has said it, once for all
        say_what_was_read(loaded)
        say_how_records_are_walked()
    broker = Broker(loaded.config, store=store)
    try:
        await broker.start()
    except StartFailed as error:
        say_error(str(error), supervised=supervised)
        return EXIT_FAILED
    process.settle_collector()
    seconds = time.perf_counter() - started
    if quiet:
        logger.info("started in %.2f s, listening on %s", seconds, ", ".join(listening(broker)))
    else:
        show_if_read(banner(broker, seconds))
    if ready_fd is not None:
        tell_ready(ready_fd)
    failed = asyncio.ensure_future(broker.wait_failed())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((failed, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failed.done():
        say_error(failed.result(), supervised=supervised)
    else:
        failed.cancel()
    await broker.stop()
    return EXIT_FAILED if failed.done() and not failed.cancelled() else 0


def say_error(text: str, *, supervised: bool) -> None:
    """What a broker ends with; among the lines of others it says whose it is."""
    if supervised:
        logger.error("%s", text)
    else:
        click.echo(f"Error: {text}", err=True)


def tell_ready(descriptor: int) -> None:
    """Tell the supervisor, which may be gone by now, that clients are served."""
    with suppress(OSError):
        os.write(descriptor, b"!")
    os.close(descriptor)


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
    where = bootstrap_flag(broker)
    addresses = "\n              ".join(listening(broker))
    metrics = "" if broker.metrics_url is None else f"  metrics     {broker.metrics_url}\n"
    return f"""\
Ottla {__version__} started in {seconds:.2f} s
  listening   {addresses}
  data        {", ".join(broker.data_dirs)}
  node        {broker.node_id}, cluster {broker.cluster_id}
{metrics}Try it from another terminal:
  {program} topic create hello{where}
  echo 'hello, world' | {program} produce hello{where}
  {program} consume hello --from-beginning{where}
Ctrl-C stops it.
"""


def cluster_banner(plan: Plan, seconds: float) -> str:
    """What listens where, and what to type next."""
    from ottla.client.settings import DEFAULT_PORT

    program = command_name()
    first = plan.addresses[0][1]
    near = (f"127.0.0.1:{DEFAULT_PORT}", f"localhost:{DEFAULT_PORT}")
    free = first.endswith(":0")  # then only the log tells
    where = "" if first in near or free else f" --bootstrap {shlex.quote(first)}"
    brokers = "\n              ".join(
        f"{broker}: {'a free port' if free else address}" for broker, address in plan.addresses
    )
    replicas = min(3, len(plan.addresses))
    noun = "broker" if len(plan.addresses) == 1 else "brokers"
    zookeeper = ""
    if plan.zookeeper is not None:
        log = plan.folder.zookeeper_log
        zookeeper = f"  ZooKeeper   127.0.0.1:{plan.zookeeper.port}, its log is in {log}\n"
    return f"""\
Ottla {__version__}: {len(plan.addresses)} {noun}, started in {seconds:.2f} s
  brokers     {brokers}
  data        {", ".join(plan.folder.roots)}
{zookeeper}Try it from another terminal:
  {program} cluster status{where}
  {program} topic create hello -p 3 -r {replicas}{where}
  echo 'hello, world' | {program} produce hello{where}
  {program} consume hello --from-beginning{where}
Ctrl-C stops them all.
"""


def bootstrap_flag(broker: Broker) -> str:
    """What has to be added to commands on this machine, so that they find the broker."""
    from ottla.client.settings import DEFAULT_PORT

    reached = ("127.0.0.1", "localhost", "0.0.0.0", "::", "")
    if any(bound.host in reached and bound.port == DEFAULT_PORT for bound in broker.listening):
        return ""
    return f" --bootstrap {shlex.quote(broker.endpoints[0].address)}"


def listening(broker: Broker) -> list[str]:
    """Each address we listen on, and the one clients are told where that differs."""
    told = {endpoint.listener: endpoint for endpoint in broker.endpoints}
    lines = []
    for bound in broker.listening:
        host = f"[{bound.host}]" if ":" in bound.host else bound.host or "*"
        line = f"{bound.name}://{host}:{bound.port}"
        endpoint = told.get(bound.name)
        if endpoint is not None and bound.name in broker.chosen_hosts:
            line += f", every interface; clients are told {endpoint.address}"
            line += (
                ", where only those on this machine find it: name another with --advertise"
                if endpoint.host == "localhost"
                else "; --advertise HOST:PORT changes that"
            )
        elif endpoint is not None and (endpoint.host, endpoint.port) != (bound.host, bound.port):
            line += f" (advertised as {endpoint.address})"
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
