"""The table of APIs agrees with the declared messages and with Apache Kafka 4.2's broker."""

from __future__ import annotations

import pytest

from ottla.protocol.apis import APIS, FLEXIBLE_FROM, NEVER, OWN, VERSIONS, ApiKey, key_of
from ottla.protocol.schema import schema_of

KAFKA_4_2 = {
    "Produce": (0, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 5),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "AlterReplicaLogDirs": (1, 2),
    "DescribeLogDirs": (1, 4),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "ElectLeaders": (0, 2),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "UnregisterBroker": (0, 0),
    "IncrementalAlterConfigs": (0, 1),
    "OffsetDelete": (0, 0),
    "DescribeQuorum": (0, 2),
    "UpdateFeatures": (0, 2),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "ListConfigResources": (0, 1),
    "GetTelemetrySubscriptions": (0, 0),
    "PushTelemetry": (0, 0),
    "DescribeTopicPartitions": (0, 0),
}


def test_the_declared_apis_have_kafkas_ranges() -> None:
    ranges = {
        api.name: (api.min_version, api.max_version) for api in APIS.values() if not api.key.is_own
    }

    assert ranges == KAFKA_4_2


@pytest.mark.parametrize("key", list(APIS))
def test_an_api_and_its_messages_agree(key: ApiKey) -> None:
    api = APIS[key]
    for cls, kind in ((api.request, "request"), (api.response, "response")):
        schema = schema_of(cls)
        assert schema.name == api.name + kind.title()
        assert (schema.api_key, schema.kind) == (key, kind)
        assert schema.versions == (api.min_version, api.max_version)
        flexible = [v for v in range(api.max_version + 1) if schema.flexible.includes(v)]
        assert flexible == list(range(api.flexible_from, api.max_version + 1))


def test_every_key_of_a_4_2_broker_is_known() -> None:
    assert len([key for key in ApiKey if not key.is_own]) == len(VERSIONS) == 77
    assert set(FLEXIBLE_FROM) == set(ApiKey)
    assert FLEXIBLE_FROM[ApiKey.SASL_HANDSHAKE] == FLEXIBLE_FROM[ApiKey.OFFSET_DELETE] == NEVER


def test_apis_of_ours_are_far_from_kafkas() -> None:
    own = [key for key in ApiKey if key.is_own]
    assert own == [ApiKey.EXPLAIN_RETENTION, ApiKey.DESCRIBE_BROKERS]
    assert min(own) >= OWN == 10_000
    assert max(key for key in ApiKey if not key.is_own) < 1_000
    assert not {int(key) for key in ApiKey if key.is_own} & VERSIONS.keys()


def test_names_are_kafkas() -> None:
    assert ApiKey.OFFSET_FOR_LEADER_EPOCH.api_name == "OffsetForLeaderEpoch"
    assert ApiKey(78).api_name == "ShareFetch"


def test_supports_says_which_versions_are_in_range() -> None:
    fetch = APIS[ApiKey.FETCH]

    assert [v for v in range(30) if fetch.supports(v)] == list(range(4, 19))


@pytest.mark.parametrize("key", APIS)
def test_a_request_is_known_by_its_class(key: ApiKey) -> None:
    assert key_of(object.__new__(APIS[key].request)) is key
