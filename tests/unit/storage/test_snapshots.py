"""The files of producer snapshots."""

from __future__ import annotations

import pytest

from ottla.model.ids import TopicPartition
from ottla.records.batch import MAGIC, BatchHeader
from ottla.storage.producers import ProducerStates
from ottla.storage.snapshots import ProducerSnapshots
from ottla.testing.files import Crashed, MemoryFileSystem

PARTITION = TopicPartition("orders", 3)
NOW = 1_700_000_000_000
DAY = 86_400_000


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.makedirs("/d")
    return system


def states_at(offset: int) -> ProducerStates:
    """A log with one record at each offset, all of one producer."""
    states = ProducerStates(PARTITION, offset - 1)
    header = BatchHeader(0, 100, 0, MAGIC, 0, 0, 0, NOW, NOW, 7, 0, offset - 1, 1)
    states.update(header, offset - 1)
    return states


def snapshots_at(fs: MemoryFileSystem, *offsets: int) -> ProducerSnapshots:
    snapshots = ProducerSnapshots(fs, "/d")
    for offset in offsets:
        snapshots.take(states_at(offset))
    return snapshots


def reload(snapshots: ProducerSnapshots, states: ProducerStates, start: int, end: int) -> list[str]:
    return snapshots.reload(
        states, log_start_offset=start, log_end_offset=end, now_ms=NOW, expiration_ms=DAY
    )


def test_a_snapshot_is_named_after_the_end_of_the_log(fs: MemoryFileSystem) -> None:
    snapshots = ProducerSnapshots(fs, "/d")
    assert snapshots.take(states_at(42)) == "/d/00000000000000000042.snapshot"
    assert fs.read_bytes("/d/00000000000000000042.snapshot") == states_at(42).snapshot()
    assert snapshots.offsets == (42,)


def test_nothing_is_written_twice(fs: MemoryFileSystem) -> None:
    snapshots = snapshots_at(fs, 42)
    fs.remove("/d/00000000000000000042.snapshot")
    assert snapshots.take(states_at(42)) is None
    assert not fs.exists("/d/00000000000000000042.snapshot")


def test_a_log_without_records_takes_no_snapshot(fs: MemoryFileSystem) -> None:
    snapshots = ProducerSnapshots(fs, "/d")
    assert snapshots.take(ProducerStates(PARTITION, 0)) is None


def test_existing_files_are_found(fs: MemoryFileSystem) -> None:
    snapshots_at(fs, 10, 300)
    fs.write_atomic("/d/00000000000000000005.log", b"")
    fs.write_atomic("/d/00000000000000000005.snapshot.deleted", b"")
    assert ProducerSnapshots(fs, "/d").offsets == (10, 300)


def test_a_longer_leftover_of_that_name_is_replaced_whole(fs: MemoryFileSystem) -> None:
    snapshots = ProducerSnapshots(fs, "/d")
    fs.write_atomic("/d/00000000000000000042.snapshot", bytes(5000))
    snapshots.take(states_at(42))
    assert fs.read_bytes("/d/00000000000000000042.snapshot") == states_at(42).snapshot()


class TestReload:
    def test_the_newest_snapshot_is_loaded(self, fs: MemoryFileSystem) -> None:
        states = ProducerStates(PARTITION)
        assert reload(snapshots_at(fs, 10, 20), states, 0, 25) == []
        assert states.end_offset == 20
        assert states.statistics() == states_at(20).statistics()

    def test_snapshots_outside_of_the_log_are_removed(self, fs: MemoryFileSystem) -> None:
        snapshots = snapshots_at(fs, 10, 20, 30)
        states = ProducerStates(PARTITION)
        reload(snapshots, states, 10, 29)
        assert states.end_offset == 20
        assert snapshots.offsets == (20,)
        assert fs.listdir("/d") == ["00000000000000000020.snapshot"]

    def test_a_corrupt_one_is_passed_over_and_told(self, fs: MemoryFileSystem) -> None:
        snapshots = snapshots_at(fs, 10, 20)
        fs.write_atomic("/d/00000000000000000020.snapshot", b"torn")
        states = ProducerStates(PARTITION)
        (problem,) = reload(snapshots, states, 0, 25)
        assert problem.startswith("/d/00000000000000000020.snapshot: 4 bytes")
        assert states.end_offset == 10
        assert snapshots.offsets == (10,)

    def test_without_any_the_log_is_replayed_from_its_start(self, fs: MemoryFileSystem) -> None:
        states = states_at(99)
        assert reload(ProducerSnapshots(fs, "/d"), states, 5, 99) == []
        assert states.end_offset == 5
        assert len(states) == 0

    def test_a_crash_while_writing_is_survived(self, fs: MemoryFileSystem) -> None:
        snapshots_at(fs, 10)
        crashes = 0
        for operation in range(10):
            for torn in (0, 3, 20):
                disk = fs.killed()
                disk.crash_at(operation, torn=torn)
                try:
                    ProducerSnapshots(disk, "/d").take(states_at(20))
                except Crashed:
                    crashes += 1
                states = ProducerStates(PARTITION)
                reload(ProducerSnapshots(disk.killed(), "/d"), states, 0, 20)
                assert states.end_offset in (10, 20)
                assert states.statistics() == states_at(states.end_offset).statistics()
        assert crashes > 3


class TestRemoval:
    def test_before_the_start(self, fs: MemoryFileSystem) -> None:
        snapshots = snapshots_at(fs, 10, 20, 30)
        snapshots.remove_before(20)
        assert snapshots.offsets == ProducerSnapshots(fs, "/d").offsets == (20, 30)

    def test_all(self, fs: MemoryFileSystem) -> None:
        snapshots = snapshots_at(fs, 10, 20)
        snapshots.clear()
        assert snapshots.offsets == ProducerSnapshots(fs, "/d").offsets == ()

    @pytest.mark.parametrize(
        ("taken", "bases", "left"),
        [
            ((10, 15, 20), [0, 10, 20], (10, 20)),
            ((10, 25), [0, 10, 20], (10, 25)),  # 25: taken at a clean shutdown
            ((10, 22, 25), [0, 10, 20], (10, 25)),
            ((5, 7), [10], ()),
            ((5, 7), [], (7,)),
            ((), [0], ()),
        ],
    )
    def test_strays_go_but_for_the_one_at_the_end(
        self, fs: MemoryFileSystem, taken: tuple[int, ...], bases: list[int], left: tuple[int, ...]
    ) -> None:
        snapshots = snapshots_at(fs, *taken)
        snapshots.remove_strays(bases)
        assert snapshots.offsets == ProducerSnapshots(fs, "/d").offsets == left

    def test_a_file_that_is_gone_already_does_not_matter(self, fs: MemoryFileSystem) -> None:
        snapshots = snapshots_at(fs, 10)
        fs.remove("/d/00000000000000000010.snapshot")
        snapshots.clear()
        assert snapshots.offsets == ()
