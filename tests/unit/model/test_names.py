from __future__ import annotations

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.model.names import (
    check_topic_name,
    collision_key,
    may_collide,
    topic_name_problem,
)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "__consumer_offsets", "x" * 249, "-"])
def test_legal_names_pass(name: str) -> None:
    assert topic_name_problem(name) is None
    check_topic_name(name)


# The messages are those that Apache Kafka 4.2 answered to these names.
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        (
            "x" * 250,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed "
            "length 249",
        ),
        (
            "\u00e4",
            "Topic name is invalid: '\u00e4' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'",
        ),
        (
            "a b",
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'",
        ),
        (
            "\U0001f600" * 130,
            f"Topic name is invalid: the length of '{chr(0x1F600) * 130}' is longer than the max "
            "allowed length 249",
        ),
    ],
)
def test_illegal_names_are_refused_in_kafkas_words(name: str, message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        check_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert caught.value.message == message


@pytest.mark.parametrize("name", ["a\n", "a/b", "a\x00", "\u0661", "a:b", "a\ud800"])
def test_no_unusual_character_slips_through(name: str) -> None:
    assert topic_name_problem(name) is not None


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a-b") != collision_key("a_b")
    assert may_collide("a.b")
    assert may_collide("a_b")
    assert not may_collide("a-b")
