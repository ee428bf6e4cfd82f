"""Checkpoints that know whose entries they hold."""

from __future__ import annotations

import logging

import pytest

from ottla.model.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from ottla.storage.checkpoints import OffsetCheckpoint
from ottla.storage.topic_checkpoints import Entry, TopicCheckpoint, id_text
from ottla.testing.files import Crashed, MemoryFileSystem

OLD = TopicId(b"\x01" * 16)
NEW = TopicId(b"\x02" * 16)
T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)
PATH = "/d/log-start-offset-checkpoint"
IDS = "/d/log-start-offset-checkpoint.topic-ids"


@pytest.fixture
def fs() -> MemoryFileSystem:
    made = MemoryFileSystem()
    made.makedirs("/d")
    return made


def write(fs: MemoryFileSystem, *entries: tuple[TopicPartition, int, TopicId]) -> None:
    """A process that writes the checkpoint once."""
    TopicCheckpoint(fs, PATH).write((tp, offset, id_text(owner)) for tp, offset, owner in entries)


def believed(fs: MemoryFileSystem, topic_id: TopicId, partition: TopicPartition = T0) -> int | None:
    """What the next process takes from the checkpoint for a partition of this topic."""
    entry = TopicCheckpoint(fs, PATH).read().get(partition)
    return entry.offset if entry is not None and entry.is_of(topic_id) else None


def test_kafkas_file_stays_as_it_is_and_the_ids_lie_beside_it(fs: MemoryFileSystem) -> None:
    write(fs, (T0, 1000, OLD), (U0, 5, NEW))
    assert fs.read_bytes(PATH) == b"0\n2\nt 0 1000\nu 0 5\n"
    assert fs.read_bytes(IDS).splitlines()[2] == b"t 0 1000 AQEBAQEBAQEBAQEBAQEBAQ"


def test_an_entry_is_believed_of_its_own_topic_only(fs: MemoryFileSystem) -> None:
    write(fs, (T0, 1000, OLD))
    assert believed(fs, OLD) == 1000
    assert believed(fs, NEW) is None


def test_a_folder_that_does_not_say_its_topic_is_not_believed_to_be_the_old_one(
    fs: MemoryFileSystem,
) -> None:
    write(fs, (T0, 1000, OLD))
    assert believed(fs, ZERO_TOPIC_ID) is None


def test_an_entry_written_before_the_topic_was_known_is_believed(fs: MemoryFileSystem) -> None:
    write(fs, (T0, 1000, ZERO_TOPIC_ID))
    assert believed(fs, OLD) == 1000


def test_what_kafka_wrote_is_believed(fs: MemoryFileSystem) -> None:
    OffsetCheckpoint(fs, PATH).write({T0: 7})
    assert believed(fs, OLD) == 7


def test_what_kafka_wrote_after_us_is_believed(fs: MemoryFileSystem) -> None:
    write(fs, (T0, 1000, OLD), (U0, 3, OLD))
    OffsetCheckpoint(fs, PATH).write({T0: 7, U0: 3})
    assert believed(fs, NEW) == 7
    # The same number by chance: ignoring it loses no record.
    assert believed(fs, NEW, U0) is None
    assert believed(fs, OLD, U0) == 3


def test_what_kafka_wrote_is_not_believed_of_the_topic_after(fs: MemoryFileSystem) -> None:
    OffsetCheckpoint(fs, PATH).write({T0: 7, U0: 8})
    checkpoint = TopicCheckpoint(fs, PATH)
    checkpoint.claim(checkpoint.read(), {T0: OLD})
    assert believed(fs, OLD) == 7
    assert believed(fs, NEW) is None
    assert believed(fs, NEW, U0) is None, "its partition was not even there"


def test_a_partition_whose_topic_is_not_known_is_not_claimed(fs: MemoryFileSystem) -> None:
    OffsetCheckpoint(fs, PATH).write({T0: 7})
    checkpoint = TopicCheckpoint(fs, PATH)
    checkpoint.claim(checkpoint.read(), {T0: ZERO_TOPIC_ID})
    assert not fs.exists(IDS)


@pytest.mark.parametrize("ids", [b"", b"0\n1\nt 0 1000\n", b"0\n2\nt 0 1000 x\n", b"\xff\xfe"])
def test_without_readable_ids_no_entry_is_believed(
    ids: bytes, fs: MemoryFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    write(fs, (T0, 1000, OLD))
    fs.write_atomic(IDS, ids)
    with caplog.at_level(logging.WARNING):
        assert believed(fs, OLD) is None
    assert IDS in caplog.text


def test_a_kill_in_any_write_leaves_every_entry_to_its_topic(fs: MemoryFileSystem) -> None:
    """Old topic checkpointed, deleted, made again, checkpointed: never is the old entry believed
    of the new topic, nor the new one of the old."""
    for unreadable in (False, True):
        number = 0
        while True:
            disk = MemoryFileSystem()
            disk.makedirs("/d")
            write(disk, (T0, 1000, OLD))
            if unreadable:
                disk.write_atomic(IDS, b"")
            disk.crash_at(disk.operations + number, torn=number % 3)
            try:
                write(disk, (T0, 3, NEW))
            except Crashed:
                disk = disk.killed()
                assert believed(disk, NEW) in (None, 3)
                assert believed(disk, OLD) in (None, 1000)
                number += 1
                continue
            assert believed(disk, NEW) == 3
            break
        assert number > 4


def test_lines_of_the_time_before_are_dropped_in_the_end(fs: MemoryFileSystem) -> None:
    checkpoint = TopicCheckpoint(fs, PATH)
    for offset in range(5):
        checkpoint.write([(T0, offset, id_text(OLD))])
    assert len(fs.read_bytes(IDS).splitlines()) == 4  # version, number, the last two


def test_nothing_is_written_when_nothing_has_changed(fs: MemoryFileSystem) -> None:
    checkpoint = TopicCheckpoint(fs, PATH)
    checkpoint.write([(T0, 1, id_text(OLD))])
    before = fs.operations
    checkpoint.write([(T0, 1, id_text(OLD))])
    assert fs.operations == before
    checkpoint.write([(T0, 1, id_text(NEW))])
    assert fs.operations > before


def test_a_process_writes_at_least_once(fs: MemoryFileSystem) -> None:
    write(fs, (T0, 1, OLD))
    fs.remove(PATH)
    write(fs, (T0, 1, OLD))
    assert believed(fs, OLD) == 1


def test_an_entry_without_ids_is_anybodys() -> None:
    assert Entry(5).is_of(OLD)
