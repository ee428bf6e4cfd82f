"""`ottla group`: list, describe, reset, delete and watch groups of consumers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Noun
from ottla.cli.group_changes import delete, reset
from ottla.cli.live import Frame, Table, age, keep_showing, show
from ottla.cli.names import no_group
from ottla.cli.options import bootstrap_option, complete_groups, json_option, open_groups
from ottla.cli.output import Column, broker_errors, count, grouped, show_json, show_table
from ottla.cli.terminal import usable
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.groups import GroupDescription, Groups, PartitionLag
    from ottla.model.ids import TopicPartition

    Late = Mapping[TopicPartition, float]

_STATES = ("stable", "empty", "assigning", "reconciling", "preparingrebalance",
           "completingrebalance", "dead")  # fmt: skip
_TYPES = ("classic", "consumer", "share", "streams")


@click.group(cls=Noun)
def group() -> None:
    """List, describe, reset, delete and watch groups."""


# -- looking


@group.command(name="list")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES, case_sensitive=False),
              help="Only groups in this state; repeatable.")  # fmt: skip
@click.option("--type", "types", multiple=True, type=click.Choice(_TYPES, case_sensitive=False),
              help="Only groups of this type; repeatable.")  # fmt: skip
@bootstrap_option
@json_option
def list_(states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List groups.

    JSON: [{"group", "type", "state", "protocol"}]
    """
    with broker_errors(bootstrap), open_groups(bootstrap) as groups:
        found = sorted(groups.list_groups(), key=lambda each: each.name)
    chosen = [
        each
        for each in found
        if (not states or each.state.lower() in states)
        and (not types or each.type.lower() in types)
    ]
    if as_json:
        show_json(
            [
                {
                    "group": each.name,
                    "type": each.type.lower(),
                    "state": each.state,
                    "protocol": each.protocol,
                }
                for each in chosen
            ]
        )
        return
    show_table(
        [Column("GROUP"), Column("TYPE"), Column("STATE"), Column("PROTOCOL")],
        [(each.name, each.type.lower(), each.state, each.protocol or None) for each in chosen],
    )


@group.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_groups)
@click.option("--members", is_flag=True, help="Show members in place of partitions.")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], members: bool, bootstrap: str, as_json: bool) -> None:
    """Show what groups have committed, how far behind they are, and who reads what.

    Without a name all groups. LAG is in records; BEHIND is the age of the next record to be read.

    \b
    JSON: [{"group", "type", "state", "assignor", "epoch", "lag", "lag_seconds",
            "coordinator": {"id", "host", "port"},
            "members": [{"id", "instance", "client", "host", "epoch",
                         "partitions": [{"topic", "partition"}]}],
            "partitions": [{"topic", "partition", "committed", "end", "lag", "lag_seconds",
                            "member"}]}]
    """
    with broker_errors(bootstrap), open_groups(bootstrap) as groups:
        pictures = [_look(groups, name) for name in names or _all_names(groups)]
    if as_json:
        show_json([_document(*picture) for picture in pictures])
        return
    for number, (described, rows, late) in enumerate(pictures):
        if number:
            click.echo()
        if members:
            _show_members(described)
        else:
            _show_offsets(described, rows, late)


def _all_names(groups: Groups) -> list[str]:
    return sorted(
        each.name for each in groups.list_groups() if each.type in ("Classic", "Consumer")
    )


def _look(groups: Groups, name: str) -> tuple[GroupDescription, list[PartitionLag], Late]:
    from ottla.client.ages import lag_seconds

    try:
        described = groups.describe(name)[name]
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        raise no_group(groups, name, "`ottla group list` shows those there are") from None
    rows = groups.lag(name, described)
    return described, rows, lag_seconds(groups.router, rows, time.time_ns() // 1_000_000)


def total_lag(rows: list[PartitionLag]) -> int:
    """All records that are still to be read, where that is known."""
    return sum(row.lag or 0 for row in rows)


def _longest(late: Late) -> float | None:
    return max(late.values(), default=None)


def _title(described: GroupDescription, rows: list[PartitionLag], late: Late) -> str:
    place = described.coordinator
    facts = [
        described.name,
        described.state,
        described.type.lower(),
        *([described.assignor] if described.assignor else []),
        count(len(described.members), "member"),
        f"lag {grouped(total_lag(rows))}",
        f"behind {age(_longest(late)) or '-'}",
        f"coordinator {place} ({place.id})",
    ]
    return "  ".join(facts)


def _show_offsets(described: GroupDescription, rows: list[PartitionLag], late: Late) -> None:
    show_table(
        [
            Column("TOPIC"),
            Column("PARTITION", True, is_name=True),
            Column("COMMITTED", True),
            Column("END", True),
            Column("LAG", True),
            Column("BEHIND", True),
            Column("CLIENT"),
            Column("HOST"),
            Column("MEMBER"),
        ],
        [
            (
                row.partition.topic,
                row.partition.partition,
                row.committed,
                row.end,
                row.lag,
                age(late.get(row.partition)),
                row.member and row.member.client,
                row.member and row.member.host.removeprefix("/"),
                row.member and row.member.id,
            )
            for row in rows
        ],
        title=_title(described, rows, late),
    )


def _show_members(described: GroupDescription) -> None:
    show_table(
        [
            Column("MEMBER"),
            Column("INSTANCE"),
            Column("CLIENT"),
            Column("HOST"),
            Column("EPOCH", True, is_name=True),
            Column("PARTITIONS", True),
            Column("ASSIGNMENT"),
        ],
        [
            (
                each.id,
                each.instance,
                each.client,
                each.host.removeprefix("/"),
                each.epoch,
                len(each.assignment),
                " ".join(map(str, each.assignment)) or None,
            )
            for each in described.members
        ],
        title=f"{described.name}  {described.state}  {described.type.lower()}",
    )


def _document(
    described: GroupDescription, rows: list[PartitionLag], late: Late
) -> dict[str, object]:
    place = described.coordinator
    return {
        "group": described.name,
        "type": described.type.lower(),
        "state": described.state,
        "assignor": described.assignor or None,
        "epoch": described.epoch,
        "lag": total_lag(rows),
        "lag_seconds": _longest(late),
        "coordinator": {"id": place.id, "host": place.host, "port": place.port},
        "members": [
            {
                "id": each.id,
                "instance": each.instance,
                "client": each.client,
                "host": each.host.removeprefix("/"),
                "epoch": each.epoch,
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition} for tp in each.assignment
                ],
            }
            for each in described.members
        ],
        "partitions": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "committed": row.committed,
                "end": row.end,
                "lag": row.lag,
                "lag_seconds": late.get(row.partition),
                "member": row.member and row.member.id,
            }
            for row in rows
        ],
    }


