"""Which segments may go, when, and by which rule. Decides only; `Log.delete_old` acts.

`fates` is the only place that decides. `Log.delete_old` deletes what it says is due, and
`ottla topic explain-retention` prints what it says, so the two cannot disagree.

Segments go from the oldest on, as in Kafka: one that has to stay keeps everything after it.

    start    it lies wholly below the log start offset (DeleteRecords); always
    size     without it the log still has `retention.bytes`; with `delete` in cleanup.policy
    time     its newest record is older than `retention.ms`; likewise

Nothing goes that reaches beyond the high watermark, nor an active segment without records. The
active segment goes like any other when it has some: `Log` rolls first, so that there always is one
to write to.

What age is counted from. The newest timestamp of the segment, the broker's or the producers',
whichever the topic asks for. A segment without timestamps counts from the moment its file was last
written. So does one whose newest timestamp lies more than `message.timestamp.after.max.ms` after
that moment: no append could have been allowed to say so. It comes from a time when the limit was
another, or from somebody else's broker, and taken at its word it would pin the segment, and all
after it, for years. The setting counts as it is now; a topic that allows any future keeps what it
allows. Only appends, truncation and compaction write a `.log`, never indexes or a restart; after a
truncation age may be counted from a later moment than before, which keeps more and not less.

Rolling. Kafka rolls a segment with an append only, so that the last records of a topic that has
gone quiet are never compacted. Here a pass rolls an active segment whose `segment.ms` (less its
jitter) is over, by the clock of an append at this moment, unless somebody has just written to it:
who writes rolls by himself, and a copy of old records, whose first timestamp is long ago, must not
be cut into small segments. An empty one is left alone, and costs nothing.

Holds. `ottla.retention.hold.groups` names groups whose unread records size and time leave alone, as
long as the log, from the segment in question to its end, is not larger than
`ottla.retention.hold.bytes`. A group that has committed nothing here, or whose offsets are not
known (its coordinator is loading, or somewhere else), has read nothing: what is kept too long can
still be deleted later. DeleteRecords is not held up: whoever asks for it knows what is lost.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.config.topic import TopicConfig
    from ottla.model.ids import TopicPartition
    from ottla.storage.segment import Segment
    from ottla.storage.segments import Segments

ALREADY = 0
"""Due since for ever: goes with the next pass, whatever the clock says."""
QUIET_MS = 60_000
"""A segment to which nothing was written for so long is rolled without waiting for an append."""

_SETTINGS = (
    "cleanup_policy", "max_compaction_lag_ms", "message_timestamp_after_max_ms",
    "ottla_retention_hold_bytes", "ottla_retention_hold_groups", "retention_bytes",
    "retention_ms", "segment_ms",
)  # fmt: skip


class Positions(Protocol):
    """Where groups have got to, by whoever knows."""

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """The offset that a group will read next; None when there is none, or nobody knows."""
        ...


class Rule(enum.Enum):
    """What decides about a segment: by the first three it goes, by the others it stays."""

    START = "start"
    SIZE = "size"
    TIME = "time"
    HOLD = "hold"
    """A group that the topic waits for has not read it."""
    WATERMARK = "watermark"
    """It reaches beyond the high watermark."""
    EMPTY = "empty"
    """The active segment, without records."""
    UNLIMITED = "unlimited"
    """retention.ms=-1, and the size is within its limits."""
    COMPACT = "compact"
    """cleanup.policy=compact: the cleaner decides, record by record."""
    NONE = "none"
    """An empty cleanup.policy: everything stays."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A group that the topic waits for, and the offset it will read next; None: not known."""

    group: str
    offset: int | None

    def needs(self, end_offset: int) -> bool:
        """Whether the group has not read everything below `end_offset`."""
        return self.offset is None or self.offset < end_offset

    def unread(self, start_offset: int, end_offset: int) -> int:
        """How many offsets from `start_offset` up to `end_offset` the group has not read."""
        first = start_offset if self.offset is None else max(start_offset, self.offset)
        return max(0, end_offset - first)


