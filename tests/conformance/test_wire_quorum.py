"""DescribeQuorum (55), by hand and with kafka-python's admin. Checked against Apache Kafka 4.2."""

from __future__ import annotations

import pytest
from kafka import KafkaAdminClient

UNKNOWN_TOPIC_OR_PARTITION = 3
METADATA = "__cluster_metadata"


def describe(connection, version, *topics):
    return connection.ask(
        "describe_quorum",
        version,
        topics=[
            {"topic_name": name, "partitions": [{"partition_index": each} for each in partitions]}
            for name, partitions in topics
        ],
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_controller_leads_the_metadata(wire, version):
    connection = wire()
    answer = describe(connection, version, (METADATA, [0]))
    (topic,) = answer.topics
    (partition,) = topic.partitions
    (voter,) = partition.current_voters
    cluster = connection.ask("describe_cluster", 2, endpoint_type=1)
    assert (answer.error_code, topic.topic_name) == (0, METADATA)
    assert (partition.partition_index, partition.error_code) == (0, 0)
    assert partition.leader_id == voter.replica_id == cluster.controller_id
    assert partition.leader_epoch > 0
    assert partition.high_watermark == voter.log_end_offset > 0
    assert partition.observers == ()
    if version >= 1:
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp > 1_000_000_000_000
    if version >= 2:
        assert answer.error_message == partition.error_message == ""
        assert voter.replica_directory_id is None
        (node,) = answer.nodes
        assert node.node_id == cluster.controller_id
        assert all(each.port > 0 and each.host and each.name for each in node.listeners)


@pytest.mark.usefixtures("ours_only")  # Kafka's controller has listeners of its own
def test_the_controllers_node_is_where_clients_find_it(wire, bootstrap):
    (node,) = describe(wire(), 2, (METADATA, [0])).nodes
    (listener,) = node.listeners
    assert (listener.name, f"{listener.host}:{listener.port}") == ("PLAINTEXT", bootstrap)


def test_a_change_of_metadata_moves_the_high_watermark(wire, new_topic):
    connection = wire()

    def end():
        return describe(connection, 2, (METADATA, [0])).topics[0].partitions[0].high_watermark

    before = end()
    new_topic()
    assert end() > before


def test_a_restarted_controller_has_a_higher_epoch(start_broker, wire):
    broker = start_broker()

    def seen():
        answer = describe(wire(broker.bootstrap), 2, (METADATA, [0]))
        (partition,) = answer.topics[0].partitions
        return partition.leader_epoch, partition.high_watermark

    first = seen()
    broker.kill()
    broker.start()
    second = seen()
    assert second[0] > first[0]
    assert second[1] > first[1]


@pytest.mark.parametrize(
    "asked",
    [
        [(METADATA, [1])],
        [(METADATA, [0, 1])],
        [("x", [0])],
        [(METADATA, [0]), ("x", [0])],
    ],
)
def test_anything_but_the_one_partition_is_unknown(wire, asked):
    answer = describe(wire(), 2, *asked)
    assert (answer.error_code, answer.nodes) == (0, ())
    assert [(each.topic_name, len(each.partitions)) for each in answer.topics] == [
        (name, len(partitions)) for name, partitions in asked
    ]
    for topic in answer.topics:
        for each in topic.partitions:
            assert (each.error_code, each.error_message) == (
                UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )
            assert (each.leader_id, each.current_voters, each.observers) == (0, (), ())


def test_asking_for_nothing_is_answered_with_nothing(wire):
    answer = describe(wire(), 2)
    assert (answer.error_code, answer.topics, answer.nodes) == (0, (), ())
    (topic,) = describe(wire(), 2, (METADATA, [])).topics
    assert (topic.topic_name, topic.partitions) == (METADATA, ())


def test_kafka_python_describes_the_quorum(bootstrap):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        found = admin.describe_metadata_quorum()
        controller = admin.describe_cluster()["controller_id"]
    finally:
        admin.close()
    (partition,) = found["topics"][0]["partitions"]
    assert partition["error"] is None
    assert partition["leader_id"] == controller
    assert [each["replica_id"] for each in partition["current_voters"]] == [controller]
    assert [each["node_id"] for each in found["nodes"]] == [controller]
