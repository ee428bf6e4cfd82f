"""The data folders of a broker: start, stop, and what goes wrong in between."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import AsyncIterator

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.workers import Workers
from ottla.storage import paths
from ottla.storage.directory import LogDirectories, StorageSettings, StorageUnavailable
from ottla.storage.folder import DataFolder
from ottla.storage.loader import Progress
from ottla.storage.log import Log
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem

ID = TopicId(b"\x01" * 16)
OTHER_ID = TopicId(b"\x02" * 16)
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
CONFIG = TopicConfig()
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
U0 = TopicPartition("u", 0)


class Broker:
    """What a broker does with its data folders, without the broker."""

    def __init__(self, fs: MemoryFileSystem, workers: Workers, *folders: str) -> None:
        self.fs = fs
        self.clock = ManualClock()
        self.workers = workers
        self.folders = folders or ("/data",)
        self.offline: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.directories = self.make()

    def make(self, fs: MemoryFileSystem | None = None) -> LogDirectories:
        return LogDirectories(
            fs or self.fs,
            self.folders,
            clock=self.clock,
            workers=self.workers,
            on_offline=lambda folder, partitions: self.offline.append((folder, partitions)),
        )

    async def start(self, topic_ids: dict[str, TopicId] | None = None) -> LogDirectories:
        self.directories.open_folders()
        self.directories.identify(1, CLUSTER)
        await self.directories.load(lambda _: CONFIG, topic_ids=topic_ids)
        return self.directories

    async def after_kill(self) -> LogDirectories:
        self.fs = self.fs.killed()
        self.directories = self.make()
        return await self.start()

    async def after_stop(self) -> LogDirectories:
        await self.directories.close()
        self.directories = self.make()
        return await self.start()

    def append(self, log: Log, *values: bytes) -> int:
        records = [(self.clock.now_ms(), None, value, ()) for value in values]
        buffer = memoryview(bytearray(build_batch(records)))
        return log.append(buffer, leader_epoch=0, now_ms=self.clock.now_ms()).base_offset


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


@pytest.fixture
async def broker(workers: Workers) -> Broker:
    made = Broker(MemoryFileSystem(), workers)
    await made.start()
    return made


@pytest.fixture
async def two(workers: Workers) -> Broker:
    made = Broker(MemoryFileSystem(), workers, "/d1", "/d2")
    await made.start()
    return made


def test_a_broker_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LogDirectories(
            MemoryFileSystem(),
            [],
            clock=ManualClock(),
            workers=None,
        )


class TestOwnership:
    async def test_a_folder_in_use_is_refused_by_name(self, broker: Broker) -> None:
        second = broker.make()
        with pytest.raises(StorageUnavailable, match="/data is in use by another proc") as refused:
            second.open_folders()
        assert "a folder of its own with --data-dir (log.dirs in the file)" in str(refused.value)

    async def test_a_closed_folder_can_be_taken(self, broker: Broker) -> None:
        await broker.directories.close()
        broker.make().open_folders()

    async def test_a_new_folder_is_claimed(self, broker: Broker) -> None:
        text = broker.fs.read_bytes("/data/meta.properties").decode()
        assert "node.id=1\n" in text
        assert f"cluster.id={CLUSTER}\n" in text
        meta = broker.directories.meta["/data"]
        assert meta is not None
        assert meta.directory_id is not None
        assert len(meta.directory_id) == 22

    async def test_the_claim_is_kept(self, broker: Broker) -> None:
        before = broker.directories.meta
        assert (await broker.after_stop()).meta == before

    @pytest.mark.parametrize(
        ("node", "cluster", "said"),
        [(2, CLUSTER, "belongs to node 1, and this is node 2"), (1, "other", "cluster")],
    )
    async def test_somebody_elses_folder_is_refused(
        self, broker: Broker, node: int, cluster: str, said: str
    ) -> None:
        await broker.directories.close()
        again = broker.make()
        again.open_folders()
        with pytest.raises(StorageUnavailable, match=said):
            again.identify(node, cluster)

    async def test_an_unreadable_claim_is_refused_with_its_line(self, broker: Broker) -> None:
        await broker.directories.close()
        broker.fs.write_atomic("/data/meta.properties", b"version=99\n")
        with pytest.raises(StorageUnavailable, match=r"meta\.properties, line 1"):
            broker.make().open_folders()

    async def test_a_folder_given_twice_is_one_folder(self, workers: Workers) -> None:
        broker = Broker(MemoryFileSystem(), workers, "/data", "/data/")
        assert (await broker.start()).folders == ("/data",)


class TestPartitions:
    async def test_a_created_log_is_found_again_after_a_kill(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a", b"b")
        again = (await broker.after_kill()).find(T0)
        assert again is not None
        assert (again.log_end_offset, again.topic_id) == (2, ID)

    async def test_creating_what_exists_gives_what_exists(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        assert broker.directories.create(T0, ID, CONFIG) is log

    async def test_another_topic_of_the_same_name_is_refused(self, broker: Broker) -> None:
        broker.directories.create(T0, ID, CONFIG)
        with pytest.raises(KafkaError) as caught:
            broker.directories.create(T0, OTHER_ID, CONFIG)
        assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID

    async def test_a_log_without_an_id_takes_the_topics(self, broker: Broker) -> None:
        broker.directories.create(T0, ID, CONFIG)
        broker.fs.remove("/data/t-0/partition.metadata")
        directories = await broker.after_kill()
        assert directories.create(T0, OTHER_ID, CONFIG).topic_id == OTHER_ID

    async def test_new_logs_go_where_there_are_fewest(self, two: Broker) -> None:
        for number in range(6):
            two.directories.create(TopicPartition("t", number), ID, CONFIG)
        assert len(two.directories.logs_in("/d1")) == len(two.directories.logs_in("/d2")) == 3
        assert T0 in {log.partition for log in two.directories.logs_in("/d1")}

    async def test_creating_never_waits_for_the_disk(self, broker: Broker) -> None:
        before = broker.fs.operations
        broker.directories.create(T0, ID, CONFIG, is_new=True).assign_epoch(0, 0)
        kinds = {each.kind for each in broker.fs.journal[before:]}
        assert not kinds & {"sync", "sync_dir"}

    async def test_an_unknown_partition_is_none(self, broker: Broker) -> None:
        assert broker.directories.find(T0) is None

    async def test_statistics_count_everything(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        broker.directories.create(T1, ID, CONFIG)
        counted = broker.directories.statistics()
        assert counted.partitions == 2
        assert (counted.offline_folders, counted.offline_partitions) == (0, 0)


class TestDeletion:
    async def test_the_folder_is_renamed_at_once_and_removed_later(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, TopicConfig(file_delete_delay_ms=0))
        broker.append(log, b"a")
        broker.directories.delete(T0)
        (renamed,) = [name for name in broker.fs.listdir("/data") if name.endswith("-delete")]
        assert renamed.startswith("t-0.")
        assert broker.directories.find(T0) is None
        with pytest.raises(KafkaError):
            broker.append(log, b"b")
        while broker.fs.exists(f"/data/{renamed}"):
            await asyncio.sleep(0)

    async def test_the_name_is_free_again(self, broker: Broker) -> None:
        broker.append(broker.directories.create(T0, ID, CONFIG), b"a")
        broker.directories.delete(T0)
        assert broker.directories.create(T0, OTHER_ID, CONFIG).log_end_offset == 0

    async def test_what_a_crash_left_to_remove_is_removed_at_start(self, broker: Broker) -> None:
        broker.append(broker.directories.create(T0, ID, CONFIG), b"a")
        broker.directories.delete(T0)
        directories = await broker.after_kill()
        assert directories.logs == {}
        while any(name.endswith("-delete") for name in broker.fs.listdir("/data")):
            await asyncio.sleep(0)

    async def test_deleted_segments_are_removed_after_their_delay(self, broker: Broker) -> None:
        config = TopicConfig(retention_ms=1000, file_delete_delay_ms=0)
        log = broker.directories.create(T0, ID, config)
        broker.append(log, b"a")
        broker.clock.advance(5000)
        assert await broker.directories.apply_retention() == 1
        while any(name.endswith(".deleted") for name in broker.fs.listdir("/data/t-0")):
            await asyncio.sleep(0)
        assert log.log_start_offset == 1

    async def test_deleting_an_unknown_partition_does_nothing(self, broker: Broker) -> None:
        broker.directories.delete(T0)


class TestCleanStop:
    async def test_the_mark_is_written_last(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        before = broker.fs.operations
        await broker.directories.close()
        written = [each.path for each in broker.fs.journal[before:] if each.kind == "rename"]
        assert written[-1] == "/data/.kafka_cleanshutdown.tmp"
        assert broker.fs.read_bytes("/data/.kafka_cleanshutdown") == (
            b'{"version":0,"brokerEpoch":-1}'
        )
        assert broker.fs.read_bytes("/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 1\n"

    async def test_everything_survives_a_power_cut_after_it(self, broker: Broker) -> None:
        broker.fs.sync_dir("/")
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a", b"b")
        log.roll()
        broker.append(log, b"c")
        await broker.directories.close()
        broker.fs = broker.fs.power_lost()
        broker.directories = broker.make()
        again = (await broker.start()).find(T0)
        assert again is not None
        assert (again.log_end_offset, again.segment_count, again.recovery_point) == (3, 2, 3)

    async def test_the_mark_is_gone_while_the_broker_runs(self, broker: Broker) -> None:
        directories = await broker.after_stop()
        assert not broker.fs.exists("/data/.kafka_cleanshutdown")
        assert not broker.fs.power_lost().exists("/data/.kafka_cleanshutdown")
        assert directories.offline_folders == {}

    async def test_a_clean_start_scans_nothing(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a" * 50)
        await broker.directories.close()
        # A wrong checksum is not noticed when nobody looks.
        file = broker.fs.open("/data/t-0/00000000000000000000.log")
        file.pwrite(b"\xff", 100)
        broker.directories = broker.make()
        assert (await broker.start()).find(T0) is not None

    async def test_a_log_whose_records_were_all_deleted_is_not_looked_through_again(
        self, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        log.advance_start(1)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                found = (await broker.after_stop()).find(T0)
                assert found is not None
                assert (found.log_start_offset, found.latest_epoch) == (1, 0)
        assert not caplog.records

    @pytest.mark.parametrize(("pattern", "operation"), [("*", "sync"), ("*index", "append")])
    async def test_no_mark_for_a_folder_that_failed(
        self, two: Broker, pattern: str, operation: str
    ) -> None:
        for number in range(6):
            partition = TopicPartition("t", number)
            two.append(two.directories.create(partition, ID, CONFIG), b"a")
        two.fs.fail(f"/d1/{pattern}", errno.EIO, operations=[operation])
        await two.directories.close()
        assert len(two.directories.offline_partitions) == 3
        assert not two.fs.exists("/d1/.kafka_cleanshutdown")
        assert two.fs.exists("/d2/.kafka_cleanshutdown")

    async def test_log_start_offsets_are_kept(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a", b"b", b"c")
        log.advance_start(2)
        again = (await broker.after_stop()).find(T0)
        assert again is not None
        assert again.log_start_offset == 2
        assert broker.fs.read_bytes("/data/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"

    async def test_high_watermarks_are_kept(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a", b"b")
        log.high_watermark = 1
        broker.directories.create(T1, ID, CONFIG)
        assert (await broker.after_stop()).high_watermarks == {T0: 1}


class TestCheckpoints:
    """What they say about a topic must not be taken for the next one of the same name."""

    async def test_an_old_log_start_hides_nothing_of_a_new_topic(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, *[b"x"] * 20)
        log.advance_start(15)
        await broker.directories.write_checkpoints()
        broker.directories.delete(T0)
        broker.append(broker.directories.create(T0, OTHER_ID, CONFIG), b"a", b"b")
        # Killed before the checkpoints could be rewritten: the ids beside them tell.
        again = (await broker.after_kill()).find(T0)
        assert again is not None
        assert (again.log_start_offset, again.log_end_offset) == (0, 2)

    async def test_deleting_many_partitions_rewrites_the_checkpoints_once(
        self, broker: Broker
    ) -> None:
        for number in range(50):
            log = broker.directories.create(TopicPartition("t", number), ID, CONFIG)
            broker.append(log, *[b"x"] * 20)
            log.advance_start(15)
        broker.directories.create(U0, ID, CONFIG)
        await broker.directories.write_checkpoints()
        name = "/data/recovery-point-offset-checkpoint"
        before = broker.fs.operations
        for number in range(50):
            broker.directories.delete(TopicPartition("t", number))
        while broker.fs.read_bytes(name) != b"0\n1\nu 0 0\n":
            await asyncio.sleep(0)
        await broker.directories.close()
        written = [each.path for each in broker.fs.journal[before:] if each.kind == "rename"]
        assert written.count(f"{name}.tmp") == 1
        assert broker.fs.read_bytes("/data/log-start-offset-checkpoint") == b"0\n0\n"

    async def test_a_log_set_aside_leaves_the_checkpoints_at_once(self, broker: Broker) -> None:
        broker.append(broker.directories.create(T0, ID, CONFIG), b"a")
        await broker.directories.write_checkpoints()
        assert broker.directories.set_aside(T0) is not None
        while broker.fs.read_bytes("/data/recovery-point-offset-checkpoint") != b"0\n0\n":
            await asyncio.sleep(0)

    async def test_a_damaged_log_keeps_its_entries_until_it_is_set_aside(
        self, broker: Broker
    ) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        for _ in range(3):
            broker.append(log, b"x" * 50)
        log.advance_start(1)
        await broker.directories.group_commit.wait_flushed(log, 3)
        await broker.directories.write_checkpoints()
        size = broker.fs.size("/data/t-0/00000000000000000000.log")
        # Damage in the last batch: without the recovery point it would look like a torn write.
        broker.fs.open("/data/t-0/00000000000000000000.log").pwrite(b"\xff", size - 10)
        for _ in range(2):
            directories = await broker.after_kill()
            assert "records that were flushed" in directories.offline_partitions[T0]
            directories.create(U0, ID, CONFIG)
            await directories.write_checkpoints()
        for name, kept in (
            ("recovery-point-offset-checkpoint", b"t 0 3\n"),
            ("log-start-offset-checkpoint", b"t 0 1\n"),
        ):
            assert kept in broker.fs.read_bytes(f"/data/{name}")
        directories.set_aside(T0)
        await directories.close()
        assert broker.fs.read_bytes("/data/log-start-offset-checkpoint") == b"0\n0\n"

    async def test_a_folder_that_kafka_wrote_is_believed_once(self, broker: Broker) -> None:
        broker.append(broker.directories.create(T0, ID, CONFIG), *[b"x"] * 20)
        for name in list(broker.fs.listdir("/data")):
            if name.endswith(".topic-ids"):
                broker.fs.remove(f"/data/{name}")
        broker.fs.write_atomic("/data/log-start-offset-checkpoint", b"0\n1\nt 0 15\n")
        directories = await broker.after_kill()
        assert directories.logs[T0].log_start_offset == 15
        directories.delete(T0)
        broker.append(directories.create(T0, OTHER_ID, CONFIG), b"a")
        directories = await broker.after_kill()
        assert directories.logs[T0].log_start_offset == 0
        assert directories.logs[T0].log_end_offset == 1

    async def test_a_log_that_ends_before_its_start_goes_on_there_and_keeps_its_files(
        self, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, *[b"x"] * 20)
        log.advance_start(15)
        await broker.directories.write_checkpoints()
        segment = "/data/t-0/00000000000000000000.log"
        for number in (0, 1):
            fs = broker.fs = broker.fs.killed()
            fs.write_atomic(segment, content := build_batch([(0, None, b"%d" % number, ())]))
            broker.directories = broker.make()
            with caplog.at_level(logging.WARNING):
                again = (await broker.start()).logs[T0]
            assert (again.log_start_offset, again.log_end_offset) == (15, 15)
            aside = f"{segment}.aside" if number == 0 else f"{segment}.1.aside"
            assert fs.read_bytes(aside) == content
            assert aside in caplog.text
            assert broker.append(again, b"goes on") == 15
            fs.remove("/data/t-0/00000000000000000015.log")


class TestStopping:
    async def test_a_checkpoint_that_is_being_written_is_waited_for(self, workers: Workers) -> None:
        """Its thread would otherwise write what was true earlier over what `close` has written, or
        into the folder of the next broker."""
        fs = HeldFileSystem()
        broker = Broker(fs, workers)
        await broker.start()
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        broker.directories.create(U0, ID, CONFIG)
        fs.hold("recovery-point-offset-checkpoint")
        broker.directories.delete(U0)  # begins to write the checkpoints
        await asyncio.to_thread(fs.reached.wait, 60)
        closing = asyncio.create_task(broker.directories.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        with pytest.raises(StorageUnavailable, match="in use"):
            broker.make().open_folders()
        fs.go_on.set()
        await closing
        assert fs.read_bytes("/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 1\n"
        operations = fs.operations
        await asyncio.sleep(0)
        assert fs.operations == operations


class HeldFileSystem(MemoryFileSystem):
    """One whose next atomic write of a name stops until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._held = ""

    def hold(self, name: str) -> None:
        self._held = name

    def write_atomic(self, path: str, data: bytes) -> None:
        if self._held and path.endswith(self._held):
            self._held = ""
            self.reached.set()
            assert self.go_on.wait(30)
        super().write_atomic(path, data)


