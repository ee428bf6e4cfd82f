"""`ottla cluster rebalance`, `ottla cluster drain`, `ottla topic replicate`: partitions elsewhere.

All show a plan, and carry it out with --yes. The plan is handed to the cluster as a whole, as
reassignments (KIP-455): from then on the cluster goes on by itself, and who types the command again
sees how far it is.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, complete_topics, connect, json_option
from ottla.cli.output import Column, broker_errors, count, show_json, show_table
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ottla.client.descriptions import PartitionDescription
    from ottla.client.direct import DirectAdmin
    from ottla.client.reassignments import Ongoing
    from ottla.client.rebalancing import Cluster, Move
    from ottla.model.ids import TopicPartition

_MOST = 50  # partitions that are listed for people
_PAUSE = 0.5
_HEARSAY = 10.0  # seconds within which every broker knows what the controller does
_INTERRUPTED = 130
_FACTORS = {
    "__consumer_offsets": "offsets.topic.replication.factor",
    "__transaction_state": "transaction.state.log.replication.factor",
}
"""Ottla's brokers give these topics as many replicas, as soon as there are brokers for them."""

throttle_option = click.option(
    "--throttle", type=click.IntRange(1, 2**63 - 1), metavar="BYTES",
    help="Let copies take so many bytes a second of each broker at most; lifted in the end.",
)  # fmt: skip
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only show what would be moved, as without --yes."
)
yes_option = click.option("--yes", "accept", is_flag=True, help="Move it.")


@click.command(cls=Command)
@throttle_option
@dry_run_option
@yes_option
@bootstrap_option
@json_option
def rebalance(
    throttle: int | None, dry_run: bool, accept: bool, bootstrap: str, as_json: bool
) -> None:
    """Spread replicas and leaders evenly over all brokers, as after one was added.

    Shows what would be moved, and how many bytes are copied for it; --yes does it, and waits until
    all has arrived. Clients go on meanwhile. When this command is interrupted the cluster goes on
    by itself, and the same command shows how far it is. No partition gets fewer racks.

    \b
    JSON: {"executed", "bytes", "seconds" (with --throttle, else null), "in_progress" (before),
     "moves": [{"topic", "partition", "from", "to", "bytes"}]}
    """
    document = run_moves(bootstrap, plan_of, throttle, accept and not dry_run, as_json=as_json)
    if as_json:
        show_json(document)


def plan_of(cluster: Cluster) -> list[Move]:
    """What a rebalance moves."""
    from ottla.client.rebalancing import plan_rebalance

    return plan_rebalance(cluster)


