"""How a batch is cut and limited, by example; the laws are in tests/property/pipelines."""

from __future__ import annotations

import pytest

from ottla.model.ids import TopicPartition
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.planner import bounds, cut, due, limit, split
from ottla.pipelines.source.ranges import Range

A, B, C = (TopicPartition("orders", number) for number in range(3))
ID = bytes(range(16))


def whole(end: int, partition: int = 0, start: int = 0) -> Range:
    return Range("orders", ID, partition, start, end, 3)


def sizes(ranges: list[Range]) -> list[int]:
    return [piece.size for piece in ranges]


def test_without_options_a_partition_is_one_task() -> None:
    assert split([whole(10), whole(7, 1)]) == [whole(10), whole(7, 1)]


def test_empty_ranges_are_no_tasks() -> None:
    assert split([whole(0), whole(5, 1)], min_partitions=1) == [whole(5, 1)]


def test_the_most_records_of_a_task_cut_evenly() -> None:
    assert sizes(split([whole(10)], max_records=4)) == [3, 3, 4]


def test_enough_partitions_are_not_cut() -> None:
    assert len(split([whole(10), whole(10, 1)], min_partitions=2)) == 2


def test_tasks_are_shared_out_by_size() -> None:
    pieces = split([whole(300), whole(100, 1)], min_partitions=4)
    assert [piece.partition for piece in pieces] == [0, 0, 0, 1]
    assert sizes(pieces) == [100, 100, 100, 100]


def test_small_partitions_do_not_take_tasks_from_large_ones() -> None:
    tiny = [whole(1, number) for number in range(1, 5)]
    pieces = split([whole(1000), *tiny], min_partitions=8)
    assert len(pieces) == 8
    assert sizes(pieces) == [250, 250, 250, 250, 1, 1, 1, 1]


def test_both_options_cut_by_records_and_then_by_tasks() -> None:
    assert len(split([whole(100)], min_partitions=2, max_records=10)) == 10
    assert len(split([whole(100)], min_partitions=20, max_records=10)) == 20


def test_no_task_is_empty_when_more_are_wanted_than_there_are_offsets() -> None:
    assert sizes(split([whole(3)], min_partitions=100)) == [1, 1, 1]


def test_a_batch_of_absurdly_many_tasks_is_refused() -> None:
    with pytest.raises(OptionError, match=r"maxRecordsPerPartition=1 .* give a larger number"):
        split([whole(10_000_000)], max_records=1)
    with pytest.raises(OptionError, match=r"minPartitions=1000000 .* give a smaller number"):
        split([whole(10_000_000)], min_partitions=1_000_000)


def test_bounds_are_the_inner_ones_of_what_is_cut() -> None:
    assert bounds({A: (100, 400), B: (0, 100), C: (5, 5)}, min_partitions=4) == {A: (200, 300)}


def test_bounds_outside_a_range_do_not_cut_it() -> None:
    assert cut(whole(10, start=5), (0, 5, 7, 7, 10, 12)) == [whole(7, start=5), whole(10, start=7)]


def test_offsets_of_64_bits_are_exact() -> None:
    top = 2**63 - 1
    pieces = split([whole(top)], min_partitions=3)
    assert sum(sizes(pieces)) == top
    assert max(sizes(pieces)) - min(sizes(pieces)) <= 1
    assert limit({A: 0, B: 0}, {A: top, B: top}, top) == {A: top // 2 + 1, B: top // 2}


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    assert limit({A: 0, B: 5}, {A: 10, B: 6}, 11) == {A: 10, B: 6}


def test_a_limit_is_shared_out_in_proportion() -> None:
    assert limit({A: 0, B: 100}, {A: 900, B: 200}, 100) == {A: 90, B: 110}


def test_a_partition_far_ahead_of_the_rest_leaves_one_to_each() -> None:
    assert limit({A: 0, B: 0, C: 0}, {A: 10_000, B: 1, C: 2}, 10) == {A: 8, B: 1, C: 1}


def test_a_partition_that_is_not_behind_stays_where_it_is() -> None:
    assert limit({A: 0, B: 7}, {A: 100, B: 7}, 10) == {A: 10, B: 7}


def test_a_new_partition_begins_at_0() -> None:
    assert limit({}, {A: 100}, 10) == {A: 10}


def test_fewer_records_than_partitions_go_by_turns() -> None:
    latest = dict.fromkeys((A, B, C), 100)
    begins = dict.fromkeys((A, B, C), 0)
    moved = []
    for _ in range(6):
        ends = limit(begins, latest, 1)
        moved += [tp for tp in latest if ends[tp] > begins[tp]]
        begins = ends
    assert moved == [A, B, C, A, B, C]


@pytest.mark.parametrize(
    ("available", "now", "last", "expected"),
    [
        (0, 1000.0, None, False),
        (1, 0.0, None, True),
        (1, 10.0, 5.0, False),
        (100, 10.0, 5.0, True),
        (1, 35.0, 5.0, True),
        (0, 35.0, 5.0, False),
    ],
)
def test_a_batch_is_due_with_enough_records_or_after_the_delay(
    available: int, now: float, last: float | None, expected: bool
) -> None:
    found = due(available, now=now, last_trigger=last, min_offsets=100, max_delay=30.0)
    assert found is expected


def test_without_a_minimum_any_record_makes_a_batch_due() -> None:
    assert due(1, now=0.0, last_trigger=0.0, min_offsets=None, max_delay=900.0)


def test_a_range_says_what_it_is() -> None:
    found = whole(10, start=4)
    assert found.size == 6
    assert found.topic_partition == A
    assert str(found) == "orders-0 [4, 10)"
