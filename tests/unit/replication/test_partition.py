"""Partition: when records may be read and acknowledged, who is fenced, what may be deleted."""

from __future__ import annotations

import asyncio

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.storage.log import AppendInfo, Log
from ottla.testing.logs import LogBench

NOW = 1_700_000_000_000


class SlowDisk:
    """fsync that ends when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    def wait_flushed(self, log: Log, offset: int, *, urgent: bool = True) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future


def partition(config: TopicConfig | None = None, epoch: int = 0) -> tuple[Partition, SlowDisk]:
    disk = SlowDisk()
    state = PartitionState(1, epoch, 0, (1,), (1,))
    log = LogBench(config or TopicConfig()).open()
    led = Partition(TopicPartition("t", 0), TopicId(bytes(16)), log, state, disk)
    led.lead(state)
    return led, disk


def append(led: Partition, *values: bytes) -> AppendInfo:
    batch = bytearray(build_batch([(NOW, None, value, ()) for value in values]))
    return led.append(memoryview(batch), NOW)


async def test_an_append_is_committed_and_readable_at_once_without_flush_settings():
    led, disk = partition()
    info = append(led, b"a", b"b")
    assert led.committed(info)
    assert led.high_watermark == 2
    assert led.read(0, 1000, led.high_watermark, True).region is not None
    assert not disk.waiting


async def test_with_flush_messages_nobody_sees_or_is_told_before_the_fsync():
    led, disk = partition(TopicConfig(flush_messages=1))
    info = append(led, b"a")
    answered = led.wait_committed(info)
    assert not led.committed(info)
    assert led.high_watermark == 0
    assert led.read(0, 1000, led.high_watermark, True).region is None
    assert not answered.done
    disk.waiting[0].set_result(None)
    await asyncio.sleep(0)
    assert led.high_watermark == 1
    assert answered.done


async def test_appends_during_an_fsync_share_the_next_one():
    led, disk = partition(TopicConfig(flush_messages=1))
    append(led, b"a")
    late = [led.wait_committed(append(led, value)) for value in (b"b", b"c", b"d")]
    assert len(disk.waiting) == 1
    disk.waiting[0].set_result(None)
    await asyncio.sleep(0)
    assert led.high_watermark == 1
    assert len(disk.waiting) == 2
    assert not any(waiting.done for waiting in late)
    disk.waiting[1].set_result(None)
    await asyncio.sleep(0)
    assert led.high_watermark == 4
    assert all(waiting.done for waiting in late)


async def test_a_failed_fsync_fails_everybody_who_waits():
    led, disk = partition(TopicConfig(flush_messages=1))
    waiting = led.wait_committed(append(led, b"a"))
    disk.waiting[0].set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "dead disk"))
    await asyncio.sleep(0)
    with pytest.raises(KafkaError, match="dead disk"):
        waiting.result()
    assert led.high_watermark == 0


async def test_readers_that_wait_are_told_how_many_bytes_came():
    led, _ = partition()
    told: list[int] = []

    class Reader:
        def signalled(self, amount: int) -> None:
            told.append(amount)

    led.readable.waiters[Reader()] = None
    info = append(led, b"a")
    assert told == [info.bytes]


async def test_clients_that_know_another_leader_are_fenced():
    led, _ = partition(epoch=5)
    led.check_epoch(-1)
    led.check_epoch(5)
    with pytest.raises(KafkaError) as older:
        led.check_epoch(4)
    with pytest.raises(KafkaError) as newer:
        led.check_epoch(6)
    assert older.value.code is ErrorCode.FENCED_LEADER_EPOCH
    assert newer.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_records_are_deleted_up_to_the_high_watermark_and_not_beyond():
    led, _ = partition()
    append(led, b"a", b"b", b"c")
    assert led.delete_records(2) == 2
    assert led.delete_records(-1) == 3
    with pytest.raises(KafkaError) as beyond:
        led.delete_records(4)
    assert beyond.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_records_of_a_topic_without_the_delete_policy_stay():
    led, _ = partition(TopicConfig(cleanup_policy=frozenset({"compact"})))
    with pytest.raises(KafkaError) as kept:
        led.delete_records(0)
    assert kept.value.code is ErrorCode.POLICY_VIOLATION


async def test_a_new_leader_epoch_begins_at_the_end_of_the_log():
    led, _ = partition()
    append(led, b"a")
    led.lead(PartitionState(1, 3, 1, (1,), (1,)))
    assert led.epoch_end_offset(3) == (3, 1)
    append(led, b"b")
    assert led.epoch_end_offset(0) == (0, 1)
    assert led.epoch_end_offset(3) == (3, 2)


async def test_an_epoch_that_wrote_nothing_ends_where_the_one_before_it_does():
    led, _ = partition()
    append(led, b"a", b"b")
    led.lead(led.state.next_epoch(above=4))
    assert led.leader_epoch == 5
    for epoch in range(5):
        assert led.epoch_end_offset(epoch) == (0, 2)
    append(led, b"c")
    for epoch in range(5):
        assert led.epoch_end_offset(epoch) == (0, 2)
    assert led.epoch_end_offset(6) == (-1, -1)


async def test_an_election_writes_no_file():
    bench = LogBench()
    state = PartitionState(1, 3, 1, (1,), (1,))
    led = Partition(TopicPartition("t", 0), TopicId(bytes(16)), bench.open(), state, SlowDisk())
    before = bench.fs.operations
    led.lead(state)
    assert bench.fs.operations == before
    assert led.log.latest_epoch == 3


async def test_the_epoch_of_a_leader_that_wrote_survives_a_kill():
    bench = LogBench()
    state = PartitionState(1, 3, 1, (1,), (1,))
    led = Partition(TopicPartition("t", 0), TopicId(bytes(16)), bench.open(), state, SlowDisk())
    led.lead(state)
    append(led, b"a")
    led.lead(state.next_epoch(above=3))
    assert led.epoch_end_offset(3) == (3, 1)
    again = bench.killed().open()
    assert again.latest_epoch == 3
    assert again.epoch_end_offset(3) == (3, 1)


async def test_an_earlier_epoch_of_an_empty_log_ends_at_its_end():
    led, _ = partition(epoch=2)
    assert led.epoch_end_offset(1) == (1, 0)
    assert led.epoch_end_offset(-1) == (-1, -1)


async def test_the_epoch_of_an_empty_log_is_its_leaders():
    led, _ = partition(epoch=4)
    assert led.start_epoch() == 4
    assert led.epoch_end_offset(4) == (4, 0)
    append(led, b"a")
    assert led.start_epoch() == 4
