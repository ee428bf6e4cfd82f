"""Opening logs that have been compacted, after a power cut or the loss of an index."""

from __future__ import annotations

import pytest

from ottla.config.topic import TopicConfig
from ottla.storage.log import Log
from ottla.storage.paths import index_name
from ottla.testing.files import Crashed
from ottla.testing.logs import FOLDER, LogBench

RETENTION_MS = 1000


def settings(segment_bytes: int = 100_000) -> TopicConfig:
    return TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        internal_segment_bytes=segment_bytes,
        delete_retention_ms=RETENTION_MS,
    )


def test_a_producer_goes_on_from_its_last_batch_though_that_was_compacted_away() -> None:
    bench = LogBench(settings())
    log = bench.open()

    def put(key: bytes, sequence: int) -> bool:
        return bench.put(
            log, (key, b"v"), producer_id=1, producer_epoch=0, sequence=sequence
        ).duplicate

    put(b"stays", 0)
    put(b"goes", 1)
    bench.put(log, (b"goes", b"newer"))
    log.roll()
    bench.flush(log)
    put(b"lost", 2)  # so the producer's last batch is not in what is cleaned
    bench.clean(log)
    assert [each.base_offset for each in bench.batches(log)] == [0, 2, 3]
    bench = bench.power_lost(names=True)
    log = bench.open(recovery_point=3)
    assert log.log_end_offset == 3
    assert not put(b"lost", 2)
    assert put(b"goes", 1)


def test_a_transaction_that_was_compacted_away_does_not_open_again() -> None:
    bench = LogBench(settings(segment_bytes=400))
    log = bench.open()
    bench.put(
        log, (b"a", b"v" * 100), producer_id=1, producer_epoch=0, sequence=0, transactional=True
    )  # 0
    bench.put(log, (b"b", b"v" * 100))  # 1
    log.roll()  # the snapshot at 2 says that a transaction is open
    bench.put(log, (b"c", b"v" * 300))  # 2
    bench.end_transaction(log, 1, commit=True)  # 3, in the next segment
    bench.put(log, (b"a", b"v" * 20))
    log.roll()
    bench.clock.advance(86_400_000)
    assert log.expire_producers(bench.clock.now_ms()) == 1
    for number in range(3):
        bench.clean(log)
        bench.clock.advance(RETENTION_MS)
        bench.put(log, (b"later %d" % number, b"v" * 300))
        log.roll()
    bench.clean(log)
    assert not any(each.is_transactional for each in bench.batches(log))
    bench.flush(log)
    end = log.log_end_offset
    bench = bench.killed()
    bench.fs.remove(f"{FOLDER}/{index_name(2)}")
    log = bench.open(recovery_point=end)
    assert log.last_stable_offset(end) == end


def test_an_open_transaction_stays_open() -> None:
    bench = LogBench(settings())
    log = bench.open()
    bench.put(log, (b"a", b"1"))
    bench.put(
        log, (b"b", b"1"), producer_id=1, producer_epoch=0, sequence=0, transactional=True
    )  # 1
    log.roll()
    bench.put(log, (b"a", b"2"))
    log.roll()
    bench.clean(log)
    bench.flush(log)
    for clean in (True, False):
        bench = bench.killed()
        log = bench.open(clean=clean, recovery_point=log.log_end_offset)
        assert log.last_stable_offset(log.log_end_offset) == 1


def two_values() -> tuple[LogBench, Log]:
    """A key whose first value was flushed and whose second was not."""
    bench = LogBench(settings(segment_bytes=400))
    log = bench.open()
    bench.put(log, (b"k", b"first"))
    bench.put(log, (b"a", b"v" * 300))
    log.roll()
    bench.flush(log)
    bench.put(log, (b"k", b"second"))
    bench.put(log, (b"b", b"v" * 300))
    log.roll()
    return bench, log


def test_a_power_cut_does_not_take_a_value_with_the_one_that_replaced_it() -> None:
    bench, log = two_values()
    begin = bench.fs.operations
    bench.clean(log)
    for number in range(begin, bench.fs.operations):
        bench, log = two_values()
        bench.fs.crash_at(number, torn=0)
        with pytest.raises(Crashed):
            bench.clean(log)
        bench = bench.power_lost(names=True)
        log = bench.open(recovery_point=2)
        assert b"k" in [record.key for record in bench.records(log)]


def test_what_was_not_flushed_is_not_cleaned() -> None:
    bench, log = two_values()
    assert log.compaction.awaits_flush
    assert log.compaction.assess(bench.clock.now_ms()).first_uncleanable_offset == 2
    bench.flush(log)
    assert not log.compaction.awaits_flush
    assert log.compaction.assess(bench.clock.now_ms()).first_uncleanable_offset == 4


def test_a_copy_of_a_compacted_log_lacks_nothing_when_it_is_compacted_no_more() -> None:
    bench = LogBench(settings())
    log = bench.open()
    for number in range(100):
        # Of the keys of the middle only the last values stay: a gap from 10 to 79.
        bench.put(log, (b"%d" % (number if not 10 <= number < 90 else number % 10 + 200), b"v"))
    log.roll()
    bench.clean(log)
    offsets = [header.base_offset for header in bench.batches(log)]
    assert offsets == [*range(10), *range(80, 100)]
    region = log.read(0, 1_000_000, upper=log.log_end_offset).region
    assert region is not None
    data = region.read()
    size = bench.batches(log)[0].size
    ends = TopicConfig(internal_segment_bytes=10 * size + size // 2)  # with the last before the gap
    other = LogBench(ends)
    copy = other.open()
    copy.append_replicated(memoryview(data), leader_epoch=0)
    assert copy.segment_count > 1
    again = other.killed().open()
    assert [header.base_offset for header in other.batches(again)] == offsets
    assert not again.lost_records
    assert not again.has_gap