@click.command(cls=Command)
@click.argument("broker", type=click.IntRange(0))
@throttle_option
@dry_run_option
@yes_option
@bootstrap_option
@json_option
def drain(
    broker: int,
    throttle: int | None,
    dry_run: bool,
    accept: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move everything away from a broker, so that it can be removed.

    Shows what would be moved; --yes does it, and waits until the broker is empty. A broker that is
    dead can be drained too: its partitions are copied from their other replicas. Refused where a
    partition would have fewer replicas than now, or where nobody leads it. When this
    command is interrupted the cluster goes on by itself, and the same command shows how far it is.

    \b
    JSON: as of `ottla cluster rebalance`.
    """
    from ottla.client.rebalancing import plan_drain

    def plan(cluster: Cluster) -> list[Move]:
        named = {each for replicas in cluster.placement.values() for each in replicas}
        if broker not in cluster.racks and broker not in named:
            there = ", ".join(map(str, sorted(cluster.racks)))
            raise click.ClickException(f"there is no broker {broker}; this cluster has {there}")
        return plan_drain(cluster, broker)

    document = run_moves(
        bootstrap, plan, throttle, accept and not dry_run, as_json=as_json, emptied=broker
    )
    if as_json:
        show_json(document)
    elif accept and not dry_run:
        click.echo(f"broker {broker} holds no partitions: it can be stopped and removed")


@click.command(cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option(
    "--replication", type=click.IntRange(1, 10_000), required=True, help="Copies of each partition."
)
@throttle_option
@dry_run_option
@yes_option
@bootstrap_option
@json_option
def replicate(
    names: tuple[str, ...],
    replication: int,
    throttle: int | None,
    dry_run: bool,
    accept: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Give topics more replicas, or fewer.

    Shows which brokers would have them; --yes does it, and waits until all copies are there.
    Clients go on meanwhile. When this command is interrupted the cluster goes on by itself, and
    the same command shows how far it is. `min.insync.replicas` stays as it is.

    \b
    JSON: as of `ottla cluster rebalance`.
    """
    from ottla.cli.names import no_topic
    from ottla.client.rebalancing import plan_replication

    def plan(cluster: Cluster) -> list[Move]:
        known = {tp.topic for tp in cluster.placement}
        missing = [name for name in names if name not in known]
        if missing:
            raise click.ClickException(no_topic(missing[0], known))
        return plan_replication(cluster, names, replication)

    document = run_moves(
        bootstrap, plan, throttle, accept and not dry_run, as_json=as_json, refuse=_refuse_vain
    )
    if as_json:
        show_json(document)


def run_moves(
    bootstrap: str,
    plan: Callable[[Cluster], list[Move]],
    throttle: int | None,
    accept: bool,
    *,
    as_json: bool = False,
    hint: str = "nothing is changed without --yes",
    emptied: int | None = None,
    refuse: Callable[[DirectAdmin, list[Move]], None] = lambda admin, moves: None,
) -> dict[str, Any]:
    """Make a plan, show it, carry it out if that is wanted; returns it for programs. A broker that
    is to be `emptied` holds nothing in the end. A plan that is no use is for `refuse` to tell."""
    from ottla.client.direct import DirectAdmin
    from ottla.client.reassignments import ongoing
    from ottla.client.rebalancing import TooFewBrokers

    with broker_errors(bootstrap):
        connect(bootstrap)
    with broker_errors(bootstrap), DirectAdmin(bootstrap, client_id="ottla-cli") as admin:
        active = ongoing(admin.router)
        try:
            moves = plan(_look(admin, active))
        except TooFewBrokers as error:
            raise click.ClickException(str(error)) from None
        refuse(admin, moves)
        if not as_json:
            _show(moves, throttle, active, None if accept else hint)
        if accept:
            _refuse_leaderless(admin, moves)
            _carry_out(admin, moves, active, throttle)
            _refuse_missed(admin, moves, active, emptied)
        if accept and not as_json and (moves or active):
            click.echo(f"{count(len({*_partitions(moves), *active}), 'partition')} moved")
    return _document(moves, throttle, active, accept)


def _partitions(moves: Sequence[Move]) -> list[TopicPartition]:
    return [move.partition for move in moves]


def _look(admin: DirectAdmin, active: Mapping[TopicPartition, Ongoing]) -> Cluster:
    """Who is there, and what is where; what is on its way counts as where it goes."""
    from ottla.client.rebalancing import Cluster

    nodes = admin.describe_cluster().nodes
    sizes: dict[TopicPartition, int] = {}
    for (tp, _), size in _sizes(admin, [node.id for node in nodes]).items():
        sizes[tp] = max(size, sizes.get(tp, 0))
    return Cluster({node.id: node.rack for node in nodes}, _placement(admin, active), sizes)


def _placement(
    admin: DirectAdmin, active: Mapping[TopicPartition, Ongoing]
) -> dict[TopicPartition, tuple[int, ...]]:
    found = _partitions_of(admin, admin.topics())
    return {tp: _target(part.replicas, active.get(tp)) for tp, part in found.items()}


def _partitions_of(
    admin: DirectAdmin, topics: Iterable[str]
) -> dict[TopicPartition, PartitionDescription]:
    from ottla.model.ids import TopicPartition

    found: dict[TopicPartition, PartitionDescription] = {}
    for name, topic in admin.describe_each(sorted(topics)).items():
        if isinstance(topic, KafkaError):
            if topic.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise topic
            continue  # deleted meanwhile
        found |= {TopicPartition(name, part.partition): part for part in topic.partitions}
    return found


def _target(replicas: Sequence[int], ongoing: Ongoing | None) -> tuple[int, ...]:
    going = () if ongoing is None else ongoing.removing
    return tuple(each for each in replicas if each not in going)


def _sizes(admin: DirectAdmin, brokers: Sequence[int]) -> dict[tuple[TopicPartition, int], int]:
    """The bytes of each replica on these brokers, as far as they answer: one may just have died."""
    from ottla.model.ids import TopicPartition

    sizes = {}
    for broker in brokers:
        with suppress(KafkaError):
            for folder in admin.log_dirs(broker):
                for each in folder.replicas:
                    if not each.future:
                        sizes[TopicPartition(each.topic, each.partition), broker] = each.size
    return sizes


# --- showing it -----------------------------------------------------------------------------------


def _seconds(moves: Sequence[Move], throttle: int | None) -> float | None:
    """How long the copies take, as far as a limit says so."""
    if throttle is None:
        return None
    incoming: Counter[int] = Counter()
    for move in moves:
        for broker in {*move.after} - {*move.before}:
            incoming[broker] += move.size
    return max(incoming.values(), default=0) / throttle


def _show(
    moves: Sequence[Move],
    throttle: int | None,
    active: Mapping[TopicPartition, Ongoing],
    hint: str | None,
) -> None:
    from ottla.cli.live import in_bytes

    if active:
        click.echo(f"{count(len(active), 'partition')} on the way already")
    if not moves:
        click.echo("everything is where it should be" if not active else "nothing else is to move")
        return
    title = f"{count(len(moves), 'partition')} to move, {in_bytes(_copied(moves))} to copy"
    seconds = _seconds(moves, throttle)
    if seconds is not None:
        title += f", {seconds:,.0f} s at least"
    if hint is not None:
        title += f"; {hint}"
    if len(moves) > _MOST:
        title += f"; the first {_MOST} of them:"
    columns = (Column("PARTITION"), Column("FROM"), Column("TO"), Column("COPIES", numeric=True))
    rows = [
        (str(each.partition), _ids(each.before), _ids(each.after), in_bytes(each.copied))
        for each in moves[:_MOST]
    ]
    show_table(columns, rows, title=title)


def _copied(moves: Sequence[Move]) -> int:
    return sum(move.copied for move in moves)


def _document(
    moves: Sequence[Move],
    throttle: int | None,
    active: Mapping[TopicPartition, Ongoing],
    accept: bool,
) -> dict[str, Any]:
    return {
        "executed": accept,
        "bytes": _copied(moves),
        "seconds": _seconds(moves, throttle),
        "in_progress": len(active),
        "moves": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "from": list(each.before),
                "to": list(each.after),
                "bytes": each.copied,
            }
            for each in moves
        ],
    }


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


