"""Tiered storage. There is none here; the names are known so that files with them load."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, double, integer, long, string
from ottla.config.rules import at_least, between, non_empty
from ottla.config.setting import MAX_LONG


class TieringSettings(Settings):
    """Tiered storage."""

    remote_fetch_max_wait_ms: int = integer(
        default=500,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Longest wait for remote data before a fetch is answered.",
    )
    remote_list_offsets_request_timeout_ms: int = long(
        default=30_000,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Longest wait of a ListOffsets for remote data.",
    )
    remote_log_index_file_cache_total_size_bytes: int = long(
        default=1_073_741_824,
        rule=at_least(1),
        importance="low",
        update="cluster-wide",
        effect="none",
        doc="Disk space for copies of remote indexes.",
    )
    remote_log_manager_copier_thread_pool_size: int = integer(
        default=10,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Threads that copy segments away.",
    )
    remote_log_manager_copy_max_bytes_per_second: int = long(
        default=MAX_LONG,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Most bytes a second copied away.",
    )
    remote_log_manager_copy_quota_window_num: int = integer(
        default=11,
        rule=at_least(1),
        effect="none",
        doc="Samples kept for that rate limit.",
    )
    remote_log_manager_copy_quota_window_size_seconds: int = integer(
        default=1,
        rule=at_least(1),
        effect="none",
        doc="Length of each such sample.",
    )
    remote_log_manager_expiration_thread_pool_size: int = integer(
        default=10,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Threads that delete expired remote segments.",
    )
    remote_log_manager_fetch_max_bytes_per_second: int = long(
        default=MAX_LONG,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Most bytes a second read from remote storage.",
    )
    remote_log_manager_fetch_quota_window_num: int = integer(
        default=11,
        rule=at_least(1),
        effect="none",
        doc="Samples kept for that rate limit.",
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = integer(
        default=1,
        rule=at_least(1),
        effect="none",
        doc="Length of each such sample.",
    )
    remote_log_manager_follower_thread_pool_size: int = integer(
        default=2,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Threads that follow remote state for partitions led elsewhere.",
    )
    remote_log_manager_task_interval_ms: int = long(
        default=30_000,
        rule=at_least(1),
        importance="low",
        effect="none",
        doc="How often there is a look for segments to copy or delete.",
    )
    remote_log_manager_task_retry_backoff_max_ms: int = long(
        default=30_000,
        rule=at_least(1),
        importance="low",
        effect="none",
        internal=True,
        doc="Longest pause after a failed copy.",
    )
    remote_log_manager_task_retry_backoff_ms: int = long(
        default=500,
        rule=at_least(1),
        importance="low",
        effect="none",
        internal=True,
        doc="First pause after a failed copy.",
    )
    remote_log_manager_task_retry_jitter: float = double(
        default=0.2,
        rule=between(0, 0.5),
        importance="low",
        effect="none",
        internal=True,
        doc="Random part of that pause.",
    )
    remote_log_manager_thread_pool_size: int = integer(
        default=2,
        rule=at_least(1),
        effect="none",
        doc="Threads for remote storage in general.",
    )
    remote_log_metadata_custom_metadata_max_bytes: int = integer(
        default=128,
        rule=at_least(0),
        importance="low",
        effect="none",
        doc="Most bytes a remote storage plug-in may note about a segment.",
    )
    remote_log_metadata_manager_class_name: str = string(
        default="org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        rule=non_empty(),
        effect="none",
        doc="A Java class that keeps track of remote segments.",
    )
    remote_log_metadata_manager_class_path: str | None = string(
        default=None,
        effect="none",
        doc="Where that Java class is found.",
    )
    remote_log_metadata_manager_impl_prefix: str = string(
        default="rlmm.config.",
        rule=non_empty(),
        effect="none",
        doc="Prefix of that class's own settings.",
    )
    remote_log_metadata_manager_listener_name: str | None = string(
        default=None,
        rule=non_empty(),
        effect="none",
        doc="Listener which that class connects to.",
    )
    remote_log_reader_max_pending_tasks: int = integer(
        default=100,
        rule=at_least(1),
        effect="none",
        doc="Most remote reads that may wait.",
    )
    remote_log_reader_threads: int = integer(
        default=10,
        rule=at_least(1),
        update="cluster-wide",
        effect="none",
        doc="Threads that read from remote storage.",
    )
    remote_log_storage_manager_class_name: str | None = string(
        default=None,
        rule=non_empty(),
        effect="none",
        doc="A Java class that stores segments remotely.",
    )
    remote_log_storage_manager_class_path: str | None = string(
        default=None,
        effect="none",
        doc="Where that Java class is found.",
    )
    remote_log_storage_manager_impl_prefix: str = string(
        default="rsm.config.",
        rule=non_empty(),
        effect="none",
        doc="Prefix of that class's own settings.",
    )
    remote_log_storage_system_enable: bool = boolean(
        default=False,
        effect="none",
        doc="Tiered storage as a whole.",
    )
