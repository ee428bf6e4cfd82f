"""`ottla top`: what a cluster does right now: throughput, lag, partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ottla.cli.group import Watcher, group_table
from ottla.cli.live import Frame, Table, keep_showing, show
from ottla.cli.options import bootstrap_option, json_option, open_groups
from ottla.cli.output import Column, broker_errors, count

if TYPE_CHECKING:
    from ottla.client.groups import Groups
    from ottla.client.overview import Look

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@click.command()
@click.option("--interval", type=click.FloatRange(0.1), default=2.0, show_default=True,
              metavar="SECONDS", help="Between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Show one interval, and end.")
@click.option("--topics", "most", type=click.IntRange(1), default=20, show_default=True,
              metavar="N", help="Show so many topics, the busiest first.")  # fmt: skip
@click.option("--internal", is_flag=True, help="Also topics that brokers keep for themselves.")
@bootstrap_option
@json_option
def top(
    interval: float, once: bool, most: int, internal: bool, bootstrap: str, as_json: bool
) -> None:
    """Show live throughput, lag and partitions.

    Until Ctrl-C; in a pipe one picture below the other.

    \b
    JSON, a line per look: {"cluster", "brokers", "partitions", "offline", "under_replicated",
     "records_per_second", "bytes_per_second",
     "topics": [{"topic", "partitions", "offline", "records", "bytes", "records_per_second",
                 "bytes_per_second"}],
     "groups": [{"group", "state", "members", "partitions", "lag", "lag_seconds", "rate"}]}
    """
    with broker_errors(bootstrap), open_groups(bootstrap) as groups:
        monitor = Monitor(groups, internal=internal, most=most)
        time.sleep(interval if once else min(interval, 1.0))
        if once:
            show(monitor.frame(), as_json=as_json)
        else:
            keep_showing(monitor.frame, interval, as_json=as_json)


class Monitor:
    """Looks at the cluster, and compares with the look before."""

    def __init__(self, groups: Groups, *, internal: bool, most: int) -> None:
        self._groups = groups
        self._internal = internal
        self._most = most
        self._watcher = Watcher(groups, ())
        self._before: Look = self._look()
        self._watcher.rows()

    def frame(self) -> Frame:
        """What has happened since the last frame."""
        from ottla.client.overview import growth

        now = self._look()
        rows = []
        for figures in now.topics.values():
            grown = growth(self._before, now, figures.name)
            rows.append(
                {
                    "topic": figures.name,
                    "partitions": figures.partitions,
                    "offline": figures.leaderless,
                    "records": figures.records,
                    "bytes": figures.size,
                    "records_per_second": 0.0 if grown is None else grown.records,
                    "bytes_per_second": None if grown is None else grown.bytes,
                }
            )
        rows.sort(key=lambda row: (-_number(row["records_per_second"]), str(row["topic"])))
        groups = self._watcher.rows()
        document: dict[str, object] = {
            "cluster": now.cluster,
            "brokers": now.brokers,
            "partitions": sum(each.partitions for each in now.topics.values()),
            "offline": sum(each.leaderless for each in now.topics.values()),
            "under_replicated": sum(each.lagging for each in now.topics.values()),
            "records_per_second": sum(_number(row["records_per_second"]) for row in rows),
            "bytes_per_second": sum(_number(row["bytes_per_second"]) for row in rows),
            "topics": rows,
            "groups": groups,
        }
        self._before = now
        return Frame([self._topics(document, rows), group_table(groups)], document)

    def _look(self) -> Look:
        from ottla.client.overview import look

        return look(self._groups, internal=self._internal)

    def _topics(self, document: dict[str, object], rows: list[dict[str, object]]) -> Table:
        facts = [
            f"cluster {document['cluster']}",
            count(int(_number(document["brokers"])), "broker"),
            count(len(rows), "topic"),
            count(int(_number(document["partitions"])), "partition"),
            f"{_number(document['records_per_second']):.0f} records/s",
            f"{in_bytes(_number(document['bytes_per_second']))}/s",
        ]
        facts += [
            f"{document[name]} {name.replace('_', ' ')}"
            for name in ("offline", "under_replicated")
            if document[name]
        ]
        if len(rows) > self._most:
            facts.append(f"the busiest {self._most}")
        return Table(
            [
                Column("TOPIC"),
                Column("PARTITIONS", True),
                Column("RECORDS", True),
                Column("SIZE", True),
                Column("RECORDS/S", True),
                Column("BYTES/S", True),
            ],
            [
                (
                    row["topic"],
                    row["partitions"],
                    row["records"],
                    None if row["bytes"] is None else in_bytes(_number(row["bytes"])),
                    f"{_number(row['records_per_second']):.1f}",
                    None
                    if row["bytes_per_second"] is None
                    else in_bytes(_number(row["bytes_per_second"])),
                )
                for row in rows[: self._most]
            ],
            "  ".join(facts),
        )


def in_bytes(size: float) -> str:
    """`512 B`, `1.5 kB`, `20 MB`: thousands, as disks and networks are measured."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    return (
        f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 100 else f"{size:.1f} {_UNITS[unit]}"
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
