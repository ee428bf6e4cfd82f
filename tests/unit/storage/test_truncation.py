"""Truncating the logs of a running broker: what a power cut finds, and what may be tried again."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.storage import flush
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.flush import FlushJob
from ottla.storage.log import Log
from ottla.testing.files import MemoryFileSystem
from ottla.testing.logs import DATA_FOLDER, PARTITION, FolderBench, InlineWorkers

TOPIC = TopicId(bytes(15) + b"\1")


class Broker:
    """A data folder that is opened again and again."""

    bench: FolderBench
    log: Log

    async def start(self, config: TopicConfig) -> None:
        fs = MemoryFileSystem()
        fs.makedirs(DATA_FOLDER)
        fs.sync_dir("/")
        self.bench = FolderBench(config, fs=fs)
        self.log = await self.bench.open(TOPIC)

    async def fill(self, *, flush: bool = True) -> None:
        for number in range(8):
            self.bench.append(self.log, b"%d" % number + b"x" * 50)
        if flush:
            self.bench.flush(self.log)
            await self.bench.directories.write_checkpoints()

    async def lose_power(self) -> None:
        """All that was not synced is gone."""
        await self.bench.abandon()
        lost = self.bench.fs.power_lost()
        self.bench = FolderBench(self.bench.config, fs=lost, clock=self.bench.clock)
        self.log = await self.bench.open(TOPIC)

    @property
    def values(self) -> list[bytes]:
        return [value.rstrip(b"x") for _, value in self.bench.contents(self.log)]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.start(TopicConfig(segment_bytes=300, retention_ms=-1))
    yield broker
    await broker.bench.abandon()


async def test_an_abort_that_was_cut_off_does_not_come_back_with_the_power(broker: Broker) -> None:
    """It would hide from consumers what the producer has written in its place, and committed."""
    bench, log = broker.bench, broker.log
    bench.append(log, b"a", producer_id=9, producer_epoch=0, sequence=0, transactional=True)
    bench.end_transaction(log, 9, commit=False)
    bench.flush(log)
    await bench.directories.write_checkpoints()
    await bench.directories.truncate({PARTITION: 1})
    log.roll()
    await bench.abandon()
    again = FolderBench(bench.config, fs=bench.fs.power_lost(names=True), clock=bench.clock)
    log = await again.open(TOPIC)
    again.end_transaction(log, 9, commit=True)
    assert log.last_stable_offset(2) == 2
    assert log.aborted_transactions(0, 2) == []
    await again.abandon()


async def test_what_was_truncated_does_not_come_back(broker: Broker) -> None:
    await broker.fill()
    await broker.bench.directories.truncate({PARTITION: 3})
    assert broker.values == [b"0", b"1", b"2"]
    assert not broker.log.has_unsynced_truncation
    await broker.lose_power()
    assert broker.values == [b"0", b"1", b"2"]


async def test_nor_if_the_cut_segment_is_rolled_before_it_is_synced(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written behind it would have the same offsets as what comes back."""
    await broker.fill()
    log, directories = broker.log, broker.bench.directories
    begin_flush = log.begin_flush

    def roll_first() -> FlushJob | None:
        log.roll()
        return begin_flush()

    with monkeypatch.context() as patched:
        patched.setattr(log, "begin_flush", roll_first)
        await directories.truncate({PARTITION: 3})
    assert not log.has_unsynced_truncation
    broker.bench.append(log, b"new 3", epoch=1)
    broker.bench.flush(log)
    await directories.write_checkpoints()
    await broker.lose_power()
    assert broker.values == [b"0", b"1", b"2", b"new 3"]


async def test_nothing_is_rolled_by_itself_before_a_truncation_is_synced(broker: Broker) -> None:
    """With an empty segment behind it, what comes back with the power would not be cut again."""
    bench, log = broker.bench, broker.log
    log.config = bench.config = TopicConfig(
        cleanup_policy=frozenset({"compact"}), segment_ms=1000, max_compaction_lag_ms=1000
    )
    for number in range(3):
        bench.put(log, (b"%d" % number, b"v"))
    bench.flush(log)
    log.truncate_to(2)
    bench.clock.advance(100_000)
    assert not log.compaction.must_roll(bench.clock.now_ms())
    await bench.directories.apply_retention()
    assert log.segment_count == 1
    bench.flush(log)
    assert log.compaction.must_roll(bench.clock.now_ms())
    await bench.directories.apply_retention()
    assert log.segment_count == 2


async def test_a_torn_write_below_the_old_recovery_point_is_only_a_torn_write(
    broker: Broker,
) -> None:
    await broker.fill()
    await broker.bench.directories.truncate({PARTITION: 3})
    for number in range(8):
        broker.bench.append(broker.log, b"new %d" % number, epoch=1)
    await broker.lose_power()  # of the new records, none was flushed
    assert broker.log.log_end_offset == 3
    assert broker.log.latest_epoch == 0


