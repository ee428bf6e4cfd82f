"""`ottla offsets`: where the logs of topics begin and end, or are at a moment."""

from __future__ import annotations

import click

from ottla.cli.command import Command
from ottla.cli.options import bootstrap_option, complete_topics, json_option, open_router
from ottla.cli.output import Column, broker_errors, show_json, show_table
from ottla.errors import ErrorCode, KafkaError


@click.command(cls=Command)
@click.argument("topics", metavar="TOPIC[:0,1]...", nargs=-1, required=True,
                shell_complete=complete_topics)  # fmt: skip
@click.option(
    "--at",
    metavar="TIME",
    help="Also the first offset not before 2026-05-01T12:00:00Z, or milliseconds.",
)
@bootstrap_option
@json_option
def offsets(topics: tuple[str, ...], at: str | None, bootstrap: str, as_json: bool) -> None:
    """Show where the partitions of topics begin and end.

    EARLIEST is the first offset still there, LATEST the one the next record will get. NEWEST is the
    offset of the record with the highest timestamp.

    \b
    JSON: [{"topic", "partition", "earliest", "latest", "newest", "newest_timestamp",
            "at" (with --at; null when no record is that young)}]
    """
    from ottla.client.resets import scope
    from ottla.client.topic_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, TopicOffsets

    moment = None if at is None else _milliseconds(at)
    with broker_errors(bootstrap, topics=topics), open_router(bootstrap) as router:
        logs = TopicOffsets(router)
        try:
            partitions = sorted(scope(logs, topics))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        first = logs.offsets(dict.fromkeys(partitions, EARLIEST))
        last = logs.offsets(dict.fromkeys(partitions, LATEST))
        missing = [tp for tp in partitions if tp not in last]
        if missing:
            raise logs.why_missing(missing) or KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"nobody leads {', '.join(map(str, missing))}, or there is no such partition",
            )
        newest = logs.offsets(dict.fromkeys(partitions, MAX_TIMESTAMP))
        asked = {} if moment is None else dict.fromkeys(partitions, moment)
        there = logs.offsets(asked)
    documents = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "earliest": first[tp].offset,
            "latest": last[tp].offset,
            "newest": _known(newest[tp].offset) if tp in newest else None,
            "newest_timestamp": _known(newest[tp].timestamp) if tp in newest else None,
        }
        | ({} if moment is None else {"at": _known(there[tp].offset)})
        for tp in partitions
    ]
    if as_json:
        show_json(documents)
        return
    columns = [
        Column("TOPIC"),
        Column("PARTITION", True, is_name=True),
        Column("EARLIEST", True),
        Column("LATEST", True),
        Column("NEWEST", True),
    ]
    names = ["topic", "partition", "earliest", "latest", "newest"]
    if moment is not None:
        columns.append(Column("AT", True))
        names.append("at")
    show_table(columns, [[each[name] for name in names] for each in documents])


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _milliseconds(text: str) -> int:
    from ottla.client.resets import parse_datetime

    if text.isascii() and text.isdigit() and int(text) < 2**63:
        return int(text)
    try:
        return parse_datetime(text)
    except ValueError:
        raise click.UsageError(
            f"--at {text!r}: expected a time as 2026-05-01T12:00:00Z, or milliseconds since 1970"
        ) from None
