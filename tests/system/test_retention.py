"""Retention in brokers of a test's own: changed defaults, restarts, files as somebody left them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla import Admin
from ottla.client.retention import PartitionRetention, explain
from ottla.client.router import Router
from ottla.model.ids import TopicPartition as Place
from ottla.testing import Broker

HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics=["t"]) as broker:
        yield broker


def produce(broker: Broker, count: int, *, ahead: int = 0) -> None:
    """Records with a timestamp so far ahead of now."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    for _ in range(count):
        stamp = time.time_ns() // 1_000_000 + ahead
        producer.produce("t", b"v", partition=0, timestamp=stamp)
        assert producer.flush(120) == 0


def commit(broker: Broker, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "log_level": 2})
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def start(broker: Broker) -> int:
    place = Place("t", 0)
    return Admin(broker.bootstrap).list_offsets({place: "earliest"})[place].offset


def explained(broker: Broker) -> PartitionRetention:
    with Router(broker.bootstrap) as router:
        [partition] = explain(router, "t").partitions
    return partition


def test_a_change_of_the_brokers_default_acts_at_once(
    broker: Broker, eventually: Callable[..., Any]
) -> None:
    produce(broker, 3, ahead=-2 * HOUR)
    broker.configure({"log.retention.ms": HOUR})
    eventually(lambda: start(broker) == 3)


def test_the_future_that_a_topic_once_allowed_pins_nothing(broker: Broker) -> None:
    broker.configure({"message.timestamp.after.max.ms": 2**63 - 1}, "t")
    produce(broker, 3, ahead=100 * 365 * DAY)
    [segment] = explained(broker).segments
    assert not segment.by_file
    broker.faults.jump_clock(8 * DAY / 1000)
    assert broker.apply_retention() == 0  # it says that it allows this

    broker.configure({"message.timestamp.after.max.ms": None}, "t")
    broker.apply_retention()
    assert start(broker) == 3


@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_does_not_make_files_younger(broker: Broker, crash: bool) -> None:
    broker.configure({"message.timestamp.after.max.ms": 2**63 - 1, "retention.ms": -1}, "t")
    produce(broker, 3, ahead=100 * 365 * DAY)
    broker.configure({"message.timestamp.after.max.ms": None}, "t")
    [log] = Path(broker.data_dirs[0], "t-0").glob("*.log")
    long_ago = time.time() - 30 * 86_400
    if crash:
        broker.crash()
    else:
        broker.stop()
    os.utime(log, (long_ago, long_ago))
    broker.start()
    [segment] = explained(broker).segments
    assert segment.by_file
    assert segment.since_ms == int(long_ago * 1000)
    broker.configure({"retention.ms": 29 * DAY}, "t")
    broker.apply_retention()
    assert start(broker) == 3


@pytest.mark.parametrize("crash", [False, True])
def test_a_hold_outlives_the_broker(broker: Broker, crash: bool) -> None:
    broker.configure({"ottla.retention.hold.groups": "slow"}, "t")
    produce(broker, 3, ahead=-2 * HOUR)
    commit(broker, "slow", 1)
    if crash:
        broker.crash()
        broker.start()
    else:
        broker.restart()
    broker.configure({"retention.ms": HOUR}, "t")
    broker.apply_retention()  # while the groups may still be loading
    assert start(broker) == 0
    commit(broker, "slow", 3)
    broker.apply_retention()
    assert start(broker) == 3


def test_a_quiet_segment_rolls_with_the_time(broker: Broker) -> None:
    broker.configure({"retention.ms": -1}, "t")
    produce(broker, 3)
    broker.apply_retention()
    assert len(explained(broker).segments) == 1
    broker.faults.jump_clock(8 * DAY / 1000)
    broker.apply_retention()
    assert [each.base_offset for each in explained(broker).segments] == [0, 3]
    broker.apply_retention()
    assert len(explained(broker).segments) == 2
    produce(broker, 1)
    assert len(broker.consume("t")) == 4


def test_delete_records_does_not_wait(broker: Broker) -> None:
    broker.configure({"ottla.retention.hold.groups": "slow"}, "t")
    produce(broker, 3)
    Admin(broker.bootstrap).delete_records({Place("t", 0): 2})
    assert start(broker) == 2
