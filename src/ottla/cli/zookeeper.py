"""`ottla zookeeper start`: a real Apache ZooKeeper, for clusters of more than one machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from ottla.cli.command import Noun


class _ZooKeeper(Noun):
    """`zookeeper`, which runs in a terminal."""

    def how_to_end(self, arguments: Sequence[str]) -> str:
        return "Ctrl-C in the terminal of a ZooKeeper stops it; `zookeeper-server-stop` stops all"


@click.group(cls=_ZooKeeper)
def zookeeper() -> None:
    """Run Apache ZooKeeper, which brokers on several machines share."""


@zookeeper.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A zookeeper.properties file, as ZooKeeper and Kafka have it. Flags win over it.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where clients connect.  [default: 127.0.0.1:2181]",
)
@click.option(
    "--data-dir", metavar="FOLDER", help="Where the data is kept.  [default: zookeeper-data]"
)
@click.option(
    "--id",
    "server_id",
    type=click.IntRange(1, 255),
    help="Which server of an ensemble this is; needed once, and kept in the data folder.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting of ZooKeeper's; may be given several times.",
)
@click.option("--pid-file", hidden=True)
@click.option("--log-file", hidden=True, type=click.Path(path_type=Path))
def start(
    config_file: Path | None,
    listen: str | None,
    data_dir: str | None,
    server_id: int | None,
    settings: tuple[str, ...],
    pid_file: str | None,
    log_file: Path | None,
) -> None:
    """Run a ZooKeeper server in the foreground until Ctrl-C or SIGTERM.

    It is the real one, which the extra ottla[zookeeper] brings, on a Java 17 or newer of this
    machine or on the one of that extra. An ensemble has a file with a line
    server.N=HOST:2888:3888 for each of its 3 or 5 servers, and is started once on each machine.
    """
    from ottla.cli.zookeeper_server import ServerError, become, prepare
    from ottla.runtime.pid_file import hold

    given: list[tuple[str, str]] = []
    if listen is not None:
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdigit():
            raise click.UsageError(f"--listen {listen!r}: expected HOST:PORT, as 127.0.0.1:2181")
        given += [("clientPortAddress", host or "0.0.0.0"), ("clientPort", port)]
    if data_dir is not None:
        given.append(("dataDir", data_dir))
    for text in settings:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise click.UsageError(f"--set {text!r}: expected KEY=VALUE")
        given.append((name, value))
    try:
        if pid_file is not None:
            # Java inherits it with the number of this process, and the lock with it.
            os.set_inheritable(hold(pid_file), True)
        prepared = prepare(config_file, given, server_id, log_file=log_file)
        where = ", ".join(prepared.addresses)
        ensemble = f", one of {prepared.servers} servers" if prepared.servers > 1 else ""
        if log_file is None:  # otherwise somebody else has the terminal
            click.echo(
                f"Apache ZooKeeper {prepared.version} on {where}{ensemble}; data in "
                f"{prepared.data_dir}. Ctrl-C stops it."
            )
        become(prepared)
    except ServerError as error:
        raise click.ClickException(str(error)) from None
