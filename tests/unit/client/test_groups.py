from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client import router as router_module
from ottla.client.ages import lag_seconds, record_times
from ottla.client.errors import PartialFailureError
from ottla.client.groups import CommittedOffset, Groups, PartitionLag
from ottla.client.overview import Times, look_at_groups
from ottla.client.topic_offsets import LATEST
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
        self.connected: list[str] = []
        self.down: set[str] = set()
        self.versions = {
            int(key): (spec.min_version, spec.max_version) for key, spec in APIS.items()
        }

    def ask(self, request: Any) -> Any:
        self.requests.append(request)
        answer = self.answers[type(request)]
        return answer(request) if callable(answer) else answer


@pytest.fixture
def broker(own_time: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    fake = FakeBroker()

    class Wire:
        def __init__(self, host: str, port: int, **_options: Any) -> None:
            fake.connected.append(f"{host}:{port}")
            if f"{host}:{port}" in fake.down:
                raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"{host}:{port}: refused")
            self.versions = fake.versions
            self.ask = fake.ask
            self.host, self.port = host, port
            self.usable = self.proven = True

        def version_of(self, key: ApiKey) -> int:
            if key not in self.versions:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            return min(self.versions[key][1], APIS[key].max_version)

        def close(self) -> None: ...

    monkeypatch.setattr(router_module, "Wire", Wire)
    own_time("ottla.client.retry", sleep=lambda _seconds: None)
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
    broker.answers[consumer_groups.ConsumerGroupDescribeRequest] = lambda request: not_modern(
        request, 24
    )
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


def refused_commit(*codes: int) -> Any:
    """An answer to OffsetCommit with an error for each partition of `orders`."""
    partitions = [
        group_offsets.OffsetCommitResponsePartition(partition_index=number, error_code=code)
        for number, code in enumerate(codes)
    ]
    topic = group_offsets.OffsetCommitResponseTopic(name="orders", partitions=partitions)
    return group_offsets.OffsetCommitResponse(topics=[topic])


def test_a_commit_names_the_partitions_that_were_refused(broker: FakeBroker) -> None:
    broker.answers[group_offsets.OffsetCommitRequest] = refused_commit(0, 3)
    with pytest.raises(PartialFailureError) as caught:
        Groups("h:1").set_offsets("g", {ORDERS[0]: 4, ORDERS[1]: 5})
    assert {name: error.code for name, error in caught.value.failures.items()} == {
        "orders-1": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


def test_the_only_partition_of_a_commit_that_was_refused_is_named(broker: FakeBroker) -> None:
    broker.answers[group_offsets.OffsetCommitRequest] = refused_commit(3)
    with pytest.raises(KafkaError, match="orders-0") as caught:
        Groups("h:1").set_offsets("g", {ORDERS[0]: 4})
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_coordinator_that_has_moved_is_asked_again_though_other_partitions_are_refused(
    broker: FakeBroker,
) -> None:
    answers = [refused_commit(3, 16), refused_commit(0, 0)]
    broker.answers[group_offsets.OffsetCommitRequest] = lambda _request: answers.pop(0)
    Groups("h:1").set_offsets("g", {ORDERS[0]: 4, ORDERS[1]: 5})
    assert answers == []


def test_a_group_whose_coordinator_fails_does_not_hide_what_became_of_the_others(
    broker: FakeBroker,
) -> None:
    def delete(request: Any) -> Any:
        [name] = request.groups_names
        if name == "b":
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "h:1: reset")
        return groups.DeleteGroupsResponse(results=[groups.DeletableGroupResult(group_id=name)])

    broker.answers[groups.DeleteGroupsRequest] = delete
    assert Groups("h:1").delete("a", "b", "c") == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.NETWORK_EXCEPTION,
        "c": ErrorCode.NONE,
    }
    with pytest.raises(KafkaError, match="h:1: reset"):
        Groups("h:1").delete("b")


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
    assert Groups("h:1").topics.offsets({TopicPartition("orders", 9): LATEST}) == {}
    assert not any(isinstance(r, offsets.ListOffsetsRequest) for r in broker.requests)


