from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client import router as router_module
from ottla.client.ages import lag_seconds, record_times
from ottla.client.groups import LATEST, CommittedOffset, Groups, PartitionLag
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.compiler import codec
from ottla.protocol.messages import consumer_groups, fetch, group_offsets, groups, metadata, offsets
from ottla.protocol.messages.internal import consumer_protocol
from ottla.records.builder import build_batch

ORDERS = [TopicPartition("orders", number) for number in range(2)]


class FakeBroker:
    """Answers requests by their class; requests are what went over the wire, in order."""

    def __init__(self) -> None:
        self.answers: dict[type, Callable[[Any], Any] | Any] = {
            metadata.MetadataRequest: metadata.MetadataResponse(
                brokers=[metadata.MetadataResponseBroker(node_id=1, host="h", port=1)],
                topics=[
                    metadata.MetadataResponseTopic(
                        name="orders",
                        partitions=[
                            metadata.MetadataResponsePartition(
                                partition_index=number,
                                leader_id=1,
                                replica_nodes=[1],
                                isr_nodes=[1],
                            )
                            for number in range(2)
                        ],
                    )
                ],
            ),
            groups.FindCoordinatorRequest: groups.FindCoordinatorResponse(
                coordinators=[groups.Coordinator(key="g", node_id=1, host="h", port=1)]
            ),
        }
        self.requests: list[Any] = []
        self.versions = {
            int(key): (spec.min_version, spec.max_version) for key, spec in APIS.items()
        }

    def ask(self, request: Any) -> Any:
        self.requests.append(request)
        answer = self.answers[type(request)]
        return answer(request) if callable(answer) else answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    fake = FakeBroker()

    class Wire:
        def __init__(self, *_address: Any, **_options: Any) -> None:
            self.versions = fake.versions
            self.ask = fake.ask

        @classmethod
        def first_of(cls, *_servers: Any, **_options: Any) -> Wire:
            return cls()

        def version_of(self, key: ApiKey) -> int:
            if key not in self.versions:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            return min(self.versions[key][1], APIS[key].max_version)

        def close(self) -> None: ...

    monkeypatch.setattr(router_module, "Wire", Wire)
    monkeypatch.setattr(router_module.time, "sleep", lambda _seconds: None)
    return fake


def assignment(*partitions: int) -> bytes:
    parts: list[Any] = []
    message = consumer_protocol.ConsumerProtocolAssignment(
        assigned_partitions=[
            consumer_protocol.TopicPartition(topic="orders", partitions=list(partitions))
        ]
    )
    codec(consumer_protocol.ConsumerProtocolAssignment, 3).encode(message, parts)
    return struct.pack(">h", 3) + b"".join(parts)


def not_modern(_request: Any, error: int = 69) -> Any:
    group = consumer_groups.DescribedGroup(
        error_code=error, group_id="g", group_state="", group_epoch=0, assignment_epoch=0,
        assignor_name="", members=[],
    )  # fmt: skip
    return consumer_groups.ConsumerGroupDescribeResponse(groups=[group])


def classic(state: str = "Stable", error: int = 0) -> Any:
    member = groups.DescribedGroupMember(
        member_id="m", client_id="c", client_host="/h", member_metadata=b"",
        member_assignment=assignment(1, 0),
    )  # fmt: skip
    return groups.DescribeGroupsResponse(
        groups=[
            groups.DescribedGroup(
                error_code=error, group_id="g", group_state=state, protocol_type="consumer",
                protocol_data="range", members=[member] if state == "Stable" else [],
            )
        ]
    )  # fmt: skip


def test_a_classic_group_is_found_after_the_modern_way_did_not_know_it(broker: FakeBroker) -> None:
    broker.answers[consumer_groups.ConsumerGroupDescribeRequest] = not_modern
    broker.answers[groups.DescribeGroupsRequest] = classic()
    described = Groups("h:1").describe("g")["g"]
    assert (described.type, described.state, described.assignor) == ("Classic", "Stable", "range")
    assert described.members[0].assignment == tuple(ORDERS)
    assert described.epoch is None
    assert not described.idle


