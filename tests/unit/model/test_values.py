from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.model.broker import Endpoint
from ottla.model.ids import TopicId, parse_topic_id, topic_id_text
from ottla.model.topic import NO_LEADER, PartitionState, Topic

STATE = PartitionState(1, 5, 9, (1, 2, 3), (1,), elr=(2,), last_known_elr=(3,))


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("kafka.example.org", "PLAINTEXT://kafka.example.org:9092"),
        ("::1", "PLAINTEXT://[::1]:9092"),
    ],
)
def test_an_endpoint_is_shown_as_it_is_typed(host: str, shown: str) -> None:
    assert str(Endpoint("PLAINTEXT", host, 9092)) == shown


def test_a_topic_id_has_sixteen_bytes() -> None:
    topic_id = TopicId(bytes(range(16)))
    assert parse_topic_id(topic_id_text(topic_id)) == topic_id
    with pytest.raises(ValueError, match="has 3"):
        parse_topic_id("AAAA")


def test_eligible_replicas_are_forgotten_where_somebody_leads() -> None:
    forgotten = STATE.forget_eligible()
    assert (forgotten.elr, forgotten.last_known_elr) == ((), ())
    assert forgotten.partition_epoch == STATE.partition_epoch + 1
    assert forgotten.forget_eligible() is forgotten
    without_leader = replace(STATE, leader=NO_LEADER, isr=())
    assert without_leader.forget_eligible() is without_leader


def test_kafkas_own_topics_are_internal() -> None:
    topic_id = TopicId(bytes(16))
    assert Topic("__consumer_offsets", topic_id, ()).internal
    assert not Topic("orders", topic_id, ()).internal
