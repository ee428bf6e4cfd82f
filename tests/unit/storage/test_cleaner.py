"""The log cleaner at work: what it takes first, and what it does when a log changes under it."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicId, TopicPartition
from ottla.records.batch import batches
from ottla.records.builder import build_batch
from ottla.records.reader import iter_records
from ottla.runtime.workers import ChildDied, Workers
from ottla.storage import cleaner as cleaner_module
from ottla.storage import paths
from ottla.storage.cleaner import CleanerSettings
from ottla.storage.cleaning import CleanTask, clean
from ottla.storage.directory import LogDirectories, StorageSettings
from ottla.storage.log import Log
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
COMPACT = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    internal_segment_bytes=10_000,
    min_cleanable_dirty_ratio=0,
)
CHECKPOINT = "/data/cleaner-offset-checkpoint"


def topic_id(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b"-"))


class Broker:
    """The data folder of a broker, and its cleaner, worked step by step."""

    def __init__(self, fs: MemoryFileSystem, workers: Workers, clock: ManualClock) -> None:
        self.fs = fs
        self.workers = workers
        self.clock = clock
        self.logs = LogDirectories(
            fs, ["/data"], clock=clock, workers=workers, settings=StorageSettings()
        )
        self.cleaner = self.logs.cleaner

    async def start(self, config: TopicConfig = COMPACT) -> Broker:
        self.logs.open_folders()
        self.logs.identify(1, CLUSTER)
        await self.logs.load(lambda _: config)
        return self

    async def after_kill(self) -> Broker:
        return await Broker(self.fs.killed(), self.workers, self.clock).start()

    def create(self, name: str, config: TopicConfig = COMPACT) -> Log:
        return self.logs.create(TopicPartition(name, 0), topic_id(name), config)

    def put(self, log: Log, key: bytes, value: bytes | None = b"v") -> None:
        batch = build_batch([(self.clock.now_ms(), key, value, ())])
        log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=self.clock.now_ms())

    def fill(self, name: str, keys: int, times: int = 2, config: TopicConfig = COMPACT) -> Log:
        """A log whose first segment has each key that often, and an empty active one."""
        log = self.create(name, config)
        for _ in range(times):
            for key in range(keys):
                self.put(log, b"%d" % key)
        log.roll()
        return log

    async def clean(self) -> bool:
        await self.logs.group_commit.wait_idle()  # what was not flushed is not cleaned
        return await self.cleaner.clean_dirtiest(self.workers)

    def offsets(self, log: Log) -> list[int]:
        found: list[int] = []
        offset = log.log_start_offset
        while region := log.read(offset, 1 << 20, upper=log.log_end_offset).region:
            data = region.read()
            for position, header in batches(data):
                found += [each.offset for each in iter_records(data[position:], header)]
                offset = header.next_offset
        return found

    def leftovers(self, log: Log) -> list[str]:
        return [name for name in self.fs.listdir(log.folder) if "clean" in name or "swap" in name]


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


@pytest.fixture
async def broker(workers: Workers) -> Broker:
    return await Broker(MemoryFileSystem(), workers, ManualClock()).start()


def on_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    """Called in a thread: do something on the event loop and wait for it."""

    async def act() -> None:
        action()

    asyncio.run_coroutine_threadsafe(act(), loop).result()


@pytest.fixture
async def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have something happen after the first new segment was written, before it is swapped in."""
    loop = asyncio.get_running_loop()

    def arrange(action: Callable[[], object]) -> None:
        def interrupted(fs: MemoryFileSystem, task: CleanTask) -> Any:
            for number, item in enumerate(clean(fs, task)):
                if number == 0:
                    on_loop(loop, action)
                yield item

        monkeypatch.setattr(cleaner_module, "clean", interrupted)

    return arrange


