"""Which segments retention lets go, and what the log does about it."""

from __future__ import annotations

import errno

import pytest

from ottla.config.topic import TopicConfig
from ottla.model.ids import TopicPartition
from ottla.storage.log import Log
from ottla.storage.retention import Rule
from ottla.testing.logs import FOLDER, LogBench

HOUR = 3_600_000
DAY = 86_400_000
YEAR = 365 * DAY


class Committed:
    """Where groups are, as a coordinator would say."""

    def __init__(self, **offsets: int) -> None:
        self._offsets = offsets

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        return self._offsets.get(group)


def rules(log: Log, positions: Committed | None = None) -> list[Rule]:
    return [each.fate.rule for each in log.explain_retention(positions).segments]


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
    expected = [f"{stem}{suffix}.deleted" for suffix in (".timeindex", ".index", ".log")]
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


# --- timestamps in the future ---------------------------------------------------------------------


def written_by_kafka_3(config: TopicConfig, ahead: int, *, roll: bool = True) -> LogBench:
    """A log with a record from the future, let in when there was no limit."""
    bench = LogBench(TopicConfig(message_timestamp_after_max_ms=2**60))
    log = bench.open()
    bench.append(log, b"v", timestamp=bench.clock.now_ms() + ahead)
    if roll:
        log.roll()
    bench.close(log)
    bench.config = config
    return bench


@pytest.mark.parametrize("roll", [True, False])
def test_the_future_pins_nothing(roll: bool) -> None:
    bench = written_by_kafka_3(TopicConfig(retention_ms=DAY), 100 * YEAR, roll=roll)
    log = bench.open(clean=True)
    assert log.delete_old(bench.clock.now_ms() + DAY) == []
    assert log.delete_old(bench.clock.now_ms() + DAY + 1) != []
    assert log.log_start_offset == 1


def test_a_timestamp_within_what_the_topic_allows_counts() -> None:
    bench = written_by_kafka_3(TopicConfig(retention_ms=DAY), HOUR)
    log = bench.open(clean=True)
    assert log.delete_old(bench.clock.now_ms() + DAY + HOUR) == []
    assert log.delete_old(bench.clock.now_ms() + DAY + HOUR + 1) != []


def test_a_timestamp_a_moment_beyond_it_does_not() -> None:
    bench = written_by_kafka_3(TopicConfig(retention_ms=DAY), HOUR + 1)
    log = bench.open(clean=True)
    assert log.delete_old(bench.clock.now_ms() + DAY + 1) != []


def test_a_topic_that_allows_the_future_keeps_it_until_that_changes() -> None:
    open_to_all = TopicConfig(retention_ms=DAY, message_timestamp_after_max_ms=2**63 - 1)
    bench = written_by_kafka_3(open_to_all, 100 * YEAR)
    log = bench.open(clean=True)
    assert log.delete_old(bench.clock.now_ms() + 50 * YEAR) == []
    log.config = TopicConfig(retention_ms=DAY)
    assert log.delete_old(bench.clock.now_ms() + 50 * YEAR) != []


def test_what_is_said_of_a_file_that_counts() -> None:
    bench = written_by_kafka_3(TopicConfig(retention_ms=DAY), 100 * YEAR)
    first = bench.open(clean=True).explain_retention().segments[0]
    assert first.age.by_file
    assert first.age.since_ms == bench.clock.now_ms()
    assert first.age.newest_ms == bench.clock.now_ms() + 100 * YEAR
    assert first.fate.due_ms == bench.clock.now_ms() + DAY + 1


def test_indexes_snapshots_and_a_restart_do_not_make_a_file_younger() -> None:
    bench = written_by_kafka_3(TopicConfig(retention_ms=DAY), 100 * YEAR)
    bench.clock.advance(DAY)
    bench.fs.now_ms = bench.clock.now_ms()
    bench.close(bench.open(clean=True))
    log = bench.killed().open(recovery_point=0)
    assert log.delete_old(bench.clock.now_ms() + 1) != []


def test_the_time_of_a_file_is_not_looked_up_again_while_nothing_is_written() -> None:
    bench, log, _ = filled(TopicConfig(retention_ms=100 * DAY))
    looked_up: list[str] = []
    of_the_disk = bench.fs.mtime_ms

    def mtime_ms(path: str) -> int:
        looked_up.append(path)
        return of_the_disk(path)

    bench.fs.mtime_ms = mtime_ms
    for _ in range(3):
        log.delete_old(bench.clock.now_ms())
        log.roll_old(bench.clock.now_ms())
    assert len(looked_up) == 1


# --- rolling without an append --------------------------------------------------------------------


