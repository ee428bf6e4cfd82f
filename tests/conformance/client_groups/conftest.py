"""Shared by the tests of client libraries in groups: a quick broker, a topic, numbered records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

PARTITIONS = 4
TIMEOUT = 120


@pytest.fixture(scope="module")
def bootstrap(bootstrap_quick_groups: str) -> str:
    return bootstrap_quick_groups


@pytest.fixture
def topic(new_topic: Any) -> str:
    """The name of a topic with four partitions."""
    return str(new_topic(PARTITIONS).name)


@pytest.fixture
def produce(bootstrap: str) -> Callable[..., list[str]]:
    """`produce(topic, 8)`: that many records, numbered and dealt to the partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap})
    sent = 0

    def send(topic: str, count: int, partitions: int = PARTITIONS) -> list[str]:
        nonlocal sent
        values = [str(each) for each in range(sent, sent + count)]
        for number, value in enumerate(values):
            producer.produce(topic, value.encode(), partition=number % partitions)
        sent += count
        assert producer.flush(TIMEOUT) == 0
        return values

    return send
