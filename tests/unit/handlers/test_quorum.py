"""What one broker cannot show: other brokers, and a cluster without a controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.dispatch.context import Request
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.quorum import describe_quorum
from ottla.model.broker import Broker, Endpoint
from ottla.model.image import ClusterImage
from ottla.protocol.messages.quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
    QuorumReplica,
)
from ottla.testing.clock import ManualClock


def broker(number: int) -> Broker:
    return Broker(number, 1, {"L": Endpoint("L", f"host-{number}", 9092)})


def ask(image: ClusterImage) -> Any:
    partitions = [DescribeQuorumPartition(partition_index=0)]
    topic = DescribeQuorumTopic(topic_name="__cluster_metadata", partitions=partitions)
    request: Any = Request(2, None, None, DescribeQuorumRequest(topics=[topic]))
    services: Any = SimpleNamespace(image=image, clock=ManualClock())
    return describe_quorum(request, services)


def test_brokers_that_are_not_the_controller_observe() -> None:
    brokers = {each: broker(each) for each in (3, 2, 1)}
    answer = ask(ClusterImage(revision=77, controller_id=2, controller_epoch=5, brokers=brokers))
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (2, 5, 77)
    assert [each.replica_id for each in partition.current_voters] == [2]
    assert partition.observers == [
        QuorumReplica(replica_id=each, log_end_offset=-1) for each in (1, 3)
    ]
    assert [(each.node_id, each.listeners[0].host) for each in answer.nodes] == [(2, "host-2")]


@pytest.mark.parametrize("controller", [-1, 9])
def test_without_a_controller_nobody_leads(controller: int) -> None:
    with pytest.raises(KafkaError) as caught:
        ask(ClusterImage(controller_id=controller, brokers={1: broker(1)}))
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
