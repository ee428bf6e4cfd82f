"""Logs on a disk in memory, to be opened, crashed and opened again: one, or a data folder of them.

    bench = LogBench(TopicConfig(segment_bytes=1000))
    log = bench.open()
    bench.append(log, b"a", b"b")
    bench = bench.killed()
    assert bench.contents(bench.open()) == [(0, b"a"), (1, b"b")]

`FolderBench` is the same for a whole data folder, as a broker holds it: what a log is told about
itself when it is opened again has gone through the folder's checkpoints.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ottla.config.setting import MAX_DOUBLE
from ottla.config.topic import TopicConfig
from ottla.model.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from ottla.records.batch import HEADER_SIZE, BatchHeader, batches, read_header
from ottla.records.builder import build_batch
from ottla.records.compression import Compression
from ottla.records.control import ControlType, end_marker
from ottla.records.reader import Record, iter_records
from ottla.runtime.workers import Workers
from ottla.storage.cleaning import CleanSummary, clean
from ottla.storage.compaction import Resources
from ottla.storage.directory import LogDirectories
from ottla.storage.log import AppendInfo, Log
from ottla.storage.open_log import LogContext, open_log
from ottla.storage.producers import Origin
from ottla.storage.segment import OpenFiles
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem

if TYPE_CHECKING:
    from ottla.runtime.files import FileSystem
    from ottla.testing.files import Survivor

P = ParamSpec("P")
T = TypeVar("T")

PARTITION = TopicPartition("t", 0)
DATA_FOLDER = "/data"
FOLDER = f"{DATA_FOLDER}/t-0"
_DAY_MS = 86_400_000
_EVERYTHING = 2**31 - 1


class RecordingHost:
    """A `LogHost` that does nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, OSError]] = []
        self.flushes_wanted = 0
        self.discarded: list[str] = []
        self.retention_changes = 0

    def folder_failed(self, log: Log, error: OSError, doing: str) -> None:
        self.failures.append((doing, error))

    def flush_wanted(self, log: Log) -> None:
        self.flushes_wanted += 1

    def discard(self, files: Sequence[str], delay_ms: int) -> None:
        self.discarded += files

    def retention_changed(self, log: Log) -> None:
        self.retention_changes += 1


def log_context(
    fs: FileSystem,
    *,
    clock: ManualClock | None = None,
    host: RecordingHost | None = None,
    open_files: int = 100,
) -> LogContext:
    """What a log needs around it, for tests."""
    return LogContext(
        OpenFiles(fs, open_files),
        host or RecordingHost(),
        clock or ManualClock(),
        random.Random(1),
        _DAY_MS,
    )