class TestChoosing:
    async def test_the_dirtiest_log_comes_first(self, broker: Broker) -> None:
        half, dirty = broker.fill("half", 10), broker.fill("dirty", 10)
        assert await broker.clean()
        assert await broker.clean()
        for log, count in ((half, 4), (dirty, 40)):
            for _ in range(count):
                broker.put(log, b"0")
            log.roll()
        assert await broker.clean()
        assert dirty.compaction.cleaned_to == 60
        assert half.compaction.cleaned_to == 20

    async def test_logs_of_other_policies_are_left_alone(self, broker: Broker) -> None:
        for number, policy in enumerate((("delete",), ())):
            config = replace_policy(*policy)
            broker.fill(f"t{number}", 3, config=config)
        assert not await broker.clean()

    async def test_compact_and_delete_is_compacted(self, broker: Broker) -> None:
        log = broker.fill("both", 3, config=replace_policy("compact", "delete"))
        assert await broker.clean()
        assert broker.offsets(log) == [3, 4, 5]

    async def test_below_the_ratio_nothing_happens_until_the_ratio_changes(
        self, broker: Broker
    ) -> None:
        log = broker.fill("t", 100)
        assert await broker.clean()
        broker.put(log, b"0")
        log.roll()
        log.config = topic_config(min_cleanable_dirty_ratio=0.5)
        assert not await broker.clean()
        log.config = topic_config(min_cleanable_dirty_ratio=0.001)
        assert await broker.clean()

    async def test_young_records_are_left_for_the_minimum_lag(self, broker: Broker) -> None:
        log = broker.fill("t", 3, config=topic_config(min_compaction_lag_ms=1000))
        broker.clock.advance(500)
        broker.put(log, b"0")
        log.roll()
        assert not await broker.clean()
        broker.clock.advance(500)
        assert await broker.clean()
        assert log.compaction.cleaned_to == 6
        assert broker.offsets(log) == [3, 4, 5, 6]

    async def test_the_maximum_lag_rolls_and_forces(self, broker: Broker) -> None:
        config = topic_config(max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1.0)
        log = broker.create("t", config)
        broker.put(log, b"0")
        broker.put(log, b"0")
        broker.clock.advance(1000)
        assert not await broker.clean()
        broker.clock.advance(1)
        assert not await broker.clean()  # rolled, not flushed yet
        assert await broker.clean()
        assert broker.offsets(log) == [1]

    async def test_an_active_segment_is_not_due(self, broker: Broker) -> None:
        log = broker.create("t")
        broker.put(log, b"0")
        assert not await broker.clean()

    async def test_the_cleaner_can_be_turned_off(self, workers: Workers) -> None:
        broker = await Broker(MemoryFileSystem(), workers, ManualClock()).start()
        broker.cleaner.reconfigure(CleanerSettings(enable=False))
        broker.cleaner.start()
        assert not broker.cleaner._tasks
        broker.cleaner.reconfigure(CleanerSettings(threads=3))
        assert len(broker.cleaner._tasks) == 3
        broker.cleaner.reconfigure(CleanerSettings(threads=1))
        assert len(broker.cleaner._tasks) == 1
        await broker.cleaner.stop()


class TestCheckpoint:
    async def test_it_is_kafkas_and_is_read_again(self, broker: Broker) -> None:
        broker.fill("t", 5)
        await broker.clean()
        assert broker.fs.read_bytes(CHECKPOINT) == b"0\n1\nt 0 10\n"
        broker = await broker.after_kill()
        assert broker.logs.logs[TopicPartition("t", 0)].compaction.cleaned_to == 10
        assert not await broker.clean()

    async def test_a_damaged_one_means_cleaning_from_the_start(self, broker: Broker) -> None:
        broker.fill("t", 5)
        await broker.clean()
        broker.fs.write_atomic(CHECKPOINT, b"0\n7\nt 0")
        broker = await broker.after_kill()
        log = broker.logs.logs[TopicPartition("t", 0)]
        assert log.compaction.assess(0).first_dirty_offset == 0

    @pytest.mark.parametrize("offset", [11, 10**9])
    async def test_beyond_the_end_it_says_nothing(self, broker: Broker, offset: int) -> None:
        broker.fill("t", 5)
        await broker.logs.write_checkpoints()
        broker.fs.write_atomic(CHECKPOINT, b"0\n1\nt 0 %d\n" % offset)
        broker = await broker.after_kill()
        log = broker.logs.logs[TopicPartition("t", 0)]
        for _ in range(50):
            broker.put(log, b"0")
        assert log.compaction.assess(0).first_dirty_offset == 0

    async def test_it_does_not_outlive_its_topic(self, broker: Broker) -> None:
        log = broker.fill("t", 5)
        await broker.clean()
        broker.logs.delete(log.partition)
        again = broker.logs.create(log.partition, TopicId(b"other".ljust(16)), COMPACT)
        for _ in range(20):
            broker.put(again, b"0")
        broker = await broker.after_kill()
        log = broker.logs.logs[TopicPartition("t", 0)]
        assert log.compaction.cleaned_to is None

    async def test_a_truncation_takes_it_back(self, broker: Broker) -> None:
        log = broker.fill("t", 5)
        await broker.clean()
        log.truncate_to(7)
        assert log.compaction.cleaned_to == 7