def test_the_group_without_a_name_is_found_the_old_way(broker: FakeBroker) -> None:
    broker.answers[consumer_groups.ConsumerGroupDescribeRequest] = lambda it: not_modern(it, 24)
    broker.answers[groups.DescribeGroupsRequest] = classic("Empty")
    assert Groups("h:1").describe("")[""].idle


def test_an_old_broker_is_not_asked_the_modern_way(broker: FakeBroker) -> None:
    del broker.versions[int(ApiKey.CONSUMER_GROUP_DESCRIBE)]
    broker.answers[groups.DescribeGroupsRequest] = classic("Empty")
    assert Groups("h:1").describe("g")["g"].idle


def test_a_group_that_is_not_there_is_an_error(broker: FakeBroker) -> None:
    broker.answers[consumer_groups.ConsumerGroupDescribeRequest] = not_modern
    broker.answers[groups.DescribeGroupsRequest] = classic("Dead", error=69)
    with pytest.raises(KafkaError) as raised:
        Groups("h:1").describe("g")
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_coordinator_that_is_loading_is_asked_again(broker: FakeBroker) -> None:
    answers = [14, 15, 0]

    def fetch_offsets(request: Any) -> Any:
        assert request.groups[0].topics is None
        group = group_offsets.OffsetFetchResponseGroup(
            group_id="g", error_code=answers.pop(0), topics=[]
        )
        return group_offsets.OffsetFetchResponse(groups=[group])

    broker.answers[group_offsets.OffsetFetchRequest] = fetch_offsets
    assert Groups("h:1").offsets("g") == {}
    assert answers == []


def test_offsets_are_committed_as_nobody_with_all_partitions_in_one_request(
    broker: FakeBroker,
) -> None:
    broker.answers[group_offsets.OffsetCommitRequest] = group_offsets.OffsetCommitResponse(
        topics=[]
    )
    Groups("h:1").set_offsets("g", {ORDERS[0]: 4, ORDERS[1]: 5})
    request = broker.requests[-1]
    assert (request.group_id, request.member_id, request.generation_id_or_member_epoch) == (
        "g", "", -1,
    )  # fmt: skip
    [topic] = request.topics
    assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [(0, 4), (1, 5)]


def test_a_commit_carries_the_epoch_and_the_note_it_was_given(broker: FakeBroker) -> None:
    broker.answers[group_offsets.OffsetCommitRequest] = group_offsets.OffsetCommitResponse(
        topics=[]
    )
    Groups("h:1").set_offsets("g", {ORDERS[0]: CommittedOffset(4, 2, "note"), ORDERS[1]: 5})
    [topic] = broker.requests[-1].topics
    assert [
        (p.committed_offset, p.committed_leader_epoch, p.committed_metadata)
        for p in topic.partitions
    ] == [(4, 2, "note"), (5, -1, "")]


def test_a_commit_that_meets_a_member_says_so(broker: FakeBroker) -> None:
    partition = group_offsets.OffsetCommitResponsePartition(partition_index=0, error_code=25)
    topic = group_offsets.OffsetCommitResponseTopic(name="orders", partitions=[partition])
    broker.answers[group_offsets.OffsetCommitRequest] = group_offsets.OffsetCommitResponse(
        topics=[topic]
    )
    with pytest.raises(KafkaError, match="has members by now"):
        Groups("h:1").set_offsets("g", {ORDERS[0]: 4})


def test_committing_nothing_asks_nobody(broker: FakeBroker) -> None:
    Groups("h:1").set_offsets("g", {})
    assert broker.requests == []