# --- doing it -------------------------------------------------------------------------------------


def _carry_out(
    admin: DirectAdmin,
    moves: Sequence[Move],
    active: Mapping[TopicPartition, Ongoing],
    throttle: int | None,
) -> None:
    """Hand the plan to the cluster, and wait until nothing of it is on its way any more."""
    from ottla.client.reassignments import CopyLimit, begin, movements, ongoing

    wanted = {move.partition: move.after for move in moves}
    current = {move.partition: move.before for move in moves}
    limit = CopyLimit(admin, throttle)
    try:
        limit.apply(movements(active, wanted, current))
        failed = begin(admin.router, wanted) if wanted else {}
    except (KafkaError, KeyboardInterrupt) as error:
        # Nothing moves by this command, so there is nothing to be limited.
        with suppress(KafkaError):
            if not ongoing(admin.router):
                limit.lift()
        if isinstance(error, KafkaError):
            raise
        click.echo("interrupted: the same command shows whether anything moves", err=True)
        raise SystemExit(_INTERRUPTED) from None
    try:
        _wait(admin, {*wanted, *active} - failed.keys())
        if not ongoing(admin.router):
            limit.lift()
        elif throttle is not None:
            click.echo("others are moved still: the same command lifts the limit later", err=True)
    except (KafkaError, KeyboardInterrupt) as error:
        lifts = "" if throttle is None else ", and lifts the limit in the end"
        click.echo(
            f"the cluster goes on by itself; the same command shows how far{lifts}", err=True
        )
        if isinstance(error, KafkaError):
            raise
        raise SystemExit(_INTERRUPTED) from None
    if failed:
        tp, refusal = next(iter(failed.items()))
        raise click.ClickException(
            f"{count(len(failed), 'partition')} cannot be moved, as {tp}: {refusal}"
        )


def _refuse_leaderless(admin: DirectAdmin, moves: Sequence[Move]) -> None:
    """A partition that nobody leads can be copied from nobody: that would be waited for in vain."""
    moving = set(_partitions(moves))
    until = time.monotonic() + _HEARSAY  # a leader may have died a moment ago
    while moving:
        found = _partitions_of(admin, {tp.topic for tp in moving})
        without = sorted(tp for tp in moving if tp in found and found[tp].leader is None)
        if not without:
            return
        if time.monotonic() > until:
            raise click.ClickException(
                f"{count(len(without), 'partition')} cannot be moved, as {without[0]}, which "
                "nobody leads: nothing was changed. Bring back the brokers that `ottla cluster "
                "status` says it waits for"
            )
        time.sleep(_PAUSE)


