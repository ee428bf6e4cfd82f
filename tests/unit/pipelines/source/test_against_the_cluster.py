"""Options and checkpoints held against what there is: partitions, topics, records."""

from __future__ import annotations

import pytest

from ottla.model.ids import TopicPartition
from ottla.pipelines.errors import OptionError
from ottla.pipelines.source.loss import LossPolicy
from ottla.pipelines.source.offsets import Mark, Progress
from ottla.pipelines.source.positions import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    check_partitions,
    nothing_so_late,
)
from ottla.pipelines.source.strategy import (
    Assign,
    Pattern,
    Strategy,
    Subscribe,
    check_checkpoint,
    left_out,
)

A, B, C = (TopicPartition("orders", number) for number in range(3))


def progress(*topics: str) -> Progress:
    return Progress.initial({TopicPartition(name, 0): Mark(bytes(16), 5) for name in topics})


def test_offsets_must_name_every_partition() -> None:
    with pytest.raises(OptionError) as caught:
        check_partitions(AtOffsets("startingOffsets", {A: 1, C: 2}), [A, B, C])
    assert str(caught.value) == (
        "startingOffsets says nothing about partition 1 of topic orders: name every partition "
        "(-2 is the earliest offset, -1 the latest)."
    )


def test_timestamps_must_name_every_partition() -> None:
    with pytest.raises(OptionError, match=r"endingOffsetsByTimestamp .* name every partition[.]$"):
        check_partitions(AtTimestamps("endingOffsetsByTimestamp", {A: 1}), [A, B])


def test_offsets_must_not_name_other_partitions() -> None:
    position = AtOffsets("startingOffsets", {A: 1, B: 1, C: 2})
    with pytest.raises(OptionError, match=r"partition 2 .* has the partitions 0 to 1"):
        check_partitions(position, [A, B])
    with pytest.raises(OptionError, match=r"partition 1 .* has only partition 0"):
        check_partitions(position, [A])
    with pytest.raises(OptionError, match=r"partition 0 of topic orders, and there is no such"):
        check_partitions(position, [])


@pytest.mark.parametrize("position", [Edge.EARLIEST, Edge.LATEST, AtTimestamp("x", 5)])
def test_what_names_no_partition_fits_all(position: Edge | AtTimestamp) -> None:
    check_partitions(position, [A, B])


def test_all_partitions_named_is_right() -> None:
    check_partitions(AtOffsets("startingOffsets", {A: 1, B: -2}), [B, A])


def test_assign_must_name_partitions_that_exist() -> None:
    Assign((A, B)).check([A, B, C])
    with pytest.raises(OptionError) as caught:
        Assign((A, TopicPartition("orders", 9))).check([A, B, C])
    assert caught.value.option == "assign"
    assert str(caught.value) == (
        "assign names partition 9 of topic orders, which has the partitions 0 to 2: name one of "
        "these."
    )


def test_a_time_after_the_last_record_is_refused_with_the_way_out() -> None:
    error = nothing_so_late("startingTimestamp", B, 99)
    assert "startingTimestamp says 99 and partition 1 of topic orders" in str(error)
    assert "startingOffsetsByTimestampStrategy" in str(error)


@pytest.mark.parametrize(
    ("strategy", "named"),
    [
        (Subscribe(("clicks",)), "subscribe says clicks"),
        (Pattern("cl.*"), "subscribePattern says cl.*"),
        (Assign((TopicPartition("clicks", 0),)), "assign says clicks-0"),
    ],
)
def test_a_checkpoint_of_another_topic_is_refused(strategy: Strategy, named: str) -> None:
    for policy in ("true", "false"):
        with pytest.raises(OptionError) as caught:
            check_checkpoint(progress("orders"), strategy, LossPolicy.parse(policy))
        assert caught.value.option == "checkpointLocation"
        assert "The checkpoint is of topic orders" in str(caught.value)
        assert named in str(caught.value)
        assert "which leaves out orders-0 from offset 5 on: use another" in str(caught.value)
        assert "failOnDataLoss" not in str(caught.value), "nothing in common is always a mistake"


def test_a_query_may_read_more_topics_than_before() -> None:
    check_checkpoint(progress("orders"), Subscribe(("clicks", "orders")), LossPolicy())


def test_a_topic_may_be_left_out_where_losing_one_is_allowed() -> None:
    both = progress("clicks", "orders")
    with pytest.raises(OptionError, match="which leaves out clicks-0 from offset 5 on") as caught:
        check_checkpoint(both, Subscribe(("orders",)), LossPolicy())
    assert "set failOnDataLoss to deleted=skip to leave them unread" in str(caught.value)
    check_checkpoint(both, Subscribe(("orders",)), LossPolicy.parse("deleted=skip"))


def test_a_partition_may_be_left_out_where_losing_one_is_allowed() -> None:
    marks = {TopicPartition("orders", number): Mark(bytes(16), number) for number in range(20)}
    all_of_it = Progress.initial(marks)
    first = Assign((TopicPartition("orders", 0),))
    with pytest.raises(OptionError) as caught:
        check_checkpoint(all_of_it, first, LossPolicy())
    text = str(caught.value)
    assert "assign says orders-0, which leaves out orders-1 from offset 1 on, orders-2 from" in text
    assert "orders-10 from offset 10 on, and 9 more: use another checkpointLocation" in text
    check_checkpoint(all_of_it, first, LossPolicy.parse("deleted=rewind"))
    assert left_out(all_of_it, first).keys() == marks.keys() - {TopicPartition("orders", 0)}


def test_an_empty_checkpoint_fits_everything() -> None:
    check_checkpoint(progress(), Subscribe(("orders",)), LossPolicy())
