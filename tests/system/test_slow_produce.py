"""Batches that are prepared elsewhere: what fails there fails for its own partition only."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ottla.client.wire import Wire
from ottla.errors import ErrorCode
from ottla.handlers import produce as handler
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.runtime.workers import ChildDied
from ottla.testing import Broker


def test_a_child_that_dies_over_one_batch_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def killed(*_: Any) -> bytes:
        raise ChildDied("prepare: the child ended with signal SIGKILL")

    monkeypatch.setattr(handler, "_prepared", killed)
    now = int(time.time() * 1000)
    large = build_batch([(now, b"k", bytes(500_000), ())])
    with Broker() as broker:
        broker.create_topic("plain")
        broker.create_topic("packed", config={"compression.type": "zstd"})
        host, _, port = broker.bootstrap.partition(":")
        wire = Wire(host, int(port), timeout=30, client_id="test")
        wire.versions[0] = (3, 12)  # with names, not ids
        answer = wire.ask(
            ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=30_000,
                topic_data=[
                    TopicProduceData(
                        name=name,
                        partition_data=[PartitionProduceData(index=0, records=memoryview(large))],
                    )
                    for name in ("plain", "packed")
                ],
            )
        )
        wire.close()
    found = {topic.name: topic.partition_responses[0] for topic in answer.responses}
    assert (found["plain"].error_code, found["plain"].base_offset) == (0, 0)
    assert found["packed"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
