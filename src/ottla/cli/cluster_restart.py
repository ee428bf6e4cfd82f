"""`ottla cluster restart`: every broker anew, one after the other, without a pause for clients."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from ottla import __version__
from ottla.cli.cluster_status import Looker
from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, json_option
from ottla.cli.output import broker_errors, count, show_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.client.cluster_health import BrokerHealth, ClusterHealth
    from ottla.client.rolling import Exposure, Rolling

_STDERR = 2
ELSEWHERE = "name its folder with --data-dir or, for brokers elsewhere, a command with --with"


class CutShort(click.ClickException):
    """By Ctrl-C."""

    exit_code = 130


class Means(NamedTuple):
    """How brokers are restarted one after the other: what `rolling_options` were given."""

    data_dir: str
    command: str | None
    timeout: float
    accept_pause: bool

    def prepare(
        self,
        looker: Looker,
        health: ClusterHealth,
        brokers: Sequence[int],
        *,
        quiet: bool,
        check: Callable[[int, ClusterHealth], str | None] = lambda broker, health: None,
    ) -> Rolling:
        """Everything but to begin. Raises Doubt where something is wrong already, where these
        brokers cannot be restarted, and where clients would notice it."""
        from ottla.client.rolling import Doubt, Rolling, exposures, wrong

        if self.command:
            restart = _by_command(self.command, quiet=quiet)
        else:
            restart = _by_supervisor(self.data_dir, health, brokers)
            # It starts what is on the disk, which is what runs here.
            refuse_unreadable(looker.admin.finalized())
        # First: it is why partitions lack replicas, which others would not mend.
        problem = wrong(health)
        if problem is not None:
            raise Doubt(f"{problem}; nothing was changed")
        _refuse_pauses(exposures(looker.admin, brokers), self.accept_pause)

        def against(broker: int) -> str | None:
            """Topics may have come, or have got fewer replicas, since the beginning."""
            if self.accept_pause:
                return None
            found = exposures(looker.admin, [broker])
            return f"clients would notice it: {found[0]}" if found else None

        report = _say_nothing if quiet else _say
        return Rolling(
            looker.look, restart, report, against=against, check=check, patience=self.timeout
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other command restarts brokers of the cluster on this machine meanwhile: each of the
        two could stop one in the moment after the other has looked. Raises Doubt."""
        from ottla.broker.cluster_folder import ClusterFolder
        from ottla.client.rolling import Doubt
        from ottla.runtime.pid_file import hold, holder, release

        if self.command:
            yield
            return
        path = ClusterFolder((self.data_dir,)).rolling
        try:
            held = hold(path)
        except BlockingIOError:
            raise Doubt(
                f"process {holder(path)} restarts brokers of this cluster already; nothing was "
                "changed"
            ) from None
        except OSError as error:
            raise Doubt(f"{path}: {error.strerror}; nothing was changed") from None
        try:
            yield
        finally:
            release(path, held)

    def words(self) -> list[str]:
        """The same, to be typed again."""
        words = ["--with", self.command] if self.command else ["--data-dir", self.data_dir]
        return [*words, "--accept-pause"] if self.accept_pause else words


def rolling_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that restarts brokers; the function gets them as `means`."""

    @click.option("--data-dir", metavar="FOLDER", default="cluster-data", show_default=True,
                  help="Of a cluster on this machine: its folder.")  # fmt: skip
    @click.option("--with", "command", metavar="COMMAND",
                  help="What restarts a broker elsewhere, with {id} and {host} in it.")  # fmt: skip
    @click.option("--timeout", type=click.FloatRange(1), default=300.0, show_default=True,
                  metavar="SECONDS", help="For a broker to return, and to catch up.")  # fmt: skip
    @click.option(
        "--accept-pause",
        is_flag=True,
        help="Go on though partitions will be offline or read-only meanwhile.",
    )
    @functools.wraps(function)
    def command_with_means(
        data_dir: str, command: str | None, timeout: float, accept_pause: bool, **others: object
    ) -> None:
        function(means=Means(data_dir, command, timeout, accept_pause), **others)

    return command_with_means


@click.command(cls=Command)
@click.option("--rolling", is_flag=True, help="One broker after the other; has to be given.")
@click.option("--broker", "brokers", type=int, multiple=True, metavar="ID",
              help="Only this one; may be given several times.")  # fmt: skip
@rolling_options
@bootstrap_option
@json_option
def restart(
    rolling: bool,
    brokers: tuple[int, ...],
    means: Means,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Restart brokers one after the other, while clients go on.

    A broker is stopped only while all brokers are up and reach the metadata store, and all replicas
    are in sync. It hands its leaderships over, stops, starts, and has to be in sync again before
    the next one's turn; the controller comes last. At the first doubt nothing more is touched. At
    the end leaderships go back to the preferred replicas. Ctrl-C leaves the others as they are,
    says who was restarted and how to go on, and exits with 130.

    The brokers of `ottla cluster up` and `ottla server start --processes` are started again by the
    process that runs them, which is found in --data-dir. Others need a command, such as
    --with 'ssh {host} systemctl restart ottla'.

    Partitions that have no other replica in sync, or no more than min.insync.replicas of them, are
    named first, and nothing is done unless --accept-pause says that they may pause. When a broker's
    turn comes this is looked at again.

    \b
    JSON: {"restarted": [{"broker", "seconds"}], "stopped": why it ended early, or null}
    """
    if not rolling:
        raise click.UsageError("say --rolling: brokers are restarted one after the other")
    from ottla.client.rolling import Doubt, Interrupted, order

    looker = Looker(bootstrap)
    rolling_restart: Rolling | None = None
    stopped, ending = None, click.ClickException
    with broker_errors(bootstrap):
        try:
            health = looker.look()
            looker.bootstrap = ",".join(each.address for each in health.brokers if each.address)
            chosen = order(health, brokers)
            rolling_restart = means.prepare(looker, health, chosen, quiet=as_json)
            with means.alone():
                rolling_restart.run(chosen)
            looker.admin.elect_leaders(None)
        except Interrupted as interrupt:
            stopped, ending = str(interrupt), CutShort
            if interrupt.left:
                line = ["ottla", "cluster", "restart", "--rolling", "--bootstrap", bootstrap]
                line += means.words()
                line += [word for each in interrupt.left for word in ("--broker", str(each))]
                stopped += f". To go on: {shlex.join(line)}"
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
        raise ending(stopped)


