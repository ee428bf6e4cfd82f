"""`ottla group reset` and `ottla group delete`: what changes a group."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.names import nearest, no_group
from ottla.cli.options import (
    F,
    bootstrap_option,
    complete_groups,
    complete_topics,
    json_option,
    open_groups,
)
from ottla.cli.output import Column, broker_errors, count, show_json, show_table
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.client.groups import Groups
    from ottla.client.resets import Target


def _as_kafka_has_it(command: F) -> F:
    """Answer the flags of Kafka's own tool with ours."""

    def tell(_context: click.Context, option: click.Parameter, given: bool) -> None:
        if given:
            place = option.opts[0].removeprefix("--to-")
            raise click.UsageError(f"{option.opts[0]} is --to {place} here")

    for place in ("earliest", "latest", "current"):
        click.option(f"--to-{place}", is_flag=True, hidden=True, expose_value=False, callback=tell)(
            command
        )
    return command


@click.command(cls=Command)
@_as_kafka_has_it
@click.argument("name", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]",
              shell_complete=complete_topics, help="What to reset; repeatable.")  # fmt: skip
@click.option("--all-topics", is_flag=True, help="Reset everything the group has committed.")
@click.option("--to", metavar="earliest|latest|current|N|TIME",
              help="An end of the log, an offset, or a time as 2026-05-01T12:00:00Z.")  # fmt: skip
@click.option("--back", metavar="DURATION", help="To the records of so long ago: 90s, 15m, 2h, 1d.")
@click.option("--shift", type=int, metavar="N", help="On by N records, or back when negative.")
@click.option("--from-file", type=click.File(encoding="utf-8"), metavar="FILE",
              help="To the offsets in a file of topic,partition,offset lines.")  # fmt: skip
@click.option("--execute", is_flag=True, help="Do it. Without this it is only shown.")
@click.option("--create", is_flag=True, help="Also for a group that does not exist: this makes it.")
@bootstrap_option
@json_option
def reset(  # noqa: PLR0913, PLR0917 - one parameter for each option of the command
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to: str | None,
    back: str | None,
    shift: int | None,
    from_file: IO[str] | None,
    execute: bool,
    create: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move a group's offsets, while nobody is in it.

    Shows the new offsets; with --execute they are committed. A group that does not exist is refused
    unless --create says that it shall begin with these offsets.

    \b
    JSON: {"group", "executed",
           "offsets": [{"topic", "partition", "before", "after", "end"}]}
    """
    from ottla.client import resets

    target = target_of(name, to, back, shift, from_file)
    from_list = isinstance(target, resets.ToGiven)
    if sum((bool(topics), all_topics, from_list)) != 1:
        raise click.UsageError(
            "say what to reset: --topic, --all-topics or --from-file, one of them"
        )
    with broker_errors(bootstrap, topics=topics), open_groups(bootstrap) as groups:
        _check_idle(groups, name, create=create)
        committed = groups.offsets(name)
        try:
            partitions = resets.scope(groups.topics, topics) if topics else list(committed)
            if all_topics and not partitions:
                raise click.ClickException(
                    f"group {name!r} has committed nothing; name topics with --topic"
                )
            plan = resets.plan_reset(groups, name, partitions, target)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        if execute:
            groups.set_offsets(name, plan.offsets)
        ends = groups.topics.ends(plan.offsets)
    rows = [
        (tp.topic, tp.partition, committed[tp].offset if tp in committed else None, after, ends[tp])
        for tp, after in plan.offsets.items()
    ]
    if as_json:
        names = ("topic", "partition", "before", "after", "end")
        offsets = [dict(zip(names, row, strict=True)) for row in rows]
        show_json({"group": name, "executed": execute, "offsets": offsets})
        return
    columns = [Column("TOPIC"), Column("PARTITION", True, is_name=True), Column("BEFORE", True),
               Column("AFTER", True), Column("END", True)]  # fmt: skip
    done = "reset" if execute else "would be reset; --execute does it"
    show_table(columns, rows, title=f"{name}  {count(len(rows), 'partition')} {done}")


def target_of(  # noqa: C901, PLR0911 - one branch for each way to name a target
    name: str,
    to: str | None,
    back: str | None,
    shift: int | None,
    from_file: IO[str] | None,
) -> Target:
    from ottla.client import resets

    if sum(each is not None for each in (to, back, shift, from_file)) != 1:
        raise click.UsageError("say where to: --to, --back, --shift or --from-file, one of them")
    if shift is not None:
        return resets.ShiftBy(shift)
    if from_file is not None:
        try:
            plans = resets.parse_plans(from_file.read(), [name])
        except (ValueError, OSError) as error:
            raise click.ClickException(f"{from_file.name}: {error}") from None
        if set(plans) != {name}:
            others = ", ".join(sorted(set(plans) - {name}))
            raise click.ClickException(f"{from_file.name} is about another group: {others}")
        return resets.ToGiven(plans[name])
    if back is not None:
        return resets.ToTime(max(0, time.time_ns() // 1_000_000 - int(duration(back) * 1000)))
    assert to is not None
    match to:
        case "earliest":
            return resets.ToEarliest()
        case "latest":
            return resets.ToLatest()
        case "current":
            return resets.ToCurrent()
    digits = to.replace(",", "")  # as tables show it
    if digits.isascii() and digits.isdigit():
        return resets.ToOffset(int(digits))
    try:
        return resets.ToTime(resets.parse_datetime(to))
    except ValueError:
        raise click.UsageError(
            f"--to {to!r}: expected earliest, latest, current, an offset, or a time as "
            f"2026-05-01T12:00:00Z"
        ) from None


def duration(text: str, option: str = "--back") -> float:
    """Seconds in `90s`, `15m`, `2h`, `1d`, `1h30m`, or ISO 8601's `PT15M`."""
    import re

    from ottla.client.resets import parse_duration

    if text[:1] in "Pp":
        try:
            return parse_duration(text).total_seconds()
        except ValueError:
            pass
    parts = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", text)
    if not text or parts is None:
        raise click.UsageError(f"{option} {text!r}: expected a duration as 90s, 15m, 2h or 1d12h")
    sizes = (86400, 3600, 60, 1)
    return sum(float(part) * size for part, size in zip(parts.groups(), sizes, strict=True) if part)


def _check_idle(groups: Groups, name: str, *, create: bool) -> None:
    """Complain about a group with members, and about one that does not exist unless it shall be
    made: offsets committed for a misspelt name would make that group."""
    try:
        described = groups.describe(name)[name]
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        if create:
            return
        raise no_group(
            groups, name, "--create makes it with these offsets; nothing was changed"
        ) from None
    if not described.idle:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {name!r} has {count(len(described.members), 'member')}; stop "
            f"{'it' if len(described.members) == 1 else 'them'} first, nothing was changed",
        )