def test_a_quiet_segment_rolls_when_its_time_is_over() -> None:
    bench = LogBench(TopicConfig(segment_ms=DAY, retention_ms=-1))
    log = bench.open()
    bench.append(log, b"first")
    bench.clock.advance(HOUR)
    bench.append(log, b"last")
    start = bench.clock.now_ms() - HOUR
    assert not log.roll_old(start + DAY)
    assert log.roll_old(start + DAY + 1)
    assert log.segment_count == 2
    assert bench.contents(log) == [(0, b"first"), (1, b"last")]
    assert bench.append(log, b"next").base_offset == 2


def test_the_clock_is_that_of_an_append() -> None:
    for later in (DAY, DAY + 1):
        bench = LogBench(TopicConfig(segment_ms=DAY))
        quiet, written = bench.open(), LogBench(TopicConfig(segment_ms=DAY))
        busy = written.open()
        bench.append(quiet, b"v")
        written.append(busy, b"v")
        bench.clock.advance(later)
        written.clock.advance(later)
        written.append(busy, b"next")
        assert quiet.roll_old(bench.clock.now_ms()) == (busy.segment_count == 2)


def test_jitter_is_taken_off() -> None:
    bench = LogBench(TopicConfig(segment_ms=DAY, segment_jitter_ms=HOUR))
    log = bench.open()
    bench.append(log, b"v")
    due = log.explain_retention().segments[0].rolls_ms
    assert due is not None
    assert bench.clock.now_ms() + DAY - HOUR < due < bench.clock.now_ms() + DAY
    assert not log.roll_old(due - 1)
    assert log.roll_old(due)


def test_an_empty_segment_is_never_rolled_and_no_file_is_touched() -> None:
    bench = LogBench(TopicConfig(segment_ms=1000, retention_ms=1000))
    log = bench.open()
    names = bench.fs.listdir(FOLDER)
    bench.fs.fail(FOLDER + "/*", errno.EIO)
    for _ in range(3):
        bench.clock.advance(10 * DAY)
        assert log.delete_old(bench.clock.now_ms()) == []
        assert not log.roll_old(bench.clock.now_ms())
    assert bench.fs.listdir(FOLDER) == names
    assert log.failure is None


def test_a_log_rolls_once_and_then_rests() -> None:
    bench = LogBench(TopicConfig(segment_ms=1000, retention_ms=-1))
    log = bench.open()
    bench.append(log, b"v")
    rolled = 0
    for _ in range(5):
        bench.clock.advance(DAY)
        rolled += log.roll_old(bench.clock.now_ms())
    assert (rolled, log.segment_count) == (1, 2)


def test_who_writes_old_records_is_not_cut_into_small_segments() -> None:
    bench = LogBench(TopicConfig(segment_ms=DAY, retention_ms=-1))
    log = bench.open()
    long_ago = bench.clock.now_ms() - YEAR
    bench.append(log, b"copied", timestamp=long_ago)
    assert not log.roll_old(bench.clock.now_ms() + 59_999)
    assert log.roll_old(bench.clock.now_ms() + 60_000)


def test_after_a_restart_the_first_record_still_counts() -> None:
    bench = LogBench(TopicConfig(segment_ms=DAY, retention_ms=-1))
    log = bench.open()
    bench.append(log, b"v")
    bench.close(log)
    bench.clock.advance(DAY)
    again = bench.open(clean=True)
    assert not again.roll_old(bench.clock.now_ms())
    assert again.roll_old(bench.clock.now_ms() + 1)


def test_looking_at_quiet_segments_keeps_no_file_open() -> None:
    bench = LogBench(TopicConfig(segment_ms=DAY, retention_ms=-1))
    log = bench.open()
    bench.append(log, b"v")
    bench.close(log)
    again = bench.killed()
    log = again.open(clean=True)
    assert len(again.context.files) == 0
    assert not log.roll_old(bench.clock.now_ms())
    assert len(again.context.files) == 0
    again.append(log, b"next")
    assert len(again.context.files) == 1


def test_records_without_timestamps_roll_by_the_segments_own_age() -> None:
    bench = LogBench(TopicConfig(segment_ms=DAY, retention_ms=-1))
    log = bench.open()
    bench.append(log, b"v", timestamp=-1)
    assert not log.roll_old(bench.clock.now_ms() + DAY)
    assert log.roll_old(bench.clock.now_ms() + DAY + 1)


# --- holds ----------------------------------------------------------------------------------------


def holding(**settings: object) -> TopicConfig:
    values = {"retention_ms": DAY, "ottla_retention_hold_groups": ("slow",), **settings}
    return TopicConfig(**values)


def test_what_a_group_has_not_read_stays() -> None:
    bench, log, _ = filled(holding())
    log.delete_old(bench.clock.now_ms() + YEAR, Committed(slow=3))
    assert log.log_start_offset == 2
    assert rules(log, Committed(slow=3)) == [Rule.HOLD] * 3
    log.delete_old(bench.clock.now_ms() + YEAR, Committed(slow=4))
    assert log.log_start_offset == 4
    log.delete_old(bench.clock.now_ms() + YEAR, Committed(slow=8))
    assert (log.log_start_offset, log.size) == (8, 0)


