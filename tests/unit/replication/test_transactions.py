"""Transactions in a partition: who may begin one, who may end it, and whom the end wakes."""

from __future__ import annotations

import asyncio

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, end_marker
from ottla.replication.marker import Marker
from ottla.replication.partition import Partition
from ottla.runtime.waiters import Waiter
from ottla.storage.log import AppendInfo, Log
from ottla.storage.producers import Guard, Origin
from ottla.testing.logs import LogBench

NOW = 1_700_000_000_000


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


def append(
    led: Partition, sequence: int = 0, *, epoch: int = 0, guard: Guard | None = None
) -> AppendInfo:
    batch = build_batch(
        [(NOW, None, b"a", ())],
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return led.append(memoryview(bytearray(batch)), NOW, guard=guard)


def begin(led: Partition, sequence: int = 0, *, epoch: int = 0) -> AppendInfo:
    guard = led.log.begin_verification(7, epoch, sequence)
    assert guard is not None
    return append(led, sequence, epoch=epoch, guard=guard)


def end(
    led: Partition,
    *,
    epoch: int = 0,
    committed: bool = True,
    coordinator: int = 1,
    raises: bool = False,
) -> AppendInfo:
    return led.append_marker(Marker(7, epoch, committed, coordinator, raises), NOW)


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def test_nobody_begins_a_transaction_without_having_asked(led: Partition) -> None:
    with pytest.raises(KafkaError) as refused:
        append(led)
    assert code_of(refused) is ErrorCode.INVALID_TXN_STATE
    assert led.log.log_end_offset == 0


def test_who_has_asked_begins_it_and_needs_no_guard_afterwards(led: Partition) -> None:
    begin(led)
    assert led.log.begin_verification(7, 0, 1) is None
    assert append(led, 1).base_offset == 1


def test_a_guard_from_before_the_end_is_worth_nothing_after_it(led: Partition) -> None:
    # The coordinator was asked about the first transaction; its answer comes after its end.
    guard = led.log.begin_verification(7, 0, 0)
    end(led, committed=False)
    with pytest.raises(KafkaError) as refused:
        append(led, guard=guard)
    assert code_of(refused) is ErrorCode.INVALID_TXN_STATE


def test_a_late_batch_does_not_begin_what_has_just_ended(led: Partition) -> None:
    begin(led)
    end(led)
    with pytest.raises(KafkaError) as refused:
        append(led, 1)
    assert code_of(refused) is ErrorCode.INVALID_TXN_STATE
    assert led.last_stable_offset() == 2


def test_batches_that_wait_for_the_same_answer_enter_in_their_order(led: Partition) -> None:
    first = led.log.begin_verification(7, 0, 0)
    second = led.log.begin_verification(7, 0, 1)
    assert first is second
    with pytest.raises(KafkaError) as refused:
        append(led, 1, guard=second)
    assert code_of(refused) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(led, 0, guard=first)
    append(led, 1, guard=second)


def test_a_duplicate_of_an_ended_transaction_is_answered_as_one(led: Partition) -> None:
    begin(led)
    end(led)
    assert append(led).duplicate


def test_a_guard_is_forgotten_after_the_expiry_of_producer_ids(led: Partition) -> None:
    guard = led.log.begin_verification(7, 0, 0)
    led.log.expire_producers(NOW * 2)
    with pytest.raises(KafkaError):
        append(led, guard=guard)


def test_a_client_writes_no_marker(led: Partition) -> None:
    marker = end_marker(
        ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=1, timestamp=NOW
    )
    with pytest.raises(KafkaError) as refused:
        led.append(memoryview(bytearray(marker)), NOW)
    assert code_of(refused) is ErrorCode.INVALID_RECORD


def test_a_marker_of_a_replaced_coordinator_is_refused(led: Partition) -> None:
    begin(led)
    end(led, coordinator=5)
    begin(led, 1)
    with pytest.raises(KafkaError) as refused:
        end(led, coordinator=4)
    assert code_of(refused) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert led.last_stable_offset() == 2


def test_version_1_ends_a_transaction_with_its_own_epoch(led: Partition) -> None:
    begin(led)
    end(led)
    assert led.last_stable_offset() == 2


def test_version_2_ends_a_transaction_with_a_later_epoch(led: Partition) -> None:
    begin(led)
    with pytest.raises(KafkaError) as refused:
        end(led, raises=True)
    assert code_of(refused) is ErrorCode.INVALID_PRODUCER_EPOCH
    end(led, epoch=1, raises=True)
    assert led.last_stable_offset() == 2


def test_a_marker_of_version_2_that_is_repeated_does_not_end_the_next_transaction(
    led: Partition,
) -> None:
    begin(led)
    end(led, epoch=1, raises=True)
    end(led, epoch=1, raises=True)  # its answer was lost
    begin(led, epoch=1)
    with pytest.raises(KafkaError) as refused:
        end(led, epoch=1, raises=True)
    assert code_of(refused) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert led.last_stable_offset() == 3


def test_a_follower_takes_no_marker(led: Partition) -> None:
    led.follow(PartitionState(2, 1, 0, (1, 2), (1, 2)))
    with pytest.raises(KafkaError) as refused:
        end(led)
    assert code_of(refused) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_coordinators_batch_needs_no_sequence_number(led: Partition) -> None:
    guard = led.log.begin_verification(7, 0, -1)
    batch = build_batch(
        [(NOW, b"k", b"v", ())], producer_id=7, producer_epoch=0, transactional=True
    )
    for _ in range(2):
        led.append(memoryview(bytearray(batch)), NOW, origin=Origin.COORDINATOR, guard=guard)
    assert led.log.log_end_offset == 2
    assert led.last_stable_offset() == 0


class TestReadersOfCommittedRecords:
    async def test_they_are_woken_by_the_end_and_not_by_appends(self, led: Partition) -> None:
        begin(led)
        woken: list[int] = []
        loop = asyncio.get_running_loop()
        waiter = Waiter(
            loop, [led.stable_signal()], 1, 60, lambda: woken.append(led.last_stable_offset())
        )
        for number in range(1, 10):
            append(led, number)
            await asyncio.sleep(0)
        assert not woken
        end(led)
        await asyncio.sleep(0)
        assert woken == [11]
        waiter.cancel()

    async def test_without_transactions_they_are_woken_by_every_append(
        self, led: Partition
    ) -> None:
        woken = asyncio.Event()
        waiter = Waiter(asyncio.get_running_loop(), [led.stable_signal()], 1, 60, woken.set)
        led.append(memoryview(bytearray(build_batch([(NOW, None, b"a", ())]))), NOW)
        await asyncio.wait_for(woken.wait(), 60)
        waiter.cancel()

    async def test_they_are_told_when_the_partition_goes_elsewhere(self, led: Partition) -> None:
        woken = asyncio.Event()
        waiter = Waiter(asyncio.get_running_loop(), [led.stable_signal()], 1, 60, woken.set)
        led.follow(PartitionState(2, 1, 0, (1, 2), (1, 2)))
        await asyncio.wait_for(woken.wait(), 60)
        waiter.cancel()


def test_ended_transactions_are_forgotten_though_nobody_reads(led: Partition) -> None:
    """By the leader, and by a follower, that no consumer asks for the last stable offset."""
    state = PartitionState(2, 0, 0, (2, 1), (2, 1))
    follower = Partition(
        TopicPartition("t", 0),
        TopicId(bytes(16)),
        LogBench(TopicConfig()).open(),
        state,
        NoDisk(),
    )
    follower.follow(state)
    for epoch in range(100):
        offset = begin(led, epoch=epoch).base_offset
        end(led, epoch=epoch + 1, committed=epoch % 2 == 0, raises=True)
        region = led.log.read(offset, 1 << 20, upper=led.log.log_end_offset).region
        assert region is not None
        follower.append_replicated(memoryview(region.read()), led.high_watermark, 0)
    for partition in (led, follower):
        assert len(partition.log._producers._unreplicated) <= 1
        assert partition.last_stable_offset() == 200
