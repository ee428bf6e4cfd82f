"""Replicas: the partition table follows the image, and tells absent partitions apart."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.cluster.registry import ImageChange
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicId, TopicPartition
from ottla.model.image import ClusterImage
from ottla.model.topic import PartitionState, Topic
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.runtime.workers import Workers
from ottla.storage.directory import LogDirectories
from ottla.testing.clock import ManualClock
from ottla.testing.files import MemoryFileSystem

OURS = PartitionState(1, 0, 0, (1,), (1,))
THEIRS = PartitionState(2, 0, 0, (2,), (2,))


def topic(name: str, *states: PartitionState, number: int = 1, **config: str) -> Topic:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return Topic(name, TopicId(bytes([number]) * 16), states, settings)


class Table:
    """A partition table on a disk in memory, and the image it follows."""

    def __init__(self, workers: Workers, *folders: str) -> None:
        self.fs = MemoryFileSystem()
        self.logs = LogDirectories(
            self.fs, folders or ["/data"], clock=ManualClock(), workers=workers
        )
        self.logs.open_folders()
        self.image = ClusterImage()
        self.replicas = Replicas(
            1,
            self.logs,
            self.logs.group_commit,
            lambda each: TopicConfig.resolve(each.config, BrokerConfig()),
        )

    def show(self, *topics: Topic) -> None:
        new = replace(
            self.image,
            topics={each.name: each for each in topics},
            topic_names={each.id: each.name for each in topics},
        )
        changed = frozenset(self.image.topics) | frozenset(new.topics)
        self.replicas.apply(ImageChange(self.image, new, changed))
        self.image = new

    def code(self, name: str, index: int) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.replicas.by_name(name, index)
        return caught.value.code


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


@pytest.fixture
async def table(workers: Workers) -> AsyncIterator[Table]:
    made = Table(workers)
    made.show()
    yield made
    made.replicas.stop_making()


async def test_a_new_partition_is_there_when_asked_for_by_name_or_id(table: Table):
    table.show(topic("t", OURS, OURS))
    first = table.replicas.by_name("t", 0)
    assert first.id == TopicPartition("t", 0)
    assert table.replicas.by_id(bytes([1]) * 16, 0) is first


async def test_the_partitions_of_a_topic_share_one_value_of_its_settings(table: Table):
    table.show(topic("t", OURS, OURS))
    first, second = (table.replicas.by_name("t", index) for index in (0, 1))
    assert first.log.config is second.log.config
    table.show(topic("t", OURS, OURS, OURS, retention_ms="1000"))
    third = table.replicas.by_name("t", 2)
    assert third.log.config is first.log.config is second.log.config
    assert third.log.config.retention_ms == 1000


async def test_settings_of_a_deleted_topic_are_not_those_of_the_next(table: Table):
    table.show(topic("t", OURS, retention_ms="1000"))
    table.replicas.by_name("t", 0)
    table.show()
    table.show(topic("t", OURS, number=2))
    assert table.replicas.by_name("t", 0).log.config.retention_ms == 604_800_000


async def test_partitions_nobody_asks_for_get_their_files_by_and_by(table: Table):
    table.show(topic("t", *[OURS] * 20))
    assert not table.logs.logs
    async with asyncio.timeout(60):
        while len(table.logs.logs) < 20:
            await asyncio.sleep(0.001)
    assert table.fs.is_dir("/data/t-19")


async def test_absent_partitions_are_told_apart(table: Table):
    table.show(topic("t", OURS, THEIRS))
    assert table.code("nope", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert table.code("t", 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert table.code("t", -1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert table.code("t", 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError) as unknown:
        table.replicas.by_id(bytes(16), 0)
    assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_topic_that_is_made_anew_starts_empty(table: Table):
    table.show(topic("t", OURS, number=1))
    before = table.replicas.by_name("t", 0)
    before.append(memoryview(bytearray(build_batch([(0, None, b"x", ())]))), 0)
    table.show(topic("t", OURS, number=2))
    after = table.replicas.by_name("t", 0)
    assert after is not before
    assert after.log.log_end_offset == 0
    with pytest.raises(KafkaError):
        table.replicas.by_id(bytes([1]) * 16, 0)


async def test_deletion_wakes_those_who_wait_for_records(table: Table):
    table.show(topic("t", OURS))
    woken: list[bool] = []

    class Reader:
        def hurry(self) -> None:
            woken.append(True)

    table.replicas.by_name("t", 0).readable.waiters[Reader()] = None
    table.show()
    assert woken == [True]
    assert table.code("t", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_settings_of_a_topic_reach_its_logs_at_once(table: Table):
    table.show(topic("t", OURS))
    log = table.replicas.by_name("t", 0).log
    table.show(topic("t", OURS, retention_ms="1234"))
    assert log.config.retention_ms == 1234


async def test_a_growing_topic_keeps_its_partitions(table: Table):
    table.show(topic("t", OURS))
    first = table.replicas.by_name("t", 0)
    table.show(topic("t", OURS, OURS))
    assert table.replicas.by_name("t", 0) is first
    assert table.replicas.by_name("t", 1).log.log_end_offset == 0


async def test_partitions_of_a_failed_disk_say_so_and_can_still_be_deleted(table: Table):
    table.show(topic("t", OURS))
    table.replicas.by_name("t", 0)
    table.logs.offline_partitions[TopicPartition("t", 0)] = "damaged"
    table.logs.logs.pop(TopicPartition("t", 0))
    table.replicas.take_offline([TopicPartition("t", 0)])
    assert table.code("t", 0) is ErrorCode.KAFKA_STORAGE_ERROR
    table.show()
    assert [name for name in table.fs.listdir("/data") if name.endswith("-stray")]
    table.show(topic("t", OURS, number=3))
    assert table.replicas.by_name("t", 0).log.log_end_offset == 0


async def test_a_topic_that_cannot_be_followed_holds_up_no_other(table: Table):
    bad = topic("bad", OURS, number=2, retention_ms="for ever")
    table.show(topic("a", OURS, number=1), bad, topic("z", OURS, number=3))
    assert table.replicas.by_name("a", 0).leading
    assert table.replicas.by_name("z", 0).leading


async def test_a_broker_that_ends_makes_no_more_files(table: Table):
    table.replicas.stop_making()
    table.show(topic("t", OURS, OURS))
    for _ in range(10):  # it would be the loop's next turn
        await asyncio.sleep(0)
    assert not table.logs.logs


async def test_a_bug_that_one_topic_meets_is_made_known_when_the_others_are_followed(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    update = Replicas._update

    def broken(replicas: Replicas, topic: Topic, *rest: Any) -> None:
        if topic.name == "bad":
            raise RuntimeError("a bug")
        update(replicas, topic, *rest)

    monkeypatch.setattr(Replicas, "_update", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        table.show(topic("a", OURS, number=1), topic("bad", OURS), topic("z", OURS, number=3))
    assert table.replicas.by_name("a", 0).leading
    assert table.replicas.by_name("z", 0).leading


async def test_a_topic_deleted_while_its_folder_is_offline_is_forgotten(workers: Workers):
    table = Table(workers, "/one", "/two")
    table.show()
    table.show(topic("t", OURS, OURS))
    lost = table.replicas.by_name("t", 0)
    kept = table.replicas.by_name("t", 1)
    lost.log.storage_failed(OSError(errno.EIO, "Input/output error"), "appending")
    table.replicas.take_offline([lost.id])
    assert set(table.logs.offline_partitions) == {lost.id}
    table.show()
    assert not table.logs.offline_partitions
    table.show(topic("t", OURS, OURS, number=2))
    made = table.replicas.by_name("t", 0)
    assert made.log.folder.startswith(kept.log.folder.rpartition("/")[0])
    table.replicas.stop_making()


async def test_a_topic_whose_folder_fails_when_it_is_deleted_is_forgotten(table: Table):
    table.show(topic("t", OURS))
    table.replicas.by_name("t", 0)
    table.fs.fail("/data/t-0", errno.EIO, operations=["rename"])
    table.show()
    assert not table.logs.offline_partitions


async def test_a_partition_that_was_moved_away_is_deleted_here(table: Table):
    both = PartitionState(1, 0, 0, (2, 1), (1,), adding=(2,), removing=(1,))
    table.show(topic("t", both, OURS))
    moved = table.replicas.by_name("t", 0)
    stays = table.replicas.by_name("t", 1)
    records = bytearray(build_batch([(0, None, b"v", ())]))
    moved.append(memoryview(records), 0)
    table.show(topic("t", THEIRS, OURS))
    assert table.code("t", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not moved.leading
    assert not table.fs.exists("/data/t-0")
    assert [name for name in table.fs.listdir("/data") if name.startswith("t-0.")]
    assert table.replicas.by_name("t", 1) is stays
    with pytest.raises(KafkaError):
        moved.append(memoryview(records), 0)


async def test_a_partition_that_comes_back_begins_with_nothing(table: Table):
    table.show(topic("t", OURS))
    records = bytearray(build_batch([(0, None, b"v", ())]))
    table.replicas.by_name("t", 0).append(memoryview(records), 0)
    table.show(topic("t", THEIRS))
    table.show(topic("t", OURS))
    assert table.replicas.by_name("t", 0).log.log_end_offset == 0


async def test_a_new_replica_is_made_although_a_folder_has_failed(workers: Workers):
    table = Table(workers, "/one", "/two")
    table.show(topic("t", THEIRS))
    table.show(topic("t", THEIRS), topic("u", OURS, number=2))
    log = table.replicas.by_name("u", 0).log
    log.storage_failed(OSError(errno.EIO, "Input/output error"), "appending")
    added = replace(THEIRS, replicas=(2, 1), adding=(1,))
    table.show(topic("t", added), topic("u", OURS, number=2))
    made = table.replicas.replica_by_name("t", 0).log
    assert made.folder.rpartition("/")[0] != log.folder.rpartition("/")[0]
    table.replicas.stop_making()


async def test_only_what_has_changed_of_a_topic_is_followed_anew(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    """One leader's commit changes a few of perhaps thousands of partitions."""
    states = [replace(OURS) for _ in range(3)]
    table.show(topic("t", *states))
    for index in range(3):
        table.replicas.by_name("t", index)
    given: list[int] = []
    assign = table.replicas._assign_role

    def note(of: Topic, tp: TopicPartition, partition: Partition) -> None:
        given.append(tp.partition)
        assign(of, tp, partition)

    monkeypatch.setattr(table.replicas, "_assign_role", note)
    table.show(topic("t", states[0], OURS.next_epoch(), states[2]))
    assert given == [1]
    assert table.replicas.by_name("t", 1).leader_epoch == 1
    table.show(topic("t", states[0], OURS.next_epoch(), states[2], retention_ms="1000"))
    assert given == [1, 0, 1, 2], "new settings concern all of them"


async def test_a_topic_that_could_not_be_followed_is_followed_with_its_next_change(table: Table):
    states = [replace(OURS) for _ in range(2)]
    resolve = table.replicas._config_of

    def unknown(_: Topic) -> TopicConfig:
        raise KafkaError(ErrorCode.INVALID_CONFIG, "a setting of a later version")

    table.replicas._config_of = unknown
    table.show(topic("t", *states))
    table.replicas._config_of = resolve
    table.show(topic("t", states[0], OURS.next_epoch()))
    assert [table.replicas.by_name("t", index).leader_epoch for index in (0, 1)] == [0, 1]
