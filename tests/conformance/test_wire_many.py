"""Requests of more than a thousand entries: answered whole and in order, as those of a few are."""

from __future__ import annotations

import pytest

MANY = 1_100
LONG = 60_000


@pytest.fixture
def wide(new_topic):
    return new_topic(MANY)


def positions(topic, offset=0):
    return dict.fromkeys(range(topic.partitions), offset)


def test_a_fetch_of_many_partitions_waits_for_data(wire, wide, batch, produce, fetch_fields):
    waiting, writer = wire(), wire()
    waiting.send("fetch", 12, **fetch_fields((wide, positions(wide)), max_wait=LONG))
    produce(writer, wide, batch([b"here"]), partition=MANY - 1)
    (topic,) = waiting.receive().responses
    assert sorted(it.partition_index for it in topic.partitions) == list(range(MANY))
    assert [it.partition_index for it in topic.partitions if it.records] == [MANY - 1]


def test_a_session_of_many_partitions_goes_on(wire, wide, batch, produce, fetch_fields):
    reader, writer = wire(), wire()
    fields = fetch_fields((wide, positions(wide)), session_id=0, session_epoch=0)
    first = reader.ask("fetch", 12, **fields)
    assert first.session_id != 0
    produce(writer, wide, batch([b"here"]), partition=5)
    more = fetch_fields(session_id=first.session_id, session_epoch=1, max_wait=LONG)
    (topic,) = reader.ask("fetch", 12, **more).responses
    assert [it.partition_index for it in topic.partitions] == [5]


def test_a_produce_request_to_many_partitions_is_answered_for_each(wire, wide, batch):
    connection = wire()
    data = [{"index": number, "records": batch([b"%d" % number])} for number in range(MANY)]
    data.append({"index": MANY, "records": batch([b"nowhere"])})
    topics = [{"name": wide.name, "partition_data": data}]
    answer = connection.ask("produce", 9, acks=-1, timeout=10_000, topic_data=topics)
    (topic,) = answer.responses
    outcomes = [(it.index, it.error_code, it.base_offset) for it in topic.partition_responses]
    assert outcomes == [*((number, 0, 0) for number in range(MANY)), (MANY, 3, -1)]


def test_offsets_of_many_partitions_are_listed(wire, wide):
    parts = [{"partition_index": number, "timestamp": -1} for number in range(MANY + 1)]
    topics = [{"name": wide.name, "partitions": parts}]
    (topic,) = wire().ask("list_offsets", 6, replica_id=-1, topics=topics).topics
    found = {it.partition_index: (it.error_code, it.offset) for it in topic.partitions}
    assert found == dict.fromkeys(range(MANY), (0, 0)) | {MANY: (3, -1)}


def test_a_topic_asked_for_twice_is_answered_once(wire, wide, topic):
    for again in (2, 2_000):
        names = [{"name": topic.name}, {"name": wide.name}] * again
        found = wire().ask("metadata", 12, topics=names).topics
        assert sorted(it.name for it in found) == sorted([topic.name, wide.name])


def test_offsets_of_many_partitions_are_committed_and_fetched(wire, wide, unique):
    connection, group = wire(), unique("group")
    coordinator = connection.ask("find_coordinator", 4, key_type=0, coordinator_keys=[group])
    assert coordinator.coordinators[0].error_code == 0
    parts = [{"partition_index": it, "committed_offset": it} for it in range(MANY)]
    topics = [{"name": wide.name, "partitions": parts}]
    (topic,) = connection.ask("offset_commit", 8, group_id=group, topics=topics).topics
    assert [(it.partition_index, it.error_code) for it in topic.partitions] == [
        (number, 0) for number in range(MANY)
    ]
    wanted = [{"name": wide.name, "partition_indexes": list(range(MANY))}]
    groups = [{"group_id": group, "topics": wanted}]
    (found,) = connection.ask("offset_fetch", 8, groups=groups).groups
    (topic,) = found.topics
    assert [it.committed_offset for it in topic.partitions] == list(range(MANY))
