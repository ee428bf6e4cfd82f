"""Shared by the test_wire files: topics that are ready, and short forms of produce and fetch."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: uuid.UUID
    partitions: int


@pytest.fixture
def answering(wire: Any, eventually: Any) -> Callable[..., None]:
    """`answering(name, 3)`: wait until every partition of a new topic answers.

    Apache Kafka's metadata names a leader a moment before that leader serves the partition,
    and librdkafka remembers for a while that a topic was not there.
    """
    connection = None

    def wait(name: str, partitions: int) -> None:
        nonlocal connection
        connection = connection or wire()
        asked = [{"partition_index": p, "timestamp": -1} for p in range(partitions)]

        def ready() -> bool:
            (found,) = connection.ask(
                "list_offsets", 7, replica_id=-1, topics=[{"name": name, "partitions": asked}]
            ).topics
            return all(p.error_code == 0 for p in found.partitions)

        eventually(ready)

    return wait


@pytest.fixture
def new_topic(wire: Any, unique: Any, answering: Any) -> Callable[..., Topic]:
    """`new_topic(2, retention_ms="1")`: a topic whose partitions all answer."""
    connection = None

    def create(partitions: int = 1, **config: str) -> Topic:
        nonlocal connection
        connection = connection or wire()
        settings = [{"name": k.replace("_", "."), "value": v} for k, v in config.items()]
        name = unique()
        wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        (made,) = connection.ask(
            "create_topics", 7, topics=[wanted | {"configs": settings}], timeout=10_000
        ).topics
        assert made.error_code == 0, made.error_message
        answering(name, partitions)
        return Topic(name, made.topic_id, partitions)

    return create


@pytest.fixture
def topic(new_topic: Callable[..., Topic]) -> Topic:
    """A ready topic with two partitions."""
    return new_topic(2)


@pytest.fixture
def produce() -> Callable[..., Any]:
    """`produce(connection, topic, records)`: the partition's part of the response."""

    def call(
        connection: Any,
        topic: Topic,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        **fields: Any,
    ) -> Any:
        data = [{"index": partition, "records": records}]
        answer = connection.ask(
            "produce",
            version,
            acks=acks,
            timeout=10_000,
            topic_data=[{"name": topic.name, "topic_id": topic.id, "partition_data": data}],
            **fields,
        )
        return answer.responses[0].partition_responses[0]

    return call


@pytest.fixture
def fetch_fields() -> Callable[..., dict[str, Any]]:
    """The fields of a Fetch request for some partitions of some topics."""

    def fields(
        *wanted: tuple[Topic, dict[int, int]],
        max_wait: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        current_leader_epoch: int = -1,
        **more: Any,
    ) -> dict[str, Any]:
        return {
            "max_wait": max_wait,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": topic.id,
                    "partitions": [
                        {
                            "partition": partition,
                            "fetch_offset": offset,
                            "current_leader_epoch": current_leader_epoch,
                            "partition_max_bytes": partition_max_bytes,
                        }
                        for partition, offset in offsets.items()
                    ],
                }
                for topic, offsets in wanted
            ],
            **more,
        }

    return fields


@pytest.fixture
def fetch(fetch_fields: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """`fetch(connection, topic, offset)`: the answer about one partition."""

    def call(
        connection: Any,
        topic: Topic,
        offset: int = 0,
        *,
        partition: int = 0,
        version: int = 12,
        **more: Any,
    ) -> Any:
        fields = fetch_fields((topic, {partition: offset}), **more)
        answer = connection.ask("fetch", version, **fields)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    return call
