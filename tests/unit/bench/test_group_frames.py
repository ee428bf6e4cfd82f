"""The hand-made frames of group members, read back and answered by the project's own codecs."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from bench.load import group_frames
from bench.load.group_frames import Beaten, Joined

from ottla.protocol.compiler import codec
from ottla.protocol.header import parse_request_header, response_header
from ottla.protocol.messages import consumer_groups, group_offsets, groups

TOPIC_ID = bytes(range(16))
MANY = list(range(300))


def decoded(frame: bytes, message: type, version: int) -> Any:
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    body = memoryview(frame)[4:]
    header = parse_request_header(body)
    assert header.api_version == version
    request, end = codec(message, version).decode(body, header.body_position)
    assert end == len(body)
    return request


def answer(api_key: int, version: int, response: object) -> bytes:
    parts: list[Any] = [response_header(api_key, version, 1)]
    codec(type(response), version).encode(response, parts)
    return b"".join(bytes(part) for part in parts)


def test_join_carries_the_member_and_its_subscription() -> None:
    frame = group_frames.join_group("g", b"m-1", "orders", session_ms=30_000, rebalance_ms=60_000)
    request = decoded(frame, groups.JoinGroupRequest, 5)
    assert (request.group_id, request.member_id) == ("g", "m-1")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (30_000, 60_000)
    (offered,) = request.protocols
    assert (request.protocol_type, offered.name) == ("consumer", "range")
    assert b"orders" in bytes(offered.metadata)


def test_sync_of_the_leader_brings_a_share_for_each_member() -> None:
    shares = {b"a": group_frames.share("orders", range(2)), b"b": b""}
    frame = group_frames.sync_group("g", b"a", group_frames.assignments(shares)).with_number(7)
    request = decoded(frame, groups.SyncGroupRequest, 3)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 7, "a")
    assert [(each.member_id, bytes(each.assignment)) for each in request.assignments] == [
        ("a", shares[b"a"]),
        ("b", b""),
    ]


def test_sync_of_a_follower_brings_nothing() -> None:
    frame = group_frames.sync_group("g", b"b").with_number(7)
    assert decoded(frame, groups.SyncGroupRequest, 3).assignments == []


def test_heartbeat_and_leave_name_the_member() -> None:
    beat = group_frames.heartbeat("g", b"m").with_number(3)
    request = decoded(beat, groups.HeartbeatRequest, 3)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 3, "m")
    left = decoded(group_frames.leave_group("g", b"m"), groups.LeaveGroupRequest, 1)
    assert (left.group_id, left.member_id) == ("g", "m")


def test_coordinator_of_a_group_is_asked_for() -> None:
    request = decoded(group_frames.find_coordinator("g"), groups.FindCoordinatorRequest, 2)
    assert (request.key, request.key_type) == ("g", 0)


def test_commit_is_one_of_a_group_without_members() -> None:
    frame = group_frames.offset_commit("g", "orders", 3, 42)
    request = decoded(frame, group_offsets.OffsetCommitRequest, 7)
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
    ((partition,),) = [topic.partitions for topic in request.topics]
    assert (partition.partition_index, partition.committed_offset) == (3, 42)


def test_commit_of_a_topic_names_all_its_partitions() -> None:
    frame = group_frames.offset_commits("g", "orders", 3, 42)
    request = decoded(frame, group_offsets.OffsetCommitRequest, 7)
    ((*partitions,),) = [topic.partitions for topic in request.topics]
    assert [(each.partition_index, each.committed_offset) for each in partitions] == [
        (0, 42),
        (1, 42),
        (2, 42),
    ]


def test_offsets_are_asked_for_by_topic_and_read_back() -> None:
    frame = group_frames.offset_fetch("g", "orders", 2)
    request = decoded(frame, group_offsets.OffsetFetchRequest, 5)
    assert request.group_id == "g"
    assert [(each.name, list(each.partition_indexes)) for each in request.topics] == [
        ("orders", [0, 1])
    ]
    partitions = [
        group_offsets.OffsetFetchResponsePartition(
            partition_index=0, committed_offset=7, metadata=None
        ),
        group_offsets.OffsetFetchResponsePartition(
            partition_index=1, committed_offset=-1, metadata="mine"
        ),
    ]
    topics = [group_offsets.OffsetFetchResponseTopic(name="orders", partitions=partitions)]
    whole = group_offsets.OffsetFetchResponse(topics=topics)
    assert group_frames.read_fetched(answer(9, 5, whole)) == [7, -1]


def test_error_of_a_coordinator_that_is_loading_is_no_offset() -> None:
    loading = group_offsets.OffsetFetchResponse(error_code=14)
    assert group_frames.read_fetched(answer(9, 5, loading)) == []


def test_consumer_join_subscribes_and_owns_nothing() -> None:
    frame = group_frames.consumer_join("g", b"m", "orders", rebalance_ms=1_000)
    request = decoded(frame, consumer_groups.ConsumerGroupHeartbeatRequest, 1)
    assert (request.member_id, request.member_epoch) == ("m", 0)
    assert request.rebalance_timeout_ms == 1_000
    assert request.subscribed_topic_names == ["orders"]
    assert request.topic_partitions == []


def test_consumer_heartbeat_says_nothing_new() -> None:
    frame = group_frames.consumer_heartbeat("g", b"m").with_number(5)
    assert decoded(
        frame, consumer_groups.ConsumerGroupHeartbeatRequest, 1
    ) == consumer_groups.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=5)


@pytest.mark.parametrize("error", [0, 79])
def test_joined_is_read_as_it_was_written(error: int) -> None:
    members = [groups.JoinGroupResponseMember(member_id=each, metadata=b"") for each in ("a", "b")]
    response = groups.JoinGroupResponse(
        error_code=error,
        generation_id=4,
        protocol_name="range",
        leader="a",
        member_id="b",
        members=members,
    )
    assert group_frames.read_joined(answer(11, 5, response)) == Joined(error, 4, b"a", b"b", 2)


def test_error_of_a_heartbeat_is_read() -> None:
    response = groups.HeartbeatResponse(error_code=27)
    assert group_frames.read_error(answer(12, 3, response)) == 27


def test_error_of_a_commit_is_that_of_its_partition() -> None:
    partition = group_offsets.OffsetCommitResponsePartition(partition_index=0, error_code=16)
    topic = group_offsets.OffsetCommitResponseTopic(name="t", partitions=[partition])
    response = group_offsets.OffsetCommitResponse(topics=[topic])
    assert group_frames.read_commit_error(answer(8, 7, response)) == 16


def beaten(assignment: consumer_groups.Assignment | None) -> Beaten:
    response = consumer_groups.ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=9, heartbeat_interval_ms=5, assignment=assignment
    )
    return group_frames.read_beaten(answer(68, 1, response))


def test_heartbeat_without_an_assignment_leaves_things_as_they_are() -> None:
    assert beaten(None) == Beaten(0, 9, None, 0)


def test_empty_assignment_is_one() -> None:
    found = beaten(consumer_groups.Assignment(topic_partitions=[]))
    assert found.assignment is not None
    assert found.partitions == 0


def test_assignment_is_sent_back_as_what_is_owned() -> None:
    given = [consumer_groups.TopicPartitions(topic_id=TOPIC_ID, partitions=MANY)]
    found = beaten(consumer_groups.Assignment(topic_partitions=given))
    assert found.partitions == len(MANY)
    frame = group_frames.consumer_heartbeat("g", b"m", found.assignment).with_number(9)
    request = decoded(frame, consumer_groups.ConsumerGroupHeartbeatRequest, 1)
    assert request.topic_partitions == given
