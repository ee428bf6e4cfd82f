"""Produce: who has timed out is answered, and waits nowhere any longer. Who finds too few replicas
in sync is turned away, and what is under way behind it."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.cluster.registry import ImageChange
from ottla.config.topic import TopicConfig
from ottla.coordinator.transaction.joining import join
from ottla.coordinator.transaction.state import Identity
from ottla.errors import ErrorCode, KafkaError
from ottla.handlers.produce import _when_committed, produce
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.batch import read_header
from ottla.records.builder import build_batch
from ottla.replication.isr import Rules
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.runtime.waiters import Deferred
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem
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


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "refusal",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
async def test_what_is_under_way_behind_a_refused_batch_is_turned_away_too(
    refusal: ErrorCode, known: bool
) -> None:
    """The set grows again, or the broker is admitted again, or a descriptor is free again, before
    the next batch comes, and before the client has heard of the refusal: it is told in its turn,
    after the batch before it."""
    state = PartitionState(1, 0, 0, replicas=(1, 2), isr=(1, 2))
    cluster: Any = SimpleNamespace(node_id=1, max_lag_ms=1.0, session_alive=True)
    cluster.now_ms = lambda: 0.0
    cluster.may_join = lambda *_: False
    cluster.propose_isr = lambda *_: None
    durability: Any = None
    bench = LogBench(TopicConfig())
    partition = Partition(
        TopicPartition("t", 0), TopicId(bytes(16)), bench.open(), state, durability, cluster
    )
    partition.lead(state, Rules(2))

    def led(*_: object) -> Partition:
        if not partition.leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    replicas = SimpleNamespace(by_name=led, replica_by_name=lambda *_: partition)
    services: Any = SimpleNamespace(clock=ManualClock(), replicas=replicas)

    def send(sequence: int) -> Any:
        return produce(request_for(sequence), services)

    def code(sequence: int) -> ErrorCode:
        return ErrorCode.of(send(sequence).responses[0].partition_responses[0].error_code)

    first = 0
    if known:
        send(0).abandon()
        first = 1
    if refusal is ErrorCode.NOT_ENOUGH_REPLICAS:
        partition.lead(PartitionState(1, 0, 1, (1, 2), (1,)), Rules(2))
    elif refusal is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        partition.follow(state)  # its broker has lost its registration
    else:
        partition.lead(PartitionState(1, 1, 1, (1, 2), (1, 2)), Rules(2))
        bench.fs.fail("*/leader-epoch-checkpoint*", errno.EMFILE, operations=["open"], times=1)
    assert code(first) is refusal
    epoch = partition.leader_epoch
    partition.lead(PartitionState(1, epoch, 2, (1, 2), (1, 2)), Rules(2))
    assert code(first + 1) is ErrorCode.NOT_ENOUGH_REPLICAS
    for sequence in (first, first + 1):
        assert isinstance(send(sequence), Deferred)
    assert code(first + 3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_what_is_behind_a_batch_whose_partition_could_not_be_made_is_turned_away_too() -> (
    None
):
    """No descriptor was free for its files, and one is when the next batch comes."""
    fs, workers = MemoryFileSystem(), Workers()
    logs = LogDirectories(fs, ["/data"], clock=ManualClock(), workers=workers)
    logs.open_folders()
    replicas = Replicas(1, logs, logs.group_commit, lambda _: TopicConfig())
    topic = Topic("t", TopicId(bytes([1]) * 16), (PartitionState(1, 0, 0, (1,), (1,)),), {})
    image = ClusterImage(topics={"t": topic}, topic_names={topic.id: "t"})
    replicas.apply(ImageChange(ClusterImage(), image, frozenset({"t"})))
    services: Any = SimpleNamespace(clock=ManualClock(), replicas=replicas)

    def code(sequence: int) -> ErrorCode:
        answer: Any = produce(request_for(sequence), services)
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)

    fs.fail("*", errno.EMFILE, operations=["create", "open"], times=2)
    assert code(0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [code(0), code(1)] == [ErrorCode.NONE] * 2
    replicas.stop_making()
    workers.close()


async def test_what_comes_too_early_is_remembered_once() -> None:
    """Of a batch that was refused long ago, and never comes, the producer is not known any more:
    it goes on with its first, though it sends the others before it has heard of all refusals."""
    durability: Any = None
    state = PartitionState(1, 0, 0, (1,), (1,))
    log = LogBench(TopicConfig()).open()
    partition = Partition(TopicPartition("t", 0), TopicId(bytes(16)), log, state, durability)
    partition.lead(state)
    replicas = SimpleNamespace(by_name=lambda *_: partition, replica_by_name=lambda *_: partition)
    services: Any = SimpleNamespace(clock=ManualClock(), replicas=replicas)

    def code(sequence: int) -> ErrorCode:
        answer: Any = produce(request_for(sequence), services)
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)

    [old] = request_for(0).body.topic_data[0].partition_data
    log.note_refused(read_header(old.records))
    for sequence in (100, 101, 100, 101, 101, 100, 102, 103, 104, 101):
        assert code(sequence) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [code(sequence) for sequence in range(100, 105)] == [ErrorCode.NONE] * 5


async def test_what_is_behind_a_batch_that_came_while_a_transaction_was_ending_waits() -> None:
    """Under transaction version 2 the client is told CONCURRENT_TRANSACTIONS, and tries again."""
    durability: Any = None
    state = PartitionState(1, 0, 0, (1,), (1,))
    log = LogBench(TopicConfig()).open()
    partition = Partition(TopicPartition("t", 0), TopicId(bytes(16)), log, state, durability)
    partition.lead(state)
    found = ErrorCode.CONCURRENT_TRANSACTIONS

    async def ask(_: Identity, asked: frozenset[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(asked, found)

    async def joined(_: str, producer: Identity, sequences: Any, *, add: bool) -> Any:
        return await join(ask, producer, sequences, raises_epoch=add)

    services: Any = SimpleNamespace(
        clock=ManualClock(),
        replicas=SimpleNamespace(by_name=lambda *_: partition),
        transactions=SimpleNamespace(join=joined),
    )

    async def code(sequence: int) -> ErrorCode:
        request = request_for(sequence, transactional=True)
        request.api_version, request.body.transactional_id = 12, "t"
        answer: Any = produce(request, services)
        answer = answer if isinstance(answer, ProduceResponse) else await answer
        return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)

    assert await code(0) is ErrorCode.CONCURRENT_TRANSACTIONS
    found = ErrorCode.NONE
    assert await code(1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert [await code(sequence) for sequence in (0, 1)] == [ErrorCode.NONE] * 2


def request_for(sequence: int, *, transactional: bool = False) -> Any:
    """One to store a batch of an idempotent producer."""
    batch = build_batch(
        [(0, None, b"v", ())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )
    data = PartitionProduceData(index=0, records=memoryview(bytearray(batch)))
    body = ProduceRequest(
        acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    return SimpleNamespace(api_version=9, body=body, client_id="c", listener=None)