class TestChanges:
    """What happens to a log while it is cleaned."""

    async def test_deletion_of_the_topic(self, broker: Broker, meanwhile: Any) -> None:
        log = broker.fill("t", 5)
        meanwhile(lambda: broker.logs.delete(log.partition))
        assert await broker.clean()
        assert broker.cleaner.statistics().given_up == 1
        assert not broker.cleaner.uncleanable

    async def test_a_topic_of_the_same_name(self, broker: Broker, meanwhile: Any) -> None:
        log = broker.fill("t", 5)
        again: list[Log] = []

        def recreate() -> None:
            broker.logs.delete(log.partition)
            again.append(broker.fill("t", 7))

        meanwhile(recreate)
        assert await broker.clean()
        assert broker.offsets(again[0]) == list(range(14))
        assert again[0].compaction.cleaned_to is None

    async def test_delete_records_of_what_is_cleaned(self, broker: Broker, meanwhile: Any) -> None:
        log = broker.fill("t", 5)
        broker.put(log, b"x")
        log.roll()

        def delete() -> None:
            log.advance_start(10)
            log.delete_old(broker.clock.now_ms())

        meanwhile(delete)
        assert await broker.clean()
        assert broker.cleaner.statistics().given_up == 1
        assert (log.log_start_offset, broker.offsets(log)) == (10, [10])
        await eventually_empty(broker, log)

    async def test_a_log_start_inside_of_what_is_cleaned(
        self, broker: Broker, meanwhile: Any
    ) -> None:
        log = broker.fill("t", 5)
        meanwhile(lambda: log.advance_start(7))
        assert await broker.clean()
        assert broker.cleaner.statistics().runs == 1
        assert [each for each in broker.offsets(log) if each >= 7] == [7, 8, 9]

    async def test_retention(self, broker: Broker, meanwhile: Any) -> None:
        config = replace_policy("compact", "delete")
        log = broker.fill("t", 5, config=config)

        def retain() -> None:
            broker.clock.advance(config.retention_ms + 1)
            log.delete_old(broker.clock.now_ms())

        meanwhile(retain)
        assert await broker.clean()
        assert (log.log_start_offset, broker.offsets(log)) == (10, [])
        assert log.failure is None
        await eventually_empty(broker, log)

    async def test_a_truncation(self, broker: Broker, meanwhile: Any) -> None:
        log = broker.fill("t", 5)
        meanwhile(lambda: log.truncate_to(6))
        assert await broker.clean()
        assert broker.offsets(log) == [0, 1, 2, 3, 4, 5]
        assert log.compaction.cleaned_to is None
        await eventually_empty(broker, log)

    async def test_another_policy(self, broker: Broker, meanwhile: Any) -> None:
        log = broker.fill("t", 5)

        def change() -> None:
            log.config = replace_policy("delete")

        meanwhile(change)
        assert await broker.clean()
        assert broker.offsets(log) == list(range(10))
        assert not await broker.clean()
        await eventually_empty(broker, log)

    async def test_other_settings_of_the_cleaner(self, broker: Broker, meanwhile: Any) -> None:
        log = broker.fill("t", 5)
        meanwhile(lambda: broker.cleaner.reconfigure(CleanerSettings(bytes_per_second=1e9)))
        assert await broker.clean()
        assert broker.offsets(log) == list(range(10))
        assert broker.cleaner.statistics().given_up == 1

    async def test_a_retention_pass_between_the_two_steps_of_a_swap(self, broker: Broker) -> None:
        log = broker.fill("t", 5)
        broker.put(log, b"x")
        log.roll()
        sync_dir = broker.fs.sync_dir
        seen: list[list[str]] = []
        loop = asyncio.get_running_loop()

        def retain() -> None:
            log.advance_start(10)
            log.delete_old(broker.clock.now_ms())
            seen.append(broker.leftovers(log))

        def during(path: str) -> None:
            sync_dir(path)
            if path == log.folder and any(".swap" in name for name in broker.fs.listdir(path)):
                on_loop(loop, retain)

        broker.fs.sync_dir = during
        assert await broker.clean()
        assert seen
        assert not [name for name in seen[0] if name.endswith((".swap", ".cleaned"))]
        assert (log.log_start_offset, broker.offsets(log)) == (10, [10])
        assert broker.cleaner.statistics().given_up == 1

    async def test_files_that_are_gone_by_then_are_not_missed(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when the topic is deleted: nobody is told of the failure, not even the log."""
        log = broker.fill("t", 5)
        loop = asyncio.get_running_loop()
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: told.append(context))

        def deprived(fs: MemoryFileSystem, task: CleanTask) -> Any:
            on_loop(loop, lambda: broker.cleaner.reconfigure(CleanerSettings(bytes_per_second=1e9)))
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            yield

        monkeypatch.setattr(cleaner_module, "clean", deprived)
        assert await broker.clean()
        gc.collect()
        assert broker.cleaner.statistics().given_up == 1
        assert log.failure is None
        assert told == []

    async def test_stopping_in_the_middle(self, broker: Broker, meanwhile: Any) -> None:
        log = broker.fill("t", 5)
        begun = asyncio.Event()
        meanwhile(begun.set)
        work = asyncio.create_task(broker.clean())
        await begun.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert broker.offsets(log) in (list(range(10)), [5, 6, 7, 8, 9])
        assert not [each for each in broker.fs.listdir(log.folder) if each.endswith(".swap")]


class TestTrouble:
    async def test_a_damaged_log_is_uncleanable_and_the_others_go_on(
        self, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad, good = broker.fill("bad", 10), broker.fill("good", 5)
        broker.fs.open(f"{bad.folder}/{paths.log_name(0)}").pwrite(b"\xff", 200)
        while await broker.clean():
            pass
        assert broker.offsets(good) == [5, 6, 7, 8, 9]
        assert list(broker.cleaner.uncleanable) == [bad.partition]
        assert "ottla log repair" in broker.cleaner.uncleanable[bad.partition]
        assert "bad-0 cannot be compacted" in caplog.text
        assert bad.failure is None
        found = broker.cleaner.statistics()
        assert (found.uncleanable, found.uncleanable_bytes) == (1, bad.size)
        broker.logs.delete(bad.partition)
        assert broker.cleaner.statistics().uncleanable == 0

    async def test_a_full_disk_postpones(self, broker: Broker) -> None:
        log = broker.fill("t", 5)
        broker.fs.fail("*.cleaned", errno.ENOSPC, times=1)
        assert await broker.clean()
        assert log.failure is None
        assert not await broker.clean()
        broker.clock.advance(60_000)
        assert await broker.clean()
        assert broker.offsets(log) == [5, 6, 7, 8, 9]

    async def test_replaced_files_go_also_when_no_descriptor_is_free_afterwards(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = broker.fill("t", 5, config=topic_config(file_delete_delay_ms=0))
        await broker.logs.group_commit.wait_idle()
        sync_dir, in_place = broker.fs.sync_dir, f"{log.folder}/{paths.log_name(0)}.deleted"

        def short(path: str) -> None:
            if broker.fs.exists(in_place):
                raise OSError(errno.EMFILE, "Too many open files", path)
            sync_dir(path)

        monkeypatch.setattr(broker.fs, "sync_dir", short)
        assert await broker.clean()
        assert broker.cleaner.statistics().runs == 0
        assert broker.offsets(log) == [5, 6, 7, 8, 9]
        async with asyncio.timeout(60):
            while any(name.endswith(".deleted") for name in broker.fs.listdir(log.folder)):
                await asyncio.sleep(0.01)

    async def test_a_failing_disk_takes_its_folder_offline(self, broker: Broker) -> None:
        log = broker.fill("t", 5)
        broker.fs.fail("*.cleaned", errno.EIO)
        assert await broker.clean()
        assert log.failure is not None
        assert "compacting failed" in log.failure

    async def test_leftovers_are_gone_before_the_next_cleaning_begins(self, broker: Broker) -> None:
        log = broker.fill("t", 5)
        stale = f"{log.folder}/{paths.log_name(0)}.cleaned"
        broker.fs.fail("*.index.cleaned", errno.ENOSPC, times=1)
        assert await broker.clean()
        assert not broker.leftovers(log)
        broker.fs.write_atomic(stale, b"of a process that was killed")
        broker.clock.advance(60_000)
        assert await broker.clean()
        assert broker.offsets(log) == [5, 6, 7, 8, 9]

    async def test_a_new_segment_that_is_not_what_was_written_is_refused(
        self, broker: Broker, meanwhile: Any
    ) -> None:
        log = broker.fill("t", 5)
        path = f"{log.folder}/{paths.log_name(0)}.cleaned"
        meanwhile(lambda: broker.fs.open(path).truncate(10))
        assert await broker.clean()
        assert "bytes of its segment" in broker.cleaner.uncleanable[log.partition]
        assert broker.offsets(log) == list(range(10))

    async def test_a_process_that_dies_twice_over_a_log(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = broker.fill("t", 5)

        def dies(fs: MemoryFileSystem, task: CleanTask) -> Any:
            raise ChildDied("the child ended with signal SIGKILL")
            yield

        monkeypatch.setattr(cleaner_module, "clean", dies)
        assert await broker.clean()
        assert not broker.cleaner.uncleanable
        assert await broker.clean()
        assert "dedupe.buffer.size" in broker.cleaner.uncleanable[log.partition]
        assert not await broker.clean()


def topic_config(**settings: Any) -> TopicConfig:
    known: dict[str, Any] = {
        "cleanup_policy": frozenset({"compact"}),
        "internal_segment_bytes": 10_000,
        "min_cleanable_dirty_ratio": 0,
    }
    return TopicConfig(**(known | settings))


def replace_policy(*policy: str) -> TopicConfig:
    return topic_config(cleanup_policy=frozenset(policy))


async def eventually_empty(broker: Broker, log: Log) -> None:
    """Nothing of an unfinished cleaning stays in the folder."""
    async with asyncio.timeout(20):
        while broker.leftovers(log):
            await asyncio.sleep(0.01)
