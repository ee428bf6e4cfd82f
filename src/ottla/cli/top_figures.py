"""What `ottla top` and `ottla group watch` show: a cluster now, compared with the moment before.

`Monitor.look` asks a cluster and returns a `Snapshot`, in which rates are None as long as there is
nothing to compare with. After a failure the next look connects anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.group import group_table
from ottla.cli.live import Frame, Table, in_bytes
from ottla.cli.output import Column, count

if TYPE_CHECKING:
    from ottla.client.groups import Groups
    from ottla.client.overview import GroupFigures, Look, Times

SORTS = {"in": "i", "out": "o", "size": "s", "lag": "l", "name": "n"}
"""What can be sorted by, and its key."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic; `read`, `lag` and `late` are of the groups that read it."""

    name: str
    partitions: int
    offline: int
    records: int
    size: int | None
    written: float | None  # records a second
    grown: float | None  # bytes a second
    read: float | None  # records a second, of all groups together
    lag: int | None  # of the group that is farthest behind; None when nobody reads it
    late: float | None  # seconds, of the latest group


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of consumers."""

    name: str
    state: str
    members: int
    partitions: int
    lag: int
    late: float | None
    read: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment."""

    cluster: str
    brokers: int
    partitions: int
    offline: int
    under_replicated: int
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]
    first: bool = False  # there is nothing to compare with, hence no rate

    @property
    def written(self) -> float | None:
        """Records a second into all topics."""
        return _sum(row.written for row in self.topics)

    @property
    def grown(self) -> float | None:
        """Bytes a second into all topics."""
        return _sum(row.grown for row in self.topics)

    @property
    def read(self) -> float | None:
        """Records a second that groups committed."""
        return _sum(row.read for row in self.groups)

    @property
    def lag(self) -> int:
        """Records that groups still have to read."""
        return sum(row.lag for row in self.groups)

    def document(self) -> dict[str, object]:
        """The same for programs."""
        return {
            "cluster": self.cluster,
            "brokers": self.brokers,
            "partitions": self.partitions,
            "offline": self.offline,
            "under_replicated": self.under_replicated,
            "records_per_second": self.written or 0.0,
            "bytes_per_second": self.grown or 0.0,
            "read_per_second": self.read or 0.0,
            "lag": self.lag,
            "topics": [
                {
                    "topic": row.name,
                    "partitions": row.partitions,
                    "offline": row.offline,
                    "records": row.records,
                    "bytes": row.size,
                    "records_per_second": row.written or 0.0,
                    "bytes_per_second": row.grown,
                    "read_per_second": row.read,
                    "lag": row.lag,
                    "lag_seconds": row.late,
                }
                for row in self.topics
            ],
            "groups": [
                {
                    "group": row.name,
                    "state": row.state,
                    "members": row.members,
                    "partitions": row.partitions,
                    "lag": row.lag,
                    "lag_seconds": row.late,
                    "rate": row.read,
                }
                for row in self.groups
            ],
        }


