"""No free descriptor: nothing is lost, no folder goes offline, and it works when tried again."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, end_marker
from ottla.runtime.workers import Workers
from ottla.storage import flush
from ottla.storage.directory import LogDirectories, StorageUnavailable
from ottla.storage.faults import OutOfDescriptors
from ottla.storage.log import Log
from ottla.storage.producers import Origin
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem
from ottla.testing.logs import LogBench

T = TypeVar("T")
CONFIG = TopicConfig(segment_bytes=400, index_interval_bytes=1, file_delete_delay_ms=0)
OPENING = ["open", "read"]
ID = TopicId(b"\x07" * 16)
T0 = TopicPartition("t", 0)


def repeated(call: Callable[[], T]) -> T:
    """Do it until it works, as a client does; only the want of a descriptor is forgiven."""
    for _ in range(50):
        try:
            return call()
        except OutOfDescriptors:
            continue
    raise AssertionError("it never works")


def abort(bench: LogBench, log: Log, producer: int, epoch: int) -> None:
    marker = end_marker(
        ControlType.ABORT,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=bench.clock.now_ms(),
    )
    log.append(
        memoryview(bytearray(marker)),
        leader_epoch=epoch,
        now_ms=bench.clock.now_ms(),
        origin=Origin.COORDINATOR,
    )


def life(bench: LogBench, log: Log) -> list[tuple[int, bytes]]:
    """A log's life with everything in it that opens a file; returns what was acknowledged."""
    acknowledged: list[tuple[int, bytes]] = []
    sequences = {1: 0, 2: 0}
    for number in range(24):
        value, producer, epoch = b"%d" % number, number % 3, number // 8
        if producer == 0:
            append = partial(bench.append, log, value, epoch=epoch)
        else:
            append = partial(
                bench.append,
                log,
                value,
                epoch=epoch,
                producer_id=producer,
                producer_epoch=0,
                sequence=sequences[producer],
                transactional=True,
            )
            sequences[producer] += 1
        info = repeated(append)
        assert not info.duplicate
        acknowledged.append((info.base_offset, value))
        if producer:
            repeated(partial(abort, bench, log, producer, epoch))
        if number == 15:
            repeated(partial(log.advance_start, 6))
            repeated(partial(log.delete_old, bench.clock.now_ms()))
            repeated(lambda: log.read(6, 1000, upper=log.log_end_offset))
            repeated(lambda: log.aborted_transactions(6, 20))
    return [(offset, value) for offset, value in acknowledged if offset >= 6]


def facts(bench: LogBench, log: Log) -> list[object]:
    """What must not depend on where descriptors were missing."""
    end = log.log_end_offset
    data = [each for each in bench.contents(log) if each[1].isdigit()]
    return [
        data,
        (log.log_start_offset, end),
        log.aborted_transactions(6, end),
        [log.epoch_end_offset(epoch) for epoch in range(4)],
        [log.latest_epoch, log.producers()],
    ]


@pytest.mark.parametrize("times", [1, 2, 5])
def test_wherever_a_descriptor_is_missing_nothing_is_lost(times: int) -> None:
    plain = LogBench(CONFIG)
    log = plain.open(clean=True)
    expected_data = life(plain, log)
    expected = facts(plain, log)
    assert expected[0] == expected_data
    assert log.segment_count > 4
    for missing in range(120):
        bench = LogBench(CONFIG)
        log = bench.open(clean=True)
        bench.fs.fail("*", errno.EMFILE, operations=OPENING, after=missing, times=times)
        life(bench, log)
        bench.fs.heal()
        assert log.failure is None
        assert bench.host.failures == []
        assert facts(bench, log) == expected, missing
        killed = bench.killed()
        start = log.log_start_offset
        assert facts(killed, killed.open(log_start_offset=start)) == expected, missing
        assert log.close()
        bench.flush(log)
        stopped = bench.killed()
        again = stopped.open(clean=True, recovery_point=log.log_end_offset, log_start_offset=start)
        assert facts(stopped, again) == expected, missing


def test_an_abort_is_not_forgotten_with_what_was_truncated_behind_it() -> None:
    bench = LogBench()
    log = bench.open()
    bench.append(
        log, b"a", producer_id=1, producer_epoch=0, sequence=0, transactional=True, epoch=0
    )
    log.aborted_transactions(0, 1)
    bench.fs.fail("*.txnindex", errno.EMFILE, times=1)
    abort(bench, log, 1, 0)
    bench.append(log, b"b")
    log.truncate_to(2)
    aborted = log.aborted_transactions(0, 2)
    assert [each.producer_id for each in aborted] == [1]
    log.roll()
    bench.close(log)
    assert bench.open(clean=True, recovery_point=2).aborted_transactions(0, 2) == aborted


