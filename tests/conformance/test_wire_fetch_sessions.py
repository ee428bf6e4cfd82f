"""Incremental fetch sessions (KIP-227), seen on the wire."""

from __future__ import annotations

import pytest

FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH = 70, 71
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 3, 100


class Session:
    """A consumer's side of one session: counts the epochs."""

    def __init__(self, connection, fetch_fields, version):
        self.connection = connection
        self.fields = fetch_fields
        self.version = version
        self.id = 0
        self.epoch = 0

    def ask(self, *wanted, forget=(), epoch=None, **more):
        """The partitions in the answer as {(topic, partition): data}; raises nothing."""
        forgotten = [
            {"topic": topic.name, "topic_id": topic.id, "partitions": list(partitions)}
            for topic, partitions in forget
        ]
        answer = self.connection.ask(
            "fetch",
            self.version,
            **self.fields(
                *wanted,
                session_id=self.id,
                session_epoch=self.epoch if epoch is None else epoch,
                forgotten_topics_data=forgotten,
                **more,
            ),
        )
        self.error = answer.error_code
        if answer.error_code == 0:
            self.id = answer.session_id
            self.epoch += 1
        name = "topic_id" if self.version >= 13 else "topic"
        return {
            (getattr(response, name), part.partition_index): part
            for response in answer.responses
            for part in response.partitions
        }


@pytest.fixture(params=[7, 12, 16, 18])
def session(request, wire, fetch_fields):
    return Session(wire(), fetch_fields, request.param)


@pytest.fixture
def key(session):
    """How a topic is named in an answer of this version."""
    return lambda topic, partition: (topic.id if session.version >= 13 else topic.name, partition)


def test_only_what_changed_is_answered(session, key, topic, wire, batch, produce):
    writer = wire()
    first = session.ask((topic, {0: 0, 1: 0}))
    assert set(first) == {key(topic, 0), key(topic, 1)}
    assert session.id > 0

    assert session.ask() == {}
    produce(writer, topic, batch([b"x"]), partition=1)
    changed = session.ask()
    assert set(changed) == {key(topic, 1)}
    assert b"x" in changed[key(topic, 1)].records
    assert session.ask((topic, {1: 1})) == {}


def test_a_waiting_session_is_woken_by_its_partitions(session, key, topic, wire, batch, produce):
    session.ask((topic, {0: 0, 1: 0}))
    connection = session.connection
    connection.send(
        "fetch",
        session.version,
        **session.fields(session_id=session.id, session_epoch=1, max_wait=15_000),
    )
    produce(wire(), topic, batch([b"x"]))
    answer = connection.receive()
    (response,) = answer.responses
    assert [p.partition_index for p in response.partitions] == [0]


def test_partitions_are_added_and_forgotten(session, key, topic, new_topic, wire, batch, produce):
    writer, other = wire(), new_topic()
    session.ask((topic, {0: 0, 1: 0}))
    for where, partition in ((topic, 0), (topic, 1), (other, 0)):
        produce(writer, where, batch([b"x"]), partition=partition)
    got = session.ask((other, {0: 0}), forget=[(topic, [1])])
    assert set(got) == {key(topic, 0), key(other, 0)}
    assert session.ask((topic, {0: 1}), (other, {0: 1}), forget=[(other, [0])]) == {}


def test_partitions_with_errors_are_always_answered(session, key, topic):
    first = session.ask((topic, {0: 0, 9: 0}))
    assert first[key(topic, 9)].error_code == UNKNOWN_TOPIC_OR_PARTITION
    again = session.ask()
    assert {where: part.error_code for where, part in again.items()} == {
        key(topic, 9): UNKNOWN_TOPIC_OR_PARTITION
    }


def test_a_wrong_epoch_is_refused_and_the_session_lives_on(session, topic):
    session.ask((topic, {0: 0}))
    session.ask(epoch=5)
    assert session.error == INVALID_FETCH_SESSION_EPOCH
    assert session.ask() == {}
    assert session.error == 0


def test_an_unknown_session_is_refused(session, topic):
    session.id = 123_456_789
    session.ask((topic, {0: 0}), epoch=3)
    assert session.error == FETCH_SESSION_ID_NOT_FOUND


def test_a_final_fetch_ends_the_session(session, key, topic):
    session.ask((topic, {0: 0}))
    old = session.id
    last = session.ask((topic, {0: 0}), epoch=-1)
    assert set(last) == {key(topic, 0)}
    assert session.id == 0
    session.id = old
    session.ask(epoch=2)
    assert session.error == FETCH_SESSION_ID_NOT_FOUND


def test_a_new_full_fetch_replaces_the_session(session, key, topic):
    session.ask((topic, {0: 0}))
    old = session.id
    session.epoch = 0
    assert set(session.ask((topic, {1: 0}), epoch=0)) == {key(topic, 1)}
    assert session.id not in {0, old}
    session.id = old
    session.ask(epoch=1)
    assert session.error == FETCH_SESSION_ID_NOT_FOUND


def test_a_session_sees_that_its_topic_is_gone(session, key, topic, wire, eventually):
    session.ask((topic, {0: 0}))
    connection = wire()
    connection.ask("delete_topics", 5, topic_names=[topic.name], timeout=10_000)
    # Apache says the former at every version, because it resolved the id when the session began
    expected = {UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID if session.version >= 13 else 3}

    def noticed():
        got = session.ask()
        return key(topic, 0) in got and got[key(topic, 0)].error_code in expected

    eventually(noticed)


def test_without_a_session_nothing_is_remembered(wire, topic, fetch_fields):
    session = Session(wire(), fetch_fields, 12)
    for _ in range(2):
        assert len(session.ask((topic, {0: 0}), epoch=-1)) == 1
        assert session.id == 0


def test_no_session_is_given_when_all_slots_are_taken(start_broker, wire, new_topic, fetch_fields):
    # a session is evicted for another only after two minutes of idleness
    broker = start_broker(settings={"max.incremental.fetch.session.cache.slots": 8})
    connection = wire(broker.bootstrap)
    connection.ask(
        "create_topics",
        7,
        topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        timeout=10_000,
    )
    asked = {"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}
    ids = []
    for _ in range(40):
        answer = wire(broker.bootstrap).ask(
            "fetch", 12, session_id=0, session_epoch=0, topics=[asked]
        )
        assert answer.error_code == 0
        assert len(answer.responses) == 1
        ids.append(answer.session_id)
    assert 1 <= len({i for i in ids if i}) <= 8
    assert ids[-1] == 0
