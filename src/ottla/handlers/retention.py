"""ExplainRetention (10000): why each segment of a topic is still there, and when it will go.

Versions   0. Ours, for `ottla topic explain-retention`; Kafka has no request about segments.
Behaviour  Answers for the partitions that this broker leads, with the committed offsets of the
           groups that it coordinates: who wants all of them asks every broker. What is said is what
           the next retention pass will do by the same function. Files are read off the loop.
Odd        Not advertised by ApiVersions, so that no client of Kafka's is surprised. Another broker
           than Ottla closes the connection.
Not done   Oldest timestamps, which no index has.
See        `storage/retention.py`
"""

from __future__ import annotations

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.topic import Topic
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.retention import (
    ExplainedHold,
    ExplainedPartition,
    ExplainedPosition,
    ExplainedSegment,
    ExplainRetentionRequest,
    ExplainRetentionResponse,
)
from ottla.storage.retention import SegmentFate
from ottla.storage.segment import Segment


def _failed(
    request: Request[ExplainRetentionRequest], error: KafkaError
) -> ExplainRetentionResponse:
    return ExplainRetentionResponse(
        error_code=error.code, error_message=error.message, partitions=[], positions=[]
    )


@handles(ApiKey.EXPLAIN_RETENTION, versions=range(1), failure=_failed)
async def explain_retention(
    request: Request[ExplainRetentionRequest], services: Services
) -> ExplainRetentionResponse:
    name = request.body.topic
    topic = services.image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    partitions = [
        await _explained(services, topic, index)
        for index, state in enumerate(topic.partitions)
        if state.leader == services.node_id
    ]
    config = services.replicas.config_of(topic)
    return ExplainRetentionResponse(
        now_ms=services.clock.now_ms(),
        check_interval_ms=services.config.log_retention_check_interval_ms,
        cleanup_policy=",".join(sorted(config.cleanup_policy)),
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        segment_ms=config.segment_ms,
        hold_bytes=config.ottla_retention_hold_bytes,
        partitions=partitions,
        positions=[
            ExplainedPosition(group=group, partition_index=index, offset=offset)
            for group, index, offset in services.groups.committed_in(name)
        ],
        groups_complete=services.groups.count_partitions(active=False) == 0,
    )


async def _explained(services: Services, topic: Topic, index: int) -> ExplainedPartition:
    try:
        log = services.replicas.by_name(topic.name, index).log
        await services.workers.run_in_thread(_remember_ages, log.rolled_segments())
        log = services.replicas.by_name(topic.name, index).log  # it may have moved meanwhile
        explanation = log.explain_retention(services.logs.positions)
    except KafkaError as error:
        return ExplainedPartition(
            partition_index=index,
            error_code=error.code,
            error_message=error.message,
            segments=[],
            holds=[],
        )
    return ExplainedPartition(
        partition_index=index,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=log.log_end_offset,
        segments=[_segment(segment) for segment in explanation.segments],
        holds=[
            ExplainedHold(group=hold.group, offset=_or_minus_one(hold.offset))
            for hold in explanation.holds
        ],
    )


def _remember_ages(segments: list[Segment]) -> None:
    for segment in segments:
        segment.remember_age()


def _segment(segment: SegmentFate) -> ExplainedSegment:
    return ExplainedSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size=segment.size,
        is_active=segment.is_active,
        newest_ms=segment.age.newest_ms,
        since_ms=segment.age.since_ms,
        rolls_ms=_or_minus_one(segment.rolls_ms),
        rule=segment.fate.rule.value,
        due_ms=_or_minus_one(segment.fate.due_ms),
        unheld_ms=_or_minus_one(segment.fate.unheld_ms),
        behind=_or_minus_one(segment.fate.behind),
    )


def _or_minus_one(number: int | None) -> int:
    return -1 if number is None else number
