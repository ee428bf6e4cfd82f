"""Replication: followers, in-sync replicas, leader elections, shutdown."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, integer, long, string
from ottla.config.rules import at_least


class ReplicationSettings(Settings):
    """Replicas, followers and elections."""

    auto_leader_rebalance_enable: bool = boolean(
        default=True,
        importance="high",
        doc="Give leadership back to preferred replicas from time to time.",
    )
    controlled_shutdown_enable: bool = boolean(
        default=True,
        effect="later",
        doc="Hand leadership over before stopping.",
    )
    default_replication_factor: int = integer(
        default=1,
        doc="Replicas of a topic whose creator does not say, automatic creation included.",
    )
    leader_imbalance_check_interval_seconds: int = long(
        default=300,
        rule=at_least(1),
        importance="high",
        doc="How often the controller looks for partitions not led by their preferred replica.",
    )
    min_insync_replicas: int = integer(
        default=1,
        rule=at_least(1),
        importance="high",
        update="cluster-wide",
        doc="In-sync replicas that must have a batch before acks=all is answered; with fewer the "
        "produce is refused.",
    )
    num_replica_alter_log_dirs_threads: int | None = integer(
        default=None,
        importance="high",
        doc="Workers that move replicas between data directories; without it one per directory.",
    )
    num_replica_fetchers: int = integer(
        default=1,
        rule=at_least(1),
        importance="high",
        update="cluster-wide",
        effect="later",
        doc="Connections a follower opens to each leader broker.",
    )
    replica_fetch_backoff_ms: int = integer(
        default=1000,
        rule=at_least(0),
        effect="later",
        doc="Pause of a follower after an error from the leader.",
    )
    replica_fetch_max_bytes: int = integer(
        default=1_048_576,
        rule=at_least(0),
        effect="later",
        doc="Bytes a follower asks for per partition; a larger batch still comes through whole.",
    )
    replica_fetch_min_bytes: int = integer(
        default=1,
        importance="high",
        effect="later",
        doc="Bytes the leader waits for before it answers a follower.",
    )
    replica_fetch_response_max_bytes: int = integer(
        default=10_485_760,
        rule=at_least(0),
        effect="later",
        doc="Bytes a follower asks for in one fetch over all partitions.",
    )
    replica_fetch_wait_max_ms: int = integer(
        default=500,
        importance="high",
        effect="later",
        doc="Longest time the leader holds a follower's fetch. Must not be above "
        "replica.lag.time.max.ms.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = long(
        default=5000,
        importance="high",
        effect="later",
        doc="How often high watermarks are written to disk.",
    )
    replica_lag_time_max_ms: int = long(
        default=30_000,
        importance="high",
        effect="later",
        doc="A follower that has not caught up for this long leaves the in-sync replicas.",
    )
    replica_selector_class: str | None = string(
        default=None,
        doc="Which replica a consumer should read from: "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector sends it to one in its own rack "
        "(client.rack); empty, or any other class, means the leader.",
    )
    replica_socket_receive_buffer_bytes: int = integer(
        default=65_536,
        importance="high",
        effect="later",
        doc="Receive buffer of a follower's connection.",
    )
    replica_socket_timeout_ms: int = integer(
        default=30_000,
        importance="high",
        effect="later",
        doc="How long a follower waits for the leader. Must be at least replica.fetch.wait.max.ms.",
    )
    unclean_leader_election_enable: bool = boolean(
        default=False,
        importance="high",
        update="cluster-wide",
        doc="Let a replica that is not in sync become leader when no other is left, losing what "
        "it lacks.",
    )
    unclean_leader_election_interval_ms: int = long(
        default=300_000,
        rule=at_least(1),
        effect="later",
        internal=True,
        doc="How often partitions without a leader are looked through for an unclean election.",
    )
