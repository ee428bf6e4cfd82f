"""Logs on disk: where they are, how they roll, how long they live, when they are flushed.

Most of these are the defaults of a topic setting; `TopicConfig` names them as synonyms."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, class_name, double, integer, long, names, string
from ottla.config.rules import at_least, between, between_or, distinct, one_of
from ottla.config.setting import MAX_DOUBLE, MAX_LONG, Difference, Fallback


class LogSettings(Settings):
    """Topic creation, and the defaults of every log on disk."""

    alter_config_policy_class_name: str | None = class_name(
        default=None,
        importance="low",
        effect="none",
        doc="A Java class that may refuse changes of configuration.",
    )
    auto_create_topics_enable: bool = boolean(
        default=True,
        importance="high",
        doc="Create a topic when a client asks for its metadata or produces to it.",
    )
    compression_gzip_level: int = integer(
        default=-1,
        rule=between_or(1, 9, -1),
        update="cluster-wide",
        doc="Effort of gzip where compression.type is gzip; -1 leaves it to the library.",
    )
    compression_lz4_level: int = integer(
        default=9,
        rule=between(1, 17),
        update="cluster-wide",
        doc="Effort of lz4 where compression.type is lz4.",
    )
    compression_type: str = string(
        default="producer",
        rule=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        importance="high",
        update="cluster-wide",
        doc="Codec of stored batches. `producer` stores what arrives; any other value makes the "
        "broker recompress batches that differ.",
    )
    compression_zstd_level: int = integer(
        default=3,
        rule=between(-131_072, 22),
        update="cluster-wide",
        doc="Effort of zstd where compression.type is zstd.",
    )
    create_topic_policy_class_name: str | None = class_name(
        default=None,
        importance="low",
        effect="none",
        doc="A Java class that may refuse the creation of topics.",
    )
    delete_topic_enable: bool = boolean(
        default=True,
        importance="high",
        doc="Allow topics to be deleted.",
    )
    log_cleaner_backoff_ms: int = long(
        default=15_000,
        rule=at_least(0),
        update="cluster-wide",
        doc="Pause of the cleaner when no log needs compaction.",
    )
    log_cleaner_dedupe_buffer_size: int = long(
        default=134_217_728,
        update="cluster-wide",
        doc="Memory for the cleaner's table of keys, over all its workers.",
    )
    log_cleaner_delete_retention_ms: int = long(
        default=86_400_000,
        rule=at_least(0),
        update="cluster-wide",
        doc="How long compaction keeps a tombstone, for consumers that read from the beginning.",
    )
    log_cleaner_enable: bool = boolean(
        default=True,
        doc="Run the cleaner that compacts topics with cleanup.policy=compact.",
    )
    log_cleaner_io_buffer_load_factor: float = double(
        default=0.9,
        update="cluster-wide",
        doc="How full the cleaner's table of keys may get, as a share of its slots.",
    )
    log_cleaner_io_buffer_size: int = integer(
        default=524_288,
        rule=at_least(0),
        update="cluster-wide",
        doc="Memory for the cleaner's reading and writing, over all its workers.",
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        default=MAX_DOUBLE,
        update="cluster-wide",
        doc="Most bytes a second that the cleaner reads and writes together.",
    )
    log_cleaner_max_compaction_lag_ms: int = long(
        default=MAX_LONG,
        rule=at_least(1),
        update="cluster-wide",
        doc="The longest a record of a compacted topic may stay uncompacted.",
    )
    log_cleaner_min_cleanable_ratio: float = double(
        default=0.5,
        rule=between(0, 1),
        update="cluster-wide",
        doc="Share of a compacted log that must be uncompacted before the cleaner takes it up.",
    )
    log_cleaner_min_compaction_lag_ms: int = long(
        default=0,
        rule=at_least(0),
        update="cluster-wide",
        doc="The shortest time a record of a compacted topic stays uncompacted.",
    )
    log_cleaner_threads: int = integer(
        default=1,
        rule=at_least(0),
        update="cluster-wide",
        doc="Workers that compact logs.",
    )
    log_cleanup_policy: tuple[str, ...] = names(
        default=("delete",),
        rule=distinct("compact", "delete"),
        update="cluster-wide",
        doc="What happens to old segments: `delete` drops them by age and size, `compact` keeps "
        "the last value of every key.",
    )
    log_dir: tuple[str, ...] = names(
        default=("data",),
        rule=distinct(empty=False),
        importance="high",
        differs=Difference("/tmp/kafka-logs", "a folder for temporary files is no place for data"),
        doc="The data directory, used when log.dirs is not given.",
    )
    log_dir_failure_timeout_ms: int = long(
        default=30_000,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="How long a broker may fail to report a lost data directory before it stops.",
    )
    log_dirs: tuple[str, ...] = names(
        default=None,
        fallbacks=(Fallback("log.dir"),),
        rule=distinct(empty=False),
        importance="high",
        doc="The data directories. A new partition goes to the one with the fewest; a failing one"
        " is taken offline and the others go on.",
    )
    log_flush_interval_messages: int = long(
        default=MAX_LONG,
        rule=at_least(1),
        importance="high",
        update="cluster-wide",
        doc="Force a log to disk after this many records.",
    )
    log_flush_interval_ms: int = long(
        default=None,
        fallbacks=(Fallback("log.flush.scheduler.interval.ms"),),
        importance="high",
        update="cluster-wide",
        doc="Force a log to disk when its oldest unflushed record is this old. Without it, "
        "log.flush.scheduler.interval.ms counts.",
    )
    log_flush_offset_checkpoint_interval_ms: int = integer(
        default=60_000,
        rule=at_least(0),
        importance="high",
        doc="How often the recovery points are written, from which a restart after a crash begins"
        " to check.",
    )
    log_flush_scheduler_interval_ms: int = long(
        default=MAX_LONG,
        importance="high",
        doc="How often logs are looked through for ones due to be flushed.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = integer(
        default=60_000,
        rule=at_least(0),
        importance="high",
        doc="How often the log start offsets are written.",
    )
    log_index_interval_bytes: int = integer(
        default=4096,
        rule=at_least(0),
        update="cluster-wide",
        doc="Bytes of log between two entries of the offset and time indexes.",
    )
    log_index_size_max_bytes: int = integer(
        default=10_485_760,
        rule=at_least(4),
        update="cluster-wide",
        doc="Largest size of an offset or time index; a full one starts the next segment.",
    )
    log_initial_task_delay_ms: int = long(
        default=30_000,
        rule=at_least(0),
        importance="low",
        internal=True,
        doc="Pause after start before the first retention and flush runs.",
    )
    log_local_retention_bytes: int = long(
        default=-2,
        rule=at_least(-2),
        update="cluster-wide",
        effect="none",
        doc="With tiered storage, bytes of a partition to keep on local disk; -2 follows "
        "log.retention.bytes.",
    )
    log_local_retention_ms: int = long(
        default=-2,
        rule=at_least(-2),
        update="cluster-wide",
        effect="none",
        doc="With tiered storage, time to keep records on local disk; -2 follows log.retention.ms.",
    )
    log_message_timestamp_after_max_ms: int = long(
        default=3_600_000,
        rule=at_least(0),
        update="cluster-wide",
        doc="How far a record's timestamp may lie in the broker's future when the timestamp type "
        "is CreateTime.",
    )
    log_message_timestamp_before_max_ms: int = long(
        default=MAX_LONG,
        rule=at_least(0),
        update="cluster-wide",
        doc="How far a record's timestamp may lie in the broker's past when the timestamp type is"
        " CreateTime.",
    )
    log_message_timestamp_type: str = string(
        default="CreateTime",
        rule=one_of("CreateTime", "LogAppendTime"),
        update="cluster-wide",
        doc="Whose clock stamps a record: the producer's (CreateTime) or the broker's at append "
        "(LogAppendTime).",
    )
    log_preallocate: bool = boolean(
        default=False,
        update="cluster-wide",
        effect="none",
        doc="Reserve a new segment's full size on disk when it is created. Here segments grow as "
        "they are written.",
    )
    log_retention_bytes: int = long(
        default=-1,
        importance="high",
        update="cluster-wide",
        doc="Size a partition may reach before its oldest segments are deleted; -1 is unlimited.",
    )
    log_retention_check_interval_ms: int = long(
        default=300_000,
        rule=at_least(1),
        doc="How often logs are looked through for segments to delete.",
    )
    log_retention_hours: int = integer(
        default=168,
        importance="high",
        doc="Age in hours at which a segment is deleted, unless .minutes or .ms is given.",
    )
    log_retention_minutes: int | None = integer(
        default=None,
        importance="high",
        doc="Age in minutes at which a segment is deleted, unless .ms is given.",
    )
    log_retention_ms: int = long(
        default=None,
        fallbacks=(
            Fallback("log.retention.minutes", 60_000),
            Fallback("log.retention.hours", 3_600_000),
        ),
        importance="high",
        update="cluster-wide",
        doc="Age in milliseconds at which a segment is deleted; -1 is unlimited. Comes before "
        ".minutes and .hours.",
    )
    log_roll_hours: int = integer(
        default=168,
        rule=at_least(1),
        importance="high",
        doc="Age in hours at which a log starts its next segment, unless .ms is given.",
    )
    log_roll_jitter_hours: int = integer(
        default=0,
        rule=at_least(0),
        importance="high",
        doc="At most this many hours are taken off the rolling age at random, unless .ms is given.",
    )
    log_roll_jitter_ms: int = long(
        default=None,
        fallbacks=(Fallback("log.roll.jitter.hours", 3_600_000),),
        importance="high",
        update="cluster-wide",
        doc="At most this many milliseconds are taken off the rolling age at random. Comes before"
        " .hours.",
    )
    log_roll_ms: int = long(
        default=None,
        fallbacks=(Fallback("log.roll.hours", 3_600_000),),
        importance="high",
        update="cluster-wide",
        doc="Age in milliseconds at which a log starts its next segment. Comes before .hours.",
    )
    log_segment_bytes: int = integer(
        default=1_073_741_824,
        rule=at_least(1_048_576),
        importance="high",
        update="cluster-wide",
        doc="Size at which a log starts its next segment.",
    )
    log_segment_delete_delay_ms: int = long(
        default=60_000,
        rule=at_least(0),
        importance="high",
        update="cluster-wide",
        doc="How long a removed segment keeps its renamed file, for readers still in it.",
    )
    message_max_bytes: int = integer(
        default=1_048_588,
        rule=at_least(0),
        importance="high",
        update="cluster-wide",
        doc="Largest batch of records accepted, after compression.",
    )
    num_partitions: int = integer(
        default=1,
        rule=at_least(1),
        doc="Partitions of a topic whose creator does not say, automatic creation included.",
    )
    num_recovery_threads_per_data_dir: int = integer(
        default=2,
        rule=at_least(1),
        importance="high",
        update="cluster-wide",
        doc="Workers per data directory that check logs after a crash.",
    )