@click.command(cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]",
              shell_complete=complete_topics,
              help="Delete only what was committed for this; repeatable.")  # fmt: skip
@click.option("--if-exists", is_flag=True, help="Do nothing for a group that does not exist.")
@bootstrap_option
@json_option
def delete(
    names: tuple[str, ...],
    topics: tuple[str, ...],
    if_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Delete groups with their offsets, or only their offsets of some topics.

    JSON: {"deleted": [name], "missing": [name]}
    """
    from ottla.client import resets
    from ottla.client.errors import PartialFailureError

    failures: dict[str, KafkaError] = {}
    with broker_errors(bootstrap, topics=topics), open_groups(bootstrap) as groups:
        outcomes: dict[str, ErrorCode] = {}
        if topics:
            try:
                partitions = resets.scope(groups.topics, topics)
            except ValueError as error:
                raise click.UsageError(str(error)) from None
            for name in names:
                try:
                    codes = groups.delete_offsets(name, partitions).values()
                    outcomes[name] = next(
                        (c for c in codes if c is not ErrorCode.NONE), ErrorCode.NONE
                    )
                except KafkaError as error:
                    outcomes[name] = error.code
        else:
            outcomes = groups.delete(*names)
        missing = [n for n, code in outcomes.items() if code is ErrorCode.GROUP_ID_NOT_FOUND]
        names_there = [each.name for each in groups.list_groups()] if missing else []
        for name, code in outcomes.items():
            if code is not ErrorCode.NONE and not (if_exists and name in missing):
                failures[name] = _why(name, code, nearest(name, names_there))
        if failures:
            raise PartialFailureError(failures)
    deleted = [name for name in names if name not in missing]
    if as_json:
        show_json({"deleted": deleted, "missing": missing})
        return
    for name in names:
        what = f"offsets of group {name}" if topics else f"group {name}"
        click.echo(f"no group {name}" if name in missing else f"deleted {what}")


def _why(name: str, code: ErrorCode, near: str | None) -> KafkaError:
    match code:
        case ErrorCode.GROUP_ID_NOT_FOUND:
            hint = "" if near is None else f"; did you mean {near!r}?"
            return KafkaError(
                code, f"there is no such group{hint or '; with --if-exists that is no error'}"
            )
        case ErrorCode.NON_EMPTY_GROUP | ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
            return KafkaError(
                code, f"it has members; stop them first (`ottla group describe {name}`)"
            )
    return KafkaError(code)
