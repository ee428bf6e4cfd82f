"""What can be done for partitions without a leader, by what live replicas have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.client import accepted_loss
from ottla.client.accepted_loss import offers
from ottla.client.cluster_health import BrokerHealth, ClusterHealth, PartitionHealth
from ottla.client.direct import DirectAdmin
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

LED = PartitionHealth("t", 2, 1, (1, 2), (1,), (), ())
STUCK = PartitionHealth("t", 0, None, (1, 2, 3), (), (1,), ())
GONE = PartitionHealth("u", 1, None, (1,), (), (1,), ())


class FakeNode:
    """One broker: the epoch and the end of each partition, or an error."""

    def __init__(self, ends: dict[tuple[str, int], tuple[int, int]] | None) -> None:
        self.ends = ends

    def ask(self, request: Any) -> Any:
        if self.ends is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no answer")
        assert request.replica_id == -2
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=topic.name,
                    partitions=[self._answer(topic.name, each) for each in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _answer(self, topic: str, part: Any) -> Any:
        assert self.ends is not None
        epoch, end = self.ends.get((topic, part.partition_index), (-1, -1))
        return SimpleNamespace(
            partition_index=part.partition_index,
            leader_epoch=epoch,
            offset=end,
            error_code=0 if end >= 0 else int(ErrorCode.KAFKA_STORAGE_ERROR),
        )


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[int, FakeNode]:
    brokers = tuple(
        BrokerHealth(each, f"127.0.0.1:{each}", None, False, 0, 0, 0) for each in (2, 3)
    )
    health = ClusterHealth("abc", 2, brokers, 3, (STUCK, GONE, LED))
    monkeypatch.setattr(accepted_loss, "look", lambda _: health)
    return {2: FakeNode({("t", 0): (4, 90)}), 3: FakeNode({("t", 0): (5, 10)})}


def found(nodes: dict[int, FakeNode], *topics: str) -> list[accepted_loss.Offer]:
    admin = SimpleNamespace(router=SimpleNamespace(node=nodes.__getitem__))
    return offers(cast(DirectAdmin, admin), topics or None)


def test_who_has_the_highest_epoch_would_lead(nodes: dict[int, FakeNode]) -> None:
    stuck, gone = found(nodes)
    assert stuck.partition == TopicPartition("t", 0)
    assert (stuck.leader, stuck.last_epoch, stuck.end_offset) == (3, 5, 10)
    assert (stuck.waits_for, stuck.given_up) == ((1,), (1,))
    assert (gone.leader, gone.given_up) == (None, (1,))
    assert [each.partition.topic for each in found(nodes, "u")] == ["u"]


def test_who_does_not_answer_cannot_lead(nodes: dict[int, FakeNode]) -> None:
    nodes[3] = FakeNode(None)
    assert found(nodes)[0].leader == 2
    nodes[2] = FakeNode({})  # its log cannot be served
    assert found(nodes)[0].leader is None
    assert found(nodes)[0].given_up == (1, 2, 3)