def test_who_leads_is_not_asked_of_those_who_know(broker: FakeBroker) -> None:
    broker.answers[offsets.ListOffsetsRequest] = offsets.ListOffsetsResponse(topics=[])
    known = Groups("h:1")
    known.topics.partitions(["orders"])
    del broker.requests[:]
    known.topics.find({ORDERS[0]: LATEST}, stable=True)
    [request] = broker.requests
    assert request.isolation_level == 1
    assert [topic.name for topic in request.topics] == ["orders"]


def test_brokers_found_on_the_way_take_the_place_of_those_to_start_from(
    broker: FakeBroker,
) -> None:
    only_start = Groups("start:9092")
    only_start.router.nodes()
    only_start.close()
    broker.down.add("start:9092")
    only_start.router.any()
    assert broker.connected == ["start:9092", "start:9092", "h:1"]


def test_a_topic_that_is_not_there_is_named(broker: FakeBroker) -> None:
    broker.answers[metadata.MetadataRequest] = metadata.MetadataResponse(
        brokers=[],
        topics=[metadata.MetadataResponseTopic(name="gone", error_code=3, partitions=[])],
    )
    with pytest.raises(KafkaError, match="there is no topic 'gone'"):
        Groups("h:1").topics.partitions(["gone"])


def test_tls_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(ValueError, match="SASL_SSL is not supported"):
        Groups("h:1", config={"security.protocol": "SASL_SSL"})


@pytest.fixture
def fetched(broker: FakeBroker) -> list[dict[TopicPartition, int]]:
    """What is fetched: records 0 to 4, written a second apart; only of the first partition each
    time, as of batches that are larger than what is wanted of each."""
    batch = build_batch([(1000 * offset, None, b"v", ()) for offset in range(5)], base_offset=0)
    requests: list[dict[TopicPartition, int]] = []

    def answer(request: Any) -> Any:
        requests.append(
            {
                TopicPartition(topic.topic, each.partition): each.fetch_offset
                for topic in request.topics
                for each in topic.partitions
            }
        )
        first = request.topics[0]
        data = fetch.PartitionData(
            partition_index=first.partitions[0].partition, high_watermark=5, records=batch
        )
        return fetch.FetchResponse(
            responses=[fetch.FetchableTopicResponse(topic=first.topic, partitions=[data])]
        )

    broker.answers[fetch.FetchRequest] = answer
    return requests


def test_the_age_of_the_next_record_is_its_own_even_inside_a_batch(
    broker: FakeBroker, fetched: list[dict[TopicPartition, int]]
) -> None:
    client = Groups("h:1").router
    assert record_times(client, {ORDERS[0]: 3, ORDERS[1]: 1}) == {ORDERS[0]: 3000, ORDERS[1]: 1000}
    rows = [PartitionLag(ORDERS[0], 3, 5, None), PartitionLag(ORDERS[1], 5, 5, None)]
    assert lag_seconds(client, rows, now_ms=10_000) == {ORDERS[0]: 7.0, ORDERS[1]: 0.0}


def test_a_few_ages_are_asked_for_at_once(
    broker: FakeBroker, fetched: list[dict[TopicPartition, int]]
) -> None:
    # A broker reads all that a request names, although it may answer with one batch only.
    many = [TopicPartition("orders", number) for number in range(20)]
    broker.answers[metadata.MetadataRequest] = metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(node_id=1, host="h", port=1)],
        topics=[
            metadata.MetadataResponseTopic(
                name="orders",
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=tp.partition, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                    )
                    for tp in many
                ],
            )
        ],
    )
    assert record_times(Groups("h:1").router, dict.fromkeys(many, 2)) == dict.fromkeys(many, 2000)
    assert max(map(len, fetched)) == 8
    assert len(fetched) == 20


# -- all groups at once


def listed(**kinds: str) -> Any:
    return groups.ListGroupsResponse(
        groups=[
            groups.ListedGroup(
                group_id=name, protocol_type="consumer", group_state="Stable", group_type=kind
            )
            for name, kind in kinds.items()
        ]
    )