@group.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_groups)
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True,
              metavar="SECONDS", help="Between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look once, and end.")
@bootstrap_option
@json_option
def watch(
    names: tuple[str, ...], interval: float, once: bool, bootstrap: str, as_json: bool
) -> None:
    """Watch how far behind groups are, until q or Ctrl-C.

    Without a name all groups. On a terminal the keys and colours are those of `ottla top`; in a
    pipe one picture is below the other. READ/S, or OUT/S, is how many records a second were
    committed since the last look.

    JSON, a line per look: [{"group", "state", "members", "partitions", "lag", "lag_seconds",
    "rate"}]
    """
    with broker_errors(bootstrap), open_groups(bootstrap) as groups:
        watcher = Watcher(groups, names)
        if once:
            show(watcher.frame(), as_json=as_json)
        elif as_json or not usable():
            keep_showing(watcher.frame, interval, as_json=as_json)
        else:
            watcher.rows()  # a name that is not there is refused before the screen is taken
            _draw(names, interval, bootstrap)


def _draw(names: tuple[str, ...], interval: float, bootstrap: str) -> None:
    from ottla.cli.top import draw
    from ottla.cli.top_figures import Monitor
    from ottla.cli.top_screen import Status, View

    monitor = Monitor(lambda: open_groups(bootstrap), topics=False, groups=names)
    view = View("lag", shown="groups", only=True)
    with closing(monitor):
        draw(monitor, interval, Status(bootstrap, "ottla group watch"), view)


class Watcher:
    """Looks at groups again and again, and knows what it saw the last time."""

    def __init__(self, groups: Groups, names: tuple[str, ...]) -> None:
        self._groups = groups
        self._names = names
        self._before: dict[str, tuple[float, int]] = {}

    def rows(self) -> list[dict[str, object]]:
        """What is known of each group now."""
        found: list[dict[str, object]] = []
        for name in self._names or _all_names(self._groups):
            try:
                described, rows, late = _look(self._groups, name)
            except KafkaError as error:
                if self._names or error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
                continue  # deleted since the list was made
            done = sum(row.committed or 0 for row in rows)
            now = time.monotonic()
            then, before = self._before.get(name, (now, done))
            self._before[name] = (now, done)
            found.append(
                {
                    "group": name,
                    "state": described.state,
                    "members": len(described.members),
                    "partitions": len(rows),
                    "lag": total_lag(rows),
                    "lag_seconds": _longest(late),
                    "rate": (done - before) / (now - then) if now > then else None,
                }
            )
        return found

    def frame(self) -> Frame:
        """The same as a table."""
        rows = self.rows()
        return Frame([group_table(rows)], rows)


def group_table(rows: list[dict[str, object]]) -> Table:
    """Groups with their lag, the one that is most behind first."""

    def lateness(row: dict[str, object]) -> float:
        lag = row["lag"]
        return -float(lag) if isinstance(lag, int) else 0.0

    cells = []
    for row in sorted(rows, key=lateness):
        seconds, rate = row["lag_seconds"], row["rate"]
        cells.append(
            (
                row["group"],
                row["state"],
                row["members"],
                row["partitions"],
                row["lag"],
                age(seconds if isinstance(seconds, float) else None),
                f"{rate:,.1f}" if isinstance(rate, float) else None,
            )
        )
    columns = [
        Column("GROUP"),
        Column("STATE"),
        Column("MEMBERS", True),
        Column("PARTITIONS", True),
        Column("LAG", True),
        Column("BEHIND", True),
        Column("READ/S", True),
    ]
    return Table(columns, cells)


# -- changing

group.add_command(reset)
group.add_command(delete)
