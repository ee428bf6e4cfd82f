"""AlterPartitionReassignments (45), ListPartitionReassignments (46) and UnregisterBroker (64), on a
single broker."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode


def alter(connection, version, name, index, replicas, **fields):
    part = {"partition_index": index, "replicas": replicas}
    answer = connection.ask(
        "alter_partition_reassignments",
        version,
        topics=[{"name": name, "partitions": [part]}],
        **fields,
    )
    assert answer.error_code == 0
    (topic,) = answer.responses
    (outcome,) = topic.partitions
    assert (topic.name, outcome.partition_index) == (name, index)
    return ErrorCode(outcome.error_code), outcome.error_message


@pytest.mark.parametrize("version", [0, 1])
def test_what_cannot_be_is_refused_for_each_partition(wire, new_topic, version):
    connection = wire()
    topic = new_topic(2).name
    (broker,) = connection.ask("describe_cluster", 0).brokers
    here = broker.broker_id
    bad = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    manual = "The manual partition assignment includes"
    for name, index, replicas, expected in (
        ("no-such-topic", 0, [here], (unknown, "Unable to find a topic named no-such-topic.")),
        (topic, 2, [here], (unknown, f"Unable to find partition {topic}:2.")),
        (topic, 0, [], (bad, f"{manual} an empty replica list.")),
        (topic, 0, [here, here], (bad, f"{manual} the broker {here} more than once.")),
        (topic, 0, [99], (bad, f"{manual} broker 99, but no such broker is registered.")),
        (
            topic,
            0,
            None,
            (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."),
        ),
        (topic, 1, [here], (ErrorCode.NONE, None)),
    ):
        assert alter(connection, version, name, index, replicas) == expected


def test_nothing_is_in_progress(wire, new_topic):
    topic = new_topic(1).name
    for wanted in (None, [], [{"name": topic, "partition_indexes": [0, 7]}]):
        answer = wire().ask("list_partition_reassignments", 0, topics=wanted)
        assert (answer.error_code, answer.topics) == (0, ())


def test_a_broker_that_is_not_known_cannot_be_forgotten(wire):
    answer = wire().ask("unregister_broker", 0, broker_id=99)
    assert ErrorCode(answer.error_code) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert answer.error_message == "Broker ID 99 is not currently registered"
