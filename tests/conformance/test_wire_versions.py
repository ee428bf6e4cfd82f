"""Every API of the broker at every version it advertises, byte by byte.

kio encodes the request and decodes the answer, and the answer must be the whole frame: a
field too many, too few or in the wrong place fails here whatever its value is. What the
values should be is the business of the other test_wire files.
"""

from __future__ import annotations

import struct

import pytest

# What Kafka 4.2's broker advertises for the APIs that exist here so far.
VERSIONS = {
    "produce": range(14),
    "fetch": range(4, 19),
    "list_offsets": range(1, 12),
    "metadata": range(14),
    "api_versions": range(5),
    "create_topics": range(2, 8),
    "delete_topics": range(1, 7),
    "delete_records": range(3),
    "init_producer_id": range(6),
    "offset_for_leader_epoch": range(2, 5),
    "describe_configs": range(1, 5),
    "alter_configs": range(3),
    "describe_log_dirs": range(1, 5),
    "create_partitions": range(4),
    "incremental_alter_configs": range(2),
    "describe_cluster": range(3),
    "describe_producers": range(1),
    "list_config_resources": range(2),
    "describe_topic_partitions": range(1),
}
API_KEYS = {
    "produce": 0,
    "fetch": 1,
    "list_offsets": 2,
    "metadata": 3,
    "api_versions": 18,
    "create_topics": 19,
    "delete_topics": 20,
    "delete_records": 21,
    "init_producer_id": 22,
    "offset_for_leader_epoch": 23,
    "describe_configs": 32,
    "alter_configs": 33,
    "describe_log_dirs": 35,
    "create_partitions": 37,
    "incremental_alter_configs": 44,
    "describe_cluster": 60,
    "describe_producers": 61,
    "list_config_resources": 74,
    "describe_topic_partitions": 75,
}


def test_the_advertised_ranges_are_kafkas(wire):
    answer = wire().ask("api_versions", 3, client_software_name="x", client_software_version="1")
    advertised = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    for api, versions in VERSIONS.items():
        assert advertised.get(API_KEYS[api]) == (versions[0], versions[-1]), api


@pytest.mark.parametrize("version", VERSIONS["produce"][3:])
def test_produce(version, wire, topic, batch):
    name, topic_id = topic.name, topic.id
    answer = wire().ask(
        "produce",
        version,
        acks=-1,
        timeout=10_000,
        topic_data=[
            {
                "name": name,
                "topic_id": topic_id,
                "partition_data": [{"index": p, "records": batch([b"x"])} for p in (0, 1)],
            }
        ],
    )
    (written,) = answer.responses
    if version >= 13:
        assert written.topic_id == topic_id
    else:
        assert written.name == name
    results = sorted((p.index, p.error_code, p.base_offset) for p in written.partition_responses)
    assert results == [(0, 0, 0), (1, 0, 0)]
    if version >= 5:
        assert [p.log_start_offset for p in written.partition_responses] == [0, 0]


@pytest.mark.parametrize("version", VERSIONS["produce"][:3])
def test_produce_before_version_3_closes_the_connection(version, wire):
    # advertised only so that old librdkafka keeps compressing; never served since Kafka 4.0
    connection = wire()
    header = struct.pack(">hhih", 0, version, 1, -1)
    connection.send_frame(header + struct.pack(">hii", 1, 1_000, 0))
    assert connection.closed_by_peer()


@pytest.mark.parametrize("version", VERSIONS["fetch"])
def test_fetch(version, wire, topic, batch, produce, fetch_fields):
    connection = wire()
    for value in (b"one", b"two"):
        produce(connection, topic, batch([value]))
    answer = connection.ask("fetch", version, **fetch_fields((topic, {0: 0, 1: 0})))
    (fetched,) = answer.responses
    assert fetched.topic_id == topic.id if version >= 13 else fetched.topic == topic.name
    full, empty = fetched.partitions
    assert (full.partition_index, full.error_code, full.high_watermark) == (0, 0, 2)
    assert full.last_stable_offset == 2
    assert b"one" in full.records
    assert b"two" in full.records
    assert (empty.partition_index, empty.error_code, empty.high_watermark) == (1, 0, 0)
    assert not empty.records
    if version >= 5:
        assert full.log_start_offset == 0
    if version >= 11:
        assert full.preferred_read_replica == -1


