"""What replicas are asked by the controller, and what becomes of their answers."""

from __future__ import annotations

from typing import Any, cast

from ottla.controller.election import LogEnd
from ottla.controller.remote import LogEnds
from ottla.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.net.channel import ChannelClosed
from ottla.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.replication.remote import Peers


class Broker:
    """Answers what it is asked about `t-0` in one way; None: it hangs up."""

    def __init__(self, answer: ListOffsetsPartitionResponse | None) -> None:
        self._answer = answer

    async def ask(self, request: Any) -> ListOffsetsResponse:
        if self._answer is None:
            raise ChannelClosed("it has hung up")
        topic = ListOffsetsTopicResponse(name="t", partitions=[self._answer])
        return ListOffsetsResponse(topics=[topic])

    def close(self) -> None:
        pass


class Brokers:
    def __init__(self, **brokers: ListOffsetsPartitionResponse | None) -> None:
        self._brokers = {int(name[1:]): Broker(answer) for name, answer in brokers.items()}

    def peer(self, broker: int) -> Broker | None:
        return self._brokers.get(broker)


async def test_who_cannot_tell_is_told_apart_from_who_does_not_answer() -> None:
    brokers = Brokers(
        b1=ListOffsetsPartitionResponse(partition_index=0, leader_epoch=4, offset=20),
        b2=ListOffsetsPartitionResponse(
            partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR
        ),
        b3=None,
    )
    ends = LogEnds(cast("Peers", brokers))
    found = await ends.ask(TopicPartition("t", 0), [1, 2, 3, 4])
    assert found == {1: LogEnd(4, 20), 2: None}
