"""`ottla cluster move-logs`: partitions in another data folder of the same broker.

A plan first, and with --yes the broker is handed all of it (AlterReplicaLogDirs); it goes on by
itself from then on, also after a restart. Who types the command again sees how far it is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ottla.cli.cluster_moves import throttle_option, yes_option
from ottla.cli.command import Command
from ottla.cli.names import no_topic
from ottla.cli.options import bootstrap_option, complete_topics, connect, json_option
from ottla.cli.output import Column, broker_errors, count, show_json, show_table
from ottla.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ottla.client.descriptions import LogDirDescription
    from ottla.client.direct import DirectAdmin
    from ottla.client.folder_moves import Place
    from ottla.model.ids import Replica

_MOST = 50  # partitions that are listed for people
_PAUSE = 0.5
_INTERRUPTED = 130


@click.command(name="move-logs", cls=Command)
@click.argument("broker", type=click.IntRange(0))
@click.argument("folder")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option("--from", "source", metavar="FOLDER", help="Only what is in this folder now.")
@throttle_option
@yes_option
@bootstrap_option
@json_option
def move_logs(
    broker: int,
    folder: str,
    topics: tuple[str, ...],
    source: str | None,
    throttle: int | None,
    accept: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move a broker's partitions to another of its data folders (log.dirs).

    All partitions, or those of some topics, or with --from those of one folder, as before a disk is
    replaced. Shows what would be moved; --yes does it, and waits until all has arrived. Clients go
    on meanwhile. When this command is interrupted the broker goes on by itself, and the same
    command shows how far it is. Moving a partition back to where it still is cancels its move.

    \b
    JSON: {"executed", "bytes", "seconds" (with --throttle, else null),
     "moves": [{"topic", "partition", "from", "to", "bytes", "copied"}]}
    """
    from ottla.client.direct import DirectAdmin

    with broker_errors(bootstrap, topics=topics):
        connect(bootstrap)
    with (
        broker_errors(bootstrap, topics=topics),
        DirectAdmin(bootstrap, client_id="ottla-cli") as admin,
    ):
        # As a shell completes it; brokers tell their folders without.
        folder = folder.rstrip("/") or folder
        source = source and (source.rstrip("/") or source)
        moves = _plan(admin, broker, folder, topics, source)
        if not as_json:
            _show(moves, folder, throttle, execute=accept)
        if accept and (moves or throttle is not None):
            try:
                _carry_out(admin, broker, moves, folder, throttle)
            except (KeyboardInterrupt, KafkaError) as error:
                click.echo(
                    "the broker goes on by itself, also when it has been away; the same command "
                    "shows how far" + (", and lifts the limit in the end" if throttle else ""),
                    err=True,
                )
                if isinstance(error, KafkaError):
                    raise
                raise SystemExit(_INTERRUPTED) from None
            if moves and not as_json:
                click.echo(f"{count(len(moves), 'partition')} moved")
    if as_json:
        show_json(_document(moves, folder, throttle, execute=accept))


def _plan(
    admin: DirectAdmin, broker: int, folder: str, topics: Sequence[str], source: str | None
) -> dict[Replica, Place]:
    """What is not in the folder yet; complaints before anything is changed."""
    from ottla.client.folder_moves import places

    there = sorted(node.id for node in admin.describe_cluster().nodes)
    if broker not in there:
        raise click.ClickException(
            f"there is no broker {broker}; this cluster has {', '.join(map(str, there))}"
        )
    known = admin.topics() if topics else {}
    for name in topics:
        if name not in known:
            raise click.ClickException(no_topic(name, known))
    folders = {each.path: each for each in admin.log_dirs(broker)}
    for path in (folder, source):
        if path is not None and path not in folders:
            raise click.ClickException(
                f"broker {broker} has no data folder {path}; it has {', '.join(sorted(folders))}"
            )
    if folders[folder].error:
        raise click.ClickException(f"the data folder {folder} of broker {broker} is offline")
    moves = {
        replica: place
        for replica, place in sorted(places(admin, [broker]).items())
        if place.folder not in (None, folder)
        and (not topics or replica.partition.topic in topics)
        and source in (None, place.folder)
    }
    _refuse_without_space(folders[folder], moves)
    return moves


