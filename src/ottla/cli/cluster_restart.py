"""`ottla cluster restart`: every broker anew, one after the other, without a pause for clients."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from typing import TYPE_CHECKING

import click

from ottla.cli.cluster_status import Looker
from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, json_option
from ottla.cli.output import broker_errors, count, show_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.client.cluster_health import BrokerHealth, ClusterHealth
    from ottla.client.rolling import Exposure


@click.command(cls=Command)
@click.option("--rolling", is_flag=True, help="One broker after the other; has to be given.")
@click.option("--broker", "brokers", type=int, multiple=True, metavar="ID",
              help="Only this one; may be given several times.")  # fmt: skip
@click.option("--data-dir", metavar="FOLDER", default="cluster-data", show_default=True,
              help="Of a cluster on this machine: its folder.")  # fmt: skip
@click.option("--with", "command", metavar="COMMAND",
              help="What restarts a broker elsewhere, with {id} and {host} in it.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True,
              metavar="SECONDS", help="For a broker to return, and to catch up.")  # fmt: skip
@click.option("--accept-pause", is_flag=True,
              help="Go on though partitions will be offline or read-only meanwhile.")  # fmt: skip
@bootstrap_option
@json_option
def restart(
    rolling: bool,
    brokers: tuple[int, ...],
    data_dir: str,
    command: str | None,
    timeout: float,
    accept_pause: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Restart brokers one after the other, while clients go on.

    A broker is stopped only while all brokers are up and all replicas in sync. It hands its
    leaderships over, stops, starts, and has to be in sync again before the next one's turn; the
    controller comes last. At the first doubt nothing more is touched. At the end leaderships go
    back to the preferred replicas.

    The brokers of `ottla cluster up` and `ottla server start --processes` are started again by the
    process that runs them, which is found in --data-dir. Others need a command, such as
    --with 'ssh {host} systemctl restart ottla'.

    Partitions that have no other replica in sync, or no more than min.insync.replicas of them, are
    named first, and nothing is done unless --accept-pause says that they may pause.

    \b
    JSON: {"restarted": [{"broker", "seconds"}], "stopped": why it ended early, or null}
    """
    if not rolling:
        raise click.UsageError("say --rolling: brokers are restarted one after the other")
    from ottla.client.rolling import Doubt, Rolling, exposures, order

    looker = Looker(bootstrap)
    rolling_restart: Rolling | None = None
    stopped = None
    with broker_errors(bootstrap):
        try:
            health = looker.look()
            looker.bootstrap = ",".join(each.address for each in health.brokers if each.address)
            chosen = order(health, brokers)
            how = (
                restart_by_command(command)
                if command
                else restart_by_supervisor(data_dir, health, chosen)
            )
            refuse_pauses(exposures(looker.admin, chosen), accept_pause)
            report = say_nothing if as_json else say
            rolling_restart = Rolling(looker.look, how, report, patience=timeout)
            rolling_restart.run(chosen)
            looker.admin.elect_leaders(None)
        except Doubt as doubt:
            stopped = str(doubt)
        finally:
            looker.close()
    taken = rolling_restart.taken if rolling_restart is not None else {}
    if as_json:
        restarted = [{"broker": each, "seconds": round(took, 3)} for each, took in taken.items()]
        show_json({"restarted": restarted, "stopped": stopped})
    elif stopped is None:
        click.echo(f"{count(len(taken), 'broker')} restarted; all replicas are in sync")
    if stopped is not None:
        raise click.ClickException(stopped)


def say(broker: int, what: str) -> None:
    click.echo(f"broker {broker}: {what}")


def say_nothing(broker: int, what: str) -> None:
    """Programs read the document at the end."""


def refuse_pauses(found: Sequence[Exposure], accepted: bool) -> None:
    """Nothing is stopped that clients would miss."""
    from ottla.client.rolling import Doubt

    if found and not accepted:
        lines = "\n  ".join(map(str, found))
        raise Doubt(
            f"clients would notice it:\n  {lines}\nNothing was changed. Give these topics more "
            "replicas, or accept the pause with --accept-pause"
        )


def restart_by_supervisor(
    data_dir: str, health: ClusterHealth, chosen: Sequence[int]
) -> Callable[[BrokerHealth], None]:
    """The brokers of a cluster on this machine: whoever runs them starts them again."""
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.client.rolling import Doubt
    from ottla.runtime.files import OsFileSystem
    from ottla.runtime.pid_file import holder
    from ottla.storage.checkpoints import read_meta_properties

    folder = ClusterFolder((data_dir,))
    other = "name its folder with --data-dir or, for brokers elsewhere, a command with --with"
    if holder(folder.supervisor) is None:
        raise Doubt(f"nobody runs a cluster in {data_dir}: {other}")
    files = OsFileSystem()
    for broker in chosen:
        [data] = folder.data(broker)
        properties = read_meta_properties(files, data) if files.is_dir(data) else None
        if properties is None or properties.cluster_id != health.cluster:
            raise Doubt(
                f"broker {broker} of cluster {health.cluster} is not in {data_dir}: {other}"
            )

    def stop(broker: BrokerHealth) -> None:
        process = holder(folder.process(broker.id))
        if process is None:
            raise Doubt(f"broker {broker.id} has no process in {data_dir}")
        os.kill(process, signal.SIGTERM)

    return stop


def restart_by_command(command: str) -> Callable[[BrokerHealth], None]:
    """What the operator says, for each broker."""
    from ottla.client.rolling import Doubt

    try:
        command.format(id=0, host="")
    except (LookupError, ValueError) as error:
        raise click.UsageError(f"--with knows {{id}} and {{host}}, nothing else: {error}") from None

    def run(broker: BrokerHealth) -> None:
        host = (broker.address or "").rpartition(":")[0].strip("[]")
        line = command.format(id=broker.id, host=shlex.quote(host))
        code = subprocess.run(line, shell=True, check=False).returncode
        if code:
            raise Doubt(f"`{line}` ended with exit code {code}; broker {broker.id} may be stopped")

    return run
