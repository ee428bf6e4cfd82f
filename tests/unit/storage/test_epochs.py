"""Leader epochs of a log: the rules of Kafka's epoch cache."""

from __future__ import annotations

import pytest

from ottla.storage.checkpoints import CheckpointError
from ottla.storage.epochs import EpochStart, LeaderEpochs
from ottla.testing.files import MemoryFileSystem

PATH = "/d/leader-epoch-checkpoint"


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.makedirs("/d")
    return system


@pytest.fixture
def epochs(fs: MemoryFileSystem) -> LeaderEpochs:
    return LeaderEpochs(fs, PATH)


def filled(epochs: LeaderEpochs, *entries: tuple[int, int]) -> LeaderEpochs:
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_a_new_log_has_no_epoch(epochs: LeaderEpochs) -> None:
    assert epochs.latest is None
    assert epochs.entries == ()
    assert epochs.end_offset_for(0, 100) == (-1, -1)


def test_an_epoch_keeps_its_first_offset(epochs: LeaderEpochs) -> None:
    filled(epochs, (2, 10), (2, 11), (2, 500))
    assert epochs.entries == (EpochStart(2, 10),)
    assert epochs.latest == 2


def test_the_same_epoch_at_an_earlier_offset_replaces(epochs: LeaderEpochs) -> None:
    filled(epochs, (2, 10), (2, 7))
    assert epochs.entries == (EpochStart(2, 7),)


def test_an_epoch_that_wrote_nothing_is_dropped(epochs: LeaderEpochs) -> None:
    filled(epochs, (1, 0), (2, 10), (3, 10))
    assert epochs.entries == (EpochStart(1, 0), EpochStart(3, 10))


def test_contradicted_entries_are_dropped(epochs: LeaderEpochs) -> None:
    filled(epochs, (1, 0), (4, 20), (6, 30), (3, 25))
    assert epochs.entries == (EpochStart(1, 0), EpochStart(3, 25))
    filled(epochs, (8, 5))
    assert epochs.entries == (EpochStart(1, 0), EpochStart(8, 5))


@pytest.mark.parametrize(("epoch", "offset"), [(-1, 0), (0, -1)])
def test_negative_numbers_are_no_entry(epochs: LeaderEpochs, epoch: int, offset: int) -> None:
    with pytest.raises(ValueError, match="epoch"):
        epochs.assign(epoch, offset)


def test_an_epoch_that_is_known_stays_where_it_began_when_a_later_one_is_contradicted(
    epochs: LeaderEpochs,
) -> None:
    filled(epochs, (1, 0), (2, 10), (5, 20), (2, 20))
    assert epochs.entries == (EpochStart(1, 0), EpochStart(2, 10))


def test_an_elected_leaders_epoch_is_written_with_its_first_batch(
    fs: MemoryFileSystem, epochs: LeaderEpochs
) -> None:
    filled(epochs, (1, 0))
    before = fs.operations
    epochs.begin(4, 10)
    assert fs.operations == before
    assert epochs.end_offset_for(2, 10) == (1, 10)
    assert epochs.end_offset_for(4, 10) == (4, 10)
    assert LeaderEpochs(fs, PATH).entries == (EpochStart(1, 0),)
    epochs.assign(4, 10)
    assert LeaderEpochs(fs, PATH).entries == epochs.entries == (EpochStart(1, 0), EpochStart(4, 10))


class TestEndOffset:
    """Entries (2, 5), (4, 10), (7, 20); the log ends at 30."""

    @pytest.mark.parametrize(
        ("requested", "answer"),
        [
            (-1, (-1, -1)),  # undefined: nothing can be said
            (0, (0, 5)),  # before the first: it ended where the first begins
            (1, (1, 5)),
            (2, (2, 10)),
            (3, (2, 10)),  # never existed here: the one before it, and its end
            (4, (4, 20)),
            (6, (4, 20)),
            (7, (7, 30)),  # the latest: the end of the log
            (8, (-1, -1)),  # later than the latest
        ],
    )
    def test_end_offset_for(
        self, epochs: LeaderEpochs, requested: int, answer: tuple[int, int]
    ) -> None:
        filled(epochs, (2, 5), (4, 10), (7, 20))
        assert epochs.end_offset_for(requested, 30) == answer


