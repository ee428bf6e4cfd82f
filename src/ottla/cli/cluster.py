"""`ottla cluster`: several brokers on this machine with one command, how a cluster is, and where
its partitions are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import click

from ottla.cli.cluster_add import add
from ottla.cli.cluster_logs import move_logs
from ottla.cli.cluster_moves import drain, rebalance
from ottla.cli.cluster_restart import restart
from ottla.cli.cluster_status import status
from ottla.cli.cluster_upgrade import upgrade
from ottla.cli.command import Noun
from ottla.cli.options import BEGUN_ANEW

_HOST = "127.0.0.1"
_DATA_DIR = "cluster-data"
_BROKERS = 3


class _Cluster(Noun):
    """`cluster`, which knows the process of a cluster on this machine."""

    def how_to_end(self, arguments: Sequence[str]) -> str:
        from ottla.broker.cluster_folder import ClusterFolder
        from ottla.runtime.pid_file import holder

        text = "Ctrl-C in the terminal of `ottla cluster up` stops its brokers"
        words = [part for word in arguments for part in word.split("=", 1)]
        given = dict(pairwise(words))
        named = given.get("--data-dir") or given.get("-d") or _DATA_DIR
        process = holder(ClusterFolder((named,)).supervisor)
        if process is None:
            return f"{text}. In {named} no cluster runs; --data-dir names the folder of another"
        return f"{text}; so does `kill {process}`"


@click.group(cls=_Cluster)
def cluster() -> None:
    """Run brokers on this machine; show a cluster, move what it holds."""


@cluster.command()
@click.option("--brokers", type=click.IntRange(1, 32), metavar="N",
              help="How many.  [default: as many as before, or 3]")  # fmt: skip
@click.option("--base-port", type=click.IntRange(1, 65_535), default=9092, show_default=True,
              metavar="PORT", help="The first broker's; others have the next ones.")  # fmt: skip
@click.option("--zookeeper", is_flag=True,
              help="Keep the metadata in a real ZooKeeper, which is run along.")  # fmt: skip
@click.option("--zookeeper-port", type=click.IntRange(1, 65_535), default=2181, show_default=True,
              metavar="PORT", help="Where that listens.")  # fmt: skip
@click.option("--data-dir", metavar="FOLDER", default=_DATA_DIR, show_default=True,
              help="Where the data of all of them is kept.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="One setting of all brokers; may be given several times.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
              default="info", show_default=True, help="The least important lines.")  # fmt: skip
@click.option(BEGUN_ANEW, is_flag=True, hidden=True)
def up(
    brokers: int | None,
    base_port: int,
    zookeeper: bool,
    zookeeper_port: int,
    data_dir: str,
    settings: tuple[str, ...],
    log_level: str,
    begun_anew: bool,
) -> None:
    """Run a replicated cluster on this machine until Ctrl-C or SIGTERM.

    Brokers are numbered from 1 and listen on 127.0.0.1. A topic has three replicas unless its
    creator says otherwise (fewer where there are fewer brokers), and a write with acks=all waits
    for all of them but one. A broker that crashes is started again: try kill -9. The next `up` on
    the same folder goes on with what is there.

    The metadata is kept by this process, or with --zookeeper in an Apache ZooKeeper, for which the
    extra ottla[zookeeper] and a Java are needed.

    The first signal stops all brokers, one after the other; a second one at once.
    """
    started = time.perf_counter()
    from ottla.cli.processes import Told
    from ottla.cli.serve import flag_settings, known_seats, run_processes
    from ottla.config.load import Given, InvalidConfig, load
    from ottla.runtime import logs, process

    process.raise_file_limit()
    logs.setup("human", log_level)
    known = len(known_seats(data_dir.split(",")))
    brokers = max(brokers or 0, known) if begun_anew else brokers or known
    brokers = brokers or _BROKERS
    defaults = [
        Given(name, value, "ottla cluster up") for name, value in _replicated(brokers).items()
    ]
    if zookeeper:
        place = f"127.0.0.1:{zookeeper_port}"
        defaults.append(Given("zookeeper.connect", place, "ottla cluster up --zookeeper"))
    try:
        given = [*defaults, *flag_settings((f"{_HOST}:{base_port}",), (), (data_dir,), settings)]
        loaded = load(None, given)
    except InvalidConfig as error:
        raise click.ClickException("\n  ".join(error.problems)) from None
    if zookeeper:
        _check_runnable()
    moved = "choose other ports with --base-port"
    told = Told(None, given, False, "human", log_level, moved)
    port = zookeeper_port if zookeeper else None
    code = run_processes(loaded, told, brokers, started, port)
    if code:
        raise click.exceptions.Exit(code)


def _check_runnable() -> None:
    """Refuse a ZooKeeper that is not here before anything is made for it."""
    from ottla.cli.zookeeper_server import SERVER_CLASS, ServerError, java_line

    try:
        java_line(SERVER_CLASS, ())
    except ServerError as error:
        raise click.ClickException(str(error)) from None


def _replicated(brokers: int) -> dict[str, str]:
    """Settings with which the death of one broker is survived, where there are three or more."""
    factor = min(3, brokers)
    return {
        "default.replication.factor": str(factor),
        "offsets.topic.replication.factor": str(factor),
        "min.insync.replicas": str(max(1, factor - 1)),
    }


cluster.add_command(status)
cluster.add_command(add)
cluster.add_command(restart)
cluster.add_command(upgrade)
cluster.add_command(rebalance)
cluster.add_command(move_logs)
cluster.add_command(drain)
