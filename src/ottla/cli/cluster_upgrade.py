"""`ottla cluster upgrade`: every broker to the version on disk, one after the other, and then, on
request, what the new version can do.

The brokers of both versions work together meanwhile, in the formats that the old one knows
(`model.features`), so there is a way back: the old version on disk, and a rolling restart. It ends
with the finalization.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ottla import __version__
from ottla.cli.cluster_restart import (
    ELSEWHERE,
    CutShort,
    Means,
    cluster_of,
    refuse_unreadable,
    rolling_options,
)
from ottla.cli.cluster_status import Looker
from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, json_option
from ottla.cli.output import Column, broker_errors, count, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.client.cluster_health import ClusterHealth

_UPGRADE = 1
_OLDER = "older"  # a broker that does not tell its version


@click.command(cls=Command)
@click.option("--yes", "accept", is_flag=True, help="Do it.")
@click.option("--finalize", is_flag=True,
              help="At the end let brokers use what is new: there is no way back.")  # fmt: skip
@rolling_options
@bootstrap_option
@json_option
def upgrade(
    accept: bool,
    finalize: bool,
    means: Means,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Restart brokers with the version on disk, one after the other, while clients go on.

    Install the new version where the brokers run, then type this with it. It shows which brokers
    run something else; --yes restarts them as `ottla cluster restart --rolling` does, and looks
    whether each came back with the new version. At the first doubt, or Ctrl-C, nothing more is
    touched; typed again, it goes on with those that are left.

    Until --finalize brokers write only what the old version can read: to go back, install that and
    restart the brokers with it, one after the other. Finalized, the cluster may use everything that
    is new, and an older broker does not start in it any more.

    A version that cannot read what the cluster has finalized is refused before anything is changed.

    \b
    JSON: {"version", "brokers": [{"broker", "version" (null if it does not tell)}],
     "finalize": {feature: level}, "executed", "upgraded": [{"broker", "seconds"}],
     "finalized", "stopped": why it ended early, or null}
    """
    from ottla.client.rolling import Doubt, Interrupted, order

    looker = Looker(bootstrap)
    taken: dict[int, float] = {}
    stopped, ending = None, click.ClickException
    finalized = False
    document: dict[str, Any] = {}
    with broker_errors(bootstrap):
        try:
            health = looker.look()
            looker.bootstrap = ",".join(each.address for each in health.brokers if each.address)
            levels = looker.admin.finalized()
            refuse_unreadable(levels)
            left = [each for each in order(health) if not _is_new(each, health)]
            new = _newest(levels)
            document = _document(health, new)
            if not as_json:
                _show(health, left, new, accept=accept, finalize=finalize)
            if accept:
                supervisor = _supervisor(means, health)
                if left:
                    rolling = means.prepare(
                        looker, health, left, quiet=as_json, check=_came_back_old
                    )
                    taken = rolling.taken
                    with means.alone():
                        rolling.run(left)
                    looker.admin.elect_leaders(None)
                _renew(supervisor)
                if new and finalize:
                    _finalize(looker, new)
                    finalized = True
        except Interrupted as interrupt:
            stopped, ending = f"{interrupt}. The same command goes on", CutShort
        except Doubt as doubt:
            stopped = str(doubt)
        finally:
            looker.close()
    if as_json:
        upgraded = [{"broker": each, "seconds": round(took, 3)} for each, took in taken.items()]
        document |= {"executed": accept, "upgraded": upgraded, "finalized": finalized}
        show_json(document | {"stopped": stopped})
    elif stopped is None and accept:
        _tell_end(len(taken), new, finalized)
    if stopped is not None:
        raise ending(stopped)


def _is_new(broker: int, health: ClusterHealth) -> bool:
    return health.known.versions.get(broker) == __version__


def _came_back_old(broker: int, health: ClusterHealth) -> str | None:
    if _is_new(broker, health):
        return None
    found = health.known.versions.get(broker) or "an older version"
    return f"broker {broker} came back with {found}, not {__version__}: is that installed there?"


def _supervisor(means: Means, health: ClusterHealth) -> ClusterFolder | None:
    """The folder in which a process runs this cluster; None when others do. Raises Doubt when it is
    another cluster's, whose process must not be told anything."""
    from ottla.broker.cluster_folder import ClusterFolder
    from ottla.client.rolling import Doubt
    from ottla.runtime.pid_file import holder

    folder = ClusterFolder((means.data_dir,))
    if means.command or holder(folder.supervisor) is None:
        return None
    found = {cluster_of(folder, each) for each in folder.brokers()} - {None}
    if found - {health.cluster}:
        raise Doubt(
            f"{means.data_dir} has another cluster than {health.cluster}; nothing was changed: "
            f"{ELSEWHERE}"
        )
    return folder


def _newest(levels: Mapping[str, int]) -> dict[str, int]:
    from ottla.model.features import newest

    return newest(levels)


def _renew(folder: ClusterFolder | None) -> None:
    """Have the process that runs the brokers in a folder go on as one of this version, too."""
    from ottla.broker.control import ask_to_renew
    from ottla.broker.start_failed import StartFailed
    from ottla.client.rolling import Doubt

    if folder is None:
        return
    try:
        ask_to_renew(folder.control, __version__)
    except StartFailed as error:
        raise Doubt(str(error)) from None


def _finalize(looker: Looker, new: Mapping[str, int]) -> None:
    """Let brokers use what is new, when all of them know it."""
    from ottla.client.rolling import Doubt, wrong

    health = looker.look()
    problem = wrong(health)
    old = [each.id for each in health.brokers if not _is_new(each.id, health)]
    if problem is None and old:
        problem = f"broker {old[0]} does not run {__version__}"
    if problem is not None:
        raise Doubt(f"{problem}; nothing was finalized")
    looker.admin.update_features(new, kind=_UPGRADE)


def _show(
    health: ClusterHealth, left: list[int], new: Mapping[str, int], *, accept: bool, finalize: bool
) -> None:
    if left:
        title = f"{count(len(left), 'broker')} to restart with {__version__}, one after the other"
        missing = {each.id: "is missing" for each in health.brokers if each.state == "missing"}
        found = {**missing, **health.known.versions}
        rows = [(each, found.get(each) or _OLDER, __version__) for each in left]
        columns = (Column("BROKER", numeric=True), Column("RUNS"), Column("GETS"))
        show_table(columns, rows, title=title)
    else:
        click.echo(f"every broker runs {__version__}")
    if new:
        features = ", ".join(f"{name}={level}" for name, level in new.items())
        how = "at the end" if finalize else "later, with --finalize"
        click.echo(f"to finalize {how}: {features}")
    if (left or (new and finalize)) and not accept:
        click.echo("nothing is changed without --yes")


def _tell_end(restarted: int, new: Mapping[str, int], finalized: bool) -> None:
    if restarted:
        click.echo(f"{count(restarted, 'broker')} upgraded; all replicas are in sync")
    if finalized:
        click.echo("finalized: older brokers do not start in this cluster any more")
    elif new:
        click.echo(
            "not finalized yet: brokers write what the old version can read, and a rolling restart "
            "with that one leads back. `ottla cluster upgrade --finalize --yes` ends that"
        )


def _document(health: ClusterHealth, new: Mapping[str, int]) -> dict[str, Any]:
    versions = health.known.versions
    brokers = [{"broker": each.id, "version": versions.get(each.id) or None}
               for each in health.brokers]  # fmt: skip
    return {"version": __version__, "brokers": brokers, "finalize": dict(new)}
