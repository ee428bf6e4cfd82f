"""From `.cleaned` to the log: what a crash leaves at each step, and what a start makes of it."""

from __future__ import annotations

import logging

import pytest

from ottla.config.topic import TopicConfig
from ottla.records.builder import build_batch
from ottla.storage.cleaning import CleanedSegment, clean
from ottla.storage.compaction import Plan, Resources
from ottla.storage.log import Log
from ottla.testing.clock import ManualClock
from ottla.testing.files import Crashed, MemoryFileSystem
from ottla.testing.logs import FOLDER, LogBench

CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}), internal_segment_bytes=100_000, index_interval_bytes=0
)
FIRST = f"{FOLDER}/00000000000000000000"


def filled() -> tuple[LogBench, Log]:
    """Three segments; of the last nothing will stay, of the first a few records in between."""
    bench = LogBench(CONFIG, clock=ManualClock(5_000))
    log = bench.open()
    for keys in ((b"a", b"b", b"c", b"a", b"d", b"a"), (b"e", b"x"), (b"x", b"x")):
        for key in keys:
            bench.put(log, (key, b"1" * (20 + 7 * log.log_end_offset % 11)))
        log.roll()
    bench.put(log, (b"later", b"1"))
    log.roll()
    bench.put(log, (b"x", b"1"))
    log.roll()
    bench.flush(log)
    # The group of the three is full: what comes after is another one.
    log.config = TopicConfig(
        cleanup_policy=CONFIG.cleanup_policy,
        internal_segment_bytes=sum(log.compaction._segments[slot].size for slot in range(3)),
        index_interval_bytes=0,
    )
    return bench, log


def reopened(fs: MemoryFileSystem) -> tuple[LogBench, Log]:
    """As after a crash, with everything flushed: the indexes of old segments are trusted."""
    bench = LogBench(CONFIG, fs=fs, clock=ManualClock(5_000))
    return bench, bench.open(recovery_point=12)


def found(bench: LogBench, log: Log) -> list[int]:
    offsets = [record.offset for record in bench.records(log)]
    for offset in offsets:
        assert bench.contents(log, offset)[0][0] == offset
    return offsets


def test_a_crash_leaves_each_group_old_or_new_and_never_half() -> None:
    bench, log = filled()
    before = found(bench, log)
    begin = bench.fs.operations
    bench.clean(log)
    end = bench.fs.operations
    after = found(bench, log)
    one = [each for each in after if each < 10] + [each for each in before if each >= 10]
    assert len(before) == 12
    assert after == [1, 2, 4, 5, 6, 10, 11]
    seen = []
    for number in range(begin, end):
        bench, log = filled()
        bench.fs.crash_at(number)
        with pytest.raises(Crashed):
            bench.clean(log)
        left = bench.fs.killed()
        seen.append(found(*reopened(left.killed())))
        for again in range(5):
            fs = left.killed()
            fs.crash_at(fs.operations + again, torn=1)
            try:
                reopened(fs)
            except Crashed:
                pass
            assert found(*reopened(fs.killed())) == seen[-1], number
    assert {tuple(each) for each in seen} == {tuple(before), tuple(one), tuple(after)}


def swapping() -> tuple[LogBench, Log, Plan, CleanedSegment]:
    """A log with a new segment whose `.cleaned` files are ready."""
    bench, log = filled()
    now_ms = bench.clock.now_ms()
    assessed = log.compaction.assess(now_ms)
    plan = log.compaction.plan(assessed, Resources(1 << 16, 0.9, 65536, 1e18), now_ms)
    item = next(iter(clean(bench.fs, plan.task)))
    assert isinstance(item, CleanedSegment)
    return bench, log, plan, item


def test_a_withdrawal_that_is_interrupted_changes_nothing() -> None:
    bench, log, plan, item = swapping()
    assert log.compaction.begin(plan, item)
    begin = bench.fs.operations
    log.compaction.withdraw()
    for number in range(begin, bench.fs.operations):
        bench, log, plan, item = swapping()
        before = found(bench, log)
        assert log.compaction.begin(plan, item)
        bench.fs.crash_at(number)
        with pytest.raises(Crashed):
            log.compaction.withdraw()
        found_then = found(*reopened(bench.fs.killed()))
        # Until the first rename the swap stands, and stands for what it says.
        assert found_then == before or number == begin


def test_a_segment_made_of_others_than_are_there_is_refused() -> None:
    _, log, plan, item = swapping()
    log.advance_start(8)
    log.delete_old(0)
    assert not log.compaction.begin(plan, item)
    _, log, plan, item = swapping()
    log.truncate_to(7)
    assert not log.compaction.begin(plan, item)


def test_a_swap_is_finished_once() -> None:
    bench, log, plan, item = swapping()
    assert log.compaction.begin(plan, item)
    assert log.compaction.finish()
    assert log.compaction.finish() is None
    log.compaction.withdraw()
    assert len(found(bench, log)) == 7


def test_snapshots_of_segments_that_are_gone_go_too() -> None:
    bench, log, plan, item = swapping()
    assert log.compaction.begin(plan, item)
    log.compaction.finish()
    names = [each for each in bench.fs.listdir(FOLDER) if each.endswith(".snapshot")]
    assert [int(name[:20]) for name in names] == [10, 11, 12]


class TestWhatKafkaLeaves:
    def test_a_gap_between_segments_of_a_compacted_topic_is_no_lost_file(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = LogBench(CONFIG)
        log = bench.open()
        for key in (b"a", b"b", b"c"):
            bench.put(log, (key, b"1"))
            log.roll()
        bench.fs.remove(f"{FOLDER}/00000000000000000001.log")
        bench.fs.remove(f"{FOLDER}/00000000000000000001.index")
        bench.fs.remove(f"{FOLDER}/00000000000000000001.timeindex")
        bench = bench.killed()
        with caplog.at_level(logging.WARNING):
            assert found(bench, bench.open()) == [0, 2]
        assert "is gone" not in caplog.text

    def test_an_index_whose_log_a_finished_swap_had_removed_is_no_lost_file(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        bench = LogBench(CONFIG)
        log = bench.open()
        for key in (b"a", b"b", b"c"):
            bench.put(log, (key, b"1"))
            log.roll()
        new = build_batch([(1, b"a", b"1", ())], base_offset=0)
        new += build_batch([(1, b"b", b"1", ())], base_offset=1)
        bench.fs.write_atomic(f"{FIRST}.log.swap", new)
        bench.fs.remove(f"{FOLDER}/00000000000000000001.log")
        bench = bench.killed()
        with caplog.at_level(logging.WARNING):
            assert found(bench, bench.open()) == [0, 1, 2]
        assert "is missing, only its index is there" not in caplog.text

    def test_indexes_that_had_not_got_their_names_yet_do(self) -> None:
        bench = LogBench(CONFIG)
        log = bench.open()
        for key in (b"a", b"b", b"c"):
            bench.put(log, (key, b"1"))
        log.roll()
        bench.fs.rename(f"{FIRST}.index", f"{FIRST}.index.swap")
        bench.fs.rename(f"{FIRST}.timeindex", f"{FIRST}.timeindex.swap")
        bench = bench.killed()
        assert found(bench, bench.open(recovery_point=3)) == [0, 1, 2]
        names = bench.fs.listdir(FOLDER)
        assert "00000000000000000000.index" in names
        assert not [name for name in names if name.endswith(".swap")]
