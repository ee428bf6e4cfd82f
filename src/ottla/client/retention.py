"""Why a topic's segments are still there, and when they will go: asked of every broker.

    with Router("127.0.0.1:9092") as router:
        for partition in explain(router, "orders").partitions:
            ...

The request is one of Ottla's own. Each broker answers for the partitions that it leads and for the
groups that it coordinates; here the answers are put together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from ottla.client.router import Router, check, error_code
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.retention import ExplainRetentionRequest, ExplainRetentionResponse


@dataclass(frozen=True, slots=True)
class Position:
    """The offset that a group will read next; None if nobody knows."""

    group: str
    offset: int | None


@dataclass(frozen=True, slots=True)
class SegmentRetention:
    """One segment. Moments are milliseconds since 1970 by the broker's clock."""

    base_offset: int
    end_offset: int
    size: int
    active: bool
    newest_ms: int | None  # the newest timestamp in it
    since_ms: int  # what its age is counted from
    rolls_ms: int | None  # when segment.ms is over, if it is the active one
    rule: str  # start, size, time, hold, watermark, empty, unlimited, compact or none
    due_ms: int | None  # when a retention pass will delete it, 0 for the next one; None: none will
    unheld_ms: int | None  # when one would, were it not for the hold of a group
    behind: int | None  # the base offset of an older segment that it has to wait for
    readers: tuple[Position, ...]  # groups that have committed an offset and not read all of it

    @property
    def by_file(self) -> bool:
        """Whether its age is that of its file: its timestamps are not believed, or missing."""
        return self.since_ms != self.newest_ms


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """One partition; `error` says why there is nothing else, if so."""

    partition: int
    leader: int | None
    error: KafkaError | None = None
    start: int = -1
    high_watermark: int = -1
    end: int = -1
    segments: tuple[SegmentRetention, ...] = ()
    holds: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """A topic, the settings in force, and its partitions."""

    topic: str
    now_ms: int
    check_interval_ms: int
    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    segment_ms: int
    hold_bytes: int
    partitions: tuple[PartitionRetention, ...]
    groups_complete: bool  # false while a coordinator is loading groups: some may be missing


def explain(router: Router, topic: str) -> TopicRetention:
    """What becomes of a topic's segments. Raises KafkaError."""
    leaders = _leaders(router, topic)
    answers = dict(router.ask_each_node(lambda node: (node.id, _ask(router, node.id, topic))))
    positions: dict[int, list[Position]] = defaultdict(list)
    for answer in answers.values():
        for each in answer.positions:
            positions[each.partition_index].append(Position(each.group, each.offset))
    explained = {
        part.partition_index: _partition(part, number, positions[part.partition_index])
        for number, answer in answers.items()
        for part in answer.partitions
    }
    nobody = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    first = next(iter(answers.values()))
    return TopicRetention(
        topic,
        first.now_ms,
        first.check_interval_ms,
        tuple(policy for policy in first.cleanup_policy.split(",") if policy),
        first.retention_ms,
        first.retention_bytes,
        first.segment_ms,
        first.hold_bytes,
        tuple(
            explained.get(index, PartitionRetention(index, leader, nobody))
            for index, leader in sorted(leaders.items())
        ),
        all(answer.groups_complete for answer in answers.values()),
    )


def _leaders(router: Router, topic: str) -> dict[int, int | None]:
    [described] = router.metadata([topic]).topics
    if described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
    if described.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic!r} cannot be a topic's name")
    check(described.error_code)
    return {
        part.partition_index: part.leader_id if part.leader_id >= 0 else None
        for part in described.partitions
    }


def _ask(router: Router, number: int, topic: str) -> ExplainRetentionResponse:
    wire = router.node(number)
    try:
        answer: ExplainRetentionResponse = wire.ask(ExplainRetentionRequest(topic=topic))
    except KafkaError as error:
        if error.code is not ErrorCode.NETWORK_EXCEPTION:
            raise
        # What a broker does with a request that it does not know, Apache Kafka's too.
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"broker {number} at {wire.host}:{wire.port} closed the connection: only brokers of "
            f"Ottla explain their retention, and this one seems to be another, or an older one",
        ) from None
    check(answer.error_code, answer.error_message)
    return answer


def _partition(part: Any, leader: int, positions: list[Position]) -> PartitionRetention:
    if part.error_code:
        error = KafkaError(error_code(part.error_code), part.error_message)
        return PartitionRetention(part.partition_index, leader, error)
    holds = tuple(Position(hold.group, _known(hold.offset)) for hold in part.holds)
    everybody = sorted(positions, key=lambda each: each.group)
    return PartitionRetention(
        part.partition_index,
        leader,
        None,
        part.log_start_offset,
        part.high_watermark,
        part.log_end_offset,
        tuple(_segment(each, everybody) for each in part.segments),
        holds,
    )


def _segment(found: Any, positions: list[Position]) -> SegmentRetention:
    segment = SegmentRetention(
        found.base_offset,
        found.end_offset,
        found.size,
        found.is_active,
        _known(found.newest_ms),
        found.since_ms,
        _known(found.rolls_ms),
        found.rule,
        _known(found.due_ms),
        _known(found.unheld_ms),
        _known(found.behind),
        (),
    )
    if found.size == 0:
        return segment
    readers = tuple(each for each in positions if (each.offset or 0) < found.end_offset)
    return replace(segment, readers=readers)


def _known(number: int) -> int | None:
    return None if number < 0 else number
