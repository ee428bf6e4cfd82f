from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from ottla.model.ids import TopicPartition
from ottla.pipelines.source.filters import Wanted, narrowed

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Wanted()),
        ([EqualTo(("topic",), "a"), In(("topic",), ("a", "b"))], Wanted(topics=frozenset("a"))),
        ([In(("partition",), (1, 2))], Wanted(partitions=frozenset({1, 2}))),
        ([EqualTo(("partition",), 1), EqualTo(("partition",), 2)], Wanted(partitions=frozenset())),
        ([GreaterThan(("offset",), 4), LessThan(("offset",), 9)], Wanted(first=5, end=9)),
        ([LessThanOrEqual(("offset",), 9)], Wanted(end=10)),
        ([GreaterThanOrEqual(("offset",), 4)], Wanted(first=4)),
        ([EqualNullSafe(("offset",), 4)], Wanted(first=4, end=5)),
        ([In(("offset",), (9, 4))], Wanted(first=4, end=10)),
        ([GreaterThanOrEqual(("timestamp",), NOON)], Wanted(since=NOON_MS)),
        ([GreaterThan(("timestamp",), NOON)], Wanted(since=NOON_MS)),
        ([EqualTo(("timestamp",), NOON), IsNotNull(("timestamp",))], Wanted(since=NOON_MS)),
    ],
)  # fmt: skip
def test_what_follows_with_certainty_is_narrowed(filters: list[Filter], expected: Wanted) -> None:
    assert narrowed(filters) == expected


@pytest.mark.parametrize(
    "by",
    [
        LessThan(("timestamp",), NOON),
        Not(EqualTo(("partition",), 1)),
        EqualTo(("value",), b"x"),
        EqualTo(("topic",), None),
        EqualTo(("offset",), 1.5),
        GreaterThan(("timestamp",), NOON.replace(tzinfo=None)),
        In(("offset",), ()),
    ],
)
def test_what_does_not_narrow_leaves_everything(by: Filter) -> None:
    assert narrowed([by]) == Wanted()


def test_a_record_of_the_same_millisecond_is_never_left_out() -> None:
    just_after = NOON + timedelta(microseconds=1)
    assert narrowed([GreaterThanOrEqual(("timestamp",), just_after)]).since == NOON_MS + 1
    before_1970 = datetime(1960, 1, 1, tzinfo=UTC)
    assert narrowed([GreaterThanOrEqual(("timestamp",), before_1970)]).since == 0


def test_partitions_are_covered_by_topic_and_number() -> None:
    wanted = Wanted(topics=frozenset({"a"}), partitions=frozenset({1}))
    assert wanted.covers(TopicPartition("a", 1))
    assert not wanted.covers(TopicPartition("a", 0))
    assert not wanted.covers(TopicPartition("b", 1))
    assert Wanted().covers(TopicPartition("b", 7))