def test_a_log_that_cannot_be_closed_says_so() -> None:
    bench = LogBench(CONFIG)
    log = bench.open(clean=True)
    bench.append(log, b"a")
    bench.fs.fail("*", errno.EMFILE, operations=OPENING)
    assert not log.close()
    assert log.failure is None


def test_half_a_truncation_takes_the_log_offline_and_not_its_folder() -> None:
    bench = LogBench(CONFIG)
    log = bench.open(clean=True)
    for number in range(30):
        bench.append(log, b"%d" % number)
    log.close_files()
    bench.fs.fail("*", errno.EMFILE, operations=OPENING)
    with pytest.raises(KafkaError) as caught:
        log.truncate_to(3)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failure is not None
    assert bench.host.failures == []


# --- the folders --------------------------------------------------------------------------------


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


@pytest.fixture
async def directories(workers: Workers) -> LogDirectories:
    return await started(MemoryFileSystem(), workers)


async def started(fs: MemoryFileSystem, workers: Workers) -> LogDirectories:
    made = LogDirectories(fs, ["/d"], clock=ManualClock(), workers=workers)
    made.open_folders()
    made.identify(1, "cluster")
    await made.load(lambda _: CONFIG)
    return made


def append(log: Log, value: bytes) -> None:
    batch = build_batch([(1, None, value, ())])
    log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=1)


async def test_a_flush_waits_for_descriptors(
    directories: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "RETRY_SECONDS", 0)
    fs: MemoryFileSystem = directories._fs
    log = directories.create(T0, ID, CONFIG, is_new=True)
    for _ in range(10):
        append(log, b"x" * 100)
    fs.sync_dir("/")
    fs.fail("*", errno.ENFILE, operations=OPENING, times=7)
    await directories.group_commit.wait_flushed(log, log.log_end_offset)
    assert log.recovery_point == log.log_end_offset
    assert directories.offline_folders == {}
    survivor = fs.power_lost()
    assert survivor.exists("/d/t-0/partition.metadata")
    fs.heal()
    await directories.close()


async def test_a_checkpoint_waits_for_its_next_turn(
    directories: LogDirectories, workers: Workers
) -> None:
    fs: MemoryFileSystem = directories._fs
    append(directories.create(T0, ID, CONFIG, is_new=True), b"a")
    fs.fail("*-offset-checkpoint*", errno.EMFILE, operations=["open"])
    await directories.write_checkpoints()
    assert directories.offline_folders == {}
    await directories.close()
    assert not fs.exists("/d/.kafka_cleanshutdown"), "what is behind must be recovered"
    fs.heal()
    again = await started(fs, workers)
    assert again.logs[T0].log_end_offset == 1
    await again.close()
    assert fs.exists("/d/.kafka_cleanshutdown")


async def test_a_partition_that_cannot_be_made_now_is_made_later(
    directories: LogDirectories,
) -> None:
    fs: MemoryFileSystem = directories._fs
    for missing in range(20):
        tp = TopicPartition("t", missing)
        fs.fail("*", errno.EMFILE, operations=OPENING, after=missing, times=1)
        log = repeated(partial(directories.create, tp, ID, CONFIG, is_new=True))
        fs.heal()
        append(log, b"a")
        assert log.topic_id == ID
    assert directories.offline_folders == {}
    assert directories.offline_partitions == {}
    await directories.close()


async def test_a_start_without_descriptors_blames_no_disk(workers: Workers) -> None:
    fs = MemoryFileSystem()
    directories = await started(fs, workers)
    append(directories.create(T0, ID, CONFIG, is_new=True), b"a")
    await directories.close()
    fs.fail("*.log", errno.EMFILE, operations=["open"])
    fs.fail("*.index", errno.EMFILE, operations=["open"])
    fs.fail("*/meta.properties", errno.EMFILE, operations=["read"])
    with pytest.raises(StorageUnavailable, match="limit on open files"):
        await started(fs, workers)
    fs.heal()
    again = await started(fs, workers)
    assert again.logs[T0].log_end_offset == 1
    await again.close()
