"""`ottla pipeline offsets`: where a pipeline stands in its topics, and moving it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

import click

from ottla.cli.command import Noun
from ottla.cli.group_changes import target_of
from ottla.cli.options import complete_topics, json_option
from ottla.cli.output import Column, count, json_text, show_json, show_table
from ottla.cli.pipeline_places import (
    complete_pipelines,
    home_of,
    open_groups_of,
    pipeline_errors,
    state_option,
)

if TYPE_CHECKING:
    from ottla.client.groups import Groups
    from ottla.client.resets import Target
    from ottla.model.ids import TopicPartition
    from ottla.pipelines.driver.home import Home

_PLACE = re.compile(r"(?P<topic>[A-Za-z0-9._-]+):(?P<partition>\d+)=(?P<offset>\d+)")
_name = click.argument("name", shell_complete=complete_pipelines)
_dry_run = click.option("--dry-run", is_flag=True, help="Only show where it would go on.")


@click.group(cls=Noun)
def offsets() -> None:
    """Show and move the place from which a pipeline goes on."""


@offsets.command()
@_name
@state_option
@json_option
def show(name: str, state_dir: str | None, as_json: bool) -> None:
    """Show where a pipeline goes on, beside its group and the ends of its topics.

    \b
    JSON: {"pipeline", "finished", "unfinished", "offset",
           "partitions": [{"topic", "partition", "checkpoint", "group", "end", "lag"}]}
    """
    with pipeline_errors():
        from ottla.pipelines.driver.moving import whereabouts

        home = home_of(name, state_dir)
        with open_groups_of(home) as groups:
            found = whereabouts(home, groups)
    rows = [
        (
            each.partition.topic,
            each.partition.partition,
            each.checkpoint,
            each.group,
            each.end,
            each.lag,
        )
        for each in found.partitions
    ]
    if as_json:
        names = ("topic", "partition", "checkpoint", "group", "end", "lag")
        show_json(
            {
                "pipeline": found.pipeline,
                "finished": found.finished,
                "unfinished": found.unfinished,
                "offset": found.document,
                "partitions": [dict(zip(names, row, strict=True)) for row in rows],
            }
        )
        return
    again = "" if found.unfinished is None else f"  batch {found.unfinished} is to be repeated"
    done = "no batch finished yet" if found.finished is None else f"after batch {found.finished}"
    title = f"{found.pipeline}  {done}{again}"
    if rows:
        columns = [Column("TOPIC"), Column("PARTITION", True, is_name=True),
                   Column("CHECKPOINT", True), Column("GROUP", True), Column("END", True),
                   Column("LAG", True)]  # fmt: skip
        show_table(columns, rows, title=title)
        return
    click.echo(title)
    if found.document is not None:
        click.echo(json_text(found.document))


@offsets.command(name="set")
@_name
@click.argument("places", metavar="TOPIC:PARTITION=OFFSET...", nargs=-1, required=True)
@_dry_run
@state_option
@json_option
def set_(
    name: str, places: tuple[str, ...], dry_run: bool, state_dir: str | None, as_json: bool
) -> None:
    """Let a stopped pipeline go on from these offsets; other partitions stay where they are.

    An offset outside of the log becomes its nearest end. The group is moved as well.

    JSON: {"pipeline", "moved", "offsets": [{"topic", "partition", "before", "after"}]}
    """
    from ottla.client.resets import ToGiven
    from ottla.model.ids import TopicPartition

    wanted: dict[TopicPartition, int] = {}
    for place in places:
        found = _PLACE.fullmatch(place)
        if found is None:
            raise click.UsageError(f"{place!r}: expected TOPIC:PARTITION=OFFSET, as orders:0=1200")
        wanted[TopicPartition(found["topic"], int(found["partition"]))] = int(found["offset"])
    with pipeline_errors():
        home = home_of(name, state_dir)
        with open_groups_of(home) as groups:
            _move(home, groups, ToGiven(wanted), (), dry_run=dry_run, as_json=as_json)


@offsets.command(name="reset")
@_name
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]",
              shell_complete=complete_topics,
              help="Only this; repeatable.  [default: everything it reads]")  # fmt: skip
@click.option("--to", metavar="earliest|latest|current|N|TIME",
              help="An end of the log, an offset, or a time as 2026-05-01T12:00:00Z.")  # fmt: skip
@click.option("--back", metavar="DURATION", help="To the records of so long ago: 90s, 15m, 2h, 1d.")
@click.option("--shift", type=int, metavar="N", help="On by N records, or back when negative.")
@click.option("--from-file", type=click.File(encoding="utf-8"), metavar="FILE",
              help="To the offsets in a file of topic,partition,offset lines.")  # fmt: skip
@_dry_run
@state_option
@json_option
def reset(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    name: str,
    topics: tuple[str, ...],
    to: str | None,
    back: str | None,
    shift: int | None,
    from_file: IO[str] | None,
    dry_run: bool,
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Move a stopped pipeline to a place in its topics, with the choices of Kafka's own tool.

    Rows that were written stay as they are: going back writes them again, going on leaves some
    out. The group is moved as well.

    JSON: {"pipeline", "moved", "offsets": [{"topic", "partition", "before", "after"}]}
    """
    target = target_of(name, to, back, shift, from_file)
    with pipeline_errors():
        home = home_of(name, state_dir)
        with open_groups_of(home) as groups:
            _move(home, groups, target, topics, dry_run=dry_run, as_json=as_json)


def _move(
    home: Home,
    groups: Groups,
    target: Target,
    scope: tuple[str, ...],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from ottla.pipelines.driver.moving import move_to, planned, stopped, whereabouts

    with stopped(home):
        before = {each.partition: each.checkpoint for each in whereabouts(home, groups).partitions}
        try:
            after = planned(home, groups, target, scope)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        if not dry_run:
            move_to(home, groups, after)
    _show(home.name, before, after, moved=not dry_run, as_json=as_json)


def _show(
    name: str,
    before: Mapping[TopicPartition, int | None],
    after: Mapping[TopicPartition, int],
    *,
    moved: bool,
    as_json: bool,
) -> None:
    rows = [
        (tp.topic, tp.partition, before.get(tp), offset) for tp, offset in sorted(after.items())
    ]
    if as_json:
        names = ("topic", "partition", "before", "after")
        places = [dict(zip(names, row, strict=True)) for row in rows]
        show_json({"pipeline": name, "moved": moved, "offsets": places})
        return
    columns = [Column("TOPIC"), Column("PARTITION", True, is_name=True), Column("BEFORE", True),
               Column("AFTER", True)]  # fmt: skip
    done = "moved" if moved else "would be moved"
    show_table(columns, rows, title=f"{name}  {count(len(rows), 'partition')} {done}")