class Monitor:
    """Looks at a cluster again and again, for one thread at a time.

    internal  also at topics that brokers keep for themselves
    topics    whether topics are wanted
    groups    only these groups; all when there is none
    """

    def __init__(
        self,
        connect: Callable[[], Groups],
        *,
        internal: bool = False,
        topics: bool = True,
        groups: Collection[str] = (),
    ) -> None:
        self._connect = connect
        self._internal = internal
        self._topics = topics
        self._groups = groups
        self._connection: Groups | None = None
        self._times: Times = {}
        self._before: tuple[Look, Mapping[str, GroupFigures]] | None = None

    def connect(self) -> Groups:
        """Connect, unless that is done. Raises KafkaError when nobody answers."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def look(self) -> Snapshot:
        """The cluster now, compared with the look before. Raises KafkaError when nobody answers."""
        from ottla.client.overview import look, look_at_groups
        from ottla.errors import KafkaError

        connection = self.connect()
        try:
            topics = look(connection, internal=self._internal, topics=self._topics)
            groups = look_at_groups(connection, self._groups, self._times)
        except KafkaError:
            self.close()
            raise
        before, self._before = self._before, (topics, groups)
        return compared(before, topics, groups)

    def close(self) -> None:
        """End the connections."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def compared(
    before: tuple[Look, Mapping[str, GroupFigures]] | None,
    look: Look,
    groups: Mapping[str, GroupFigures],
) -> Snapshot:
    """A look, with what has happened since the one before."""
    from ottla.client.overview import growth, reading

    old_look, old_groups = before or (None, {})
    rates = {
        name: reading(old_groups[name], figures)
        for name, figures in groups.items()
        if name in old_groups
    }
    lags: dict[str, int] = {}
    lates: dict[str, float] = {}
    for group in groups.values():
        sums = dict.fromkeys((tp.topic for tp in group.committed), 0)
        for tp, lag in group.lag.items():
            sums[tp.topic] = sums.get(tp.topic, 0) + lag
        for name, lag in sums.items():
            lags[name] = max(lag, lags.get(name, 0))
        for tp, late in group.late.items():
            lates[tp.topic] = max(late, lates.get(tp.topic, 0.0))
    topics = []
    for figures in look.topics.values():
        name = figures.name
        grown = None if old_look is None else growth(old_look, look, name)
        topics.append(
            TopicRow(
                name,
                figures.partitions,
                figures.leaderless,
                figures.records,
                figures.size,
                None if grown is None else grown.records,
                None if grown is None else grown.bytes,
                _sum(rate.get(name) for rate in rates.values()),
                lags.get(name),
                lates.get(name),
            )
        )
    topics.sort(key=lambda row: (-(row.written or 0.0), row.name))
    return Snapshot(
        look.cluster,
        look.brokers,
        sum(each.partitions for each in look.topics.values()),
        sum(each.leaderless for each in look.topics.values()),
        sum(each.lagging for each in look.topics.values()),
        tuple(topics),
        tuple(
            GroupRow(
                name,
                group.state,
                group.members,
                group.partitions,
                sum(group.lag.values()),
                max(group.late.values(), default=None),
                sum(rates[name].values()) if name in rates else None,
            )
            for name, group in groups.items()
        ),
        before is None,
    )


def frame(snapshot: Snapshot, most: int) -> Frame:
    """A snapshot as plain tables, with no more than `most` topics."""
    facts = [
        f"cluster {snapshot.cluster}",
        count(snapshot.brokers, "broker"),
        count(len(snapshot.topics), "topic"),
        count(snapshot.partitions, "partition"),
        f"{snapshot.written or 0:.0f} records/s",
        f"{in_bytes(snapshot.grown or 0)}/s",
    ]
    if snapshot.offline:
        facts.append(f"{snapshot.offline} offline")
    if snapshot.under_replicated:
        facts.append(f"{snapshot.under_replicated} under replicated")
    if len(snapshot.topics) > most:
        facts.append(f"the busiest {most}")
    columns = [
        Column("TOPIC"),
        Column("PARTITIONS", True),
        Column("RECORDS", True),
        Column("SIZE", True),
        Column("RECORDS/S", True),
        Column("BYTES/S", True),
        Column("READ/S", True),
        Column("LAG", True),
    ]
    rows = [
        (
            row.name,
            row.partitions,
            row.records,
            None if row.size is None else in_bytes(row.size),
            f"{row.written or 0:.1f}",
            None if row.grown is None else in_bytes(row.grown),
            None if row.read is None else f"{row.read:.1f}",
            row.lag,
        )
        for row in snapshot.topics[:most]
    ]
    document = snapshot.document()
    groups = document["groups"]
    assert isinstance(groups, list)
    return Frame([Table(columns, rows, "  ".join(facts)), group_table(groups)], document)


def _sum(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
