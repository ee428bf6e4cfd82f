"""Groups after a restart: which are asked. And how many partitions a broker is given."""

from __future__ import annotations

import resource

from bench.growth import large_partitions, topics_of
from bench.load import offsets


def test_group_is_in_the_partition_that_kafka_keeps_it_in() -> None:
    # Java: "restarted-7".hashCode() and so on; the sign bit does not count.
    assert offsets.partition_of("a", 50) == 97 % 50
    assert offsets.partition_of("polygenelubricants", 50) == 0  # its hash is the least integer


def test_one_group_of_each_partition_is_asked() -> None:
    chosen = offsets.one_of_each(10_000, 50)
    assert {offsets.partition_of(group, 50) for group in chosen} == set(range(50))
    assert len(chosen) == 50


def test_fewer_groups_than_partitions_leave_none_out() -> None:
    assert len(set(offsets.one_of_each(3, 50))) <= 3


def test_partitions_are_shared_out_to_topics_of_a_thousand() -> None:
    assert sum(topics_of(20_000).values()) == 20_000
    assert list(topics_of(2_500).values()) == [1_000, 1_000, 500]
    assert list(topics_of(500).values()) == [500]


def test_partitions_are_no_more_than_the_files_that_may_be_open() -> None:
    assert large_partitions(20_000, 1_048_576) == 20_000
    assert large_partitions(20_000, 20_000) == 19_300
    assert large_partitions(20_000, resource.RLIM_INFINITY) == 20_000
