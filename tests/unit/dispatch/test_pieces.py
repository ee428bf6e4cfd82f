"""Requests cut into pieces: nothing is lost, doubled or out of order, and answers fit together."""

from __future__ import annotations

import pytest

from ottla.dispatch.pieces import ListOf, join, split
from ottla.protocol.messages.group_offsets import OffsetDeleteResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from ottla.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState

TOPICS = ListOf("topics", "topics", "partitions", "partitions", piece=10)


def request(*counts: int) -> DeleteRecordsRequest:
    """Topics with so many partitions each, numbered through."""
    topics, number = [], 0
    for index, count in enumerate(counts):
        parts = [
            DeleteRecordsPartition(partition_index=number + each, offset=7) for each in range(count)
        ]
        number += count
        topics.append(DeleteRecordsTopic(name=f"t{index}", partitions=parts))
    return DeleteRecordsRequest(topics=topics, timeout_ms=5)


def answer(asked: DeleteRecordsRequest) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=item.partition_index, low_watermark=1
                    )
                    for item in topic.partitions
                ],
            )
            for topic in asked.topics
        ]
    )


@pytest.mark.parametrize(
    "counts",
    [
        (),
        (0,),
        (1,),
        (9,),
        (10,),
        (11,),
        (25, 3),
        (0,) * 40,
        (1,) * 40,
        (3, 0, 30, 0, 1),
        (9, 9, 9),
    ],
)
def test_the_answers_of_the_pieces_are_the_answer_of_the_whole(counts: tuple[int, ...]) -> None:
    asked = request(*counts)
    expected = answer(asked)
    pieces = list(TOPICS.split(asked))
    whole: DeleteRecordsResponse | None = None
    for piece in pieces:
        assert piece.timeout_ms == 5
        response = answer(piece)
        assert TOPICS.count(response) <= 11
        if whole is None:
            whole = response
        else:
            TOPICS.join(whole, response)
    assert whole == expected
    assert asked == request(*counts)
    assert len(pieces) >= sum(1 + count for count in counts) // 11


def test_answers_about_two_topics_are_not_mixed() -> None:
    one = answer(request(2)).topics
    other = answer(request(2)).topics
    other[0].name = "another"
    join(one, other, "partitions")
    assert [(topic.name, len(topic.partitions)) for topic in one] == [("t0", 2), ("another", 2)]


def test_a_piece_that_fails_as_a_whole_is_told_of() -> None:
    whole = OffsetDeleteResponse(topics=[])
    TOPICS.join(whole, OffsetDeleteResponse(topics=[], error_code=15))
    TOPICS.join(whole, OffsetDeleteResponse(topics=[]))
    assert whole.error_code == 15


def test_a_topic_asked_for_twice_is_in_one_piece_only() -> None:
    once = ListOf("topics", "topics", same=lambda topic: topic.name, piece=2)
    names = ["a", "b", "a", "c", "b", "a", "d"]
    body = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    pieces = [[topic.name for topic in piece.topics] for piece in once.split(body)]
    assert pieces == [["a", "b"], ["c", "d"]]


def test_the_list_of_older_versions_is_cut_too() -> None:
    either = ListOf("topics", "responses", formerly="topic_names", piece=2)
    old = DeleteTopicsRequest(topics=[], topic_names=["a", "b", "c"], timeout_ms=1)
    assert [piece.topic_names for piece in either.split(old)] == [["a", "b"], ["c"]]
    states = [DeleteTopicState(name=name, topic_id=bytes(16)) for name in "abc"]
    new = DeleteTopicsRequest(topics=states, topic_names=[], timeout_ms=1)
    assert [len(piece.topics) for piece in either.split(new)] == [2, 1]


def test_entries_without_a_list_within_are_counted_one_by_one() -> None:
    assert [len(chunk) for chunk in split(list(range(25)), None, 10)] == [10, 10, 5]
