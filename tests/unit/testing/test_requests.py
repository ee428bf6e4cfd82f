"""Which requests a fault is for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.dispatch.context import Request
from ottla.errors import ErrorCode
from ottla.model.ids import TopicId
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.produce import ProduceRequest, TopicProduceData
from ottla.testing.requests import Match, api_keys, spoil, spoil_fetch, topics_of

ORDERS = bytes(range(16))
IMAGE: Any = SimpleNamespace(topic_names={TopicId(ORDERS): "orders"})


def produce(**topic: Any) -> ProduceRequest:
    data = TopicProduceData(partition_data=[], **topic)
    return ProduceRequest(acks=1, timeout_ms=0, topic_data=[data])


def request(body: Any, client_id: str = "till") -> Request[Any]:
    return Request(9, client_id, SimpleNamespace(), body)


def test_apis_are_named_in_any_way() -> None:
    expected = {ApiKey.OFFSET_COMMIT}
    assert api_keys("OffsetCommit") == api_keys("offset_commit") == api_keys(8) == expected
    assert api_keys(["Fetch", ApiKey.PRODUCE]) == {ApiKey.FETCH, ApiKey.PRODUCE}
    assert api_keys(None) is None
    with pytest.raises(ValueError, match="'Prodce'"):
        api_keys("Prodce")


def test_topics_are_found_by_name_and_by_id() -> None:
    assert topics_of(produce(name="orders"), IMAGE) == {"orders"}
    assert topics_of(produce(name="", topic_id=ORDERS), IMAGE) == {"orders"}
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="a")])
    assert topics_of(asked, IMAGE) == {"a"}
    resources = [
        DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None),
        DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None),
    ]
    assert topics_of(DescribeConfigsRequest(resources=resources), IMAGE) == {"t"}


def test_a_match_looks_at_everything_it_was_given() -> None:
    match = Match(api_keys("Produce"), "orders", "till", lambda asked: asked.body.acks == 1)
    good = request(produce(name="orders"))
    assert match.includes(ApiKey.PRODUCE, good, IMAGE)
    assert not match.includes(ApiKey.FETCH, good, IMAGE)
    assert not match.includes(ApiKey.PRODUCE, request(produce(name="other")), IMAGE)
    assert not match.includes(ApiKey.PRODUCE, request(good.body, "kiosk"), IMAGE)
    good.body.acks = 0
    assert not match.includes(ApiKey.PRODUCE, good, IMAGE)
    assert Match().includes(ApiKey.FETCH, good, IMAGE)


def test_every_part_of_an_answer_gets_the_code() -> None:
    answer = ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name="orders",
                partitions=[ListOffsetsPartitionResponse(partition_index=n) for n in (0, 1)],
            )
        ]
    )
    spoil(answer, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [each.error_code for each in answer.topics[0].partitions] == [6, 6]


def test_a_fetch_fails_in_the_partitions_of_the_topic_and_without_records() -> None:
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=name,
                partitions=[PartitionData(partition_index=0, high_watermark=1, records=b"r")],
            )
            for name in ("orders", "other")
        ]
    )
    assert spoil_fetch(answer, ErrorCode.OFFSET_OUT_OF_RANGE, "orders", IMAGE)
    hit, spared = (topic.partitions[0] for topic in answer.responses)
    assert (hit.error_code, hit.records, hit.high_watermark) == (1, b"", -1)
    assert (spared.error_code, spared.records, spared.high_watermark) == (0, b"r", 1)
    assert not spoil_fetch(answer, ErrorCode.OFFSET_OUT_OF_RANGE, "absent", IMAGE)