class TestLoading:
    async def test_an_unclean_start_scans_from_the_recovery_point(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        log.roll()
        broker.append(log, b"b")
        await broker.directories.group_commit.wait_flushed(log, 2)
        await broker.directories.write_checkpoints()
        fs = broker.fs.killed()
        # The first segment was flushed and is not looked at; the second is.
        fs.open("/data/t-0/00000000000000000000.log").pwrite(b"\xff", 65)
        broker.fs = fs
        broker.directories = broker.make()
        assert (await broker.start()).find(T0) is not None

    async def test_a_damaged_log_is_offline_alone(
        self, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        for partition in (T0, T1):
            log = broker.directories.create(partition, ID, CONFIG)
            for _ in range(3):
                broker.append(log, b"x" * 50)
        broker.fs.open("/data/t-0/00000000000000000000.log").pwrite(b"\xff", 80)
        with caplog.at_level(logging.ERROR):
            directories = await broker.after_kill()
        assert directories.logs.keys() == {T1}
        with pytest.raises(KafkaError) as caught:
            directories.find(T0)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(KafkaError):
            directories.create(T0, ID, CONFIG)
        with pytest.raises(KafkaError):
            directories.delete(T0)
        assert [record.message for record in caplog.records] == [directories.offline_partitions[T0]]
        assert "/data/t-0/00000000000000000000.log is damaged at position 0" in caplog.text

    async def test_a_partition_in_two_folders_is_served_from_neither(
        self, two: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        two.append(two.directories.create(T0, ID, CONFIG), b"a")
        two.directories.create(U0, ID, CONFIG)
        two.fs.makedirs("/d2/t-0")
        with caplog.at_level(logging.ERROR):
            directories = await two.after_kill()
        assert directories.logs.keys() == {U0}
        assert "more than one data folder" in caplog.text

    async def test_other_names_in_the_folder_are_left_alone(
        self, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("lost+found", "__cluster_metadata-0", f"t-7.{'a' * 32}-future"):
            broker.fs.makedirs(f"/data/{name}")
        broker.fs.write_atomic("/data/notes-3", b"a file, not a folder")
        with caplog.at_level(logging.WARNING):
            directories = await broker.after_kill()
        assert directories.logs == {}
        assert "-future is left alone" in caplog.text
        assert broker.fs.exists(f"/data/t-7.{'a' * 32}-future")

    @pytest.mark.parametrize(
        "name",
        [*paths.CHECKPOINTS, *(name + paths.TOPIC_IDS_SUFFIX for name in paths.CHECKPOINTS)],
    )
    async def test_an_unreadable_checkpoint_costs_time_but_nothing_else(
        self, broker: Broker, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker.append(broker.directories.create(T0, ID, CONFIG), b"a")
        await broker.directories.write_checkpoints()
        broker.fs.write_atomic(f"/data/{name}", b"0\n5\nrubbish\n")
        with caplog.at_level(logging.WARNING):
            again = (await broker.after_kill()).find(T0)
        assert again is not None
        assert again.log_end_offset == 1
        assert name in caplog.text

    async def test_progress_is_told_once_it_takes_longer_than_a_second(
        self, broker: Broker
    ) -> None:
        for number in range(5):
            broker.directories.create(TopicPartition(f"t{number}", 0), ID, CONFIG)
        broker.fs = broker.fs.killed()
        directories = broker.make()
        directories.open_folders()
        told: list[Progress] = []

        def slow_config(_: str) -> TopicConfig:
            broker.clock.advance(600)
            return CONFIG

        await directories.load(slow_config, progress=told.append)
        assert [(each.loaded, each.total) for each in told] == [(2, 5), (4, 5)]

    async def test_a_quick_start_tells_nothing(self, broker: Broker) -> None:
        broker.directories.create(T0, ID, CONFIG)
        broker.fs = broker.fs.killed()
        directories = broker.make()
        directories.open_folders()
        told: list[Progress] = []
        await directories.load(lambda _: CONFIG, progress=told.append)
        assert told == []


class TestFailure:
    async def test_one_failed_folder_leaves_the_other_serving(
        self, two: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        logs = [
            two.directories.create(TopicPartition("t", number), ID, CONFIG) for number in range(4)
        ]
        two.fs.fail("/d1/*.log", errno.ENOSPC, operations=["append"])
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                with pytest.raises(KafkaError) as caught:
                    two.append(logs[0], b"a")
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        two.append(logs[1], b"a")
        with pytest.raises(KafkaError):
            logs[2].read(0, 10, upper=1)
        assert two.directories.logs.keys() == {logs[1].partition, logs[3].partition}
        assert two.offline == [("/d1", (T0, TopicPartition("t", 2)))]
        assert len(caplog.records) == 1
        assert "data folder /d1 is offline with 2 partitions: appending failed in" in caplog.text
        assert list(two.directories.offline_folders) == ["/d1"]
        assert two.directories.statistics().offline_partitions == 2

    async def test_nothing_old_is_made_anew_while_a_folder_is_away(self, two: Broker) -> None:
        two.append(two.directories.create(T0, ID, CONFIG), b"precious")
        two.fs = two.fs.killed()
        two.fs.fail("/d1/*", errno.EIO, operations=["read", "open"])
        two.directories = two.make()
        directories = await two.start()
        with pytest.raises(KafkaError, match="/d1 are offline"):
            directories.create(T0, ID, CONFIG)
        assert directories.create(U0, ID, CONFIG, is_new=True).log_end_offset == 0

    async def test_a_read_only_folder_is_offline_from_the_start(
        self, two: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        await two.directories.close()
        two.fs.read_only("/d1")
        two.directories = two.make()
        with caplog.at_level(logging.ERROR):
            directories = await two.start()
        assert directories.folders == ("/d2",)
        assert "read-only" in caplog.text

    async def test_without_a_single_folder_there_is_no_start(self, broker: Broker) -> None:
        await broker.directories.close()
        broker.fs.fail("/data*", errno.EACCES, operations=["open", "create", "mkdir"])
        with pytest.raises(StorageUnavailable, match="permission is denied"):
            broker.make().open_folders()

    async def test_a_failed_flush_takes_the_folder_offline(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, TopicConfig(flush_messages=1))
        broker.append(log, b"a")
        broker.fs.fail("*.log", errno.EIO, operations=["sync"], times=1)
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            await broker.directories.group_commit.wait_flushed(log, 1)
        assert broker.offline == [("/data", (T0,))]

    async def test_a_checkpoint_that_cannot_be_written_takes_the_folder_offline(
        self, broker: Broker
    ) -> None:
        broker.directories.create(T0, ID, CONFIG)
        broker.fs.fail("*checkpoint*", errno.ENOSPC, operations=["append"])
        await broker.directories.write_checkpoints()
        assert "writing checkpoints failed" in broker.directories.offline_folders["/data"]

    async def test_a_folder_that_fails_while_creating(self, broker: Broker) -> None:
        broker.fs.fail("/data/t-0*", errno.ENOSPC, operations=["mkdir"])
        with pytest.raises(KafkaError, match="creating t-0 failed"):
            broker.directories.create(T0, ID, CONFIG)
        assert broker.directories.folders == ()

    async def test_a_folder_that_fails_while_deleting(self, broker: Broker) -> None:
        broker.directories.create(T0, ID, CONFIG)
        broker.fs.fail("/data/*", errno.EROFS, operations=["rename"])
        with pytest.raises(KafkaError, match="deleting t-0 failed"):
            broker.directories.delete(T0)


class TestSchedule:
    async def test_flush_ms_flushes_what_is_old(self, broker: Broker) -> None:
        directories = broker.directories
        log = directories.create(T0, ID, TopicConfig(flush_ms=500))
        never = directories.create(T1, ID, CONFIG)
        for each in (log, never):
            broker.append(each, b"a")
        directories._schedule.flush_old()
        await directories.group_commit.wait_idle()
        assert log.recovery_point == 0
        broker.clock.advance(500)
        assert directories._schedule.flush_old() == 0.5
        await directories.group_commit.wait_idle()
        assert (log.recovery_point, never.recovery_point) == (1, 0)

    async def test_producers_expire(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        batch = build_batch(
            [(broker.clock.now_ms(), None, b"v", ())],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
        )
        log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=broker.clock.now_ms())
        broker.clock.advance(86_400_000)
        assert await broker.directories._schedule.expire_producers() == 1

    async def test_a_rolled_segment_is_flushed_in_the_background(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        log.roll()
        await broker.directories.group_commit.wait_idle()
        assert log.recovery_point == 1

    async def test_it_starts_and_stops(self, broker: Broker) -> None:
        settings = StorageSettings(
            initial_task_delay_ms=0, high_watermark_checkpoint_interval_ms=1_000_000
        )
        directories = LogDirectories(
            broker.fs, ["/other"], clock=broker.clock, workers=broker.workers, settings=settings
        )
        directories.open_folders()
        await directories.load(lambda _: CONFIG)
        directories.start_schedule()
        while not broker.fs.exists("/other/replication-offset-checkpoint"):
            await asyncio.sleep(0)
        await directories.close()
        assert len(asyncio.all_tasks()) == 1


class TestAFolderThatCannotBe:
    """A path where no folder can be made: which part of it is why, and what to do."""

    @pytest.mark.parametrize(
        ("folder", "said"),
        [
            ("/notes", "the data folder /notes is a file; name another with --data-dir"),
            ("/notes/a/b", "the data folder /notes/a/b cannot be made: /notes is a file; name"),
        ],
    )
    def test_since_a_file_is_in_the_way(self, workers: Workers, folder: str, said: str) -> None:
        fs = MemoryFileSystem()
        fs.write_atomic("/notes", b"milk")
        broker = Broker(fs, workers, folder)
        with pytest.raises(StorageUnavailable, match=said):
            broker.directories.open_folders()

    @pytest.mark.parametrize(
        ("number", "said"),
        [
            (errno.EACCES, "cannot be made: this user may not write in /srv; allow it, or name"),
            (errno.ENOENT, "cannot be made in /srv: No such file or directory; name another"),
            (errno.EROFS, "cannot be made in /srv: Read-only file system; name another"),
        ],
    )
    def test_since_the_folder_above_refuses(
        self, workers: Workers, number: int, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fs = MemoryFileSystem()
        fs.makedirs("/srv")

        def refuse(path: str) -> None:
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr(fs, "makedirs", refuse)
        broker = Broker(fs, workers, "/srv/data")
        with pytest.raises(StorageUnavailable, match=f"the data folder /srv/data {said}"):
            broker.directories.open_folders()


class TestLosses:
    """Records that were there once, and are not."""

    async def test_they_are_known_until_somebody_else_knows(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        broker.append(log, b"b")
        broker.directories.create(T1, ID, CONFIG)
        file = broker.fs.open("/data/t-0/00000000000000000000.log")
        file.pwrite(b"\xff", file.size() - 1)
        assert (await broker.after_kill()).lost_partitions == {T0}
        assert (await broker.after_stop()).lost_partitions == {T0}
        broker.directories.losses_are_known()
        assert not broker.directories.lost_partitions
        assert not (await broker.after_kill()).lost_partitions

    async def test_a_damaged_log_is_one(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        broker.append(log, b"b")
        broker.fs.open("/data/t-0/00000000000000000000.log").pwrite(b"\xff", 65)
        directories = await broker.after_kill()
        assert set(directories.damaged) == directories.lost_partitions == {T0}
        directories.losses_are_known()
        assert (await broker.after_kill()).damaged == {T0: ID}, "as long as it lies there"
        broker.directories.set_aside(T0)
        assert not broker.directories.damaged
        assert not broker.directories.lost_partitions

    async def test_a_log_without_one_of_its_files_is_one(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        for _ in range(3):
            broker.append(log, b"a")
            log.roll()
        for suffix in (".log", ".index", ".timeindex"):
            broker.fs.remove(f"/data/t-0/00000000000000000001{suffix}")
        directories = await broker.after_kill()
        assert directories.find(T0) is not None
        assert set(directories.damaged) == directories.lost_partitions == {T0}
        directories.delete(T0)
        assert not directories.damaged

    async def test_a_log_below_its_high_watermark_is_one(self, broker: Broker) -> None:
        log = broker.directories.create(T0, ID, CONFIG)
        broker.append(log, b"a")
        size = log.size
        broker.append(log, b"b")
        log.high_watermark = 2
        await broker.directories.close()
        broker.fs.open("/data/t-0/00000000000000000000.log").truncate(size)
        for name in (
            "recovery-point-offset-checkpoint",
            "recovery-point-offset-checkpoint.topic-ids",
        ):
            broker.fs.remove(f"/data/{name}")
        broker.directories = broker.make()
        assert (await broker.start()).lost_partitions == {T0}
        assert (await broker.after_stop()).lost_partitions == {T0}

    async def test_a_log_that_is_gone_is_one(self, broker: Broker) -> None:
        broker.append(broker.directories.create(T0, ID, CONFIG), b"a")
        broker.append(broker.directories.create(U0, OTHER_ID, CONFIG), b"a")
        broker.directories.create(T1, ID, CONFIG)  # without records
        await broker.directories.close()
        for name in ("t-0", "t-1", "u-0"):
            broker.fs.remove_tree(f"/data/{name}")
        broker.directories = broker.make()
        directories = await broker.start({"t": ID, "u": ID})  # another topic is called u now
        assert directories.lost_partitions == {T0}
        for partition in (T0, T1, U0):
            directories.create(partition, ID, CONFIG)
        assert (await broker.after_kill()).lost_partitions == {T0}
        broker.directories.losses_are_known()
        assert not (await broker.after_kill()).lost_partitions

    async def test_of_two_logs_that_of_an_earlier_topic_goes_aside(self, two: Broker) -> None:
        for id_, text in ((ID, "1"), (OTHER_ID, "2")):
            two.fs.makedirs(f"/d{text}/t-0")
            two.append(two.directories.create(TopicPartition("x", int(text)), id_, CONFIG), b"x")
        await two.directories.close()
        for text in "12":
            [name] = [each for each in two.fs.listdir(f"/d{text}") if each.startswith("x-")]
            two.fs.remove_tree(f"/d{text}/t-0")
            two.fs.rename(f"/d{text}/{name}", f"/d{text}/t-0")
        two.directories = two.make()
        directories = await two.start({"t": OTHER_ID})
        log = directories.find(T0)
        assert log is not None
        assert (log.topic_id, log.log_end_offset) == (OTHER_ID, 1)
        assert not directories.lost_partitions
        kept = [each for each in two.fs.listdir("/d1") if each.endswith("-stray")]
        assert len(kept) == 1


def test_a_data_folder_that_was_just_made_outlives_a_power_cut() -> None:
    fs = MemoryFileSystem()
    folder = DataFolder("/srv/ottla/data")
    folder.open(fs)
    folder.release()
    assert fs.power_lost().is_dir("/srv/ottla/data")


def test_a_data_folder_is_made_below_one_that_may_not_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    fs = MemoryFileSystem()
    monkeypatch.setattr(fs, "sync_dir", refuse)
    folder = DataFolder("/srv/data")
    folder.open(fs)
    folder.release()
    assert fs.is_dir("/srv/data")
