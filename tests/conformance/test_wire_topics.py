"""CreateTopics (19), CreatePartitions (37), DeleteTopics (20), Metadata (3) and their kin.

Codes and messages are those of Apache Kafka 4.2.
"""

from __future__ import annotations

import uuid

import pytest

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, TOPIC_ALREADY_EXISTS = 3, 17, 36
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT = 37, 38, 39
INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC_ID = 40, 42, 100
MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 114, 115
NOT_ASKED_FOR = -(2**31)


@pytest.fixture
def node(wire):
    (broker,) = wire().ask("metadata", 12, topics=[]).brokers
    return broker.node_id


@pytest.fixture
def create(wire):
    """Create topics; {name: (code, message, partitions, replicas)}."""
    connection = wire()

    def call(*topics, **more):
        answer = connection.ask("create_topics", 7, topics=topics, timeout=10_000, **more)
        return {
            t.name: (t.error_code, t.error_message, t.num_partitions, t.replication_factor)
            for t in answer.topics
        }

    return call


def shape(name, partitions=1, replicas=1, **more):
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        **more,
    }


def placed(name, *replicas, **more):
    """A topic whose partitions are assigned by hand, in the order given."""
    assignments = [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(replicas)]
    return shape(name, -1, -1, assignments=assignments, **more)


