"""Kafka's controller quorum (KRaft). Cluster metadata is kept differently here, so most have no
meaning; they are accepted and listed."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, integer, long, names, string
from ottla.config.rules import at_least, distinct
from ottla.config.setting import MAX_LONG, Difference


class KraftSettings(Settings):
    """Kafka's own controller quorum."""

    broker_heartbeat_interval_ms: int = integer(
        default=2000,
        effect="none",
        doc="How often a broker reports to Kafka's controller.",
    )
    broker_session_timeout_ms: int = integer(
        default=9000,
        effect="none",
        doc="Silence after which Kafka's controller fences a broker.",
    )
    controller_listener_names: tuple[str, ...] = names(
        default=(),
        rule=distinct(),
        importance="high",
        differs=Difference(None, "there is no controller quorum to listen for"),
        doc="Listeners meant for Kafka's controller quorum. They are not opened here.",
    )
    controller_performance_always_log_threshold_ms: int = long(
        default=2000,
        rule=at_least(0),
        effect="none",
        internal=True,
        doc="Age from which Kafka's controller logs an event as slow.",
    )
    controller_performance_sample_period_ms: int = long(
        default=60_000,
        rule=at_least(100),
        effect="none",
        internal=True,
        doc="How often Kafka's controller logs how it performs.",
    )
    controller_quorum_append_linger_ms: int = integer(
        default=25,
        rule=at_least(0),
        effect="none",
        doc="How long Kafka's quorum gathers records before it writes them.",
    )
    controller_quorum_auto_join_enable: bool = boolean(
        default=False,
        importance="low",
        effect="none",
        doc="Let a controller join Kafka's quorum by itself.",
    )
    controller_quorum_bootstrap_servers: tuple[str, ...] = names(
        default=(),
        importance="high",
        effect="none",
        doc="Addresses through which Kafka's quorum is found.",
    )
    controller_quorum_election_backoff_max_ms: int = integer(
        default=1000,
        rule=at_least(0),
        importance="high",
        effect="none",
        doc="Longest pause before Kafka's quorum elects again.",
    )
    controller_quorum_election_timeout_ms: int = integer(
        default=1000,
        rule=at_least(0),
        importance="high",
        effect="none",
        doc="How long a candidate of Kafka's quorum waits for votes.",
    )
    controller_quorum_fetch_timeout_ms: int = integer(
        default=2000,
        rule=at_least(0),
        importance="high",
        effect="none",
        doc="Silence of the quorum's leader after which a follower stands for election.",
    )
    controller_quorum_request_timeout_ms: int = integer(
        default=2000,
        rule=at_least(0),
        effect="none",
        doc="How long a member of Kafka's quorum waits for an answer.",
    )
    controller_quorum_retry_backoff_ms: int = integer(
        default=20,
        rule=at_least(0),
        importance="low",
        effect="none",
        doc="Pause before a member of Kafka's quorum tries again.",
    )
    controller_quorum_voters: tuple[str, ...] = names(
        default=(),
        importance="high",
        effect="none",
        doc="Members of Kafka's quorum, as id@host:port.",
    )
    controller_socket_timeout_ms: int = integer(
        default=30_000,
        effect="none",
        doc="How long Kafka's controller waits for a broker.",
    )
    early_start_listeners: tuple[str, ...] | None = names(
        default=None,
        rule=distinct(),
        importance="high",
        effect="none",
        doc="Listeners that Kafka opens before its metadata is loaded.",
    )
    initial_broker_registration_timeout_ms: int = integer(
        default=60_000,
        effect="none",
        doc="How long a starting broker tries to register with Kafka's controller.",
    )
    internal_metadata_delete_delay_millis: int = long(
        default=60_000,
        importance="low",
        effect="none",
        internal=True,
        doc="How long removed files of Kafka's metadata log stay.",
    )
    internal_metadata_log_segment_bytes: int | None = integer(
        default=None,
        importance="low",
        effect="none",
        internal=True,
        doc="Segment size of Kafka's metadata log, without its lower limit.",
    )
    internal_metadata_max_batch_size_in_bytes: int = integer(
        default=8_388_608,
        importance="low",
        effect="none",
        internal=True,
        doc="Largest batch in Kafka's metadata log.",
    )
    internal_metadata_max_fetch_size_in_bytes: int = integer(
        default=8_388_608,
        importance="low",
        effect="none",
        internal=True,
        doc="Largest fetch from Kafka's metadata log.",
    )
    metadata_log_dir: str | None = string(
        default=None,
        importance="high",
        effect="none",
        doc="Directory of Kafka's metadata log; without it the first of log.dirs.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = long(
        default=20_971_520,
        rule=at_least(1),
        importance="high",
        effect="none",
        doc="Bytes of Kafka's metadata log between two snapshots.",
    )
    metadata_log_max_snapshot_interval_ms: int = long(
        default=3_600_000,
        rule=at_least(0),
        importance="high",
        effect="none",
        doc="Longest time between two snapshots of Kafka's metadata.",
    )
    metadata_log_segment_bytes: int = integer(
        default=1_073_741_824,
        rule=at_least(8_388_608),
        importance="high",
        effect="none",
        doc="Segment size of Kafka's metadata log.",
    )
    metadata_log_segment_ms: int = long(
        default=604_800_000,
        importance="high",
        effect="none",
        doc="Age at which Kafka's metadata log starts its next segment.",
    )
    metadata_max_idle_interval_ms: int = integer(
        default=500,
        rule=at_least(0),
        importance="low",
        effect="none",
        doc="How often Kafka's idle controller writes an empty record.",
    )
    metadata_max_retention_bytes: int = long(
        default=104_857_600,
        importance="high",
        effect="none",
        doc="Size at which old parts of Kafka's metadata log are deleted.",
    )
    metadata_max_retention_ms: int = long(
        default=604_800_000,
        importance="high",
        effect="none",
        doc="Age at which old parts of Kafka's metadata log are deleted.",
    )
    process_roles: tuple[str, ...] = names(
        default=("broker",),
        rule=distinct("broker", "controller", empty=False),
        importance="high",
        differs=Difference(None, "every broker here can act as controller"),
        doc="What this process is: broker, controller or both. Every broker here can act as "
        "controller, so `controller` is read and passed over; `broker` must be there.",
    )
    server_max_startup_time_ms: int = long(
        default=MAX_LONG,
        rule=at_least(0),
        effect="none",
        internal=True,
        doc="Longest time Kafka may take to start.",
    )
    unstable_api_versions_enable: bool = boolean(
        default=False,
        importance="high",
        effect="none",
        internal=True,
        doc="Serve versions of APIs that Kafka still works on.",
    )
    unstable_feature_versions_enable: bool = boolean(
        default=False,
        importance="high",
        effect="none",
        internal=True,
        doc="Allow feature levels that Kafka still works on.",
    )
