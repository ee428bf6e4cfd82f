"""Which segments retention lets go, and what the log does about it."""

from __future__ import annotations

import pytest

from ottla.config.topic import TopicConfig
from ottla.storage.log import Log
from ottla.testing.logs import FOLDER, LogBench

DAY = 86_400_000


def filled(config: TopicConfig, *, segments: int = 4) -> tuple[LogBench, Log, int]:
    """A log whose segments hold two records each, a day apart, the last one active and full."""
    bench = LogBench(config)
    log = bench.open()
    for number in range(segments):
        if number:
            log.roll()
        size = bench.append(log, b"x" * 50, b"y" * 50).bytes
        bench.clock.advance(DAY)
    return bench, log, size


def test_time_deletes_segments_whose_latest_record_is_too_old() -> None:
    bench, log, size = filled(TopicConfig(retention_ms=3 * DAY))
    said = log.delete_old(bench.clock.now_ms())
    assert log.log_start_offset == log.first_base_offset == 2
    assert log.segment_count == 3
    assert log.size == 3 * size
    assert said == [
        f"deleted 1 segments ({size} bytes) of t-0 because of retention.ms={3 * DAY}; the log "
        f"starts at 2 now"
    ]


def test_a_record_exactly_as_old_as_retention_stays() -> None:
    bench, log, _ = filled(TopicConfig(retention_ms=4 * DAY))
    assert log.delete_old(bench.clock.now_ms()) == []
    assert log.delete_old(bench.clock.now_ms() + 1) != []


def test_an_expired_active_segment_is_rolled_first() -> None:
    bench, log, _ = filled(TopicConfig(retention_ms=1000))
    log.delete_old(bench.clock.now_ms())
    assert (log.log_start_offset, log.log_end_offset, log.segment_count, log.size) == (8, 8, 1, 0)
    assert bench.append(log, b"next").base_offset == 8


def test_an_empty_log_is_left_alone() -> None:
    bench = LogBench(TopicConfig(retention_ms=1))
    log = bench.open()
    bench.clock.advance(DAY)
    assert log.delete_old(bench.clock.now_ms()) == []
    assert log.segment_count == 1


def test_an_old_segment_behind_a_young_one_stays() -> None:
    bench = LogBench(TopicConfig(retention_ms=DAY, message_timestamp_after_max_ms=100 * DAY))
    log = bench.open()
    bench.append(log, b"young", timestamp=bench.clock.now_ms() + 50 * DAY)
    log.roll()
    bench.append(log, b"old")
    bench.clock.advance(10 * DAY)
    log.delete_old(bench.clock.now_ms())
    assert log.segment_count == 2


@pytest.mark.parametrize(("spare", "left"), [(0, 2), (1, 3), (-1, 2)])
def test_size_deletes_as_long_as_enough_remains(spare: int, left: int) -> None:
    size = filled(TopicConfig())[2]
    bench, log, _ = filled(TopicConfig(retention_bytes=2 * size + spare, retention_ms=-1))
    log.delete_old(bench.clock.now_ms())
    assert log.segment_count == left


def test_zero_bytes_of_retention_empty_the_log() -> None:
    bench, log, _ = filled(TopicConfig(retention_bytes=0, retention_ms=-1))
    log.delete_old(bench.clock.now_ms())
    assert (log.size, log.log_start_offset) == (0, 8)


def test_minus_one_keeps_everything() -> None:
    bench, log, _ = filled(TopicConfig(retention_bytes=-1, retention_ms=-1))
    bench.clock.advance(10_000 * DAY)
    assert log.delete_old(bench.clock.now_ms()) == []


@pytest.mark.parametrize("policy", [frozenset({"compact"}), frozenset[str]()])
def test_without_the_delete_policy_only_the_start_offset_counts(policy: frozenset[str]) -> None:
    bench, log, _ = filled(TopicConfig())
    log.config = TopicConfig(cleanup_policy=policy, retention_ms=1, retention_bytes=1)
    assert log.delete_old(bench.clock.now_ms()) == []
    log.advance_start(5)
    log.delete_old(bench.clock.now_ms())
    assert log.first_base_offset == 4


def test_the_start_offset_deletes_segments_wholly_below_it() -> None:
    bench, log, _ = filled(TopicConfig(retention_ms=-1))
    log.advance_start(4)
    assert log.segment_count == 4
    log.delete_old(bench.clock.now_ms())
    assert log.first_base_offset == 4
    log.advance_start(7)
    log.delete_old(bench.clock.now_ms())
    assert (log.first_base_offset, log.log_start_offset) == (6, 7)
    assert bench.contents(log) == [(7, b"y" * 50)]


def test_nothing_beyond_the_high_watermark_goes() -> None:
    bench, log, _ = filled(TopicConfig(retention_ms=1))
    log.high_watermark = 5
    log.delete_old(bench.clock.now_ms())
    assert log.log_start_offset == 4
    log.high_watermark = 8
    log.delete_old(bench.clock.now_ms())
    assert log.log_start_offset == 8


def test_files_are_renamed_at_once_and_handed_over_for_removal() -> None:
    bench, log, _ = filled(TopicConfig(retention_ms=3 * DAY))
    log.delete_old(bench.clock.now_ms())
    stem = f"{FOLDER}/00000000000000000000"
    expected = [f"{stem}{suffix}.deleted" for suffix in (".log", ".index", ".timeindex")]
    assert bench.host.discarded == expected
    assert all(bench.fs.exists(path) for path in expected)
    assert not bench.fs.exists(f"{stem}.log")


def test_a_reader_in_a_deleted_segment_gets_its_bytes() -> None:
    bench, log, size = filled(TopicConfig(retention_ms=3 * DAY))
    region = log.read(0, 10_000, upper=8).region
    log.delete_old(bench.clock.now_ms())
    assert region is not None
    assert len(region.read()) == size


def test_snapshots_below_the_log_start_go_too() -> None:
    bench, log, _ = filled(TopicConfig(retention_ms=2 * DAY))
    log.delete_old(bench.clock.now_ms())
    names = [name for name in bench.fs.listdir(FOLDER) if name.endswith(".snapshot")]
    assert names == ["00000000000000000004.snapshot", "00000000000000000006.snapshot"]


def test_without_timestamps_the_files_age_counts() -> None:
    bench = LogBench(TopicConfig(retention_ms=DAY))
    log = bench.open()
    bench.append(log, b"v", timestamp=-1)
    log.roll()
    assert log.delete_old(bench.clock.now_ms() + DAY) == []
    assert log.delete_old(bench.clock.now_ms() + DAY + 1) != []