@dataclass(frozen=True, slots=True)
class Age:
    """What a segment's age is counted from."""

    since_ms: int
    newest_ms: int
    """The newest timestamp; -1 if there is none."""

    @property
    def by_file(self) -> bool:
        """Whether it is the moment when the file was last written, and not the newest timestamp."""
        return self.since_ms != self.newest_ms


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one segment if nothing is written, committed or changed any more."""

    rule: Rule
    due_ms: int | None = None
    """The first moment at which a retention pass deletes it; None: none does."""
    unheld_ms: int | None = None
    """For what a group holds: when it would be due without."""
    behind: int | None = None
    """The base offset of the older segment which it has to wait for, if there is one."""


@dataclass(frozen=True, slots=True)
class SegmentFate:
    """One segment as retention sees it."""

    base_offset: int
    end_offset: int
    size: int
    is_active: bool
    age: Age
    rolls_ms: int | None
    """When the active segment, if it has records, will be rolled by `segment.ms`."""
    fate: Fate


@dataclass(frozen=True, slots=True)
class Explanation:
    """What becomes of a log, and the groups it waits for."""

    segments: tuple[SegmentFate, ...]
    holds: tuple[Hold, ...]


def concerns(before: TopicConfig, after: TopicConfig) -> bool:
    """Whether a change of settings may let segments go, or roll the active one."""
    return any(getattr(before, name) != getattr(after, name) for name in _SETTINGS)


def rolls(active: Segment, now_ms: int, segment_ms: int) -> bool:
    """Whether an active segment is to be rolled although nobody appends."""
    if active.size == 0 or now_ms < active.rolls_at(segment_ms):
        return False
    return now_ms - active.written_ms() >= min(segment_ms, QUIET_MS)


def holds_of(
    config: TopicConfig, partition: TopicPartition, positions: Positions | None
) -> list[Hold]:
    """The groups that a topic waits for, and where they are in a partition."""
    return [
        Hold(group, None if positions is None else positions.committed(group, partition))
        for group in config.ottla_retention_hold_groups
    ]


def fates(
    segments: Segments,
    *,
    log_start_offset: int,
    log_end_offset: int,
    limit: int,
    holds: Sequence[Hold] = (),
) -> Iterator[Fate]:
    """The fate of each segment, oldest first; no file is looked at before its turn.

    `limit` is the high watermark.
    """
    config, bases = segments.config, segments.bases
    last = len(segments) - 1
    deletes = "delete" in config.cleanup_policy
    by_start, by_size = True, deletes and config.retention_bytes >= 0
    remaining = segments.size  # bytes from this segment on
    due, decider = ALREADY, 0  # the latest time so far, and whose it is
    for slot, segment in enumerate(segments):
        end = bases[slot + 1] if slot < last else log_end_offset
        size, from_here = segment.size, remaining
        remaining -= size
        if slot == last and size == 0:
            yield Fate(Rule.EMPTY)
            continue
        if end > limit:
            yield Fate(Rule.WATERMARK)
            continue
        by_start = by_start and slot < last and end <= log_start_offset
        if by_start:
            yield Fate(Rule.START, ALREADY)
            continue
        if not deletes:
            yield Fate(Rule.COMPACT if "compact" in config.cleanup_policy else Rule.NONE)
            continue
        by_size = by_size and remaining >= config.retention_bytes
        if not by_size:
            if config.retention_ms < 0:
                yield Fate(Rule.UNLIMITED)
                continue
            own = segment.age(config.message_timestamp_after_max_ms).since_ms
            if own + config.retention_ms + 1 > due:
                due, decider = own + config.retention_ms + 1, segment.base_offset
        rule = Rule.SIZE if by_size else Rule.TIME
        behind = None if by_size or decider == segment.base_offset else decider
        if from_here <= config.ottla_retention_hold_bytes and any(
            hold.needs(end) for hold in holds
        ):
            yield Fate(Rule.HOLD, None, due, behind)
        else:
            yield Fate(rule, due, None, behind)


def explain(
    segments: Segments,
    fates: Iterator[Fate],
    holds: Sequence[Hold],
    log_end_offset: int,
    segment_ms: int,
) -> Explanation:
    """The fates with everything that led to them."""
    config, active = segments.config, segments.active
    return Explanation(
        tuple(
            SegmentFate(
                segment.base_offset,
                log_end_offset if segment is active else segments.end_of(segment) or log_end_offset,
                segment.size,
                segment is active,
                segment.age(config.message_timestamp_after_max_ms),
                segment.rolls_at(segment_ms) if segment is active and segment.size else None,
                fate,
            )
            for segment, fate in zip(segments, fates, strict=True)
        ),
        tuple(holds),
    )


def reason(rule: Rule, config: TopicConfig, log_start_offset: int) -> str:
    """Why segments were deleted, for the log."""
    if rule is Rule.START:
        return f"log start offset {log_start_offset}"
    if rule is Rule.SIZE:
        return f"retention.bytes={config.retention_bytes}"
    return f"retention.ms={config.retention_ms}"


def in_vain(
    holds: Sequence[Hold],
    partition: TopicPartition,
    config: TopicConfig,
    before: int,
    after: int,
) -> Iterator[str]:
    """What groups can no longer read although the topic waited for them, for the log: the log
    start offset went from `before` to `after`."""
    for hold in holds:
        lost = hold.unread(before, after)
        if lost:
            yield (
                f"group {hold.group} had not read {lost} of the records deleted from {partition}, "
                f"which was larger than ottla.retention.hold.bytes="
                f"{config.ottla_retention_hold_bytes}"
            )