def _say(broker: int, what: str) -> None:
    click.echo(f"broker {broker}: {what}")


def _say_nothing(broker: int, what: str) -> None:
    """Programs read the document at the end."""


def _refuse_pauses(found: Sequence[Exposure], accepted: bool) -> None:
    """Nothing is stopped that clients would miss."""
    from ottla.client.rolling import Doubt

    if found and not accepted:
        lines = "\n  ".join(map(str, found))
        raise Doubt(
            f"clients would notice it:\n  {lines}\nNothing was changed. Give these topics more "
            "replicas with `ottla topic replicate`, or accept the pause with --accept-pause"
        )


def refuse_unreadable(levels: Mapping[str, int]) -> None:
    """A broker of this version would not start in a cluster with these levels. Raises Doubt."""
    from ottla.client.rolling import Doubt
    from ottla.model.features import unreadable

    why = unreadable(levels)
    if why is not None:
        raise Doubt(f"{why}: nothing was changed. Install a newer version than {__version__}")


def _by_supervisor(
    data_dir: str, health: ClusterHealth, chosen: Sequence[int]
) -> Callable[[BrokerHealth], None]:
    """The brokers of a cluster on this machine: whoever runs them starts them again."""
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.client.rolling import Doubt
    from ottla.runtime.pid_file import holder

    folder = ClusterFolder((data_dir,))
    if holder(folder.supervisor) is None:
        raise Doubt(f"nobody runs a cluster in {data_dir}: {ELSEWHERE}")
    for broker in chosen:
        if cluster_of(folder, broker) != health.cluster:
            raise Doubt(
                f"broker {broker} of cluster {health.cluster} is not in {data_dir}: {ELSEWHERE}"
            )

    def stop(broker: BrokerHealth) -> None:
        process = holder(folder.process(broker.id))
        if process is None:
            raise Doubt(f"broker {broker.id} has no process in {data_dir}")
        os.kill(process, signal.SIGTERM)

    return stop


def cluster_of(folder: ClusterFolder, broker: int) -> str | None:
    """The cluster to which a broker's data in a folder belongs; None when there is none."""
    from ottla.runtime.files import OsFileSystem
    from ottla.storage.checkpoints import read_meta_properties

    files = OsFileSystem()
    [data] = folder.data(broker)
    properties = read_meta_properties(files, data) if files.is_dir(data) else None
    return None if properties is None else properties.cluster_id


def _by_command(command: str, *, quiet: bool) -> Callable[[BrokerHealth], None]:
    """What the operator says, for each broker. When `quiet`, standard output is for a program, so
    that what the command prints goes elsewhere."""
    from ottla.client.rolling import Doubt

    try:
        command.format(id=0, host="")
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise click.UsageError(f"--with knows {{id}} and {{host}}, nothing else: {error}") from None

    def run(broker: BrokerHealth) -> None:
        host = (broker.address or "").rpartition(":")[0].strip("[]")
        line = command.format(id=broker.id, host=shlex.quote(host))
        output = _STDERR if quiet else None
        code = subprocess.run(line, shell=True, check=False, stdout=output).returncode
        if code:
            raise Doubt(f"`{line}` ended with exit code {code}; broker {broker.id} may be stopped")

    return run