@pytest.mark.parametrize("version", VERSIONS["list_offsets"])
def test_list_offsets(version, wire, topic):
    name = topic.name
    answer = wire().ask(
        "list_offsets",
        version,
        replica_id=-1,
        topics=[{"name": name, "partitions": [{"partition_index": 1, "timestamp": -1}]}],
    )
    (found,) = answer.topics
    assert found.name == name
    (partition,) = found.partitions
    assert (partition.partition_index, partition.error_code) == (1, 0)
    assert partition.offset == 0


@pytest.mark.parametrize("version", VERSIONS["metadata"])
def test_metadata(version, wire, topic, bootstrap):
    name, topic_id = topic.name, topic.id
    answer = wire().ask("metadata", version, topics=[{"name": name}])
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == bootstrap
    (found,) = answer.topics
    assert (found.name, found.error_code) == (name, 0)
    assert sorted(p.partition_index for p in found.partitions) == [0, 1]
    for partition in found.partitions:
        assert partition.leader_id == broker.node_id
        assert partition.replica_nodes == partition.isr_nodes == (broker.node_id,)
    if version >= 1:
        assert answer.controller_id == broker.node_id
        assert not found.is_internal
    if version >= 2:
        assert answer.cluster_id
    if version >= 7:
        assert all(p.leader_epoch >= 0 for p in found.partitions)
    if version >= 10:
        assert found.topic_id == topic_id
    if version == 13:
        assert answer.error_code == 0


@pytest.mark.parametrize("version", VERSIONS["create_topics"])
def test_create_and_delete_topics(version, wire, unique):
    name, connection = unique(), wire()
    wanted = {"name": name, "num_partitions": 3, "replication_factor": 1}
    (made,) = connection.ask(
        "create_topics",
        version,
        topics=[wanted | {"configs": [{"name": "retention.ms", "value": "9000"}]}],
        timeout=10_000,
    ).topics
    assert (made.name, made.error_code) == (name, 0)
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        settings = {c.name: (c.value, c.config_source) for c in made.configs}
        assert settings["retention.ms"] == ("9000", 1)
        assert settings["cleanup.policy"] == ("delete", 5)
    # DeleteTopics has as many versions as CreateTopics, one lower each
    (gone,) = connection.ask(
        "delete_topics",
        version - 1,
        topics=[{"name": name}],
        topic_names=[name],
        timeout=10_000,
    ).responses
    assert (gone.name, gone.error_code) == (name, 0)


@pytest.mark.parametrize("version", VERSIONS["create_partitions"])
def test_create_partitions(version, wire, topic):
    name = topic.name
    (grown,) = (
        wire()
        .ask("create_partitions", version, topics=[{"name": name, "count": 4}], timeout=10_000)
        .results
    )
    assert (grown.name, grown.error_code, grown.error_message) == (name, 0, None)


@pytest.mark.parametrize("version", VERSIONS["delete_records"])
def test_delete_records(version, wire, topic):
    name = topic.name
    wanted = {"name": name, "partitions": [{"partition_index": 0, "offset": -1}]}
    (done,) = wire().ask("delete_records", version, topics=[wanted], timeout=10_000).topics
    (partition,) = done.partitions
    assert (partition.partition_index, partition.error_code) == (0, 0)
    assert partition.low_watermark == 0


