"""Comparing what two brokers show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench.view import SeenPartition, SeenRecord, SeenTopic, View, differences

RECORD = SeenRecord(
    offset=5, timestamp_type=1, timestamp=1000, leader_epoch=0, key=b"k", value=b"v", headers=()
)
PARTITION = SeenPartition(0, 6, 6, (RECORD,), (RECORD,))
TOPIC = SeenTopic("id-1", (("retention.ms", "1"),), (PARTITION,))
WHOLE = View("cluster", (1,), (), {"orders": TOPIC})


def with_partition(partition: SeenPartition) -> View:
    return replace(WHOLE, topics={"orders": replace(TOPIC, partitions=(partition,))})


def test_equal_views_have_no_differences() -> None:
    assert differences(WHOLE, replace(WHOLE)) == []


@pytest.mark.parametrize(
    "changed",
    [
        replace(WHOLE, cluster_id="other"),
        replace(WHOLE, nodes=(2,)),
        replace(WHOLE, broker_configs=(("log.retention.ms", "9"),)),
        replace(WHOLE, topics={}),
        replace(WHOLE, topics={"orders": TOPIC, "more": TOPIC}),
        replace(WHOLE, topics={"orders": replace(TOPIC, topic_id="id-2")}),
        replace(WHOLE, topics={"orders": replace(TOPIC, configs=())}),
        replace(WHOLE, topics={"orders": replace(TOPIC, partitions=())}),
        with_partition(replace(PARTITION, start=1)),
        with_partition(replace(PARTITION, end=7)),
        with_partition(replace(PARTITION, stable_end=5)),
        with_partition(replace(PARTITION, uncommitted=())),
        with_partition(replace(PARTITION, committed=())),
    ],
)
def test_each_thing_a_client_can_see_is_compared(changed: View) -> None:
    assert len(differences(WHOLE, changed)) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("offset", 6),
        ("timestamp_type", 2),
        ("timestamp", 1001),
        ("leader_epoch", 1),
        ("key", None),
        ("value", b""),
        ("headers", (("h", None),)),
    ],
)
def test_each_part_of_a_record_is_compared_and_named(field: str, value: Any) -> None:
    other = replace(PARTITION, committed=(replace(RECORD, **{field: value}),))
    (difference,) = differences(WHOLE, with_partition(other))
    assert difference.startswith("orders-0 (committed): offset 5: " + field)