class Bench:
    """A disk in memory, a clock, the settings of a topic, and what can be done to a log there."""

    def __init__(
        self,
        config: TopicConfig | None = None,
        *,
        fs: MemoryFileSystem | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.config = config or TopicConfig()
        self.fs = fs or MemoryFileSystem()
        self.clock = clock or ManualClock()
        self.fs.now_ms = self.clock.now_ms()

    def append(
        self,
        log: Log,
        *values: bytes,
        epoch: int = 0,
        timestamp: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> AppendInfo:
        """Append one batch with these values."""
        moment = self.clock.now_ms() if timestamp is None else timestamp
        batch = build_batch(
            [(moment, None, value, ()) for value in values],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        return self.append_bytes(log, batch, epoch=epoch)

    def put(
        self,
        log: Log,
        *records: tuple[bytes | None, bytes | None],
        compression: Compression = Compression.NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> AppendInfo:
        """Append one batch with these keys and values."""
        moment = self.clock.now_ms()
        batch = build_batch(
            [(moment, key, value, ()) for key, value in records],
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        return self.append_bytes(log, batch)

    def end_transaction(
        self, log: Log, producer_id: int, *, commit: bool, producer_epoch: int = 0
    ) -> AppendInfo:
        """Append the marker that ends a producer's transaction."""
        marker = end_marker(
            ControlType.COMMIT if commit else ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=0,
            timestamp=self.clock.now_ms(),
        )
        buffer = memoryview(bytearray(marker))
        now_ms = self.clock.now_ms()
        return log.append(buffer, leader_epoch=0, now_ms=now_ms, origin=Origin.COORDINATOR)

    def append_bytes(self, log: Log, batch: bytes, *, epoch: int = 0) -> AppendInfo:
        """Append a batch; the transactions of these tests have been verified."""
        buffer = memoryview(bytearray(batch))
        now_ms = self.fs.now_ms = self.clock.now_ms()
        guard = None
        if len(buffer) >= HEADER_SIZE:
            header = read_header(buffer)
            if header.is_transactional:
                guard = log.begin_verification(
                    header.producer_id, header.producer_epoch, header.base_sequence
                )
        return log.append(buffer, leader_epoch=epoch, now_ms=now_ms, guard=guard)

    def flush(self, log: Log) -> None:
        """What `GroupCommit` does, on the spot."""
        job = log.begin_flush()
        if job is not None:
            job.run(self.fs)
            log.finish_flush(job, self.clock.now_ms())

    def clean(self, log: Log, *, map_bytes: int = 1 << 20) -> CleanSummary | None:
        """What the log cleaner does, on the spot; None when there is nothing to clean."""
        if log.compaction.awaits_flush:
            self.flush(log)
        now_ms = self.clock.now_ms()
        self.fs.now_ms = now_ms
        found = log.compaction.assess(now_ms)
        if found.cleanable_bytes == 0:
            return None
        plan = log.compaction.plan(found, Resources(map_bytes, 0.9, 65536, MAX_DOUBLE), now_ms)
        for item in clean(self.fs, plan.task):
            if isinstance(item, CleanSummary):
                log.compaction.cleaned_to = item.end_offset
                return item
            assert log.compaction.begin(plan, item)
            self.fs.sync_dir(log.folder)
            files = log.compaction.finish()
            assert files is not None
            self.fs.sync_dir(log.folder)
            for path in files:
                self.fs.remove(path)
        raise AssertionError("a cleaning ended without its summary")

    def batches(self, log: Log) -> list[BatchHeader]:
        """The header of every batch, those without records too."""
        found: list[BatchHeader] = []
        offset = log.first_base_offset
        log_start, log.log_start_offset = log.log_start_offset, offset
        try:
            while region := log.read(offset, _EVERYTHING, upper=log.log_end_offset).region:
                found += [header for _, header in batches(region.read())]
                offset = found[-1].next_offset
        finally:
            log.log_start_offset = log_start
        return found

    def records(self, log: Log) -> list[Record]:
        """Every record of the log, markers included."""
        found: list[Record] = []
        offset = log.log_start_offset
        while region := log.read(offset, _EVERYTHING, upper=log.log_end_offset).region:
            data = region.read()
            for position, header in batches(data):
                found += iter_records(data[position : position + header.size], header)
                offset = header.next_offset
        return found

    def contents(
        self, log: Log, start: int | None = None, upper: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Offset and value of every record a consumer would get."""
        offset = log.log_start_offset if start is None else start
        upper = log.log_end_offset if upper is None else upper
        found: list[tuple[int, bytes]] = []
        while True:
            region = log.read(offset, _EVERYTHING, upper=upper).region
            if region is None:
                return found
            data = region.read()
            for position, header in batches(data):
                found += [
                    (record.offset, record.value or b"")
                    for record in iter_records(data[position : position + header.size], header)
                    if record.offset >= offset
                ]
                offset = header.next_offset


class LogBench(Bench):
    """A folder for one log, with a disk and a clock of its own."""

    def __init__(
        self,
        config: TopicConfig | None = None,
        *,
        fs: MemoryFileSystem | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        super().__init__(config, fs=fs, clock=clock)
        self.host = RecordingHost()
        self.context = log_context(self.fs, clock=self.clock, host=self.host)

    def open(
        self, *, clean: bool = False, recovery_point: int = 0, log_start_offset: int = 0
    ) -> Log:
        return open_log(
            self.context,
            FOLDER,
            PARTITION,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )

    def close(self, log: Log) -> None:
        """Stop cleanly."""
        log.close()
        self.flush(log)
        log.close_files()

    def killed(self) -> LogBench:
        """The same folder as the next process finds it after kill -9."""
        return LogBench(self.config, fs=self.fs.killed(), clock=self.clock)

    def power_lost(
        self, *, survives: Survivor | None = None, zeros: bool = False, names: bool = False
    ) -> LogBench:
        """The same folder after a power cut."""
        lost = self.fs.power_lost(survives=survives, zeros=zeros, names=names)
        return LogBench(self.config, fs=lost, clock=self.clock)


class InlineWorkers(Workers):
    """Workers that do everything on the spot, so that a crash comes at the same place every time.

    What awaits them still gives way to others first, as with threads.
    """

    async def run_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)
        return function(*args, **kwargs)

    run_to_end = run_in_thread
    run_in_child = run_in_thread


class FolderBench(Bench):
    """A data folder as a broker holds it, and the partition `t-0` in it.

    To be used inside one event loop. `open` is the start of a broker, `abandon` its death.
    """

    directories: LogDirectories

    async def load(self) -> None:
        """Open the folder and every log in it."""
        self.directories = LogDirectories(
            self.fs,
            [DATA_FOLDER],
            clock=self.clock,
            workers=InlineWorkers(),
            rng=random.Random(1),
        )
        self.directories.open_folders()
        self.directories.identify(1, "AAAAAAAAAAAAAAAAAAAAAQ")
        await self.directories.load(lambda _: self.config)

    async def open(self, topic_id: TopicId) -> Log:
        """Start a broker whose metadata says that the topic has this id; returns its log."""
        await self.load()
        found = self.directories.find(PARTITION)  # raises when it is offline
        if found is not None and found.topic_id not in (topic_id, ZERO_TOPIC_ID):
            self.directories.set_aside(PARTITION)
        return self.create(topic_id)

    def create(self, topic_id: TopicId) -> Log:
        return self.directories.create(PARTITION, topic_id, self.config)

    def recreate(self, topic_id: TopicId) -> Log:
        """Delete the topic and make it again."""
        self.directories.delete(PARTITION)
        return self.create(topic_id)

    async def idle(self) -> None:
        """Let the background work that is due go on."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def abandon(self) -> None:
        """End everything the broker was doing, as kill -9 does."""
        current = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not current]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.directories.release()
