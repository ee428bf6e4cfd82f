"""The index of aborted transactions."""

from __future__ import annotations

import errno

import pytest

from ottla.storage import txn_index
from ottla.storage.producers import CompletedTxn
from ottla.storage.txn_index import AbortedTxn, TransactionIndex, TxnIndexError
from ottla.testing.files import MemoryFileSystem

PATH = "/d/00000000000000000100.txnindex"

# What Apache Kafka 4.2's TransactionIndex writes for these two.
FIRST = AbortedTxn(77, 100, 120, 115)
SECOND = AbortedTxn(78, 115, 130, 131)
JAVA = bytes.fromhex(
    "0000000000000000004d000000000000006400000000000000780000000000000073"
    "0000000000000000004e000000000000007300000000000000820000000000000083"
)


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.makedirs("/d")
    return system


@pytest.fixture
def index(fs: MemoryFileSystem) -> TransactionIndex:
    return TransactionIndex(fs, PATH)


def test_the_file_is_made_with_the_first_entry(
    fs: MemoryFileSystem, index: TransactionIndex
) -> None:
    assert list(index) == []
    assert index.collect_aborted(0, 1000) == ([], False)
    assert not index.exists()
    index.append(FIRST)
    assert index.exists()


def test_the_format_is_javas(fs: MemoryFileSystem, index: TransactionIndex) -> None:
    index.append(FIRST)
    index.append(SECOND)
    assert fs.read_bytes(PATH) == JAVA


def test_javas_file_is_read(fs: MemoryFileSystem) -> None:
    fs.write_atomic(PATH, JAVA)
    assert list(TransactionIndex(fs, PATH)) == [FIRST, SECOND]


def test_a_completed_transaction_can_be_appended_as_it_is(
    fs: MemoryFileSystem, index: TransactionIndex
) -> None:
    index.append(CompletedTxn(77, 100, 120, True, 115))
    assert list(index) == list(TransactionIndex(fs, PATH)) == [FIRST]


def test_markers_only_go_forward(index: TransactionIndex) -> None:
    index.append(SECOND)
    for late in (SECOND, FIRST):
        with pytest.raises(ValueError, match="not after"):
            index.append(late)
    assert list(index) == [SECOND]


@pytest.mark.parametrize(
    ("fetch_offset", "upper", "expected", "complete"),
    [
        (0, 100, [], True),  # ends before the first began, which was stable up to 115
        (0, 101, [FIRST], True),
        (120, 131, [FIRST, SECOND], True),
        (121, 131, [SECOND], True),
        (121, 132, [SECOND], False),
        (131, 200, [], False),
        (110, 115, [FIRST], True),
        (110, 116, [FIRST, SECOND], True),
    ],
)
def test_transactions_that_touch_the_range_are_collected(
    index: TransactionIndex,
    fetch_offset: int,
    upper: int,
    expected: list[AbortedTxn],
    complete: bool,
) -> None:
    index.append(FIRST)
    index.append(SECOND)
    assert index.collect_aborted(fetch_offset, upper) == (expected, complete)


def test_what_ended_before_the_range_is_not_looked_at(
    index: TransactionIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer at the end of the log asks with every fetch, on the event loop."""
    txns = [AbortedTxn(1, 10 * n, 10 * n + 9, 10 * n + 10) for n in range(1000)]
    for txn in txns:
        index.append(txn)
    made: list[AbortedTxn] = []

    def counted(*fields: int) -> AbortedTxn:
        made.append(AbortedTxn(*fields))
        return made[-1]

    monkeypatch.setattr(txn_index, "AbortedTxn", counted)
    assert index.collect_aborted(9_995, 10_000) == ([txns[-1]], True)
    assert index.collect_aborted(10_000, 10_005) == ([], False)
    assert index.collect_aborted(5_000, 5_020) == (txns[500:502], True)
    assert len(made) < 10


@pytest.mark.parametrize(
    ("offset", "left"),
    [(200, [FIRST, SECOND]), (131, [FIRST, SECOND]), (130, [FIRST]), (121, [FIRST]), (120, [])],
)
def test_truncation_drops_the_markers_from_there_on(
    fs: MemoryFileSystem, index: TransactionIndex, offset: int, left: list[AbortedTxn]
) -> None:
    index.append(FIRST)
    index.append(SECOND)
    index.truncate_to(offset)
    assert list(index) == left
    assert list(TransactionIndex(fs, PATH)) == left


def test_after_truncation_the_next_entry_follows_on(
    fs: MemoryFileSystem, index: TransactionIndex
) -> None:
    index.append(FIRST)
    index.append(SECOND)
    index.truncate_to(125)
    again = AbortedTxn(79, 121, 126, 127)
    index.append(again)
    assert list(TransactionIndex(fs, PATH)) == [FIRST, again]


def test_reset_empties_the_index(fs: MemoryFileSystem, index: TransactionIndex) -> None:
    index.append(SECOND)
    index.reset()
    assert list(index) == list(TransactionIndex(fs, PATH)) == []
    index.append(FIRST)
    assert list(TransactionIndex(fs, PATH)) == [FIRST]


def test_an_index_without_file_can_be_truncated_and_reset(index: TransactionIndex) -> None:
    index.truncate_to(0)
    index.reset()
    assert not index.exists()


def test_a_torn_last_entry_is_written_over(fs: MemoryFileSystem) -> None:
    fs.write_atomic(PATH, JAVA[:50])
    index = TransactionIndex(fs, PATH)
    assert list(index) == [FIRST]
    index.append(SECOND)
    assert fs.read_bytes(PATH) == JAVA


def test_a_full_disk_leaves_memory_and_file_in_step(
    fs: MemoryFileSystem, index: TransactionIndex
) -> None:
    index.append(FIRST)
    fs.fail("*.txnindex", errno.ENOSPC, times=1)
    with pytest.raises(OSError, match=r".*"):
        index.append(SECOND)
    assert list(index) == [FIRST]
    fs.heal()
    index.append(SECOND)
    assert fs.read_bytes(PATH) == JAVA


def test_a_sound_index_passes_its_check(index: TransactionIndex) -> None:
    index.append(FIRST)
    index.append(SECOND)
    index.check(100)


def test_an_entry_of_another_segment_fails_the_check(index: TransactionIndex) -> None:
    index.append(FIRST)
    with pytest.raises(TxnIndexError, match="ends before"):
        index.check(121)


def test_entries_out_of_order_fail_the_check(fs: MemoryFileSystem) -> None:
    fs.write_atomic(PATH, JAVA[34:] + JAVA[:34])
    with pytest.raises(TxnIndexError, match="out of order"):
        TransactionIndex(fs, PATH).check(100)


def test_an_unknown_version_is_an_error(fs: MemoryFileSystem) -> None:
    fs.write_atomic(PATH, b"\0\x01" + JAVA[2:])
    with pytest.raises(TxnIndexError, match="version 1"):
        list(TransactionIndex(fs, PATH))


def test_what_is_not_in_the_file_yet_survives_a_truncation_behind_it(
    fs: MemoryFileSystem, index: TransactionIndex
) -> None:
    index.load()
    fs.fail("*.txnindex", errno.EMFILE, times=1)
    index.append(FIRST)
    assert not index.exists()
    index.truncate_to(125)
    index.write_out()
    index.append(SECOND)
    assert fs.read_bytes(PATH) == JAVA
