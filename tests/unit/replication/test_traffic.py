"""Where topics are counted."""

from __future__ import annotations

from ottla.replication.traffic import OTHERS, Traffic


def test_a_topic_is_counted_in_one_place() -> None:
    traffic = Traffic()
    assert traffic.of("a") is traffic.of("a")
    assert traffic.of("a") is not traffic.of("b")
    assert [name for name, _ in traffic] == ["a", "b"]


def test_topics_beyond_the_bound_are_counted_together() -> None:
    traffic = Traffic(most=2)
    for name in ("a", "b", "c", "d"):
        traffic.of(name).messages_in += 1
    assert {name: counted.messages_in for name, counted in traffic} == {"a": 1, "b": 1, OTHERS: 2}
    assert [traffic.label(name) for name in ("a", "c")] == ["a", OTHERS]


def test_a_deleted_topic_makes_room() -> None:
    traffic = Traffic(most=1)
    traffic.of("a").bytes_in += 1
    traffic.forget("a")
    assert traffic.of("b") is not traffic.of("c")
    assert [name for name, _ in traffic] == ["b", OTHERS]
