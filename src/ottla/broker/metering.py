"""What is measured besides requests: connections, bytes, logs, flushes, groups."""

from __future__ import annotations

from functools import partial

from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.service import Groups
from ottla.dispatch.context import Services
from ottla.net.listener import Listeners
from ottla.records import walker
from ottla.runtime.clock import Clock
from ottla.runtime.metrics import Metrics
from ottla.storage.cleaner import Cleaner


def measure(metrics: Metrics, services: Services, listeners: Listeners) -> None:
    """Name everything; each number is read when somebody asks."""
    logs = services.logs
    metrics.gauge(
        "ottla_connections", "Open client connections.", lambda: len(listeners.connections)
    )
    metrics.counted(
        "ottla_connections_accepted_total",
        "Connections accepted since the start.",
        lambda: listeners.accepted,
    )
    metrics.counted(
        "ottla_bytes_in_total", "Bytes received from clients.", lambda: listeners.totals()[0]
    )
    metrics.counted(
        "ottla_bytes_out_total", "Bytes sent to clients.", lambda: listeners.totals()[1]
    )
    metrics.gauge(
        "ottla_receive_memory_bytes",
        "Memory held by unfinished requests.",
        lambda: listeners.memory.lent,
    )
    metrics.gauge(
        "ottla_fetch_sessions", "Incremental fetch sessions.", lambda: len(services.fetch_sessions)
    )
    metrics.gauge("ottla_partitions", "Partitions served.", lambda: logs.statistics().partitions)
    metrics.gauge(
        "ottla_offline_partitions",
        "Partitions whose disk or log has failed.",
        lambda: logs.statistics().offline_partitions,
    )
    metrics.gauge(
        "ottla_native_records",
        "1 where records are walked by native code, 0 where in Python.",
        lambda: int(walker.NATIVE),
    )
    metrics.gauge("ottla_log_segments", "Segment files.", lambda: logs.statistics().segments)
    metrics.gauge("ottla_log_bytes", "Bytes in all logs.", lambda: logs.statistics().bytes)
    metrics.counted(
        "ottla_log_flushes_total", "fsync rounds of logs.", lambda: logs.statistics().flushes
    )
    _measure_cleaner(metrics, logs.cleaner, services.clock)
    _measure_groups(metrics, services.groups)


def _measure_cleaner(metrics: Metrics, cleaner: Cleaner, clock: Clock) -> None:
    now = cleaner.statistics
    metrics.counted(
        "ottla_cleaner_runs_total", "Logs that were compacted, each time.", lambda: now().runs
    )
    metrics.counted(
        "ottla_cleaner_given_up_total",
        "Compactions given up because the log changed meanwhile.",
        lambda: now().given_up,
    )
    metrics.counted(
        "ottla_cleaner_bytes_read_total",
        "Bytes read by compaction, both passes.",
        lambda: now().bytes_read,
    )
    metrics.counted(
        "ottla_cleaner_bytes_written_total",
        "Bytes written by compaction.",
        lambda: now().bytes_written,
    )
    metrics.counted(
        "ottla_cleaner_records_read_total",
        "Records that compaction decided about.",
        lambda: now().records_read,
    )
    metrics.counted(
        "ottla_cleaner_records_kept_total",
        "Records that compaction kept.",
        lambda: now().records_kept,
    )
    metrics.gauge("ottla_cleaner_running", "Logs being compacted.", lambda: now().running)
    metrics.gauge(
        "ottla_cleaner_last_run_seconds",
        "How long the last compaction took.",
        lambda: now().last_seconds,
    )
    metrics.gauge(
        "ottla_cleaner_buffer_used_ratio",
        "How full log.cleaner.dedupe.buffer.size was in the last compaction; 1 ends it early.",
        lambda: now().map_used,
    )
    metrics.gauge(
        "ottla_cleaner_max_dirty_ratio",
        "Dirty share of the dirtiest compacted log at the cleaner's last look.",
        lambda: now().max_dirty_ratio,
    )
    metrics.gauge(
        "ottla_cleaner_max_overdue_seconds",
        "By how much max.compaction.lag.ms was missed at the cleaner's last look.",
        lambda: now().max_overdue_ms / 1000,
    )
    metrics.gauge(
        "ottla_cleaner_seconds_since_last_look",
        "Time since the cleaner last looked for work.",
        lambda: max(0, clock.now_ms() - now().last_look_ms) / 1000,
    )
    metrics.gauge(
        "ottla_cleaner_uncleanable_partitions",
        "Partitions that cannot be compacted; the log says why.",
        lambda: now().uncleanable,
    )
    metrics.gauge(
        "ottla_cleaner_uncleanable_bytes",
        "Bytes in partitions that cannot be compacted.",
        lambda: now().uncleanable_bytes,
    )


_STATES = {
    GroupType.CLASSIC: ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable"),
    GroupType.CONSUMER: ("Empty", "Assigning", "Reconciling", "Stable"),
}


def _measure_groups(metrics: Metrics, groups: Groups) -> None:
    counts = groups.counts
    for protocol, states in _STATES.items():
        for state in states:
            metrics.gauge(
                "ottla_groups",
                "Groups coordinated here.",
                partial(groups.count, protocol, state),
                protocol=protocol.value,
                state=state,
            )
    for active, state in ((False, "loading"), (True, "active")):
        metrics.gauge(
            "ottla_group_partitions",
            "Partitions of the groups' log that are coordinated here.",
            partial(groups.count_partitions, active=active),
            state=state,
        )
    for protocol, read in (
        (GroupType.CLASSIC, lambda: counts.classic_rebalances),
        (GroupType.CONSUMER, lambda: counts.consumer_rebalances),
    ):
        metrics.counted(
            "ottla_group_rebalances_total",
            "Classic groups that got their assignment, new epochs of consumer groups.",
            read,
            protocol=protocol.value,
        )
    metrics.counted(
        "ottla_group_offsets_committed_total",
        "Offsets committed, one for each partition.",
        lambda: counts.offsets_committed,
    )
    metrics.counted(
        "ottla_group_offsets_expired_total",
        "Committed offsets past their retention.",
        lambda: counts.offsets_expired,
    )
    metrics.counted(
        "ottla_group_offsets_deleted_total",
        "Committed offsets that somebody deleted, other than with their group or topic.",
        lambda: counts.offsets_deleted,
    )
