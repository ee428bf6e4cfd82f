"""Idempotent and transactional producers, and the topic that keeps their state."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, integer, short
from ottla.config.rules import at_least


class TransactionSettings(Settings):
    """Idempotent and transactional producers."""

    add_partitions_to_txn_retry_backoff_max_ms: int = integer(
        default=100,
        rule=at_least(0),
        importance="high",
        doc="Longest total time spent retrying to add partitions to a transaction that is still "
        "ending.",
    )
    add_partitions_to_txn_retry_backoff_ms: int = integer(
        default=20,
        rule=at_least(1),
        importance="high",
        doc="Pause between such retries.",
    )
    producer_id_expiration_check_interval_ms: int = integer(
        default=600_000,
        rule=at_least(1),
        importance="low",
        internal=True,
        doc="How often producers are looked through for expired ones.",
    )
    producer_id_expiration_ms: int = integer(
        default=86_400_000,
        rule=at_least(1),
        importance="low",
        update="cluster-wide",
        doc="How long an idle producer's sequence numbers are remembered. A duplicate that "
        "arrives later is not recognised.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        default=10_000,
        rule=at_least(1),
        importance="low",
        doc="How often transactions are looked through for ones to abort.",
    )
    transaction_max_timeout_ms: int = integer(
        default=900_000,
        rule=at_least(1),
        importance="high",
        doc="Longest transaction timeout a producer may ask for.",
    )
    transaction_partition_verification_enable: bool = boolean(
        default=True,
        importance="low",
        update="cluster-wide",
        doc="Check with the coordinator that a partition belongs to the transaction before "
        "appending to it.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        default=3_600_000,
        rule=at_least(1),
        importance="low",
        doc="How often transactional ids are looked through for expired ones.",
    )
    transaction_state_log_load_buffer_size: int = integer(
        default=5_242_880,
        rule=at_least(1),
        importance="high",
        doc="Bytes read at a time when a coordinator loads its transactions.",
    )
    transaction_state_log_min_isr: int = integer(
        default=2,
        rule=at_least(1),
        importance="high",
        doc="min.insync.replicas of the transactions topic.",
    )
    transaction_state_log_num_partitions: int = integer(
        default=50,
        rule=at_least(1),
        importance="high",
        doc="Partitions of the transactions topic. Not to be changed once it exists.",
    )
    transaction_state_log_replication_factor: int = short(
        default=3,
        rule=at_least(1),
        importance="high",
        doc="Replicas of the transactions topic; with fewer brokers it has as many as there are, "
        "and gets more as brokers join.",
    )
    transaction_state_log_segment_bytes: int = integer(
        default=104_857_600,
        rule=at_least(1),
        importance="high",
        doc="Segment size of the transactions topic, small so that it compacts and loads fast.",
    )
    transaction_two_phase_commit_enable: bool = boolean(
        default=False,
        importance="low",
        effect="later",
        doc="Let producers take part in an outer two-phase commit, without a transaction timeout.",
    )
    transactional_id_expiration_ms: int = integer(
        default=604_800_000,
        rule=at_least(1),
        importance="high",
        doc="How long a transactional id without activity is remembered.",
    )