def described(request: Any, *, gone: str = "") -> Any:
    member = classic().groups[0].members
    return groups.DescribeGroupsResponse(
        groups=[
            groups.DescribedGroup(
                error_code=69 if name == gone else 0, group_id=name, group_state="Stable",
                protocol_type="consumer", protocol_data="range", members=member,
            )
            for name in request.groups
        ]
    )  # fmt: skip


def modern(request: Any) -> Any:
    return consumer_groups.ConsumerGroupDescribeResponse(
        groups=[
            consumer_groups.DescribedGroup(
                error_code=0, group_id=name, group_state="Empty", group_epoch=1,
                assignment_epoch=1, assignor_name="uniform", members=[],
            )
            for name in request.group_ids
        ]
    )  # fmt: skip


def committed(request: Any) -> Any:
    """Offset 3 of partition 0, in each group."""
    return group_offsets.OffsetFetchResponse(
        groups=[
            group_offsets.OffsetFetchResponseGroup(
                group_id=asked.group_id,
                topics=[
                    group_offsets.OffsetFetchResponseTopics(
                        name="orders",
                        partitions=[
                            group_offsets.OffsetFetchResponsePartitions(
                                partition_index=0, committed_offset=3, metadata=""
                            )
                        ],
                    )
                ],
            )
            for asked in request.groups
        ]
    )


@pytest.fixture
def crowd(broker: FakeBroker) -> FakeBroker:
    broker.answers |= {
        groups.ListGroupsRequest: listed(b="classic", a="classic", m="consumer", s="share"),
        groups.DescribeGroupsRequest: described,
        consumer_groups.ConsumerGroupDescribeRequest: modern,
        group_offsets.OffsetFetchRequest: committed,
        offsets.ListOffsetsRequest: lambda request: offsets.ListOffsetsResponse(
            topics=[
                offsets.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        offsets.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index, offset=5, leader_epoch=0
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        ),
    }
    return broker


def test_a_survey_asks_once_for_all_groups_of_a_broker(crowd: FakeBroker) -> None:
    found = Groups("h:1").survey()
    assert list(found) == ["a", "b", "m"]
    assert found["a"][0].members[0].assignment == (ORDERS[0], ORDERS[1])
    assert found["m"][0].type == "Consumer"
    assert {tp: at.offset for tp, at in found["m"][1].items()} == {ORDERS[0]: 3}
    assert [type(request).__name__ for request in crowd.requests] == [
        "MetadataRequest",
        "ListGroupsRequest",
        "ConsumerGroupDescribeRequest",
        "DescribeGroupsRequest",
        "OffsetFetchRequest",
    ]


def test_a_survey_leaves_out_what_vanishes_and_misses_what_is_named(crowd: FakeBroker) -> None:
    crowd.answers[groups.DescribeGroupsRequest] = lambda request: described(request, gone="a")
    assert list(Groups("h:1").survey()) == ["b", "m"]
    assert list(Groups("h:1").survey(["m"])) == ["m"]
    with pytest.raises(KafkaError, match="there is no group 'a'"):
        Groups("h:1").survey(["a", "b"])


def test_an_age_is_asked_for_once_as_long_as_a_group_stands_still(
    crowd: FakeBroker, fetched: list[dict[TopicPartition, int]]
) -> None:
    times: Times = {}
    for _ in range(3):
        found = look_at_groups(Groups("h:1"), (), times)
    assert found["a"].lag == {ORDERS[0]: 2}
    assert found["a"].late[ORDERS[0]] > 1_000_000
    assert (found["a"].partitions, found["m"].partitions) == (2, 1)
    assert fetched == [{ORDERS[0]: 3}], "three groups, one record, one request"
    assert times == {(ORDERS[0], 3): 3000}
    crowd.answers[group_offsets.OffsetFetchRequest] = lambda request: (
        group_offsets.OffsetFetchResponse(
            groups=[
                group_offsets.OffsetFetchResponseGroup(group_id=asked.group_id, topics=[])
                for asked in request.groups
            ]
        )
    )
    assert look_at_groups(Groups("h:1"), (), times)["a"].lag == {}
    assert times == {}, "what nobody is at is forgotten"