@pytest.mark.parametrize("version", VERSIONS["init_producer_id"])
def test_init_producer_id(version, wire):
    answer = wire().ask(
        "init_producer_id",
        version,
        transactional_id=None,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id >= 0


@pytest.mark.parametrize("version", VERSIONS["offset_for_leader_epoch"])
def test_offset_for_leader_epoch(version, wire, topic):
    name = topic.name
    partitions = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    (found,) = (
        wire()
        .ask(
            "offset_for_leader_epoch",
            version,
            replica_id=-1,
            topics=[{"topic": name, "partitions": partitions}],
        )
        .topics
    )
    (partition,) = found.partitions
    assert (partition.partition, partition.error_code) == (0, 0)


@pytest.mark.parametrize("version", VERSIONS["describe_configs"])
def test_describe_configs(version, wire, topic):
    name = topic.name
    (found,) = (
        wire()
        .ask(
            "describe_configs",
            version,
            resources=[
                {"resource_type": 2, "resource_name": name, "configuration_keys": ["retention.ms"]}
            ],
            include_synonyms=True,
            include_documentation=True,
        )
        .results
    )
    assert (found.error_code, found.resource_type, found.resource_name) == (0, 2, name)
    (setting,) = found.configs
    assert (setting.name, setting.value, setting.config_source) == ("retention.ms", "604800000", 5)
    assert (setting.read_only, setting.is_sensitive) == (False, False)
    if version >= 3:
        assert setting.config_type == 5
        assert setting.documentation


@pytest.mark.parametrize("version", VERSIONS["alter_configs"])
def test_alter_configs(version, wire, topic):
    name = topic.name
    change = [{"name": "retention.ms", "value": "5000"}]
    (done,) = (
        wire()
        .ask(
            "alter_configs",
            version,
            resources=[{"resource_type": 2, "resource_name": name, "configs": change}],
        )
        .responses
    )
    assert (done.error_code, done.resource_type, done.resource_name) == (0, 2, name)


@pytest.mark.parametrize("version", VERSIONS["incremental_alter_configs"])
def test_incremental_alter_configs(version, wire, topic):
    name = topic.name
    change = [{"name": "retention.ms", "config_operation": 0, "value": "5000"}]
    (done,) = (
        wire()
        .ask(
            "incremental_alter_configs",
            version,
            resources=[{"resource_type": 2, "resource_name": name, "configs": change}],
        )
        .responses
    )
    assert (done.error_code, done.resource_type, done.resource_name) == (0, 2, name)


@pytest.mark.parametrize("version", VERSIONS["describe_log_dirs"])
def test_describe_log_dirs(version, wire, topic):
    name = topic.name
    answer = wire().ask("describe_log_dirs", version, topics=[{"topic": name, "partitions": [0]}])
    found = [folder for folder in answer.results if folder.topics]
    (folder,) = found
    assert folder.error_code == 0
    assert folder.log_dir.startswith("/")
    (listed,) = folder.topics
    assert listed.name == name
    (partition,) = listed.partitions
    assert (partition.partition_index, partition.partition_size) == (0, 0)
    assert (partition.offset_lag, partition.is_future_key) == (0, False)
    if version >= 4:
        assert folder.total_bytes > folder.usable_bytes > 0


@pytest.mark.parametrize("version", VERSIONS["describe_cluster"])
def test_describe_cluster(version, wire, bootstrap):
    answer = wire().ask("describe_cluster", version)
    assert answer.error_code == 0
    assert answer.cluster_id
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == bootstrap
    assert answer.controller_id == broker.broker_id


def test_describe_producers(wire, topic):
    name = topic.name
    asked = {"name": name, "partition_indexes": [0, 9]}
    (found,) = wire().ask("describe_producers", 0, topics=[asked]).topics
    known, unknown = sorted(found.partitions, key=lambda p: p.partition_index)
    assert (known.error_code, known.active_producers) == (0, ())
    assert unknown.error_code == 3


@pytest.mark.parametrize("version", VERSIONS["list_config_resources"])
def test_list_config_resources(version, wire, topic):
    name = topic.name
    answer = wire().ask("list_config_resources", version, resource_types=[2])
    assert answer.error_code == 0
    if version:
        assert name in [r.resource_name for r in answer.config_resources if r.resource_type == 2]


def test_describe_topic_partitions(wire, topic):
    name, topic_id = topic.name, topic.id
    answer = wire().ask(
        "describe_topic_partitions", 0, topics=[{"name": name}], response_partition_limit=10
    )
    (found,) = answer.topics
    assert (found.name, found.topic_id, found.error_code) == (name, topic_id, 0)
    assert [p.partition_index for p in found.partitions] == [0, 1]
    assert answer.next_cursor is None


@pytest.mark.parametrize("version", [3, 4])
def test_the_features_are_kafkas(wire, version):
    answer = wire().ask(
        "api_versions", version, client_software_name="x", client_software_version="1"
    )
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    ours = ("metadata.version", "group.version", "eligible.leader.replicas.version")
    assert [levels[name] for name in ours] == [29, 1, 1]
    assert answer.finalized_features_epoch >= 0
    supported = {
        each.name: (each.min_version, each.max_version) for each in answer.supported_features
    }
    assert supported["metadata.version"] == (7, 29)
    # Those that can be switched off are kept from clients that would stumble over a level of 0.
    assert ("group.version" in supported) == (version >= 4)
    if version >= 4:
        assert [supported[name] for name in ours[1:]] == [(0, 1), (0, 1)]