def test_the_epoch_of_an_offset_is_found(epochs: LeaderEpochs) -> None:
    filled(epochs, (2, 5), (4, 10))
    assert [epochs.epoch_for(offset) for offset in (4, 5, 9, 10, 99)] == [None, 2, 2, 4, 4]


class TestTruncation:
    @pytest.mark.parametrize(
        ("end", "left"),
        [
            (30, ((2, 5), (4, 10), (7, 20))),
            (21, ((2, 5), (4, 10), (7, 20))),
            (20, ((2, 5), (4, 10))),
            (11, ((2, 5), (4, 10))),
            (10, ((2, 5),)),
            (5, ()),
            (0, ()),
            (-1, ((2, 5), (4, 10), (7, 20))),
        ],
    )
    def test_from_the_end(
        self, fs: MemoryFileSystem, epochs: LeaderEpochs, end: int, left: tuple[EpochStart, ...]
    ) -> None:
        filled(epochs, (2, 5), (4, 10), (7, 20)).truncate_from_end(end)
        assert epochs.entries == left
        assert LeaderEpochs(fs, PATH).entries == left

    @pytest.mark.parametrize(
        ("start", "left"),
        [
            (0, ((2, 5), (4, 10), (7, 20))),
            (5, ((2, 5), (4, 10), (7, 20))),
            (6, ((2, 6), (4, 10), (7, 20))),
            (10, ((4, 10), (7, 20))),
            (19, ((4, 19), (7, 20))),
            (20, ((7, 20),)),
            (99, ((7, 99),)),
        ],
    )
    def test_from_the_start(
        self, fs: MemoryFileSystem, epochs: LeaderEpochs, start: int, left: tuple[EpochStart, ...]
    ) -> None:
        filled(epochs, (2, 5), (4, 10), (7, 20)).truncate_from_start(start)
        assert epochs.entries == left
        assert LeaderEpochs(fs, PATH).entries == left

    def test_an_empty_log_can_be_truncated(self, epochs: LeaderEpochs) -> None:
        epochs.truncate_from_end(0)
        epochs.truncate_from_start(5)
        assert epochs.entries == ()


class TestFile:
    def test_the_format_is_kafkas(self, fs: MemoryFileSystem, epochs: LeaderEpochs) -> None:
        filled(epochs, (0, 0), (3, 17))
        assert fs.read_bytes(PATH) == b"0\n2\n0 0\n3 17\n"

    def test_entries_survive(self, fs: MemoryFileSystem, epochs: LeaderEpochs) -> None:
        filled(epochs, (0, 0), (3, 17))
        again = LeaderEpochs(fs.killed(), PATH)
        assert again.entries == epochs.entries

    def test_clearing_clears_the_file(self, fs: MemoryFileSystem, epochs: LeaderEpochs) -> None:
        filled(epochs, (0, 0)).clear()
        assert LeaderEpochs(fs, PATH).entries == ()

    def test_a_known_epoch_does_not_write(self, fs: MemoryFileSystem, epochs: LeaderEpochs) -> None:
        filled(epochs, (1, 0))
        fs.remove(PATH)
        epochs.assign(1, 100)
        epochs.truncate_from_end(50)
        epochs.truncate_from_start(0)
        assert not fs.exists(PATH)

    @pytest.mark.parametrize("line", ["1", "1 2 3", "one 2", "-1 2", "1 -2"])
    def test_a_malformed_line_is_named(self, fs: MemoryFileSystem, line: str) -> None:
        fs.write_atomic(PATH, f"0\n2\n0 0\n{line}\n".encode())
        with pytest.raises(CheckpointError) as caught:
            LeaderEpochs(fs, PATH)
        assert (caught.value.path, caught.value.line) == (PATH, 4)