def _refuse_vain(admin: DirectAdmin, moves: list[Move]) -> None:
    """Replicas that the brokers would add again in the same moment cannot be taken away."""
    from ottla.client.cluster_health import look
    from ottla.client.direct import BROKER

    fewer = {
        each.partition.topic: len(each.after)
        for each in moves
        if each.partition.topic in _FACTORS and len(each.after) < len(each.before)
    }
    health = look(admin) if fewer else None
    if health is None or not health.known.ours or health.controller not in health.live:
        return
    for topic, wanted in sorted(fewer.items()):
        name = _FACTORS[topic]
        [entry] = admin.describe_configs(BROKER, str(health.controller), keys=[name])
        again = min(int(entry.value or 1), len(health.live))
        if wanted < again:
            raise click.ClickException(
                f"{topic} would get {again} replicas again, since {name} is {entry.value} and "
                f"there are {len(health.live)} brokers: stop the one that is to go first, or set "
                f"that to {wanted} for all brokers and restart them"
            )


def _refuse_missed(
    admin: DirectAdmin,
    moves: Sequence[Move],
    active: Mapping[TopicPartition, Ongoing],
    emptied: int | None,
) -> None:
    """That nothing moves any more does not say that all has arrived: somebody else may have
    cancelled it, or asked for other places, and new topics go to any broker."""
    from ottla.client.reassignments import ongoing

    wanted = {tp: _target(each.replicas, each) for tp, each in active.items()}
    wanted |= {move.partition: move.after for move in moves}
    until = time.monotonic() + _HEARSAY  # whoever is asked may not have heard of the end
    while True:
        found = _placement(admin, ongoing(admin.router))
        missed = {tp: at for tp, at in found.items() if at != wanted.get(tp, at)}
        left = {tp: at for tp, at in found.items() if emptied in at}
        if not missed and not left:
            return
        if time.monotonic() > until:
            break
        time.sleep(_PAUSE)
    if missed:
        tp, at = next(iter(sorted(missed.items())))
        raise click.ClickException(
            f"{count(len(missed), 'partition')} did not arrive, as {tp}, which is on {_ids(at)}: "
            "another command has cancelled that, or moved it elsewhere. Typed again, this one "
            "makes a new plan"
        )
    raise click.ClickException(
        f"broker {emptied} has got {count(len(left), 'partition')} meanwhile, as {min(left)}: type "
        "the same command again"
    )


def _wait(admin: DirectAdmin, watched: set[TopicPartition]) -> None:
    from ottla.cli.progress import copies_progress, on_terminal
    from ottla.client.reassignments import ongoing

    left = _left(admin, watched) if on_terminal() else 0
    absent: set[int] = set()
    with copies_progress("moving", left) as bar:
        while going := ongoing(admin.router, watched):
            absent = _tell_absent(admin, {new for each in going.values() for new in each.adding},
                                  absent)  # fmt: skip
            if on_terminal():
                bar(max(0, left - _left(admin, watched)))
            time.sleep(_PAUSE)


def _tell_absent(admin: DirectAdmin, coming: set[int], told: set[int]) -> set[int]:
    """Say, once, for which brokers that are not there the cluster waits; returns these."""
    absent = coming - {node.id for node in admin.describe_cluster().nodes}
    for broker in sorted(absent - told):
        click.echo(
            f"broker {broker} is not there, and partitions wait for it: start it, or see what "
            f"`ottla cluster drain {broker}` would do",
            err=True,
        )
    return absent


def _left(admin: DirectAdmin, watched: set[TopicPartition]) -> int:
    """How many bytes are to be copied still."""
    from ottla.client.reassignments import ongoing

    sizes = _sizes(admin, [node.id for node in admin.describe_cluster().nodes])
    left = 0
    for tp, each in ongoing(admin.router, watched).items():
        whole = max((sizes.get((tp, broker), 0) for broker in each.replicas), default=0)
        left += sum(whole - sizes.get((tp, broker), 0) for broker in each.adding)
    return left
