"""The driver's heartbeats: what each says, and what each answer means."""

from __future__ import annotations

import pytest

from ottla.client.groups import CommittedOffset
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.pipelines.driver.membership import Lost, Membership
from ottla.protocol.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

ID = b"\x01" * 16


def answer(epoch: int = 1, error: ErrorCode = ErrorCode.NONE, assigned: list[int] | None = None):
    assignment = None
    if assigned is not None:
        assignment = Assignment(
            topic_partitions=[TopicPartitions(topic_id=ID, partitions=assigned)]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=int(error),
        member_epoch=epoch,
        heartbeat_interval_ms=5000,
        assignment=assignment,
    )


def test_the_first_heartbeat_says_everything_and_the_next_ones_the_least():
    member = Membership("ottla-p", "m", ["orders"])
    first = member.beat()
    assert (first.member_epoch, first.instance_id) == (0, "driver")
    assert first.subscribed_topic_names == ["orders"]
    assert first.topic_partitions == []
    member.take(answer())
    assert member.joined
    assert member.interval == 5.0
    second = member.beat()
    assert (second.member_epoch, second.subscribed_topic_names) == (1, None)
    assert second.topic_partitions is None


def test_an_assignment_is_acknowledged_at_once():
    member = Membership("ottla-p", "m", ["orders"])
    member.take(answer(assigned=[0, 1]))
    assert member.settling
    acknowledged = member.beat().topic_partitions
    assert acknowledged is not None
    assert [(each.topic_id, each.partitions) for each in acknowledged] == [(ID, [0, 1])]
    member.take(answer(assigned=[0, 1]))
    assert not member.settling


def test_after_a_failure_everything_is_said_again():
    member = Membership("ottla-p", "m", ["orders"])
    member.take(answer())
    member.failed()
    assert member.beat().subscribed_topic_names == ["orders"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ],
)
def test_an_answer_that_takes_the_membership_away(code):
    with pytest.raises(Lost) as lost:
        Membership("ottla-p", "m").take(answer(error=code))
    assert lost.value.code is code


def test_what_passes_does_not():
    with pytest.raises(KafkaError):
        Membership("ottla-p", "m").take(answer(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


def test_commits_are_those_of_the_member():
    member = Membership("ottla-p", "m")
    member.take(answer(epoch=4))
    request = member.commit({TopicPartition("orders", 1): CommittedOffset(9, None, "word")})
    assert (request.member_id, request.generation_id_or_member_epoch) == ("m", 4)
    [topic] = request.topics
    [part] = topic.partitions
    assert (topic.name, part.partition_index, part.committed_offset) == ("orders", 1, 9)
    assert (part.committed_leader_epoch, part.committed_metadata) == (-1, "word")


def test_leaving_is_for_good():
    assert Membership("ottla-p", "m").leave().member_epoch == -1
