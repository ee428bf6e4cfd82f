"""Compaction and transactions, as a folder taken over from Apache Kafka has them."""

from __future__ import annotations

import errno

from ottla.config.topic import TopicConfig
from ottla.records.batch import BatchHeader
from ottla.storage.log import Log
from ottla.storage.txn_index import AbortedTxn
from ottla.testing.logs import LogBench

RETENTION_MS = 1000


def made() -> tuple[LogBench, Log]:
    bench = LogBench(
        TopicConfig(
            cleanup_policy=frozenset({"compact"}),
            internal_segment_bytes=100_000,
            delete_retention_ms=RETENTION_MS,
        )
    )
    return bench, bench.open()


class Writer:
    """A transactional producer."""

    def __init__(self, bench: LogBench, log: Log, producer_id: int) -> None:
        self._bench = bench
        self._log = log
        self._id = producer_id
        self._sequence = 0

    def write(self, key: bytes, value: bytes | None = b"v") -> None:
        self._bench.put(
            self._log,
            (key, value),
            producer_id=self._id,
            producer_epoch=0,
            sequence=self._sequence,
            transactional=True,
        )
        self._sequence += 1

    def commit(self) -> None:
        self._bench.end_transaction(self._log, self._id, commit=True)

    def abort(self) -> None:
        self._bench.end_transaction(self._log, self._id, commit=False)


def data(bench: LogBench, log: Log) -> list[int]:
    """Offsets of records that are no markers."""
    markers = {header.base_offset for header in bench.batches(log) if header.is_control}
    return [record.offset for record in bench.records(log) if record.offset not in markers]


def markers(bench: LogBench, log: Log) -> list[int]:
    """Offsets of markers that have not been emptied."""
    return [
        item.base_offset for item in bench.batches(log) if item.is_control and item.record_count
    ]


def at(bench: LogBench, log: Log, offset: int) -> BatchHeader:
    return next(header for header in bench.batches(log) if header.base_offset == offset)


def later(bench: LogBench, log: Log) -> None:
    """A plain record, a roll, and another cleaning."""
    bench.put(log, (b"later", b"v"))
    log.roll()
    bench.clean(log)


def test_aborted_records_go_and_supersede_nothing() -> None:
    bench, log = made()
    bench.put(log, (b"a", b"1"))  # 0
    one = Writer(bench, log, 1)
    one.write(b"a", b"aborted")  # 1
    one.abort()  # 2
    bench.put(log, (b"b", b"1"))  # 3
    log.roll()
    bench.clean(log)
    assert data(bench, log) == [0, 3]


def test_committed_records_are_compacted_like_others() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"a")  # 0
    one.write(b"b")  # 1
    one.commit()  # 2
    one.write(b"a")  # 3
    one.commit()  # 4
    log.roll()
    bench.clean(log)
    assert data(bench, log) == [1, 3]
    assert markers(bench, log) == [2, 4]


def test_an_open_transaction_and_what_follows_it_are_left_alone() -> None:
    bench, log = made()
    bench.put(log, (b"a", b"1"))  # 0
    log.roll()
    Writer(bench, log, 1).write(b"a")  # 1
    log.roll()
    bench.put(log, (b"a", b"2"))  # 2
    log.roll()
    bench.flush(log)
    found = log.compaction.assess(bench.clock.now_ms())
    assert found.first_uncleanable_offset == 1
    bench.clean(log)
    assert data(bench, log) == [0, 1, 2]


def test_a_commit_marker_goes_after_its_records_and_its_horizon() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"a")  # 0
    one.commit()  # 1
    bench.put(log, (b"a", b"2"))  # 2
    one.write(b"c")  # 3: the producer's last batch is elsewhere
    one.commit()  # 4
    log.roll()
    bench.clean(log)
    # The cleaning met the transaction's batch, so the marker waits for the next one.
    assert markers(bench, log) == [1, 4]
    assert at(bench, log, 1).delete_horizon_ms is None
    later(bench, log)
    assert at(bench, log, 1).delete_horizon_ms == bench.clock.now_ms() + RETENTION_MS
    bench.clock.advance(RETENTION_MS)
    later(bench, log)
    assert markers(bench, log) == [4]


def test_a_marker_stays_while_an_empty_batch_of_its_transaction_stays() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"a")  # 0
    one.commit()  # 1
    bench.put(log, (b"a", b"2"))  # 2
    log.roll()
    bench.clean(log)
    assert at(bench, log, 0).record_count == 0  # kept for the producer's sequence
    for _ in range(3):
        bench.clock.advance(RETENTION_MS)
        later(bench, log)
    assert markers(bench, log) == [1]
    assert at(bench, log, 1).delete_horizon_ms is None