async def test_a_log_that_begins_anew_below_its_start_keeps_what_it_gets(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.fill()
    broker.log.advance_start(7)
    await broker.bench.directories.write_checkpoints()
    await broker.bench.directories.truncate_fully_and_start_at(PARTITION, 2)
    broker.bench.append(broker.log, b"new", epoch=1)
    broker.bench.flush(broker.log)
    caplog.set_level(logging.WARNING)
    await broker.lose_power()
    assert broker.bench.contents(broker.log) == [(2, b"new")]
    assert "from outside" not in caplog.text


async def test_the_cleaners_offset_goes_back_too(broker: Broker) -> None:
    await broker.fill()
    broker.log.compaction.cleaned_to = 6
    await broker.bench.directories.write_checkpoints()
    await broker.bench.directories.truncate({PARTITION: 3})
    for number in range(8):
        broker.bench.append(broker.log, b"new %d" % number, epoch=1)
    broker.bench.flush(broker.log)
    await broker.lose_power()
    assert broker.log.compaction.cleaned_to == 3


async def test_nothing_is_synced_when_nothing_goes(broker: Broker) -> None:
    await broker.fill(flush=False)
    broker.log.assign_epoch(4, 8)
    before = len(broker.bench.fs.journal)
    await broker.bench.directories.truncate({PARTITION: 8})
    kinds = {each.kind for each in broker.bench.fs.journal[before:]}
    assert not kinds & {"sync", "sync_dir"}
    assert broker.log.latest_epoch == 0


async def test_a_flush_that_begins_in_between_is_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It syncs the names of the log's files, and nothing may be appended before that is done."""
    await broker.fill()
    directories, log = broker.bench.directories, broker.log
    truncate_to, run_in_thread = log.truncate_to, InlineWorkers.run_in_thread
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(workers: InlineWorkers, function: Any, *args: Any) -> Any:
        if not begun.is_set() and isinstance(getattr(function, "__self__", None), flush.FlushJob):
            begun.set()
            await go_on.wait()
        return await run_in_thread(workers, function, *args)

    def truncate_then_flush(offset: int) -> bool:
        directories.group_commit.request(log)
        return truncate_to(offset)

    monkeypatch.setattr(InlineWorkers, "run_in_thread", slow)
    monkeypatch.setattr(log, "truncate_to", truncate_then_flush)
    cutting = asyncio.create_task(directories.truncate({PARTITION: 3}))
    await begun.wait()
    for _ in range(50):
        await asyncio.sleep(0)
        assert not cutting.done()
    assert log.has_unsynced_truncation
    go_on.set()
    await cutting
    assert not log.has_unsynced_truncation
    await broker.lose_power()
    assert broker.values == [b"0", b"1", b"2"]


async def test_without_a_descriptor_it_may_be_tried_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "RETRIES", 0)
    await broker.fill()
    broker.bench.fs.fail(f"{DATA_FOLDER}/*checkpoint*", errno.EMFILE, operations={"open"}, times=1)
    with pytest.raises(OutOfDescriptors):
        await broker.bench.directories.truncate({PARTITION: 3})
    assert broker.log.log_end_offset == 8
    broker.bench.fs.fail("*/leader-epoch-checkpoint", errno.EMFILE, operations={"open"}, times=1)
    broker.log.assign_epoch(1, 8)  # a small file that is to be opened for its sync
    with pytest.raises(OutOfDescriptors):
        await broker.bench.directories.truncate({PARTITION: 3})
    assert broker.log.log_end_offset == 3
    assert broker.log.has_unsynced_truncation
    await broker.bench.directories.truncate({PARTITION: 3})
    await broker.lose_power()
    assert broker.log.log_end_offset == 3


async def test_a_partition_that_is_not_here_is_unknown(broker: Broker) -> None:
    await broker.fill()
    with pytest.raises(KafkaError) as caught:
        await broker.bench.directories.truncate({PARTITION: 3, TopicPartition("other", 0): 1})
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.log.log_end_offset == 8


async def test_aborted_transactions_of_a_segment_rolled_after_its_flush_survive(
    broker: Broker,
) -> None:
    broker.bench.append(
        broker.log, b"a", producer_id=9, producer_epoch=0, sequence=0, transactional=True
    )
    broker.bench.end_transaction(broker.log, 9, commit=False)
    broker.bench.flush(broker.log)
    broker.log.roll()
    broker.bench.append(broker.log, b"b")
    broker.bench.flush(broker.log)
    await broker.bench.directories.write_checkpoints()
    await broker.lose_power()
    assert [txn.first_offset for txn in broker.log.aborted_transactions(0, 3)] == [0]
