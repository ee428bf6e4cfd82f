"""Consumer groups, classic and new, and the topic that keeps their offsets."""

from __future__ import annotations

from ottla.config.declare import Settings, integer, long, names, short, string
from ottla.config.rules import at_least, distinct, one_of_any_case
from ottla.config.setting import MAX_INT


class GroupSettings(Settings):
    """Consumer groups and their offsets."""

    group_consumer_assignors: tuple[str, ...] = names(
        default=("uniform", "range"),
        rule=distinct(empty=False),
        doc="Server-side assignors of the new consumer protocol; the first is the default.",
    )
    group_consumer_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        doc="Interval at which members of the new protocol are told to send heartbeats.",
    )
    group_consumer_max_heartbeat_interval_ms: int = integer(
        default=15_000,
        rule=at_least(1),
        doc="Largest heartbeat interval a group of the new protocol may be given.",
    )
    group_consumer_max_session_timeout_ms: int = integer(
        default=60_000,
        rule=at_least(1),
        doc="Largest session timeout a group of the new protocol may be given.",
    )
    group_consumer_max_size: int = integer(
        default=MAX_INT,
        rule=at_least(1),
        doc="Most members of a group of the new protocol.",
    )
    group_consumer_migration_policy: str = string(
        default="bidirectional",
        rule=one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
        doc="Which way a group may change between the classic and the new protocol while it has "
        "members.",
    )
    group_consumer_min_heartbeat_interval_ms: int = integer(
        default=5000,
        rule=at_least(1),
        doc="Smallest heartbeat interval a group of the new protocol may be given.",
    )
    group_consumer_min_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        doc="Smallest session timeout a group of the new protocol may be given.",
    )
    group_consumer_regex_refresh_interval_ms: int = integer(
        default=600_000,
        rule=at_least(10_000),
        internal=True,
        doc="How often a regular-expression subscription is matched again against all topics.",
    )
    group_consumer_session_timeout_ms: int = integer(
        default=45_000,
        rule=at_least(1),
        doc="Silence after which a member of the new protocol is removed.",
    )
    group_coordinator_append_linger_ms: int = integer(
        default=-1,
        rule=at_least(-1),
        effect="later",
        doc="How long a coordinator gathers changes before it writes them; -1 chooses by load.",
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = names(
        default=("classic", "consumer", "streams"),
        rule=distinct("consumer", "classic", "share", "streams", empty=False),
        doc="Group protocols that are served.",
    )
    group_coordinator_threads: int = integer(
        default=4,
        rule=at_least(1),
        importance="high",
        effect="none",
        doc="Threads of Kafka's group coordinator. One event loop does it here.",
    )
    group_initial_rebalance_delay_ms: int = integer(
        default=3000,
        doc="How long an empty classic group waits for more members before its first rebalance.",
    )
    group_max_session_timeout_ms: int = integer(
        default=1_800_000,
        doc="Largest session timeout a classic member may ask for.",
    )
    group_max_size: int = integer(
        default=MAX_INT,
        rule=at_least(1),
        doc="Most members of a classic group.",
    )
    group_min_session_timeout_ms: int = integer(
        default=6000,
        doc="Smallest session timeout a classic member may ask for.",
    )
    offset_metadata_max_bytes: int = integer(
        default=4096,
        importance="high",
        doc="Longest note a client may store with a committed offset.",
    )
    offsets_commit_timeout_ms: int = integer(
        default=5000,
        rule=at_least(1),
        importance="high",
        doc="How long an offset commit may wait for the replicas of the offsets topic.",
    )
    offsets_load_buffer_size: int = integer(
        default=5_242_880,
        rule=at_least(1),
        importance="high",
        doc="Bytes read at a time when a coordinator loads its groups.",
    )
    offsets_retention_check_interval_ms: int = long(
        default=600_000,
        rule=at_least(1),
        importance="high",
        doc="How often committed offsets are looked through for expired ones.",
    )
    offsets_retention_minutes: int = integer(
        default=10_080,
        rule=at_least(1),
        importance="high",
        doc="How long offsets of an empty group or of an unsubscribed topic are kept.",
    )
    offsets_topic_compression_codec: int = integer(
        default=0,
        importance="high",
        doc="Number of the codec of the offsets topic's records; 0 is none.",
    )
    offsets_topic_num_partitions: int = integer(
        default=50,
        rule=at_least(1),
        importance="high",
        doc="Partitions of the offsets topic. Not to be changed once it exists.",
    )
    offsets_topic_replication_factor: int = short(
        default=3,
        rule=at_least(1),
        importance="high",
        doc="Replicas of the offsets topic; with fewer brokers it has as many as there are, and "
        "gets more as brokers join.",
    )
    offsets_topic_segment_bytes: int = integer(
        default=104_857_600,
        rule=at_least(1),
        importance="high",
        doc="Segment size of the offsets topic, small so that it compacts and loads fast.",
    )
