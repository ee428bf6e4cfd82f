"""AlterReplicaLogDirs (34), on a broker with one data folder: there is nowhere to move to."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode

VERSIONS = [1, 2]


def alter(connection, version, path, name, index):
    topics = [{"name": name, "partitions": [index]}]
    answer = connection.ask(
        "alter_replica_log_dirs", version, dirs=[{"path": path, "topics": topics}]
    )
    (topic,) = answer.results
    (outcome,) = topic.partitions
    assert (topic.topic_name, outcome.partition_index) == (name, index)
    return ErrorCode(outcome.error_code)


@pytest.fixture
def folder(wire):
    (found,) = wire().ask("describe_log_dirs", 4, topics=None).results
    return found.log_dir


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replica_may_be_asked_to_stay_where_it_is(wire, new_topic, folder, version):
    topic = new_topic(1).name
    connection = wire()
    assert alter(connection, version, folder, topic, 0) is ErrorCode.NONE
    (found,) = connection.ask(
        "describe_log_dirs", 4, topics=[{"topic": topic, "partitions": [0]}]
    ).results
    ((part,),) = [each.partitions for each in found.topics]
    assert (part.is_future_key, part.offset_lag) == (False, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_path_that_is_no_folder_of_the_broker_is_refused(wire, new_topic, folder, version):
    topic = new_topic(1).name
    for path in ("/no/such/folder", "data", "", f"{folder}/{topic}-0"):
        assert alter(wire(), version, path, topic, 0) is ErrorCode.LOG_DIR_NOT_FOUND


@pytest.mark.parametrize("version", VERSIONS)
def test_what_does_not_exist_is_not_moved(wire, new_topic, folder, version):
    topic = new_topic(1).name
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(wire(), version, folder, "no-such-topic", 0) is unknown
    assert alter(wire(), version, folder, topic, 7) is unknown
    # The path is looked at first.
    assert alter(wire(), version, "/no", "no-such-topic", 0) is ErrorCode.LOG_DIR_NOT_FOUND


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_asked_nothing_answered(wire, version):
    assert wire().ask("alter_replica_log_dirs", version, dirs=[]).results == ()
