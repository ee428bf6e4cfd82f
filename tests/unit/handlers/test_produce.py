"""Produce: who has timed out is answered, and waits nowhere any longer. What cannot be taken
for the moment is looked at in its turn, and not before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.config.topic import TopicConfig
from ottla.dispatch.context import Request
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.produce import _when_committed, produce
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.net.connection import Hangup, NotYet
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.replication.isr import Rules
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Deferred
from ottla.testing.clock import ManualClock
from ottla.testing.logs import LogBench


async def test_a_time_out_leaves_nobody_waiting() -> None:
    abandoned: list[str] = []
    commits: list[Deferred[None]] = [Deferred(), Deferred()]
    for name, commit in zip("ab", commits, strict=True):
        commit.on_abandon = lambda name=name: abandoned.append(name)
    answers = [PartitionProduceResponse(index=index, base_offset=7) for index in range(2)]
    waiting = list(zip(answers, commits, strict=True))
    request: Any = SimpleNamespace(api_version=9, body=SimpleNamespace(timeout_ms=0, acks=-1))
    services: Any = None
    result = _when_committed(ProduceResponse(responses=[]), waiting, request, services, None)
    commits[0].resolve(None)
    await result
    assert [each.error_code for each in answers] == [0, ErrorCode.REQUEST_TIMED_OUT]
    assert abandoned == ["b"]


class Two:
    """Two partitions led here. They have two replicas, and want both in sync."""

    def __init__(self) -> None:
        cluster: Any = SimpleNamespace(node_id=1, max_lag_ms=1.0, session_alive=True)
        cluster.now_ms = lambda: 0.0
        cluster.may_join = lambda *_: False
        cluster.propose_isr = lambda *_: None
        durability: Any = None
        state = PartitionState(1, 0, 0, (1, 2), (1, 2))
        self.partitions = [
            Partition(
                TopicPartition("t", index),
                TopicId(bytes(16)),
                LogBench(TopicConfig()).open(),
                state,
                durability,
                cluster,
            )
            for index in range(2)
        ]
        for partition in self.partitions:
            partition.lead(state, Rules(2))
        self.services: Any = SimpleNamespace(
            clock=ManualClock(), replicas=SimpleNamespace(by_name=self._led)
        )

    def _led(self, _: str, index: int) -> Partition:
        if not self.partitions[index].leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.partitions[index]

    def shrink(self, index: int) -> None:
        self._set_isr(index, (1,))

    def grow(self, index: int) -> None:
        self._set_isr(index, (1, 2))

    def _set_isr(self, index: int, isr: tuple[int, ...]) -> None:
        partition = self.partitions[index]
        state = PartitionState(1, 0, partition.state.partition_epoch + 1, (1, 2), isr)
        partition.lead(state, Rules(2))

    def end_offset(self, index: int) -> int:
        return self.partitions[index].log.log_end_offset

    def produce(self, *, owes_answers: bool, acks: int = -1, **sequences: int) -> Any:
        """Send the batches of a producer to the partitions `p0` and `p1`; -1 is not numbered."""
        data = [
            PartitionProduceData(index=int(name[1:]), records=numbered(sequence))
            for name, sequence in sequences.items()
        ]
        topics = [TopicProduceData(name="t", partition_data=data)]
        body = ProduceRequest(acks=acks, timeout_ms=1, topic_data=topics)
        connection: Any = SimpleNamespace(owes_answers=owes_answers)
        request: Any = Request(9, "c", connection, body)
        return produce(request, self.services)


def numbered(sequence: int, *, transactional: bool = False) -> memoryview:
    producer = 7 if sequence >= 0 else -1
    batch = build_batch(
        [(0, None, b"v", ())],
        producer_id=producer,
        producer_epoch=min(producer, 0),
        base_sequence=sequence,
        transactional=transactional,
    )
    return memoryview(bytearray(batch))


def codes(response: ProduceResponse) -> list[ErrorCode]:
    [topic] = response.responses
    return [ErrorCode.of(answer.error_code) for answer in topic.partition_responses]


async def test_a_refusal_is_told_at_once_where_nothing_is_to_be_answered_before_it() -> None:
    two = Two()
    two.shrink(0)
    response = two.produce(owes_answers=False, p0=0)
    assert codes(response) == [ErrorCode.NOT_ENOUGH_REPLICAS]


@pytest.mark.parametrize("leads", [True, False])
async def test_what_would_be_refused_for_now_waits_for_its_turn(leads: bool) -> None:
    two = Two()
    if leads:
        two.shrink(0)
    else:
        two.partitions[0].follow(two.partitions[0].state)
    with pytest.raises(NotYet):
        two.produce(owes_answers=True, p0=0, p1=0)
    assert (two.end_offset(0), two.end_offset(1)) == (0, 0)


async def test_beside_a_batch_that_is_stored_it_holds_back_what_comes_next() -> None:
    """The other one is not to be stored twice, so its request cannot wait. It is answered when that
    one is committed; until then the next request is not handled, as in Kafka."""
    two = Two()
    two.shrink(1)
    result = two.produce(owes_answers=True, p0=0, p1=0)
    assert result.exclusive
    assert codes(await result) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS]
    assert (two.end_offset(0), two.end_offset(1)) == (1, 0)


async def test_beside_a_batch_that_is_committed_it_holds_back_what_comes_next() -> None:
    two = Two()
    two.partitions[1].follow(two.partitions[1].state)
    result = two.produce(owes_answers=True, acks=1, p0=0, p1=0)
    assert result.exclusive
    assert codes(await result) == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_batches_without_numbers_are_refused_as_they_come() -> None:
    """Nothing would be out of order."""
    two = Two()
    two.shrink(0)
    response = two.produce(owes_answers=True, p0=-1)
    assert codes(response) == [ErrorCode.NOT_ENOUGH_REPLICAS]


async def test_without_acks_what_is_refused_beside_a_slow_batch_closes_the_connection() -> None:
    """It is the only sign that such a client gets of lost records."""
    two = Two()
    two.partitions[1].follow(two.partitions[1].state)

    async def join(_: str, __: object, sequences: Any, *, add: bool) -> Any:
        return {
            partition: partition.log.begin_verification(7, 0, sequence)
            for partition, sequence in sequences.items()
        }

    two.services.transactions = SimpleNamespace(join=join)
    data = [
        PartitionProduceData(index=index, records=numbered(0, transactional=True))
        for index in range(2)
    ]
    topics = [TopicProduceData(name="t", partition_data=data)]
    body = ProduceRequest(transactional_id="x", acks=0, timeout_ms=1, topic_data=topics)
    request: Any = Request(9, "c", SimpleNamespace(owes_answers=False), body)
    answer: Any = produce(request, two.services)
    with pytest.raises(Hangup):
        await answer
    assert (two.end_offset(0), two.end_offset(1)) == (1, 0)
