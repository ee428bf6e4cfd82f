"""Every topic setting of Kafka 4.2, and the typed value that a log works with.

A topic setting has up to five sources, strongest first: the topic's own override, the broker's
dynamic setting, the cluster-wide dynamic default, the broker's file, and the built-in default.
`synonym` names the broker setting that supplies the last four.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ottla.config.declare import (
    Settings,
    Texts,
    boolean,
    double,
    integer,
    long,
    name_set,
    names,
    string,
)
from ottla.config.rules import (
    at_least,
    between,
    between_or,
    distinct,
    one_of,
    throttled_replicas,
)
from ottla.config.setting import MAX_LONG

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig


class TopicConfig(Settings):
    """The effective settings of one topic. `TopicConfig()` has Kafka's defaults."""

    cleanup_policy: frozenset[str] = name_set(
        default=("delete",),
        rule=distinct("compact", "delete"),
        synonym="log.cleanup.policy",
        doc="What happens to old segments: `delete` drops them by age and size, `compact` keeps "
        "the last value of every key. Both may be given; none at all keeps everything.",
    )
    compression_gzip_level: int = integer(
        default=-1,
        rule=between_or(1, 9, -1),
        synonym="compression.gzip.level",
        doc="Effort of gzip when the broker itself compresses; -1 leaves it to the library.",
    )
    compression_lz4_level: int = integer(
        default=9,
        rule=between(1, 17),
        synonym="compression.lz4.level",
        doc="Effort of lz4 when the broker itself compresses.",
    )
    compression_type: str = string(
        default="producer",
        rule=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonym="compression.type",
        doc="Codec of the stored batches. `producer` stores what arrives without touching it; "
        "any other value makes the broker recompress batches that differ.",
    )
    compression_zstd_level: int = integer(
        default=3,
        rule=between(-131_072, 22),
        synonym="compression.zstd.level",
        doc="Effort of zstd when the broker itself compresses.",
    )
    delete_retention_ms: int = long(
        default=86_400_000,
        rule=at_least(0),
        synonym="log.cleaner.delete.retention.ms",
        doc="How long compaction keeps a tombstone, so that a consumer which started from the "
        "beginning within this time sees the deletion.",
    )
    file_delete_delay_ms: int = long(
        default=60_000,
        rule=at_least(0),
        synonym="log.segment.delete.delay.ms",
        doc="How long a removed segment keeps its renamed file, for readers still in it.",
    )
    flush_messages: int = long(
        default=MAX_LONG,
        rule=at_least(1),
        synonym="log.flush.interval.messages",
        doc="Force the log to disk after this many records. 1 makes every acknowledged record "
        "survive a power cut, at one shared fsync per group of waiting requests.",
    )
    flush_ms: int = long(
        default=MAX_LONG,
        rule=at_least(0),
        synonym="log.flush.interval.ms",
        doc="Force the log to disk when its oldest unflushed record is this old.",
    )
    follower_replication_throttled_replicas: frozenset[str] = name_set(
        default=(),
        rule=throttled_replicas(),
        doc="Replicas whose incoming replication is rate-limited, as partition:broker pairs, or "
        "`*` for all.",
    )
    index_interval_bytes: int = integer(
        default=4096,
        rule=at_least(0),
        synonym="log.index.interval.bytes",
        doc="Bytes of log between two entries of the offset and time indexes.",
    )
    internal_segment_bytes: int | None = integer(
        default=None,
        internal=True,
        doc="Overrides segment.bytes without its lower limit; for tests that want small segments.",
    )
    leader_replication_throttled_replicas: frozenset[str] = name_set(
        default=(),
        rule=throttled_replicas(),
        doc="Replicas whose outgoing replication is rate-limited, as partition:broker pairs, or "
        "`*` for all.",
    )
    local_retention_bytes: int = long(
        default=-2,
        rule=at_least(-2),
        effect="none",
        synonym="log.local.retention.bytes",
        doc="With tiered storage, bytes to keep on local disk; -2 follows retention.bytes.",
    )
    local_retention_ms: int = long(
        default=-2,
        rule=at_least(-2),
        effect="none",
        synonym="log.local.retention.ms",
        doc="With tiered storage, time to keep records on local disk; -2 follows retention.ms.",
    )
    max_compaction_lag_ms: int = long(
        default=MAX_LONG,
        rule=at_least(1),
        synonym="log.cleaner.max.compaction.lag.ms",
        doc="The longest a record of a compacted topic may stay uncompacted.",
    )
    max_message_bytes: int = integer(
        default=1_048_588,
        rule=at_least(0),
        synonym="message.max.bytes",
        doc="Largest batch of records accepted, after compression.",
    )
    message_timestamp_after_max_ms: int = long(
        default=3_600_000,
        rule=at_least(0),
        synonym="log.message.timestamp.after.max.ms",
        doc="How far a record's timestamp may lie in the broker's future when the timestamp type "
        "is CreateTime.",
    )
    message_timestamp_before_max_ms: int = long(
        default=MAX_LONG,
        rule=at_least(0),
        synonym="log.message.timestamp.before.max.ms",
        doc="How far a record's timestamp may lie in the broker's past when the timestamp type is "
        "CreateTime.",
    )
    message_timestamp_type: str = string(
        default="CreateTime",
        rule=one_of("CreateTime", "LogAppendTime"),
        synonym="log.message.timestamp.type",
        doc="Whose clock stamps a record: the producer's (CreateTime) or the broker's at append "
        "(LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = double(
        default=0.5,
        rule=between(0, 1),
        synonym="log.cleaner.min.cleanable.ratio",
        doc="Share of a compacted log that must be uncompacted before the cleaner takes it up.",
    )
    min_compaction_lag_ms: int = long(
        default=0,
        rule=at_least(0),
        synonym="log.cleaner.min.compaction.lag.ms",
        doc="The shortest time a record of a compacted topic stays uncompacted.",
    )
    min_insync_replicas: int = integer(
        default=1,
        rule=at_least(1),
        synonym="min.insync.replicas",
        doc="In-sync replicas that must have a batch before acks=all is answered; with fewer the "
        "produce is refused.",
    )
    ottla_retention_hold_bytes: int = long(
        default=10_737_418_240,
        rule=at_least(0),
        internal=True,
        foreign=True,
        doc="Size up to which a partition may grow for the sake of ottla.retention.hold.groups; "
        "above it the oldest segments go, read or not. Not a setting of Kafka's.",
    )
    ottla_retention_hold_groups: tuple[str, ...] = names(
        default=(),
        rule=distinct(),
        internal=True,
        foreign=True,
        doc="Groups whose unread records retention by size and time leaves alone, up to "
        "ottla.retention.hold.bytes; none: no group holds anything. Not a setting of Kafka's.",
    )
    preallocate: bool = boolean(
        default=False,
        synonym="log.preallocate",
        effect="none",
        doc="Reserve a new segment's full size on disk when it is created. Here segments grow as "
        "they are written.",
    )
    remote_log_copy_disable: bool = boolean(
        default=False,
        effect="none",
        doc="With tiered storage, stop copying segments away and make the remote part read-only.",
    )
    remote_log_delete_on_disable: bool = boolean(
        default=False,
        effect="none",
        doc="With tiered storage, delete the remote part when remote.storage.enable is turned off.",
    )
    remote_storage_enable: bool = boolean(
        default=False,
        effect="none",
        doc="Tiered storage for this topic. There is none here, so only false is accepted.",
    )
    retention_bytes: int = long(
        default=-1,
        synonym="log.retention.bytes",
        doc="Size a partition may reach before its oldest segments are deleted; -1 is unlimited.",
    )
    retention_ms: int = long(
        default=604_800_000,
        rule=at_least(-1),
        synonym="log.retention.ms",
        doc="Age at which a segment is deleted, by its newest record; -1 is unlimited.",
    )
    segment_bytes: int = integer(
        default=1_073_741_824,
        rule=at_least(1_048_576),
        synonym="log.segment.bytes",
        doc="Size at which a log starts its next segment.",
    )
    segment_index_bytes: int = integer(
        default=10_485_760,
        rule=at_least(4),
        synonym="log.index.size.max.bytes",
        doc="Largest size of an offset or time index; a full one starts the next segment.",
    )
    segment_jitter_ms: int = long(
        default=0,
        rule=at_least(0),
        synonym="log.roll.jitter.ms",
        doc="At most this much is taken off segment.ms at random, so that many logs do not roll "
        "at once.",
    )
    segment_ms: int = long(
        default=604_800_000,
        rule=at_least(1),
        synonym="log.roll.ms",
        doc="Age at which a log starts its next segment even when it is not full, so that "
        "retention and compaction can reach old records.",
    )
    unclean_leader_election_enable: bool = boolean(
        default=False,
        effect="later",
        synonym="unclean.leader.election.enable",
        doc="Let a replica that is not in sync become leader when no other is left, losing what "
        "it lacks.",
    )

    @classmethod
    def resolve(cls, overrides: Texts, broker: BrokerConfig) -> Self:
        """The settings of a topic with these overrides on this broker.

        Overrides are parsed, and ones with unknown names passed over: what is in the store has
        been validated when it was written, and may have been written by a later version.
        """
        self = cls.inheriting(overrides, broker)
        if self.internal_segment_bytes is not None:
            self.__dict__["segment_bytes"] = self.internal_segment_bytes
        return self
