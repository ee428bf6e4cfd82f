"""Before a transaction's first batch: what the coordinator says, and whether it is still true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.config.topic import TopicConfig
from ottla.coordinator.transaction.joining import ATTEMPTS, join
from ottla.coordinator.transaction.state import Identity
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication.marker import Marker
from ottla.replication.partition import Partition
from ottla.storage.log import Log
from ottla.storage.producers import Guard
from ottla.testing.logs import LogBench

NOW = 1_700_000_000_000
PRODUCER = Identity(7, 1)


class NoDisk:
    """fsync that nobody asks for."""

    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        raise AssertionError("nothing here is to be synced")


@pytest.fixture
def led() -> Partition:
    state = PartitionState(1, 0, 0, (1,), (1,))
    log = LogBench(TopicConfig()).open()
    partition = Partition(TopicPartition("t", 0), TopicId(bytes(16)), log, state, NoDisk())
    partition.lead(state)
    return partition


class Coordinator:
    """Answers as it is told; `meanwhile` happens while it is asked, so many times."""

    def __init__(
        self,
        code: ErrorCode = ErrorCode.NONE,
        meanwhile: Callable[[], object] = lambda: None,
        times: int = 1,
    ) -> None:
        self.code = code
        self.asked = 0
        self._meanwhile = meanwhile
        self._times = times

    async def __call__(
        self, producer: Identity, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked += 1
        if self.asked <= self._times:
            self._meanwhile()
        return dict.fromkeys(partitions, self.code)


def append(led: Partition, guard: Guard | None) -> None:
    batch = build_batch(
        [(NOW, None, b"a", ())],
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    led.append(memoryview(bytearray(batch)), NOW, guard=guard)


def end(led: Partition) -> None:
    """The transaction before ends here, with the epoch that the producer has now."""
    led.append_marker(Marker(*PRODUCER, True, 1, True), NOW)


async def test_with_the_coordinators_word_the_batch_is_appended(led: Partition) -> None:
    joined = await join(Coordinator(), PRODUCER, {led: 0})
    guard = joined[led]
    assert isinstance(guard, Guard)
    append(led, guard)


async def test_without_it_there_is_no_guard(led: Partition) -> None:
    coordinator = Coordinator(ErrorCode.TRANSACTION_ABORTABLE)
    assert await join(coordinator, PRODUCER, {led: 0}) == {led: ErrorCode.TRANSACTION_ABORTABLE}


async def test_when_the_transaction_before_ends_meanwhile_it_is_asked_again(
    led: Partition,
) -> None:
    coordinator = Coordinator(meanwhile=lambda: end(led))
    joined = await join(coordinator, PRODUCER, {led: 0})
    assert coordinator.asked == 2
    guard = joined[led]
    assert isinstance(guard, Guard)
    append(led, guard)


async def test_when_another_request_begins_it_meanwhile_no_guard_is_needed(led: Partition) -> None:
    def begin() -> None:
        append(led, led.log.begin_verification(*PRODUCER, 0))

    assert await join(Coordinator(meanwhile=begin), PRODUCER, {led: 1}) == {led: None}


async def test_who_never_gets_through_tries_again_later(led: Partition) -> None:
    coordinator = Coordinator(meanwhile=lambda: end(led), times=100)
    assert await join(coordinator, PRODUCER, {led: 0}) == {led: ErrorCode.CONCURRENT_TRANSACTIONS}
    assert coordinator.asked == ATTEMPTS


async def test_version_2_begins_with_sequence_0(led: Partition) -> None:
    joined = await join(Coordinator(), PRODUCER, {led: 3}, raises_epoch=True)
    guard = joined[led]
    assert isinstance(guard, Guard)
    batch = build_batch(
        [(NOW, None, b"a", ())],
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.producer_epoch,
        base_sequence=3,
        transactional=True,
    )
    with pytest.raises(KafkaError) as refused:
        led.append(memoryview(bytearray(batch)), NOW, guard=guard)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
