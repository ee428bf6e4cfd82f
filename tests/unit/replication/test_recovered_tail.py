"""A restart under `flush.messages`: what may not have been synced is not shown, nor acknowledged.

The broker dies after write(2) and before fsync, comes back, and the power fails. A record that
somebody was told of in between must be there afterwards.
"""

from __future__ import annotations

import asyncio
import errno

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId
from ottla.model.topic import PartitionState
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.storage import flush
from ottla.storage.log import AppendInfo
from ottla.testing.files import MemoryFileSystem
from ottla.testing.logs import PARTITION, FolderBench

ID = TopicId(b"\x01" * 16)
EVERY = TopicConfig(flush_messages=1)


class Broker:
    """A partition over a data folder, with the real group commit."""

    def __init__(self, config: TopicConfig, fs: MemoryFileSystem | None = None) -> None:
        if fs is None:
            fs = MemoryFileSystem()
            fs.makedirs("/data")
            fs.sync_dir("/")
        self.bench = FolderBench(config, fs=fs)

    async def start(self) -> Partition:
        log = await self.bench.open(ID)
        state = PartitionState(1, 0, 0, (1,), (1,))
        self.partition = Partition(PARTITION, ID, log, state, self.bench.directories.group_commit)
        return self.partition

    def produce(self, sequence: int, *values: bytes) -> AppendInfo:
        now_ms = self.bench.clock.now_ms()
        batch = build_batch(
            [(now_ms, None, value, ()) for value in values],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        return self.partition.append(memoryview(bytearray(batch)), now_ms)

    async def acknowledged(self, info: AppendInfo) -> None:
        """Wait until a producer would have its answer."""
        if not self.partition.committed(info):
            answer = self.partition.wait_committed(info)
            await self.bench.idle()
            assert answer.done
            answer.result()

    async def killed(self, config: TopicConfig | None = None) -> Broker:
        await self.bench.abandon()
        return Broker(config or self.bench.config, self.bench.fs.killed())

    async def power_lost(self) -> Broker:
        await self.bench.abandon()
        return Broker(self.bench.config, self.bench.fs.power_lost())


async def after_a_kill_before_the_fsync(*values: bytes) -> Broker:
    first = Broker(EVERY)
    await first.start()
    first.produce(0, *values)  # written; the fsync has not begun
    return await first.killed()


async def test_a_batch_sent_again_is_acknowledged_after_its_fsync() -> None:
    second = await after_a_kill_before_the_fsync(b"a")
    await second.start()
    again = second.produce(0, b"a")
    assert (again.duplicate, again.base_offset) == (True, 0)
    assert not second.partition.committed(again)
    await second.acknowledged(again)
    third = await second.power_lost()
    log = (await third.start()).log
    assert third.bench.contents(log) == [(0, b"a")]


async def test_a_recovered_record_is_shown_after_its_fsync() -> None:
    second = await after_a_kill_before_the_fsync(b"a", b"b")
    partition = await second.start()
    assert (partition.high_watermark, partition.log.log_end_offset) == (0, 2)
    assert not partition.knows_high_watermark, "readers may have seen both before the kill"
    assert partition.read(0, 1000, partition.high_watermark, True).region is None
    with pytest.raises(KafkaError) as early:
        partition.delete_records(1)
    assert early.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    told: list[int] = []

    class Reader:
        def signalled(self, amount: int) -> None:
            told.append(amount)

    partition.readable.waiters[Reader()] = None
    await second.bench.idle()
    assert partition.high_watermark == 2
    assert partition.knows_high_watermark
    assert told == [partition.log.size]
    third = await second.power_lost()
    assert (await third.start()).log.log_end_offset == 2


async def test_an_append_hurries_the_fsync_of_the_recovered_tail() -> None:
    second = await after_a_kill_before_the_fsync(b"a")
    partition = await second.start()
    info = second.produce(1, b"b")
    assert partition.high_watermark == 0
    await second.acknowledged(info)
    assert partition.high_watermark == 2
    third = await second.power_lost()
    assert (await third.start()).log.log_end_offset == 2


async def test_without_flush_settings_everything_is_shown_at_once() -> None:
    first = Broker(TopicConfig())
    await first.start()
    first.produce(0, b"a")
    second = await first.killed()
    partition = await second.start()
    assert partition.high_watermark == 1
    assert partition.committed(second.produce(0, b"a"))


async def test_a_tail_shorter_than_flush_messages_is_shown_at_once_as_it_was_before() -> None:
    first = Broker(TopicConfig(flush_messages=10))
    await first.start()
    assert first.partition.committed(first.produce(0, b"a"))
    second = await first.killed()
    assert (await second.start()).high_watermark == 1


async def test_a_batch_sent_again_after_the_setting_came_is_synced_too() -> None:
    first = Broker(TopicConfig())
    await first.start()
    first.produce(0, b"a")
    first.produce(1, b"b")
    first.partition.log.config = EVERY
    again = first.produce(0, b"a")
    assert not first.partition.committed(again)
    await first.acknowledged(again)
    second = await first.power_lost()
    assert (await second.start()).log.log_end_offset == 2


async def test_a_batch_sent_again_that_was_synced_is_acknowledged_at_once() -> None:
    first = Broker(EVERY)
    await first.start()
    await first.acknowledged(first.produce(0, b"a"))
    first.produce(1, b"b")
    assert first.partition.committed(first.produce(0, b"a"))


async def test_whoever_waits_for_an_earlier_offset_is_not_held_up_by_others() -> None:
    second = await after_a_kill_before_the_fsync(b"a")
    partition = await second.start()
    later = partition.wait_committed(AppendInfo(5, 5, -1, 0, False, 0))
    earlier = partition.wait_committed(second.produce(0, b"a"))
    await second.bench.idle()
    assert earlier.done
    assert not later.done
    partition.retire()


async def test_a_disk_that_fails_then_takes_the_folder_offline() -> None:
    second = await after_a_kill_before_the_fsync(b"a")
    second.bench.fs.fail("*.log", 5, operations=["sync"])
    partition = await second.start()
    again = partition.wait_committed(second.produce(0, b"a"))
    await second.bench.idle()
    with pytest.raises(KafkaError, match="flushing failed"):
        again.result()
    assert partition.high_watermark == 0
    assert second.bench.directories.offline_folders
    await asyncio.sleep(0)


async def without_descriptors(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """More flushes fail for want of one than are tried in a row."""
    monkeypatch.setattr(flush, "RETRY_SECONDS", 0)
    broker.bench.fs.fail("*", errno.EMFILE, operations=["open", "sync", "sync_dir"])
    for _ in range(flush.RETRIES):
        await broker.bench.idle()


async def test_a_tail_that_lacked_a_descriptor_for_long_is_shown_without_another_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = await after_a_kill_before_the_fsync(b"a", b"b")
    partition = await second.start()
    await without_descriptors(second, monkeypatch)
    assert partition.high_watermark == 0
    second.bench.fs.heal()
    await second.bench.idle()
    assert partition.high_watermark == 2
    third = await second.power_lost()
    assert (await third.start()).log.log_end_offset == 2


async def test_an_append_that_lacked_a_descriptor_for_long_is_shown_without_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(EVERY)
    partition = await broker.start()
    answer = partition.wait_committed(broker.produce(0, b"a"))
    await without_descriptors(broker, monkeypatch)
    with pytest.raises(KafkaError) as told:
        answer.result()
    assert told.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (partition.high_watermark, partition.log.failure) == (0, None)
    broker.bench.fs.heal()
    await broker.bench.idle()
    assert partition.high_watermark == 1
    assert partition.committed(broker.produce(0, b"a"))
