"""What is measured besides requests: connections, bytes, logs, flushes, groups."""

from __future__ import annotations

from functools import partial

from ottla.coordinator.group.members import GroupType
from ottla.coordinator.group.service import Groups
from ottla.dispatch.context import Services
from ottla.net.listener import Listeners
from ottla.records import walker
from ottla.runtime.metrics import Metrics


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
    _measure_groups(metrics, services.groups)


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