def test_the_slowest_of_several_groups_counts() -> None:
    bench, log, _ = filled(holding(ottla_retention_hold_groups=("slow", "slower")))
    log.delete_old(bench.clock.now_ms() + YEAR, Committed(slow=8, slower=5))
    assert log.log_start_offset == 4


def test_size_is_held_back_too() -> None:
    bench, log, _ = filled(holding(retention_ms=-1, retention_bytes=0))
    log.delete_old(bench.clock.now_ms(), Committed(slow=2))
    assert log.log_start_offset == 2


@pytest.mark.parametrize("positions", [None, Committed(), Committed(quick=8)])
def test_a_group_of_which_nothing_is_known_has_read_nothing(positions: Committed | None) -> None:
    bench, log, _ = filled(holding())
    assert log.delete_old(bench.clock.now_ms() + YEAR, positions) == []


@pytest.mark.parametrize(("spare", "start"), [(0, 4), (-1, 6), (1, 4)])
def test_above_the_bound_the_oldest_go_and_the_group_is_named(spare: int, start: int) -> None:
    size = filled(TopicConfig())[2]
    bench, log, _ = filled(holding(ottla_retention_hold_bytes=2 * size + spare))
    said = log.delete_old(bench.clock.now_ms() + YEAR, Committed(slow=1))
    assert log.log_start_offset == start
    assert said[1:] == [
        f"group slow had not read {start - 1} of the records deleted from t-0, which was larger "
        f"than ottla.retention.hold.bytes={2 * size + spare}"
    ]


def test_delete_records_is_not_held_back() -> None:
    bench, log, _ = filled(holding())
    log.advance_start(6)
    said = log.delete_old(bench.clock.now_ms(), Committed(slow=0))
    assert (log.first_base_offset, len(said)) == (6, 1)


def test_a_hold_that_nothing_threatens_is_not_the_reason() -> None:
    _, log, _ = filled(holding(retention_ms=-1))
    assert rules(log, Committed(slow=0)) == [Rule.UNLIMITED] * 4


def test_what_would_be_due_without_the_hold_is_said() -> None:
    bench, log, _ = filled(holding())
    first = log.explain_retention(Committed(slow=0)).segments[0]
    assert (first.fate.due_ms, first.fate.unheld_ms) == (None, bench.clock.now_ms() - 3 * DAY + 1)


# --- what is said ---------------------------------------------------------------------------------


def test_an_old_segment_behind_a_young_one_says_whom_it_waits_for() -> None:
    bench = LogBench(TopicConfig(retention_ms=DAY))
    log = bench.open()
    bench.append(log, b"young", timestamp=bench.clock.now_ms() + HOUR)
    log.roll()
    bench.append(log, b"old", timestamp=bench.clock.now_ms() - HOUR)
    young, old = log.explain_retention().segments
    assert young.fate.due_ms == old.fate.due_ms == bench.clock.now_ms() + HOUR + DAY + 1
    assert (young.fate.behind, old.fate.behind) == (None, 0)


@pytest.mark.parametrize(
    ("policy", "rule"), [(frozenset({"compact"}), Rule.COMPACT), (frozenset[str](), Rule.NONE)]
)
def test_without_the_delete_policy_nothing_is_due(policy: frozenset[str], rule: Rule) -> None:
    _, log, _ = filled(TopicConfig())
    log.config = TopicConfig(cleanup_policy=policy, retention_ms=1, retention_bytes=1)
    assert rules(log) == [rule] * 4
    log.advance_start(5)
    assert rules(log) == [Rule.START] * 2 + [rule] * 2


def test_each_rule_is_named() -> None:
    size = filled(TopicConfig())[2]
    _, log, _ = filled(TopicConfig(retention_bytes=2 * size, retention_ms=DAY))
    log.advance_start(2)
    log.high_watermark = 6
    assert rules(log) == [Rule.START, Rule.SIZE, Rule.TIME, Rule.WATERMARK]
    log.high_watermark = 8
    log.roll()
    assert rules(log)[3:] == [Rule.TIME, Rule.EMPTY]


# --- changes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "times"),
    [
        ({"retention_ms": 1}, 1),
        ({"retention_bytes": 1}, 1),
        ({"segment_ms": 1}, 1),
        ({"max_compaction_lag_ms": 1}, 1),
        ({"cleanup_policy": frozenset({"compact"})}, 1),
        ({"message_timestamp_after_max_ms": 1}, 1),
        ({"ottla_retention_hold_groups": ("a",)}, 1),
        ({"ottla_retention_hold_bytes": 1}, 1),
        ({"max_message_bytes": 1}, 0),
        ({}, 0),
    ],
)
def test_only_a_change_that_matters_calls_retention(change: dict[str, object], times: int) -> None:
    bench = LogBench(TopicConfig())
    log = bench.open()
    log.config = TopicConfig(**change)
    assert bench.host.retention_changes == times