def _refuse_without_space(target: LogDirDescription, moves: Mapping[Replica, Place]) -> None:
    from ottla.cli.live import in_bytes

    needed = sum(place.size - place.copied for place in moves.values())
    if 0 <= target.usable_bytes < needed:
        raise click.ClickException(
            f"{in_bytes(needed)} do not fit into {target.path}, which has "
            f"{in_bytes(target.usable_bytes)} left: name fewer topics, or make room"
        )


def _show(
    moves: Mapping[Replica, Place], folder: str, throttle: int | None, *, execute: bool
) -> None:
    from ottla.cli.live import in_bytes

    if not moves:
        click.echo("everything is where it should be")
        return
    title = (
        f"{count(len(moves), 'partition')} to move to {folder}, {in_bytes(_size(moves))} to copy"
    )
    if throttle is not None:
        title += f", {_size(moves) / throttle:,.0f} s at least"
    if not execute:
        title += "; nothing is changed without --yes"
    if len(moves) > _MOST:
        title += f"; the first {_MOST} of them:"
    columns = (Column("PARTITION"), Column("FROM"), Column("SIZE", numeric=True), Column("STATE"))
    rows = [
        (
            str(replica.partition),
            place.folder or "",
            in_bytes(place.size),
            "" if place.future is None else f"{in_bytes(place.copied)} copied",
        )
        for replica, place in list(moves.items())[:_MOST]
    ]
    show_table(columns, rows, title=title)


def _size(moves: Mapping[Replica, Place]) -> int:
    return sum(place.size for place in moves.values())


def _document(
    moves: Mapping[Replica, Place], folder: str, throttle: int | None, *, execute: bool
) -> dict[str, Any]:
    return {
        "executed": execute,
        "bytes": _size(moves),
        "seconds": None if throttle is None else _size(moves) / throttle,
        "moves": [
            {
                "topic": replica.partition.topic,
                "partition": replica.partition.partition,
                "from": place.folder,
                "to": folder,
                "bytes": place.size,
                "copied": place.copied,
            }
            for replica, place in moves.items()
        ],
    }


def _carry_out(
    admin: DirectAdmin,
    broker: int,
    moves: Mapping[Replica, Place],
    folder: str,
    throttle: int | None,
) -> None:
    """Hand the plan to the broker, and wait until everything has arrived; then lift the limit, also
    that of a command which was interrupted."""
    from ottla.client.folder_moves import begin_moves, limit_folder_moves, places
    from ottla.client.reassignments import FOLDER_RATE, lift_broker_limits

    if moves and throttle is not None:
        limit_folder_moves(admin, [broker], throttle)
    answers = begin_moves(admin, dict.fromkeys(moves, folder))
    failed = {replica: error for replica, error in answers.items() if error is not None}
    stayed = _wait(
        admin, broker, {each: moves[each] for each in moves if each not in failed}, folder
    )
    if throttle is not None and not any(each.future for each in places(admin, [broker]).values()):
        lift_broker_limits(admin, [broker], (FOLDER_RATE,))
    if failed:
        replica, error = next(iter(failed.items()))
        raise click.ClickException(
            f"{count(len(failed), 'partition')} cannot be moved, as {replica.partition}: {error}"
        )
    if stayed:
        raise click.ClickException(
            f"{count(len(stayed), 'partition')} stayed where they were, as {stayed[0].partition}: "
            f"the log of broker {broker} says why"
        )


def _wait(
    admin: DirectAdmin, broker: int, moves: Mapping[Replica, Place], folder: str
) -> list[Replica]:
    """Those that have not arrived when nothing is under way any more."""
    from ottla.cli.progress import copies_progress
    from ottla.client.folder_moves import Place, places

    with copies_progress("moving", _size(moves)) as bar:
        while True:
            found = places(admin, [broker])
            now = {replica: found.get(replica, Place(None, 0)) for replica in moves}
            bar(
                sum(
                    each.size if each.folder == folder else min(each.copied, each.size)
                    for each in now.values()
                )
            )
            if not any(each.future for each in now.values()):
                return [
                    replica
                    for replica, each in now.items()
                    if each.folder not in (None, folder)  # None: deleted meanwhile
                ]
            time.sleep(_PAUSE)
