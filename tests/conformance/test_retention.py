"""Retention seen by real clients: changes act at once, holds hold, and it is all explained.

Kafka does the same deletions up to five minutes later, rolls nothing without an append and holds
nothing for anybody, so these are ours alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla import Admin
from ottla.model.ids import TopicPartition as Place

pytestmark = pytest.mark.usefixtures("ours_only")

HOUR = 3_600_000
OLD = 2 * HOUR


@pytest.fixture
def admin(bootstrap: str) -> Admin:
    return Admin(bootstrap)


@pytest.fixture
def fill(bootstrap: str) -> Callable[..., None]:
    """`fill(topic, 3, age)`: so many records of that age, each in a batch of its own."""

    def send(topic: str, count: int, age: int = OLD) -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        for _ in range(count):
            stamp = time.time_ns() // 1_000_000 - age
            producer.produce(topic, b"v", partition=0, timestamp=stamp)
            assert producer.flush(120) == 0

    return send


@pytest.fixture
def earliest(admin: Admin) -> Callable[[str], int]:
    def look(topic: str) -> int:
        place = Place(topic, 0)
        return admin.list_offsets({place: "earliest"})[place].offset

    return look


@pytest.fixture
def explain(bootstrap: str) -> Callable[..., Any]:
    """`explain(topic)`: what the command says, as JSON."""

    def run(topic: str) -> Any:
        command = ["topic", "explain-retention", topic, "--json", "--bootstrap", bootstrap]
        done = subprocess.run(
            [sys.executable, "-m", "ottla", *command], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return run


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("change", [{"retention.ms": "3600000"}, {"retention.bytes": "0"}])
def test_a_change_of_retention_acts_at_once(
    admin: Admin, new_topic: Any, fill: Any, earliest: Any, eventually: Any, change: dict[str, str]
) -> None:
    topic = new_topic().name
    fill(topic, 3)
    assert earliest(topic) == 0
    admin.alter_configs(topic=topic, set=change)
    eventually(lambda: earliest(topic) == 3)


def test_a_quiet_segment_is_rolled(
    admin: Admin, new_topic: Any, fill: Any, explain: Any, eventually: Any
) -> None:
    topic = new_topic().name
    fill(topic, 3)
    [only] = explain(topic)["partitions"][0]["segments"]
    assert only["active"]
    assert only["rolls"] is not None
    admin.alter_configs(topic=topic, set={"segment.ms": "1"})

    def bases() -> list[int]:
        return [each["base_offset"] for each in explain(topic)["partitions"][0]["segments"]]

    eventually(lambda: bases() == [0, 3])


def test_a_group_holds_what_it_has_not_read_up_to_a_size(
    bootstrap: str,
    admin: Admin,
    new_topic: Any,
    group: str,
    fill: Any,
    earliest: Any,
    explain: Any,
    eventually: Any,
) -> None:
    topic = new_topic(
        internal_segment_bytes="100",
        retention_ms="-1",
        ottla_retention_hold_groups=group,
    ).name
    fill(topic, 6)
    commit(bootstrap, group, topic, 2)

    admin.alter_configs(topic=topic, set={"retention.ms": str(HOUR)})
    eventually(lambda: earliest(topic) == 2)
    [partition] = explain(topic)["partitions"]
    assert partition["holds"] == [{"group": group, "offset": 2}]
    assert {each["rule"] for each in partition["segments"]} == {"hold"}
    assert [each["unread_by"][0]["records"] for each in partition["segments"]] == [1] * 4
    assert f"waits for {group} (at 2)" in partition["summary"]

    commit(bootstrap, group, topic, 4)
    admin.alter_configs(topic=topic, set={"retention.ms": str(HOUR - 1)})
    eventually(lambda: earliest(topic) == 4)

    two = sum(each["size"] for each in explain(topic)["partitions"][0]["segments"])
    admin.alter_configs(topic=topic, set={"ottla.retention.hold.bytes": str(two - 1)})
    eventually(lambda: earliest(topic) == 5)

    admin.alter_configs(topic=topic, delete=["ottla.retention.hold.groups"])
    eventually(lambda: earliest(topic) == 6)


def test_settings_of_ours_are_listed_once_they_are_given(admin: Admin, new_topic: Any) -> None:
    def listed(topic: str) -> dict[str, str | None]:
        found = admin.describe_configs(topic=topic)
        return {each.name: each.value for each in found if each.name.startswith("ottla.")}

    assert listed(new_topic().name) == {}
    held = new_topic(ottla_retention_hold_groups="a,b").name
    assert listed(held) == {"ottla.retention.hold.groups": "a,b"}


def test_what_is_explained_of_a_topic(
    bootstrap: str, new_topic: Any, group: str, fill: Any, explain: Any
) -> None:
    topic = new_topic(2, internal_segment_bytes="100").name
    fill(topic, 3)
    commit(bootstrap, group, topic, 1)
    said = explain(topic)
    assert said["settings"]["retention.ms"] == 604_800_000
    first, second = said["partitions"]
    assert (first["start"], first["high_watermark"], first["end"]) == (0, 3, 3)
    for segment in first["segments"]:
        assert segment["rule"] == "time"
        assert segment["due"] == segment["newest_timestamp"] + 604_800_001
        assert not segment["counted_from_file"]
    read, next_, last = first["segments"]
    assert read["unread_by"] == []
    for segment in (next_, last):
        assert segment["unread_by"] == [{"group": group, "offset": 1, "records": 1}]
    assert [each["rule"] for each in second["segments"]] == ["empty"]


def test_a_compacted_topic_says_so(new_topic: Any, bootstrap: str, explain: Any) -> None:
    topic = new_topic(cleanup_policy="compact").name
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"v", key=b"k", partition=0)
    assert producer.flush(120) == 0
    [partition] = explain(topic)["partitions"]
    assert [each["rule"] for each in partition["segments"]] == ["compact"]
    assert "the last value of every key stays" in partition["summary"]


def test_an_api_of_ours_is_not_advertised(wire: Any) -> None:
    said = wire().ask("api_versions", 4, client_software_name="a", client_software_version="1")
    assert said.error_code == 0
    assert max(each.api_key for each in said.api_keys) < 1000
