"""Share groups and streams groups."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, integer, names, short, string
from ottla.config.rules import at_least, between, distinct
from ottla.config.setting import MAX_INT


class ShareSettings(Settings):
    """Share groups and streams groups."""

    group_share_assignors: tuple[str, ...] = names(
        default=("simple",),
        rule=distinct(empty=False),
        effect="later",
        doc="Server-side assignors of share groups.",
    )
    group_share_delivery_count_limit: int = integer(
        default=5,
        rule=between(2, 10),
        effect="later",
        doc="How often a record is delivered before it is given up.",
    )
    group_share_enable: bool = boolean(
        default=False,
        effect="later",
        internal=True,
        doc="Serve share groups whatever the cluster's feature level says.",
    )
    group_share_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        effect="later",
        doc="Interval at which members of share groups are told to send heartbeats.",
    )
    group_share_initialize_retry_interval_ms: int = integer(
        default=30_000,
        rule=at_least(1),
        importance="low",
        effect="later",
        internal=True,
        doc="Pause before the state of a share group's partition is initialised again after a "
        "failure.",
    )
    group_share_max_heartbeat_interval_ms: int = integer(
        default=15_000,
        rule=at_least(1),
        effect="later",
        doc="Largest heartbeat interval a share group may be given.",
    )
    group_share_max_record_lock_duration_ms: int = integer(
        default=60_000,
        rule=between(30_000, 3_600_000),
        effect="later",
        doc="Longest time a share group may lock a record.",
    )
    group_share_max_session_timeout_ms: int = integer(
        default=60_000,
        rule=at_least(1),
        effect="later",
        doc="Largest session timeout a share group may be given.",
    )
    group_share_max_share_sessions: int = integer(
        default=2000,
        rule=at_least(1),
        effect="later",
        doc="Most share sessions remembered at a time.",
    )
    group_share_max_size: int = integer(
        default=200,
        rule=between(1, 1000),
        effect="later",
        doc="Most members of a share group.",
    )
    group_share_min_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        effect="later",
        doc="Smallest heartbeat interval a share group may be given.",
    )
    group_share_min_record_lock_duration_ms: int = integer(
        default=15_000,
        rule=between(1000, 30_000),
        effect="later",
        doc="Shortest time a share group may lock a record.",
    )
    group_share_min_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        effect="later",
        doc="Smallest session timeout a share group may be given.",
    )
    group_share_partition_max_record_locks: int = integer(
        default=2000,
        rule=between(100, 10_000),
        effect="later",
        doc="Most records of a partition locked for share groups at a time.",
    )
    group_share_persister_class_name: str = string(
        default="org.apache.kafka.server.share.persister.DefaultStatePersister",
        effect="none",
        internal=True,
        doc="A Java class that stores the state of share groups.",
    )
    group_share_record_lock_duration_ms: int = integer(
        default=30_000,
        rule=between(1000, 3_600_000),
        effect="later",
        doc="How long a delivered record stays locked for its share consumer.",
    )
    group_share_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        effect="later",
        doc="Silence after which a member of a share group is removed.",
    )
    group_streams_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        effect="later",
        doc="Interval at which members of streams groups are told to send heartbeats.",
    )
    group_streams_initial_rebalance_delay_ms: int = integer(
        default=3000,
        rule=at_least(0),
        effect="later",
        doc="How long an empty streams group waits for more members before its first assignment.",
    )
    group_streams_max_heartbeat_interval_ms: int = integer(
        default=15_000,
        rule=at_least(1),
        effect="later",
        doc="Largest heartbeat interval a streams group may be given.",
    )
    group_streams_max_session_timeout_ms: int = integer(
        default=60_000,
        rule=at_least(1),
        effect="later",
        doc="Largest session timeout a streams group may be given.",
    )
    group_streams_max_size: int = integer(
        default=MAX_INT,
        rule=at_least(1),
        effect="later",
        doc="Most members of a streams group.",
    )
    group_streams_max_standby_replicas: int = integer(
        default=2,
        rule=at_least(0),
        effect="later",
        doc="Most standby copies of a task that a streams group may ask for.",
    )
    group_streams_min_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        effect="later",
        doc="Smallest heartbeat interval a streams group may be given.",
    )
    group_streams_min_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        effect="later",
        doc="Smallest session timeout a streams group may be given.",
    )
    group_streams_num_standby_replicas: int = integer(
        default=0,
        rule=at_least(0),
        effect="later",
        doc="Standby copies of each task of a streams group.",
    )
    group_streams_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        effect="later",
        doc="Silence after which a member of a streams group is removed.",
    )
    share_coordinator_append_linger_ms: int = integer(
        default=-1,
        rule=at_least(-1),
        effect="later",
        doc="How long a share coordinator gathers changes before it writes them; -1 chooses by "
        "load.",
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = integer(
        default=300_000,
        rule=at_least(1),
        importance="low",
        effect="later",
        internal=True,
        doc="How often a full state is written for partitions of share groups without traffic.",
    )
    share_coordinator_load_buffer_size: int = integer(
        default=5_242_880,
        rule=at_least(1),
        importance="high",
        effect="later",
        doc="Bytes read at a time when a share coordinator loads its state.",
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = integer(
        default=500,
        rule=at_least(0),
        effect="later",
        doc="Changes written between two full states of a share group's partition.",
    )
    share_coordinator_state_topic_compression_codec: int = integer(
        default=0,
        importance="high",
        effect="later",
        doc="Number of the codec of the share state topic's records; 0 is none.",
    )
    share_coordinator_state_topic_min_isr: int = short(
        default=2,
        rule=at_least(1),
        importance="high",
        effect="later",
        doc="min.insync.replicas of the share state topic.",
    )
    share_coordinator_state_topic_num_partitions: int = integer(
        default=50,
        rule=at_least(1),
        importance="high",
        effect="later",
        doc="Partitions of the share state topic. Not to be changed once it exists.",
    )
    share_coordinator_state_topic_prune_interval_ms: int = integer(
        default=300_000,
        rule=at_least(1),
        importance="low",
        effect="later",
        internal=True,
        doc="How often superseded records of the share state topic are deleted.",
    )
    share_coordinator_state_topic_replication_factor: int = short(
        default=3,
        rule=at_least(1),
        importance="high",
        effect="later",
        doc="Replicas of the share state topic; its creation waits for that many brokers.",
    )
    share_coordinator_state_topic_segment_bytes: int = integer(
        default=104_857_600,
        rule=at_least(1),
        importance="high",
        effect="later",
        doc="Segment size of the share state topic.",
    )
    share_coordinator_threads: int = integer(
        default=1,
        rule=at_least(1),
        effect="none",
        doc="Threads of Kafka's share coordinator. One event loop does it here.",
    )
    share_coordinator_write_timeout_ms: int = integer(
        default=5000,
        rule=at_least(1),
        importance="high",
        effect="later",
        doc="How long a write to the share state topic may wait for its replicas.",
    )
    share_fetch_purgatory_purge_interval_requests: int = integer(
        default=1000,
        effect="none",
        doc="How often Kafka sweeps finished share-fetch waits out of memory. Waits remove "
        "themselves here.",
    )
