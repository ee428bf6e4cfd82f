"""Requests of more than a thousand entries: answered whole and in order, as those of a few are."""

from __future__ import annotations

import pytest

MANY = 1_100
LONG = 60_000


made = {}


@pytest.fixture
def wide(new_topic):
    """A topic of so many partitions; made once, because that takes its time elsewhere."""
    if not made:
        made["topic"] = new_topic(MANY)
    return made["topic"]


def ends(connection, topic, count=MANY):
    """Error and end of so many partitions."""
    parts = [{"partition_index": number, "timestamp": -1} for number in range(count)]
    topics = [{"name": topic.name, "partitions": parts}]
    (topic,) = connection.ask("list_offsets", 6, replica_id=-1, topics=topics).topics
    assert len(topic.partitions) == count
    return {each.partition_index: (each.error_code, each.offset) for each in topic.partitions}


@pytest.fixture
def at_the_end(wire, wide, fetch_fields):
    """The fields of a fetch of what will come."""
    found = {number: offset for number, (_, offset) in ends(wire(), wide).items()}
    return lambda **more: fetch_fields((wide, found), **more)


def test_a_fetch_of_many_partitions_waits_for_data(wire, wide, batch, produce, at_the_end):
    waiting, writer = wire(), wire()
    waiting.send("fetch", 12, **at_the_end(max_wait=LONG))
    produce(writer, wide, batch([b"here"]), partition=MANY - 1)
    (topic,) = waiting.receive().responses
    assert sorted(each.partition_index for each in topic.partitions) == list(range(MANY))
    assert [each.partition_index for each in topic.partitions if each.records] == [MANY - 1]


def test_a_session_of_many_partitions_goes_on(wire, wide, batch, produce, fetch_fields, at_the_end):
    reader, writer = wire(), wire()
    first = reader.ask("fetch", 12, **at_the_end(session_id=0, session_epoch=0))
    assert first.session_id != 0
    produce(writer, wide, batch([b"here"]), partition=5)
    more = fetch_fields(session_id=first.session_id, session_epoch=1, max_wait=LONG)
    (topic,) = reader.ask("fetch", 12, **more).responses
    assert [each.partition_index for each in topic.partitions] == [5]


def test_a_produce_request_to_many_partitions_is_answered_for_each(wire, wide, batch):
    connection = wire()
    before = ends(connection, wide)
    data = [{"index": number, "records": batch([b"%d" % number])} for number in range(MANY)]
    data.append({"index": MANY, "records": batch([b"nowhere"])})
    topics = [{"name": wide.name, "partition_data": data}]
    answer = connection.ask("produce", 9, acks=-1, timeout=10_000, topic_data=topics)
    (topic,) = answer.responses
    found = {each.index: (each.error_code, each.base_offset) for each in topic.partition_responses}
    assert found == before | {MANY: (3, -1)}
    assert ends(connection, wide) == {
        number: (0, offset + 1) for number, (_, offset) in before.items()
    }


def unanswered(connection, topic, data):
    """Send records to partitions of a topic with acks=0."""
    topics = [{"name": topic.name, "partition_data": data}]
    connection.send("produce", 9, acks=0, timeout=10_000, topic_data=topics)


def test_a_client_that_goes_after_a_long_unacknowledged_request_has_sent_it(
    wire, topic, batch, eventually
):
    records, count = batch([b"last words"]), 20_000
    connection, other = wire(), wire()
    unanswered(connection, topic, [{"index": 0, "records": records}] * count)
    connection.close()
    eventually(lambda: ends(other, topic, 1)[0] == (0, count))


def test_an_unacknowledged_request_of_many_is_taken_but_for_what_is_refused(
    wire, wide, batch, eventually
):
    connection, other = wire(), wire()
    before = ends(other, wide)
    data = [{"index": number, "records": batch([b"%d" % number])} for number in range(MANY)]
    data.insert(0, {"index": MANY, "records": batch([b"nowhere"])})
    unanswered(connection, wide, data)
    assert connection.closed_by_peer()
    eventually(
        lambda: ends(other, wide) == {n: (0, offset + 1) for n, (_, offset) in before.items()}
    )


def test_offsets_of_many_partitions_are_listed(wire, wide):
    found = ends(wire(), wide, MANY + 1)
    assert found.pop(MANY) == (3, -1)
    assert {error for error, _ in found.values()} == {0}


def test_a_topic_asked_for_twice_is_answered_once(wire, wide, topic):
    for again in (2, 2_000):
        names = [{"name": topic.name}, {"name": wide.name}] * again
        found = wire().ask("metadata", 12, topics=names).topics
        assert sorted(each.name for each in found) == sorted([topic.name, wide.name])


def test_offsets_of_many_partitions_are_committed_and_fetched(wire, wide, group):
    connection = wire()
    parts = [{"partition_index": each, "committed_offset": each} for each in range(MANY)]
    topics = [{"name": wide.name, "partitions": parts}]
    (topic,) = connection.ask("offset_commit", 8, group_id=group, topics=topics).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (number, 0) for number in range(MANY)
    ]
    wanted = [{"name": wide.name, "partition_indexes": list(range(MANY))}]
    groups = [{"group_id": group, "topics": wanted}]
    (found,) = connection.ask("offset_fetch", 8, groups=groups).groups
    (topic,) = found.topics
    assert [each.committed_offset for each in topic.partitions] == list(range(MANY))


def test_a_transaction_may_include_very_many_partitions(wire, unique):
    """More than are handled as one piece elsewhere; here they do not exist, and each is told so."""
    (topic,) = (
        wire()
        .ask(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=unique("txn"),
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[{"name": unique(), "partitions": list(range(20_000))}],
        )
        .results_by_topic_v3_and_below
    )
    assert {each.partition_error_code for each in topic.results_by_partition} == {3}
    assert len(topic.results_by_partition) == 20_000