def test_lag_puts_what_nobody_reads_last(broker: FakeBroker) -> None:
    broker.answers[consumer_groups.ConsumerGroupDescribeRequest] = not_modern
    broker.answers[groups.DescribeGroupsRequest] = classic()
    committed = [
        group_offsets.OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=3, metadata=""
        )
        for number in (0, 7)
    ]
    broker.answers[group_offsets.OffsetFetchRequest] = group_offsets.OffsetFetchResponse(
        groups=[
            group_offsets.OffsetFetchResponseGroup(
                group_id="g",
                topics=[
                    group_offsets.OffsetFetchResponseTopics(name="orders", partitions=committed)
                ],
            )
        ]
    )
    broker.answers[offsets.ListOffsetsRequest] = lambda request: offsets.ListOffsetsResponse(
        topics=[
            offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    offsets.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, offset=10
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    rows = Groups("h:1").lag("g")
    assert [(row.partition.partition, row.committed, row.end, row.lag) for row in rows] == [
        (0, 3, 10, 7),
        (1, None, 10, None),
        (7, 3, None, None),
    ]
    assert [row.member.id if row.member else None for row in rows] == ["m", "m", None]


def test_ends_of_partitions_that_are_not_there_are_left_out(broker: FakeBroker) -> None:
    broker.answers[offsets.ListOffsetsRequest] = offsets.ListOffsetsResponse(topics=[])
    assert Groups("h:1").log_offsets({TopicPartition("orders", 9): LATEST}) == {}
    assert not any(isinstance(r, offsets.ListOffsetsRequest) for r in broker.requests)


def test_who_leads_is_not_asked_of_those_who_know(broker: FakeBroker) -> None:
    broker.answers[offsets.ListOffsetsRequest] = offsets.ListOffsetsResponse(topics=[])
    known = Groups("h:1")
    known.router.nodes()
    del broker.requests[:]
    known.log_offsets({ORDERS[0]: LATEST}, stable=True, leaders={ORDERS[0]: 1})
    [request] = broker.requests
    assert request.isolation_level == 1
    assert [topic.name for topic in request.topics] == ["orders"]


def test_brokers_found_on_the_way_take_the_place_of_those_to_start_from(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    first_of = router_module.Wire.first_of

    def noted(servers: str, **options: Any) -> Any:
        asked.append(servers)
        return first_of(servers, **options)

    monkeypatch.setattr(router_module.Wire, "first_of", noted)
    groups_of_two = Groups("start:9092,h:1")
    groups_of_two.router.nodes()
    groups_of_two.close()
    groups_of_two.router.any()
    assert asked == ["start:9092,h:1", "start:9092,h:1"]
    only_start = Groups("start:9092")
    only_start.router.nodes()
    only_start.close()
    only_start.router.any()
    assert asked[-1] == "start:9092,h:1"


def test_a_topic_that_is_not_there_is_named(broker: FakeBroker) -> None:
    broker.answers[metadata.MetadataRequest] = metadata.MetadataResponse(
        brokers=[],
        topics=[metadata.MetadataResponseTopic(name="gone", error_code=3, partitions=[])],
    )
    with pytest.raises(KafkaError, match="there is no topic 'gone'"):
        Groups("h:1").partitions(["gone"])


def test_tls_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(ValueError, match="SASL_SSL is not supported"):
        Groups("h:1", config={"security.protocol": "SASL_SSL"})


def test_the_age_of_the_next_record_is_its_own_even_inside_a_batch(broker: FakeBroker) -> None:
    batch = build_batch([(1000 * offset, None, b"v", ()) for offset in range(5)], base_offset=0)

    def fetched(request: Any) -> Any:
        return fetch.FetchResponse(
            responses=[
                fetch.FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[
                        fetch.PartitionData(
                            partition_index=each.partition, high_watermark=5, records=batch
                        )
                        for each in topic.partitions[:1]
                    ],
                )
                for topic in request.topics
            ]
        )

    broker.answers[fetch.FetchRequest] = fetched
    client = Groups("h:1")
    assert record_times(client, {ORDERS[0]: 3, ORDERS[1]: 1}) == {ORDERS[0]: 3000, ORDERS[1]: 1000}
    rows = [PartitionLag(ORDERS[0], 3, 5, None), PartitionLag(ORDERS[1], 5, 5, None)]
    assert lag_seconds(client, rows, now_ms=10_000) == {ORDERS[0]: 7.0, ORDERS[1]: 0.0}