ALPHABET = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a b", f"'a b' {ALPHABET}"),
        ("a/b", f"'a/b' {ALPHABET}"),
        ("ümlaut", f"'ümlaut' {ALPHABET}"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_invalid_names(name, why, create):
    message = f"Topic name is invalid: {why}"
    assert create(shape(name))[name] == (INVALID_TOPIC, message, -1, -1)


def test_the_longest_name_is_fine(create, unique):
    name = unique().ljust(249, "x")
    assert create(shape(name))[name] == (0, None, 1, 1)


def test_names_taken_and_names_too_much_alike(create, unique):
    name = unique("a.b")
    assert create(shape(name))[name][0] == 0
    exists = (TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.", -1, -1)
    assert create(shape(name))[name] == exists
    assert create(shape(name), validate_only=True)[name] == exists
    alike = name.replace("a.b", "a_b")
    message = f"Topic '{alike}' collides with existing topic: {name}"
    assert create(shape(alike))[alike] == (INVALID_TOPIC, message, -1, -1)


@pytest.mark.parametrize(
    ("partitions", "replicas", "code", "message"),
    [
        (0, 1, 37, "Number of partitions was set to an invalid non-positive value."),
        (-2, 1, 37, "Number of partitions was set to an invalid non-positive value."),
        (1, 0, 38, "Replication factor must be larger than 0, or -1 to use the default value."),
        (
            1,
            3,
            38,
            "Unable to replicate the partition 3 time(s): The target replication factor of 3 "
            "cannot be reached because only 1 broker(s) are registered.",
        ),
    ],
)
def test_impossible_shapes(partitions, replicas, code, message, create, unique):
    name = unique()
    assert create(shape(name, partitions, replicas))[name] == (code, message, -1, -1)


def test_minus_one_means_the_brokers_default(create, unique):
    name = unique()
    assert create(shape(name, -1, -1))[name] == (0, None, 1, 1)


def test_a_name_twice_in_one_request_fails_that_name_alone(create, unique):
    twice, once = unique(), unique()
    assert create(shape(twice), shape(twice), shape(once)) == {
        twice: (INVALID_REQUEST, "Duplicate topic name.", -1, -1),
        once: (0, None, 1, 1),
    }


def test_validate_only_creates_nothing(create, wire, unique):
    name = unique()
    assert create(shape(name, 3), validate_only=True)[name] == (0, None, 3, 1)
    (found,) = (
        wire().ask("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False).topics
    )
    assert found.error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_assignments_by_hand(create, unique, node):
    good, hole, count = unique(), unique(), unique()
    assert create(placed(good, [node], [node]))[good] == (0, None, 2, 1)
    bad = INVALID_REPLICA_ASSIGNMENT
    for replicas, message in (
        ([77], "includes broker 77, but no such broker is registered."),
        ([node, node], f"includes the broker {node} more than once."),
        ([], "includes an empty replica list."),
    ):
        name = unique()
        answer = create(placed(name, replicas))[name]
        assert answer == (bad, f"The manual partition assignment {message}", -1, -1)
    holed = shape(hole, -1, -1, assignments=[{"partition_index": 1, "broker_ids": [node]}])
    message = "partitions should be a consecutive 0-based integer sequence"
    assert create(holed)[hole] == (bad, message, -1, -1)
    both = placed(count, [node]) | {"replication_factor": 1}
    assert create(both)[count][0] == INVALID_REQUEST


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("nope", "1", "Unknown topic config name: nope"),
        ("retention.ms", None, "Null value not supported for topic configs: retention.ms"),
        (
            "retention.ms",
            "abc",
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "retention.ms",
            "-5",
            "Invalid value -5 for configuration retention.ms: Value must be at least -1",
        ),
        (
            "cleanup.policy",
            "x",
            "Invalid value x for configuration cleanup.policy: String must be one of: "
            "compact, delete",
        ),
        (
            "segment.bytes",
            "5",
            "Invalid value 5 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            "max.message.bytes",
            "99999999999",
            "Invalid value 99999999999 for configuration max.message.bytes: Not a number of "
            "type INT",
        ),
        (
            "preallocate",
            "maybe",
            "Invalid value maybe for configuration preallocate: Expected value to be either "
            "true or false",
        ),
    ],
)
def test_invalid_configs_at_creation(key, value, message, create, unique):
    name = unique()
    wanted = shape(name, configs=[{"name": key, "value": value}])
    assert create(wanted)[name] == (INVALID_CONFIG, message, -1, -1)


# -- CreatePartitions ------------------------------------------------------------------------


def test_growing(wire, topic, node, eventually):
    connection, name = wire(), topic.name

    def grow(count, placements=None, name=name, **more):
        assignments = None
        if placements is not None:
            assignments = [{"broker_ids": ids} for ids in placements]
        wanted = {"name": name, "count": count, "assignments": assignments}
        (result,) = connection.ask(
            "create_partitions", 3, topics=[wanted], timeout=10_000, **more
        ).results
        return result.error_code, result.error_message

    def count():
        return len(connection.ask("metadata", 12, topics=[{"name": name}]).topics[0].partitions)

    assert grow(2) == (INVALID_PARTITIONS, "Topic already has 2 partition(s).")
    shrunk = f"The topic {name} currently has 2 partition(s); 1 would not be an increase."
    assert grow(1) == (INVALID_PARTITIONS, shrunk)
    assert grow(3, name="no-such-topic")[0] == UNKNOWN_TOPIC_OR_PARTITION
    few = "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."
    assert grow(4, [[node]]) == (INVALID_REPLICA_ASSIGNMENT, few)
    assert grow(3, [[77]])[0] == INVALID_REPLICA_ASSIGNMENT
    assert grow(9, validate_only=True) == (0, None)
    assert count() == 2
    assert grow(3, [[node]]) == (0, None)
    assert grow(7) == (0, None)
    eventually(lambda: count() == 7)
    twice = [{"name": name, "count": 8}, {"name": name, "count": 9}]
    (result,) = connection.ask("create_partitions", 3, topics=twice, timeout=10_000).results
    assert (result.error_code, result.error_message) == (INVALID_REQUEST, "Duplicate topic name.")


# -- DeleteTopics ----------------------------------------------------------------------------


@pytest.fixture
def delete(wire):
    connection = wire()

    def call(*topics):
        answer = connection.ask("delete_topics", 6, topics=topics, timeout=10_000)
        return [(t.name, t.topic_id, t.error_code, t.error_message) for t in answer.responses]

    return call


def test_a_topic_is_deleted_by_name_or_id_and_answered_with_both(delete, new_topic):
    by_name, by_id = new_topic(), new_topic()
    assert delete({"name": by_name.name}) == [(by_name.name, by_name.id, 0, None)]
    assert delete({"topic_id": by_id.id}) == [(by_id.name, by_id.id, 0, None)]


def test_what_cannot_be_deleted(delete, topic):
    nobody = uuid.uuid4()
    unknown = (UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    assert delete({"name": "no-such-topic"}) == [("no-such-topic", None, *unknown)]
    unknown_id = (UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    assert delete({"topic_id": nobody}) == [(None, nobody, *unknown_id)]
    (twice,) = delete({"name": topic.name}, {"name": topic.name})
    assert twice[2:] == (INVALID_REQUEST, "Duplicate topic name.")
    (both,) = delete({"name": topic.name, "topic_id": nobody})
    assert both[2:] == (INVALID_REQUEST, "You may not specify both topic name and topic id.")
    (neither,) = delete({})
    assert neither[2:] == (INVALID_REQUEST, "Neither topic name nor id were specified.")


# -- Metadata and the like -------------------------------------------------------------------


def test_null_means_every_topic_and_an_empty_list_none(wire, topic):
    connection = wire()
    assert topic.name in [t.name for t in connection.ask("metadata", 12, topics=None).topics]
    assert connection.ask("metadata", 12, topics=[]).topics == ()
    # version 0 knows no null: there the empty list means every topic
    assert topic.name in [t.name for t in connection.ask("metadata", 0, topics=[]).topics]


def test_topics_are_found_by_their_id(wire, topic):
    nobody = uuid.uuid4()
    answer = wire().ask(
        "metadata",
        12,
        topics=[{"topic_id": topic.id}, {"topic_id": nobody}],
    )
    found = {t.topic_id: (t.name, t.error_code, len(t.partitions)) for t in answer.topics}
    assert found == {topic.id: (topic.name, 0, 2), nobody: (None, UNKNOWN_TOPIC_ID, 0)}


def test_unknown_and_impossible_names(wire, unique):
    connection = wire()

    def ask(name, create=False):
        (found,) = connection.ask(
            "metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=create
        ).topics
        return found.name, found.error_code, found.partitions

    name = unique("missing")
    assert ask(name) == (name, UNKNOWN_TOPIC_OR_PARTITION, ())
    assert ask(name) == (name, UNKNOWN_TOPIC_OR_PARTITION, ())
    assert ask("a b", create=True) == ("a b", INVALID_TOPIC, ())


def test_a_topic_is_created_by_asking_for_it(wire, unique, eventually):
    name, connection = unique("automatic"), wire()

    def exists():
        (found,) = connection.ask(
            "metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True
        ).topics
        return found.error_code == 0 and len(found.partitions) == 1

    eventually(exists)


def test_no_topic_is_created_where_the_broker_forbids_it(wire, bootstrap_no_auto_create, unique):
    name, connection = unique("missing"), wire(bootstrap_no_auto_create)
    for _ in range(3):
        (found,) = connection.ask(
            "metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True
        ).topics
        assert found.error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_permitted_operations_are_answered_when_asked_for(wire, topic):
    connection = wire()
    plain = connection.ask("metadata", 8, topics=[{"name": topic.name}])
    assert plain.cluster_authorized_operations == NOT_ASKED_FOR
    assert plain.topics[0].topic_authorized_operations == NOT_ASKED_FOR
    asked = connection.ask(
        "metadata",
        8,
        topics=[{"name": topic.name}],
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    # without an authorizer everyone may do everything: one bit per operation of the resource
    assert asked.topics[0].topic_authorized_operations == 3576
    assert asked.cluster_authorized_operations == 8096


def test_only_broker_endpoints_are_described(wire):
    connection = wire()
    good = connection.ask("describe_cluster", 1, include_cluster_authorized_operations=True)
    assert (good.error_code, good.cluster_authorized_operations) == (0, 8096)
    controllers = connection.ask("describe_cluster", 1, endpoint_type=2)
    assert controllers.error_code == MISMATCHED_ENDPOINT_TYPE
    assert controllers.brokers == ()
    nonsense = connection.ask("describe_cluster", 1, endpoint_type=3)
    assert nonsense.error_code == UNSUPPORTED_ENDPOINT_TYPE
    assert nonsense.error_message == "Unsupported endpoint type 3"


def test_topic_partitions_in_pages(wire, new_topic):
    first, second = sorted([new_topic(3), new_topic(3)], key=lambda topic: topic.name)
    connection = wire()

    def page(limit, cursor=None):
        answer = connection.ask(
            "describe_topic_partitions",
            0,
            topics=[{"name": second.name}, {"name": first.name}],
            response_partition_limit=limit,
            cursor=cursor,
        )
        got = [(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics]
        return got, answer.next_cursor

    got, cursor = page(4)
    assert got == [(first.name, [0, 1, 2]), (second.name, [0])]
    assert (cursor.topic_name, cursor.partition_index) == (second.name, 1)
    rest, end = page(4, {"topic_name": second.name, "partition_index": 1})
    assert (rest, end) == ([(second.name, [1, 2])], None)
    missing = connection.ask(
        "describe_topic_partitions",
        0,
        topics=[{"name": "no-such-topic"}],
        response_partition_limit=5,
    )
    assert [t.error_code for t in missing.topics] == [UNKNOWN_TOPIC_OR_PARTITION]


def test_log_dirs_list_all_some_or_no_partitions(wire, topic, batch, produce):
    connection, records = wire(), batch([b"x" * 500])
    produce(connection, topic, records)

    def sizes(topics):
        answer = connection.ask("describe_log_dirs", 4, topics=topics)
        assert all(folder.error_code == 0 for folder in answer.results)
        return {
            (t.name, p.partition_index): p.partition_size
            for folder in answer.results
            for t in folder.topics
            for p in t.partitions
        }

    everything = sizes(None)
    assert everything[topic.name, 0] == len(records)
    assert everything[topic.name, 1] == 0
    assert sizes([{"topic": topic.name, "partitions": [0]}]) == {(topic.name, 0): len(records)}
    assert sizes([]) == {}
    assert sizes([{"topic": "no-such-topic", "partitions": [0]}]) == {}