def test_an_abort_marker_goes_after_its_records_and_its_horizon() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"a")  # 0
    one.abort()  # 1
    one.write(b"b")  # 2
    one.commit()  # 3
    log.roll()
    bench.clean(log)
    assert data(bench, log) == [2]
    assert markers(bench, log) == [1, 3]
    assert log.aborted_transactions(0, 10) == [AbortedTxn(1, 0, 1, 2)]
    later(bench, log)
    assert at(bench, log, 1).delete_horizon_ms is not None
    assert log.aborted_transactions(0, 10) == []
    bench.clock.advance(RETENTION_MS)
    later(bench, log)
    assert markers(bench, log) == [3]
    assert data(bench, log)[0] == 2


def test_the_sequence_of_an_aborted_transaction_is_kept() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"a")  # 0
    one.write(b"b")  # 1
    one.abort()  # 2
    log.roll()
    for _ in range(3):
        bench.clock.advance(RETENTION_MS)
        later(bench, log)
    assert at(bench, log, 1).record_count == 0
    assert at(bench, log, 1).base_sequence == 1
    assert log.aborted_transactions(0, 3) == [AbortedTxn(1, 0, 2, 3)]
    bench = bench.killed()
    log = bench.open()
    again = bench.put(
        log, (b"b", b"v"), producer_id=1, producer_epoch=0, sequence=1, transactional=True
    )
    assert again.duplicate


def test_the_last_marker_of_a_producer_without_records_keeps_its_epoch() -> None:
    bench, log = made()
    bench.end_transaction(log, 1, commit=True, producer_epoch=5)  # 0
    log.roll()
    for _ in range(3):
        bench.clock.advance(RETENTION_MS)
        later(bench, log)
    assert at(bench, log, 0).producer_epoch == 5
    assert at(bench, log, 0).record_count == 0


def test_an_aborted_transaction_over_several_segments() -> None:
    bench, log = made()
    one, two = Writer(bench, log, 1), Writer(bench, log, 2)
    one.write(b"a")  # 0
    two.write(b"b")  # 1
    log.roll()
    one.write(b"c")  # 2
    log.roll()
    one.abort()  # 3
    two.commit()  # 4
    bench.put(log, (b"z", b"1"))  # 5
    log.roll()
    bench.clean(log)
    assert data(bench, log) == [1, 5]
    assert markers(bench, log) == [3, 4]


def test_a_marker_in_the_active_segment_decides_for_those_before_it() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"a")  # 0
    one.write(b"b")  # 1
    log.roll()
    one.abort()  # 2
    bench.clean(log)
    assert data(bench, log) == []


def test_a_marker_whose_index_entry_could_not_be_written_yet() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"a")  # 0
    one.write(b"b")  # 1
    log.roll()
    bench.fs.fail("*.txnindex", errno.EMFILE, operations=("open",), times=1)
    one.abort()  # 2: there was no descriptor for the transaction index
    bench.clean(log)
    assert data(bench, log) == []


def test_the_map_fills_up_in_the_middle_of_aborted_transactions() -> None:
    bench, log = made()
    one, two = Writer(bench, log, 1), Writer(bench, log, 2)
    expected = []
    for n in range(60):
        writer = one if n % 2 else two
        writer.write(b"%d" % n)
        if n % 3:
            expected.append(log.log_end_offset - 1)
            writer.commit()
        else:
            writer.abort()
    log.roll()
    while log.compaction.cleaned_to != 120:
        bench.clean(log, map_bytes=24 * 9)
        assert data(bench, log) == expected


def test_keys_like_those_of_markers() -> None:
    bench, log = made()
    one = Writer(bench, log, 1)
    one.write(b"\0\0\0\1")  # 0: what a commit marker has for a key
    one.commit()  # 1
    one.write(b"\0\0\0\0")  # 2: an abort marker's
    one.commit()  # 3
    log.roll()
    bench.clean(log)
    assert data(bench, log) == [0, 2]


def committed(bench: LogBench, log: Log) -> dict[bytes | None, int]:
    """Where a consumer that reads committed records finds the last one of each key."""
    aborted = log.aborted_transactions(0, log.log_end_offset)
    latest = {}
    for header in bench.batches(log):
        if header.is_control or any(_covers(each, header) for each in aborted):
            continue
        for record in bench.records(log):
            if header.base_offset <= record.offset <= header.last_offset:
                latest[record.key] = record.offset
    return latest


def _covers(aborted: AbortedTxn, header: BatchHeader) -> bool:
    return (
        aborted.producer_id == header.producer_id
        and aborted.first_offset <= header.base_offset <= aborted.last_offset
    )


def test_committed_consumers_see_the_same_before_and_after() -> None:
    bench, log = made()
    writers = [Writer(bench, log, n) for n in range(4)]
    for n in range(40):
        writer = writers[n % 4]
        writer.write(b"%d" % (n % 5))
        writer.write(b"%d" % (n % 7 + 10))
        if n % 6 == 0:
            writer.abort()
        else:
            writer.commit()
        if n % 9 == 8:
            log.roll()
    log.roll()
    before = committed(bench, log)
    for _ in range(3):
        bench.clean(log)
        assert committed(bench, log) == before
        bench.clock.advance(RETENTION_MS)
        later(bench, log)
        before[b"later"] = log.log_end_offset - 1
