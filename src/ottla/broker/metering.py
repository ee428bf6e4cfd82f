"""What is measured besides requests: connections, bytes, logs, flushes."""

from __future__ import annotations

from ottla.dispatch.context import Services
from ottla.net.listener import Listeners
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
    metrics.gauge("ottla_log_segments", "Segment files.", lambda: logs.statistics().segments)
    metrics.gauge("ottla_log_bytes", "Bytes in all logs.", lambda: logs.statistics().bytes)
    metrics.counted(
        "ottla_log_flushes_total", "fsync rounds of logs.", lambda: logs.statistics().flushes
    )
