"""What must hold after every step; each is a class with one `verify`.

SingleLeader            under one leader epoch only one broker ever leads a partition
NoAckedWriteLost        a leader has every record that was acknowledged (`acks=all`) up to its epoch
MonotonicHighWatermark  no leader shows less than what it, or a leader before it, has shown
PrefixLogs              what anybody knows as committed is one log: the same records, in one order
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ottla.model.ids import TopicPartition

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

    from .cluster import Cluster
    from .disk import SimLog

Record = tuple[int, Any]


class Violation(AssertionError):
    """An invariant does not hold; `name` says which."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Acked(NamedTuple):
    """A record that a client was told to be safe, by a leader under this epoch."""

    epoch: int
    offset: int
    record: Record


class Invariant(Protocol):
    """Something that holds after every step."""

    def verify(self, cluster: Cluster) -> None:
        """Raises Violation."""
        ...


class SingleLeader:
    def __init__(self) -> None:
        self._owners: dict[tuple[TopicPartition, int], int] = {}

    def verify(self, cluster: Cluster) -> None:
        for broker, partition in cluster.leaders():
            epoch = partition.leader_epoch
            owner = self._owners.setdefault((partition.id, epoch), broker)
            if owner != broker:
                text = f"{owner} and {broker} have both led {partition.id} under epoch {epoch}"
                raise Violation("SingleLeader", text)


class PrefixLogs:
    def __init__(self) -> None:
        self.committed: dict[TopicPartition, list[Record]] = {}

    def verify(self, cluster: Cluster) -> None:
        for broker, log in cluster.logs():
            if log.checked < log.mark:
                self._compare(broker, log)

    def _compare(self, broker: int, log: SimLog) -> None:
        known = self.committed.setdefault(log.id, [])
        begin, end = log.checked, log.mark
        mine, theirs = log.records[begin:end], known[begin:end]
        if mine[: len(theirs)] != theirs:
            offset = next(
                begin + number
                for number, (one, other) in enumerate(zip(mine, theirs, strict=False))
                if one != other
            )
            text = (
                f"{log.id} at offset {offset}: broker {broker} takes {log.records[offset]} for "
                f"committed, others {known[offset]}"
            )
            raise Violation("PrefixLogs", text)
        if len(mine) < end - begin:
            text = f"{log.id}: broker {broker} has a mark of {end}, and {len(log.records)} records"
            raise Violation("PrefixLogs", text)
        known += mine[len(theirs) :]
        log.checked = end


class MonotonicHighWatermark:
    def __init__(self) -> None:
        self._shown: dict[TopicPartition, dict[int, int]] = {}  # by epoch

    def verify(self, cluster: Cluster) -> None:
        for broker, partition in cluster.leaders():
            if not partition.knows_high_watermark:
                continue  # clients are not told yet
            shown = self._shown.setdefault(partition.id, {})
            mark, own = partition.high_watermark, partition.leader_epoch
            for epoch, before in shown.items():
                if epoch <= own and mark < before:
                    text = (
                        f"{partition.id}: broker {broker} shows {mark} under epoch {own}, "
                        f"and {before} was shown under epoch {epoch}"
                    )
                    raise Violation("MonotonicHighWatermark", text)
            shown[own] = mark


class NoAckedWriteLost:
    def __init__(self) -> None:
        self._seen: dict[tuple[int, TopicPartition], tuple[object, int, int, int]] = {}

    def verify(self, cluster: Cluster) -> None:
        for broker, partition in cluster.leaders():
            acked = cluster.acked.get(partition.id)
            if acked:
                self._verify(broker, partition, acked, cluster.log_of(broker, partition.id))

    def _verify(self, broker: int, partition: Partition, acked: list[Acked], log: SimLog) -> None:
        key, epoch = (broker, partition.id), partition.leader_epoch
        known = self._seen.get(key)
        first = 0
        if known is not None and known[:3] == (partition, epoch, log.cuts):
            first = known[3]
        if first < len(acked):
            check_acked(broker, log, (each for each in acked[first:] if each.epoch <= epoch))
            self._seen[key] = (partition, epoch, log.cuts, len(acked))


def check_acked(broker: int, log: SimLog, acked: Iterable[Acked]) -> None:
    """Everything that was acknowledged is in the log."""
    records = log.records
    for epoch, offset, record in acked:
        if offset >= len(records) or records[offset] != record:
            there = records[offset] if offset < len(records) else "nothing"
            text = (
                f"{log.id}: broker {broker} has {there} at offset {offset}, where {record} was "
                f"acknowledged under epoch {epoch}"
            )
            raise Violation("NoAckedWriteLost", text)


def all_invariants() -> list[Invariant]:
    return [SingleLeader(), NoAckedWriteLost(), MonotonicHighWatermark(), PrefixLogs()]
