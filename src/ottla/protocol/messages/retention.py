"""Ours, not Kafka's: what becomes of a topic's segments, ExplainRetention (10000)."""

from __future__ import annotations

from ottla.protocol.schema import array, boolean, int16, int32, int64, message, string, struct


@message(api_key=10_000, kind="request", versions="0", flexible="0+")
class ExplainRetentionRequest:
    """Asks one broker about a topic: the partitions it leads, the groups it coordinates."""

    topic: str = string()


@struct
class ExplainedSegment:
    """One segment; moments are -1 where there is none.

    `rule` is a word of `storage.retention.Rule`, `due_ms` when a retention pass will delete the
    segment (0: the next one), `unheld_ms` when it would without the hold of a group, `behind` the
    base offset of the older segment that it has to wait for, `rolls_ms` when `segment.ms` is over.
    """

    base_offset: int = int64()
    end_offset: int = int64()
    size: int = int64()
    is_active: bool = boolean()
    newest_ms: int = int64(default=-1)
    since_ms: int = int64()
    rolls_ms: int = int64(default=-1)
    rule: str = string()
    due_ms: int = int64(default=-1)
    unheld_ms: int = int64(default=-1)
    behind: int = int64(default=-1)


@struct
class ExplainedHold:
    """A group that the topic waits for, and the offset it will read next; -1 if not known."""

    group: str = string()
    offset: int = int64(default=-1)


@struct
class ExplainedPartition:
    """One partition that the broker leads."""

    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    log_start_offset: int = int64(default=-1)
    high_watermark: int = int64(default=-1)
    log_end_offset: int = int64(default=-1)
    segments: list[ExplainedSegment] = array(ExplainedSegment)
    holds: list[ExplainedHold] = array(ExplainedHold)


@struct
class ExplainedPosition:
    """The offset that a group will read next in a partition."""

    group: str = string()
    partition_index: int = int32()
    offset: int = int64()


@message(api_key=10_000, kind="response", versions="0", flexible="0+")
class ExplainRetentionResponse:
    """The settings in force, the partitions led here, and the positions of the groups coordinated
    here; `groups_complete` is false while some of those are being loaded."""

    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    now_ms: int = int64(default=0)
    check_interval_ms: int = int64(default=0)
    cleanup_policy: str = string(default="")
    retention_ms: int = int64(default=0)
    retention_bytes: int = int64(default=0)
    segment_ms: int = int64(default=0)
    hold_bytes: int = int64(default=0)
    partitions: list[ExplainedPartition] = array(ExplainedPartition)
    positions: list[ExplainedPosition] = array(ExplainedPosition)
    groups_complete: bool = boolean(default=True)
