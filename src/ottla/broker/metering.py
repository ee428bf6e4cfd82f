"""What is measured besides requests: connections, bytes, logs, flushes, compaction, groups.

`MEASURES` is the whole list. Each number is read when somebody asks for it; the names of those that
only grow end in `_total`, as is usual with Prometheus, and they are counters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ottla.coordinator.group.group import Counts, GroupType
from ottla.dispatch.context import Services
from ottla.net.listener import Listeners
from ottla.records import walker
from ottla.runtime.metrics import Metrics
from ottla.storage.cleaner import CleanerStatistics
from ottla.storage.directory import StorageStatistics


class Sources(NamedTuple):
    """Where the numbers are."""

    services: Services
    listeners: Listeners

    @property
    def logs(self) -> StorageStatistics:
        return self.services.logs.statistics()

    @property
    def cleaner(self) -> CleanerStatistics:
        return self.services.logs.cleaner.statistics()

    @property
    def counts(self) -> Counts:
        return self.services.groups.counts


class Measure(NamedTuple):
    """One number: its name, what it means, how it is read, and its labels."""

    name: str
    help: str
    read: Callable[[Sources], float]
    labels: tuple[tuple[str, str], ...] = ()


def measure(metrics: Metrics, services: Services, listeners: Listeners) -> None:
    """Have every number of `MEASURES` shown."""
    sources = Sources(services, listeners)
    for name, text, read, labels in MEASURES:
        show = metrics.counted if name.endswith("_total") else metrics.gauge
        show(name, text, partial(read, sources), **dict(labels))


def _since_last_look(of: Sources) -> float:
    return max(0, of.services.clock.now_ms() - of.cleaner.last_look_ms) / 1000


_SIMPLE = (
    # connections
    Measure(
        "ottla_connections", "Open client connections.", lambda of: len(of.listeners.connections)
    ),
    Measure(
        "ottla_connections_accepted_total",
        "Connections accepted since the start.",
        lambda of: of.listeners.accepted,
    ),
    Measure(
        "ottla_bytes_in_total", "Bytes received from clients.", lambda of: of.listeners.totals()[0]
    ),
    Measure("ottla_bytes_out_total", "Bytes sent to clients.", lambda of: of.listeners.totals()[1]),
    Measure(
        "ottla_receive_memory_bytes",
        "Memory held by unfinished requests.",
        lambda of: of.listeners.memory.lent,
    ),
    Measure(
        "ottla_fetch_sessions",
        "Incremental fetch sessions.",
        lambda of: len(of.services.fetch_sessions),
    ),
    # leaders
    Measure(
        "ottla_unclean_elections_total",
        "Partitions that got a leader which may lack acknowledged records, by this controller.",
        lambda of: of.services.controller.unclean.total,
    ),
    # logs
    Measure("ottla_partitions", "Partitions served.", lambda of: of.logs.partitions),
    Measure(
        "ottla_offline_partitions",
        "Partitions whose disk or log has failed.",
        lambda of: of.logs.offline_partitions,
    ),
    Measure("ottla_log_segments", "Segment files.", lambda of: of.logs.segments),
    Measure("ottla_log_bytes", "Bytes in all logs.", lambda of: of.logs.bytes),
    Measure("ottla_log_flushes_total", "fsync rounds of logs.", lambda of: of.logs.flushes),
    Measure(
        "ottla_native_records",
        "1 where records are walked by native code, 0 where in Python.",
        lambda of: int(walker.NATIVE),
    ),
    # compaction
    Measure(
        "ottla_cleaner_runs_total",
        "Logs that were compacted, each time.",
        lambda of: of.cleaner.runs,
    ),
    Measure(
        "ottla_cleaner_given_up_total",
        "Compactions given up because the log changed meanwhile.",
        lambda of: of.cleaner.given_up,
    ),
    Measure(
        "ottla_cleaner_bytes_read_total",
        "Bytes read by compaction, both passes.",
        lambda of: of.cleaner.bytes_read,
    ),
    Measure(
        "ottla_cleaner_bytes_written_total",
        "Bytes written by compaction.",
        lambda of: of.cleaner.bytes_written,
    ),
    Measure(
        "ottla_cleaner_records_read_total",
        "Records that compaction decided about.",
        lambda of: of.cleaner.records_read,
    ),
    Measure(
        "ottla_cleaner_records_kept_total",
        "Records that compaction kept.",
        lambda of: of.cleaner.records_kept,
    ),
    Measure("ottla_cleaner_running", "Logs being compacted.", lambda of: of.cleaner.running),
    Measure(
        "ottla_cleaner_last_run_seconds",
        "How long the last compaction took.",
        lambda of: of.cleaner.last_seconds,
    ),
    Measure(
        "ottla_cleaner_buffer_used_ratio",
        "How full log.cleaner.dedupe.buffer.size was in the last compaction; 1 ends it early.",
        lambda of: of.cleaner.map_used,
    ),
    Measure(
        "ottla_cleaner_max_dirty_ratio",
        "Dirty share of the dirtiest compacted log at the cleaner's last look.",
        lambda of: of.cleaner.max_dirty_ratio,
    ),
    Measure(
        "ottla_cleaner_max_overdue_seconds",
        "By how much max.compaction.lag.ms was missed at the cleaner's last look.",
        lambda of: of.cleaner.max_overdue_ms / 1000,
    ),
    Measure(
        "ottla_cleaner_seconds_since_last_look",
        "Time since the cleaner last looked for work.",
        _since_last_look,
    ),
    Measure(
        "ottla_cleaner_uncleanable_partitions",
        "Partitions that cannot be compacted; the log says why.",
        lambda of: of.cleaner.uncleanable,
    ),
    Measure(
        "ottla_cleaner_uncleanable_bytes",
        "Bytes in partitions that cannot be compacted.",
        lambda of: of.cleaner.uncleanable_bytes,
    ),
    # groups
    Measure(
        "ottla_group_offsets_committed_total",
        "Offsets committed, one for each partition.",
        lambda of: of.counts.offsets_committed,
    ),
    Measure(
        "ottla_group_offsets_expired_total",
        "Committed offsets past their retention.",
        lambda of: of.counts.offsets_expired,
    ),
    Measure(
        "ottla_group_offsets_deleted_total",
        "Committed offsets that somebody deleted, other than with their group or topic.",
        lambda of: of.counts.offsets_deleted,
    ),
)


# --- groups, by protocol and state ----------------------------------------------------------------

_STATES = {
    GroupType.CLASSIC: ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable"),
    GroupType.CONSUMER: ("Empty", "Assigning", "Reconciling", "Stable"),
}
_REBALANCES = "Classic groups that got their assignment, new epochs of consumer groups."
_PARTITIONS = "Partitions of the groups' log that are coordinated here."


def _groups(protocol: GroupType, state: str, of: Sources) -> float:
    return of.services.groups.count(protocol, state)


def _group_partitions(active: bool, of: Sources) -> float:
    return of.services.groups.count_partitions(active=active)


MEASURES: tuple[Measure, ...] = (
    *_SIMPLE,
    *(
        Measure(
            "ottla_groups",
            "Groups coordinated here.",
            partial(_groups, protocol, state),
            (("protocol", protocol.value), ("state", state)),
        )
        for protocol, states in _STATES.items()
        for state in states
    ),
    *(
        Measure(
            "ottla_group_partitions",
            _PARTITIONS,
            partial(_group_partitions, active),
            (("state", state),),
        )
        for active, state in ((False, "loading"), (True, "active"))
    ),
    Measure(
        "ottla_group_rebalances_total",
        _REBALANCES,
        lambda of: of.counts.classic_rebalances,
        (("protocol", GroupType.CLASSIC.value),),
    ),
    Measure(
        "ottla_group_rebalances_total",
        _REBALANCES,
        lambda of: of.counts.consumer_rebalances,
        (("protocol", GroupType.CONSUMER.value),),
    ),
)
