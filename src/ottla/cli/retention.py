"""`ottla topic explain-retention`: why each segment is still there, and when it will go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ottla.cli.command import Command
from ottla.cli.live import age, in_bytes
from ottla.cli.options import bootstrap_option, complete_topics, connect, json_option
from ottla.cli.output import (
    Column,
    broker_errors,
    count,
    explain,
    grouped,
    say,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.retention import (
        PartitionRetention,
        Position,
        SegmentRetention,
        TopicRetention,
    )

_LAST_YEAR = 253_402_300_799_999
"""The last moment that a calendar of four digits has."""


@click.command(name="explain-retention", cls=Command)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@bootstrap_option
@json_option
def explain_retention(name: str, bootstrap: str, as_json: bool) -> None:
    """Show why each segment of a topic is still there, and when it will go.

    DUE is when a segment may be deleted; the broker's next pass after that does it. COUNTED FROM is
    what its age is counted from: the newest timestamp in it, or (file) the moment its file was last
    written. UNREAD BY are the groups that have committed an offset and not read all of it.

    \b
    JSON: {"topic", "now", "check_interval_ms", "groups_complete",
           "settings": {"cleanup.policy", "retention.ms", "retention.bytes", "segment.ms",
                        "ottla.retention.hold.bytes"},
           "partitions": [{"partition", "leader", "error", "start", "high_watermark", "end",
             "summary", "holds": [{"group", "offset"}],
             "segments": [{"base_offset", "end_offset", "size", "active", "rule", "why", "due",
               "due_unheld", "behind", "newest_timestamp", "counted_from", "counted_from_file",
               "rolls", "unread_by": [{"group", "offset", "records"}]}]}]}

    Moments are milliseconds since 1970; "due" is null when no pass will delete the segment, and
    not after "now" (perhaps 0) when the next pass will.
    """
    with broker_errors(bootstrap, topics=[name]):
        connect(bootstrap)
        from ottla.client.retention import explain as ask
        from ottla.client.router import Router

        with Router(bootstrap, client_id="ottla-cli") as router:
            topic = ask(router, name)
    if as_json:
        show_json(_document(topic, bootstrap))
        return
    for number, partition in enumerate(topic.partitions):
        if number:
            click.echo()
        _show(topic, partition, bootstrap)
    if not topic.groups_complete:
        say("a coordinator is still loading groups: some may be missing under UNREAD BY")


# --- words ----------------------------------------------------------------------------------------


def why(topic: TopicRetention, segment: SegmentRetention) -> str:  # noqa: PLR0911 - one sentence for each rule
    """One clause: what keeps the segment, or lets it go."""
    match segment.rule:
        case "start":
            return "below the log start offset: goes with the next pass"
        case "size":
            return f"the partition has retention.bytes={topic.retention_bytes} without it"
        case "time":
            return _by_time(topic, segment)
        case "hold":
            else_due = _due(topic, segment.unheld_ms)
            return f"a group in ottla.retention.hold.groups has not read it; else due: {else_due}"
        case "watermark":
            return "reaches beyond the high watermark"
        case "empty":
            return "active, without records"
        case "unlimited":
            return "retention.ms=-1" + (
                ""
                if topic.retention_bytes < 0
                else f", within retention.bytes={topic.retention_bytes}"
            )
        case "compact":
            return "kept by compaction: the last value of every key stays"
        case "none":
            return "cleanup.policy is empty: everything stays"
    return segment.rule


def _by_time(topic: TopicRetention, segment: SegmentRetention) -> str:
    if segment.behind is not None:
        return f"waits for the older segment at offset {segment.behind}"
    limit = f"retention.ms={topic.retention_ms}"
    over = segment.due_ms is not None and segment.due_ms <= topic.now_ms
    if segment.newest_ms is None:
        what = "file without timestamps"
    elif segment.by_file:
        what = f"file (its newest timestamp, {moment(segment.newest_ms)}, lies too far ahead)"
    else:
        what = "newest record"
    return f"its {what} is {'older' if over else 'younger'} than {limit}"


def summary(
    topic: TopicRetention, partition: PartitionRetention, number: Callable[[int], str] = str
) -> str:
    """One sentence about a partition, with offsets as `number` writes them."""
    segments = partition.segments
    due = [
        segment
        for segment in segments
        if segment.due_ms is not None and segment.due_ms <= topic.now_ms
    ]
    if due:
        what = f"{count(len(due), 'segment')} ({in_bytes(sum(segment.size for segment in due))})"
        within = age(topic.check_interval_ms / 1000)
        return f"{what} will go with the next pass, within {within}."
    first = next((segment for segment in segments if segment.size), None)
    if first is None:
        return "There are no records."
    if first.rule == "hold":
        waiting = [hold for hold in partition.holds if (hold.offset or 0) < first.end_offset]
        who = ", ".join(_place(hold, number) for hold in waiting)
        return (
            f"Everything from offset {number(first.base_offset)} on waits for {who}, as long as "
            f"the partition is not larger than {in_bytes(topic.hold_bytes)}."
        )
    if first.due_ms is not None:
        left = age((first.due_ms - topic.now_ms) / 1000)
        return f"The oldest segment goes at {moment(first.due_ms)}, in {left}: {why(topic, first)}."
    return f"Nothing goes by itself: {why(topic, first)}."


def moment(milliseconds: int | None) -> str | None:
    """A moment for people, in UTC."""
    if milliseconds is None:
        return None
    if milliseconds > _LAST_YEAR:
        return "after the year 9999"
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S")


# --- output ---------------------------------------------------------------------------------------


def _show(topic: TopicRetention, partition: PartitionRetention, bootstrap: str) -> None:
    policy = ",".join(topic.cleanup_policy) or "(empty)"
    title = f"{topic.topic}-{partition.partition}  cleanup.policy={policy}"
    if partition.error is not None:
        click.echo(f"{title}\n{explain(partition.error, bootstrap)}")
        return
    show_table(
        [
            Column("OFFSETS"),
            Column("SIZE", True),
            Column("COUNTED FROM"),
            Column("DUE"),
            Column("WHY"),
            Column("UNREAD BY"),
        ],
        [
            (
                f"{segment.base_offset:,}-{f'{segment.end_offset - 1:,}' if segment.size else ''}",
                in_bytes(segment.size),
                f"{moment(segment.since_ms)}{' (file)' if segment.by_file else ''}"
                if segment.size
                else None,
                _due(topic, segment.due_ms),
                why(topic, segment),
                ", ".join(_place(each, grouped) for each in segment.readers) or None,
            )
            for segment in partition.segments
        ],
        title=title,
    )
    click.echo(summary(topic, partition, grouped))


def _place(position: Position, number: Callable[[int], str]) -> str:
    where = "no offset" if position.offset is None else f"at {number(position.offset)}"
    return f"{position.group} ({where})"


def _due(topic: TopicRetention, due_ms: int | None) -> str | None:
    return "next pass" if due_ms is not None and due_ms <= topic.now_ms else moment(due_ms)


def _document(topic: TopicRetention, bootstrap: str) -> dict[str, object]:
    return {
        "topic": topic.topic,
        "now": topic.now_ms,
        "check_interval_ms": topic.check_interval_ms,
        "groups_complete": topic.groups_complete,
        "settings": {
            "cleanup.policy": ",".join(topic.cleanup_policy),
            "retention.ms": topic.retention_ms,
            "retention.bytes": topic.retention_bytes,
            "segment.ms": topic.segment_ms,
            "ottla.retention.hold.bytes": topic.hold_bytes,
        },
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "error": None if partition.error is None else explain(partition.error, bootstrap),
                "start": partition.start,
                "high_watermark": partition.high_watermark,
                "end": partition.end,
                "summary": None if partition.error is not None else summary(topic, partition),
                "holds": [{"group": hold.group, "offset": hold.offset} for hold in partition.holds],
                "segments": [_segment(topic, segment) for segment in partition.segments],
            }
            for partition in topic.partitions
        ],
    }


def _segment(topic: TopicRetention, segment: SegmentRetention) -> dict[str, object]:
    return {
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "size": segment.size,
        "active": segment.active,
        "rule": segment.rule,
        "why": why(topic, segment),
        "due": segment.due_ms,
        "due_unheld": segment.unheld_ms,
        "behind": segment.behind,
        "newest_timestamp": segment.newest_ms,
        "counted_from": segment.since_ms,
        "counted_from_file": segment.by_file,
        "rolls": segment.rolls_ms,
        "unread_by": [
            {
                "group": each.group,
                "offset": each.offset,
                "records": segment.end_offset - max(segment.base_offset, each.offset or 0),
            }
            for each in segment.readers
        ],
    }
