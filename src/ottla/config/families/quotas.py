"""Quota windows, metrics and client telemetry."""

from __future__ import annotations

from ottla.config.declare import Settings, class_name, integer, long, names, string
from ottla.config.rules import at_least, distinct, host_and_port
from ottla.config.setting import MAX_LONG


class QuotaSettings(Settings):
    """Quota windows and metrics."""

    alter_log_dirs_replication_quota_window_num: int = integer(
        default=11,
        rule=at_least(1),
        importance="low",
        doc="Samples kept for the rate limit on moves between data directories.",
    )
    alter_log_dirs_replication_quota_window_size_seconds: int = integer(
        default=1,
        rule=at_least(1),
        importance="low",
        doc="Length of each such sample.",
    )
    client_quota_callback_class: str | None = class_name(
        default=None,
        importance="low",
        effect="none",
        doc="A Java class that decides client quotas.",
    )
    controller_quota_window_num: int = integer(
        default=11,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="Samples kept for the rate limit on topic creations and deletions.",
    )
    controller_quota_window_size_seconds: int = integer(
        default=1,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="Length of each such sample.",
    )
    kafka_metrics_polling_interval_secs: int = integer(
        default=10,
        rule=at_least(1),
        importance="low",
        effect="none",
        doc="How often Kafka's Java metrics reporters are asked.",
    )
    kafka_metrics_reporters: tuple[str, ...] = names(
        default=(),
        rule=distinct(),
        importance="low",
        effect="none",
        doc="Java classes that report Yammer metrics.",
    )
    metric_reporters: tuple[str, ...] = names(
        default=("org.apache.kafka.common.metrics.JmxReporter",),
        rule=distinct(),
        importance="low",
        update="cluster-wide",
        effect="none",
        doc="Java classes that report metrics.",
    )
    metrics_listen: str | None = string(
        default=None,
        rule=host_and_port(),
        internal=True,
        foreign=True,
        doc="Where metrics are served over HTTP, with /healthz and /readyz, as host:port. Without "
        "a host it is 127.0.0.1; port 0 takes a free one. Without it nothing is served.",
    )
    metrics_num_samples: int = integer(
        default=2,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="Samples kept for a rate.",
    )
    metrics_recording_level: str = string(
        default="INFO",
        importance="low",
        effect="later",
        doc="How much is measured.",
    )
    metrics_sample_window_ms: int = long(
        default=30_000,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="Length of each sample of a rate.",
    )
    quota_window_num: int = integer(
        default=11,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="Samples kept for client quotas.",
    )
    quota_window_size_seconds: int = integer(
        default=1,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="Length of each such sample.",
    )
    replication_quota_window_num: int = integer(
        default=11,
        rule=at_least(1),
        importance="low",
        doc="Samples kept for the rate limit on replication.",
    )
    replication_quota_window_size_seconds: int = integer(
        default=1,
        rule=at_least(1),
        importance="low",
        doc="Length of each such sample.",
    )
    telemetry_max_bytes: int = integer(
        default=1_048_576,
        rule=at_least(1),
        importance="low",
        doc="Largest push of metrics accepted from a client, compressed and decompressed.",
    )

    # Set through AlterConfigs only; Kafka does not list them until they are.
    leader_replication_throttled_rate: int = long(
        default=MAX_LONG,
        rule=at_least(0),
        update="cluster-wide",
        internal=True,
        foreign=True,
        doc="Most bytes a second sent to followers for throttled replicas.",
    )
    follower_replication_throttled_rate: int = long(
        default=MAX_LONG,
        rule=at_least(0),
        update="cluster-wide",
        internal=True,
        foreign=True,
        doc="Most bytes a second fetched from leaders for throttled replicas.",
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = long(
        default=MAX_LONG,
        rule=at_least(0),
        update="cluster-wide",
        internal=True,
        foreign=True,
        doc="Most bytes a second for moves between data directories.",
    )
