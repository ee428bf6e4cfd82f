"""How brokers are asked to move replicas between their folders."""

from __future__ import annotations

from collections import Counter
from typing import cast

from ottla.client.direct import DirectAdmin
from ottla.client.folder_moves import begin_moves
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import Replica, TopicPartition
from ottla.protocol.messages.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


class Broker:
    """Begins all moves but those of one partition."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.begun: Counter[tuple[str, str, int]] = Counter()

    def ask(self, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        before = sum(self.begun.values())
        results = []
        for folder in request.dirs:
            for topic in folder.topics:
                self.begun.update((folder.path, topic.name, each) for each in topic.partitions)
                parts = [
                    AlterReplicaLogDirPartitionResult(
                        partition_index=each,
                        error_code=ErrorCode.REPLICA_NOT_AVAILABLE if each == 77 else 0,
                    )
                    for each in topic.partitions
                ]
                results.append(
                    AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=parts)
                )
        self.asked.append(sum(self.begun.values()) - before)
        return AlterReplicaLogDirsResponse(results=results)


class Cluster:
    def __init__(self) -> None:
        self.router = self
        self.brokers = {1: Broker(), 2: Broker()}

    def node(self, number: int) -> Broker:
        return self.brokers[number]


def test_no_request_is_for_more_than_a_broker_begins_while_somebody_waits() -> None:
    """A thousand in one took more than a minute, and the tool gave up after half of it."""
    cluster = Cluster()
    wanted = {
        Replica(broker, TopicPartition("t", index)): f"/d{index % 2}"
        for index in range(120)
        for broker in (2, 1)
    }
    answers = begin_moves(cast("DirectAdmin", cluster), wanted)
    for number, broker in cluster.brokers.items():
        assert broker.asked == [50, 50, 20]
        assert broker.begun == Counter((f"/d{index % 2}", "t", index) for index in range(120))
        error = answers.pop(Replica(number, TopicPartition("t", 77)))
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.REPLICA_NOT_AVAILABLE
    assert len(answers) == 238
    assert not any(answers.values())
